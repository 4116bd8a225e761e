"""What a decision costs: which ops its replay runs, how long they take, how much memory they need meanwhile.

In: a `BlockGraph` and the storages that are kept. Out: an `Option`. This is the definition of a decision's cost; the
menu's cuts and MILPs only find good decisions.

The replay: the dropped values that backward needs are rebuilt at the block's first unpacking. An op is replayed when
something it makes is needed and not at hand, once, whoever needs it, and so back through what it reads and the random
ops that it requires. Whatever is not needed any more is let go right after the op that used it last.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trainfit.solve.graph import BlockGraph


@dataclass(frozen=True, slots=True)
class Option:
    """One way to run a block: what it keeps, and what that costs."""

    kept: tuple[int, ...]  # storage numbers of the program, ascending
    kept_bytes: int  # of these, and of inputs that are there for the replay's sake
    recompute_ns: int  # by how much it makes the step longer
    replayed: tuple[int, ...]  # ops of the program, in order
    replay_peak_bytes: int  # the most that the replay has allocated at one time
    held_bytes: int  # part of kept_bytes that autograd itself would not have kept
    cast_bytes: int  # part of kept_bytes that are parameters in another dtype
    is_rerun: bool = False  # the whole forward is run again, by checkpointing, and not replayed op by op
    hidden_ns: int = 0  # what the replay takes besides, while the GPU would wait for communication anyway

    @property
    def replay_ns(self) -> int:
        """What the replay takes, hidden or not."""
        return self.recompute_ns + self.hidden_ns


def evaluate(graph: BlockGraph, kept: Iterable[int]) -> Option | None:
    """The option that keeps the storages `kept`, less those that are of no use; None if backward cannot be served."""
    wanted = set(kept)
    at_hand = {
        value
        for value, storage in enumerate(graph.storage)
        if graph.is_free[value] or graph.is_input[value] or (graph.is_keepable[value] and storage in wanted)
    }
    replayed = _closure(graph, at_hand)
    if replayed is None:
        return None
    rebuilt = {value for op in replayed for value in graph.makes[op]}
    read = {value for op in replayed for value in graph.reads[op]}
    used = sorted(
        value
        for value in at_hand
        if not graph.is_free[value] and value not in rebuilt and (value in graph.needed or value in read)
    )
    replay_ns = sum(graph.time_ns[op] for op in replayed)
    hidden_ns = min(replay_ns, graph.hidden_ns)
    return Option(
        kept=tuple(sorted(graph.storage[value] for value in used if not graph.is_input[value])),
        kept_bytes=sum(graph.nbytes[value] for value in used),
        recompute_ns=replay_ns - hidden_ns,
        replayed=tuple(replayed),
        replay_peak_bytes=_replay_peak_bytes(graph, replayed),
        held_bytes=sum(graph.nbytes[value] for value in used if value not in graph.needed),
        cast_bytes=sum(graph.nbytes[value] for value in used if graph.is_cast[value]),
        hidden_ns=hidden_ns,
    )


def rerun(graph: BlockGraph, num_ops: int) -> Option:
    """The block checkpointed: the first `num_ops` ops run again, up to the last tensor that autograd saves."""
    held = [value for value, is_input in enumerate(graph.is_input) if is_input]
    ops = list(range(num_ops))
    replay_ns = sum(graph.time_ns[op] for op in ops)
    hidden_ns = min(replay_ns, graph.hidden_ns)
    return Option(
        kept=(),
        kept_bytes=sum(graph.nbytes[value] for value in held),
        recompute_ns=replay_ns - hidden_ns,
        replayed=tuple(ops),
        replay_peak_bytes=_replay_peak_bytes(graph, ops),
        held_bytes=sum(graph.nbytes[value] for value in held),
        cast_bytes=0,
        is_rerun=True,
        hidden_ns=hidden_ns,
    )


def _closure(graph: BlockGraph, at_hand: set[int]) -> list[int] | None:
    """The ops to replay, in program order; None if that would need what cannot be made again."""
    requires = dict(graph.requires)
    replayed: set[int] = set()
    pending = [value for value in graph.needed if value not in at_hand]
    while pending:
        op = graph.maker[pending.pop()]
        if op is None:
            return None
        while op is not None and op not in replayed:
            if graph.is_opaque[op]:
                return None
            replayed.add(op)
            pending += [value for value in graph.reads[op] if value not in at_hand]
            op = requires.get(op)
    return sorted(replayed)


def _replay_peak_bytes(graph: BlockGraph, replayed: list[int]) -> int:
    """The most bytes at one time; an in-place op's output takes the place of the version that it writes over."""
    stays = {graph.storage[value] for value in graph.needed}
    last_use: dict[int, int] = {}
    for op in replayed:
        for value in (*graph.reads[op], *graph.makes[op]):
            last_use[graph.storage[value]] = op
    live: dict[int, int] = {}
    live_bytes = peak_bytes = 0
    for op in replayed:
        for value in graph.makes[op]:
            if graph.storage[value] not in live:
                live[graph.storage[value]] = graph.nbytes[value]
                live_bytes += graph.nbytes[value]
        peak_bytes = max(peak_bytes, live_bytes)
        for storage in [s for s in live if last_use[s] == op and s not in stays]:
            live_bytes -= live.pop(storage)
    return peak_bytes
