"""Rules for ops that join, pad, pick, scatter and sort: larger by their bytes alone.

In: an `Op`. Out: `Work`s, the most special rule first. What is picked by index counts, not all that could be.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from trainfit.cost.stream import is_dense
from trainfit.cost.work import Work, argument, base_name, by_bytes, inner_dim, item_bytes, log, tensors_of, total_bytes
from trainfit.records import Op, TensorRef

MOVES = frozenset(
    """cat stack roll flip repeat index index_select index_put
    sort topk cumsum bincount histc
    nonzero one_hot index_put_impl _index_put_impl unfold_backward argsort unbind_copy
    split_with_sizes_copy _unsafe_index _unsafe_index_put embedding _local_scalar_dense im2col
    col2im""".split()
)
SCATTERS = frozenset("gather scatter scatter_add scatter_reduce index_add index_copy index_fill".split())
SAME_MOVE = {
    "_unsafe_index": "index", "_unsafe_index_put": "index_put", "_index_put_impl": "index_put", "argsort": "sort",
    "histc": "bincount", "im2col": "constant_pad_nd", "col2im": "constant_pad_nd", "nonzero": "cumsum",
    "split_with_sizes_copy": "stack",
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
    if name in ("index", "index_select", "_unsafe_index", "embedding"):  # reads what it returns, and the index
        nbytes = total_bytes(inputs[1:]) + 2 * total_bytes(outputs)
    elif kind == "roll":  # one dimension after the other
        passes = max(len(_integers(op, 1)), 1)
        nbytes = passes * (total_bytes(inputs) + total_bytes(outputs))
    else:
        nbytes = total_bytes(inputs) + total_bytes(outputs)
    coordinates = log(nbytes, nbytes / max(out.numel, 1))
    if kind in ("index", "index_select", "embedding"):
        run_bytes = _run_bytes(op, out)
        if run_bytes % _GATHERED_BYTES == 0 and _picks_rows(op):
            nbytes = max(nbytes, _ROW_BYTES * (total_bytes(outputs) // max(run_bytes, 1)))
            return by_bytes(["rows gathered"], log(nbytes, item_bytes(out.dtype)), nbytes)
        coordinates = (*coordinates, *log(min(run_bytes, _LONG_RUN_BYTES)))
    rules = [kind]
    if kind == "cat":
        rules = [_cat_rule(op, inputs, out), "cat inner", "cat strided"]
    elif name == "stack":
        rules = ["cat fine", "stack"] if _is_fine(op, inputs[0]) else ["stack"]
    elif kind == "index_put":
        rules = ["index_put accumulate" if argument(op, 3, "accumulate", False) else "index_put plain"]
    return by_bytes(rules, coordinates, nbytes, kernels=passes)


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


_FINE_BYTES = 16
"""Less than a vector: pieces that are put side by side by single elements."""


def _is_fine(op: Op, tensor: TensorRef) -> bool:
    """Whether joining interleaves very short pieces of the tensor."""
    position = argument(op, 1, "dim", 0)
    dim = position % (len(op.outputs[0].shape)) if isinstance(position, int) else 0
    return dim > 0 and prod(tensor.shape[dim:]) * item_bytes(tensor.dtype) < _FINE_BYTES


def scattered(op: Op) -> tuple[Work, ...]:
    """Single elements by index along a dimension: the innermost, so that any two of a warp may meet, or another.

    A thread per index: what is broadcast is read again, from the cache, which is about twice as fast. What is read or
    written by index counts, not all that could be; what is not written in place is copied first, at another rate, so
    how much that is of all is a coordinate.
    """
    name = base_name(op)
    tensor, *rest = op.input_refs()
    out = op.outputs[0] if op.outputs else tensor
    position = argument(op, 1, "dim", 0)
    index = next((other for other in rest if other.dtype == "int64"), tensor)
    count = index.numel if len(index.shape) == len(tensor.shape) else _picked(tensor, index, position)
    once = sum(item.numel * item_bytes(item.dtype) for item in rest)
    nbytes = (once + total_bytes(rest)) // 2 + 2 * count * item_bytes(tensor.dtype)
    copied = 0
    if name != "gather" and not op.name.split(".")[1].endswith("_"):
        copied = total_bytes((tensor, out))
    is_inner = isinstance(position, int) and tensor.shape and position % len(tensor.shape) == inner_dim(tensor)
    coordinates = log((nbytes + copied), nbytes / max(count, 1), (nbytes + copied) / max(nbytes, 1))
    place = "inner" if is_inner else "outer"
    kinds = (name, "scatter_add") if name == "scatter_reduce" else (name,)
    return by_bytes(
        [f"{kind} {way}" for kind in kinds for way in (place, "outer", "inner")], coordinates, nbytes + copied
    )


def _picked(tensor: TensorRef, index: TensorRef, position: object) -> int:
    """How many elements whole rows have, as many as the index names."""
    size = tensor.shape[position % len(tensor.shape)] if isinstance(position, int) and tensor.shape else 1
    return tensor.numel // max(size, 1) * index.numel


def _cat_rule(op: Op, inputs: list[TensorRef], out: TensorRef) -> str:
    """Joined along the slowest dimension pieces stay whole; otherwise rows are interleaved."""
    if not all(is_dense(tensor) and inner_dim(tensor) == inner_dim(inputs[0]) for tensor in inputs):
        return "cat strided"
    position = argument(op, 1, "dim", 0)
    if any(_is_fine(op, tensor) for tensor in inputs):
        return "cat fine"
    return "cat outer" if isinstance(position, int) and position % len(out.shape) == 0 else "cat inner"


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
