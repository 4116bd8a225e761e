"""`Sketches`: the peaks of planned steps in a few milliseconds each, without writing or tracing them.

In: the unplanned step's `Trace`, `PlannedTraces` of it, the hidden memory of its kernels, the allocator's mode. Out:
the peaks of a choice. What happens to memory around each op is worked out once for the unplanned step, and once for
each way to run a block; a choice's is put together from these and played through the allocator. This file composes
`solve` and `simulate` and has no logic of theirs.

Invariant: the peaks are those of `simulate_memory` on the trace that `PlannedTraces.of` writes, if its steady steps
repeat once one of them reserves nothing and peaks where the one before did; the judge of a plan plays them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from trainfit.records import MemoryEvent, Section, Trace
from trainfit.simulate import AllocatorMode, CachingAllocator, HiddenMemory
from trainfit.simulate.allocator import Block
from trainfit.simulate.memory import STEADY_STEPS, Action, op_actions, traced_actions
from trainfit.solve import PlannedTraces, Way
from trainfit.solve.planned import Replay

_LOOK_EVERY = 64
"""Ops after which what is reserved is compared with the limit."""

_Flat = tuple[int | str, int, int]  # (storage or name, bytes or 0 for its end, stream)
_Moments = tuple[dict[int, list[_Flat]], dict[int | str, int]]  # what happens around each op, and what goes at which


class Peaks(NamedTuple):
    """Of a steady step."""

    allocated_bytes: int
    reserved_bytes: int


class Sketches:
    """The peaks of one step under any choice."""

    def __init__(self, trace: Trace, planned: PlannedTraces, hidden: HiddenMemory, allocator: AllocatorMode) -> None:
        self._trace = trace
        self._planned = planned
        self._hidden = hidden
        self._mode: AllocatorMode = allocator
        self._sections = {
            index: self._moments(trace.sections[index]) for index in {*trace.first_step, *trace.steady_step}
        }
        self._replays: dict[int, list[_Flat]] = {}  # by the identity of a replay, which `planned` keeps

    def peaks(self, ways: Mapping[str, Way], limit_bytes: int | None = None) -> Peaks:
        """The peaks of the step; once more is reserved than the limit, those until then."""
        streams = {index: self._stream(index, ways) for index in self._sections}
        first, steady = ([streams[i] for i in order] for order in (self._trace.first_step, self._trace.steady_step))
        allocator = CachingAllocator(self._mode)
        live: dict[int | str, Block] = {}
        peaks = Peaks(0, 0)
        for step in range(STEADY_STEPS + 1):
            allocator.reset_peaks()
            for stream in steady if step else first:
                _play(stream, allocator, live, limit_bytes)
            before, peaks = peaks, Peaks(allocator.peak_allocated_bytes, allocator.reserved_bytes)
            if peaks == before or (limit_bytes is not None and peaks.reserved_bytes > limit_bytes):
                break
        return peaks

    def _moments(self, section: Section) -> _Moments:
        """What happens around each op of the unplanned section; first what comes before its ops."""
        events: dict[int, list[MemoryEvent]] = {}
        for event in section.events:
            is_early = event.op < section.first_op or section.first_op == section.last_op
            events.setdefault(section.first_op - 1 if is_early else event.op, []).append(event)
        storages = self._trace.storages
        moments = {section.first_op - 1: _flat(traced_actions(storages, events.get(section.first_op - 1, ())))}
        for op in range(section.first_op, section.last_op):
            moments[op] = _flat(op_actions(self._trace.ops[op], events.get(op, ()), storages, self._hidden))
        return moments, {key: op for op, actions in moments.items() for key, nbytes, _ in actions if not nbytes}

    def _stream(self, section_index: int, ways: Mapping[str, Way]) -> list[list[_Flat]]:
        """What happens to memory in the planned section, op by op."""
        changes = self._planned.changes(section_index, ways)
        moments, freed_at = self._sections[section_index]
        moved = changes.instead.keys() | changes.held.keys()
        changed: dict[int, list[_Flat]] = {}
        for op in {*changes.replays, *changes.later, *(freed_at[storage] for storage in moved if storage in freed_at)}:
            actions = [action for replay in changes.replays.get(op, ()) for action in self._replay(replay)]
            for key, nbytes, stream in moments[op]:
                if nbytes or key not in moved:
                    actions.append((key, nbytes, stream))
                elif key in changes.instead:
                    actions.append((changes.instead[key], 0, stream))
            changed[op] = actions + [(storage, 0, 0) for storage in changes.later.get(op, ())]
        return [changed.get(op, actions) for op, actions in moments.items()]

    def _replay(self, replay: Replay) -> list[_Flat]:
        if id(replay) not in self._replays:
            storages = self._planned.storages
            actions: list[Action] = []
            for op, changes in replay:
                events = [MemoryEvent(0, storage, is_alloc) for storage, is_alloc in changes]
                actions += op_actions(op, events, storages, self._hidden)
            self._replays[id(replay)] = _flat(actions)
        return self._replays[id(replay)]


def _flat(actions: Sequence[Action]) -> list[_Flat]:
    return [(action.key, action.nbytes if action.is_alloc else 0, action.stream) for action in actions]


def _play(
    stream: list[list[_Flat]], allocator: CachingAllocator, live: dict[int | str, Block], limit_bytes: int | None
) -> None:
    """Allocations of what is there and ends of what is not do nothing, as in `simulate_memory`."""
    malloc, free = allocator.malloc, allocator.free
    for number, actions in enumerate(stream):
        for key, nbytes, stream_number in actions:
            if not nbytes:
                if key in live:
                    free(live.pop(key))
            elif key not in live:
                live[key] = malloc(nbytes, stream_number)
        if limit_bytes is not None and number % _LOOK_EVERY == 0 and allocator.reserved_bytes > limit_bytes:
            return
