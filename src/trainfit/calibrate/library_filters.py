"""Workloads of convolutions as libraries of image nets have them, that a seed draws: in either layout, in three types.

`by_channel(count, seed)` has windows per channel, `of_libraries(count, seed)` channels in groups, first layers,
volumes, products, plain ones whose channels come last, and windows per channel of signals and volumes. Widths go with
sides as from a net's first stage to its last. cuDNN's kernels for these differ by window, stride, type and layout, so
that the few among `usual_filters` leave most of them without a neighbour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from random import Random

from trainfit.calibrate.drawn_filters import Drawn, convolve
from trainfit.calibrate.usual_filters import Kinds, between, layer_of, of_kinds
from trainfit.calibrate.workloads import BF16, FP16, FP32, Workload

_SIDES = (7, 7, 7, 8, 10, 12, 12, 14, 14, 14, 16, 16, 19, 20, 24, 28, 28, 28, 32, 38, 40, 48, 56, 56, 56, 64, 75, 80,
          96, 112, 112, 128, 150, 160, 192, 224)  # fmt: skip
_WIDEST, _WIDTH_BY_SIDE = 3072, (1200, 24000)
"""Channels; and between which numbers the product of a side and the channels lies."""
_BY_CHANNEL_WINDOWS = (3,) * 9 + (5,) * 5 + (7,) * 6 + (9, 9, 11, 11, 13, 2, 4, 15, 21, 31)
_GROUP_WIDTHS = (2, 4, 4, 8, 8, 8, 16, 16, 16, 24, 24, 32, 32, 32, 40, 48, 48, 56, 64, 64, 80, 112, 128)
_VOLUME_WIDTHS = (16, 16, 24, 32, 32, 32, 45, 48, 48, 64, 64, 64, 96, 128, 128, 144, 192, 230, 256, 256, 320, 512)
_FIRST_WINDOWS = ((3, 1), (3, 1), (3, 2), (3, 2), (3, 2), (5, 1), (5, 2), (7, 1), (7, 2), (7, 2), (7, 4), (4, 2),
                  (4, 4), (4, 4), (6, 2), (8, 4), (8, 8), (11, 4), (14, 14), (16, 16), (16, 16), (9, 1))  # fmt: skip
_FIRST_CLIP_WINDOWS = ((3, 7, 7), (1, 7, 7), (3, 3, 3), (5, 7, 7), (1, 3, 3), (2, 16, 16))
_FIRST_SCAN_WINDOWS = ((3, 3, 3), (3, 3, 3), (3, 3, 3), (5, 5, 5), (7, 7, 7), (2, 2, 2), (4, 4, 4))
_CLIP_WINDOWS = (*((3, 3, 3),) * 3, (1, 3, 3), (1, 3, 3), (3, 1, 1), (3, 1, 1), (1, 1, 1), (5, 1, 1))
_SCAN_WINDOWS = (*((3, 3, 3),) * 6, (1, 1, 1), (2, 2, 2), (5, 5, 5), (1, 1, 1))
_MULTIPLICATIONS, _BYTES = (2**21, 2**36), (2**16, 2**28)
"""Of the larger images: less is over at once, more takes as much longer."""


def _multiple(random: Random, low: float, high: float) -> int:
    """Channels, mostly aligned; each doubling is as likely."""
    step = random.choices((8, 4, 1), (0.84, 0.11, 0.05))[0]
    return step * max(1, between(random, max(1, round(low / step)), max(1, round(high / step))))


def _stage(random: Random) -> tuple[int, tuple[int, int]]:
    """Channels of a net where its images have that size; some are oblong."""
    side = random.choice(_SIDES)
    low, high = (bound / side for bound in _WIDTH_BY_SIDE)
    other = max(4, round(side * random.choice((0.5, 0.75, 1.5, 2, 4)))) if random.random() < 0.1 else side
    return _multiple(random, max(16, low), min(high, _WIDEST)), (side, other)


def _typed(layer: Drawn, random: Random) -> Drawn:
    return replace(layer, dtype=random.choice((BF16, FP16, FP32)))


def _by_channel(random: Random) -> Drawn:
    """A window per channel: of mobile nets, of those that imitate transformers, of those with the largest windows."""
    width, size = _stage(random)
    side, kind = random.choice(_BY_CHANNEL_WINDOWS), random.random()
    window = (side, side)
    if kind < 0.08:
        long = max(side, random.choice((3, 5, 7, 9, 11, 13, 21)))
        window = random.choice(((1, long), (long, 1)))
    step = 2 if side in (3, 5, 7) and kind > 0.82 else 1
    dilation = random.choice((2, 2, 3, 4, 6)) if 0.08 < kind < 0.15 else 1
    outputs = width * (2 if random.random() < 0.04 else 1)
    padding = (0, 0) if random.random() < 0.06 else None  # padded before, or not at all
    layer = layer_of(
        random, between(random, 4, 256), (width, outputs), size, window, stride=(step, step), padding=padding,
        dilation=dilation, groups=width, nhwc_share=0.6,
    )  # fmt: skip
    return _typed(layer, random)


def _grouped(random: Random) -> Drawn:
    wanted, size = _stage(random)
    of_group = random.choice(_GROUP_WIDTHS)
    groups = min(max(2, round(wanted / of_group)), _WIDEST // of_group)
    groups = groups if random.random() < 0.6 else random.choice((2, 4, 8, 16, 32, 32, 64))
    ratio, window = random.choice((1,) * 8 + (2,)), random.choices((3, 1, 5, 7), (0.77, 0.1, 0.09, 0.04))[0]
    step = 2 if window > 1 and random.random() < 0.22 else 1
    ends = groups * of_group, groups * of_group * ratio
    layer = layer_of(
        random, between(random, 4, 256), ends, size, (window, window), stride=(step, step), groups=groups,
        nhwc_share=0.6,
    )  # fmt: skip
    return _typed(layer, random)


def _first(random: Random) -> Drawn:
    """Of images, clips and scans, which need no gradient."""
    inputs = random.choice((3,) * 12 + (1,) * 6 + (2, 4, 4, 6, 9, 12))
    if random.random() < 0.25:
        return _first_of_volume(random, inputs)
    window, step = random.choice(_FIRST_WINDOWS)
    is_patched = step > 2 and step == window
    outputs = random.choice(
        (96, 128, 192, 384, 768, 768, 1024) if is_patched else (8, 16, 24, 32, 32, 40, 48, 64, 64, 96)
    )
    side = random.choice((28, 32, 48, 64, 80, 96, 112, 128, 128, 160, 192, 224, 224, 224, 256, 256, 299, 320, 384, 512))
    size = side // step * step if is_patched else side
    padding = None if random.random() < 0.85 and not is_patched else (0, 0)
    layer = layer_of(
        random, between(random, 1, 256), (inputs, outputs), (size, size), (window, window), stride=(step, step),
        padding=padding, nhwc_share=0.5,
    )  # fmt: skip
    return replace(_typed(layer, random), has_input_gradient=random.random() < 0.15)


def _first_of_volume(random: Random, inputs: int) -> Drawn:
    is_clip = random.random() < 0.45
    window = random.choice(_FIRST_CLIP_WINDOWS if is_clip else _FIRST_SCAN_WINDOWS)
    side = between(random, 24, 128)
    size = (random.choice((4, 8, 8, 16, 16, 32)), *(random.choice((56, 64, 112, 112, 128, 160, 182, 224)),) * 2)
    is_patched = min(window[1:]) % 2 == 0
    step = random.choice(((1, 1, 1), (2, 2, 2))) if not is_clip else random.choice(((1, 2, 2), (2, 2, 2), (1, 1, 1)))
    outputs = random.choice((8, 16, 16, 24, 32, 32, 45, 48, 64, 64))
    layer = layer_of(
        random, between(random, 1, 16), (inputs, outputs), size if is_clip else (side,) * 3, window,
        stride=window if is_patched else step, padding=(0, 0, 0) if is_patched else None,
    )  # fmt: skip
    return replace(_typed(layer, random), has_input_gradient=random.random() < 0.15)


def _volume(random: Random) -> Drawn:
    """Of scans (cubes) and of clips (few frames), with a window per channel or over all, of some made larger again."""
    width, is_clip = random.choice(_VOLUME_WIDTHS), random.random() < 0.5
    window = random.choice(_CLIP_WINDOWS if is_clip else _SCAN_WINDOWS)
    side = random.choice((7, 14, 14, 28, 28, 56, 56, 80, 112)) if is_clip else between(random, 4, 112)
    size = (random.choice((2, 4, 4, 8, 8, 16, 16, 32)) if is_clip else side, side, side)
    is_strided = max(window) == 2 or random.random() < 0.22
    step = tuple(2 if one > 1 and is_strided else 1 for one in window)
    if random.random() < 0.2:
        layer = layer_of(
            random, between(random, 1, 32), (width, width), size, (3, 3, 3), stride=step if is_strided else (1, 1, 1),
            groups=width,
        )  # fmt: skip
        return _typed(layer, random)
    ends = random.choice(((width, width), (width, width), (width, 2 * width), (2 * width, width), (width, 144)))
    layer = layer_of(
        random, between(random, 1, 16), ends, size, window, stride=step,
        is_transposed=is_strided and not is_clip and random.random() < 0.6,
    )  # fmt: skip
    return _typed(layer, random)


def _last(random: Random) -> Drawn:
    """Over all channels, which come last."""
    width, size = _stage(random)
    other = _multiple(random, max(16, width / 6), min(6 * width, _WIDEST))
    ends = (width, width) if random.random() < 0.4 else (width, other)
    window, step = random.choice(
        ((1, 1),) * 4 + ((3, 1),) * 5 + ((3, 2), (3, 2), (1, 2), (2, 2), (5, 1), (7, 1), (4, 4))
    )
    is_patched = step == window > 1
    layer = layer_of(
        random, between(random, 2, 256), ends, size, (window, window), stride=(step, step),
        padding=(0, 0) if is_patched else None, nhwc_share=1.0,
    )  # fmt: skip
    return _typed(layer, random)


def _product(random: Random) -> Drawn:
    """Windows of one pixel over all channels: of images, signals of odd lengths and volumes."""
    dims = random.choices((1, 2, 3), (0.15, 0.65, 0.2))[0]
    size: tuple[int, ...]
    width, size = _stage(random)
    if dims != 2:
        width = _multiple(random, 16, 1536 if dims == 1 else 1024)
        side = between(random, 4, 40)
        size = (between(random, 32, 8192),) if dims == 1 else (random.choice((side, side, 4, 8, 16)), side, side)
    other = _multiple(random, max(8, width / 8), min(8 * width, _WIDEST))
    ends = random.choice(((width, width), (width, other), (width, other)))
    return _typed(layer_of(random, between(random, 1, 256), ends, size, (1,) * dims, nhwc_share=0.5), random)


def _signal_by_channel(random: Random) -> Drawn:
    """Of sound, text and series."""
    width, length = _multiple(random, 16, 4096), between(random, 16, 16000)
    window, step = random.choice((3, 3, 4, 4, 5, 7, 9, 15, 31, 31, 63)), 2 if random.random() < 0.1 else 1
    dilation = 2 ** random.randrange(1, 7) if random.random() < 0.2 and step == 1 else 1
    padding = random.choice((None, (window - 1,), (0,)))
    return _typed(layer_of(
        random, between(random, 1, 128), (width, width), (length,), (window,), stride=(step,), dilation=dilation,
        padding=padding if dilation == 1 else None, groups=width,
    ), random)  # fmt: skip


def _solid_by_channel(random: Random) -> Drawn:
    """Of clips and scans."""
    width = _multiple(random, 16, 768)
    window = random.choice(((3, 3, 3), (3, 3, 3), (1, 3, 3), (3, 1, 1), (5, 5, 5), (7, 7, 7), (1, 7, 7), (5, 1, 1)))
    side, step = between(random, 4, 64), 2 if random.random() < 0.2 else 1
    stride = tuple(step if one > 1 else 1 for one in window)
    size = (random.choice((side, 4, 8, 16)), side, side)
    return _typed(
        layer_of(random, between(random, 1, 32), (width, width), size, window, stride=stride, groups=width), random
    )


def _grouped_product(random: Random) -> Drawn:
    """Windows of one pixel over groups of channels."""
    (wanted, size), of_group = _stage(random), random.choice((4, 8, 16, 16, 24, 32, 32, 40, 48, 64, 96, 128))
    groups = max(2, min(round(wanted / of_group), _WIDEST // of_group))
    ends = groups * of_group, groups * of_group * random.choice((1, 1, 1, 2))
    return _typed(layer_of(random, between(random, 4, 256), ends, size, (1, 1), groups=groups, nhwc_share=0.4), random)


_BY_CHANNEL: Kinds = ((_by_channel, 1.0),)
_OF_LIBRARIES: Kinds = (
    (_grouped, 0.22), (_first, 0.22), (_volume, 0.1), (_last, 0.17), (_product, 0.14), (_signal_by_channel, 0.06),
    (_solid_by_channel, 0.05), (_grouped_product, 0.04),
)  # fmt: skip


def _is_moderate(layer: Drawn) -> bool:
    if min(layer.out) < 1:
        return False
    low, high = (bound // (16 if layer.weight[1] == 1 < layer.groups else 1) for bound in _MULTIPLICATIONS)
    largest = max(map(math.prod, (layer.x, layer.weight, layer.out))) * layer.dtype.itemsize
    return low <= layer.multiplications <= high and _BYTES[0] <= largest <= _BYTES[1]


def layers_by_channel(count: int, seed: int) -> Sequence[Drawn]:
    return list(islice(of_kinds(_BY_CHANNEL, _is_moderate, seed), count))


def layers_of_libraries(count: int, seed: int) -> Sequence[Drawn]:
    return list(islice(of_kinds(_OF_LIBRARIES, _is_moderate, seed), count))


def by_channel(count: int, seed: int) -> list[Workload]:
    return [partial(convolve, layer) for layer in layers_by_channel(count, seed)]


def of_libraries(count: int, seed: int) -> list[Workload]:
    return [partial(convolve, layer) for layer in layers_of_libraries(count, seed)]
