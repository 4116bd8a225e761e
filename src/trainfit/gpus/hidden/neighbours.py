"""Nearest neighbours: distances of all pairs of rows, and the largest values of every row.

Source: `_euclidean_dist` in Distance.cpp; TensorTopK.cu, whose kernels for many blocks keep counts of digits. Measured:
a net of neighbours on an H200 with torch 2.11, whose kernels and fills are those of the source, in its order, and
single calls there (benchmarks/results/hidden_calls_h200.jsonl.gz).
"""

from __future__ import annotations

from dataclasses import replace

from trainfit.gpus.catalogue import Gpu
from trainfit.gpus.hidden.cub import scan_by_key_bytes
from trainfit.gpus.hidden.reductions import summed
from trainfit.gpus.hidden.tensors import (
    Rule,
    argument,
    ceil_div,
    copy_unless_contiguous,
    item_bytes,
    nbytes,
    product,
    tensor_argument,
)
from trainfit.records import OUTPUT, Op, TensorRef

_MANY_ROWS = 25
_BLOCK_THREADS, _DIGITS = 256, 256
_BLOCKS_PER_PROCESSOR = 6
"""By the registers of the counting kernel: 40 per thread, of 65,536."""
_MIN_ITEMS, _MAX_ITEMS = 4, 64
_ROWS_FOR_BLOCKS = ((4000, 400), (799, 800), (199, 3000), (80, 5000), (40, 8000), (20, 10_000), (0, 20_000))
"""(more rows than, elements of a row from which on): several blocks share the rows."""


def _distances(op: Op, gpu: Gpu) -> tuple[int, ...]:
    return _joined_distances(tensor_argument(op, 0), tensor_argument(op, 1))


def _joined_distances(*sides: TensorRef) -> tuple[int, ...]:
    """Squares and their sums beside ones; then both sides joined with them, whose product is the result."""
    left, right = map(nbytes, sides)
    left_sums, right_sums = (nbytes(side) // side.shape[-1] for side in sides)
    sums = (left, left_sums, -left, left_sums, right, right_sums, -right, right_sums)
    joined_left = (left, left + 2 * left_sums, -left, -left_sums, -left_sums)
    joined_right = (right + 2 * right_sums, -right_sums, -right_sums)
    return (*sums, *joined_left, *joined_right, OUTPUT)


def _largest(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Of every row its result, what is left to find and what was found; of every block the counts of digits."""
    values = tensor_argument(op, 0)
    dim = argument(op, 2, "dim", -1)
    size = values.shape[dim] if isinstance(dim, int) and values.shape else 1
    rows = values.numel // max(size, 1)
    outputs = (OUTPUT, OUTPUT, *copy_unless_contiguous(values))
    if size < next((least for more_than, least in _ROWS_FOR_BLOCKS if rows > more_than), size + 1):
        return outputs
    items = ceil_div(values.numel, gpu.num_sms * _BLOCKS_PER_PROCESSOR * _BLOCK_THREADS)
    items = max(_MIN_ITEMS, min(items, _MAX_ITEMS))
    blocks = rows * ceil_div(size, items * _BLOCK_THREADS)
    item = item_bytes(values.dtype)
    found = (item * rows, 2 * 4 * rows, 2 * max(item, 4) * rows)  # as bits, halves have those of an int32
    counts = (2 * _DIGITS * blocks, 4 * _DIGITS * rows, 4 * blocks, 4 * blocks)
    return (*outputs, *found, *counts, scan_by_key_bytes(blocks))


def _cdist(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Distance.cpp: both sides, broadcast and contiguous, then the result; backward also distances and gradient before
    it, and after it DistanceKernel.cu's `buffer`, the gradient by each row of the other side, then its sum."""
    backward = "_backward." in op.name
    left, right = (tensor_argument(op, index + backward) for index in range(2))
    rank = max(len(left.shape), len(right.shape))
    batches = [(1,) * (rank - len(side.shape)) + side.shape[:-2] for side in (left, right)]
    pairs = product([max(sizes) for sizes in zip(*batches, strict=True)])
    copies: tuple[int, ...] = ()
    for side in (left, right):
        numel = pairs * product(side.shape[-2:])
        copies += (numel * item_bytes(side.dtype),) if numel != side.numel else copy_unless_contiguous(side)
    if not backward and _is_product(op, left, right):
        copied = [replace(side, shape=(pairs, *side.shape[-2:])) for side in (left, right)]
        return (*copies, *_joined_distances(*copied))
    if not backward:
        return (*copies, OUTPUT) if copies else ()
    copies += (*copy_unless_contiguous(tensor_argument(op, 4)), *copy_unless_contiguous(tensor_argument(op, 0)))
    shape = (pairs, right.shape[-2], *left.shape[-2:])
    return (*copies, OUTPUT, *(summed(left, shape, 1, gpu) if op.args[3] != 0 else ()))


def _is_product(op: Op, left: TensorRef, right: TensorRef) -> bool:
    """Euclidean distances by products of matrices: always, never, or of more rows than 25 (`cdist_impl`)."""
    mode = argument(op, 3, "compute_mode", None) or 0
    is_large = max(left.shape[-2], right.shape[-2]) > _MANY_ROWS
    return op.args[2] == 2 and (mode == 1 or (mode == 0 and is_large))


def _pdist_backward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """DistanceKernel.cu: `buffer`, the gradient by each other row, then its sum."""
    x = tensor_argument(op, 1)
    if x.shape[0] <= 1 or op.args[2] == 0:
        return ()
    return summed(x, (x.shape[0] - 1, *x.shape), 0, gpu)


RULES: dict[str, Rule] = {
    "aten._euclidean_dist.default": _distances,
    "aten.topk.default": _largest,
    "aten._cdist_forward.default": _cdist,
    "aten._cdist_backward.default": _cdist,
    "aten._pdist_backward.default": _pdist_backward,
}
