"""Ops that go by indices and masks: indexing, masked selection, masked scatters, repeats, scattered means.

In: the op and its GPU. Out: the bytes of what its CUDA kernel takes besides its results. Read in ATen's sources (main
and 2.13's headers); probed: `index`, and `index_put` that adds up (tests/data/hidden_rows.json). Gather, scatter,
index_add, index_copy and index_fill take nothing.
"""

from __future__ import annotations

from dataclasses import replace

from trainfit.gpus.catalogue import Gpu
from trainfit.gpus.hidden.reductions import staging
from trainfit.gpus.hidden.searching import scan_bytes
from trainfit.gpus.hidden.sorting import radix_sort_bytes
from trainfit.gpus.hidden.tensors import (
    Rule,
    argument,
    copy_unless_contiguous,
    flat,
    freed,
    is_contiguous,
    nbytes,
    product,
    tensor_argument,
)
from trainfit.records import OUTPUT, Op, TensorRef

_MASKS = ("bool", "uint8")
_COUNT_BYTES = 4


def _nonzero(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """`self.contiguous()` and how many there are (Nonzero.cu); cub's storage, a few KiB, is not counted."""
    return (*copy_unless_contiguous(tensor_argument(op, 0)), _COUNT_BYTES, OUTPUT)


def _indices(mask: TensorRef, is_copied: bool, num_chosen: int) -> tuple[int, ...]:
    """A mask's nonzero: int64 for every chosen element and dimension, which stay until the op is done."""
    passing = (*((mask.numel,) if is_copied else ()), _COUNT_BYTES)
    return (*passing, 8 * num_chosen * max(len(mask.shape), 1), *freed(passing))


def _broadcast(*tensors: TensorRef) -> tuple[int, ...]:
    rank = max(len(tensor.shape) for tensor in tensors)
    padded = [(1,) * (rank - len(tensor.shape)) + tensor.shape for tensor in tensors]
    return tuple(0 if 0 in sizes else max(sizes) for sizes in zip(*padded, strict=True))


def _masked_select(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """The mask, expanded to both shapes, as indices (`masked_select_out_cuda_impl` in IndexKernel.cpp)."""
    return _selected(tensor_argument(op, 0), tensor_argument(op, 1), op.outputs[0].numel)


def _selected(x: TensorRef, mask: TensorRef, num_chosen: int) -> tuple[int, ...]:
    shape = _broadcast(x, mask)
    is_copied = mask.shape != shape or not is_contiguous(mask)
    return (*_indices(replace(mask, shape=shape), is_copied, num_chosen), OUTPUT)


def _masked_scatter_backward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """`grad.masked_select(mask)`, if it chooses as many as the source has (TensorAdvancedIndexing.cpp)."""
    return _selected(tensor_argument(op, 0), tensor_argument(op, 1), op.outputs[0].numel)


def _masked_scatter(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Where each chosen element comes from, int64 for every element; `mask.contiguous()` once expanded, cub's storage,
    `source.contiguous()` (`masked_scatter__cuda` in IndexKernel.cpp, `launch_masked_scatter_kernel` in IndexKernel.cu,
    `mask_exclusive_sum` in cub.cu)."""
    x, mask, source = (tensor_argument(op, index) for index in range(3))
    shape = x.shape if op.name.startswith("aten.masked_scatter_.") else _broadcast(x, mask)
    numel = product(shape)
    if not numel:
        return ()
    is_copied = mask.shape != shape or not is_contiguous(mask)
    storage = scan_bytes(numel, "int64")
    return (8 * numel, *((numel,) if is_copied else ()), storage, -storage, *copy_unless_contiguous(source))


def _index(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Masks become indices first (`expandTensors` in IndexingUtils.h)."""
    steps = _mask_indices(op, op.outputs[0].numel) if _masks(op) else _index_copies(op)
    return (*steps, OUTPUT) if steps else ()


def _index_put(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """The same; adding up sorts. A single number put under a mask is a fill, if the CPU has it; how many elements a
    mask chooses is known from the values only (`_index_put_impl_` in TensorAdvancedIndexing.cpp)."""
    values = op.args[2]
    num_values = values.numel if isinstance(values, TensorRef) else 1
    is_unknown = bool(_masks(op)) and num_values == 1
    if is_unknown or not _index_tensors(op):
        return ()
    if argument(op, 3, "accumulate", False):
        return _accumulated(op, num_values)
    return _mask_indices(op, num_values) if _masks(op) else _index_copies(op)


def _index_tensors(op: Op) -> list[TensorRef]:
    indices = op.args[1]
    return [index for index in indices if isinstance(index, TensorRef)] if isinstance(indices, tuple | list) else []


def _index_copies(op: Op) -> tuple[int, ...]:
    """Several index tensors whose strides differ when they are broadcast are copied (TensorAdvancedIndexing.cpp)."""
    tensors = _index_tensors(op)
    if len(tensors) < 2:
        return ()
    shape = _broadcast(*tensors)
    strides = [_broadcast_stride(tensor, shape) for tensor in tensors]
    if len(set(strides)) == 1:
        return ()
    dense = tuple(product(shape[dim + 1 :]) for dim in range(len(shape)))
    return tuple(8 * product(shape) for stride in strides if stride != dense)


def _broadcast_stride(tensor: TensorRef, shape: tuple[int, ...]) -> tuple[int, ...]:
    missing = len(shape) - len(tensor.shape)
    own = ((1, 0),) * missing + tuple(zip(tensor.shape, tensor.stride, strict=True))
    return tuple(0 if size == 1 != wanted else stride for (size, stride), wanted in zip(own, shape, strict=True))


def _accumulated(op: Op, num_values: int) -> tuple[int, ...]:
    """The linear index, the sorted one, an arange, the permutation, cub's storage (Indexing.cu)."""
    table, values, tensors = tensor_argument(op, 0), op.args[2], _index_tensors(op)
    num_items = _num_chosen(op, num_values) if _masks(op) else product(_broadcast(*tensors))
    # Sorted by the bits of the largest linear index of the indexed dimensions.
    num_dims = sum(len(tensor.shape) if tensor.dtype in _MASKS else 1 for tensor in tensors)
    num_bits = max(1, (product(table.shape[:num_dims]) - 1).bit_length())
    output = () if op.name.startswith("aten.index_put_") else (OUTPUT,)
    linear = (8 * num_items, 8 * num_items, -8 * num_items)
    copy = copy_unless_contiguous(values) if isinstance(values, TensorRef) else ()  # a number may be the host's
    order = (*(8 * num_items,) * 3, radix_sort_bytes(num_items, num_bits))
    return (*output, *_mask_indices(op, num_values), *linear, *copy, *order)


def _masks(op: Op) -> list[TensorRef]:
    return [tensor for tensor in _index_tensors(op) if tensor.dtype in _MASKS]


def _mask_indices(op: Op, num_values: int) -> tuple[int, ...]:
    num_chosen = _num_chosen(op, num_values)
    return tuple(step for mask in _masks(op) for step in _indices(mask, not is_contiguous(mask), num_chosen))


def _num_chosen(op: Op, num_values: int) -> int:
    """Of all values, those of one choice lie along the dimensions that are not indexed."""
    table, indices = tensor_argument(op, 0), op.args[1]
    place, kept = 0, 1
    for index in indices if isinstance(indices, tuple | list) else ():
        if isinstance(index, TensorRef):
            place += len(index.shape) if index.dtype in _MASKS else 1
        else:
            kept *= table.shape[place]
            place += 1
    kept *= product(table.shape[place:])
    return num_values // kept if kept else 0


def _repeat_interleave(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """`repeats.contiguous()`, `repeats.cumsum(0)`, and unless the size is stated, is none negative? (Repeat.h)"""
    repeats = tensor_argument(op, 0)
    if not repeats.numel:
        return ()
    copy, numel = copy_unless_contiguous(repeats), repeats.numel
    sums: tuple[int, ...] = () if repeats.dtype == "int64" else (8 * numel,)
    sums += copy if repeats.dtype == "int64" else ()
    sums += (scan_bytes(numel, "int64"),)
    checks: tuple[int, ...] = ()
    if argument(op, 1, "output_size", None) is None:
        checks = (numel, 1, *staging(replace(flat(repeats), dtype="bool"), (), gpu))
    return (*copy, 8 * numel, *sums, *freed(sums), *checks, *freed(checks), OUTPUT)


def _scatter_reduce(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """A mean counts: ones like the source, counts like the result, which of those are 0 (`scatter_reduce_two` in
    TensorAdvancedIndexing.cpp)."""
    if argument(op, 4, "reduce", "") != "mean":
        return ()
    x, source = tensor_argument(op, 0), tensor_argument(op, 3)
    return (nbytes(source), nbytes(x), x.numel) if tensor_argument(op, 2).numel else ()


def _where(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """Operands of another type than the result's, and a mask of bytes, are converted before the result is made
    (`where_self_out` in TensorCompare.cpp). A single number may be the host's."""
    wanted = op.outputs[0].dtype
    sides = [side for side in op.args[1:3] if isinstance(side, TensorRef)]
    copies = [nbytes(replace(side, dtype=wanted)) for side in sides if side.dtype != wanted]
    copies += [mask.numel for mask in op.args[:1] if isinstance(mask, TensorRef) and mask.dtype == "uint8"]
    return (*copies, OUTPUT) if copies else ()


RULES: dict[str, Rule] = {
    "aten.nonzero.default": _nonzero,
    "aten.masked_select.default": _masked_select,
    "aten.masked_scatter.default": _masked_scatter,
    "aten.masked_scatter_.default": _masked_scatter,
    "aten.masked_scatter_backward.default": _masked_scatter_backward,
    "aten.index.Tensor": _index,
    **{f"aten.{name}.default": _index_put for name in ("index_put", "index_put_", "_index_put_impl_")},
    "aten.repeat_interleave.Tensor": _repeat_interleave,
    "aten.scatter_reduce.two": _scatter_reduce,
    "aten.scatter_reduce_.two": _scatter_reduce,
    "aten.where.self": _where,
}
