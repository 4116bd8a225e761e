"""Workloads of convolutions at the ends of what nets have, that a seed draws: products over a few places of thousands
of images, first and last layers, volumes, thousands of small images, uneven ones, channels in a few wide groups.

`extreme(count, seed)` are workloads as any. What `usual_filters` draws has few of these, and their kernels are others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import islice
from random import Random

from trainfit.calibrate.drawn_filters import Drawn, convolve
from trainfit.calibrate.usual_filters import Kinds, between, layer_of, of_kinds
from trainfit.calibrate.workloads import Workload

_MULTIPLICATIONS, _ELEMENTS = (2**24, 2**36), (2**14, 2**28)


def _width(random: Random, low: int, high: int) -> int:
    """Mostly aligned."""
    return random.choice((8, 8, 8, 4, 1)) * max(1, between(random, low, high) // 8)


def _product(random: Random) -> Drawn:
    dims, places = random.choice((1, 1, 2, 2, 3)), between(random, 2, 8192)
    side = max(1, round(places ** (1 / dims)))
    ends = _width(random, 16, 4096), _width(random, 16, 4096)
    return layer_of(random, between(random, 1, 16384), ends, (side,) * dims, (1,) * dims)


def _first(random: Random) -> Drawn:
    dims = random.choice((1, 1, 2, 2, 3))
    window, step = random.choice((3, 3, 5, 7, 7, 9, 15) if dims < 3 else (3, 3, 5)), random.choice((1, 1, 2))
    side = between(random, *((1000, 64000), (28, 320), (24, 128))[dims - 1])
    ends = random.choice((1, 1, 2, 3, 3, 4)), random.choice((8, 16, 24, 32, 48, 64, 96))
    return layer_of(
        random, between(random, 1, 128), ends, (side,) * dims, (window,) * dims, stride=(step,) * dims,
    )  # fmt: skip


def _last(random: Random) -> Drawn:
    ends, side = (_width(random, 32, 512), random.choice((1, 1, 2, 2, 3, 4, 6))), between(random, 16, 160)
    return layer_of(random, between(random, 1, 64), ends, (side, side), (random.choice((1, 3, 3, 5)),) * 2)


def _volume(random: Random) -> Drawn:
    width, side = random.choice((16, 24, 32, 48, 48, 64, 96, 128)), between(random, 12, 112)
    ends = width, width * random.choice((1, 1, 2))
    return layer_of(random, between(random, 1, 8), ends, (side,) * 3, (random.choice((3, 3, 3, 2, 1)),) * 3)


def _small(random: Random) -> Drawn:
    window, step = random.choice(((3, 1), (3, 1), (3, 2), (4, 2), (5, 1), (6, 2), (8, 4)))
    ends = random.choice((3, 4, 8, 16, 32, 48, 96)), random.choice((16, 32, 48, 64, 96, 192))
    side = between(random, max(window, 4), 84)
    return layer_of(
        random, between(random, 512, 8192), ends, (side, side), (window, window), stride=(step, step),
        padding=random.choice(((0, 0), None)), is_transposed=step == 2 and random.random() < 0.3,
    )  # fmt: skip


def _uneven(random: Random) -> Drawn:
    width, window = random.choice((16, 32, 48, 64, 64, 96, 128)), random.choice((3, 3, 5, 5, 7, 9, 11))
    ends, size = (width, random.choice((width, width, 64))), (between(random, 2, 64), between(random, 4, 96))
    return layer_of(random, between(random, 8, 1024), ends, size, (window, window), nhwc_share=0.0)


def _grouped(random: Random) -> Drawn:
    groups, width = random.choice((2, 4, 4, 8, 12)), random.choice((32, 64, 96, 128, 192, 256))
    ends = groups * width, groups * width * random.choice((1, 1, 2, 4))
    window = random.choice((1, 1, 1, 2, 3))
    return layer_of(
        random, between(random, 1, 64), ends, (between(random, 64, 2048),), (window,), padding=(0,), groups=groups
    )


_KINDS: Kinds = (
    (_product, 5), (_first, 3), (_last, 2), (_volume, 2), (_small, 4), (_uneven, 2), (_grouped, 1),
)  # fmt: skip


def _is_moderate(layer: Drawn) -> bool:
    largest = max(map(math.prod, (layer.x, layer.weight, layer.out)))
    is_there = min(layer.out) >= 1 and _ELEMENTS[0] <= largest <= _ELEMENTS[1]
    return is_there and _MULTIPLICATIONS[0] <= layer.multiplications <= _MULTIPLICATIONS[1]


def extreme_layers(seed: int) -> Iterator[Drawn]:
    return of_kinds(_KINDS, _is_moderate, seed)


def extreme(count: int, seed: int) -> list[Workload]:
    return [partial(convolve, layer) for layer in islice(extreme_layers(seed), count)]
