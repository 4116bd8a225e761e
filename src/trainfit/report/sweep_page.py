"""A sweep as a page: everything that it shows, as numbers and words, for `html.render_sweep`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainfit.report import sweep_text
from trainfit.report.view import Verdict
from trainfit.units import format_bytes

if TYPE_CHECKING:
    from trainfit.sweeps import SweepResult


@dataclass(frozen=True, slots=True)
class Cell:
    """A value as it is shown, and the number that it is sorted by; None where it is sorted as text."""

    text: str
    number: float | None


@dataclass(frozen=True, slots=True)
class Heading:
    """A column."""

    text: str
    is_sorted_as_text: bool


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One configuration."""

    cells: tuple[Cell, ...]
    note: str
    fits: bool
    error: str | None


@dataclass(frozen=True, slots=True)
class SweepPage:
    """What the page of a sweep shows."""

    title: str
    verdict: Verdict
    headings: tuple[Heading, ...]
    rows: tuple[SweepRow, ...]
    provenance: tuple[tuple[str, str], ...]
    file_name: str
    file_text: str
    """The results without their plans."""


def sweep_page(results: Sequence[SweepResult], title: str, command: str | None = None) -> SweepPage:
    """The page of results that are in order."""
    # On a narrow screen the second column gives way: the budget, which is mostly the same.
    axes = ["gpu", "budget", *(axis for axis in sweep_text.axes_of(results) if axis not in ("gpu", "budget"))]
    unit = sweep_text.rate_of(results[0])[1] if results else ""
    rows = tuple(_row(result, axes) for result in results)
    headline, detail = sweep_text.verdict_text(results)
    fields = [result.to_json_dict() for result in results]
    for each in fields:
        del each["plan"]
    return SweepPage(
        title=title,
        verdict=Verdict(bool(detail), headline, detail),
        headings=tuple(
            Heading(name.replace("_", " "), any(row.cells[column].number is None for row in rows))
            for column, name in enumerate((*axes, unit, "step", "overhead", "peak reserved"))
        ),
        rows=rows,
        provenance=(("command", command),) if command else (),
        file_name="sweep.json",
        file_text=json.dumps(fields, indent=1) + "\n",
    )


def _row(result: SweepResult, axes: Sequence[str]) -> SweepRow:
    cells = []
    for axis in axes:
        value = result.configuration.to_json_dict().get(axis)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        cells.append(
            Cell(sweep_text.axis_text(result, axis), float(value) if is_number and value is not None else None)
        )
    rate, overhead = sweep_text.rate_of(result)[0], sweep_text.overhead_of(result)
    step_ns, peak_bytes = result.step_time_ns, result.peak_reserved_bytes
    cells += [
        _number(rate, None if rate is None else sweep_text.rate_text(rate)),
        _number(step_ns, None if step_ns is None else f"{step_ns / 1e6:.1f} ms"),
        _number(overhead, None if overhead is None else f"{overhead:+.1%}"),
        _number(peak_bytes, None if peak_bytes is None else format_bytes(peak_bytes)),
    ]
    return SweepRow(tuple(cells), sweep_text.note_of(result), result.fits, result.error)


def _number(value: float | None, text: str | None) -> Cell:
    """A cell; what is not there is sorted below all that is."""
    return Cell(sweep_text.UNKNOWN, -1.0) if value is None or text is None else Cell(text, float(value))
