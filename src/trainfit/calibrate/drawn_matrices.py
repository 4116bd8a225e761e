"""Workloads of products of many small matrices, of few large ones and of narrow ones, and of attention with biases,
whose sizes, types and layouts a seed draws.

Each is a callable that runs torch code on the GPU; `OpTimer` times the ops inside. See `drawn`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from trainfit.calibrate.compute import linear, rounded
from trainfit.calibrate.drawn import Draw, Kinds, draws
from trainfit.calibrate.workloads import BF16, FP16, FP32, Workload, gradients, randn

SEED = 22
_MOST = 2**26
"""Elements of an operand."""
_MOST_MACS = {FP32: 2**33, BF16: 2**35, FP16: 2**35}
LENGTHS = (9, 16, 25, 36, 49, 49, 49, 64, 64, 81, 100, 144, 196, 197, 256)
"""Of windows."""


def _typed(draw: Draw, make: Callable[[torch.dtype], Workload]) -> Workload:
    """In float32, rounded to TF32 or in a half type, each as often."""
    kind, half = draw.randrange(3), draw.choice((BF16, FP16))
    return make(half) if kind == 2 else partial(rounded, make(FP32)) if kind else make(FP32)


def _matrices(batch: int, height: int, width: int, kind: str, dtype: torch.dtype) -> torch.Tensor:
    """As they stand, turned, or with others of the batch between their rows; turned and so."""
    shape = (width, height) if "turned" in kind else (height, width)
    if "apart" in kind:
        found = randn(shape[0], batch, shape[1], dtype=dtype).transpose(0, 1)
    else:
        found = randn(batch, *shape, dtype=dtype)
    return found.transpose(1, 2) if "turned" in kind else found


def by_vectors(batch: int, rows: int, columns: int, kind: str, dtype: torch.dtype) -> None:
    """Matrices by a vector each, from either side, and of two vectors."""
    matrix = _matrices(batch, rows, columns, kind, dtype)
    row, column = randn(batch, 1, rows, dtype=dtype), randn(batch, columns, 1, dtype=dtype)
    torch.bmm(matrix, column), torch.bmm(row, matrix)
    torch.bmm(row.transpose(1, 2), column.transpose(1, 2)), torch.bmm(row.transpose(1, 2), column.view(batch, 1, -1))


def vectors(draw: Draw) -> Workload:
    """Messages of edges, routes of capsules, single queries, states."""
    batch, rows, columns = draw.size(2**5, 2**18), draw.size(1, 1024), draw.size(1, 1024)
    batch = max(min(batch, _MOST // (rows * columns), _MOST // (rows + columns)), 1)
    kind = draw.choice(("plain", "plain", "turned", "apart", "turned apart"))
    return _typed(draw, partial(partial, by_vectors, batch, rows, columns, kind))


def crowds(draw: Draw) -> Workload:
    """Tens and hundreds of thousands of matrices, beyond what one kernel takes, each by a vector."""
    rows, columns = draw.choice((8, 16, 32, 64, 64, 128)), draw.choice((8, 16, 32, 64, 64, 128))
    batch = min(draw.size(2**13, 2**18), 2**29 // (rows * columns))
    kind = draw.choice(("plain", "plain", "turned", "apart"))
    return _typed(draw, partial(partial, by_vectors, batch, rows, columns, kind))


def attended(batch: int, length: int, keys: int, dim: int, is_apart: bool, dtype: torch.dtype) -> None:
    """The products of attention without a fused kernel, and of its backward pass."""
    between = "apart" if is_apart else ""
    query, key = _matrices(batch, length, dim, between, dtype), _matrices(batch, keys, dim, between, dtype)
    turned, scores = _matrices(batch, dim, keys, between, dtype), randn(batch, length, keys, dtype=dtype)
    torch.bmm(query, key.transpose(1, 2)), torch.bmm(query, turned)
    torch.bmm(scores, key), torch.bmm(scores.transpose(1, 2), query), torch.bmm(scores, turned.transpose(1, 2))
    torch.bmm(query.transpose(1, 2), scores)


def windows(draw: Draw) -> Workload:
    """Heads of windows by the thousand, of tokens by the hundred, of channels."""
    length = draw.choice(LENGTHS) if draw.random() < 0.6 else draw.size(4, 1024)
    keys = length if draw.random() < 0.75 else draw.size(4, 512)
    dim, batch = draw.choice((8, 16, 24, 32, 32, 32, 48, 64, 64, 96, 128)), draw.size(16, 2**16)
    is_apart = draw.random() < 0.25

    def make(dtype: torch.dtype) -> Workload:
        least = max(length * keys, length * dim, keys * dim)
        count = max(min(batch, 2**25 // least, _MOST_MACS[dtype] // (length * keys * dim)), 1)
        return partial(attended, count, length, keys, dim, is_apart, dtype)

    return _typed(draw, make)


def multiplied(batch: int, sizes: tuple[int, int, int], kinds: tuple[str, str], dtype: torch.dtype) -> None:
    rows, columns, depth = sizes
    torch.bmm(_matrices(batch, rows, depth, kinds[0], dtype), _matrices(batch, depth, columns, kinds[1], dtype))


def _ways(draw: Draw) -> tuple[str, str]:
    between = " apart" if draw.random() < 0.2 else ""
    first, second = (draw.choice(("plain", "turned")) + between for _ in range(2))
    return first, second


def small(draw: Draw) -> Workload:
    """Of any layout, even and odd, up to hundreds of thousands."""
    sizes = draw.size(1, 96), draw.size(1, 96), draw.size(1, 96)
    batch = draw.size(2**6, 2**18)
    batch = max(min(batch, 2**25 // max(sizes[0] * sizes[2], sizes[1] * sizes[2], sizes[0] * sizes[1])), 1)
    return _typed(draw, partial(partial, multiplied, batch, sizes, _ways(draw)))


def large(draw: Draw) -> Workload:
    """Experts, groups of channels, long sequences of few heads."""
    batch, sizes = draw.size(2, 256), (draw.size(32, 8192), draw.size(32, 4096), draw.size(16, 4096))
    kinds = _ways(draw)

    def make(dtype: torch.dtype) -> Workload:
        rows, columns, depth = sizes
        largest, macs = max(rows * depth, depth * columns, rows * columns), rows * columns * depth
        most = min(_MOST // largest, _MOST_MACS[dtype] // macs)
        return partial(multiplied, max(min(batch, most), 1), sizes, kinds, dtype)

    return _typed(draw, make)


def deep(draw: Draw) -> Workload:
    """Few small results of long sums, as of keys by values where attention is linear, and of weights' gradients."""
    batch, sizes = draw.size(2, 128), (draw.size(8, 512), draw.size(8, 512), draw.size(512, 2**16))
    batch = max(min(batch, _MOST // (max(sizes[:2]) * sizes[2]), 2**32 // prod(sizes)), 1)
    return _typed(draw, partial(partial, multiplied, batch, sizes, _ways(draw)))


def thin_layers(draw: Draw) -> Workload:
    """Linear layers one side of which is a few features or rows: scores, coordinates, gates, conditions."""
    sides = [draw.size(2**9, 2**20), draw.size(8, 2048), draw.size(8, 2048)]
    kind = draw.randrange(3)
    sides[kind] = draw.size(1, 64) if kind == 0 else draw.size(1, 24)
    bias = draw.random() < 0.4

    def make(dtype: torch.dtype) -> Workload:
        rows, width, depth = sides
        count = max(min(rows, _MOST_MACS[dtype] // (width * depth), _MOST // max(width, depth)), 1)
        return partial(linear, count, width, depth, dtype, bias)

    return _typed(draw, make)


def biased(sizes: tuple[int, int, int, int], shared: tuple[bool, bool], learns: bool, dtype: torch.dtype) -> None:
    """Attention with a number added to each score, the same for all windows or heads, or not."""
    batch, heads, length, dim = sizes
    query, key, value = (randn(batch, length, heads, dim, dtype=dtype).transpose(1, 2).requires_grad_() for _ in "qkv")
    bias = randn(1 if shared[0] else batch, 1 if shared[1] else heads, length, length, dtype=dtype)
    bias = bias.requires_grad_(learns).expand(batch, heads, length, length)
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=bias).transpose(1, 2).flatten(2)
        gradients(out, query, key, value, *[bias] * learns)


def biases(draw: Draw) -> Workload:
    """Positions of windows and of texts, and what is left out."""
    length = draw.choice(LENGTHS) if draw.random() < 0.6 else draw.size(16, 2048)
    heads, dim = draw.choice((1, 2, 3, 4, 6, 8, 12, 16, 24)), draw.choice((16, 24, 32, 32, 32, 48, 64, 64, 128))
    batch = max(min(draw.size(1, 2**13), 2**26 // (heads * length**2), 2**25 // (heads * length * dim)), 1)
    shared = draw.choice(((True, False), (True, True), (False, True), (False, False)))
    sizes = batch, heads, length, dim
    return partial(biased, sizes, shared, draw.random() < 0.4, draw.choice((BF16, FP16, FP32)))


def drawn_matrices(seed: int = SEED) -> list[Workload]:
    kinds: Kinds = ((vectors, 105), (windows, 80), (small, 160), (large, 60), (thin_layers, 85), (biases, 60),
                    (deep, 100))  # fmt: skip
    return draws(kinds, seed)
