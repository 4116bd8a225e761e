"""Workloads of sizes and broadcasts between those of the other groups, which models of text and of states use often.

Each is a callable that runs torch code on the GPU; `OpTimer` times the ops inside.
"""

from __future__ import annotations

import itertools
from functools import partial

import torch

from trainfit.calibrate.memory import matrix_transposed, optimizers
from trainfit.calibrate.workloads import BF16, FP32, Workload, randn


def scores(batch: int, heads: int, seq: int, dtype: torch.dtype) -> None:
    """Attention without a fused kernel: masks and biases that are broadcast, and their gradients."""
    x = randn(batch, heads, seq, seq, dtype=dtype)
    mask, padding = randn(batch, 1, seq, seq, dtype=dtype) > 0, randn(batch, 1, 1, seq, dtype=dtype)
    x.masked_fill(mask, 0.0), x + padding, x + randn(1, heads, seq, seq, dtype=dtype), x * (1 / 8)
    x.sum(0, keepdim=True), x.sum(1), x.transpose(2, 3).contiguous()


def rotated(batch: int, seq: int, heads: int, dim: int, dtype: torch.dtype) -> None:
    """Rotary embeddings whose angles all sequences share, of heads before and after the tokens."""
    x, y = randn(batch, seq, heads, dim, dtype=dtype), randn(batch, heads, seq, dim, dtype=dtype)
    angles = randn(seq, dim, dtype=dtype)
    x.transpose(1, 2) * angles, y * angles, x * angles[:, None]


def shared_heads(batch: int, heads: int, repeats: int, seq: int, dim: int, dtype: torch.dtype) -> None:
    """The gradient of keys that several heads share."""
    randn(batch, seq, heads, repeats, dim, dtype=dtype).permute(0, 2, 3, 1, 4).sum(2, keepdim=True)
    randn(batch, heads, repeats, seq, dim, dtype=dtype).sum(2, keepdim=True)


def bias_gradient(rows: int, columns: int, dtype: torch.dtype) -> None:
    randn(rows, columns, dtype=dtype).sum(0, keepdim=True)


def small_table(entries: int, width: int, lookups: int, dtype: torch.dtype) -> None:
    """A table of few entries by index, as biases of positions are, and its gradient."""
    table = randn(entries, width, dtype=dtype).requires_grad_()
    out = table[torch.randint(entries, (lookups,), device="cuda")]
    out.backward(randn(lookups, width, dtype=dtype))


def second_moment(num_tensors: int, numel: int, dtype: torch.dtype) -> None:
    """What Adam does to it, with factors that differ, so that all of them are read."""
    moments, first, second = ([randn(numel, dtype=dtype) for _ in range(num_tensors)] for _ in range(3))
    torch._foreach_addcmul_(moments, first, second, value=0.1)


def between() -> list[Workload]:
    """Sizes and broadcasts between those of the other groups that models of text use all the time."""
    cases: list[Workload] = []
    for dtype in (BF16, FP32):
        cases += [partial(scores, *size, dtype) for size in ((8, 12, 512), (2, 16, 1024), (16, 12, 128), (32, 8, 197))]
        cases += [
            partial(rotated, *size, dtype)
            for size in ((4, 2048, 32, 64), (2, 4096, 8, 128), (8, 512, 12, 64), (1, 1024, 16, 128))
        ]
        cases += [partial(shared_heads, *size, dtype) for size in ((2, 8, 4, 1024, 128), (4, 4, 8, 2048, 64))]
        cases += [
            partial(bias_gradient, rows, columns, dtype)
            for rows, columns in itertools.product((1024, 2048, 8192, 32768), (256, 768, 1024, 3072, 4096))
        ]
        cases += [partial(small_table, *size, dtype) for size in ((169, 16, 2401), (4096, 1, 4096), (1000, 64, 16384))]
        cases += [
            partial(second_moment, *size, dtype)
            for size in ((50, 2**10), (400, 2**10), (50, 2**16), (400, 2**16), (100, 2**20), (8, 2**24), (50, 2**23))
        ]
    return cases


def summed(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Sums of a tensor of four dimensions over each of them, and over a dimension that does not lie where it stands."""
    x = randn(*shape, dtype=dtype)
    x.sum(0), x.sum(1), x.sum(2), x.sum(3), x.transpose(1, 3).sum(3)
    x.transpose(2, 3).contiguous().transpose(2, 3).sum(3)


def vectors(batch: int, rows: int, columns: int, dtype: torch.dtype) -> None:
    """Batches of matrices times a vector each, and products of vectors."""
    matrix, row, column = (randn(batch, *shape, dtype=dtype) for shape in ((rows, columns), (rows, 1), (columns, 1)))
    torch.bmm(matrix, column), torch.bmm(matrix.transpose(1, 2), row), torch.bmm(row, column.transpose(1, 2))
    torch.bmm(row.transpose(1, 2), matrix)


def outer(batch: int, rows: int, columns: int, width: int, dtype: torch.dtype) -> None:
    """Products of what is broadcast along different dimensions, as state spaces and pairs of tokens have them, and what
    their gradients do: a factor that is expanded inside, sums over what was broadcast."""
    left, right = randn(batch, rows, 1, width, dtype=dtype), randn(batch, 1, columns, width, dtype=dtype)
    out = left * right
    out * left, out + right, left.expand_as(out).clone(), left.expand_as(out) * right
    out.sum(1, keepdim=True), out.sum(2, keepdim=True), out.sum(3)
    each, turned = randn(batch, rows, columns, 1, dtype=dtype), randn(batch, 1, width, columns, dtype=dtype)
    each * right, each.expand_as(out).clone(), out * each, each * turned.transpose(2, 3)
    out.transpose(2, 3).sum(3), out.transpose(1, 3).sum(3)


def rest() -> list[Workload]:
    """Sums over any dimension, vectors, outer products, few large parameters."""
    cases: list[Workload] = []
    for dtype in (BF16, FP32):
        shapes = ((8, 12, 512, 512), (16, 256, 32, 128), (4, 64, 256, 64), (32, 1024, 16, 16), (2, 8, 1024, 64))
        cases += [partial(summed, shape, dtype) for shape in shapes]
        cases += [partial(vectors, *size, dtype) for size in ((64, 64, 512), (256, 128, 1024), (16, 1024, 1024))]
        cases += [
            partial(outer, *size, dtype)
            for size in ((8, 32, 32, 128), (4, 256, 64, 64), (8, 64, 64, 512), (8, 128, 128, 1024), (8, 256, 256, 1024))
        ]
        cases += [
            partial(function, *size, dtype)
            for size in ((30, 2**18), (30, 2**20), (6, 2**22), (200, 2**14))
            for function in (optimizers, second_moment)
        ]
    return [*cases, partial(matrix_transposed, 100_000, 256, FP32)]
