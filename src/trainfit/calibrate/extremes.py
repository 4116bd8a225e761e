"""Workloads whose sizes lie beyond those of the other groups: few columns and many rows, odd widths, tiny tables, few
channels, large lists, and types that other groups leave out.

Each is a callable that runs torch code on the GPU; `OpTimer` times the ops inside.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend

from trainfit.calibrate import broadcasts, images, memory
from trainfit.calibrate.compute import attention, batched_product, linear, rounded
from trainfit.calibrate.lookups import lookup
from trainfit.calibrate.workloads import BF16, FP16, FP32, Workload, randn


def products() -> list[Workload]:
    """Few columns or odd ones behind many rows; in all types, and in TF32."""
    narrow = ((1, 512), (2, 256), (6, 128), (10, 1024), (20, 512), (64, 3), (4, 1024), (128, 16), (16, 64), (512, 20))
    odd = ((510, 510), (261, 512), (512, 261), (1001, 768), (96, 197), (30145, 512))
    shapes = [
        *((rows, *pair) for rows, pair in itertools.product((4096, 65536), narrow)),
        *((rows, *pair) for rows, pair in itertools.product((2048, 16384), odd)),
        (262144, 1, 256), (262144, 64, 64), (262144, 256, 256), (524288, 512, 512), (1048576, 16, 32), (32, 1024, 1024),
        (128, 4096, 1024), (256, 512, 512), (96, 1536, 512),
    ]  # fmt: skip
    plain = [
        partial(linear, *shape, dtype, bias)
        for shape, dtype, bias in itertools.product(shapes, (FP32, BF16, FP16), (False, True))
        if dtype is not FP16 or shape[0] < 16384
    ]
    return [
        *plain,
        *(partial(rounded, partial(linear, *shape, FP32, bias)) for shape in shapes for bias in (False, True)),
    ]


def batches() -> list[Workload]:
    """Products of one row or column each, of small squares, and over long depths."""
    shapes = (
        (512, 64, 1024, 1), (64, 2048, 256, 1), (96, 512, 512, 64), (24, 1024, 1024, 128), (1024, 64, 64, 32),
        (96, 64, 64, 1024), (16, 64, 64, 8192), (4096, 16, 16, 32), (32768, 24, 24, 64), (128, 300, 300, 48),
    )  # fmt: skip
    plain = [partial(batched_product, *shape, dtype) for shape in shapes for dtype in (FP32, BF16)]
    return [*plain, *(partial(rounded, partial(batched_product, *shape, FP32)) for shape in shapes)]


def attentions() -> list[Workload]:
    """Of very many short sequences, of narrow heads, and of one wide head over a long input."""
    cudnn, flash, efficient = SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION
    kinds = ((cudnn, BF16), (flash, BF16), (efficient, BF16), (efficient, FP32))
    short = ((512, 8, 32, 16, 0.1), (1024, 8, 48, 32, 0.0), (256, 4, 128, 48, 0.0))
    cases: list[tuple[Any, ...]] = [
        (*kind, batch, heads, heads, seq, dim, False, dropout, False)
        for kind, (batch, heads, seq, dim, dropout) in itertools.product(kinds, short)
    ]
    wide: list[tuple[Any, ...]] = [
        (efficient, dtype, 4, 1, 1, seq, dim, False, 0.0, False, keys)
        for dtype, (seq, dim, keys) in itertools.product(
            (FP32, BF16), ((256, 512, 8192), (512, 256, 4096), (128, 128, 16384))
        )
    ]
    return [partial(attention, *case) for case in (*cases, *wide)]


def batch_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Of signals and of rows, with weights of fp32, as under autocast."""
    layer = nn.BatchNorm1d(shape[1], device="cuda")
    layer(randn(*shape, dtype=dtype).requires_grad_()).backward(randn(*shape, dtype=dtype))


def norms() -> list[Workload]:
    pictures = ((16, 32, 112), (64, 64, 56), (32, 128, 56), (64, 256, 28), (64, 512, 14), (128, 1024, 7), (8, 48, 128))
    lines = ((32, 256, 1024), (64, 64, 2048), (16, 1024, 512), (64, 512, 128), (4096, 256), (512, 1024), (65536, 64))
    groups = ((16, 64, 56, 8), (8, 256, 64, 32), (32, 512, 16, 32), (4, 128, 128, 1), (64, 96, 28, 12))
    lone = ((1, 96, 900), (1, 32, 512), (2, 24, 256), (1, 8, 1024), (2, 1024, 3), (1, 768, 15), (1, 192, 117))
    return [
        *(partial(images.batch_norm, *size, FP16, nhwc) for size in pictures for nhwc in (False, True)),
        *(partial(batch_norm, size, dtype) for size in lines for dtype in (FP32, BF16, FP16)),
        *(partial(group_norm, *case) for case in itertools.product(groups, (FP32, BF16), (False, True))),
        *(partial(instance_norm, *size[:3], dtype) for size in (*groups, *lone) for dtype in (FP32, BF16)),
    ]


def group_norm(size: tuple[int, int, int, int], dtype: torch.dtype, nhwc: bool) -> None:
    batch, channels, side, groups = size
    weight, bias = (randn(channels, dtype=dtype).requires_grad_() for _ in range(2))
    x = images.image(batch, channels, side, dtype, nhwc).requires_grad_()
    F.group_norm(x, groups, weight, bias).backward(images.image(batch, channels, side, dtype, nhwc))


def instance_norm(batch: int, channels: int, side: int, dtype: torch.dtype) -> None:
    x = images.image(batch, channels, side, dtype, False).requires_grad_()
    F.instance_norm(x).backward(images.image(batch, channels, side, dtype, False))


def stem(
    size: tuple[int, int, int, int, int, int], dims: int, dtype: torch.dtype, nhwc: bool, needs_gradient: bool
) -> None:
    """A first layer: few channels in, and images that need no gradient, or do."""
    batch, inputs, outputs, side, window, stride = size
    memory_format = torch.channels_last if nhwc else torch.contiguous_format
    x = randn(batch, inputs, *[side] * dims, dtype=dtype).contiguous(memory_format=memory_format)
    weight = randn(outputs, inputs, *[window] * dims, dtype=dtype).contiguous(memory_format=memory_format)
    convolve = F.conv2d if dims == 2 else F.conv1d
    out = convolve(x.requires_grad_(needs_gradient), weight.requires_grad_(), None, stride)
    out.backward(randn(*out.shape, dtype=dtype).contiguous(memory_format=memory_format))


def tubes(batch: int, frames: int, side: int, window: tuple[int, int, int], dtype: torch.dtype) -> None:
    """Films cut into tokens: windows that do not overlap, longer across than along time."""
    weight = randn(768, 3, *window, dtype=dtype).requires_grad_()
    out = F.conv3d(randn(batch, 3, frames, side, side, dtype=dtype), weight, randn(768, dtype=dtype), window)
    out.backward(randn(*out.shape, dtype=dtype))


def stems() -> list[Workload]:
    planes = ((512, 4, 32, 84, 8, 4), (256, 1, 32, 28, 3, 1), (256, 3, 64, 32, 3, 1), (64, 1, 16, 96, 5, 1),
              (32, 6, 64, 56, 1, 1),
              (16, 3, 64, 224, 4, 4), (64, 3, 96, 112, 7, 2), (16, 12, 48, 64, 3, 1),
              (2048, 4, 64, 84, 8, 4))  # fmt: skip
    lines = ((64, 3, 64, 1024, 1, 1), (32, 12, 128, 512, 7, 1), (16, 1, 64, 16000, 25, 4), (64, 6, 256, 128, 3, 1))
    return [
        *(
            partial(stem, size, 2, *case)
            for size in planes
            for case in itertools.product((FP32, BF16), (False, True), (False,))
        ),
        *(partial(stem, size, 2, dtype, False, True) for size in planes[:6] for dtype in (FP32, BF16)),
        *(
            partial(tubes, *size, dtype)
            for size in ((4, 8, 224, (2, 16, 16)), (8, 16, 112, (2, 8, 8)))
            for dtype in (FP32, BF16)
        ),
        *(
            partial(stem, size, 1, dtype, False, first)
            for size in lines
            for dtype in (FP32, BF16)
            for first in (False, True)
        ),
    ]


def dimensions(batch: int, chunks: int, length: int, heads: int, width: int, dtype: torch.dtype) -> None:
    """Products of six dimensions, each factor broadcast along others, as state spaces written out have them."""
    left = randn(batch, chunks, length, 1, heads, width, dtype=dtype)
    right = randn(batch, chunks, 1, length, heads, width, dtype=dtype)
    out = left * right
    out * right, out * randn(batch, chunks, length, length, heads, 1, dtype=dtype), out.sum(3), out.sum(-1)
    turned = randn(batch, heads, chunks, length, length, dtype=dtype).permute(0, 2, 3, 4, 1)
    apart = randn(batch, heads, width, chunks, length, dtype=dtype).permute(0, 3, 4, 1, 2)[:, :, None]
    (
        out * apart,
        out[..., :1] * apart,
        turned[..., None] * out,
        turned * out[..., 0],
        out.permute(0, 1, 4, 2, 3, 5).contiguous(),
    )
    (left[:, :, :, 0, :, :, None] * right[:, :, 0, :, :, None, :]).sum(2)


def small_squares(batch: int, rows: int, columns: int, dtype: torch.dtype) -> None:
    """Many small matrices, turned."""
    x, y = randn(batch, rows, columns, dtype=dtype), randn(batch, columns, rows, dtype=dtype)
    x + y.transpose(1, 2), y.transpose(1, 2).contiguous(), y.transpose(1, 2) * x, y.transpose(1, 2).float()
    x * y[:1].transpose(1, 2), x + y[:, :, :1].transpose(1, 2).expand(batch, rows, columns), x.gt(0) * y.transpose(1, 2)


def rows() -> list[Workload]:
    """Very short rows and very long ones, sums to few columns, tiny tables, large lists."""
    cases: list[Workload] = []
    for dtype in (FP32, BF16):
        short = ((1048576, 8), (65536, 16), (262144, 49), (2048, 50000), (512, 32))
        cases += [partial(memory.softmaxes, *size, dtype) for size in short]
        columns = itertools.product((1000, 131072, 1048576), (1, 4, 10, 32))
        cases += [partial(broadcasts.bias_gradient, *size, dtype) for size in columns]
        cases += [partial(memory.norms, *size, dtype) for size in ((16, 1024), (64, 768), (256, 4096), (524288, 16))]
        tables = itertools.product((4096, 65536, 262144), (2, 16, 100), (64, 768))
        cases += [partial(lookup, *size, dtype) for size in tables]
        picked = ((2**15, 64, 2**19), (2**13, 128, 2**16), (10_000, 256, 2**17), (1000, 16, 2**18))
        cases += [partial(broadcasts.small_table, *size, dtype) for size in picked]
        states = ((1, 4, 16, 8, 32), (2, 8, 64, 16, 64), (4, 16, 32, 32, 32))
        cases += [partial(dimensions, *size, dtype) for size in states]
        squares = ((65536, 16, 48), (8192, 49, 64), (1024, 197, 96), (131072, 8, 8), (256, 512, 16), (256, 16, 512))
        cases += [partial(small_squares, *size, dtype) for size in squares]
        scales = ((16, 64, 8, 4), (8, 32, 16, 16), (16, 3, 64, 4), (4, 512, 8, 8))
        cases += [partial(images.resized, *size, dtype, False) for size in scales]
    cases += [partial(images.resized, *size, FP16, False) for size in ((16, 64, 8, 4), (8, 32, 64, 4))]
    cases += [partial(memory.optimizers, *size, FP32) for size in ((2, 2**28), (150, 2**21))]
    cases += [partial(broadcasts.second_moment, *size, FP32) for size in ((2, 2**28), (150, 2**21))]
    return cases


def extremes() -> list[Workload]:
    return [*products(), *batches(), *norms(), *stems(), *rows(), *attentions()]
