"""Rules for what comes from the host's memory: copies to the GPU, and indices that lie there.

In: an `Op`, whose tensors of the host are None, as traces and samples have them. Out: `Work`s, or the op as if its
indices had been on the GPU, and the copies that bring them. Memory of the host that is not pinned is copied twice, so
such a copy takes many times as long as its bytes would at the link's rate; the table knows it by its bytes.
"""

from __future__ import annotations

from dataclasses import replace

from trainfit.cost import stream
from trainfit.cost.work import Work, argument, base_name, by_bytes, contiguous_stride, log, total_bytes
from trainfit.records import Op, TensorRef

ARRIVALS = frozenset({"_to_copy", "copy"})
INDEXED = frozenset("index index_put _index_put_impl _unsafe_index _unsafe_index_put".split())


def copied(op: Op) -> tuple[Work, ...]:
    """A copy, from the host where no operand is on the GPU but the one that is written."""
    works = stream.pointwise(op)
    if len(list(op.input_refs())) > (base_name(op) == "copy"):
        return works
    nbytes = total_bytes(op.outputs)
    return (*by_bytes(["host copy"], log(nbytes), nbytes), *works)


def brought(op: Op) -> tuple[Op, ...]:
    """The copies of indices that lie in the host's memory."""
    indices = _missing(op)
    return tuple(Op("aten._to_copy.default", op.phase, op.module, (), (), (index,)) for index in indices)


def with_indices(op: Op) -> Op:
    """The op with indices that lie in the host's memory in their places, the last ones of those that it names."""
    indices = _missing(op)
    if not indices:
        return op
    named = argument(op, 1, "indices", ())
    count = len(named) if isinstance(named, tuple) else 0
    return replace(op, args=(op.args[0], (*(None,) * (count - len(indices)), *indices), *op.args[2:]))


def _missing(op: Op) -> tuple[TensorRef, ...]:
    """Indices of the host, where no other is named: their sizes follow from those of what is picked or put. What
    stands before the last is a dimension that is not indexed, if the sizes are so, else an index, too."""
    named = argument(op, 1, "indices", ())
    table, *others = op.input_refs()
    if not isinstance(named, tuple) or not named or any(index is not None for index in named):
        return ()
    values = op.outputs[0] if "put" not in op.name else others[0] if others else table
    rank, count = len(table.shape), len(named)
    is_last = values.shape[: count - 1] == table.shape[: count - 1] and len(values.shape) >= rank
    first = count - 1 if is_last else 0
    shape = values.shape[first : max(len(values.shape) - (rank - count), first)]
    index = TensorRef(-1, "int64", shape, contiguous_stride(shape), 0)
    return (index,) * (1 if is_last else count)
