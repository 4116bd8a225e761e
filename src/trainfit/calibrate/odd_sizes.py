"""Workloads of products and attention in sizes that other groups leave out: wide heads and few of them, inputs much
longer than what attends to them, very many short sequences, tall products, batches of some large ones; and
convolutions whose images are weights.

Each is a callable that runs torch code on the GPU; `OpTimer` times the ops inside.
"""

from __future__ import annotations

import itertools
from functools import partial

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend

from trainfit.calibrate.compute import attention, batched_product, linear, rounded
from trainfit.calibrate.workloads import BF16, FP16, FP32, Workload

CUDNN, FLASH, EFFICIENT = (
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
)


def wide_heads() -> list[Workload]:
    """Of a head or some, up to 512 wide; few queries over many keys, and many over few."""
    sizes = (
        (8, 1, 256, 512, 8192), (4, 1, 512, 512, 2048), (16, 1, 128, 256, 4096), (16, 2, 256, 256, 256),
        (12, 1, 1024, 384, 1024), (32, 4, 100, 160, 400), (8, 4, 256, 96, 2048), (8, 8, 512, 128, 1024),
        (2, 8, 64, 64, 16384), (4, 16, 1024, 80, 256), (64, 8, 77, 40, 77), (8, 8, 4096, 40, 77), (16, 8, 256, 64, 256),
    )  # fmt: skip
    return [
        partial(attention, EFFICIENT, dtype, batch, heads, heads, queries, dim, False, 0.0, False, keys)
        for dtype, (batch, heads, queries, dim, keys) in itertools.product((FP32, BF16), sizes)
    ]


def short_sequences() -> list[Workload]:
    """Rows of a table, windows and words: hundreds to thousands of sequences that no kernel's tile is filled by."""
    sizes = (
        (2048, 8, 40, 24), (4096, 4, 16, 32), (1024, 12, 64, 64), (512, 8, 100, 64), (3000, 8, 30, 16),
        (1024, 4, 50, 48), (256, 12, 200, 64),
    )  # fmt: skip
    kinds = ((CUDNN, BF16), (FLASH, BF16), (EFFICIENT, FP32))
    plain = [
        partial(attention, backend, dtype, batch, heads, heads, length, dim, False, dropout, False)
        for (backend, dtype), (batch, heads, length, dim), dropout in itertools.product(kinds, sizes, (0.0, 0.1))
    ]
    masked = [
        partial(attention, backend, dtype, batch, heads, heads, length, dim, False, dropout, True)
        for (backend, dtype), (batch, heads, length, dim), dropout in itertools.product(
            ((CUDNN, BF16), (EFFICIENT, FP32)), sizes[1:4], (0.0, 0.1)
        )
    ]
    return [*plain, *masked]


def tall_products() -> list[Workload]:
    """A hundred thousand rows and more by some columns; a weight's gradient is a sum over all of them."""
    sizes = (
        (100_000, 192, 192), (100_000, 576, 192), (100_000, 192, 384), (200_000, 64, 64), (200_000, 256, 64),
        (131_072, 128, 512), (131_072, 512, 128), (131_072, 4, 128), (300_000, 3, 64), (50_000, 8, 256),
        (60_000, 300, 500), (400_000, 512, 512),
    )  # fmt: skip
    plain = [
        partial(linear, *size, dtype, bias)
        for size, dtype, bias in itertools.product(sizes, (FP32, BF16), (False, True))
    ]
    halves = [partial(linear, *size, FP16, False) for size in sizes[::3]]
    return [*plain, *halves, *(partial(rounded, partial(linear, *size, FP32, False)) for size in sizes)]


def large_batches() -> list[Workload]:
    sizes = (
        (16, 1024, 512, 2048), (16, 900, 512, 2048), (24, 512, 512, 1024), (20, 768, 512, 512), (16, 2048, 512, 512),
        (32, 768, 768, 512), (20, 1500, 1500, 64), (16, 700, 2000, 600),
    )  # fmt: skip
    plain = [partial(batched_product, *size, dtype) for size, dtype in itertools.product(sizes, (FP32, BF16))]
    return [*plain, *(partial(rounded, partial(batched_product, *size, FP32)) for size in sizes)]


def penalised_gradient(inputs: int, outputs: int, window: int, stride: int, side: int, dtype: torch.dtype) -> None:
    """The gradient of a gradient, as penalties of critics need it: there the images are windows."""
    x = torch.randn(32, inputs, side, side, device="cuda", dtype=dtype, requires_grad=True)
    weight = torch.randn(outputs, inputs, window, window, device="cuda", dtype=dtype, requires_grad=True)
    out = F.conv2d(x, weight, stride=stride, padding=window // 2)
    (slope,) = torch.autograd.grad(out, x, torch.randn_like(out, requires_grad=True), create_graph=True)
    slope.backward(torch.randn_like(slope))


def penalised_gradients() -> list[Workload]:
    sizes = ((3, 64, 3, 1, 32), (64, 128, 3, 1, 16), (64, 128, 4, 2, 32), (3, 64, 5, 2, 64), (128, 256, 5, 2, 16))
    return [partial(penalised_gradient, *size, dtype) for size in sizes for dtype in (FP32, BF16)]


def odd_sizes() -> list[Workload]:
    products = [*tall_products(), *large_batches()]
    return [*wide_heads(), *short_sequences(), *products, *penalised_gradients()]
