"""An option in words: `summarize(program, option)` says what is recomputed and what is kept, by kinds of ops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from trainfit.records import BlockProgram, Op
from trainfit.solve.graph import BlockGraph
from trainfit.solve.replay import Option

_KINDS = (  # the first that is part of the op's name, without its namespace and overload
    ("attention", "attention"),
    ("convolution", "convolutions"),
    ("norm", "norms"),
    ("dropout", "dropout"),
    ("softmax", "softmax"),
    ("embedding", "embeddings"),
    ("gelu", "gelu"),
    ("silu", "silu"),
    ("relu", "relu"),
    ("sigmoid", "sigmoid"),
    ("tanh", "tanh"),
    ("pool", "pooling"),
    ("clone", "copies"),
    ("copy", "casts"),
)
_MATMULS = frozenset("mm addmm bmm baddbmm linear matmul addbmm".split())
_ELEMENTWISE = frozenset("add sub mul div neg pow rsqrt sqrt exp where addcmul rsub square abs".split())


def kind_of(op: Op) -> str:
    """What a person would call the op: the module's purpose where its name tells it, else the op's family."""
    name = op.name.split(".")[-2].strip("_") if "." in op.name else op.name
    module = op.module.rsplit(".", 1)[-1].lower()
    if name in _MATMULS:
        return "matmuls"
    if "norm" in module:
        return "norms"
    for part, kind in _KINDS:
        if part in name:
            return kind
    return "elementwise" if name in _ELEMENTWISE else name


def summarize(program: BlockProgram, graph: BlockGraph, option: Option) -> str:
    """Such as "recompute norms, silu, elementwise; keep attention, 5 of 7 matmuls"."""
    if not option.replayed:
        return "keep everything"
    if option.is_rerun:
        return "run the whole block again; keep the inputs only"
    kinds = [kind_of(op) for op in program.ops]
    total = Counter(kinds)
    kept = set(option.kept)
    makers = {
        graph.maker[value]
        for value, storage in enumerate(graph.storage)
        if storage in kept and graph.is_keepable[value]
    }
    recomputed = _list((kinds[op] for op in option.replayed), total)
    if not makers:
        return f"recompute {recomputed}; keep the inputs only"
    held = _list((kinds[op] for op in sorted(maker for maker in makers if maker is not None)), total)
    return f"recompute {recomputed}; keep {held or 'what comes from outside'}"


def _list(kinds: Iterable[str], total: Counter[str]) -> str:
    counts = Counter(kinds)
    return ", ".join(kind if n == total[kind] else f"{n} of {total[kind]} {kind}" for kind, n in counts.items())
