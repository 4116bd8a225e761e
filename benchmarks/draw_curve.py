"""Draws what curve.py and verify_plans.py measured: peak memory against step time, a panel per model, as one SVG.

    python benchmarks/draw_curve.py curve.jsonl verified.jsonl -o curve.svg

Time is relative to eager's in the same process. Our plans and compile's budgets are lines, through those that no other
of the same kind beats in both memory and time.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from curve_tables import GIB, Way, merged

PANEL_WIDTH, PANEL_HEIGHT = 380, 330
LEFT, TOP, GAP, BOTTOM = 62, 56, 66, 96
FONT = 'font-family="system-ui, sans-serif"'


@dataclass(frozen=True)
class Series:
    """A family of ways to train; `prefix` is how their names begin."""

    label: str
    prefix: tuple[str, ...]
    colour: str
    is_line: bool = False


SERIES = (
    Series("trainfit plans", ("plan",), "#0b6e4f", is_line=True),
    Series("torch.compile, activation budgets", ("compile",), "#6c4ab6", is_line=True),
    Series("checkpointing: every layer, every second", ("every",), "#c7522a"),
    Series("torch selective checkpointing", ("torch selective",), "#d4a017"),
    Series("replay, selective's ops", ("replay",), "#3a86c8"),
    Series("eager", ("eager",), "#222222"),
)
Point = tuple[float, float]  # GiB, time relative to eager


def points_of(ways: Sequence[Way], series: Series) -> list[Point]:
    """The series' points by rising peak."""
    found = [(way.allocated_bytes / GIB, way.over_eager + 1) for way in ways if way.name.startswith(series.prefix)]
    return sorted(found)


def unbeaten(points: list[Point]) -> list[Point]:
    """Those with less time than every point of smaller peak; `points` are by rising peak."""
    return [point for index, point in enumerate(points) if all(point[1] < other[1] for other in points[:index])]


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers that cover the range."""
    raw = (high - low) / count
    scale = 10 ** math.floor(math.log10(raw))
    step = next(scale * factor for factor in (1, 2, 2.5, 5, 10) if scale * factor >= raw)
    first = math.floor(low / step)
    return [round(index * step, 10) for index in range(first, math.ceil(high / step) + 1)]


@dataclass(frozen=True)
class Axes:
    """Where a panel's values lie in the picture."""

    left: float
    xs: list[float]
    ys: list[float]

    def place(self, point: Point) -> Point:
        x_share = (point[0] - self.xs[0]) / (self.xs[-1] - self.xs[0])
        y_share = (point[1] - self.ys[0]) / (self.ys[-1] - self.ys[0])
        return self.left + x_share * PANEL_WIDTH, TOP + (1 - y_share) * PANEL_HEIGHT


def panel(model: str, rows: Sequence[Way], left: float) -> Iterator[str]:
    everything = [point for series in SERIES for point in points_of(rows, series)]
    axes = Axes(
        left,
        ticks(min(x for x, _ in everything), max(x for x, _ in everything), 6),
        ticks(min(y for _, y in everything), max(y for _, y in everything), 6),
    )
    right, bottom = left + PANEL_WIDTH, TOP + PANEL_HEIGHT
    yield text(left, TOP - 14, model, size=15, weight="600")
    for x in axes.xs:
        at, _ = axes.place((x, axes.ys[0]))
        yield f'<line x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{bottom}" stroke="#e6e6e6"/>'
        yield text(at, bottom + 17, f"{x:g}", anchor="middle")
    for y in axes.ys:
        _, at = axes.place((axes.xs[0], y))
        yield f'<line x1="{left}" y1="{at:.1f}" x2="{right}" y2="{at:.1f}" stroke="#e6e6e6"/>'
        yield text(left - 7, at + 4, f"{y:.2f}", anchor="end")
    yield text((left + right) / 2, bottom + 36, "peak allocated, GiB", anchor="middle")
    for series in reversed(SERIES):
        points = points_of(rows, series)
        placed = [axes.place(point) for point in points]
        if series.is_line and points:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (axes.place(point) for point in unbeaten(points)))
            yield f'<polyline points="{path}" fill="none" stroke="{series.colour}" stroke-width="2"/>'
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{series.colour}"/>' for x, y in placed)


def text(x: float, y: float, content: str, *, size: int = 12, weight: str = "400", anchor: str = "start") -> str:
    style = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="#333333" {FONT}'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(content)}</text>'


def picture(rows: Sequence[dict[str, Any]]) -> str:
    measured = merged(rows)
    models = list(dict.fromkeys(way.model for way in measured))
    width = LEFT + len(models) * (PANEL_WIDTH + GAP)
    height = TOP + PANEL_HEIGHT + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        text(8, 20, "step time relative to eager, against peak memory", size=13),
    ]
    for index, model in enumerate(models):
        parts += panel(model, [way for way in measured if way.model == model], LEFT + index * (PANEL_WIDTH + GAP))
    x = float(LEFT)
    for series in SERIES:
        parts.append(f'<circle cx="{x:.1f}" cy="{height - 22}" r="4" fill="{series.colour}"/>')
        parts.append(text(x + 9, height - 18, series.label))
        x += 30 + 6.6 * len(series.label)
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, nargs="+", help="jsonl files that curve.py and verify_plans.py wrote")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    rows = [json.loads(line) for path in args.rows for line in path.read_text().splitlines()]
    args.output.write_text(picture(rows))
    print(f"Wrote {args.output}")


if __name__ == "__main__":
    main()
