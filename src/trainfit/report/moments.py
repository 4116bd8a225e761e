"""A step's memory as a picture needs it: `StepProfile` -> `Timeline`, at most about two columns per pixel.

A moment is one op: while it runs, memory is what it is when it is highest. Time is the GPU's: an op that launches
nothing takes the moment that the GPU has reached. Moments that fall into one slice of the picture become one column,
the highest of them, so no peak is lost; where a slice has none, what came last goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainfit.records import BlockEvent, Category, OpRun, Phase, StepProfile

SLICES = 600
_CATEGORY_INDEX = {category: index for index, category in enumerate(Category)}


@dataclass(frozen=True, slots=True)
class Moment:
    """Memory from `start_ns` until the next moment."""

    start_ns: int
    op: str
    module: str
    phase: Phase
    bytes_by_category: tuple[int, ...]  # in the order of Category

    @property
    def total_bytes(self) -> int:
        return sum(self.bytes_by_category)


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of the step in one phase."""

    phase: Phase
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """The memory of one step over its time."""

    name: str
    step_ns: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    columns: tuple[Moment, ...]
    bands: tuple[Span, ...]  # forward, backward, optimizer; recomputation is part of backward
    recomputing: tuple[Span, ...]


def timeline(name: str, profile: StepProfile, slice_ns: float) -> Timeline:
    """The timeline of a profiled step in slices of `slice_ns`."""
    found, end_ns = moments(profile), step_ns(profile)
    return Timeline(
        name=name,
        step_ns=end_ns,
        peak_allocated_bytes=max(moment.total_bytes for moment in found),
        peak_reserved_bytes=sum(segment.size_bytes for segment in profile.segments),
        columns=tuple(_columns(found, slice_ns)),
        bands=_bands(found, end_ns),
        recomputing=tuple(_recomputing(found, end_ns, slice_ns)),
    )


def step_ns(profile: StepProfile) -> int:
    """When the step's last op is done."""
    return max((max(run.issue_end_ns, run.gpu_start_ns + run.gpu_ns) for run in profile.runs), default=0)


def moments(profile: StepProfile) -> list[Moment]:
    """One per op, in order."""
    by_category = [0] * len(_CATEGORY_INDEX)
    found = []
    for (run, events), start_ns in zip(_events_by_run(profile), _starts_ns(profile), strict=True):
        highest = tuple(by_category)
        for event in events:
            by_category[_CATEGORY_INDEX[event.category]] += event.size_bytes if event.is_alloc else -event.size_bytes
            if event.op is None or sum(by_category) > sum(highest):
                highest = tuple(by_category)
        op = profile.trace.ops[run.op]
        found.append(Moment(start_ns, op.name, op.module, op.phase, highest))
    return found


def event_times_ns(profile: StepProfile) -> list[int]:
    """When each of the profile's events happens: at the start of its op."""
    pairs = zip(_events_by_run(profile), _starts_ns(profile), strict=True)
    return [start_ns for (_, events), start_ns in pairs for _ in events]


def _events_by_run(profile: StepProfile) -> Iterator[tuple[OpRun, list[BlockEvent]]]:
    """The ops with their events; what is there when the step begins is with the first op."""
    pending = iter((*profile.events, None))
    event = next(pending)
    for run in profile.runs:
        events = []
        while event is not None and event.op in (None, run.op):
            events.append(event)
            event = next(pending)
        yield run, events


def _starts_ns(profile: StepProfile) -> Iterator[int]:
    """When the GPU gets to each op, by the stream that computes."""
    now_ns = 0
    for run in profile.runs:
        yield now_ns
        if run.gpu_ns and run.stream == 0:
            now_ns = max(now_ns, run.gpu_start_ns + run.gpu_ns)


def _columns(moments: Sequence[Moment], slice_ns: float) -> Iterator[Moment]:
    """One column per slice that has moments; a second where the slice after it has none."""
    index = 0
    while index < len(moments):
        number = int(moments[index].start_ns // slice_ns)
        first = index
        while index < len(moments) and int(moments[index].start_ns // slice_ns) == number:
            index += 1
        highest = max(moments[first:index], key=lambda moment: moment.total_bytes)
        yield _at(highest, moments[first].start_ns)
        last = moments[index - 1]
        is_next_empty = index < len(moments) and moments[index].start_ns // slice_ns > number + 1
        if last is not highest and (is_next_empty or index == len(moments)):
            yield _at(last, max(last.start_ns, moments[first].start_ns + 1))


def _at(moment: Moment, start_ns: int) -> Moment:
    return Moment(start_ns, moment.op, moment.module, moment.phase, moment.bytes_by_category)


def _bands(moments: Sequence[Moment], end_ns: int) -> tuple[Span, ...]:
    starts: list[tuple[Phase, int]] = []
    for moment in moments:
        phase = Phase.BACKWARD if moment.phase is Phase.RECOMPUTE else moment.phase
        if not starts or starts[-1][0] is not phase:
            starts.append((phase, moment.start_ns))
    ends = [*(start for _, start in starts[1:]), end_ns]
    return tuple(Span(phase, start, end) for (phase, start), end in zip(starts, ends, strict=True))


def _recomputing(moments: Sequence[Moment], end_ns: int, slice_ns: float) -> Iterator[Span]:
    """When ops run again; stretches that lie less than a slice apart are one."""
    start = end = -1
    for moment, following in zip(moments, (*moments[1:], None), strict=True):
        if moment.phase is not Phase.RECOMPUTE:
            continue
        moment_end = following.start_ns if following is not None else end_ns
        if start >= 0 and moment.start_ns - end > slice_ns:
            yield Span(Phase.RECOMPUTE, start, end)
            start = -1
        start, end = (start if start >= 0 else moment.start_ns), moment_end
    if start >= 0:
        yield Span(Phase.RECOMPUTE, start, end)
