"""Where things lie in the page's pictures: view records -> positions and SVG paths. Pure geometry, no markup.

A plot is an SVG that is stretched to its box (so text is HTML beside it, at percentages). Its units are `WIDTH` by
`HEIGHT`, y downwards. Memory is drawn as areas under running sums, the topmost first, so that each area is one path
from left to right and the next covers what is not its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from trainfit.records import Category, Phase
from trainfit.report.moments import Moment, Span, Timeline
from trainfit.report.view import ComparisonRow, FrontierPoint, Memory
from trainfit.units import format_bytes

WIDTH, HEIGHT = 1000, 400
STACK = (
    *(Category.PARAMETERS, Category.OPTIMIZER, Category.OTHER, Category.WORKSPACES),
    *(Category.GRADIENTS, Category.ACTIVATIONS, Category.TEMPORARIES),
)
"""From the bottom up: what stays, then what comes and goes."""
_INDEX = {category: index for index, category in enumerate(Category)}
_HEADROOM = 1.06
_NEAR_THE_TOP = 92.0
"""Percent; a line above this has its label below it, where no other label is."""
_FAR_BUDGET = 2.0
"""A budget of more than this many peaks would flatten the picture: it is then named and not drawn."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A label at a share of the axis, in percent."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of the x axis, in percent."""

    name: str
    left: float
    width: float


@dataclass(frozen=True, slots=True)
class Level:
    """A horizontal or vertical line with its name, at a share of the axis, in percent."""

    kind: str
    label: str
    at: float
    is_label_below: bool = False


@dataclass(frozen=True, slots=True)
class DrawnTimeline:
    """One timeline, ready for the template."""

    name: str
    caption: str
    areas: tuple[tuple[str, str], ...]  # (category, SVG path), in the order of drawing
    bands: tuple[Bar, ...]
    recomputing: tuple[Bar, ...]
    levels: tuple[Level, ...]
    y_ticks: tuple[Tick, ...]
    x_ticks: tuple[Tick, ...]
    peak: Moment
    peak_left: float
    note: str


@dataclass(frozen=True, slots=True)
class Dot:
    """A marked point of the frontier's plot; `left` and `bottom` in percent."""

    kind: str  # "point", "plan", "baseline", "measured"
    label: str
    left: float
    bottom: float
    facts: str
    decisions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DrawnFrontier:
    """The frontier, ready for the template."""

    dots: tuple[Dot, ...]
    path: str
    budget: Level | None
    note: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]


def draw_timelines(memory: Memory) -> tuple[DrawnTimeline, ...]:
    """All timelines on the same two axes."""
    axis_ns = max(timeline.step_ns for timeline in memory.timelines)
    peak_bytes = max(timeline.peak_reserved_bytes for timeline in memory.timelines)
    is_far = memory.budget_bytes > _FAR_BUDGET * peak_bytes
    top_bytes = round(_HEADROOM * (peak_bytes if is_far else max(peak_bytes, memory.budget_bytes)))
    note = f"the budget, {format_bytes(memory.budget_bytes)}, is far above the plot" if is_far else ""
    return tuple(
        _draw_timeline(timeline, memory, axis_ns, top_bytes, note, measured_bytes)
        for timeline, measured_bytes in zip(memory.timelines, memory.measured_bytes, strict=True)
    )


def _draw_timeline(
    timeline: Timeline, memory: Memory, axis_ns: int, top_bytes: int, note: str, measured_bytes: int | None
) -> DrawnTimeline:
    levels = [("reserved", f"reserved {format_bytes(timeline.peak_reserved_bytes)}", timeline.peak_reserved_bytes)]
    if memory.budget_bytes <= top_bytes:
        levels.append(("budget", f"budget {format_bytes(memory.budget_bytes)}", memory.budget_bytes))
    if measured_bytes is not None:
        levels.append(("measured", f"measured peak {format_bytes(measured_bytes)}", measured_bytes))
    peak = max(timeline.columns, key=lambda column: column.total_bytes)
    allocated = format_bytes(timeline.peak_allocated_bytes)
    return DrawnTimeline(
        name=timeline.name,
        caption=f"{allocated} allocated at the peak, {timeline.step_ns / 1e6:.1f} ms",
        areas=tuple(_areas(timeline, axis_ns, top_bytes)),
        bands=tuple(_bar(span, axis_ns) for span in timeline.bands),
        recomputing=tuple(_bar(span, axis_ns) for span in timeline.recomputing),
        levels=tuple(
            Level(kind, label, at, at > _NEAR_THE_TOP or (kind != "budget" and nbytes < memory.budget_bytes))
            for kind, label, nbytes in levels
            for at in (_percent(nbytes, top_bytes),)
        ),
        y_ticks=_byte_ticks(0, top_bytes),
        x_ticks=_time_ticks(0, axis_ns),
        peak=peak,
        peak_left=_percent(peak.start_ns, axis_ns),
        note=note,
    )


def _areas(timeline: Timeline, axis_ns: int, top_bytes: int) -> list[tuple[str, str]]:
    areas = []
    for count in range(len(STACK), 0, -1):
        below = [_INDEX[category] for category in STACK[:count]]

        def height(column: Moment, below: list[int] = below) -> int:
            return sum(column.bytes_by_category[index] for index in below)

        if any(column.bytes_by_category[below[-1]] for column in timeline.columns):
            areas.append((STACK[count - 1].value, _steps(timeline, axis_ns, top_bytes, height)))
    return areas


def _steps(timeline: Timeline, axis_ns: int, top_bytes: int, height: Callable[[Moment], int]) -> str:
    """A filled staircase; steps too small to see are left out."""
    parts, drawn = [f"M0 {HEIGHT}"], HEIGHT
    for column in timeline.columns:
        y = HEIGHT - round(HEIGHT * height(column) / top_bytes)
        if y != drawn:
            parts.append(f"H{WIDTH * column.start_ns / axis_ns:.4g}V{y}")
            drawn = y
    parts.append(f"H{WIDTH * timeline.step_ns / axis_ns:.4g}V{HEIGHT}Z")
    return "".join(parts)


def cursor_data(memory: Memory) -> dict[str, Any]:
    """What the page's script needs to name a moment: names once, numbers in columns, each as [value, length] runs."""
    ops: dict[str, int] = {}
    modules: dict[str, int] = {}
    phases = list(Phase)
    largest = max(timeline.peak_allocated_bytes for timeline in memory.timelines)
    unit_bytes = 2 ** max(0, largest.bit_length() - 20)
    axis_ns = max(timeline.step_ns for timeline in memory.timelines)
    return {
        "unit_bytes": unit_bytes,
        "axis_ms": axis_ns / 1e6,
        "categories": [category.value for category in STACK],
        "timelines": [
            {
                "end_ms": round(timeline.step_ns / 1e6, 3),
                "ms": [round(column.start_ns / 1e6, 3) for column in timeline.columns],
                "op": _runs(ops.setdefault(column.op, len(ops)) for column in timeline.columns),
                "module": _runs(modules.setdefault(column.module, len(modules)) for column in timeline.columns),
                "phase": _runs(phases.index(column.phase) for column in timeline.columns),
                "units": [
                    _runs(round(column.bytes_by_category[_INDEX[category]] / unit_bytes) for column in timeline.columns)
                    for category in STACK
                ],
            }
            for timeline in memory.timelines
        ],
        "phases": [phase.value for phase in phases],
        "ops": list(ops),
        "modules": list(modules),
    }


def _runs(values: Iterable[int]) -> list[int | list[int]]:
    """Equal neighbours as [value, how many]; one alone as itself."""
    runs = ((value, sum(1 for _ in group)) for value, group in groupby(values))
    return [value if count == 1 else [value, count] for value, count in runs]


def draw_frontier(
    points: Sequence[FrontierPoint], rows: Sequence[ComparisonRow], budget_bytes: int, kind: str
) -> DrawnFrontier:
    """Peak to the right, step time upwards."""
    baselines = [row for row in rows if not row.is_plan and not row.is_measured]
    measured = [row for row in rows if row.is_measured]
    peaks = [point.peak_bytes for point in points] + [row.peak_bytes for row in (*baselines, *measured)]
    times = [point.step_ns for point in points] + [row.step_ns for row in (*baselines, *measured)]
    is_far = budget_bytes > _FAR_BUDGET * max(peaks)
    if not is_far:
        peaks.append(budget_bytes)
    x, y = _Axis.around(peaks), _Axis.around(times)
    base_ns = rows[0].step_ns

    def dot(kind: str, label: str, peak_bytes: int, step_ns: int, decisions: tuple[str, ...]) -> Dot:
        facts = f"{format_bytes(peak_bytes)}, {step_ns / 1e6:.1f} ms ({(step_ns - base_ns) / max(1, base_ns):+.1%})"
        return Dot(kind, label, x.percent(peak_bytes), y.percent(step_ns), facts, decisions)

    dots = [
        *(dot("baseline", row.name, row.peak_bytes, row.step_ns, ()) for row in baselines),
        *(
            dot("plan" if p.is_plan else "point", "plan" if p.is_plan else "", p.peak_bytes, p.step_ns, p.decisions)
            for p in sorted(points, key=lambda point: point.peak_bytes)
        ),
        *(dot("measured", row.name, row.peak_bytes, row.step_ns, ()) for row in measured),
    ]
    line = sorted((x.percent(p.peak_bytes), y.percent(p.step_ns)) for p in points)
    path = "M" + "L".join(f"{WIDTH * a / 100:.4g} {HEIGHT - HEIGHT * b / 100:.4g}" for a, b in line) if line else ""
    return DrawnFrontier(
        dots=tuple(dots),
        path=path,
        budget=None if is_far else Level("budget", f"budget {format_bytes(budget_bytes)}", x.percent(budget_bytes)),
        note=f"the budget, {format_bytes(budget_bytes)} {kind}, is far to the right of the plot" if is_far else "",
        x_ticks=_byte_ticks(x.low, x.high),
        y_ticks=_time_ticks(y.low, y.high),
    )


@dataclass(frozen=True, slots=True)
class _Axis:
    low: int
    high: int

    @classmethod
    def around(cls, values: Sequence[int]) -> _Axis:
        """With air on both sides; never below 0."""
        low, high = min(values), max(values)
        air = max(0.08 * (high - low), 0.02 * high, 1)
        return cls(max(0, math.floor(low - air)), math.ceil(high + air))

    def percent(self, value: int) -> float:
        return round(100 * (value - self.low) / (self.high - self.low), 2)


def _bar(span: Span, axis_ns: int) -> Bar:
    return Bar(span.phase.value, _percent(span.start_ns, axis_ns), _percent(span.end_ns - span.start_ns, axis_ns))


def _percent(value: float, whole: float) -> float:
    return round(100 * value / whole, 2)


def _byte_ticks(low: int, high: int) -> tuple[Tick, ...]:
    unit, name = next(((u, n) for u, n in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")) if high >= 2 * u), (1, "B"))
    return _ticks(low, high, unit, name)


def _time_ticks(low: int, high: int) -> tuple[Tick, ...]:
    unit, name = next(((u, n) for u, n in ((10**6, "ms"), (10**3, "us")) if high >= u), (1, "ns"))
    return _ticks(low, high, unit, name)


def _ticks(low: int, high: int, unit: int, name: str) -> tuple[Tick, ...]:
    """Round numbers, four to seven of them."""
    span = (high - low) / unit
    magnitude = 10.0 ** math.floor(math.log10(span / 4))
    step = next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if span / (factor * magnitude) <= 6)
    first = math.ceil(low / unit / step)
    last = math.floor(high / unit / step)
    return tuple(
        Tick(_percent(number * step * unit - low, high - low), f"{number * step:.10g} {name}")
        for number in range(first, last + 1)
    )
