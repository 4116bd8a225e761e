"""`PlannedTraces`: the trace of the step under a choice, written down without running it.

In: the unplanned step's `Trace`, the blocks' programs, a choice. Out: the `Trace` that the planned model would give,
views left out: what a block drops goes in forward when nothing but autograd would hold it, the replay's ops come right
before the first op of backward that reads something dropped, and what they rebuild goes where the dropped storage
went. What is held for the replay's sake goes when the block's last dropped tensor has been used. A block may also be
`CHECKPOINTED` as torch.utils.checkpoint does it: its forward runs again, up to the last tensor that autograd saves.

This takes a tenth of the time of tracing the planned model. What a way to run one block changes about a section is
worked out once (`Edit`); `Changes` are the edits of all blocks together, for those who need the events only. Where the
executor does something else (a block that is called twice, a node that unpacks in an order of its own) the judge says
so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal

from trainfit.records import BlockProgram, Category, MemoryEvent, Op, Phase, Section, Storage, TensorRef, Trace
from trainfit.solve.memory import block_spans, follow_calls, own_storages
from trainfit.solve.replay import Option

CHECKPOINTED: Literal["checkpointed"] = "checkpointed"
_OPS_PER_DETACH = 2
"""Ops that `Tensor.detach` shows as in a trace."""
Way = Option | Literal["checkpointed"]

Steps = list[tuple[Op, list[tuple[int, bool]]]]
"""Ops with their events: (storage, is it an allocation)."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What is run before an op. Its steps number the storages that they make from 0; equal blocks share them."""

    steps: Steps
    first_storage: int  # the number of the first of them among `PlannedTraces.storages`

    def __iter__(self) -> Iterator[tuple[Op, list[tuple[int, bool]]]]:
        for op, events in self.steps:
            yield op, [(self.first_storage + storage, is_alloc) for storage, is_alloc in events]


@dataclass(frozen=True, slots=True)
class _Template:
    """The replay of any block that does the same."""

    steps: Steps
    storages: list[Storage]
    made: dict[int, int]  # the program's storage -> its number among these

    def placed(self, storages: list[Storage]) -> tuple[Replay, dict[int, int]]:
        """With storages of its own, which are added to those."""
        first = len(storages)
        storages += self.storages
        return Replay(self.steps, first), {storage: first + number for storage, number in self.made.items()}


@dataclass(frozen=True, slots=True)
class _Call:
    """One block in one section of the unplanned trace."""

    program: BlockProgram
    numbers: dict[int, int]  # the program's storage -> the trace's
    positions: list[int]  # the program's op -> the trace's; for casts that an earlier call made, that call's
    first_forward: int  # no op before it is the call's own
    last_forward: int  # of the section
    first_backward: int  # the first op that can be of the call's backward
    last_backward: int  # no op from this one on is of it
    made_before: frozenset[int]  # the trace's storages that an earlier call knows too


@dataclass(slots=True)
class Edit:
    """What a way to run one block changes about a section. Storages beyond the trace's are `PlannedTraces.storages`."""

    instead: dict[int, int] = field(default_factory=dict)  # storage -> the one that is freed in its place
    later: dict[int, list[int]] = field(default_factory=dict)  # op -> storages that are freed after it besides
    held: dict[int, int] = field(default_factory=dict)  # storage -> the op after which it is freed, not where it was
    replay: tuple[int, Replay] | None = None  # an op, and what comes before it


@dataclass(slots=True)
class Changes:
    """The edits of a section's blocks together."""

    instead: dict[int, int] = field(default_factory=dict)
    later: dict[int, list[int]] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)
    replays: dict[int, list[Replay]] = field(default_factory=dict)  # op -> what comes before it

    def add(self, edit: Edit) -> None:
        """Of two blocks that hold the same storage the first in forward, and so the last in backward, lets it go."""
        self.instead |= edit.instead
        for op, storages in edit.later.items():
            self.later.setdefault(op, []).extend(storages)
        for storage, op in edit.held.items():
            if storage not in self.held:
                self.held[storage] = op
                self.later.setdefault(op, []).append(storage)
        if edit.replay is not None:
            self.replays.setdefault(edit.replay[0], []).append(edit.replay[1])


class PlannedTraces:
    """Writes planned traces of one step."""

    def __init__(self, trace: Trace, programs: Mapping[str, BlockProgram]) -> None:
        self._trace = trace
        self.storages = list(trace.storages)
        """Those of the trace, and after them those that the replays of the ways asked for so far make."""
        self._sections = [_SectionEditor(trace, section, programs, self.storages) for section in trace.sections]

    def knows(self, block: str) -> bool:
        """Whether the block's program was found in the trace, wherever the block runs."""
        return all(editor.knows(block) for editor in self._sections)

    def of(self, choice: Mapping[str, Way]) -> Trace:
        """The planned step; blocks that are not in `choice` keep everything."""
        ops: list[Op] = []
        places: dict[int, int] = {}
        sections = tuple(editor.write(choice, ops, places) for editor in self._sections)
        return replace(self._trace, ops=tuple(ops), storages=tuple(self.storages), sections=sections)

    def changes(self, section_index: int, choice: Mapping[str, Way]) -> Changes:
        """What the choice changes about a section's events."""
        return self._sections[section_index].changes(choice)


class _SectionEditor:
    def __init__(
        self, trace: Trace, section: Section, programs: Mapping[str, BlockProgram], storages: list[Storage]
    ) -> None:
        self._trace = trace
        self._section = section
        self._storages = storages
        self._edits: dict[tuple[str, tuple[int, ...] | None], list[Edit]] = {}  # by block and what it keeps; per call
        self._unpacked: dict[tuple[int, int], int] = {}
        self._templates: dict[tuple[int, tuple[int, ...], frozenset[int]], _Template] = {}  # by program, kept, dropped
        self._freed_at = {event.storage: event.op for event in section.events if not event.is_alloc}
        self._calls: dict[str, list[_Call]] = {}  # a block may be called several times
        self._reads: dict[int, list[int]] = {}  # storage -> the ops of backward that read it
        backward = range(section.first_op, section.last_op)
        self._spans = spans = block_spans(trace, section, list(programs))
        if not spans:
            return
        last_forward = max(op for op in backward if trace.ops[op].phase is Phase.FORWARD)
        for index in backward:
            if trace.ops[index].phase is Phase.BACKWARD:
                for ref in trace.ops[index].input_refs():
                    self._reads.setdefault(ref.storage, []).append(index)
        for name, span in spans.items():
            found = follow_calls(programs[name], trace, span, programs.keys() - {name})
            first_op = section.first_op
            ends = [section.first_op, *(1 + max(positions) for _, positions in found)]
            for number_of_call, (call, start) in reversed(list(enumerate(zip(found, ends, strict=False)))):
                # Parameters are read by all calls of a block: an earlier call's backward comes after this one's.
                read_last = (self._reads.get(number, [0])[-1] for number in own_storages(programs[name], call[0]))
                last_op = 1 + max(read_last, default=0)
                before = frozenset(number for numbers, _ in found[:number_of_call] for number in numbers.values())
                there = _Call(programs[name], *call, start, last_forward, first_op, last_op, before)
                self._calls.setdefault(name, []).insert(0, there)
                first_op = last_op

    def knows(self, block: str) -> bool:
        return block in self._calls or block not in self._spans

    def changes(self, choice: Mapping[str, Way]) -> Changes:
        changes = Changes()
        for name, way in choice.items():
            if name not in self._calls or not (way == CHECKPOINTED or way.replayed):
                continue
            key = (name, None if way == CHECKPOINTED else way.kept)
            if key not in self._edits:
                self._edits[key] = [self._edit(call, way) for call in self._calls[name]]
            for edit in self._edits[key]:
                changes.add(edit)
        return changes

    def write(self, choice: Mapping[str, Way], ops: list[Op], places: dict[int, int]) -> Section:
        """Append the section's ops to `ops`; `places` are where the unplanned trace's ops have come to lie."""
        section = self._section
        changes = self.changes(choice)
        first_op = len(ops)
        events: list[MemoryEvent] = []
        position = 0
        for index in chain([section.first_op - 1], range(section.first_op, section.last_op)):
            for op, new in chain.from_iterable(changes.replays.get(index, ())):
                events += [MemoryEvent(len(ops), storage, is_alloc) for storage, is_alloc in new]
                ops.append(op)
            shifted = len(ops) if index >= section.first_op else first_op - 1
            while position < len(section.events) and section.events[position].op <= index:
                event = section.events[position]
                position += 1
                storage = event.storage
                if not event.is_alloc and storage in changes.instead:
                    storage = changes.instead[storage]
                elif not event.is_alloc and storage in changes.held:
                    continue
                events.append(MemoryEvent(shifted, storage, event.is_alloc, event.stream))
            events += [MemoryEvent(shifted, storage, False) for storage in changes.later.get(index, ())]
            if index >= section.first_op:
                op = self._trace.ops[index]
                places[index] = len(ops)
                # An op waits for others by how far back they are: what lies between may have grown.
                ops.append(replace(op, waits=_shifted(op.waits, index, places)) if op.waits else op)
        events += [replace(event, op=len(ops) - 1) for event in section.events[position:]]
        return Section(section.name, first_op, len(ops), tuple(events))

    def _edit(self, call: _Call, way: Way) -> Edit:
        edit = Edit()
        program, numbers = call.program, call.numbers
        inputs, outputs = ({ref.storage for ref in refs} for refs in (program.inputs, program.outputs))
        saved = {ref.storage for ref in program.saved}
        kept = set() if way == CHECKPOINTED else set(way.kept)
        parameters = {ref.storage for _, ref in program.parameters}
        dropped = saved - inputs - parameters - kept
        dropped = {storage for storage in dropped if numbers.get(storage) in self._freed_at}
        if not dropped:
            return edit
        unpacked = dropped | (saved & parameters & numbers.keys()) if way == CHECKPOINTED else dropped
        start = min(self._first_unpacked(numbers[storage], call.first_backward) for storage in unpacked)
        end = max(self._done_at(call, numbers[storage]) for storage in dropped)
        replay, rebuilt = self._template(call, way, frozenset(dropped)).placed(self._storages)
        edit.replay = (start, replay)
        for storage in dropped & rebuilt.keys():
            if storage in outputs:
                # Others hold it as well: the copy that the replay makes goes with the last node of this block.
                edit.later.setdefault(self._freed_at[numbers[storage]], []).append(rebuilt[storage])
                continue
            if numbers[storage] in call.made_before:
                # A cast of a parameter: the earlier call drops it, and this one's copy goes with its own backward.
                edit.later.setdefault(self._done_at(call, numbers[storage]), []).append(rebuilt[storage])
                continue
            edit.instead[numbers[storage]] = rebuilt[storage]
            freed_after = program.freed_after[storage] if program.freed_after else None
            last_use = call.last_forward if freed_after is None else call.positions[max(0, freed_after - 1)]
            edit.later.setdefault(last_use, []).append(numbers[storage])
        read = inputs if way == CHECKPOINTED else _read_by(program, way) & inputs
        for storage in read | (kept - saved):
            number = numbers.get(storage)
            freed_at = self._freed_at.get(number) if number is not None else None
            if number is not None and freed_at is not None and freed_at < end:
                edit.held.setdefault(number, end)
        return edit

    def _template(self, call: _Call, way: Way, dropped: frozenset[int]) -> _Template:
        if way == CHECKPOINTED:
            return _rerun(call, self._trace.ops, dropped)
        key = id(call.program), way.kept, dropped
        if key not in self._templates:
            self._templates[key] = _replay(call.program, way, dropped)
        return self._templates[key]

    def _done_at(self, call: _Call, storage: int) -> int:
        """The op after which the call's backward needs the storage no more."""
        if storage not in call.made_before:
            return self._freed_at[storage]
        reads = [op for op in self._reads.get(storage, ()) if call.first_backward <= op < call.last_backward]
        return reads[-1] if reads else call.last_backward - 1

    def _first_unpacked(self, storage: int, first_op: int) -> int:
        if (storage, first_op) not in self._unpacked:
            self._unpacked[storage, first_op] = self._unpacked_at(storage, first_op)
        return self._unpacked[storage, first_op]

    def _unpacked_at(self, storage: int, first_op: int) -> int:
        """The first op of the node that reads the storage in backward: ops of one node share the gradient."""
        never = self._freed_at.get(storage, self._section.last_op - 1)
        index = next((op for op in self._reads.get(storage, ()) if op >= first_op), never)
        ops = self._trace.ops
        mine = {ref.storage for ref in ops[index].input_refs()}
        before = index - 1
        while before > self._section.first_op and ops[before].phase is Phase.BACKWARD:
            op = ops[before]
            if op.module != ops[index].module:
                break
            reads = {ref.storage for ref in op.input_refs()}
            made = {ref.storage for ref in op.outputs}
            if made <= reads:  # a view
                before -= 1
                continue
            if not reads & mine - {storage} or made & mine:
                break
            index = before
            before -= 1
        return index


def _read_by(program: BlockProgram, option: Option) -> set[int]:
    return {ref.storage for op in option.replayed for ref in program.ops[op].input_refs()}


def _rerun(call: _Call, ops: Sequence[Op], dropped: Collection[int]) -> _Template:
    """The whole forward again, up to the last tensor that is saved; what is not saved goes as it goes in forward."""
    program = call.program
    made: dict[int, int] = {}
    storages: list[Storage] = []
    replay: Steps = []
    num_ops = max(program.saved_after, default=len(program.ops))
    number_of = {position: number for number, position in enumerate(call.positions[:num_ops])}
    for position in _with_views(call.positions[:num_ops], call.first_forward):
        events: list[tuple[int, bool]] = []
        number = number_of.get(position)  # None for a view
        if number is not None:
            events += _allocated(program, number, made, storages)
            for storage, there in made.items():
                freed_after = program.freed_after[storage]
                is_last = number + 1 == num_ops and (freed_after is None or freed_after > num_ops)
                if storage not in dropped and (freed_after == number + 1 or is_last):
                    events.append((there, False))
        replay.append((replace(ops[position], phase=Phase.RECOMPUTE, waits=()), events))
    detached = replace(_view(program.saved[0]), name="aten.detach.default", phase=Phase.BACKWARD)
    replay += [(detached, [])] * (_OPS_PER_DETACH * len(program.saved))
    return _Template(replay, storages, made)


def _with_views(positions: Sequence[int], first_own: int) -> list[int]:
    """The positions and those between them, where views are; what an earlier call did comes alone."""
    found: list[int] = []
    before: int | None = None
    for position in positions:
        if position < first_own:
            found.append(position)
            continue
        found += range(position if before is None else before + 1, position + 1)
        before = position
    return found


def _allocated(
    program: BlockProgram, number: int, made: dict[int, int], storages: list[Storage]
) -> list[tuple[int, bool]]:
    """The events of what the program's op makes, which is added to `made` and `storages`."""
    events = []
    writes = dict(program.writes).get(number, ())
    for ref in program.ops[number].outputs:
        if ref.storage not in made and ref.storage not in writes:
            made[ref.storage] = len(storages)
            storages.append(Storage(program.storage_bytes[ref.storage], Category.TEMPORARIES))
            events.append((made[ref.storage], True))
    return events


def _replay(program: BlockProgram, option: Option, dropped: Collection[int]) -> _Template:
    """The replay's ops with their events, and the storages that it makes by the program's number."""
    last_use: dict[int, int] = {}
    for number in option.replayed:
        op = program.ops[number]
        for ref in (*op.input_refs(), *op.outputs):
            last_use[ref.storage] = number
    at_hand = (*program.inputs, *(ref for _, ref in program.parameters), *program.saved)
    bases = {ref.storage: ref for ref in reversed(at_hand)}  # the tensors that stand for storages
    made: dict[int, int] = {}
    storages: list[Storage] = []
    sources = _read_by(program, option) & {ref.storage for ref in (*program.inputs, *dict(program.parameters).values())}
    detached = [replace(_view(bases[storage]), name="aten.detach.default") for storage in sorted(sources)]
    replay: Steps = [(op, []) for op in detached for _ in range(_OPS_PER_DETACH)]
    for number in option.replayed:
        op = program.ops[number]
        replay += [(_view(ref), []) for ref in op.input_refs() if ref != bases.get(ref.storage, ref)]
        events = _allocated(program, number, made, storages)
        for ref in reversed(op.outputs):
            if (made.get(ref.storage), True) in events:
                bases[ref.storage] = ref
        gone = [s for s in made if last_use[s] == number and s not in dropped]
        replay.append((replace(op, phase=Phase.RECOMPUTE, module=""), events + [(made[s], False) for s in gone]))
    return _Template(replay, storages, made)


def _shifted(waits: tuple[int, ...], index: int, places: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(places[index] - places[index - back] for back in waits if index - back in places)


def _view(ref: TensorRef) -> Op:
    return Op("aten.as_strided.default", Phase.RECOMPUTE, "", (ref,), (), (ref,))
