"""Workloads of convolutions beyond plain images: in groups, over signals and volumes, dilated, transposed.

Each is a callable that runs torch code on the GPU; `OpTimer` times the ops inside.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn import functional as F

from trainfit.calibrate.workloads import BF16, FP16, FP32, Workload


@dataclass(frozen=True, slots=True)
class Filter:
    """A convolution over `batch` cubes of `dims` dimensions with `size` places along each."""

    dims: int
    inputs: int
    outputs: int
    window: int
    size: int
    batch: int
    groups: int = 1
    stride: int = 1
    dilation: int = 1
    is_transposed: bool = False
    has_bias: bool = True


def convolve(layer: Filter, dtype: torch.dtype, nhwc: bool) -> None:
    """The convolution, which keeps the size but for its stride, and its gradients."""
    memory_format = torch.channels_last if nhwc else torch.contiguous_format

    def cube(first: int, second: int, size: int) -> torch.Tensor:
        made = torch.randn(first, second, *[size] * layer.dims, device="cuda", dtype=dtype)
        return made.contiguous(memory_format=memory_format).requires_grad_()

    name = f"conv{'_transpose' if layer.is_transposed else ''}{layer.dims}d"
    ends = (layer.inputs, layer.outputs // layer.groups)
    if not layer.is_transposed:
        ends = (layer.outputs, layer.inputs // layer.groups)
    bias = torch.zeros(layer.outputs, device="cuda", dtype=dtype, requires_grad=True) if layer.has_bias else None
    padding = layer.dilation * (layer.window - 1) // 2 if layer.window > layer.stride else 0
    out = getattr(F, name)(
        cube(layer.batch, layer.inputs, layer.size),
        cube(*ends, layer.window),
        bias,
        stride=layer.stride,
        padding=padding,
        dilation=layer.dilation,
        groups=layer.groups,
    )
    out.backward(torch.randn(out.shape, device="cuda", dtype=dtype).contiguous(memory_format=memory_format))


def grouped_signals() -> list[Filter]:
    """Speech models' positions and others: wide and narrow windows, with and without a stride."""
    widths = (
        (128, 16),
        (256, 2),
        (256, 8),
        (512, 4),
        (512, 16),
        (512, 32),
        (768, 12),
        (768, 16),
        (1024, 16),
        (1024, 64),
    )
    sizes = itertools.cycle(((4, 1000), (8, 499), (16, 250), (2, 1500), (8, 249)))
    return [
        Filter(1, width, width, window, size, batch, groups, stride)
        for window, stride, ((width, groups), (batch, size)) in (
            (window, stride, pair)
            for window, stride in itertools.product((3, 9, 48, 128), (1, 2))
            for pair in zip(widths, sizes, strict=False)
        )
        if window < 48 or width >= 512
    ]


def positions() -> list[Filter]:
    """Where a speech model's tokens stand: the widest windows, over few and many sequences, short and long."""
    sizes = ((2, 999), (12, 749), (24, 499), (48, 249), (32, 149), (64, 99))
    return [
        *(Filter(1, 768, 768, 128, length, batch, 16) for batch, length in sizes),
        *(Filter(1, 1024, 1024, 128, length, batch, 16) for batch, length in sizes[1::2]),
    ]


def depthwise() -> list[Filter]:
    """A window per channel over signals, as state spaces and conformers have."""
    layers = ((1536, 4, 1024, 4), (1536, 4, 2048, 8), (4096, 4, 512, 4), (768, 7, 256, 16), (256, 15, 2000, 8),
              (512, 31, 400, 16), (1024, 4, 256, 32))  # fmt: skip
    return [Filter(1, width, width, window, size, batch, width) for width, window, size, batch in layers]


def grouped_images() -> list[Filter]:
    layers = (
        (128, 2, 3, 56, 16), (192, 3, 3, 28, 32), (256, 4, 3, 28, 32), (256, 64, 3, 28, 16), (512, 64, 3, 14, 32),
        (512, 2, 3, 14, 32), (64, 4, 5, 56, 16), (256, 8, 5, 28, 16), (512, 16, 5, 14, 32), (128, 4, 7, 28, 16),
    )  # fmt: skip
    return [
        Filter(2, width, width, window, size, batch, groups, stride, has_bias=False)
        for stride, (width, groups, window, size, batch) in itertools.product((1, 2), layers)
    ]


def signals() -> list[Filter]:
    """Of sound and of series: stacks of narrow windows, dilated ones, strides."""
    plain = ((32, 32, 3, 8000, 16), (64, 64, 7, 4000, 16), (64, 128, 5, 1000, 32), (128, 128, 3, 500, 64),
             (256, 256, 5, 250, 32),
             (512, 512, 3, 128, 32), (80, 256, 3, 1000, 16), (256, 80, 5, 600, 16), (512, 512, 5, 400, 16),
             (16, 32, 9, 16000, 8),
             (384, 384, 3, 1500, 8), (256, 1, 1, 1000, 16), (128, 512, 1, 800, 16), (512, 128, 1, 800, 16),
             (1, 32, 15, 8000, 32))  # fmt: skip
    dilated = (
        (64, 128, 2, 8000, 8, 16),
        (64, 64, 3, 2000, 32, 4),
        (128, 256, 3, 4000, 4, 64),
        (512, 512, 3, 800, 8, 2),
    )
    strided = (
        (32, 64, 8, 16000, 8, 4),
        (64, 128, 8, 4000, 16, 4),
        (128, 256, 4, 2000, 16, 2),
        (256, 512, 3, 1000, 8, 2),
    )
    up = ((512, 256, 16, 100, 16, 8), (256, 128, 8, 800, 8, 4), (128, 64, 4, 2000, 8, 2), (64, 32, 4, 4000, 16, 2))
    return [
        *(Filter(1, *layer) for layer in plain),
        *(Filter(1, *layer[:5], dilation=layer[5]) for layer in dilated),
        *(Filter(1, *layer[:5], stride=layer[5]) for layer in strided),
        *(Filter(1, *layer[:5], stride=layer[5], is_transposed=True) for layer in up),
    ]


def planes() -> list[Filter]:
    """Images dilated, with large windows, and brought to twice their size."""
    dilated = ((256, 256, 3, 32, 16, 2), (512, 512, 3, 28, 8, 4), (2048, 256, 3, 32, 4, 12), (64, 64, 3, 64, 16, 2))
    large = ((64, 64, 5, 56, 32), (32, 64, 5, 28, 128), (128, 128, 5, 28, 16), (64, 64, 7, 32, 16), (16, 16, 9, 64, 16),
             (6, 16, 5, 14, 256), (32, 32, 3, 32, 128), (16, 16, 3, 128, 16), (64, 128, 4, 32, 64),
             (48, 48, 3, 48, 32))  # fmt: skip
    up = (
        (512, 256, 2, 16, 16, 2),
        (256, 128, 2, 32, 16, 2),
        (128, 64, 2, 64, 8, 2),
        (256, 128, 3, 28, 16, 2),
    )
    return [
        *(Filter(2, *layer[:5], dilation=layer[5], has_bias=False) for layer in dilated),
        *(Filter(2, *layer) for layer in large),
        *(Filter(2, *layer[:5], stride=layer[5], is_transposed=True) for layer in up),
    ]


def volumes() -> list[Filter]:
    plain = ((1, 16, 3, 64, 2), (1, 32, 3, 96, 1), (3, 64, 3, 48, 2), (16, 16, 3, 64, 2), (32, 32, 3, 48, 2),
             (32, 64, 3, 32, 4),
             (64, 64, 3, 32, 2), (64, 64, 3, 28, 8), (128, 128, 3, 16, 4), (256, 256, 3, 8, 4), (128, 256, 3, 12, 8),
             (64, 16, 1, 32, 4),
             (16, 3, 1, 64, 2), (128, 512, 1, 14, 4), (24, 24, 5, 24, 4), (96, 48, 3, 32, 2))  # fmt: skip
    strided = (
        (32, 64, 3, 48, 2, 2),
        (64, 128, 3, 28, 4, 2),
        (3, 64, 7, 56, 2, 2),
        (3, 192, 8, 64, 2, 8),
        (1, 64, 4, 64, 2, 4),
    )
    up = ((256, 128, 2, 8, 4, 2), (128, 64, 2, 16, 2, 2), (64, 32, 2, 32, 2, 2))
    return [
        *(Filter(3, *layer) for layer in plain),
        *(Filter(3, *layer[:5], stride=layer[5]) for layer in strided),
        *(Filter(3, *layer[:5], stride=layer[5], is_transposed=True) for layer in up),
        Filter(3, 64, 64, 3, 16, 4, 64),
        Filter(3, 64, 64, 3, 16, 4, 8),
    ]


def _cases(layers: Iterable[Filter], dtypes: Iterable[torch.dtype], layouts: Iterable[bool]) -> list[Workload]:
    return [partial(convolve, *case) for case in itertools.product(layers, dtypes, layouts)]


def filters() -> list[Workload]:
    """In both types, images in both layouts; of those in groups, which have kernels by type, some in float16 too."""
    grouped, images = grouped_signals(), [*grouped_images(), *planes()]
    return [
        *_cases([*grouped, *depthwise(), *signals(), *volumes()], (FP32, BF16), (False,)),
        *_cases(positions(), (FP32, BF16, FP16), (False,)),
        *_cases(grouped[::3], (FP16,), (False,)),
        *_cases(images, (FP32, BF16), (False, True)),
    ]
