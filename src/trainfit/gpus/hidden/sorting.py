"""Sorted orders, medians and modes, and the storage of cub's radix sort, which indexing and embeddings use as well.

In: the op and its GPU. Out: the bytes of what its CUDA kernel takes besides its results. Sources: ATen's Sort.cpp,
SortStable.cu, Sorting.cpp and TensorModeKernel.cpp (main), cub's DispatchRadixSort with the tiles of compute capability
9.0. Probed: sorts of indices, one row of int64 (tests/data/hidden_rows.json); the rest was read only.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainfit.gpus.catalogue import Gpu
from trainfit.gpus.hidden.cub import pair_sort_bytes, small_key_sort_bytes
from trainfit.gpus.hidden.tensors import (
    Rule,
    argument,
    copy_unless_contiguous,
    flat,
    freed,
    has_strides,
    integers,
    item_bytes,
    nbytes,
    round_up,
    tensor_argument,
)
from trainfit.records import OUTPUT, Op, TensorRef

_ALIGNMENT = 256
_SMALL_SORT, _LONG_SORT, _MANY_ROWS = 4096, 1_000_000, 128


def _sorted_rows(num_rows: int, size: int, item: int) -> tuple[int, ...]:
    """SortStable.cu: rows one by one, or all together by value and then by row, or by cub's segmented sort."""
    numel = num_rows * size
    if num_rows == 1 or size >= _LONG_SORT:
        return (8 * size, pair_sort_bytes(size, item, 8 * item))
    if num_rows >= _MANY_ROWS:
        second = round_up(item * numel, _ALIGNMENT) + round_up(8 * numel, _ALIGNMENT) + _ALIGNMENT - 1
        return (8 * numel, second)
    row_bits = max(1, (num_rows - 1).bit_length())
    by_value = (item * numel, pair_sort_bytes(numel, item, 8 * item))
    return (8 * numel, 8 * numel, *by_value, *freed(by_value), small_key_sort_bytes(numel, row_bits))


def _sort_steps(x: TensorRef, dim: int, outputs: Sequence[TensorRef]) -> tuple[int, ...]:
    """Sort.cpp: an arange of a short row; of long ones a copy whose rows are dense, and results that lie like it."""
    if not x.shape or not x.numel:
        return ()
    dim %= len(x.shape)
    size = x.shape[dim]
    if size <= _SMALL_SORT:
        return (8 * size,)
    rows = _sorted_rows(x.numel // size, size, item_bytes(x.dtype))
    order = sorted(range(len(x.shape)), key=lambda d: (d == dim, -x.stride[d]))
    is_dense = has_strides(x, sorted(range(len(x.shape)), key=lambda d: -x.stride[d]))
    if is_dense and x.stride[dim] == 1:
        return rows
    # Results are as dense as the input; if that is not along the rows, they are sorted elsewhere and copied.
    result = outputs[0] if outputs else x
    elsewhere = () if has_strides(result, order) else (nbytes(x), 8 * x.numel)
    return (nbytes(x), *elsewhere, *rows)


def _sort(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """`sort_cuda_kernel` in Sort.cpp."""
    return _sort_steps(tensor_argument(op, 0), integers(argument(op, 1, "dim", -1))[0], op.outputs)


def _median(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """`self.flatten().sort()`, whose indices go at once; is the last one NaN? (`median_impl` in Sorting.cpp)"""
    x = tensor_argument(op, 0)
    copy, indices = copy_unless_contiguous(x), 8 * x.numel
    steps = _sort_steps(flat(x), 0, ())
    return (*copy, nbytes(x), indices, *steps, *freed(steps), -indices, *freed(copy), 1, OUTPUT)


def _median_of_rows(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """`self.contiguous()` before the results are resized (`median_with_indices_impl`, `kthvalue_out_cuda`)."""
    copy = copy_unless_contiguous(tensor_argument(op, 0))
    return (*copy, OUTPUT, OUTPUT) if copy else ()


_LONGEST_FUSED_MODE = 2048


def _mode(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """`transpose(dim, -1).contiguous()`, of rows beyond 2048 in any case a copy (TensorModeKernel.cpp); what sorting
    those takes is not counted."""
    x = tensor_argument(op, 0)
    if not x.shape:
        return ()
    dim, last = integers(argument(op, 1, "dim", -1))[0] % len(x.shape), len(x.shape) - 1
    if x.shape[dim] == 1:
        return ()
    order = list(range(len(x.shape)))
    order[dim], order[last] = last, dim
    is_copied = x.shape[dim] > _LONGEST_FUSED_MODE or not has_strides(x, order)
    return (nbytes(x),) if is_copied else ()


RULES: dict[str, Rule] = {
    "aten.sort.default": _sort,
    "aten.sort.stable": _sort,
    "aten.median.default": _median,
    **{f"aten.{name}.dim": _median_of_rows for name in ("median", "nanmedian")},
    "aten.kthvalue.default": _median_of_rows,
    "aten.mode.default": _mode,
}
