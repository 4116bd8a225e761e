"""`PlannedTraces`: the trace of the step under a choice, written down without running it.

In: the unplanned step's `Trace`, the blocks' programs, a choice. Out: the `Trace` that the planned model would give,
views left out: what a block drops goes in forward when nothing but autograd would hold it, the replay's ops come right
before the first op of backward that reads something dropped, and what they rebuild goes where the dropped storage
went. What is held for the replay's sake goes when the block's last dropped tensor has been used. A block may also be
`CHECKPOINTED` as torch.utils.checkpoint does it: its forward runs again, up to the last tensor that autograd saves.

This takes a tenth of the time of tracing the planned model. Where the executor does something else (a block that is
called twice, a node that unpacks in an order of its own) the judge says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

from trainfit.records import BlockProgram, Category, MemoryEvent, Op, Phase, Section, Storage, TensorRef, Trace
from trainfit.solve.memory import block_spans, follow
from trainfit.solve.replay import Option

CHECKPOINTED: Literal["checkpointed"] = "checkpointed"
_OPS_PER_DETACH = 2
"""Ops that `Tensor.detach` shows as in a trace."""
Way = Option | Literal["checkpointed"]

_Replay = list[tuple[Op, list[tuple[int, bool]]]]  # ops with their events: (storage, is it an allocation)


@dataclass(frozen=True, slots=True)
class _Call:
    """One block in one section of the unplanned trace."""

    program: BlockProgram
    numbers: dict[int, int]  # the program's storage -> the trace's
    positions: list[int]  # the program's op -> the trace's
    last_forward: int  # of the section


class PlannedTraces:
    """Writes planned traces of one step."""

    def __init__(self, trace: Trace, programs: Mapping[str, BlockProgram]) -> None:
        self._trace = trace
        self._sections = [_SectionEditor(trace, section, programs) for section in trace.sections]

    def knows(self, block: str) -> bool:
        """Whether the block's program was found in the trace, wherever the block runs."""
        return all(editor.knows(block) for editor in self._sections)

    def of(self, choice: Mapping[str, Way]) -> Trace:
        """The planned step; blocks that are not in `choice` keep everything."""
        storages = list(self._trace.storages)
        ops: list[Op] = []
        sections = []
        for editor in self._sections:
            sections.append(editor.write(choice, ops, storages))
        return replace(self._trace, ops=tuple(ops), storages=tuple(storages), sections=tuple(sections))


class _SectionEditor:
    def __init__(self, trace: Trace, section: Section, programs: Mapping[str, BlockProgram]) -> None:
        self._trace = trace
        self._section = section
        self._freed_at = {event.storage: event.op for event in section.events if not event.is_alloc}
        self._calls: dict[str, _Call] = {}
        self._first_reads: dict[int, int] = {}  # storage -> the first op of backward that reads it
        backward = range(section.first_op, section.last_op)
        self._spans = spans = block_spans(trace, section, list(programs))
        if not spans:
            return
        last_forward = max(op for op in backward if trace.ops[op].phase is Phase.FORWARD)
        for name, span in spans.items():
            found = follow(programs[name], trace.ops, range(span.first_forward, span.last_forward + 1))
            if found is not None:
                self._calls[name] = _Call(programs[name], *found, last_forward)
        for index in reversed(backward):
            if trace.ops[index].phase is Phase.BACKWARD:
                for ref in trace.ops[index].input_refs():
                    self._first_reads[ref.storage] = index

    def knows(self, block: str) -> bool:
        return block in self._calls or block not in self._spans

    def write(self, choice: Mapping[str, Way], ops: list[Op], storages: list[Storage]) -> Section:
        """Append the section's ops to `ops` and new storages to `storages`."""
        section = self._section
        gone: set[int] = set()  # storages whose free is not where it was
        instead: dict[int, int] = {}  # storage -> the one that is freed in its place
        later: dict[int, list[int]] = {}  # op -> storages that are freed after it besides
        replays: dict[int, _Replay] = {}  # op -> what comes before it
        for name, way in choice.items():
            if name in self._calls and (way == CHECKPOINTED or way.replayed):
                self._edit(self._calls[name], way, storages, gone, instead, later, replays)
        first_op = len(ops)
        events: list[MemoryEvent] = []
        position = 0
        for index in chain([section.first_op - 1], range(section.first_op, section.last_op)):
            for op, changes in replays.get(index, ()):
                events += [MemoryEvent(len(ops), storage, is_alloc) for storage, is_alloc in changes]
                ops.append(op)
            shifted = len(ops) if index >= section.first_op else first_op - 1
            while position < len(section.events) and section.events[position].op <= index:
                event = section.events[position]
                position += 1
                if not event.is_alloc and event.storage in instead:
                    event = replace(event, storage=instead[event.storage])
                elif not event.is_alloc and event.storage in gone:
                    continue
                events.append(MemoryEvent(shifted, event.storage, event.is_alloc))
            events += [MemoryEvent(shifted, storage, False) for storage in later.get(index, ())]
            if index >= section.first_op:
                ops.append(self._trace.ops[index])
        events += [MemoryEvent(len(ops) - 1, event.storage, event.is_alloc) for event in section.events[position:]]
        return Section(section.name, first_op, len(ops), tuple(events))

    def _edit(
        self,
        call: _Call,
        way: Way,
        storages: list[Storage],
        gone: set[int],
        instead: dict[int, int],
        later: dict[int, list[int]],
        replays: dict[int, _Replay],
    ) -> None:
        program, numbers = call.program, call.numbers
        inputs, outputs = ({ref.storage for ref in refs} for refs in (program.inputs, program.outputs))
        saved = {ref.storage for ref in program.saved}
        kept = set() if way == CHECKPOINTED else set(way.kept)
        parameters = {ref.storage for _, ref in program.parameters}
        dropped = saved - inputs - parameters - kept
        dropped = {storage for storage in dropped if numbers.get(storage) in self._freed_at}
        if not dropped:
            return
        unpacked = dropped | (saved & parameters & numbers.keys()) if way == CHECKPOINTED else dropped
        start = min(self._unpacked_at(numbers[storage]) for storage in unpacked)
        end = max(self._freed_at[numbers[storage]] for storage in dropped)
        if way == CHECKPOINTED:
            replay, rebuilt = _rerun(call, self._trace.ops, dropped, storages)
        else:
            replay, rebuilt = _replay(program, way, dropped, storages)
        replays.setdefault(start, []).extend(replay)
        for storage in dropped & rebuilt.keys():
            if storage in outputs:
                # Others hold it as well: the copy that the replay makes goes with the last node of this block.
                later.setdefault(self._freed_at[numbers[storage]], []).append(rebuilt[storage])
                continue
            instead[numbers[storage]] = rebuilt[storage]
            freed_after = program.freed_after[storage] if program.freed_after else None
            last_use = call.last_forward if freed_after is None else call.positions[max(0, freed_after - 1)]
            later.setdefault(last_use, []).append(numbers[storage])
        read = inputs if way == CHECKPOINTED else _read_by(program, way) & inputs
        for storage in read | (kept - saved):
            number = numbers.get(storage)
            freed_at = self._freed_at.get(number) if number is not None else None
            if number is not None and freed_at is not None and freed_at < end and number not in gone:
                gone.add(number)
                later.setdefault(end, []).append(number)

    def _unpacked_at(self, storage: int) -> int:
        """The first op of the node that reads the storage in backward: ops of one node share the gradient."""
        index = self._first_reads.get(storage, self._freed_at.get(storage, self._section.last_op - 1))
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


def _rerun(
    call: _Call, ops: Sequence[Op], dropped: set[int], storages: list[Storage]
) -> tuple[_Replay, dict[int, int]]:
    """The whole forward again, up to the last tensor that is saved; what is not saved goes as it goes in forward."""
    program = call.program
    made: dict[int, int] = {}
    replay: _Replay = []
    num_ops = max(program.saved_after, default=len(program.ops))
    number_of = {position: number for number, position in enumerate(call.positions[:num_ops])}
    for position in range(call.positions[0], call.positions[num_ops - 1] + 1):
        events: list[tuple[int, bool]] = []
        number = number_of.get(position)  # None for a view
        if number is not None:
            events += _allocated(program, number, made, storages)
            for storage, there in made.items():
                freed_after = program.freed_after[storage]
                is_last = number + 1 == num_ops and (freed_after is None or freed_after > num_ops)
                if storage not in dropped and (freed_after == number + 1 or is_last):
                    events.append((there, False))
        replay.append((replace(ops[position], phase=Phase.RECOMPUTE), events))
    detached = replace(_view(program.saved[0]), name="aten.detach.default", phase=Phase.BACKWARD)
    replay += [(detached, [])] * (_OPS_PER_DETACH * len(program.saved))
    return replay, made


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


def _replay(
    program: BlockProgram, option: Option, dropped: set[int], storages: list[Storage]
) -> tuple[_Replay, dict[int, int]]:
    """The replay's ops with their events, and the storages that it makes by the program's number."""
    last_use: dict[int, int] = {}
    for number in option.replayed:
        op = program.ops[number]
        for ref in (*op.input_refs(), *op.outputs):
            last_use[ref.storage] = number
    at_hand = (*program.inputs, *(ref for _, ref in program.parameters), *program.saved)
    bases = {ref.storage: ref for ref in reversed(at_hand)}  # the tensors that stand for storages
    made: dict[int, int] = {}
    sources = _read_by(program, option) & {ref.storage for ref in (*program.inputs, *dict(program.parameters).values())}
    detached = [replace(_view(bases[storage]), name="aten.detach.default") for storage in sorted(sources)]
    replay: _Replay = [(op, []) for op in detached for _ in range(_OPS_PER_DETACH)]
    for number in option.replayed:
        op = program.ops[number]
        replay += [(_view(ref), []) for ref in op.input_refs() if ref != bases.get(ref.storage, ref)]
        events = _allocated(program, number, made, storages)
        for ref in reversed(op.outputs):
            if (made.get(ref.storage), True) in events:
                bases[ref.storage] = ref
        gone = [s for s in made if last_use[s] == number and s not in dropped]
        replay.append((replace(op, phase=Phase.RECOMPUTE, module=""), events + [(made[s], False) for s in gone]))
    return replay, made


def _view(ref: TensorRef) -> Op:
    return Op("aten.as_strided.default", Phase.RECOMPUTE, "", (ref,), (), (ref,))
