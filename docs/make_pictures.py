"""Draws docs/pictures/*.svg from a real plan of gpt2-medium on a ghost H200: `make pictures`, a minute or two on a CPU.

In: nothing but trainfit's public names. Out: four SVG files, the same for the same version of trainfit and torch.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterable, Sequence
from html import escape
from itertools import accumulate
from pathlib import Path

import trainfit
from trainfit import presets
from trainfit.records import Category, TimelinePoint

FOLDER = Path(__file__).parent / "pictures"
PRESET, BATCH, GPU, BUDGET = "gpt2-medium", 8, "h200", "11GiB"
GIB, MS = 2**30, 10**6

COLOURS = {
    Category.PARAMETERS: "#4c6a92",
    Category.OPTIMIZER: "#7a9cc6",
    Category.WORKSPACES: "#9aa5b1",
    Category.OTHER: "#b8c0c8",
    Category.GRADIENTS: "#5aa17f",
    Category.ACTIVATIONS: "#e0a458",
    Category.TEMPORARIES: "#c8553d",
}
"""From the bottom of the stack to its top: what stays, then what comes and goes."""
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f; }
  .small { font-size: 11px; } .bold { font-weight: 600; } .muted { fill: #57606a; }
  .axis { stroke: #8c959f; stroke-width: 1; } .grid { stroke: #8c959f; stroke-opacity: 0.25; }
  .budget { stroke: #cf222e; stroke-width: 1.5; stroke-dasharray: 6 4; } .budget-text { fill: #cf222e; }
  .line { fill: none; stroke: #0969da; stroke-width: 2; } .plan { fill: #0969da; } .other { fill: #8c959f; }
  .box { fill: #ddf4ff; stroke: #0969da; } .record { fill: none; stroke: none; } .arrow { stroke: #57606a; fill: none; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .muted { fill: #9198a1; } .box { fill: #12314f; } .arrow { stroke: #9198a1; }
    .budget { stroke: #ff7b72; } .budget-text { fill: #ff7b72; } .line { stroke: #58a6ff; } .plan { fill: #58a6ff; }
  }
"""


# ---- SVG -----------------------------------------------------------------------------------------------------------


def svg(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    """A whole file."""
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n{body}\n</svg>\n"
    )


def text(x: float, y: float, words: str, classes: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{classes}" text-anchor="{anchor}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, classes: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{classes}"/>'


@dataclasses.dataclass(frozen=True)
class Plot:
    """A rectangle of the picture with an x and a y axis."""

    left: float
    top: float
    width: float
    height: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]

    def x(self, value: float) -> float:
        low, high = self.x_range
        return self.left + self.width * (value - low) / (high - low)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return self.top + self.height * (1 - (value - low) / (high - low))

    def axes(self, x_ticks: Iterable[float], x_unit: str, y_ticks: Iterable[float], y_unit: str) -> list[str]:
        bottom, right = self.top + self.height, self.left + self.width
        parts = []
        for tick in y_ticks:
            parts.append(line(self.left, self.y(tick), right, self.y(tick), "grid"))
            parts.append(text(self.left - 6, self.y(tick) + 4, f"{tick:g} {y_unit}", "small muted", "end"))
        for tick in x_ticks:
            parts.append(text(self.x(tick), bottom + 16, f"{tick:g} {x_unit}", "small muted", "middle"))
        return [*parts, line(self.left, bottom, right, bottom, "axis")]


def ticks(low: float, high: float) -> list[float]:
    """Four to ten round numbers from `low` to `high`."""
    unit = 10 ** math.floor(math.log10((high - low) / 4))
    step = next(unit * factor for factor in (1, 2, 5, 10) if (high - low) / (unit * factor) <= 10)
    return [step * index for index in range(math.ceil(low / step), math.floor(high / step) + 1)]


# ---- The pictures --------------------------------------------------------------------------------------------------


def flow() -> str:
    """The stages and the records between them."""
    stages = [("trace", "on a ghost GPU"), ("price", "time per op"), ("simulate", "allocator, queues")]
    later = [("solve", "menus, one MILP"), ("apply", "replay in backward"), ("verify", "on a real GPU")]
    parts = [
        '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
        '<path d="M0,0 L8,4 L0,8" class="arrow"/></marker></defs>'
    ]

    def row(y: int, boxes: Sequence[tuple[str, str]], records: Sequence[str]) -> None:
        for index, (name, what) in enumerate(boxes):
            x = 130 + 240 * index
            parts.append(f'<rect x="{x}" y="{y}" width="130" height="54" rx="6" class="box"/>')
            parts.append(text(x + 65, y + 24, name, "bold", "middle"))
            parts.append(text(x + 65, y + 42, what, "small muted", "middle"))
            parts.append(f'<path d="M{x - 108},{y + 27} H{x - 3}" class="arrow" marker-end="url(#tip)"/>')
        for index, record in enumerate(records):
            parts.append(text(76 + 240 * index, y + 18, record, "small", "middle"))

    row(20, stages, ["Step", "Trace", "costs"])
    parts.append('<path d="M740,47 H847" class="arrow" marker-end="url(#tip)"/>')
    parts.append(text(793, 38, "Estimate", "small", "middle"))
    row(140, later, ["Trace, costs", "Plan", "your model"])
    parts.append('<path d="M740,167 H847" class="arrow" marker-end="url(#tip)"/>')
    parts.append(text(793, 158, "Verification", "small", "middle"))
    parts.append('<path d="M435,140 C435,105 660,115 672,78" class="arrow" marker-end="url(#tip)"/>')
    parts.append('<path d="M600,78 C570,112 225,100 210,137" class="arrow" marker-end="url(#tip)"/>')
    parts.append(text(300, 98, "does it fit? by how much is the model of memory off?", "small muted", "middle"))
    parts.append(text(690, 112, "the plan, applied to the ghost, traced", "small muted", "start"))
    return svg(930, 215, "Step, trace, price, simulate, solve, apply, verify", parts)


def areas(plot: Plot, points: Sequence[TimelinePoint]) -> Iterable[str]:
    """The memory by category over time, stacked, as steps."""
    order = list(Category)
    below = [0.0] * len(points)
    for category, colour in COLOURS.items():
        index = order.index(category)
        above = [low + point.bytes_by_category[index] / GIB for low, point in zip(below, points, strict=True)]
        times = [plot.x(point.time_ns / MS) for point in points]
        path = [f"M{times[0]:.1f},{plot.y(below[0]):.1f}"]
        for x, value in zip(times, above, strict=True):
            path.append(f"H{x:.1f}V{plot.y(value):.1f}")
        for x, value in zip(reversed(times), reversed(below), strict=True):
            path.append(f"V{plot.y(value):.1f}H{x:.1f}")
        yield f'<path d="{"".join(path)}Z" fill="{colour}"/>'
        below = above


def thinned(points: Sequence[TimelinePoint], count: int) -> list[TimelinePoint]:
    """The highest point of each of `count` equal stretches of time, so that no peak is lost.

    An op that the GPU has no kernel for ends when the CPU is done with it, ahead of the GPU: it is drawn in its turn.
    """
    times_ns = list(accumulate((point.time_ns for point in points), max))
    in_turn = [dataclasses.replace(point, time_ns=t) for point, t in zip(points, times_ns, strict=True)]
    highest: dict[int, TimelinePoint] = {}
    for point in in_turn:
        stretch = point.time_ns * count // (times_ns[-1] + 1)
        if stretch not in highest or sum(point.bytes_by_category) > sum(highest[stretch].bytes_by_category):
            highest[stretch] = point
    return [highest[stretch] for stretch in sorted(highest)]


def timeline(before: trainfit.Estimate, after: trainfit.Estimate, budget_bytes: int) -> str:
    """Memory over a step, before and after the plan, with the budget."""
    parts = []
    end_ms = max(before.step_time_ms, after.step_time_ms)
    top_gib = before.peak_allocated_bytes / GIB * 1.08
    for index, (name, estimate) in enumerate((("nothing recomputed", before), ("the plan", after))):
        plot = Plot(70, 40 + 250 * index, 820, 190, (0, end_ms), (0, top_gib))
        parts += plot.axes(ticks(0, end_ms), "ms", ticks(0, top_gib), "GiB")
        parts += areas(plot, thinned(estimate.timeline, 400))
        peak = f"{name}: peak {estimate.peak_allocated_bytes / GIB:.1f} GiB, step {estimate.step_time_ms:.1f} ms"
        parts.append(text(70, 28 + 250 * index, peak, "bold"))
        y = plot.y(budget_bytes / GIB)
        parts.append(line(70, y, 890, y, "budget"))
        parts.append(text(886, y - 6, f"budget {budget_bytes / GIB:.0f} GiB", "small budget-text", "end"))
    for index, (category, colour) in enumerate(COLOURS.items()):
        parts.append(f'<rect x="{70 + 117 * index}" y="512" width="12" height="12" fill="{colour}"/>')
        parts.append(text(87 + 117 * index, 522, category.value, "small"))
    return svg(910, 540, f"Allocated memory over one step of {PRESET}, batch {BATCH}, before and after a plan", parts)


def frontier(plans: Sequence[trainfit.Plan], rows: Sequence[tuple[str, int, int]]) -> str:
    """Peak against step time: what plans reach, and what people do without one."""
    points = [(plan.predicted.peak_allocated_bytes / GIB, plan.predicted_step_ns / MS) for plan in plans]
    others = [(name, peak / GIB, step_ns / MS) for name, peak, step_ns in rows]
    peaks = [peak for peak, _ in points] + [peak for _, peak, _ in others]
    times = [step for _, step in points] + [step for _, _, step in others]
    plot = Plot(70, 20, 640, 300, (min(peaks) - 0.5, max(peaks) + 1.5), (min(times) - 2, max(times) + 3))
    parts = plot.axes(ticks(*plot.x_range), "GiB", ticks(*plot.y_range), "ms")
    path = "L".join(f"{plot.x(peak):.1f},{plot.y(step):.1f}" for peak, step in points)
    parts.append(f'<path d="M{path}" class="line"/>')
    parts += [f'<circle cx="{plot.x(p):.1f}" cy="{plot.y(s):.1f}" r="4" class="plan"/>' for p, s in points]
    for name, peak, step in others:
        parts.append(
            f'<rect x="{plot.x(peak) - 4:.1f}" y="{plot.y(step) - 4:.1f}" width="8" height="8" class="other"/>'
        )
        parts.append(text(plot.x(peak) + 8, plot.y(step) - 5, name, "small"))
    parts.append(text(390, 358, "peak allocated; one dot per plan", "small muted", "middle"))
    return svg(730, 370, f"Frontier of {PRESET}, batch {BATCH}, on a ghost {GPU}", parts)


def menu(plans: Sequence[trainfit.Plan]) -> str:
    """What one block can keep, and what it then costs to get the rest back: the options that the plans chose."""
    options = {
        (decision.kept_bytes / 2**20, decision.recompute_ns / 1000, decision.summary)
        for plan in plans
        for decision in plan.decisions
    }
    points = sorted(options)
    plot = Plot(
        70, 20, 640, 260, (0, 1.1 * max(kept for kept, _, _ in points)), (0, 1.1 * max(t for _, t, _ in points))
    )
    parts = plot.axes(ticks(*plot.x_range), "MiB", ticks(*plot.y_range), "us")
    path = "L".join(f"{plot.x(kept):.1f},{plot.y(time):.1f}" for kept, time, _ in points)
    parts.append(f'<path d="M{path}" class="line"/>')
    for kept, time, summary in points:
        parts.append(
            f'<circle cx="{plot.x(kept):.1f}" cy="{plot.y(time):.1f}" r="4" class="plan">'
            f"<title>{escape(summary)}</title></circle>"
        )
    parts.append(text(390, 316, "kept per block; up: time to recompute the rest", "small muted", "middle"))
    return svg(730, 330, "The menu of one block: memory kept against time to recompute", parts)


def main() -> None:
    """Draw all pictures."""
    step = presets.build(PRESET, batch=BATCH)
    plan = trainfit.plan(step, GPU, budget=BUDGET, memory="allocated")

    def planned_model() -> object:
        assert callable(step.model)
        model = step.model()
        plan.apply(model, strict=True)
        return model

    before = trainfit.estimate(step, GPU)
    after = trainfit.estimate(dataclasses.replace(step, model=planned_model), GPU)
    assert after.peak_allocated_bytes == plan.predicted.peak_allocated_bytes, "the plan is what is drawn"
    plans = trainfit.plan_frontier(step, GPU, memory="allocated")
    rows = [(row.name, row.peak_bytes, row.step_ns) for row in plan.rows if row.name.startswith("every")]
    FOLDER.mkdir(exist_ok=True)
    pictures = {
        "flow": flow(),
        "timeline": timeline(before, after, plan.budget_bytes),
        "frontier": frontier(plans, rows),
        "menu": menu(plans),
    }
    for name, content in pictures.items():
        path = FOLDER / f"{name}.svg"
        path.write_text(content)
        print(f"Wrote {path.relative_to(FOLDER.parents[1])}", file=sys.stderr)


if __name__ == "__main__":
    main()
