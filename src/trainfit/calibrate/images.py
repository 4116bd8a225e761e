"""Workloads of image and speech models: convolutions as families of nets have them, norms, resizing, losses per pixel.

Each is a callable that runs torch code on the GPU; `OpTimer` times the ops inside. Widths and sizes go with each other
as in residual, mobile, grouped and pyramid nets; the first layer's input needs no gradient, as in training.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from trainfit.calibrate.workloads import BF16, FP32, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A convolution over square images, which keeps their size but for its stride."""

    inputs: int
    outputs: int
    window: int
    size: int
    batch: int
    stride: int = 1
    groups: int = 1
    has_bias: bool = False
    is_first: bool = False
    """Whether its input needs no gradient."""
    is_patched: bool = False
    """Whether its windows do not overlap, its result becomes rows of tokens, and its gradient comes as those."""


def image(batch: int, channels: int, size: int, dtype: torch.dtype, nhwc: bool) -> torch.Tensor:
    if nhwc:
        return torch.randn(batch, size, size, channels, device="cuda", dtype=dtype).permute(0, 3, 1, 2)
    return torch.randn(batch, channels, size, size, device="cuda", dtype=dtype)


def convolve(layer: Layer, dtype: torch.dtype, nhwc: bool) -> None:
    """The convolution and its gradients."""
    x = image(layer.batch, layer.inputs, layer.size, dtype, nhwc).requires_grad_(not layer.is_first)
    weight = image(layer.outputs, layer.inputs // layer.groups, layer.window, dtype, nhwc).requires_grad_()
    bias = torch.zeros(layer.outputs, device="cuda", dtype=dtype, requires_grad=True) if layer.has_bias else None
    padding = 0 if layer.is_patched else layer.window // 2
    out = F.conv2d(x, weight, bias, layer.stride, padding, 1, layer.groups)
    out.backward(image(layer.batch, layer.outputs, out.shape[-1], dtype, nhwc or layer.is_patched))


def _alternating(layers: Sequence[Callable[..., Layer]], batches: tuple[int, ...]) -> Iterator[Layer]:
    """Each with the next of the batches: all sizes with all batches would be too many."""
    for number, layer in enumerate(layers):
        yield layer(batch=batches[number % len(batches)])


def depthwise() -> list[Layer]:
    widths = (
        (32, 112), (96, 112), (144, 56), (256, 56), (240, 28), (512, 28), (480, 14), (768, 14), (672, 7), (1152, 7)
    )  # fmt: skip
    layers = [
        partial(Layer, inputs=width, outputs=width, groups=width, window=window, size=size, stride=stride)
        for (stride, window), (width, size) in itertools.product(((1, 3), (1, 5), (2, 3)), widths)
    ]
    wide = [partial(Layer, inputs=n, outputs=n, groups=n, window=3, size=s, has_bias=True)
            for n, s in ((256, 128), (768, 32), (1536, 16))]  # fmt: skip
    return [*_alternating(layers, (32, 128, 64)), *_alternating(wide, (8,))]


def grouped() -> list[Layer]:
    widths = (
        (128, 56, 32), (256, 28, 32), (512, 14, 32), (1024, 7, 32), (96, 56, 6), (192, 56, 12), (256, 56, 4),
        (384, 28, 24), (512, 28, 8), (768, 14, 48), (1024, 14, 16), (1536, 7, 32),
    )  # fmt: skip
    layers = [
        partial(Layer, inputs=width, outputs=width, groups=groups, window=3, size=size, stride=stride)
        for stride, (width, size, groups) in itertools.product((1, 2), widths)
    ]
    return list(_alternating(layers, (32, 128, 64, 48)))


def pointwise() -> list[Layer]:
    """Windows of one pixel: expansions and projections, also of images of one pixel, and heads of few channels."""
    widths = (
        (16, 96, 112), (24, 144, 56), (144, 24, 56), (40, 240, 28), (240, 40, 28), (64, 256, 56), (256, 64, 56),
        (96, 192, 56), (80, 480, 14), (480, 112, 14), (512, 512, 28), (512, 128, 28), (192, 1152, 7), (1152, 320, 7),
        (384, 384, 28), (1024, 1024, 14), (1024, 256, 14), (768, 768, 14), (1536, 1536, 7), (512, 2048, 7),
    )  # fmt: skip
    plain = [partial(Layer, inputs=i, outputs=o, window=1, size=size) for i, o, size in widths]
    strided = [
        partial(Layer, inputs=i, outputs=o, window=1, size=size, stride=2)
        for i, o, size in ((64, 128, 56), (192, 384, 56), (512, 1024, 28), (1024, 2048, 14))
    ]
    large = [
        partial(Layer, inputs=i, outputs=o, window=1, size=size)
        for i, o, size in ((1024, 256, 128), (256, 256, 128), (768, 768, 32), (256, 1024, 64), (512, 256, 64))
    ]
    heads = [
        partial(Layer, inputs=i, outputs=o, window=window, size=size, has_bias=True)
        for i, o, window, size in (
            (256, 150, 1, 128), (256, 19, 1, 64), (512, 21, 1, 64), (64, 2, 1, 256), (64, 3, 3, 128), (128, 1, 3, 64),
            (256, 255, 1, 32),
        )
    ]  # fmt: skip
    return [*_alternating([*plain, *strided], (32, 128, 64)), *_alternating([*large, *heads], (8, 4))]


def squeezed() -> list[Layer]:
    """Images of one pixel: what weighs channels."""
    widths = ((96, 24), (240, 60), (672, 28), (1152, 48), (1024, 256))
    both = [*widths, *((outputs, inputs) for inputs, outputs in widths)]
    layers = [partial(Layer, inputs=i, outputs=o, window=1, size=1, has_bias=True) for i, o in both]
    return [*_alternating(layers, (32, 128)), *_alternating(layers, (128, 32))]


def windows() -> list[Layer]:
    """Windows of 3 x 3 over all channels, with and without a stride, on small and on large images."""
    widths = (
        (64, 112), (64, 56), (96, 56), (128, 28), (160, 28), (256, 14), (320, 14), (512, 7), (640, 7)
    )  # fmt: skip
    layers = [
        partial(Layer, inputs=width, outputs=width, window=3, size=size, stride=stride)
        for stride, (width, size) in itertools.product((1, 2), widths)
    ]
    large = [
        partial(Layer, inputs=i, outputs=o, window=3, size=size, has_bias=True)
        for i, o, size in (
            (64, 64, 256),
            (128, 128, 128),
            (256, 256, 64),
            (256, 256, 128),
            (512, 512, 32),
            (192, 64, 128),
        )
    ]
    return [*_alternating(layers, (16, 128)), *_alternating(large, (4, 8))]


def first() -> list[Layer]:
    """First layers: their images need no gradient."""
    stems = [
        partial(Layer, inputs=3, outputs=o, window=window, size=224, stride=stride, is_first=True)
        for o, window, stride in ((32, 3, 2), (64, 7, 2), (64, 3, 1))
    ]
    return [*_alternating(stems, (32,)), *_alternating(stems, (128,))]


def patches() -> list[Layer]:
    """Windows that do not overlap: first layers that cut an image into tokens, and what shrinks feature maps."""
    cut = [
        partial(Layer, inputs=3, outputs=o, window=w, stride=w, size=224, has_bias=True, is_first=True, is_patched=True)
        for o, w in ((96, 4), (192, 8), (384, 16), (768, 16), (1024, 14), (768, 32))
    ]
    return [*_alternating(cut, (16, 64)), *_alternating(cut, (64, 16))]


def shrinking() -> list[Layer]:
    sizes = ((64, 8, 128), (128, 4, 64), (320, 2, 32), (96, 2, 56), (256, 2, 28), (512, 2, 14))
    layers = [
        partial(Layer, inputs=i, outputs=2 * i, window=w, stride=w, size=size, has_bias=True, is_patched=True)
        for i, w, size in sizes
    ]
    return list(_alternating(layers, (8, 32)))


def convolutions() -> list[Workload]:
    """Each layer in two of four ways, by type and layout; images of one pixel, and those that are cut into tokens, in
    one layout. cuDNN compiles kernels for channels in groups, and for a window per channel where those are last, for up
    to seconds each, so some of these have to do, and they are not all side by side."""
    ways = itertools.cycle(((BF16, False), (FP32, True), (FP32, False), (BF16, True)))
    both, some = [*grouped(), *pointwise(), *windows(), *first(), *shrinking()], grouped()[::2]
    one = [*depthwise(), *squeezed(), *patches()]
    cases = [(layer, *next(ways)) for layer in (*both, *both[::-1])]
    found: list[Workload] = [
        *(partial(convolve, *case) for case in cases if case[0].groups == 1 or case[0] in some),
        *(partial(convolve, layer, dtype, False) for layer in one for dtype in (BF16, FP32)),
        *(partial(convolve, layer, dtype, True) for layer in channels_last() for dtype in (BF16, FP32)),
    ]
    return [workload for first_one in range(3) for workload in found[first_one::3]]


def channels_last() -> list[Layer]:
    """A window per channel."""
    large = [
        Layer(inputs=width, outputs=width, groups=width, window=7, size=size, batch=batch)
        for width, size, batch in ((96, 56, 32), (384, 14, 128))
    ]
    return [*depthwise()[::4], *large]


def batch_norm(batch: int, channels: int, size: int, dtype: torch.dtype, nhwc: bool) -> None:
    """With weights of fp32, as under autocast."""
    layer = nn.BatchNorm2d(channels, device="cuda")
    x = image(batch, channels, size, dtype, nhwc).requires_grad_()
    layer(x).backward(image(batch, channels, size, dtype, nhwc))


def norms() -> list[Workload]:
    shapes = (
        (256, 32, 112), (96, 64, 112), (32, 96, 112), (96, 64, 56), (16, 256, 56), (96, 256, 56), (96, 144, 56),
        (256, 128, 28), (96, 512, 28), (96, 240, 28), (256, 256, 14), (16, 1024, 14), (96, 1024, 14), (96, 672, 14),
        (256, 512, 7), (16, 2048, 7), (96, 2048, 7), (96, 1152, 7), (8, 256, 128), (4, 128, 256),
    )  # fmt: skip
    return [partial(batch_norm, *case, dtype, nhwc)
            for case, dtype, nhwc in itertools.product(shapes, (BF16, FP32), (False, True))]  # fmt: skip


def resized(batch: int, channels: int, size: int, scale: int, dtype: torch.dtype, nhwc: bool) -> None:
    """Features brought to a larger size."""
    for mode in ("bilinear", "nearest"):
        x = image(batch, channels, size, dtype, nhwc).requires_grad_()
        out = F.interpolate(x, scale_factor=scale, mode=mode)
        out.backward(image(batch, channels, size * scale, dtype, nhwc))


def per_pixel(batch: int, classes: int, size: int) -> None:
    """The loss of a segmentation."""
    logits = image(batch, classes, size, FP32, False).requires_grad_()
    F.cross_entropy(logits, torch.randint(classes, (batch, size, size), device="cuda")).backward()


def maps() -> list[Workload]:
    sizes = ((8, 256, 64, 2), (8, 256, 32, 4), (4, 256, 16, 8), (8, 96, 128, 4), (16, 64, 32, 2), (2, 20, 128, 4))
    losses = ((4, 19, 512), (8, 150, 256), (2, 21, 256), (16, 2, 256), (4, 150, 512))
    return [
        *(partial(resized, *case, dtype, nhwc)
          for case, dtype, nhwc in itertools.product(sizes, (BF16, FP32), (False, True))),
        *(partial(per_pixel, *loss) for loss in losses),
    ]  # fmt: skip
