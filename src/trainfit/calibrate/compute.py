"""Workloads whose time is arithmetic: matrix products and attention.

Each is a callable that runs torch code on the GPU; `OpTimer` times the ops inside. Shapes are those of models: tokens
by hidden sizes, heads by head sizes, feature maps; and a coarse grid over everything else.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from trainfit.calibrate.workloads import BF16, FP16, FP32, Workload, randn

HIDDEN = (256, 512, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096, 5120, 8192)
MAX_MACS = {BF16: 3e12, FP16: 1e12, FP32: 4e11}
"""Products beyond this are as efficient as the largest below, and would take too long."""


def linear(rows: int, width: int, depth: int, dtype: torch.dtype, bias: bool) -> None:
    """A linear layer's product and those of its backward pass, for a weight of shape (width, depth)."""
    x, weight = randn(rows, depth, dtype=dtype), randn(width, depth, dtype=dtype)
    grad = randn(rows, width, dtype=dtype)
    if bias:
        torch.addmm(randn(width, dtype=dtype), x, weight.t())
        torch.addmm(randn(width, dtype=dtype), x, weight.t().contiguous())
        return
    torch.mm(x, weight.t())
    torch.mm(grad, weight)
    torch.mm(grad.t(), x)


def conv1d_style_linear(rows: int, width: int, depth: int, dtype: torch.dtype) -> None:
    """The same with the weight stored as (depth, width), as GPT-2 does."""
    x, weight, grad = (
        randn(rows, depth, dtype=dtype),
        randn(depth, width, dtype=dtype),
        randn(rows, width, dtype=dtype),
    )
    torch.mm(x, weight)
    torch.mm(grad, weight.t())
    torch.mm(x.t(), grad)


def linear_shapes(tokens: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    for rows, hidden in itertools.product(tokens, HIDDEN):
        for width, depth in ((1, 1), (3, 1), (4, 1), (1, 4)):
            yield rows, width * hidden, depth * hidden
    for rows, hidden in itertools.product(tokens, (768, 1024, 2048, 4096)):
        for vocabulary in (30522, 32000, 50257, 128256):
            yield rows, vocabulary, hidden
        yield rows, 11 * hidden // 4, hidden
        yield rows, hidden, 11 * hidden // 4
        yield rows, hidden // 4, hidden


def grid_shapes() -> Iterator[tuple[int, int, int]]:
    sizes = (64, 128, 320, 512, 1152, 2048, 6144, 16384)
    yield from itertools.product(sizes, sizes, sizes)
    yield from itertools.product((16, 200, 1000, 3000), (16, 200, 1000, 3000), (16, 200, 1000, 3000))


def hidden_products(dtype: torch.dtype, tokens: tuple[int, ...]) -> list[Workload]:
    """Every hidden size at once and its expansions, with and without bias, where `matmuls` takes only some."""
    shapes = [
        (rows, width * hidden, depth * hidden)
        for rows, hidden in itertools.product(tokens, (512, 768, 1024, 1280, 2048))
        for width, depth in ((1, 1), (4, 1), (1, 4))
    ]
    return [partial(linear, *shape, dtype, bias) for shape in shapes for bias in (False, True)]


def matmuls(dtype: torch.dtype, tokens: tuple[int, ...], every: int) -> list[Workload]:
    shapes = [shape for shape in (*linear_shapes(tokens), *grid_shapes()) if _macs(shape) <= MAX_MACS[dtype]]
    chosen = shapes[::every]
    plain = [partial(linear, *shape, dtype, False) for shape in chosen]
    biased = [partial(linear, *shape, dtype, True) for shape in chosen[::3]]
    transposed = [partial(conv1d_style_linear, *shape, dtype) for shape in chosen[1::4]]
    return [*plain, *biased, *transposed]


def batched_product(batch: int, rows: int, columns: int, depth: int, dtype: torch.dtype) -> None:
    """Attention's products without a fused kernel: q k^T, p v, and their gradients."""
    a, b = randn(batch, rows, depth, dtype=dtype), randn(batch, columns, depth, dtype=dtype)
    scores = torch.bmm(a, b.transpose(1, 2))
    torch.bmm(scores, b)
    torch.bmm(scores.transpose(1, 2), a)
    torch.baddbmm(scores, a, b.transpose(1, 2), beta=0.0, alpha=0.125)


def batched_products() -> list[Workload]:
    shapes = [
        *itertools.product((8, 48, 192), (128, 512, 1024), (128, 512, 1024), (32, 64, 128)),
        *itertools.product((16, 96), (2048,), (2048,), (64, 128)),
        *itertools.product((2, 8, 64), (64, 256, 1024), (1024, 4096), (256, 1024)),
        (1, 32, 2048, 1), (4, 64, 2048, 1), (1, 64, 1024, 1),
    ]  # fmt: skip
    chosen = [(*shape, dtype) for shape in shapes for dtype in (BF16, FP32)]
    return [partial(batched_product, *shape) for shape in chosen]


def attention_products() -> list[Workload]:
    """Of few heads and of many, over odd lengths and long ones."""
    shapes = [
        *((batch, seq, seq, dim) for batch, seq, dim in itertools.product((16, 384), (197, 256, 512), (64, 96))),
        *((batch, seq, seq, 64) for batch, seq in ((32, 1024), (128, 2048), (512, 64), (1536, 49))),
    ]
    return [partial(batched_product, *shape, dtype) for shape in shapes for dtype in (BF16, FP32)]


def rounded(workload: Workload) -> None:
    """The workload with products of float32 in TF32."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        workload()
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def rounded_products() -> list[Workload]:
    """Linear layers as for float32, and attention's products."""
    shapes = [*itertools.product((16, 192), (512, 1024), (512,), (64,)), (8, 128, 1024, 128), (64, 256, 1024, 256)]
    products: list[Workload] = [partial(batched_product, *shape, FP32) for shape in shapes]
    products += matmuls(FP32, (1024, 4096, 8192), every=3)
    return [partial(rounded, workload) for workload in products]


def grouped_product(tokens: int, experts: int, width: int, depth: int) -> None:
    a = randn(tokens, depth, dtype=BF16).requires_grad_()
    b = randn(experts, depth, width, dtype=BF16).requires_grad_()
    offsets = torch.arange(1, experts + 1, device="cuda", dtype=torch.int32) * (tokens // experts)
    F.grouped_mm(a, b, offs=offsets).backward(randn(tokens, width, dtype=BF16))


def grouped_products() -> list[Workload]:
    return [
        partial(grouped_product, tokens, experts, width, depth)
        for tokens, experts in ((2048, 8), (8192, 8), (16384, 64))
        for width, depth in ((1024, 1024), (4096, 1024), (1024, 4096), (3584, 2048))
    ]


def attention(
    backend: SDPBackend, dtype: torch.dtype, batch: int, heads: int, kv_heads: int, seq: int, dim: int, causal: bool,
    dropout: float, mask: bool, key_seq: int | None = None,
) -> None:  # fmt: skip
    """Scaled dot product attention and its backward pass, on tensors laid out as projections leave them."""

    def project(num_heads: int, length: int) -> torch.Tensor:
        return randn(batch, length, num_heads, dim, dtype=dtype).transpose(1, 2).requires_grad_()

    key_seq = key_seq or seq
    query, key, value = project(heads, seq), project(kv_heads, key_seq), project(kv_heads, key_seq)
    bias = randn(batch, 1, seq, key_seq, dtype=dtype) if mask else None
    with sdpa_kernel(backend):
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=bias, dropout_p=dropout, is_causal=causal, enable_gqa=heads != kv_heads
        )
        out.transpose(1, 2).reshape(batch, seq, heads * dim).backward(randn(batch, seq, heads * dim, dtype=dtype))


def attentions() -> list[Workload]:
    """As many tokens in sequences of every length, each backend with the usual heads."""
    cudnn, flash, efficient = SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION
    cases: list[tuple[Any, ...]] = []
    for seq, causal in itertools.product((128, 256, 512, 1024, 2048, 4096, 8192), (True, False)):
        batch = max(1, 16384 // seq)
        for backend, dim in itertools.product((cudnn, flash, efficient), (64, 128)):
            cases.append((backend, BF16, batch, 16, 16, seq, dim, causal, 0.0, False))
        if seq <= 4096:
            cases += [(efficient, FP32, batch, 16, 16, seq, dim, causal, 0.0, False) for dim in (64, 128)]
    return [partial(attention, *case) for case in cases]


def _macs(shape: tuple[int, int, int]) -> float:
    return float(shape[0]) * shape[1] * shape[2]
