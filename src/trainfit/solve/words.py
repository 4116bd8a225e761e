"""An option in words: `summarize(program, graph, option)` says what is recomputed and what is kept, by kinds of ops.

A kind is named alone where all of it is recomputed or kept: all that backward needs of it, since ops that backward
needs nothing of (the last matmul of most blocks) are in no plan. Otherwise how many of its ops are, if people count
such ops, or that it is a part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from trainfit.records import BlockProgram
from trainfit.solve.graph import BlockGraph
from trainfit.solve.kinds import kinds_of
from trainfit.solve.replay import Option

_COUNTED = frozenset(
    {"matmuls", "convolutions", "attention", "dropout", "embeddings", "casts", "weight casts", "copies"}
    | {"residual adds", "concatenations", "gathers", "scatters"}
)


def summarize(program: BlockProgram, graph: BlockGraph, option: Option) -> str:
    """Such as "recompute norms, rope; keep attention, 5 of 6 matmuls"."""
    if not option.replayed:
        return "keep everything"
    if option.is_rerun:
        return "run the whole block again; keep the inputs only"
    kinds = kinds_of(program)
    savers, needed = _needed_for_backward(program)
    replayed = set(option.replayed)
    recomputed = _list(kinds, replayed, needed | replayed)
    kept = set(option.kept)
    makers = {
        graph.maker[value]
        for value, storage in enumerate(graph.storage)
        if storage in kept and graph.is_keepable[value]
    }
    made_here = {maker for maker in makers if maker is not None}  # others come from outside, as inputs do
    held = _list(kinds, made_here, savers | made_here)
    return f"recompute {recomputed}; keep {held or 'the inputs only'}"


def _needed_for_backward(program: BlockProgram) -> tuple[set[int], set[int]]:
    """The ops that make what autograd saves, and those and all that they follow from."""
    wanted = {ref.storage for ref in program.saved}
    savers = {index for index, op in enumerate(program.ops) if any(ref.storage in wanted for ref in op.outputs)}
    needed: set[int] = set()
    for index in reversed(range(len(program.ops))):
        op = program.ops[index]
        if any(ref.storage in wanted for ref in op.outputs):
            needed.add(index)
            wanted.update(ref.storage for ref in op.input_refs())
    return savers, needed


def _list(kinds: list[str], ops: Iterable[int], all_ops: Iterable[int]) -> str:
    """The kinds of the ops, in their order, with what share of all they are."""
    counts, totals = Counter(kinds[op] for op in sorted(ops)), Counter(kinds[op] for op in all_ops)
    return ", ".join(_share(kind, count, totals[kind]) for kind, count in counts.items())


def _share(kind: str, count: int, total: int) -> str:
    if count == total:
        return kind
    return f"{count} of {total} {kind}" if kind in _COUNTED else f"part of {kind}"
