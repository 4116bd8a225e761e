"""`BlockGraph`: a block's program as values and ops, the form in which what to keep can be decided.

In: a `BlockProgram` and the time of each of its ops. Out: a frozen graph; no torch, no numbers but bytes and ns.

A value is one version of a storage: an op that overwrites a storage makes its next version. After forward a storage
holds its last version only, so only that can be kept; an earlier one, if a replayed op reads it, is rebuilt in memory
of its own. Parameters and buffers are free: their last versions are at hand in backward whatever the block does. What
may be kept is what somebody can hold: inputs, storages that autograd saves, and the outputs of submodules. What is
there at the end of forward in any case (an input that autograd saves, an output that the next block saves) costs
nothing; an input that is not is paid for if the replay reads it.

Opaque ops are never replayed. A random op is replayed only together with the random ops before it, back to the last
moment at which the generator's state is known: the start of the block, or a tensor that autograd packed in between.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from trainfit.records import BlockProgram, Op

ALLOCATION_UNIT_BYTES = 512
"""The allocator hands out multiples of this; what a storage takes is rounded up to it."""


@dataclass(frozen=True)
class BlockGraph:
    """Values are numbered in the order in which they appear; `storage`, `nbytes` and `maker` are by value."""

    storage: tuple[int, ...]
    nbytes: tuple[int, ...]  # what keeping the value costs; 0 if it is there in any case
    maker: tuple[int | None, ...]  # the op that makes the value; None for what comes from outside
    is_free: tuple[bool, ...]  # at hand in backward at no cost
    is_input: tuple[bool, ...]  # at hand in backward at the cost of `nbytes` if the replay reads it
    is_keepable: tuple[bool, ...]  # by a decision
    needed: tuple[int, ...]  # values that backward reads, ascending, free ones left out
    reads: tuple[tuple[int, ...], ...]  # by op
    makes: tuple[tuple[int, ...], ...]  # by op
    time_ns: tuple[int, ...]  # by op
    is_opaque: tuple[bool, ...]  # by op: never replayed
    is_cast: tuple[bool, ...]  # by value: a parameter in another dtype, which autocast holds until forward ends
    requires: tuple[tuple[int, int], ...]  # (op, another that is replayed if it is)
    hidden_ns: int = 0  # so much of a replay runs while the GPU would wait for communication anyway

    @cached_property
    def saved_bytes(self) -> int:
        """What the block keeps when nothing is recomputed."""
        return sum(self.nbytes[value] for value in self.needed)

    @cached_property
    def saved_cast_bytes(self) -> int:
        """The part of `saved_bytes` that are parameters in another dtype."""
        return sum(self.nbytes[value] for value in self.needed if self.is_cast[value])


def build_graph(
    program: BlockProgram, time_ns: Sequence[int], resident: Collection[int] | None = None, hidden_ns: int = 0
) -> BlockGraph:
    """The graph of `program`, whose ops take `time_ns`, `hidden_ns` of which cost nothing.

    `resident` are the inputs and outputs that are there at the end of forward in any case; all of them when None.
    """
    if len(time_ns) != len(program.ops):
        raise ValueError(f"{len(program.ops)} ops, but {len(time_ns)} times")
    inputs, outputs = ({ref.storage for ref in refs} for refs in (program.inputs, program.outputs))
    parameters = {ref.storage for _, ref in program.parameters}
    there = inputs | outputs if resident is None else set(resident)
    paid = inputs - parameters - there
    free = inputs | parameters  # as far as decisions go
    storages, makers, current, reads, makes = _number_values(program, free)
    last = set(current.values())
    saved = {ref.storage for ref in program.saved}
    keepable = (saved | {storage for _, storage in program.submodule_outputs}) - free
    opaque = set(program.opaque)
    return BlockGraph(
        storage=tuple(storages),
        nbytes=tuple(0 if s in there else rounded_bytes(program.storage_bytes[s]) for s in storages),
        maker=tuple(makers),
        is_free=tuple(s in free - paid and value in last for value, s in enumerate(storages)),
        is_input=tuple(s in paid and value in last for value, s in enumerate(storages)),
        is_keepable=tuple(s in keepable and value in last for value, s in enumerate(storages)),
        needed=tuple(sorted(current[s] for s in saved - free)),
        reads=tuple(reads),
        makes=tuple(makes),
        time_ns=tuple(time_ns),
        is_opaque=tuple(op in opaque for op in range(len(program.ops))),
        is_cast=tuple(maker is not None and _is_cast(program, program.ops[maker]) for maker in makers),
        requires=_requires(program),
        hidden_ns=hidden_ns,
    )


def rounded_bytes(nbytes: int) -> int:
    """What the allocator hands out for `nbytes`."""
    return -(-nbytes // ALLOCATION_UNIT_BYTES) * ALLOCATION_UNIT_BYTES


def _number_values(
    program: BlockProgram, free: set[int]
) -> tuple[list[int], list[int | None], dict[int, int], list[tuple[int, ...]], list[tuple[int, ...]]]:
    storages: list[int] = []
    makers: list[int | None] = []
    current: dict[int, int] = {}  # storage -> its latest value

    def new_value(storage: int, maker: int | None) -> int:
        current[storage] = len(storages)
        storages.append(storage)
        makers.append(maker)
        return current[storage]

    for storage in sorted(free):
        new_value(storage, None)
    writes = dict(program.writes)
    reads, makes = [], []
    for index, op in enumerate(program.ops):
        written = writes.get(index, ())
        read = {ref.storage for ref in op.input_refs()}.union(written)
        for storage in sorted(read - current.keys()):
            new_value(storage, None)  # comes from outside and is no argument: nobody can find it again
        reads.append(tuple(sorted(current[storage] for storage in read)))
        made = dict.fromkeys([*written, *(ref.storage for ref in op.outputs if ref.storage not in current)])
        makes.append(tuple(new_value(storage, index) for storage in made))
    for storage in sorted({ref.storage for ref in program.saved} - current.keys()):
        new_value(storage, None)
    return storages, makers, current, reads, makes


def _is_cast(program: BlockProgram, op: Op) -> bool:
    parameters = {ref.storage for _, ref in program.parameters}
    return op.name == "aten._to_copy.default" and all(ref.storage in parameters for ref in op.input_refs())


def _requires(program: BlockProgram) -> tuple[tuple[int, int], ...]:
    random = sorted(program.random)
    pairs = []
    for before, op in pairwise(random):
        if not any(before < position <= op for position in program.saved_after):
            pairs.append((op, before))
    return tuple(pairs)
