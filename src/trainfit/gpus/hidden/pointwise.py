"""Ops that copy or convert an operand first: softmax, resampling, scans, rolls, indexing, foreach norms.

Each rule says which tensor expression of the kernel's host code makes the buffer. Probe: the rows of the models.
"""

from __future__ import annotations

from trainfit.gpus.catalogue import Gpu
from trainfit.gpus.hidden.sorting import radix_sort_bytes
from trainfit.gpus.hidden.tensors import (
    INTEGERS,
    Rule,
    argument,
    ceil_div,
    copy_unless_contiguous,
    integers,
    is_channels_last,
    is_contiguous,
    nbytes,
    product,
    tensor_argument,
)
from trainfit.records import LAST_OUTPUT, OUTPUT, Op, TensorRef

_FOREACH_CHUNK = 65536


def _softmax(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """SoftMax.cu works on contiguous input."""
    return copy_unless_contiguous(tensor_argument(op, 0))


def _softmax_backward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """gradient * output, formed before the kernel, which works on contiguous input: the product lies as the gradient
    does (SoftMax.cu)."""
    gradient = tensor_argument(op, 0)
    return nbytes(gradient), *copy_unless_contiguous(gradient)


def _log_softmax_backward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """SoftMax.cu."""
    return copy_unless_contiguous(tensor_argument(op, 0))


def _dropout(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """The mask is made before the result (Dropout.cu)."""
    return (LAST_OUTPUT, OUTPUT)


def _safe_softmax(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Which entries are -inf, which rows are nothing but that, and a zero to fill those with (attention.cpp)."""
    x = tensor_argument(op, 0)
    dim = integers(op.args[1])[0]
    return (x.numel, x.numel // x.shape[dim], nbytes(x) // x.numel)


def _resample_backward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    gradient = tensor_argument(op, 0)
    return () if is_contiguous(gradient) or is_channels_last(gradient) else (nbytes(gradient),)


def _cumsum(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Small integers are converted to int64 first."""
    x = tensor_argument(op, 0)
    wanted = argument(op, 2, "dtype", None) or ("int64" if x.dtype in INTEGERS else x.dtype)
    if str(wanted).removeprefix("torch.") != x.dtype:
        return (8 * x.numel,)
    return (1023,) if len(x.shape) == 1 else ()  # cub's scan of one row; other scans need nothing


def _roll(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """One dimension after the other, each out of place (TensorTransformations.cpp)."""
    x = tensor_argument(op, 0)
    num_dims = len(integers(op.args[1]))
    return (nbytes(x),) * min(num_dims - 1, 2) + (OUTPUT,) if num_dims > 1 else ()


def _index(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Several index tensors whose strides differ after broadcasting are made contiguous (TensorAdvancedIndexing)."""
    copies = _index_copies(op)
    return (*copies, OUTPUT) if copies else ()


def _index_tensors(op: Op) -> list[TensorRef]:
    indices = op.args[1]
    return [index for index in indices if isinstance(index, TensorRef)] if isinstance(indices, tuple | list) else []


def _index_copies(op: Op) -> tuple[int, ...]:
    tensors = _index_tensors(op)
    if len(tensors) < 2:
        return ()
    shape = _broadcast([tensor.shape for tensor in tensors])
    strides = [_broadcast_stride(tensor, shape) for tensor in tensors]
    if len(set(strides)) == 1:
        return ()
    dense = tuple(product(shape[dim + 1 :]) for dim in range(len(shape)))
    return tuple(8 * product(shape) for stride in strides if stride != dense)


def _broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(max(sizes) for sizes in zip(*padded, strict=True))


def _broadcast_stride(tensor: TensorRef, shape: tuple[int, ...]) -> tuple[int, ...]:
    missing = len(shape) - len(tensor.shape)
    own = ((1, 0),) * missing + tuple(zip(tensor.shape, tensor.stride, strict=True))
    return tuple(0 if size == 1 != wanted else stride for (size, stride), wanted in zip(own, shape, strict=True))


def _index_put(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Accumulation sorts: the linear index, the sorted one, an arange, the permutation, cub's storage (Indexing.cu)."""
    if not argument(op, 3, "accumulate", False) or not (tensors := _index_tensors(op)):
        return ()
    table, values = tensor_argument(op, 0), tensor_argument(op, 2)
    shape = _broadcast([tensor.shape for tensor in tensors])
    num_items = product(shape)
    # Sorted by the bits of the largest linear index of the indexed dimensions.
    num_rows = product(table.shape[: len(tensors)])
    num_bits = max(1, (num_rows - 1).bit_length())
    output = () if op.name.startswith("aten.index_put_") else (OUTPUT,)
    linear = (8 * num_items, 8 * num_items, -8 * num_items)
    order = (8 * num_items,) * 3
    return (*output, *linear, *copy_unless_contiguous(values), *order, radix_sort_bytes(num_items, num_bits))


_SMALL_SORT = 4096


def _sort(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Rows of up to 4096 are sorted in place beside an index buffer (Sort.cpp); one long row of 8-byte numbers by cub's
    radix sort. Several long rows, and long ones of other types, were not measured."""
    tensor = tensor_argument(op, 0)
    indices = (8 * tensor.numel,)
    if tensor.numel > _SMALL_SORT and len(tensor.shape) == 1 and nbytes(tensor) == 8 * tensor.numel:
        return (*indices, radix_sort_bytes(tensor.numel, 64))
    return indices


def _grouped_mm(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Problem sizes and pointers per group, and tensor maps per multiprocessor (GroupMM.cu).

    Other precisions and GPUs multiply group by group, straight into the result (GroupedMMUtils.h's fallback).
    """
    if tensor_argument(op, 0).dtype != "bfloat16" or gpu.compute_capability not in ((9, 0), (10, 0)):
        return ()
    offsets = argument(op, 2, "offs", None)
    groups = offsets.numel if isinstance(offsets, TensorRef) else tensor_argument(op, 1).shape[0]
    return (60 * groups, 512 * gpu.num_sms)


def _foreach_norm(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """One number per chunk of the largest tensor, for every tensor (ForeachReduceOp.cu)."""
    tensors = list(op.input_refs())
    chunks = ceil_div(max((tensor.numel for tensor in tensors), default=0), _FOREACH_CHUNK)
    partial = 4 * len(tensors) * chunks
    return (partial, *(OUTPUT,) * len(tensors)) if partial else ()


RULES: dict[str, Rule] = {
    "aten.native_dropout.default": _dropout,
    "aten._log_softmax.default": _softmax,
    "aten._softmax.default": _softmax,
    "aten._softmax_backward_data.default": _softmax_backward,
    "aten._log_softmax_backward_data.default": _log_softmax_backward,
    "aten._safe_softmax.default": _safe_softmax,
    "aten.upsample_bilinear2d_backward.default": _resample_backward,
    "aten.upsample_nearest2d_backward.default": _resample_backward,
    "aten.cumsum.default": _cumsum,
    "aten.roll.default": _roll,
    "aten.index.Tensor": _index,
    "aten.index_put.default": _index_put,
    "aten.index_put_.default": _index_put,
    "aten._index_put_impl_.default": _index_put,
    "aten.sort.default": _sort,
    "aten._grouped_mm.default": _grouped_mm,
    "aten._foreach_norm.Scalar": _foreach_norm,
}
