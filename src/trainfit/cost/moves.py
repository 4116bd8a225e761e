"""Rules for ops that join, pad, pick, scatter and sort: larger by their bytes alone.

In: an `Op`. Out: `Work`s, the most special rule first. What is picked by index counts, not all that could be.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from trainfit.cost.stream import apart_bytes, is_contiguous, pointwise
from trainfit.cost.work import (
    Work,
    argument,
    base_name,
    by_bytes,
    inner_dim,
    item_bytes,
    log,
    tensors_of,
    total_bytes,
    touched_bytes,
)
from trainfit.records import Op, TensorRef

MOVES = frozenset(
    """roll flip repeat index index_select index_put
    sort topk cumsum bincount histc
    nonzero one_hot index_put_impl _index_put_impl unfold_backward argsort unbind_copy
    split_with_sizes_copy _unsafe_index _unsafe_index_put embedding _local_scalar_dense im2col
    col2im""".split()
)
SCATTERS = frozenset("gather scatter scatter_add scatter_reduce index_add index_copy index_fill".split())
SAME_MOVE = {
    "_unsafe_index": "index", "_unsafe_index_put": "index_put", "_index_put_impl": "index_put", "argsort": "sort",
    "histc": "bincount", "im2col": "constant_pad_nd", "col2im": "constant_pad_nd", "nonzero": "cumsum",
    "split_with_sizes_copy": "cat whole",
}  # fmt: skip
"""Ops that launch the same kernel as another, or one of the same kind."""


def move(op: Op) -> tuple[Work, ...]:
    """Joining, padding, indexing, sorting: priced by bytes, each by its own measurements."""
    name = base_name(op)
    inputs = list(op.input_refs())
    outputs = op.outputs or tuple(inputs[:1])
    if not outputs:
        return ()
    out = outputs[0]
    kind = SAME_MOVE.get(name, name)
    passes = 1
    is_masked = kind in ("index", "index_put") and any(tensor.dtype == "bool" for tensor in inputs[1:])
    if is_masked and kind == "index_put" and sum(tensor.numel for tensor in inputs[2:]) <= 1:  # one value for all
        return pointwise(replace(op, name="aten.masked_fill_.Scalar", args=tuple(inputs[:2])))
    if kind in ("index", "index_select", "embedding") and not is_masked:  # what it returns, from memory or the cache
        nbytes = total_bytes(inputs[1:]) + total_bytes(outputs) + min(total_bytes(outputs), touched_bytes(inputs[0]))
    elif kind == "roll":  # one dimension after the other
        passes = max(len(_integers(op, 1)), 1)
        nbytes = passes * (total_bytes(inputs) + total_bytes(outputs))
    else:
        nbytes = total_bytes(inputs) + total_bytes(outputs)
    coordinates = log(nbytes, nbytes / max(out.numel, 1))
    if is_masked:
        rows = " rows" if inputs[1].numel < inputs[0].numel else ""
        return by_bytes([f"{kind} masked{rows}"], log(nbytes, item_bytes(out.dtype)), nbytes)
    if kind in ("index", "index_select", "embedding"):
        run_bytes = _run_bytes(op, out)
        if run_bytes % _GATHERED_BYTES == 0 and _picks_rows(op) and is_contiguous(inputs[0]):
            return _gathered(total_bytes(inputs[1:]), out, inputs[0], run_bytes)
        coordinates = (*coordinates, *log(min(run_bytes, _LONG_RUN_BYTES)))
    if kind == "index_put":
        copied = 0 if op.name.split(".")[1].endswith("_") else 2 * touched_bytes(inputs[0])
        nbytes = sum(2 * tensor.numel * item_bytes(tensor.dtype) for tensor in inputs[1:])
        rules = ["index_put accumulate" if argument(op, 3, "accumulate", False) else "index_put plain"]
        coordinates = log(nbytes + copied, item_bytes(out.dtype), (nbytes + copied) / max(nbytes, 1))
        return by_bytes(rules, coordinates, nbytes + copied)
    if kind in _SORTED:  # along memory, or after everything was turned
        position = argument(op, _SORTED[kind], "dim", -1)
        is_along = not isinstance(position, int) or position % max(len(out.shape), 1) == len(out.shape) - 1
        return by_bytes([kind if is_along else f"{kind} across", kind], coordinates, nbytes)
    return by_bytes([kind], coordinates, nbytes, kernels=passes)


_SORTED = {"sort": 1, "topk": 2}
"""Where the dimension stands."""


_LONG_RUN_BYTES = 512
"""Longer runs of memory are read no faster."""
_GATHERED_BYTES = 16
"""Rows of so many bytes or a multiple have a kernel of their own, a block of threads for each."""
_ROW_BYTES = 2900
"""What memory could move meanwhile: a row takes 0.6 ns, were it ever so short, in all samples of up to 1.5 KB."""


def _picks_rows(op: Op) -> bool:
    """Whether one index picks along the first dimension."""
    indices = argument(op, 1, "indices", ())
    if isinstance(indices, tuple):
        return len(indices) == 1
    return base_name(op) == "embedding" or indices == 0


def _run_bytes(op: Op, out: TensorRef) -> int:
    """How many neighbours in memory one index brings: the dimensions behind the last that is indexed."""
    rank = len(tensors_of(op.args)[0].shape)
    indices = argument(op, 1, "indices", ())
    num_behind = rank - len(indices) if isinstance(indices, tuple) else rank - 1
    if base_name(op) == "index_select" and isinstance(indices, int):
        num_behind = rank - 1 - indices % max(rank, 1)
    return prod(out.shape[len(out.shape) - num_behind :]) * item_bytes(out.dtype)


PLACED = frozenset({"slice_backward", "select_backward", "constant_pad_nd"})
"""Ops that fill their result and copy their operand to a place in it."""


def filled(op: Op) -> Op:
    """The first half of such an op; where nothing is filled, all of it."""
    if _is_cut(op):
        (kept,) = placed_as(op)
        return kept
    return Op("aten.fill_.Scalar", op.phase, op.module, op.outputs, (), op.outputs)


def placed(op: Op) -> tuple[Op, ...]:
    """The second half: a copy to a view of the result."""
    return () if _is_cut(op) else placed_as(op)


def placed_as(op: Op) -> tuple[Op, ...]:
    tensor, out = next(op.input_refs()), op.outputs[0]
    shape = tuple(map(min, tensor.shape, out.shape)) if len(tensor.shape) == len(out.shape) else tensor.shape
    source = replace(tensor, shape=shape)
    if _is_cut(op):
        return (Op("aten.clone.default", op.phase, op.module, (source,), (), (out,)),)
    stride = out.stride
    if base_name(op) == "select_backward":
        dim = argument(op, 2, "dim", 0)
        at = dim % len(out.shape) if isinstance(dim, int) else 0
        stride = (*stride[:at], *stride[at + 1 :])
    elif base_name(op) == "slice_backward":
        dim, step = argument(op, 2, "dim", 0), argument(op, 5, "step", 1)
        at = dim % len(out.shape) if isinstance(dim, int) else 0
        stride = tuple(one * step if place == at and isinstance(step, int) else one for place, one in enumerate(stride))
    view = replace(out, shape=shape, stride=stride)
    return (Op("aten.copy_.default", op.phase, op.module, (view, source), (), (view,)),)


def _is_cut(op: Op) -> bool:
    """Whether nothing is added, so that there is one copy."""
    pads = _integers(op, 1)
    return base_name(op) == "constant_pad_nd" and not any(isinstance(pad, int) and pad > 0 for pad in pads)


def _integers(op: Op, position: int) -> tuple[object, ...]:
    values = op.args[position] if len(op.args) > position else ()
    return values if isinstance(values, tuple) else ()


JOINS = frozenset({"cat", "stack"})
_JOINED_DIMS, _JOINED_PIECES = 4, 128
"""More dimensions are not joined by one kernel, but copied piece by piece, as pieces of several types are; more pieces
are joined by several kernels."""
_VECTOR_BYTES, _SECTOR_BYTES = 16, 32
_PER_PIECE = 6
"""How many times the result's bytes memory could move while pieces of single elements are written, for each of them."""


def join(op: Op) -> tuple[Work, ...]:
    """Pieces side by side: whole ones, by vectors where every row of each is some of them, by elements otherwise, and
    by elements whose places are computed where a piece does not lie as it stands."""
    pieces = _pieces(op)
    copies = copied_pieces(op)
    if copies:
        return pointwise(copies[0])
    out, dim = op.outputs[0], _joined_dim(op)
    rows = [prod(piece.shape[dim:]) * item_bytes(piece.dtype) for piece in pieces]
    if not all(map(is_contiguous, pieces)):
        kind = "strided"
    elif dim and max(rows) < _VECTOR_BYTES:
        kind = "fine"
    else:
        kind = "whole" if not dim or all(row % _VECTOR_BYTES == 0 for row in rows) else "odd"
    nbytes = 2 * touched_bytes(out)
    if kind == "fine":  # every piece writes to all sectors, of which the rest is read
        nbytes = touched_bytes(out) * min(_PER_PIECE * len(pieces), 2 * _SECTOR_BYTES // item_bytes(out.dtype))
    elif kind == "strided":
        places = (replace(out, shape=piece.shape, stride=_without(out.stride, dim, op)) for piece in pieces)
        nbytes = max(nbytes, sum(apart_bytes([piece], place) for piece, place in zip(pieces, places, strict=True)))
    rules = [f"cat {kind}", "cat strided" if kind == "odd" else "cat whole", "cat strided"]
    return by_bytes(rules, log(nbytes, item_bytes(out.dtype)), nbytes, kernels=-(-len(pieces) // _JOINED_PIECES))


def copied_pieces(op: Op) -> tuple[Op, ...]:
    """The copies of which joining consists where no kernel does it."""
    pieces, out, dim = _pieces(op), op.outputs[0], _joined_dim(op)
    is_last = base_name(op) == "stack" and dim == len(out.shape) - 1  # elsewhere what is stacked is joined and reshaped
    num_dims = len(out.shape) - (base_name(op) == "stack" and not is_last)
    if num_dims <= _JOINED_DIMS and len({piece.dtype for piece in pieces}) == 1:
        return ()
    places = [replace(out, shape=piece.shape, stride=_without(out.stride, dim, op)) for piece in pieces]
    return tuple(
        Op("aten.copy_.default", op.phase, op.module, (place, piece), (), (place,))
        for place, piece in zip(places, pieces, strict=True)
    )


def _without(stride: tuple[int, ...], dim: int, op: Op) -> tuple[int, ...]:
    """The strides of a piece's place: a stack has a dimension more than its pieces."""
    return (*stride[:dim], *stride[dim + 1 :]) if base_name(op) == "stack" else stride


def _pieces(op: Op) -> list[TensorRef]:
    """What is joined; what is empty is not looked at."""
    return [piece for piece in op.input_refs() if piece.numel]


def _joined_dim(op: Op) -> int:
    position = argument(op, 1, "dim", 0)
    return position % len(op.outputs[0].shape) if isinstance(position, int) else 0


def scattered(op: Op) -> tuple[Work, ...]:
    """Single elements by index along a dimension: the innermost, so that any two of a warp may meet, or another.

    A thread per index: what is broadcast is read again, from the cache, which is about twice as fast. What is read or
    written by index counts, not all that could be; what is not written in place is copied first, at another rate, so
    how much that is of all is a coordinate. So is how many are added to one element, which wait for each other.
    """
    name = base_name(op)
    tensor, *rest = op.input_refs()
    out = op.outputs[0] if op.outputs else tensor
    position = argument(op, 1, "dim", 0)
    index = next((other for other in rest if other.dtype == "int64"), tensor)
    if name == "gather" and _names_rows(tensor, index, position):
        return _gathered(touched_bytes(index), out, tensor, prod(tensor.shape[1:]) * item_bytes(tensor.dtype))
    count = index.numel if len(index.shape) == len(tensor.shape) else _picked(tensor, index, position)
    once = sum(item.numel * item_bytes(item.dtype) for item in rest)
    nbytes = (once + total_bytes(rest)) // 2 + 2 * count * item_bytes(tensor.dtype)
    copied = 0
    if name != "gather" and not op.name.split(".")[1].endswith("_"):
        copied = total_bytes((tensor, out))
    is_inner = isinstance(position, int) and tensor.shape and position % len(tensor.shape) == inner_dim(tensor)
    meeting = count / max(tensor.numel, 1) if name in _ADDING else 1
    coordinates = log(nbytes + copied, meeting, (nbytes + copied) / max(nbytes, 1))
    place = "inner" if is_inner else "outer"
    kinds = (name, "scatter_add") if name == "scatter_reduce" else (name,)
    size = item_bytes(tensor.dtype)
    sizes = dict.fromkeys((size, 4, 2))
    rules = [f"{kind} {way} {item}" for kind in kinds for item in sizes for way in (place, "outer", "inner")]
    return by_bytes(rules, coordinates, nbytes + copied)


_ADDING = frozenset("scatter_add scatter_reduce index_add".split())


def _names_rows(tensor: TensorRef, index: TensorRef, position: object) -> bool:
    """Whether an index that is repeated along rows names whole ones, which are then read by vectors."""
    row_bytes = prod(tensor.shape[1:]) * item_bytes(tensor.dtype)
    return (
        position == 0
        and len(index.shape) > 1
        and index.shape[1:] == tensor.shape[1:]
        and not any(index.stride[1:])
        and row_bytes % _GATHERED_BYTES == 0
        and is_contiguous(tensor)
    )


def _gathered(index_bytes: int, out: TensorRef, table: TensorRef, row_bytes: int) -> tuple[Work, ...]:
    """Rows that are read by a block of threads each, from memory or the cache."""
    nbytes = index_bytes + touched_bytes(out) + min(touched_bytes(out), touched_bytes(table))
    nbytes = max(nbytes, _ROW_BYTES * (touched_bytes(out) // max(row_bytes, 1)))
    return by_bytes(["rows gathered"], log(nbytes, item_bytes(out.dtype)), nbytes)


def _picked(tensor: TensorRef, index: TensorRef, position: object) -> int:
    """How many elements whole rows have, as many as the index names."""
    size = tensor.shape[position % len(tensor.shape)] if isinstance(position, int) and tensor.shape else 1
    return tensor.numel // max(size, 1) * index.numel


def embedding_bag(op: Op) -> tuple[Work, ...]:
    """Reads a row per index and writes one per bag, as a lookup moves its rows."""
    inputs = list(op.input_refs())
    out, rows = op.outputs[0], inputs[1].numel
    nbytes = total_bytes(inputs[1:]) + total_bytes(op.outputs) + rows * out.shape[-1] * item_bytes(out.dtype)
    run_bytes = min(out.shape[-1] * item_bytes(out.dtype), _LONG_RUN_BYTES)
    return by_bytes(["_embedding_bag", "embedding"], log(nbytes, nbytes / max(out.numel, 1), run_bytes), nbytes)


def own(op: Op) -> tuple[Work, ...]:
    """An op of no kind: by its bytes, where such ops were measured."""
    tensors = (*op.input_refs(), *op.outputs)
    nbytes = total_bytes(op.input_refs()) + total_bytes(op.outputs)
    largest = max((tensor.numel for tensor in tensors), default=1)
    return by_bytes([base_name(op)], log(nbytes, nbytes / max(largest, 1)), nbytes)
