"""Ops that look for values: the largest, the smallest, any and all, products, running sums and products, places.

In: the op and its GPU. Out: the bytes of what its CUDA kernel takes besides its results. Sources: ATen's, as each rule
names them; confirmed by an H200 (benchmarks/results/hidden_calls_h200.jsonl.gz).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trainfit.gpus.catalogue import Gpu
from trainfit.gpus.hidden.cub import scan_bytes
from trainfit.gpus.hidden.reductions import staging
from trainfit.gpus.hidden.tensors import (
    HALVES,
    INTEGERS,
    Rule,
    accumulator_bytes,
    ceil_div,
    contiguous,
    copy_unless_contiguous,
    flat,
    freed,
    given_dims,
    integers,
    item_bytes,
    nbytes,
    product,
    tensor_argument,
)
from trainfit.records import OUTPUT, Op, TensorRef

_LARGEST_OFFSET = 2**31 - 1
_PAIR_BYTES = 16
"""A value beside the int64 where it stands: MaxOps, ArgMaxOps in SharedReduceOps.h."""


def _reduced(tensor: TensorRef, dims: Sequence[int], gpu: Gpu, element: int, result: int) -> tuple[int, ...]:
    """Staging of a reduction (gpu_reduce_kernel in Reduce.cuh). Beyond 2 GiB it is cut in halves, one after the other,
    that meet in the result, or in a buffer if what is accumulated is larger than the result's `result` bytes."""
    rank = len(tensor.shape)
    reduced = {dim % rank for dim in dims} if dims else set(range(rank))
    num_outputs = product([size for dim, size in enumerate(tensor.shape) if dim not in reduced])
    piece, item = tensor, item_bytes(tensor.dtype)
    while (
        1 + sum(extents := [(size - 1) * item * step for size, step in zip(piece.shape, piece.stride, strict=True)])
        > _LARGEST_OFFSET
    ):
        longest = extents.index(max(extents))
        shape = [ceil_div(size, 2) if dim == longest else size for dim, size in enumerate(piece.shape)]
        piece = replace(piece, shape=tuple(shape))
    meeting = (element * num_outputs,) if piece is not tensor and element > result else ()
    return (*meeting, *staging(piece, dims, gpu, element))


def _extremes(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Values only, in the input's own type (ReduceMaxValuesKernel.cu; `amax_out` in ReduceOps.cpp)."""
    x = tensor_argument(op, 0)
    item = item_bytes(x.dtype)
    return _reduced(x, given_dims(op), gpu, item, item)


def _extreme(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """`self.contiguous()` (ReduceAllOps.cpp), then as above."""
    x = tensor_argument(op, 0)
    item = item_bytes(x.dtype)
    return (*copy_unless_contiguous(x), *_reduced(flat(x), (), gpu, item, item))


def _extreme_of_rows(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Values with their places (`max_launch_kernel` in ReduceMaxValuesKernel.cu)."""
    x = tensor_argument(op, 0)
    return _reduced(x, given_dims(op), gpu, _PAIR_BYTES, item_bytes(x.dtype)) if x.shape else ()


def _place(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """ReduceArgMaxKernel.cu; of all dimensions, `self.reshape({-1})` first (`argmax_argmin_impl` in ReduceOps.cpp)."""
    x, dims = tensor_argument(op, 0), given_dims(op)
    if dims:
        return _reduced(x, dims, gpu, _PAIR_BYTES, item_bytes("int64")) if x.shape else ()
    return (*copy_unless_contiguous(x), *_reduced(flat(x), (), gpu, _PAIR_BYTES, item_bytes("int64")))


def _both_extremes(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """A pair of values (MinMaxOps in ReduceAMinMaxKernel.cu); of all dimensions, of `self.contiguous()`."""
    x = tensor_argument(op, 0)
    item = item_bytes(x.dtype)
    if dims := given_dims(op):
        return _reduced(x, dims, gpu, 2 * item, item)
    return (*copy_unless_contiguous(x), *_reduced(flat(x), (), gpu, 2 * item, item))


def _truth(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Reduced in the input's own type, unconverted (ReduceLogicKernel.cu, `get_allany_iter` in ReduceOps.cpp); one
    element is converted: `to(kBool)` in `allany_impl`."""
    x = tensor_argument(op, 0)
    if x.numel == 1:
        return (1,) if x.dtype != "bool" else ()
    return _reduced(x, given_dims(op), gpu, item_bytes(x.dtype), item_bytes(x.dtype))


def _equal(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """`eq(self, src).all()`; nothing where both are the same memory (Equal.cpp)."""
    left, right = tensor_argument(op, 0), tensor_argument(op, 1)
    if left == right or left.shape != right.shape or not left.numel:
        return ()
    return (left.numel, 1, *_reduced(flat(replace(left, dtype="bool")), (), gpu, 1, 1))


def _product(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """What is not of the result's type is converted, but for halves into float32 (`make_reduction_from_out_ty` in
    ReduceOpsUtils.h); halves are multiplied in float32 (ReduceSumProdKernel.cu)."""
    x = tensor_argument(op, 0)
    wanted = _wanted(op, x)
    dims = given_dims(op) if op.name != "aten.prod.default" else ()
    element = accumulator_bytes(x.dtype)
    if wanted == x.dtype or (x.dtype in HALVES and wanted == "float32"):
        return _reduced(x, dims, gpu, element, element)
    x = replace(x, dtype=wanted)
    element = accumulator_bytes(wanted)
    return (nbytes(x), *_reduced(x, dims, gpu, element, element))


def _wanted(op: Op, x: TensorRef) -> str:
    """The result's type: stated as `dtype`, or int64 for whole numbers."""
    dtype = dict(op.kwargs).get("dtype") or ("int64" if x.dtype in INTEGERS else x.dtype)
    return str(dtype).removeprefix("torch.")


def _scan(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """`self.to(result.scalar_type())` (`impl_func_cum_ops` in ReduceOps.cpp), `expect_contiguous()`, and cub's storage
    if all is one row (`scan_dim` in ScanUtils.cuh). Complex numbers were not looked at."""
    x = tensor_argument(op, 0)
    wanted = _wanted(op, x)
    converted = () if wanted == x.dtype else (x.numel * item_bytes(wanted),)
    x = replace(x, dtype=wanted)
    if not x.shape or not x.numel:
        return converted
    steps = (*converted, *copy_unless_contiguous(x))
    return (*steps, scan_bytes(x.numel, wanted)) if x.numel == x.shape[integers(op.args[1])[0]] else steps


def _contiguous_scan(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """`scan_dim_with_indices` in ScanUtils.cuh."""
    return copy_unless_contiguous(tensor_argument(op, 0))


def _bucketize(op: Op, gpu: Gpu) -> tuple[int, ...]:
    return _searched(tensor_argument(op, 1), tensor_argument(op, 0), None)


def _searchsorted(op: Op, gpu: Gpu) -> tuple[int, ...]:
    sorter = dict(op.kwargs).get("sorter")
    return _searched(tensor_argument(op, 0), tensor_argument(op, 1), sorter)


def _searched(bounds: TensorRef, x: TensorRef, sorter: object) -> tuple[int, ...]:
    """Contiguous copies, then those of the common type, which replace them (BucketizationUtils.h)."""
    copies = [copy_unless_contiguous(tensor) for tensor in (x, bounds)]
    steps = (*copies[0], *copies[1], *(copy_unless_contiguous(sorter) if isinstance(sorter, TensorRef) else ()))
    common = _common_type(bounds, x)
    for tensor, copy in zip((x, bounds), copies, strict=True):
        if tensor.dtype != common:
            steps += (nbytes(replace(contiguous(tensor), dtype=common)), *freed(copy))
    return steps


def _common_type(left: TensorRef, right: TensorRef) -> str:
    """Floating before whole numbers, then tensors with dimensions before those of none, then the larger type."""
    first, second = sorted(
        (left, right), key=lambda x: (x.dtype not in INTEGERS, bool(x.shape), item_bytes(x.dtype)), reverse=True
    )
    if first.dtype in HALVES and second.dtype in HALVES and first.dtype != second.dtype:
        return "float32" if bool(first.shape) == bool(second.shape) else first.dtype
    return first.dtype


def _bincount(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """The smallest and the largest number, one after the other, are asked for first (SummaryOps.cu)."""
    x = tensor_argument(op, 0)
    extreme = (nbytes(x) // max(x.numel, 1), *staging(flat(x), (), gpu, item_bytes(x.dtype)))
    return (*copy_unless_contiguous(x), *extreme, *freed(extreme), OUTPUT) if x.numel else ()


RULES: dict[str, Rule] = {
    **{f"aten.{name}.default": _extremes for name in ("amax", "amin")},
    **{f"aten.{name}.default": _extreme for name in ("max", "min")},
    **{f"aten.{name}.dim": _extreme_of_rows for name in ("max", "min")},
    **{f"aten.{name}.default": _place for name in ("argmax", "argmin")},
    "aten.aminmax.default": _both_extremes,
    **{f"aten.{name}.{overload}": _truth for name in ("any", "all") for overload in ("default", "dim", "dims")},
    "aten.equal.default": _equal,
    "aten.bincount.default": _bincount,
    "aten.prod.default": _product,
    "aten.prod.dim_int": _product,
    **{f"aten.{name}.default": _scan for name in ("cumsum", "cumprod", "logcumsumexp", "_logcumsumexp")},
    **{f"aten.{name}.default": _contiguous_scan for name in ("cummax", "cummin", "_cummax_helper", "_cummin_helper")},
    "aten.bucketize.Tensor": _bucketize,
    "aten.searchsorted.Tensor": _searchsorted,
}
