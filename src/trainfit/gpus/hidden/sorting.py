"""Sorted orders, medians, modes, and what is unique.

In: the op and its GPU. Out: the bytes of what its CUDA kernel takes besides its results. Sources: ATen's Sort.cpp,
SortStable.cu, Sorting.cpp, TensorModeKernel.cpp and UniqueCub.cu; confirmed by an H200
(benchmarks/results/hidden_calls_h200.jsonl.gz).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trainfit.gpus.catalogue import Gpu
from trainfit.gpus.hidden.cub import (
    key_sort_bytes,
    pair_sort_bytes,
    small_key_sort_bytes,
    thrust_sort_bytes,
    unique_bytes,
)
from trainfit.gpus.hidden.reductions import converted_sum
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
    return (*_sorted_values(tensor_argument(op, 0)), 1, OUTPUT)


def _nanmedian(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """The same, but which are NaN, how many, and where that puts the median, for which numbers follow one another."""
    x = tensor_argument(op, 0)
    counted = (8, *converted_sum(flat(replace(x, dtype="bool")), gpu))
    place = (x.numel, *counted, *freed(counted[1:]), 8, 4, 8)
    return (*_sorted_values(x), *place, *freed(place[-2:]), *freed((x.numel, 8)), OUTPUT)


def _sorted_values(x: TensorRef) -> tuple[int, ...]:
    copy, indices = copy_unless_contiguous(x), 8 * x.numel
    steps = _sort_steps(flat(x), 0, ())
    return (*copy, nbytes(x), indices, *steps, *freed(steps), -indices, *freed(copy))


def _median_of_rows(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """`self.contiguous()` before the results are resized (`median_with_indices_impl`, `kthvalue_out_cuda`)."""
    copy = copy_unless_contiguous(tensor_argument(op, 0))
    return (*copy, OUTPUT, OUTPUT) if copy else ()


_LONGEST_FUSED_MODE = 2048


def _mode(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """`transpose(dim, -1).contiguous()`, of rows beyond 2048 in any case a copy, which thrust sorts one by one, each
    with an arange (TensorModeKernel.cpp, TensorModeKernel.cu). It then counts each value: if most differ that takes
    some more, which is not said."""
    x = tensor_argument(op, 0)
    if not x.shape:
        return ()
    dim, last = integers(argument(op, 1, "dim", -1))[0] % len(x.shape), len(x.shape) - 1
    size = x.shape[dim]
    if size == 1:
        return ()
    if size > _LONGEST_FUSED_MODE:
        return (nbytes(x), 8 * size, thrust_sort_bytes(size, x.dtype))
    order = list(range(len(x.shape)))
    order[dim], order[last] = last, dim
    return () if has_strides(x, order) else (nbytes(x),)


def _unique(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """The sorted values, as many of them as there are for the result, and how many are unlike the one before
    (UniqueCub.cu). What counts and inverse places take beside them was not looked at."""
    x = tensor_argument(op, 0)
    if not x.numel or x.dtype == "bool":
        return ()
    sorting = key_sort_bytes(x.numel, x.dtype, 8 * item_bytes(x.dtype))
    values = (*copy_unless_contiguous(x), nbytes(x), sorting, -sorting)
    return (*values, OUTPUT, 8, unique_bytes(x.numel, x.dtype), OUTPUT, OUTPUT)


RULES: dict[str, Rule] = {
    "aten.sort.default": _sort,
    "aten.sort.stable": _sort,
    "aten.median.default": _median,
    "aten.nanmedian.default": _nanmedian,
    **{f"aten.{name}.dim": _median_of_rows for name in ("median", "nanmedian")},
    "aten.kthvalue.default": _median_of_rows,
    "aten.mode.default": _mode,
    "aten._unique2.default": _unique,
}
