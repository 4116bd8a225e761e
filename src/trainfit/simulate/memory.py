"""Plays a trace's allocations through the caching allocator.

In: a `Trace`, the hidden memory of its kernels, the allocator's mode. Out: the `MemoryTimeline` of a steady step.

The program is played from process start, because where blocks lie depends on all that came before: the first step,
then `STEADY_STEPS` steady ones. Allocated peak, breakdown and points are those of the last; reserved bytes, which
never shrink, are those at the end.

Around one op the order is: the outputs that were traced and the temporaries of its kernel, as the kernel interleaves
them, then its thread's workspaces at their first use, the temporaries' frees, and then the traced frees.

Each stream has memory of its own; a storage goes back to the stream it came from, at once, whoever else still uses it:
programs on several streams must see to that themselves, as they must on a GPU.

Invariant: the bytes by category are those of the allocator's blocks, slack included, and sum to what it has allocated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from trainfit.records import (
    LAST_OUTPUT,
    OUTPUT,
    Category,
    MemoryEvent,
    MemoryTimeline,
    Op,
    Phase,
    Section,
    Storage,
    TimelinePoint,
    Trace,
)
from trainfit.simulate.allocator import AllocatorMode, Block, CachingAllocator

STEADY_STEPS = 3
"""Steady steps played after the first. The earlier ones still fill old holes; more changed no preset's peaks."""

_CATEGORIES = tuple(Category)
_CATEGORY_INDEX = {category: index for index, category in enumerate(_CATEGORIES)}
_AUTOGRAD_PHASES = (Phase.BACKWARD, Phase.RECOMPUTE)


class HiddenMemory(Protocol):
    """What kernels take from the allocator behind the dispatcher's back."""

    def temporaries(self, op: Op) -> tuple[int, ...]:
        """The buffers that the op's kernel allocates and frees, as steps (see `trainfit.records.OUTPUT`)."""

    def workspaces(self, op: Op) -> tuple[tuple[str, int], ...]:
        """(library, bytes) of the workspaces this op needs; each stays with its thread from its first use on."""


def simulate_memory(trace: Trace, hidden: HiddenMemory, allocator: AllocatorMode) -> MemoryTimeline:
    """The memory of a steady step of `trace`, as a GPU with that allocator would report it."""
    player = Player(trace, hidden, CachingAllocator(allocator))
    player.run()
    return player.timeline()


class Action(NamedTuple):
    """One allocation or its end. An allocation of what is already there does nothing."""

    key: int | str  # a storage's number, or the name of something hidden
    nbytes: int
    category_index: int
    is_alloc: bool
    stream: int = 0


class _Moment(NamedTuple):
    """What happens to memory around one op; `op` is None in a section without ops, where it happens between ops."""

    op: int | None
    actions: list[Action]


class Player:
    """The state of the process while the program is played."""

    def __init__(self, trace: Trace, hidden: HiddenMemory, allocator: CachingAllocator) -> None:
        self._trace = trace
        self._hidden = hidden
        self._allocator = allocator
        self._programs: dict[int, list[_Moment]] = {}  # by section
        self._live: dict[int | str, Block] = {}
        self._freed_by: dict[int | str, int] = {}  # the section that freed it last
        self._bytes_by_category = [0] * len(_CATEGORIES)
        self.start_step()

    def run(self) -> None:
        """From process start to the end of a steady step."""
        for section_index in self._trace.first_step:
            self.play(section_index)
        for _ in range(STEADY_STEPS):
            self.start_step()
            for section_index in self._trace.steady_step:
                self.play(section_index)

    def start_step(self) -> None:
        """Forget the points and the peak: those of the step that begins now count."""
        self._allocator.reset_peaks()
        self._point_ops: list[int] = []
        self._point_bytes: list[tuple[int, ...]] = []
        self._peak_point = 0
        self._peak_bytes_by_category = tuple(self._bytes_by_category)

    def play(self, section_index: int) -> None:
        if section_index not in self._programs:
            section = self._trace.sections[section_index]
            self._programs[section_index] = _moments(self._trace, section, self._hidden)
        for op, actions in self._programs[section_index]:
            if op is not None:
                self._point_ops.append(op)
                self._point_bytes.append(())
            for action in actions:
                if action.is_alloc:
                    self._allocate(action)
                else:
                    self._release(action, section_index)
            if self._point_bytes:
                self._point_bytes[-1] = tuple(self._bytes_by_category)

    def timeline(self) -> MemoryTimeline:
        if not self._point_ops:
            raise ValueError("no op of the trace's steady step allocates or frees: this is no training step")
        self._point_bytes[self._peak_point] = self._peak_bytes_by_category
        points: list[TimelinePoint] = []
        for op, bytes_by_category in zip(self._point_ops, self._point_bytes, strict=True):
            if not points or points[-1].bytes_by_category != bytes_by_category:
                points.append(TimelinePoint(op, time_ns=0, bytes_by_category=bytes_by_category))
        return MemoryTimeline(
            peak_allocated_bytes=self._allocator.peak_allocated_bytes,
            peak_reserved_bytes=self._allocator.reserved_bytes,
            peak_op=self._point_ops[self._peak_point],
            breakdown_bytes=tuple(zip(_CATEGORIES, self._peak_bytes_by_category, strict=True)),
            points=tuple(points),
        )

    def _allocate(self, action: Action) -> None:
        if action.key in self._live:
            return
        allocator = self._allocator
        peak_bytes = allocator.peak_allocated_bytes
        block = allocator.malloc(action.nbytes, action.stream)
        self._live[action.key] = block
        self._bytes_by_category[action.category_index] += block.size_bytes
        if allocator.peak_allocated_bytes > peak_bytes:
            # Before the step's first op this is -1: the peak is then shown at that op.
            self._peak_point = max(0, len(self._point_ops) - 1)
            self._peak_bytes_by_category = tuple(self._bytes_by_category)

    def _release(self, action: Action, section_index: int) -> None:
        block = self._live.pop(action.key, None)
        if block is not None:
            self._bytes_by_category[action.category_index] -= block.size_bytes
            self._allocator.free(block)
            self._freed_by[action.key] = section_index
        elif self._freed_by.get(action.key) != section_index:
            # A section that let go of something old when it was traced has nothing to let go of when played again.
            # Any other free of what is not there is a mistake in the trace.
            name = self._trace.sections[section_index].name
            raise ValueError(f"section {name!r} frees storage {action.key}, which is not allocated at that point")


def _moments(trace: Trace, section: Section, hidden: HiddenMemory) -> list[_Moment]:
    """The section as the allocator sees it; ops that do nothing to memory are left out."""
    _check_alternation(section)
    events = section.events
    has_ops = section.first_op < section.last_op
    end = 0
    while end < len(events) and (events[end].op < section.first_op or not has_ops):
        end += 1
    actions = traced_actions(
        trace.storages, events[:end]
    )  # between ops: before the first one, or in a section without any
    if not has_ops:
        return [_Moment(None, actions)] if actions else []
    moments = []
    for op_index in range(section.first_op, section.last_op):
        start = end
        while end < len(events) and events[end].op == op_index:
            end += 1
        actions += op_actions(trace.ops[op_index], events[start:end], trace.storages, hidden)
        if actions:
            moments.append(_Moment(op_index, actions))
            actions = []
    if end < len(events):
        raise ValueError(
            f"section {section.name!r} has ops {section.first_op} to {section.last_op - 1}, but the event "
            f"{events[end]} is out of order or outside of them"
        )
    return moments


def op_actions(
    op: Op, events: Sequence[MemoryEvent], storages: Sequence[Storage], hidden: HiddenMemory
) -> list[Action]:
    """What happens to memory around one op, whose traced events these are."""
    num_outputs = next((index for index, event in enumerate(events) if not event.is_alloc), len(events))
    outputs = traced_actions(storages, events[:num_outputs])
    actions, temporaries = _interleaved(outputs, hidden.temporaries(op), op.stream)
    # A BLAS handle belongs to a thread, its workspaces to the handle; autograd runs backward in a thread of its own.
    thread = "autograd" if op.phase in _AUTOGRAD_PHASES else "main"
    for library, nbytes in hidden.workspaces(op):
        actions.append(Action(f"{thread} {library} workspace", nbytes, _CATEGORY_INDEX[Category.WORKSPACES], True))
    actions += [action._replace(is_alloc=False) for action in reversed(temporaries)]
    return actions + traced_actions(storages, events[num_outputs:])


def _interleaved(outputs: Sequence[Action], steps: Sequence[int], stream: int) -> tuple[list[Action], list[Action]]:
    """The outputs and temporaries of one kernel in the order of its steps, and the temporaries that are left."""
    if not steps:
        return list(outputs), []
    num_first = max(0, len(outputs) - steps.count(OUTPUT) - steps.count(LAST_OUTPUT))
    actions, pending, live = list(outputs[:num_first]), list(outputs[num_first:]), list[Action]()
    for number, step in enumerate(steps):
        if step in (OUTPUT, LAST_OUTPUT):
            if pending:
                actions.append(pending.pop(0 if step == OUTPUT else -1))
        elif step > 0:
            live.append(Action(f"temporary {number}", step, _CATEGORY_INDEX[Category.TEMPORARIES], True, stream))
            actions.append(live[-1])
        else:
            index = max(index for index, action in enumerate(live) if action.nbytes == -step)
            actions.append(live.pop(index)._replace(is_alloc=False))
    return actions, live


def traced_actions(storages: Sequence[Storage], events: Sequence[MemoryEvent]) -> list[Action]:
    """The events as actions; empty storages take no memory."""
    actions = []
    for event in events:
        storage = storages[event.storage]
        if storage.nbytes > 0:
            category_index = _CATEGORY_INDEX[storage.category]
            actions.append(Action(event.storage, storage.nbytes, category_index, event.is_alloc, event.stream))
    return actions


def _check_alternation(section: Section) -> None:
    """Within one section a storage cannot appear twice without going in between, nor go twice."""
    is_allocated: dict[int, bool] = {}
    for event in section.events:
        if is_allocated.get(event.storage) is event.is_alloc:
            verb = "allocates" if event.is_alloc else "frees"
            raise ValueError(f"section {section.name!r} {verb} storage {event.storage} twice in a row (op {event.op})")
        is_allocated[event.storage] = event.is_alloc
