"""Rules for ops that join, pad, pick, scatter and sort: larger by their bytes alone.

In: an `Op`. Out: `Work`s, the most special rule first. What is picked by index counts, not all that could be.
"""

from __future__ import annotations

from dataclasses import replace
from math import log2, prod

from trainfit.cost.stream import is_contiguous, offset_dims, pointwise
from trainfit.cost.work import (
    Work,
    argument,
    base_name,
    by_bytes,
    contiguous_stride,
    inner_dim,
    is_channels_last,
    item_bytes,
    log,
    tensors_of,
    total_bytes,
    touched_bytes,
)
from trainfit.records import Op, TensorRef

MOVES = frozenset(
    """roll flip repeat index index_select index_put bincount histc nonzero one_hot index_put_impl _index_put_impl
    unfold_backward unbind_copy split_with_sizes_copy _unsafe_index _unsafe_index_put embedding
    _local_scalar_dense""".split()
)
SCATTERS = frozenset("gather scatter scatter_add scatter_reduce index_add index_copy index_fill".split())
SAME_MOVE = {
    "_unsafe_index": "index", "_unsafe_index_put": "index_put", "_index_put_impl": "index_put", "histc": "bincount",
    "split_with_sizes_copy": "cat whole", "addmv": "mv", "vdot": "dot", "nanmedian": "median",
}  # fmt: skip
"""Ops that launch the same kernel as another, or one of the same kind."""


def move(op: Op) -> tuple[Work, ...]:
    """Joining, padding, indexing: priced by bytes, each by its own measurements."""
    name = base_name(op)
    inputs = list(op.input_refs())
    outputs = op.outputs or tuple(inputs[:1])
    if not outputs:
        return ()
    kind = SAME_MOVE.get(name, name)
    if kind in ("index", "index_put") and any(tensor.dtype == "bool" for tensor in inputs[1:]):
        return _masked(op, kind)
    if kind in ("index", "index_select", "embedding"):
        return _by_index(op, kind)
    if kind == "index_put":
        return _put(op)
    passes = max(len(_integers(op, 1)), 1) if kind == "roll" else 1  # one dimension after the other
    nbytes = passes * (total_bytes(inputs) + total_bytes(outputs))
    if kind == "roll":
        nbytes = max(nbytes, passes * _ELEMENT_BYTES * outputs[0].numel)
        return by_bytes([kind], log(nbytes, item_bytes(outputs[0].dtype)), nbytes, kernels=passes)
    return by_bytes([kind], log(nbytes, nbytes / max(outputs[0].numel, 1)), nbytes, kernels=passes)


def _masked(op: Op, kind: str) -> tuple[Work, ...]:
    """Where a truth value is set: elements, or whole rows."""
    inputs = list(op.input_refs())
    out = op.outputs[0] if op.outputs else inputs[0]
    if kind == "index_put" and sum(tensor.numel for tensor in inputs[2:]) <= 1:  # one value for all
        return pointwise(replace(op, name="aten.masked_fill_.Scalar", args=tuple(inputs[:2])))
    table, mask, size = inputs[0], inputs[1], item_bytes(out.dtype)
    rows = " rows" if mask.numel < table.numel else ""
    count = (out if kind == "index" else inputs[2]).numel
    run = table.numel // max(mask.numel, 1)  # of numbers that one truth value stands for
    places = _PLACE_PASSES * count // max(run, 1) * len(mask.shape) * item_bytes("int64")  # written down, then read
    nbytes = _COUNTED_BYTES + _PLACE_PASSES * touched_bytes(mask) + places
    if rows and run * size % _GATHERED_BYTES == 0 and kind == "index":
        nbytes += max(2 * size * count, _ROW_BYTES * (count // max(run, 1)))
    else:
        nbytes += max(_ELEMENT_BYTES, 2 * size) * count
    if kind == "index_put" and not op.name.split(".")[1].endswith("_"):
        nbytes += 2 * touched_bytes(out)
    return by_bytes([f"{kind} masked{rows}"], log(nbytes, size), nbytes)


_PLACE_PASSES, _COUNTED_BYTES = 2, 24_000_000
"""How often places are gone through; what memory could move while the kernels that count them begin and end."""


def _by_index(op: Op, kind: str) -> tuple[Work, ...]:
    """What is picked by index: whole rows, or else element by element, for each of which a place is computed."""
    table, *indices = op.input_refs()
    out = op.outputs[0]
    run_bytes = _run_bytes(op, out)
    if run_bytes % _GATHERED_BYTES == 0 and _picks_rows(op) and _has_whole_rows(table):
        return _gathered(total_bytes(indices), out, table, run_bytes)
    if kind == "index_select" and indices[0].numel > _FEW_ROWS:
        return scattered(_as_gather(op, table, indices[0], out))
    size = item_bytes(out.dtype)
    sectors = touched_bytes(out) * max(_SECTOR_BYTES // max(min(run_bytes, _SECTOR_BYTES), 1), 1)
    nbytes = total_bytes(indices) + touched_bytes(out) + min(sectors, max(touched_bytes(table), touched_bytes(out)))
    nbytes = max(nbytes, _ELEMENT_BYTES * out.numel)
    return by_bytes([kind, "index"], log(nbytes, size, len(indices)), nbytes)


def _as_gather(op: Op, table: TensorRef, index: TensorRef, out: TensorRef) -> Op:
    """What the op runs: an index for every element, repeated along all other dimensions."""
    position = argument(op, 1, "dim", 0)
    dim = position % len(out.shape) if isinstance(position, int) and out.shape else 0
    spread = replace(index, shape=out.shape, stride=tuple(int(at == dim) for at in range(len(out.shape))))
    return replace(op, name="aten.gather.default", args=(table, dim, spread), kwargs=())


def _put(op: Op) -> tuple[Work, ...]:
    """What is set by index, element by element, slower where there are few places; what is not written in place is
    copied first."""
    table, *others = op.input_refs()
    count = max((tensor.numel for tensor in others), default=1)
    copied = 0 if op.name.split(".")[1].endswith("_") else 2 * touched_bytes(table)
    nbytes = copied + max(2 * total_bytes(others), _ELEMENT_BYTES * count)
    rules = ["index_put accumulate" if argument(op, 3, "accumulate", False) else "index_put plain"]
    return by_bytes(rules, log(nbytes, min(table.numel, _MANY_PLACES)), nbytes)


_MANY_PLACES = 8192
"""To as many elements threads write without waiting for each other."""
_LONG_RUN_BYTES = 512
"""Longer runs of memory are read no faster."""
_GATHERED_BYTES = 16
"""Rows of so many bytes or a multiple have a kernel of their own, a block of threads for each."""
_ROW_BYTES = 2900
"""What memory could move meanwhile: a row takes 0.6 ns, were it ever so short, in all samples of up to 1.5 KB."""
_ELEMENT_BYTES = 22
"""And while a single element's place is computed: it takes 4.6 ps, were it ever so narrow."""
_BEFORE_BYTES = 3
"""And more of what is written, where there are dimensions before the one that is indexed."""


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
_PLACED_BYTES = 12
"""What memory could move while an element is placed: 2.5 ps, were it ever so narrow."""
_OFFSET_BYTES, _DIM_BYTES = 7, 3
"""And while its place is computed, with each dimension: 1.5 and 0.6 ps."""
_ALONE = 0.6
"""A piece has blocks for half of the GPU, and takes so much longer while no other fills the rest."""
_LONG_ROW_BYTES, _MANY_PIECES = 256, 8
"""Rows of a piece that are longer take no longer; nor do more pieces, which all write to the same sectors of memory."""
_BYTES_WEIGHT, _PIECES_WEIGHT, _ROW_WEIGHT, _APART_WEIGHT, _ALONE_WEIGHT = 0.7, 1.5, 0.7, 4.0, 0.9
"""How far apart, in doublings, are joins of twice the bytes, of twice as many pieces, of rows twice as long, of pieces
of which all or none lie otherwise than the result, and of one piece or of two as long; by a whole one where places are
computed are those of a dimension more, and the pieces' number is nothing there."""


def join(op: Op) -> tuple[Work, ...]:
    """Pieces side by side: whole ones, by vectors where every row of each is some of them, by elements otherwise, and
    by elements whose places are computed where a piece does not lie as it stands, nor as all others do. Each piece is
    written by blocks of its own: of short rows every sector as often as there are pieces; where places are computed,
    those of a piece that is longer than all others together are left alone."""
    pieces = _pieces(op)
    copies = copied_pieces(op)
    if copies:
        return pointwise(copies[0])
    out, dim = op.outputs[0], _joined_dim(op)
    lying = _lying(out)
    is_joined = base_name(op) == "cat"
    behind = lying[lying.index(dim) :] if is_joined else range(dim, len(pieces[0].shape))
    rows = [prod(piece.shape[at] for at in behind) * item_bytes(piece.dtype) for piece in pieces]
    is_first = lying[0] == dim if is_joined else not dim
    if not all(map(is_contiguous, pieces)):
        kind = "turned" if is_joined and all(_lies_so(piece, lying) for piece in pieces) else "strided"
    else:
        kind = "whole" if is_first or all(row % _VECTOR_BYTES == 0 for row in rows) else "odd"
    size, nbytes = item_bytes(out.dtype), touched_bytes(out)
    mean = min(sum(rows) / max(len(rows), 1), _LONG_ROW_BYTES)
    alone = max(2 * max(piece.numel for piece in pieces) - out.numel, 0)
    if kind == "strided":
        num_dims = len(pieces[0].shape)
        shape = num_dims + _ALONE_WEIGHT * alone / max(out.numel, 1)
        placed = (_OFFSET_BYTES + _DIM_BYTES * num_dims) * (out.numel + _ALONE * alone)
    else:
        shape = _PIECES_WEIGHT * log2(min(len(pieces), _MANY_PIECES))
        placed = _PLACED_BYTES * out.numel
    apart = sum(piece.numel for piece in pieces if kind == "strided" and _is_apart(piece, lying, dim, is_joined))
    others = (shape, _ROW_WEIGHT * log2(max(mean, 1)), _APART_WEIGHT * apart / max(out.numel, 1))
    coordinates = (_BYTES_WEIGHT * log2(max(nbytes, 1)), log2(size), *others)
    moved, kernels = max(2 * nbytes, round(placed)), -(-len(pieces) // _JOINED_PIECES)
    rules = dict.fromkeys([f"cat {kind}", "cat strided" if kind in ("odd", "turned") else "cat whole", "cat strided"])
    return tuple(Work(rule, coordinates, 0, "", moved, kernels, num_sizes=1, num_alike=4) for rule in rules)


def _is_apart(piece: TensorRef, lying: list[int], dim: int, is_joined: bool) -> bool:
    """Whether neighbours in the result are not neighbours in the piece."""
    dims = lying if is_joined else [at - (at > dim) for at in lying if at != dim]
    inner = next((at for at in reversed(dims) if piece.shape[at] > 1), None)
    return inner is not None and piece.stride[inner] > 1


def _lying(out: TensorRef) -> list[int]:
    """The dimensions as they lie in memory, the outermost first."""
    return sorted(range(len(out.shape)), key=lambda at: -out.stride[at])


def _lies_so(tensor: TensorRef, lying: list[int]) -> bool:
    """Whether it has no gaps, and its dimensions lie in that order."""
    steps = contiguous_stride(tuple(tensor.shape[at] for at in lying))
    return all(tensor.stride[at] == step for at, step in zip(lying, steps, strict=True) if tensor.shape[at] > 1)


def copied_pieces(op: Op) -> tuple[Op, ...]:
    """The copies of which joining consists where no kernel does it: none knows slices where channels come last."""
    pieces, out, dim = _pieces(op), op.outputs[0], _joined_dim(op)
    is_last = base_name(op) == "stack" and dim == len(out.shape) - 1  # elsewhere what is stacked is joined and reshaped
    num_dims = len(out.shape) - (base_name(op) == "stack" and not is_last)
    is_last_cat = base_name(op) == "cat" and is_channels_last(out)
    is_sliced = is_last_cat and not all(_lies_so(piece, _lying(out)) for piece in pieces)
    if num_dims <= _JOINED_DIMS and len({piece.dtype for piece in pieces}) == 1 and not is_sliced:
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
    """Single elements by index along a dimension: a thread for some of them, which it finds one after the other.

    So it takes a while however few they are, and so much for each; what is not written in place is copied first. How
    many go to one element, which wait for each other, is a coordinate, and how much is read to find it.
    """
    name = base_name(op)
    tensor, *rest = op.input_refs()
    out = op.outputs[0] if op.outputs else tensor
    position = argument(op, 1, "dim", 0)
    index = next((other for other in rest if other.dtype == "int64"), tensor)
    if name == "gather":
        return _gather(tensor, index, out, position)
    count = index.numel if len(index.shape) == len(tensor.shape) else _picked(tensor, index, position)
    size = item_bytes(tensor.dtype)
    is_inner, found = _found_along(tensor, position)
    moved = total_bytes(rest) + 2 * count * found
    element = _THREAD_BYTES
    if name.startswith("index"):
        before = tensor.shape[: position % len(tensor.shape)] if isinstance(position, int) and tensor.shape else ()
        element = _ELEMENT_BYTES + _BEFORE_BYTES * (prod(before) > 1)
    nbytes = _FOUND_BYTES + max(moved, element * count)
    if not op.name.split(".")[1].endswith("_"):
        nbytes += total_bytes((tensor, out))
    meeting = count / max(tensor.numel, 1) if name in _ADDING else 1
    kinds = (name, "scatter_add") if name == "scatter_reduce" else (name,)
    reduced = argument(op, 4, "reduce", "")
    if name == "scatter_reduce" and reduced in ("mean", "prod"):  # counted, too, or multiplied
        kinds = (f"{name} {reduced}", *kinds)
    places = [""]
    if name.startswith("index") or name in _ADDING:  # whole rows are meant, or threads of a warp may meet
        places = [" inner", " outer"] if is_inner else [" outer", " inner"]
    sizes = [f" {item}" for item in dict.fromkeys((size, 4, 2))] if name in _ADDING else [""]
    rules = [f"{kind}{place}{item}" for kind in kinds for item in sizes for place in places]
    if name == "scatter_reduce" and dict(op.kwargs).get("include_self", True) is False:  # what is there goes first
        rules = [f"{rule} anew" for rule in rules] + rules
    read = 1.0 if name.startswith("index") else total_bytes(rest) / max(count, 1)
    if name == "index_add" and index.numel <= _FEW_ROWS:
        rules = [f"{rule} few" for rule in rules] + rules
    coordinates = log(count, meeting, read)
    return tuple(Work(rule, coordinates, 0, "", nbytes) for rule in dict.fromkeys(rules))


def _found_along(tensor: TensorRef, position: object) -> tuple[bool, int]:
    """Whether neighbours in memory are chosen from, and the bytes that are read or written of one of them."""
    size, inner = item_bytes(tensor.dtype), inner_dim(tensor)
    is_inner = isinstance(position, int) and bool(tensor.shape) and position % len(tensor.shape) == inner
    is_far = is_inner and tensor.shape[inner or 0] * size > _NEAR_BYTES
    return is_inner, _SECTOR_BYTES if is_far else size


def _gather(tensor: TensorRef, index: TensorRef, out: TensorRef, position: object) -> tuple[Work, ...]:
    """Whole rows, or else elements that are read one by one, for each of which places are computed, dimension by
    dimension. How much they are chosen from says which cache they come from."""
    if _names_rows(tensor, index, position):
        return _gathered(touched_bytes(index), out, tensor, prod(tensor.shape[1:]) * item_bytes(tensor.dtype))
    dims = 1.0
    if isinstance(position, int) and len(tensor.shape) == len(out.shape) > 1:
        at = position % len(out.shape)
        chosen = replace(tensor, shape=out.shape, stride=(*tensor.stride[:at], 0, *tensor.stride[at + 1 :]))
        dims = offset_dims([chosen, index, out])
    moved = touched_bytes(index) + 2 * out.numel * _found_along(tensor, position)[1]
    nbytes = _FOUND_BYTES + max(moved, round((_READ_BYTES + _READ_DIM_BYTES * dims) * out.numel))
    read = touched_bytes(index) / max(out.numel, 1)
    chosen_bytes = min(max(touched_bytes(tensor), _FEW_CHOSEN_BYTES), _MANY_CHOSEN_BYTES)
    coordinates = (*log(out.numel, read), _READ_DIM_WEIGHT * dims, _CHOSEN_WEIGHT * log2(chosen_bytes))
    return (Work("elements gathered", coordinates, 0, "", nbytes),)


_READ_BYTES, _READ_DIM_BYTES = 8, 2
"""What memory could move while a thread that knows its first element reads another, and with each dimension: 1.7 and
0.4 ps."""
_READ_DIM_WEIGHT, _CHOSEN_WEIGHT, _FEW_CHOSEN_BYTES, _MANY_CHOSEN_BYTES = 0.5, 0.5, 2**20, 2**27
"""How far apart, in doublings, are elements of a dimension more, and those of twice as much to choose from, which says
nothing where a processor's cache has it all, or none does."""
_ADDING = frozenset("scatter_add scatter_reduce index_add".split())
_FOUND_BYTES, _THREAD_BYTES = 18_000_000, 16
"""What memory could move while a thread finds its first element, and while it finds another: 3.8 us, 3.3 ps."""
_FEW_ROWS = 16
"""So many are added by threads that go through all of them."""
_NEAR_BYTES = 2**25
"""Of rows up to so long single elements are found in the cache."""


def _names_rows(tensor: TensorRef, index: TensorRef, position: object) -> bool:
    """Whether an index that is repeated along rows names whole ones, which are then read by vectors."""
    row_bytes = prod(tensor.shape[1:]) * item_bytes(tensor.dtype)
    return (
        position == 0
        and len(index.shape) > 1
        and index.shape[1:] == tensor.shape[1:]
        and not any(step for size, step in zip(index.shape[1:], index.stride[1:], strict=True) if size > 1)
        and row_bytes % _GATHERED_BYTES == 0
        and _has_whole_rows(tensor)
    )


def _has_whole_rows(table: TensorRef) -> bool:
    """Whether each of its rows is one run of memory that starts at a vector, as also those of a slice may be."""
    rows = replace(table, shape=(1, *table.shape[1:]))
    return is_contiguous(rows) and (not rows.stride or rows.stride[0] * item_bytes(table.dtype) % _GATHERED_BYTES == 0)


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
    name = SAME_MOVE.get(base_name(op), base_name(op))
    return by_bytes([base_name(op), name], log(nbytes, nbytes / max(largest, 1)), nbytes)
