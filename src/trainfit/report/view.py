"""`Page`: everything that the HTML page shows, as numbers and words; no geometry and no markup.

In: an `Estimate` or a `Plan`, and where the step was traced its profiles. Out: a frozen `Page`, which `html.render`
turns into a file. What a page cannot show, because only a plan's file was at hand, is None or empty, and `missing` says
so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainfit.records import StepProfile
from trainfit.report.modules import ModuleRow, Share, longest_modules, module_rows
from trainfit.report.moments import SLICES, Timeline, step_ns, timeline
from trainfit.report.strip import BlockClass, Strip, strips
from trainfit.units import format_bytes, format_count

if TYPE_CHECKING:
    from trainfit._estimate import Estimate
    from trainfit._plan_record import Plan
    from trainfit._time_estimate import TimeEstimate, TimeShare
    from trainfit._verify_record import Verification

UNPLANNED, PLANNED = "nothing recomputed", "plan"
_SOURCES = {
    "profile": "Kernel times are interpolated from measurements on this GPU.",
    "datasheet": "Kernel times are scaled from another GPU's measurements by the datasheets: less certain.",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer."""

    is_good: bool
    headline: str
    detail: str


@dataclass(frozen=True, slots=True)
class Tile:
    """One number worth a glance."""

    label: str
    value: str
    note: str


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One way to run the step."""

    name: str
    peak_bytes: int
    step_ns: int
    overhead: float
    fits: bool
    is_plan: bool
    is_measured: bool


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """A plan, simulated: what it takes and what it does, in words."""

    peak_bytes: int
    step_ns: int
    decisions: tuple[str, ...]
    is_plan: bool


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory over the step."""

    timelines: tuple[Timeline, ...]
    budget_bytes: int
    kind: str  # which peak the budget binds
    measured_bytes: tuple[int | None, ...]  # per timeline, what was measured to be allocated at its peak


@dataclass(frozen=True, slots=True)
class Time:
    """Where one step's time goes."""

    name: str
    step_ms: float
    gpu_busy_ms: float
    communication_ms: float
    exposed_communication_ms: float
    phase_ms: tuple[tuple[str, float], ...]
    top_ops: tuple[TimeShare, ...]
    top_modules: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """A promise beside what the GPU did."""

    name: str
    predicted: str
    measured: str
    passed: bool


@dataclass(frozen=True, slots=True)
class Page:
    """The whole page, top to bottom."""

    title: str
    verdict: Verdict
    tiles: tuple[Tile, ...]
    checks: tuple[Check, ...]
    measured_on: str | None
    memory_kind: str
    budget_bytes: int
    comparison: tuple[ComparisonRow, ...]
    frontier: tuple[FrontierPoint, ...]
    memory: Memory | None
    breakdown: tuple[tuple[str, int], ...]
    breakdown_at: str
    strips: tuple[Strip, ...]
    modules: tuple[ModuleRow, ...]
    times: tuple[Time, ...]
    assumptions: tuple[str, ...]
    not_modelled: tuple[str, ...]
    provenance: tuple[tuple[str, str], ...]
    missing: str | None
    file_name: str
    file_text: str


@dataclass(frozen=True, slots=True)
class Side:
    """A step with and without the plan: its estimate, and the step op by op."""

    estimate: Estimate
    profile: StepProfile


@dataclass(frozen=True, slots=True)
class PlanDetails:
    """What is known of a plan beyond its file, when its step is at hand."""

    before: Side
    after: Side
    points: tuple[FrontierPoint, ...]
    classes: tuple[BlockClass, ...]


def estimate_page(estimate: Estimate, profile: StepProfile | None, *, trainfit: str, command: str | None) -> Page:
    """The page of a step as it is."""
    sides = () if profile is None else (Side(estimate, profile),)
    fits = estimate.fits()
    peak, budget = format_bytes(estimate.peak_reserved_bytes), format_bytes(estimate.budget_bytes)
    share = estimate.peak_reserved_bytes / estimate.budget_bytes
    return Page(
        title=f"Estimate on {estimate.gpu}",
        verdict=Verdict(fits, "Fits" if fits else "Does not fit", f"{peak} of {budget} reserved ({share:.1%})"),
        tiles=_estimate_tiles(estimate),
        checks=(),
        measured_on=None,
        memory_kind="reserved",
        budget_bytes=estimate.budget_bytes,
        comparison=(),
        frontier=(),
        memory=_memory(sides, ("this step",), estimate.budget_bytes, "reserved", None),
        breakdown=tuple(estimate.breakdown_bytes.items()),
        breakdown_at=_peak_in_words(estimate),
        strips=(),
        modules=module_rows(profile) if profile is not None else (),
        times=_times(("this step",) * len(sides), sides),
        assumptions=_assumptions(estimate.allocator, estimate.time),
        not_modelled=estimate.not_modelled,
        provenance=_provenance(trainfit, estimate, command),
        missing=None if profile is not None else "Without the step's trace: no memory timeline and no modules.",
        file_name="estimate.json",
        file_text=json.dumps(estimate.to_json_dict(), indent=2) + "\n",
    )


def plan_page(
    plan: Plan, details: PlanDetails | None, *, measured: Verification | None = None, command: str | None
) -> Page:
    """The page of a plan; `details` are there when its step could be traced."""
    # A plan that recomputes nothing has one side: both are the same step.
    sides = () if details is None else (details.before, details.after) if plan.decisions else (details.after,)
    names = (UNPLANNED, PLANNED)[2 - len(sides) :]
    predicted = plan.predicted if details is None else details.after.estimate
    row = plan.rows[-1]
    peak, budget = format_bytes(row.peak_bytes), format_bytes(plan.budget_bytes)
    overhead = _overhead(row.step_ns, plan.rows[0].step_ns)
    detail = f"{peak} of {budget} {plan.memory} ({row.peak_bytes / plan.budget_bytes:.1%}), step {overhead:+.1%}"
    return Page(
        title=f"Plan for {plan.gpu}",
        verdict=Verdict(row.fits, "Fits" if row.fits else "Does not fit", detail),
        tiles=_plan_tiles(plan, predicted),
        checks=_checks(measured),
        measured_on=None if measured is None else f"{measured.gpu}, torch {measured.torch}",
        memory_kind=plan.memory,
        budget_bytes=plan.budget_bytes,
        comparison=_comparison(plan, measured),
        frontier=() if details is None else details.points,
        memory=_memory(sides, names, plan.budget_bytes, plan.memory, measured),
        breakdown=tuple(predicted.breakdown_bytes.items()),
        breakdown_at=_peak_in_words(predicted),
        strips=strips(plan, () if details is None else details.classes),
        modules=module_rows(*(side.profile for side in sides)) if sides else (),
        times=_times(names, sides),
        assumptions=(*_assumptions(plan.allocator, predicted.time), f"The batch is: {', '.join(plan.inputs)}."),
        not_modelled=predicted.not_modelled,
        provenance=_plan_provenance(plan, command),
        missing=None if details is not None else _MISSING,
        file_name="plan.json",
        file_text=plan.to_json(),
    )


_MISSING = (
    "This page was made from the plan's file alone. The memory timeline, the frontier, the values of each block, the "
    "modules and the time by op need the step itself: name it, as in trainfit report plan.json TARGET, or in Python "
    "plan.report(path, step)."
)


def _memory(
    sides: Sequence[Side], names: Sequence[str], budget_bytes: int, kind: str, measured: Verification | None
) -> Memory | None:
    if not sides:
        return None
    slice_ns = max(step_ns(side.profile) for side in sides) / SLICES
    timelines = (timeline(name, side.profile, slice_ns) for name, side in zip(names, sides, strict=True))
    found = (None, None) if measured is None else (measured.unplanned, measured.planned)
    peaks = (None if run is None else run.allocated_bytes for run in found[2 - len(sides) :])
    return Memory(tuple(timelines), budget_bytes, kind, tuple(peaks))


def _times(names: Iterable[str], sides: Iterable[Side]) -> tuple[Time, ...]:
    return tuple(
        Time(
            name=name,
            step_ms=time.step_ms,
            gpu_busy_ms=time.gpu_busy_ms,
            communication_ms=time.communication_ms,
            exposed_communication_ms=time.exposed_communication_ms,
            phase_ms=tuple(time.phase_ms.items()),
            top_ops=time.top_ops,
            top_modules=longest_modules(side.profile),
        )
        for name, side in zip(names, sides, strict=True)
        for time in (side.estimate.time,)
        if time is not None
    )


def _comparison(plan: Plan, measured: Verification | None) -> tuple[ComparisonRow, ...]:
    base_ns = plan.rows[0].step_ns
    rows = [
        ComparisonRow(
            name=row.name,
            peak_bytes=row.peak_bytes,
            step_ns=row.step_ns,
            overhead=_overhead(row.step_ns, base_ns),
            fits=row.fits,
            is_plan=row is plan.rows[-1],
            is_measured=False,
        )
        for row in plan.rows
    ]
    runs = () if measured is None else ((UNPLANNED, measured.unplanned), (PLANNED, measured.planned))
    for name, run in runs:
        if run is not None:
            peak_bytes = run.reserved_bytes if plan.memory == "reserved" else run.allocated_bytes
            overhead, fits = _overhead(run.step_ns, base_ns), peak_bytes <= plan.budget_bytes
            is_plan = name == PLANNED
            rows.append(ComparisonRow(f"{name}, measured", peak_bytes, run.step_ns, overhead, fits, is_plan, True))
    return tuple(rows)


def _overhead(step_ns: int, base_ns: int) -> float:
    return (step_ns - base_ns) / max(1, base_ns)


def _estimate_tiles(estimate: Estimate) -> tuple[Tile, ...]:
    tiles = [
        Tile("peak reserved", format_bytes(estimate.peak_reserved_bytes), f"{estimate.allocator} segments"),
        Tile("peak allocated", format_bytes(estimate.peak_allocated_bytes), f"in {estimate.peak_at.phase.value}"),
        Tile("budget", format_bytes(estimate.budget_bytes), estimate.gpu),
    ]
    return (*tiles, *_time_tiles(estimate.time), Tile("parameters", format_count(estimate.num_parameters), "trained"))


def _plan_tiles(plan: Plan, predicted: Estimate) -> tuple[Tile, ...]:
    base, row = plan.rows[0], plan.rows[-1]
    if plan.memory == "reserved":
        moment = predicted.peak_at.phase.value
        other = Tile("peak allocated", format_bytes(predicted.peak_allocated_bytes), f"in {moment}")
    else:
        other = Tile("peak reserved", format_bytes(predicted.peak_reserved_bytes), f"{plan.allocator} segments")
    tiles = [
        Tile(f"peak {plan.memory}", format_bytes(row.peak_bytes), f"{format_bytes(base.peak_bytes)} without the plan"),
        other,
        Tile("budget", format_bytes(plan.budget_bytes), f"{format_bytes(plan.budget_bytes - row.peak_bytes)} left"),
        Tile("step", f"{row.step_ns / 1e6:.1f} ms", f"{base.step_ns / 1e6:.1f} ms without the plan"),
        Tile("solver", plan.status, f"gap {plan.gap:.2%}"),
    ]
    return (*tiles, *_time_tiles(predicted.time)[1:])


def _time_tiles(time: TimeEstimate | None) -> tuple[Tile, ...]:
    if time is None:
        return ()
    low, high = time.range_ms
    tiles = [Tile("step", f"{time.step_ms:.1f} ms", f"{low:.1f} to {high:.1f} ms")]
    if time.tokens_per_second is not None:
        tiles.append(Tile("tokens per second", f"{time.tokens_per_second:,.0f}", ""))
    elif time.samples_per_second is not None:
        tiles.append(
            Tile("samples per second", f"{time.samples_per_second:,.{0 if time.samples_per_second >= 100 else 1}f}", "")
        )
    bounds = {"launches": "launch-bound", "communication": "bound by communication", "kernels": "bound by the GPU"}
    return (*tiles, Tile("MFU", f"{time.mfu:.1%}", bounds[time.bound_by]))


def _checks(measured: Verification | None) -> tuple[Check, ...]:
    if measured is None:
        return ()
    return tuple(Check(check.name, check.predicted, check.measured, check.passed) for check in measured.checks)


def _peak_in_words(estimate: Estimate) -> str:
    moment = estimate.peak_at
    return f"{moment.phase.value}, {moment.op}" + (f" in {moment.module}" if moment.module else "")


def _assumptions(allocator: str, time: TimeEstimate | None) -> tuple[str, ...]:
    lines = [
        "The step is in steady state: the optimizer's state exists, caches are filled, nothing else is on the GPU.",
        f"Memory goes through torch's caching allocator with {allocator} segments and default settings.",
    ]
    if time is not None:
        lines.append(_SOURCES[time.source])
        if time.launch_bound:
            lines.append(
                f"The step is launch-bound: the GPU waits {time.waiting_ms:.1f} ms for the CPU, so a faster CPU helps."
            )
    return tuple(lines)


def _provenance(trainfit: str, estimate: Estimate, command: str | None) -> tuple[tuple[str, str], ...]:
    rows = [("trainfit", trainfit), ("torch", estimate.torch), ("GPU", estimate.gpu)]
    if estimate.parallelism is not None:
        rows.append(("parallelism", f"{estimate.parallelism}; all figures are of one of them"))
    rows += [("allocator", estimate.allocator), ("parameters", f"{estimate.num_parameters:,}")]
    return tuple(rows + ([("command", command)] if command else []))


def _plan_provenance(plan: Plan, command: str | None) -> tuple[tuple[str, str], ...]:
    rows = _provenance(plan.trainfit, plan.predicted, command)
    solver = f"{plan.status}; a better plan could save {plan.gap:.2%} of the step at most"
    return (*rows, ("solver", solver), ("budget binds", f"{plan.memory} memory"))
