"""Workloads of convolutions as nets have them, that a seed draws: images in any number, patches, signals, volumes.

`usual(count, seed)` are workloads as any. Where `drawn_filters` draws whatever can be written, these are what people
write, with batches and sizes between those of any grid, so that a fresh net's layers have near neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

from drawn_filters import BF16, FP16, FP32, Drawn

_WIDTHS = (16, 24, 32, 32, 40, 48, 64, 64, 64, 64, 80, 96, 96, 128, 128, 128, 160, 192, 192, 256, 256, 256, 320, 384,
           512, 512, 640, 768, 1024, 1280, 2048)  # fmt: skip
_FEW = (1, 1, 2, 3, 3, 3, 3, 4, 4, 6, 8, 12)
_SIDES = (7, 8, 10, 14, 14, 16, 20, 28, 28, 32, 32, 40, 56, 56, 64, 64, 80, 96, 112, 128, 128, 160, 224, 256, 320, 512)
_MULTIPLICATIONS = (2**23, 2**36)
Kinds = tuple[tuple[Callable[[Random], Drawn], float], ...]
"""What draws a layer, and how often it does."""
_ELEMENTS = (2**14, 2**27)
"""Of the larger images: less is over at once, more takes as much longer."""


def between(random: Random, low: int, high: int) -> int:
    """Any whole number, each doubling as likely."""
    return round(2 ** random.uniform(math.log2(low), math.log2(high)))


def layer_of(
    random: Random, images: int, ends: tuple[int, int], size: tuple[int, ...], window: tuple[int, ...], *,
    stride: tuple[int, ...] | None = None, padding: tuple[int, ...] | None = None, dilation: int = 1, groups: int = 1,
    is_transposed: bool = False, nhwc_share: float = 0.3,
) -> Drawn:  # fmt: skip
    inputs, outputs = ends
    ones = (1,) * len(size)
    spread = tuple(dilation if side > 1 else 1 for side in window)
    return Drawn(
        (images, inputs, *size),
        (*((inputs, outputs // groups) if is_transposed else (outputs, inputs // groups)), *window),
        stride or ones,
        padding or tuple(one * (side - 1) // 2 for one, side in zip(spread, window, strict=True)),
        spread,
        groups,
        is_transposed,
        random.choices((BF16, FP32, FP16), (0.4, 0.36, 0.24))[0],
        len(size) == 2 and random.random() < nhwc_share,
    )


def _width(random: Random) -> int:
    """Mostly a power of two or nearly one, else what scaling a net by a factor leaves."""
    kind = random.random()
    if kind < 0.7:
        return random.choice(_WIDTHS)
    step = 8 if kind < 0.9 else 2
    return step * between(random, 16 // step, 1280 // step)


def _ends(random: Random) -> tuple[int, int]:
    """Channels in and out: equal, a multiple, of a concatenation, or few on one side."""
    width, kind = _width(random), random.random()
    if kind < 0.35:
        return width, width
    if kind < 0.6:
        return random.choice(((width, 2 * width), (2 * width, width), (width, 4 * width), (4 * width, width)))
    if kind < 0.72:
        return 8 * between(random, 3, 200), width
    if kind < 0.88:
        return width, _width(random)
    few = random.choice(_FEW) if kind < 0.96 else between(random, 5, 300)
    return random.choice(((few, width), (width, few)))


def _image(random: Random) -> Drawn:
    side = random.choice(_SIDES)
    size = (side, max(1, round(side * random.choice((1, 1, 1, 1, 2, 4, 0.5, 0.75)))))
    window, step = random.choice(
        (((3, 3), 1),) * 8 + (((3, 3), 2),) * 3 + (((1, 1), 2), ((5, 5), 1), ((5, 5), 2), ((7, 7), 1))
        + (((7, 7), 2), ((2, 2), 2), ((4, 4), 2), ((1, 7), 1), ((7, 1), 1), ((1, 3), 1), ((3, 1), 1), ((9, 9), 1))
    )  # fmt: skip
    is_transposed = step == 2 and window in ((2, 2), (4, 4), (3, 3)) and random.random() < 0.6
    dilation = random.choice((2, 4, 6)) if step == 1 and window == (3, 3) and random.random() < 0.08 else 1
    return layer_of(
        random, between(random, 1, 256), _ends(random), size, window, stride=(step, step), dilation=dilation,
        is_transposed=is_transposed,
    )  # fmt: skip


def _pointwise(random: Random) -> Drawn:
    """Windows of one pixel: half of the layers of most nets."""
    side, dims = random.choice((*_SIDES, 7, 14, 28, 12, 24, 48, 13, 15, 27)), random.choices((1, 2), (0.12, 0.88))[0]
    size = (side, side) if dims > 1 else (between(random, 16, 16000),)
    return layer_of(random, between(random, 1, 512), _ends(random), size, (1,) * dims)


def _patches(random: Random) -> Drawn:
    """Windows that do not overlap, or by half, of images, signals and clips."""
    dims = random.choices((1, 2, 3), (0.12, 0.76, 0.12))[0]
    side = random.choice((2, 2, 4, 4, 4, 7, 8, 8, 12, 14, 14, 16, 16, 16, 16, 32))
    window = (random.choice((1, 2, 2, 4)), side, side) if dims == 3 else (side,) * dims
    number = random.choice((4, 7, 8, 14, 14, 16, 16, 24, 28, 32, 37, 56, 64))
    is_overlapping = random.random() < 0.15
    stride = tuple(max(1, one // 2) for one in window) if is_overlapping else window
    size = (
        tuple(number * one for one in window)
        if dims != 3
        else (random.choice((4, 8, 16)), number * side, number * side)
    )
    inputs = random.choice(
        (1, 2, 3, 3, 3, 3, 3, 3, 3, 4, 16) if side > 2 or random.random() < 0.4 else (64, 96, 128, 192, 256, 384)
    )
    outputs = random.choice((48, 64, 96, 128, 192, 256, 320, 384, 512, 768, 768, 768, 1024, 1152, 1280, 1408))
    padding = tuple(one // 2 if is_overlapping else 0 for one in window)
    layer = layer_of(
        random,
        between(random, 1, 512),
        (inputs, outputs),
        size,
        window,
        stride=stride,
        padding=padding,
        nhwc_share=0.15,
    )
    return replace(layer, has_input_gradient=inputs > 16 or random.random() < 0.25)


def _small_images(random: Random) -> Drawn:
    """Thousands of them: frames of games, digits, letters, crops."""
    side, window = (
        random.choice((4, 6, 8, 10, 13, 14, 16, 20, 28, 31, 32, 32, 40, 64, 64, 84, 96)),
        random.choice((2, 3, 3, 3, 4, 4, 5, 6, 7, 8)),
    )
    step = random.choice((1, 2, 2) if window < 8 else (4, 2))
    inputs = random.choice((*_FEW, 16, 32, 48, 64, 96, 128, 192, 256))
    outputs = random.choice((16, 32, 32, 48, 64, 64, 96, 128, 192, 256, 384))
    is_transposed = random.random() < 0.35
    is_padded = random.random() < 0.5
    return layer_of(
        random, between(random, 256, 8192), (outputs, inputs) if is_transposed else (inputs, outputs), (side, side),
        (window, window), stride=(step, step), padding=None if is_padded else (0, 0), is_transposed=is_transposed,
        nhwc_share=0.2,
    )  # fmt: skip


def _narrow(random: Random) -> Drawn:
    """Few channels on both sides, on large images or on many: cuDNN has bad kernels for these."""
    side, window = random.choice(_SIDES), random.choice((1, 2, 3, 3, 3, 4, 5, 5, 7, 9))
    ends = random.choice((*_FEW, 16, 16, 24, 32)), random.choice((*_FEW, 8, 16, 16, 16, 24, 32, 32))
    step = random.choice((1, 1, 1, 2))
    is_transposed = step > 1 and window % 2 == 0 and random.random() < 0.5
    return layer_of(
        random,
        between(random, 1, 4096),
        ends,
        (side, side),
        (window, window),
        stride=(step, step),
        is_transposed=is_transposed,
        nhwc_share=0.2,
    )


def _pixels(random: Random) -> Drawn:
    """Images or results of one pixel or a few: where a generator begins, where a critic ends, what weighs channels."""
    images, side = between(random, 8, 1024), random.choice((1, 1, 1, 2, 3, 4, 4, 5, 6, 7, 8))
    width, other = random.choice(_WIDTHS), random.choice((*_WIDTHS, 1, 1, 1, 3, 10, 100))
    kind = random.choice(("from", "to", "within"))
    if kind == "from":
        window = random.choice((2, 3, 4, 4, 4, 5, 6, 7, 8))
        return layer_of(
            random, images, (width, other), (1, 1), (window, window), stride=(random.choice((1, 2)),) * 2,
            padding=(0, 0), is_transposed=True, nhwc_share=0.15,
        )  # fmt: skip
    if kind == "to":
        return layer_of(random, images, (width, other), (side, side), (side, side), padding=(0, 0), nhwc_share=0.15)
    window = random.choice((1, 3, 3, 3, 5))
    return layer_of(random, images, (width, other), (side, side), (window, window), nhwc_share=0.2)


def _signal(random: Random) -> Drawn:
    length, kind = between(random, 32, 64000), random.random()
    ends = _ends(random)
    if kind < 0.2:
        step = random.choice((2, 2, 4, 5, 8, 8, 10))
        return layer_of(
            random, between(random, 1, 64), ends, (length,), (2 * step,), stride=(step,), padding=(step // 2,),
            is_transposed=True,
        )  # fmt: skip
    window = random.choice((1, 1, 2, 3, 3, 3, 3, 4, 5, 5, 7, 7, 8, 9, 11, 15, 16, 25, 31, 41, 80, 128, 400))
    step = random.choice((1, 1, 1, 2, max(1, window // 2)))
    dilation = 2 ** random.randrange(1, 7) if step == 1 and window > 1 and random.random() < 0.25 else 1
    is_padded = random.random() < 0.7
    return layer_of(
        random, between(random, 1, 256), ends, (length,), (window,), stride=(step,), dilation=dilation,
        padding=None if is_padded else (0,),
    )  # fmt: skip


def _volume(random: Random) -> Drawn:
    windows = ((3, 3, 3),) * 5 + ((1, 3, 3), (1, 3, 3), (3, 1, 1), (3, 1, 1), (1, 1, 1), (1, 1, 1), (2, 2, 2),
                                  (1, 2, 2), (4, 4, 4), (5, 5, 5), (3, 7, 7), (7, 7, 7), (1, 7, 7))  # fmt: skip
    window = random.choice(windows)
    is_even = max(window) % 2 == 0
    step = tuple(2 if side > 1 and (is_even or random.random() < 0.25) else 1 for side in window)
    side = random.choice((4, 7, 8, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 96, 112, 128))
    return layer_of(
        random, between(random, 1, 32), _ends(random), (random.choice((side, 2, 4, 8, 16, 32)), side, side), window,
        stride=step, is_transposed=is_even and random.random() < 0.6,
    )  # fmt: skip


def _channelwise(random: Random) -> Drawn:
    dims, width = random.choice((1, 2, 2, 2)), random.choice(_WIDTHS)
    side = random.choice((3, 3, 3, 4, 5, 5, 7, 7, 9, 11, 13, 15, 21, 31, 51))
    window = (side,) * dims
    if dims == 2 and random.random() < 0.15:
        window = random.choice(((1, side), (side, 1)))
    size = (between(random, 32, 8000),) if dims == 1 else (random.choice(_SIDES),) * 2
    step = 2 if random.random() < 0.2 else 1
    dilation = random.choice((2, 3, 4)) if step == 1 and random.random() < 0.12 else 1
    layer = layer_of(
        random, between(random, 1, 256), (width, width), size, window, stride=(step,) * dims, dilation=dilation,
        groups=width, nhwc_share=0.5,
    )  # fmt: skip
    is_rare = layer.dtype is FP16 and random.random() < 0.5  # cuDNN plans these, too, for a second each
    return replace(layer, dtype=BF16) if is_rare else layer


def _grouped(random: Random) -> Drawn:
    groups = random.choice((2, 2, 3, 4, 4, 6, 8, 8, 12, 16, 16, 32, 32, 64))
    width = random.choice((2, 4, 4, 8, 8, 16, 16, 24, 32, 48, 64, 96, 128))
    window, step = random.choice((1, 3, 3, 3, 3, 5)), random.choice((1, 1, 1, 2))
    outputs = groups * width * random.choice((1, 1, 1, 1, 2))
    dims = random.choice((1, 2, 2, 2, 2))
    size = (random.choice(_SIDES),) * 2 if dims == 2 else (between(random, 32, 8000),)
    return layer_of(
        random, between(random, 1, 256), (groups * width, outputs), size, (window,) * dims, stride=(step,) * dims,
        groups=groups,
    )  # fmt: skip


_KINDS: Kinds = (
    (_image, 0.23), (_pointwise, 0.16), (_patches, 0.09), (_small_images, 0.11), (_narrow, 0.1), (_pixels, 0.07),
    (_signal, 0.1), (_volume, 0.05), (_channelwise, 0.06), (_grouped, 0.03),
)  # fmt: skip


def _is_moderate(layer: Drawn) -> bool:
    if min(layer.out) < 1:
        return False
    largest = max(math.prod(layer.x), math.prod(layer.out))
    low, high = (bound // (16 if layer.weight[1] == 1 < layer.groups else 1) for bound in _MULTIPLICATIONS)
    return low <= layer.multiplications <= high and _ELEMENTS[0] <= largest <= _ELEMENTS[1]


def of_kinds(kinds: Kinds, is_moderate: Callable[[Drawn], bool], seed: int) -> Iterator[Drawn]:
    """Of each kind its share, drawn until it is moderate; without end."""
    random = Random(seed)
    makers, shares = zip(*kinds, strict=True)
    while True:
        make = random.choices(makers, shares)[0]
        layer = make(random)
        while not is_moderate(layer):
            layer = make(random)
        yield layer


def usual_layers(seed: int) -> Iterator[Drawn]:
    return of_kinds(_KINDS, _is_moderate, seed)
