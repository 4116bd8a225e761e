"""Ops that go by indices and masks: indexing, masked selection, masked scatters, repeats, scattered means.

In: the op and its GPU. Out: the bytes of what its CUDA kernel takes besides its results. Sources: ATen's, as each rule
names them; confirmed by an H200 (benchmarks/results/hidden_calls_h200.jsonl.gz). Gather, scatter, index_add, index_copy
and index_fill take nothing.
"""

from __future__ import annotations

from dataclasses import replace

from trainfit.gpus.catalogue import Gpu
from trainfit.gpus.hidden.cub import flag_sum_bytes, index_sort_bytes, scan_bytes, select_bytes
from trainfit.gpus.hidden.reductions import staging
from trainfit.gpus.hidden.tensors import (
    Rule,
    argument,
    copy_unless_contiguous,
    flat,
    freed,
    integers,
    is_contiguous,
    nbytes,
    product,
    tensor_argument,
)
from trainfit.records import OUTPUT, Op, TensorRef

_MASKS = ("bool", "uint8")
_COUNT_BYTES = 4


def _nonzero(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """`self.contiguous()`; how many there are, and cub's storage to count and to choose them (Nonzero.cu)."""
    x = tensor_argument(op, 0)
    counted, chosen = flag_sum_bytes(x.numel, gpu), select_bytes(x.numel)
    return (*copy_unless_contiguous(x), _COUNT_BYTES, counted, -counted, OUTPUT, chosen)


def _indices(mask: TensorRef, is_copied: bool, num_chosen: int, gpu: Gpu) -> tuple[int, ...]:
    """A mask's nonzero: int64 for every chosen element and dimension, which stay until the op is done."""
    passing = (*((mask.numel,) if is_copied else ()), _COUNT_BYTES)
    counted, chosen = flag_sum_bytes(mask.numel, gpu), select_bytes(mask.numel)
    indices = 8 * num_chosen * max(len(mask.shape), 1)
    return (*passing, counted, -counted, indices, chosen, -chosen, *freed(passing))


def _broadcast(*tensors: TensorRef) -> tuple[int, ...]:
    rank = max(len(tensor.shape) for tensor in tensors)
    padded = [(1,) * (rank - len(tensor.shape)) + tensor.shape for tensor in tensors]
    return tuple(0 if 0 in sizes else max(sizes) for sizes in zip(*padded, strict=True))


def _masked_select(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """The mask, expanded to both shapes, as indices (`masked_select_out_cuda_impl` in IndexKernel.cpp)."""
    return _selected(tensor_argument(op, 0), tensor_argument(op, 1), op.outputs[0].numel, gpu)


def _selected(x: TensorRef, mask: TensorRef, num_chosen: int, gpu: Gpu) -> tuple[int, ...]:
    shape = _broadcast(x, mask)
    is_copied = mask.shape != shape or not is_contiguous(mask)
    return (*_indices(replace(mask, shape=shape), is_copied, num_chosen, gpu), OUTPUT)


def _masked_scatter_backward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """`grad.masked_select(mask)`, if it chooses as many as the source has (TensorAdvancedIndexing.cpp)."""
    return _selected(tensor_argument(op, 0), tensor_argument(op, 1), op.outputs[0].numel, gpu)


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
    steps = _mask_indices(op, op.outputs[0].numel, gpu) if _masks(op) else _index_copies(op)
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
        return _accumulated(op, num_values, gpu)
    return _mask_indices(op, num_values, gpu) if _masks(op) else _index_copies(op)


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
    spread = [replace(tensors[0], shape=shape, stride=stride) for stride in strides]
    return tuple(step for tensor in spread for step in copy_unless_contiguous(tensor))


def _broadcast_stride(tensor: TensorRef, shape: tuple[int, ...]) -> tuple[int, ...]:
    missing = len(shape) - len(tensor.shape)
    own = ((1, 0),) * missing + tuple(zip(tensor.shape, tensor.stride, strict=True))
    return tuple(0 if size == 1 != wanted else stride for (size, stride), wanted in zip(own, shape, strict=True))


def _accumulated(op: Op, num_values: int, gpu: Gpu) -> tuple[int, ...]:
    """The linear index, the sorted one, an arange, the permutation, cub's storage (Indexing.cu)."""
    table, values, tensors = tensor_argument(op, 0), op.args[2], _index_tensors(op)
    num_items = _num_chosen(op, num_values) if _masks(op) else product(_broadcast(*tensors))
    num_bits = max(1, _largest_index(op, table).bit_length())  # by which they are sorted
    output = () if op.name.startswith("aten.index_put_") else (OUTPUT,)
    linear = (8 * num_items, 8 * num_items, -8 * num_items)
    copy = copy_unless_contiguous(values) if isinstance(values, TensorRef) else ()  # a number may be the host's
    order = (*(8 * num_items,) * 3, index_sort_bytes(num_items, num_bits))
    return (*output, *_mask_indices(op, num_values, gpu), *linear, *copy, *order)


def _masks(op: Op) -> list[TensorRef]:
    return [tensor for tensor in _index_tensors(op) if tensor.dtype in _MASKS]


def _largest_index(op: Op, table: TensorRef) -> int:
    """Of all elements, in slices of the dimensions behind the indexed ones; without order those that are not indexed
    come last."""
    places = _indexed_places(op)
    is_in_order = places == list(range(places[0], places[-1] + 1))
    behind = range(places[-1] + 1, len(table.shape)) if is_in_order else set(range(len(table.shape))) - set(places)
    last = sum((size - 1) * step for size, step in zip(table.shape, table.stride, strict=True))
    return last // product([table.shape[dim] for dim in behind])


def _indexed_places(op: Op) -> list[int]:
    """Dimensions of the table for which there are indices."""
    indices, place = op.args[1], 0
    places: list[int] = []
    for index in indices if isinstance(indices, tuple | list) else ():
        num_dims = len(index.shape) if isinstance(index, TensorRef) and index.dtype in _MASKS else 1
        places += range(place, place + num_dims) if isinstance(index, TensorRef) else ()
        place += num_dims
    return places


def _mask_indices(op: Op, num_values: int, gpu: Gpu) -> tuple[int, ...]:
    num_chosen = _num_chosen(op, num_values)
    return tuple(step for mask in _masks(op) for step in _indices(mask, not is_contiguous(mask), num_chosen, gpu))


def _num_chosen(op: Op, num_values: int) -> int:
    """Of all values, those of one choice lie along the dimensions that are not indexed."""
    table = tensor_argument(op, 0)
    kept = product([size for dim, size in enumerate(table.shape) if dim not in _indexed_places(op)])
    return num_values // kept if kept else 0


def _unfold_backward(op: Op, gpu: Gpu) -> tuple[int, ...]:
    """The place of each element along the unfolded dimension (UnfoldBackward.h)."""
    folds, shape = tensor_argument(op, 0).shape, integers(op.args[1])
    dim, size, step = (integers(arg)[0] for arg in op.args[2:5])
    return (8 * min(shape[dim], (folds[dim] - 1) * step + size),) if shape else ()


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
    "aten.unfold_backward.default": _unfold_backward,
    "aten.scatter_reduce.two": _scatter_reduce,
    "aten.scatter_reduce_.two": _scatter_reduce,
    "aten.where.self": _where,
}
