"""`Sketches`: the peaks of planned steps in a few milliseconds each, without writing or tracing them.

In: the unplanned step's `Trace`, `PlannedTraces` of it, the hidden memory of its kernels, the allocator's mode. Out:
the peaks of a choice. What happens to memory around each op is worked out once for the unplanned step, and once for
each way to run a block; a choice's is put together from these and played through the allocator. This file composes
`solve` and `simulate` and has no logic of theirs.

Invariant: the peaks are those of `simulate_memory` on the trace that `PlannedTraces.of` writes, if its steady steps
repeat once one of them reserves nothing and peaks where the one before did; the judge of a plan plays them all. In a
search, which asks what is reserved within a limit, only the first of them is played: later ones rarely reserve more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from trainfit.records import MemoryEvent, Section, Trace
from trainfit.simulate import AllocatorMode, CachingAllocator, HiddenMemory
from trainfit.simulate.allocator import Block, Pool, PoolKey, place
from trainfit.simulate.memory import STEADY_STEPS, Action, op_actions, traced_actions
from trainfit.solve import PlannedTraces, Way
from trainfit.solve.planned import Replay

_LOOK_EVERY = 64
"""Ops after which what is reserved is compared with the limit."""

_Flat = tuple[int | str, int, PoolKey]  # (storage or name, the block's bytes or 0 for its end, where it comes from)
_Stream = list[list[_Flat]]  # what happens around each op of a section, in order
_Moments = tuple[_Stream, dict[int | str, int]]  # what happens before the first op and around each, what goes at which
_NO_POOL: PoolKey = (0, False)
"""Of an end: a block goes back to where it came from."""


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
        # By the identity of a replay and of its steps, which `planned` keeps.
        self._replays: dict[int, list[_Flat]] = {}
        self._replay_steps: dict[int, list[_Flat]] = {}

    def peaks(self, ways: Mapping[str, Way]) -> Peaks:
        """The peaks of the step."""
        first, steady = self._streams(ways)
        player = _Player(self._mode)
        peaks = Peaks(0, 0)
        for step in range(STEADY_STEPS + 1):
            player.peak_allocated_bytes = player.allocated_bytes
            for stream in steady if step else first:
                player.play(stream)
            before, peaks = peaks, Peaks(player.peak_allocated_bytes, player.reserved_bytes)
            if peaks == before:
                break
        return peaks

    def reserved_within(self, ways: Mapping[str, Way], limit_bytes: int) -> int:
        """What the first step and a steady one reserve; once it is more than the limit, what is reserved by then."""
        player = _Player(self._mode)
        for step in self._streams(ways):
            for stream in step:
                player.play(stream, limit_bytes)
                if player.reserved_bytes > limit_bytes:
                    return player.reserved_bytes
        return player.reserved_bytes

    def slack_bytes(self, ways: Mapping[str, Way]) -> dict[int, tuple[int, int]]:
        """By size: how many blocks are taken for it in the first step and a steady one, and by how much they are
        larger than that in all."""
        allocator, live = CachingAllocator(self._mode), dict[int | str, Block]()
        slack: dict[int, tuple[int, int]] = {}
        for stream in chain.from_iterable(self._streams(ways)):
            for key, nbytes, (number, _) in chain.from_iterable(stream):
                if not nbytes:
                    if key in live:
                        allocator.free(live.pop(key))
                elif key not in live:
                    live[key] = allocator.malloc(nbytes, number)
                    blocks, more_bytes = slack.get(nbytes, (0, 0))
                    slack[nbytes] = blocks + 1, more_bytes + live[key].size_bytes - nbytes
        return slack

    def _streams(self, ways: Mapping[str, Way]) -> tuple[list[_Stream], list[_Stream]]:
        """What happens to memory in the first step and in steady ones, section by section."""
        streams = {index: self._stream(index, ways) for index in self._sections}
        first, steady = ([streams[i] for i in order] for order in (self._trace.first_step, self._trace.steady_step))
        return first, steady

    def _moments(self, section: Section) -> _Moments:
        """What happens around each op of the unplanned section; first what comes before its ops."""
        events: dict[int, list[MemoryEvent]] = {}
        for event in section.events:
            is_early = event.op < section.first_op or section.first_op == section.last_op
            events.setdefault(section.first_op - 1 if is_early else event.op, []).append(event)
        storages, before = self._trace.storages, section.first_op - 1
        moments = [_flat(traced_actions(storages, events.get(before, ())))]
        for op in range(section.first_op, section.last_op):
            moments.append(_flat(op_actions(self._trace.ops[op], events.get(op, ()), storages, self._hidden)))
        return moments, {
            key: op for op, actions in enumerate(moments, before) for key, nbytes, _ in actions if not nbytes
        }

    def _stream(self, section_index: int, ways: Mapping[str, Way]) -> _Stream:
        """What happens to memory in the planned section, op by op."""
        changes = self._planned.changes(section_index, ways)
        moments, freed_at = self._sections[section_index]
        moved = changes.instead.keys() | changes.held.keys()
        stream, before = moments.copy(), self._trace.sections[section_index].first_op - 1
        for op in {*changes.replays, *changes.later, *(freed_at[storage] for storage in moved if storage in freed_at)}:
            actions = [action for replay in changes.replays.get(op, ()) for action in self._replay(replay)]
            for key, nbytes, pool in moments[op - before]:
                if nbytes or key not in moved:
                    actions.append((key, nbytes, pool))
                elif key in changes.instead:
                    actions.append((changes.instead[key], 0, pool))
            stream[op - before] = actions + [(storage, 0, _NO_POOL) for storage in changes.later.get(op, ())]
        return stream

    def _replay(self, replay: Replay) -> list[_Flat]:
        if id(replay) not in self._replays:
            steps, first = self._steps(replay), replay.first_storage
            own = ((key if isinstance(key, str) else first + key, nbytes, pool) for key, nbytes, pool in steps)
            self._replays[id(replay)] = list(own)
        return self._replays[id(replay)]

    def _steps(self, replay: Replay) -> list[_Flat]:
        """What happens in the replay's steps, its storages being numbered from 0."""
        key = id(replay.steps)
        if key not in self._replay_steps:
            storages = self._planned.storages[replay.first_storage :]
            actions: list[Action] = []
            for op, changes in replay.steps:
                events = [MemoryEvent(0, storage, is_alloc) for storage, is_alloc in changes]
                actions += op_actions(op, events, storages, self._hidden)
            self._replay_steps[key] = _flat(actions)
        return self._replay_steps[key]


def _flat(actions: Sequence[Action]) -> list[_Flat]:
    return [
        (action.key, *place(action.nbytes, action.stream)) if action.is_alloc else (action.key, 0, _NO_POOL)
        for action in actions
    ]


class _Player:
    """Allocations of what is there and ends of what is not do nothing, as in `simulate_memory`."""

    def __init__(self, mode: AllocatorMode) -> None:
        self._allocator = CachingAllocator(mode)
        self._pools: dict[PoolKey, Pool] = {}
        self._live: dict[int | str, Block] = {}
        self.allocated_bytes = self.peak_allocated_bytes = 0

    @property
    def reserved_bytes(self) -> int:
        return self._allocator.reserved_bytes

    def play(self, stream: _Stream, limit_bytes: int | None = None) -> None:
        """The stream, not much further than to where more than the limit is reserved."""
        pools, live = self._pools, self._live
        allocated_bytes, peak_bytes = self.allocated_bytes, self.peak_allocated_bytes
        for start in range(0, len(stream), _LOOK_EVERY):
            for key, nbytes, pool_key in chain.from_iterable(stream[start : start + _LOOK_EVERY]):
                if not nbytes:
                    if key in live:
                        block = live.pop(key)
                        allocated_bytes -= block.size_bytes
                        block.pool.give_back(block)
                elif key not in live:
                    pool = pools.get(pool_key)
                    if pool is None:
                        pool = pools[pool_key] = self._allocator.pool(pool_key)
                    live[key] = block = pool.take(nbytes)
                    allocated_bytes += block.size_bytes
                    if allocated_bytes > peak_bytes:
                        peak_bytes = allocated_bytes
            if limit_bytes is not None and self.reserved_bytes > limit_bytes:
                break
        self.allocated_bytes, self.peak_allocated_bytes = allocated_bytes, peak_bytes
