"""Workloads of convolutions in groups, over signals and images: what speech models and some image nets have.

Each is a callable that runs torch code on the GPU; `OpTimer` times the ops inside.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from random import Random

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
    has_bias: bool = True


def convolve(layer: Filter, dtype: torch.dtype, nhwc: bool) -> None:
    """The convolution, which keeps the size but for its stride, and its gradients."""
    memory_format = torch.channels_last if nhwc else torch.contiguous_format

    def cube(first: int, second: int, size: int) -> torch.Tensor:
        made = torch.randn(first, second, *[size] * layer.dims, device="cuda", dtype=dtype)
        return made.contiguous(memory_format=memory_format).requires_grad_()

    bias = torch.zeros(layer.outputs, device="cuda", dtype=dtype, requires_grad=True) if layer.has_bias else None
    padding = (layer.window - 1) // 2 if layer.window > layer.stride else 0
    out = getattr(F, f"conv{layer.dims}d")(
        cube(layer.batch, layer.inputs, layer.size),
        cube(layer.outputs, layer.inputs // layer.groups, layer.window),
        bias,
        stride=layer.stride,
        padding=padding,
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


def _cases(layers: Iterable[Filter], dtypes: Iterable[torch.dtype], layouts: Iterable[bool]) -> list[Workload]:
    return [partial(convolve, *case) for case in itertools.product(layers, dtypes, layouts)]


def filters() -> list[Workload]:
    """In both types, images in both layouts; of those in groups, which have kernels by type, some in float16 too."""
    grouped = grouped_signals()[::2]
    return [
        *_cases([*grouped, *depthwise()], (FP32, BF16), (False,)),
        *_cases(positions(), (FP32, BF16, FP16), (False,)),
        *_cases(grouped[::3], (FP16,), (False,)),
        *_cases(grouped_images()[::2], (FP32, BF16), (False, True)),
    ]


def long_filters(count: int, seed: int) -> list[Workload]:
    """Long windows in groups over one sequence or some, for which cuDNN has kernels of several kinds."""
    random, found = Random(seed), list[Workload]()
    for _ in range(count):
        width, groups = random.choice((256, 384, 512, 512, 768, 768, 1024)), random.choice((4, 8, 16, 16, 16, 32))
        window, batch = (
            random.choice((19, 31, 32, 48, 64, 95, 127, 128, 128, 256)),
            random.choice((1, 1, 2, 2, 3, 4, 8)),
        )
        length = round(2 ** random.uniform(6, 11))
        layer = Filter(1, width, width, window, length, batch, groups)
        found.append(partial(convolve, layer, random.choice((FP32, BF16, FP16)), False))
    return found
