"""(BlockProgram, BlockDecision) -> `ReplayPlan`: what to drop in forward, and which ops rebuild it in backward.

Pure, no torch. A value is one version of a storage: an op that overwrites a storage makes its next version. After
forward a storage holds its last version only, so at hand in backward are the last versions of inputs, parameters and
kept storages. Everything the replay writes it has made itself: an overwritten version is at hand nowhere, so it is
rebuilt first, in memory of its own.

Invariant: a saved value is dropped only if the listed ops rebuild it from what is at hand. Whatever the decision says,
a value that cannot be rebuilt (made by an opaque op, or from a version that is gone) is kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from trainfit.errors import BadDecision
from trainfit.records import BlockDecision, BlockProgram

AT_START = -1
"""In `ReplayPlan.random_starts`: the generator's state when the block's forward began."""


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What the executor does for one block; values are numbered as in `Values`, ops and saves as in the program."""

    ops: tuple[int, ...]  # to run, in program order
    frees: tuple[tuple[int, ...], ...]  # per op of `ops`, values to let go after it
    saved_values: tuple[int, ...]  # per saved tensor, its value
    dropped: tuple[bool, ...]  # per saved tensor
    rebuilt: tuple[tuple[int, int], ...]  # (value, how many saved tensors are views of it)
    from_saved: tuple[tuple[int, int], ...]  # (saved tensor, value): what the replay reads, held when autograd packs it
    from_inputs: tuple[tuple[int, int], ...]  # (input, value)
    from_parameters: tuple[tuple[str, int], ...]  # (name, value)
    from_submodules: tuple[tuple[str, int, int], ...]  # (submodule, how many of its tensors come before, value)
    random_starts: tuple[tuple[int, int], ...]  # (op, saved tensor at whose packing the generator is as before the op)
    kept: tuple[int, ...]  # storages held between forward and backward, asked for or not, inputs and parameters apart

    @property
    def from_kept(self) -> tuple[int, ...]:
        """The values that the replay reads of what the plan keeps."""
        return (*(value for _, value in self.from_saved), *(value for _, _, value in self.from_submodules))


@dataclass(frozen=True, slots=True)
class Values:
    """The versions of a program's storages, in the order in which they appear."""

    storage: tuple[int, ...]  # by value
    maker: tuple[int | None, ...]  # by value: the op that makes it; None for what was there before
    reads: tuple[tuple[int, ...], ...]  # by op
    makes: tuple[tuple[int, ...], ...]  # by op
    saved: tuple[int, ...]  # by saved tensor
    last: frozenset[int]  # the last version of each storage


def number_values(program: BlockProgram) -> Values:
    """Number the versions of the program's storages."""
    storages: list[int] = []
    makers: list[int | None] = []
    current: dict[int, int] = {}

    def new_value(storage: int, maker: int | None) -> int:
        current[storage] = len(storages)
        storages.append(storage)
        makers.append(maker)
        return current[storage]

    saved_after = program.saved_after or (len(program.ops),) * len(program.saved)
    saves: dict[int, list[int]] = {}
    for save, position in enumerate(saved_after):
        saves.setdefault(position, []).append(save)
    saved = [0] * len(program.saved)

    def number_saves(position: int) -> None:
        for save in saves.get(position, ()):
            storage = program.saved[save].storage
            saved[save] = current[storage] if storage in current else new_value(storage, None)

    for ref in (*program.inputs, *(ref for _, ref in program.parameters)):
        if ref.storage not in current:
            new_value(ref.storage, None)
    writes = dict(program.writes)
    reads, makes = [], []
    for index, op in enumerate(program.ops):
        number_saves(index)
        read = dict.fromkeys(ref.storage for ref in op.input_refs())
        reads.append(tuple(current[s] if s in current else new_value(s, None) for s in read))
        written = set(writes.get(index, ()))
        made = dict.fromkeys([*written, *(r.storage for r in op.outputs if r.storage not in current)])
        makes.append(tuple(new_value(s, index) for s in made))
    number_saves(len(program.ops))
    return Values(tuple(storages), tuple(makers), tuple(reads), tuple(makes), tuple(saved), frozenset(current.values()))


def keep_all(program: BlockProgram) -> BlockDecision:
    """The decision under which a block is as without a plan."""
    return BlockDecision(tuple(sorted({ref.storage for ref in program.saved})))


def plan_replay(program: BlockProgram, decision: BlockDecision) -> ReplayPlan:
    """How a block runs under `decision`."""
    values = number_values(program)
    sources = _sources(program, values)
    holders = _holders(program, values)
    of_storage = {values.storage[value]: value for value in values.last}
    wanted = {of_storage[s] for s in decision.kept if s in of_storage} & (holders.keys() - sources.keys())
    known = {ref.storage for ref in (*program.saved, *program.inputs)} | {s for _, s in program.submodule_outputs}
    known |= {ref.storage for _, ref in program.parameters}
    if unholdable := sorted(set(decision.kept) - known):
        raise BadDecision(
            f"the decision keeps storage {unholdable[0]}, which neither autograd saves nor a submodule returns",
            hint="make the plan again with this version of the model and of torch",
        )
    groups = _random_groups(program)
    at_hand, kept = _at_hand(program, values, sources.keys(), wanted, groups)
    dropped = tuple(value not in at_hand and value in values.last for value in values.saved)
    rebuilt = [value for value, is_dropped in zip(values.saved, dropped, strict=True) if is_dropped]
    ops = _ops_for(values, rebuilt, at_hand, groups)
    read = {value for op in ops for value in values.reads[op]} & at_hand
    held = read - sources.keys()
    fetched = [(source, v) for v, source in sources.items() if v in read]
    return ReplayPlan(
        ops=ops,
        frees=_frees(values, ops, at_hand, set(rebuilt)),
        saved_values=values.saved,
        dropped=dropped,
        rebuilt=tuple((value, rebuilt.count(value)) for value in dict.fromkeys(rebuilt)),
        from_saved=tuple(sorted((holders[v][1], v) for v in held if holders[v][0] == "")),
        from_inputs=tuple(sorted((source, v) for source, v in fetched if isinstance(source, int))),
        from_parameters=tuple(sorted((source, v) for source, v in fetched if isinstance(source, str))),
        from_submodules=tuple(sorted((*holders[v], v) for v in held if holders[v][0] != "")),
        random_starts=tuple((op, groups[op][1]) for op in ops if op in groups and groups[op][0][0] == op),
        kept=tuple(sorted(values.storage[v] for v in (kept & set(values.saved)) | held)),
    )


def structure_of(program: BlockProgram) -> str:
    """A fingerprint of what the block does that is the same for all input sizes: ops, and which storages they use.

    After the colon come two digits per op, by which the first op that differs can be named.
    """
    ops = [
        (op.name, tuple(r.storage for r in op.input_refs()), tuple(r.storage for r in op.outputs)) for op in program.ops
    ]
    facts = (
        tuple(ops),
        tuple(ref.storage for ref in program.saved),
        program.submodule_outputs,
        tuple((name, ref.storage) for name, ref in program.parameters),
    )
    return f"{_digest(facts, 16)}:{''.join(_digest(op, 2) for op in ops)}"


def _digest(facts: object, length: int) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:length]


def structural_difference(planned: str, program: BlockProgram) -> str | None:
    """The first thing in which `program` is not what was planned for, in words; None if it is that."""
    planned_whole, _, planned_ops = planned.partition(":")
    whole, _, ops = structure_of(program).partition(":")
    if whole == planned_whole:
        return None
    for index, op in enumerate(program.ops):
        if planned_ops[2 * index : 2 * index + 2] != ops[2 * index : 2 * index + 2]:
            place = f"in its {op.module}" if op.module else "in the block itself"
            return f"its op {index}, {op.name} {place}, is not the one that the plan was made for"
    if len(ops) != len(planned_ops):
        return f"it has {len(program.ops)} ops, and the plan was made for {len(planned_ops) // 2}"
    return "its ops are those that the plan was made for, but autograd saves other tensors of them"


def _sources(program: BlockProgram, values: Values) -> dict[int, int | str]:
    """Values that are at hand without being kept: the input's position, or the parameter's name."""
    last = {values.storage[value]: value for value in values.last}
    found: dict[int, int | str] = {}
    for position, ref in enumerate(program.inputs):
        found.setdefault(last[ref.storage], position)
    for name, ref in program.parameters:
        found.setdefault(last[ref.storage], name)
    return found


def _holders(program: BlockProgram, values: Values) -> dict[int, tuple[str, int]]:
    """Who can hold a value: ("", saved tensor) or (submodule, how many of its output tensors come before)."""
    last = {values.storage[value]: value for value in values.last}
    found: dict[int, tuple[str, int]] = {}
    for save, value in enumerate(values.saved):
        if value in values.last:
            found.setdefault(value, ("", save))
    counts: dict[str, int] = {}
    for name, storage in program.submodule_outputs:
        position = counts.get(name, 0)
        counts[name] = position + 1
        if storage in last:
            found.setdefault(last[storage], (name, position))
    return found


def _random_groups(program: BlockProgram) -> dict[int, tuple[tuple[int, ...], int]]:
    """Per random op, the ops that must be replayed with it and the save at which the first of them can start.

    The generator's state before an op can be read only when the block's forward begins and when autograd packs a
    tensor. Random ops with no packing between them are replayed together, in order.
    """
    random = sorted(program.random)
    saved_after = program.saved_after or (len(program.ops),) * len(program.saved)
    groups: dict[int, tuple[tuple[int, ...], int]] = {}
    members: list[int] = []
    start = AT_START
    for position, op in enumerate(random):
        if position:
            between = [save for save, after in enumerate(saved_after) if random[position - 1] < after <= op]
            if between:
                members, start = [], between[-1]
        members.append(op)
        groups[op] = (tuple(members), start)
    return groups


def _at_hand(
    program: BlockProgram,
    values: Values,
    sources: Iterable[int],
    wanted: set[int],
    groups: dict[int, tuple[tuple[int, ...], int]],
) -> tuple[set[int], set[int]]:
    """(what is at hand in backward, what of it is kept): the wanted values, and saved ones that nothing can rebuild."""
    at_hand = {*sources, *wanted}
    kept = set(wanted)
    rebuildable: set[int] = set()
    replayable: set[int] = set()
    opaque = set(program.opaque)
    saved = set(values.saved) & values.last
    lost = {v for v in saved if values.maker[v] is None} - at_hand
    at_hand |= lost
    kept |= lost
    for op, reads in enumerate(values.reads):
        mates = groups[op][0] if op in groups else (op,)
        if (
            op not in opaque
            and all(value in at_hand or value in rebuildable for value in reads)
            and all(mate in replayable or mate == op for mate in mates)
        ):
            replayable.add(op)
            rebuildable.update(values.makes[op])
        else:
            lost = {v for v in values.makes[op] if v in saved and v not in at_hand}
            at_hand |= lost
            kept |= lost
    return at_hand, kept


def _ops_for(
    values: Values, rebuilt: list[int], at_hand: set[int], groups: dict[int, tuple[tuple[int, ...], int]]
) -> tuple[int, ...]:
    """The ops that rebuild the values, in program order; dead work is left out."""
    ops: set[int] = set()
    pending = list(rebuilt)
    while pending:
        maker = values.maker[pending.pop()]
        assert maker is not None, "a dropped value is made by an op"
        for op in groups[maker][0] if maker in groups else (maker,):
            if op not in ops:
                ops.add(op)
                pending += [value for value in values.reads[op] if value not in at_hand]
    return tuple(sorted(ops))


def _frees(values: Values, ops: tuple[int, ...], at_hand: set[int], rebuilt: set[int]) -> tuple[tuple[int, ...], ...]:
    last_use: dict[int, int] = {}
    for op in ops:
        for value in (*values.reads[op], *values.makes[op]):
            last_use[value] = op
    return tuple(tuple(v for v, last in last_use.items() if last == op and v not in rebuilt) for op in ops)
