"""Workloads of convolutions that a seed draws: any dimensions, windows, strides, dilations, groups, types and layouts.

`drawn(count, seed)` are workloads as any. The distribution is wide on purpose, so that a convolution of which nobody
thought has neighbours. What would take the GPU long is drawn again, and what is over at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import torch

from trainfit.calibrate.calls import Call, call_of

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32

_WIDTHS = (
    *(16, 24, 32, 32, 48, 64, 64, 64, 80, 96, 128, 128, 160, 192, 256, 256, 320, 384, 512, 512, 640, 768, 1024),
    *(1280, 1536, 2048),
)
_ODD_WIDTHS = (1, 2, 3, 3, 3, 4, 5, 6, 12, 20, 21, 50, 80, 100, 150, 255)
_FEW_WIDTHS = (1, 1, 2, 3, 3, 3, 4, 6, 8)
_SIGNAL_WIDTHS = (16, 32, 64, 64, 128, 128, 128, 256, 256, 512)
_GROUP_WIDTHS = (2, 4, 8, 8, 16, 16, 24, 32, 32, 48, 64, 64, 96, 128)
_GROUPS = (2, 2, 3, 4, 4, 6, 8, 8, 12, 16, 16, 32, 32, 64)
_SIDES = {
    1: (32, 64, 100, 128, 200, 250, 400, 500, 512, 800, 1000, 1500, 2048, 3000, 4000, 8000, 16000, 32000, 64000),
    2: (
        4,
        7,
        8,
        8,
        12,
        14,
        14,
        16,
        16,
        20,
        24,
        28,
        28,
        32,
        32,
        40,
        48,
        56,
        56,
        64,
        64,
        80,
        96,
        112,
        128,
        160,
        224,
        256,
    ),
    3: (4, 6, 8, 8, 12, 14, 16, 16, 20, 24, 28, 32, 32, 40, 48, 56, 64, 96),
}
_WINDOWS = {
    1: (1, 1, 2, 3, 3, 3, 3, 4, 5, 5, 7, 7, 8, 9, 10, 15, 16, 25, 31, 41, 64, 128),
    2: (1, 1, 2, 3, 3, 3, 3, 3, 3, 3, 4, 4, 5, 5, 7, 7, 9, 11, 15),
    3: (1, 2, 3, 3, 3, 3, 3, 4, 5, 7),
}
_DEPTHWISE_WINDOWS = {
    1: (3, 4, 4, 5, 7, 9, 15, 31, 63),
    2: (3, 3, 3, 5, 5, 7, 7, 9, 11, 13, 15, 21, 31),
    3: (3, 3, 5, 7),
}
_DILATIONS = {1: (2, 2, 4, 4, 8, 8, 16, 27, 32, 64), 2: (2, 2, 3, 4, 6, 12, 18), 3: (2, 2, 4)}
_IMAGES = (1, 2, 3, 4, 4, 6, 8, 8, 8, 12, 16, 16, 16, 24, 32, 32, 32, 48, 64, 64, 128, 256)
_MULTIPLICATIONS = (2**26, 2**36)
"""Between so many; of a window per channel a sixteenth of it."""
_MOST_ELEMENTS = 2**26


@dataclass(frozen=True, slots=True)
class Drawn:
    """Shapes of the input and of the weight, and settings for each of their dimensions."""

    x: tuple[int, ...]
    weight: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    is_transposed: bool
    dtype: torch.dtype
    nhwc: bool
    has_gradients: bool = True
    has_input_gradient: bool = True

    @property
    def out(self) -> tuple[int, ...]:
        settings = zip(self.x[2:], self.weight[2:], self.stride, self.padding, self.dilation, strict=True)
        if self.is_transposed:
            sides = tuple((n - 1) * s - 2 * p + d * (w - 1) + 1 for n, w, s, p, d in settings)
            return self.x[0], self.weight[1] * self.groups, *sides
        return self.x[0], self.weight[0], *((n + 2 * p - d * (w - 1) - 1) // s + 1 for n, w, s, p, d in settings)

    @property
    def multiplications(self) -> int:
        pixels = self.x if self.is_transposed else self.out
        return math.prod(pixels) // pixels[1] * math.prod(self.weight)


def calls_of(layer: Drawn) -> list[Call]:
    """The convolution and both gradients, pass by pass."""
    x, weight, gradient = (_laid_out(shape, layer) for shape in (layer.x, layer.weight, layer.out))
    settings = (layer.stride, layer.padding, layer.dilation, layer.is_transposed, [0] * len(layer.stride), layer.groups)
    found = [call_of(torch.ops.aten.convolution.default, (x, weight, None, *settings), {})]
    masks = ([True, False, False], [False, True, False])
    for mask, is_wanted in zip(masks, (layer.has_input_gradient, True), strict=True):
        if layer.has_gradients and is_wanted:
            backward = torch.ops.aten.convolution_backward.default
            found.append(call_of(backward, (gradient, x, weight, None, *settings, mask), {}))
    return found


def _laid_out(shape: tuple[int, ...], layer: Drawn) -> torch.Tensor:
    if not layer.nhwc:
        return torch.empty(shape, device="meta", dtype=layer.dtype)
    return torch.empty((shape[0], *shape[2:], shape[1]), device="meta", dtype=layer.dtype).permute(0, 3, 1, 2)


def _width(random: Random) -> int:
    return random.choice(_ODD_WIDTHS if random.random() < 0.12 else _WIDTHS)


def _window(random: Random, dims: int, windows: tuple[int, ...]) -> tuple[int, ...]:
    """Mostly a cube; some are long along one dimension, or flat along it."""
    side, shape = random.choice(windows), random.random()
    if dims == 1 or shape > 0.14:
        return (side,) * dims
    along = random.randrange(dims)
    return tuple((side if (place == along) == (shape < 0.07) else 1) for place in range(dims))


def _ends(random: Random, kind: str) -> tuple[int, int, int]:
    """Channels in and out, and groups."""
    if kind == "depthwise":
        width = random.choice(_WIDTHS)
        return width, width * random.choice((1,) * 9 + (2,)), width
    ratio = random.choice((1, 1, 1, 1, 2, 2, 1 / 2, 1 / 2, 4, 1 / 4, None))
    if kind == "grouped":
        groups, width = random.choice(_GROUPS), random.choice(_GROUP_WIDTHS)
        return groups * width, groups * max(1, int(width * (ratio or 1))), groups
    inputs = _width(random)
    return inputs, _width(random) if ratio is None else max(1, int(inputs * ratio)), 1


def _drawn(random: Random) -> Drawn:
    dims = random.choices((1, 2, 3), (0.28, 0.6, 0.12))[0]
    kind = random.choices(("plain", "depthwise", "grouped", "transposed"), (0.5, 0.2, 0.17, 0.13))[0]
    inputs, outputs, groups = _ends(random, kind)
    window = _window(random, dims, _DEPTHWISE_WINDOWS[dims] if kind == "depthwise" else _WINDOWS[dims])
    step = random.choices((1, 2, 4, max(window)), (0.66, 0.24, 0.05, 0.05))[0]
    if kind == "transposed":
        step = random.choice((1, 2, 2, 2, 2, 4, 8) if dims == 1 else (1, 2, 2, 2, 4))
        window = (step * random.choice((1, 2, 2, 3)) if step > 1 else random.choice((3, 4, 5)),) * dims
        groups = random.choice((1,) * 7 + (2, 4)) if inputs % 8 == outputs % 8 == 0 else 1
    spread = random.choice(_DILATIONS[dims]) if step == 1 and max(window) > 1 and random.random() < 0.27 else 1
    is_padded = random.random() < 0.8 and step < max(window)
    side = random.choice(_SIDES[dims])
    size = (side,) * dims if dims < 3 or random.random() < 0.5 else (random.choice((4, 8, 16)), side, side)
    weight = (inputs, outputs // groups) if kind == "transposed" else (outputs, inputs // groups)
    return Drawn(
        (random.choice(_IMAGES), inputs, *size),
        (*weight, *window),
        tuple(step if one > 1 or max(window) == 1 else 1 for one in window),
        tuple(spread * (one - 1) // 2 if is_padded else 0 for one in window),
        tuple(spread if one > 1 else 1 for one in window),
        groups,
        kind == "transposed",
        random.choices((BF16, FP32, FP16), (0.4, 0.4, 0.2))[0],
        dims == 2 and random.random() < 0.35,
    )


def _of_a_gradient(random: Random) -> Drawn:
    """As the gradient of a gradient has them: windows are images, and channels images."""
    inputs, outputs, side = random.choice(_WIDTHS[:16]), random.choice(_WIDTHS[:16]), random.choice(_SIDES[2][3:20])
    step, window = random.choice(((1, 3), (1, 3), (1, 5), (2, 3), (2, 4), (2, 5)))
    reach = (side + 2 * (window // 2) - window) // step + 1
    images = random.choice((8, 16, 32, 64, 128))
    dtype = random.choice((BF16, FP32, FP16))
    return Drawn(
        (inputs, images, side, side),
        (outputs, images, reach, reach),
        stride=(1, 1),
        padding=(window // 2,) * 2,
        dilation=(step,) * 2,
        groups=1,
        is_transposed=False,
        dtype=dtype,
        nhwc=False,
        has_gradients=False,
    )


def _spread_signal(random: Random) -> Drawn:
    """As nets for series and sound stack them: windows spread further and further, padded on the left beforehand."""
    inputs, outputs = random.choice(_SIGNAL_WIDTHS), random.choice(_SIGNAL_WIDTHS)
    outputs = inputs if random.random() < 0.6 else outputs
    window, spread = random.choice((2, 3, 3, 3, 5, 5, 7, 9)), 2 ** random.randrange(10)
    results = random.choice((128, 256, 500, 1000, 1024, 2000, 2048, 4000, 8000, 16000))
    reach, is_padded = spread * (window - 1), random.random() < 0.4
    return Drawn(
        (random.choice(_IMAGES), inputs, results + (0 if is_padded else reach)),
        (outputs, inputs, window),
        stride=(1,),
        padding=(reach // 2 if is_padded else 0,),
        dilation=(spread,),
        groups=1,
        is_transposed=False,
        dtype=random.choice((BF16, FP32, FP16)),
        nhwc=False,
    )


def _end(random: Random) -> Drawn:
    """First and last layers: few channels on one side."""
    dims = random.choice((1, 2, 2, 2))
    few, many = random.choice(_FEW_WIDTHS), random.choice((16, 32, 64, 64, 96, 128, 256))
    inputs, outputs = (few, many) if random.random() < 0.5 else (many, few)
    window, step = random.choice(
        ((1, 1), (3, 1), (3, 1), (3, 2), (5, 1), (5, 2), (7, 1), (7, 2), (4, 2), (4, 4), (8, 4))
    )
    is_transposed = step == 2 and window == 4 and outputs == few and random.random() < 0.5
    ends = (inputs, outputs) if is_transposed else (outputs, inputs)
    return Drawn(
        (random.choice(_IMAGES), inputs, *(random.choice(_SIDES[dims][3:]),) * dims),
        (*ends, *(window,) * dims),
        stride=(step,) * dims,
        padding=((window - 1) // 2 if step < 4 else 0,) * dims,
        dilation=(1,) * dims,
        groups=1,
        is_transposed=is_transposed,
        dtype=random.choice((BF16, FP32, FP16)),
        nhwc=dims == 2 and random.random() < 0.35,
    )


def _images_as_groups(random: Random) -> Drawn:
    """Every image has weights of its own, as styles give them."""
    images, inputs = random.choice((2, 4, 8, 12, 16, 24, 32)), random.choice((32, 64, 128, 256, 512))
    outputs, side = random.choice((inputs, inputs, inputs // 2)), random.choice((4, 8, 16, 32, 64, 128))
    window = random.choice((3, 3, 3, 1))
    return Drawn(
        (1, images * inputs, side, side),
        (images * outputs, inputs, window, window),
        stride=(1, 1),
        padding=(window // 2,) * 2,
        dilation=(1, 1),
        groups=images,
        is_transposed=False,
        dtype=random.choice((BF16, FP32, FP16)),
        nhwc=False,
    )


def _is_moderate(layer: Drawn) -> bool:
    is_planned_long = layer.groups == layer.x[1] > 1 and (layer.nhwc or layer.dtype is FP16)
    if min(layer.out) < 1 or is_planned_long:  # a window per channel by cuDNN, which takes a second
        return False
    share = 16 if layer.weight[1] == 1 else 1
    low, high = (bound // share for bound in _MULTIPLICATIONS)
    largest = max(map(math.prod, (layer.x, layer.weight, layer.out)))
    return low <= layer.multiplications <= high and largest <= _MOST_ELEMENTS


def layers(seed: int) -> Iterator[Drawn]:
    """Of any kind, without end."""
    random = Random(seed)
    while True:
        layer = _of_a_gradient(random) if random.random() < 0.04 else _drawn(random)
        if _is_moderate(layer):
            yield layer


def frequent_layers(seed: int) -> Iterator[Drawn]:
    """Of kinds that many nets have and that cuDNN has kernels of their own for, without end."""
    random = Random(seed)
    while True:
        layer = random.choice((_spread_signal, _end, _images_as_groups))(random)
        if _is_moderate(layer):
            yield layer
