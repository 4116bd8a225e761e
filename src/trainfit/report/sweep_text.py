"""A sweep as text: a row per configuration, the fastest first, and why some have no plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trainfit.units import format_bytes

if TYPE_CHECKING:
    from trainfit.sweeps import SweepResult

UNKNOWN = "-"


def sweep_view(results: Sequence[SweepResult]) -> RenderableType:
    """The verdict, the table, and the errors; `results` in the order in which they are shown."""
    lines: list[RenderableType] = [_verdict(results), "", _table(results)]
    reasons = dict.fromkeys(result.error for result in results if result.status == "failed" and result.error)
    if reasons:
        lines += ["", Text("what failed", style="bold"), *(Text(f"  {' '.join(reason.split())}") for reason in reasons)]
    return Group(*lines)


def axes_of(results: Sequence[SweepResult]) -> list[str]:
    """The axes of the configurations; those that were left as they are by all are left out."""
    axes = dict.fromkeys(name for result in results for name in result.configuration.to_json_dict())
    return [name for name in axes if any(_value(result, name) is not None for result in results)]


def axis_text(result: SweepResult, axis: str) -> str:
    """The configuration's value, as it is shown."""
    value = _value(result, axis)
    return UNKNOWN if value is None else str(value)


def rate_of(result: SweepResult) -> tuple[float | None, str]:
    """What the ranking goes by, and its unit."""
    if result.tokens_per_second_per_gpu is None and result.samples_per_second_per_gpu is not None:
        return result.samples_per_second_per_gpu, "samples/s/GPU"
    return result.tokens_per_second_per_gpu, "tokens/s/GPU"


def rate_text(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:,.2f}"


def verdict_text(results: Sequence[SweepResult]) -> tuple[str, str]:
    """How many configurations have a plan, and which is the fastest."""
    num_planned = sum(result.fits for result in results)
    headline = f"{num_planned} of {len(results)} configurations fit"
    if not num_planned:
        return headline, ""
    best = results[0]
    rate, unit = rate_of(best)
    axes = ", ".join(f"{axis.replace('_', ' ')} {axis_text(best, axis)}" for axis in axes_of(results))
    return headline, f"fastest: {axes}" + ("" if rate is None else f": {rate_text(rate)} {unit}")


def note_of(result: SweepResult) -> str:
    """The status, with the smallest budget where there is no plan."""
    if result.minimum_budget_bytes is not None:
        return f"{result.status}: needs {format_bytes(result.minimum_budget_bytes)}"
    return result.status


def overhead_of(result: SweepResult) -> float | None:
    """What the plan's recomputation adds, as a share of the step that recomputes nothing."""
    planned, unplanned = result.step_time_ns, result.unplanned_step_time_ns
    return None if planned is None or not unplanned else (planned - unplanned) / unplanned


def _verdict(results: Sequence[SweepResult]) -> Text:
    headline, detail = verdict_text(results)
    return Text.assemble((headline, "bold green" if detail else "bold red"), f"; {detail}" if detail else "")


def _table(results: Sequence[SweepResult]) -> Table:
    axes = axes_of(results)
    unit = rate_of(results[0])[1] if results else ""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in (*axes, unit, "step", "overhead", "peak reserved"):
        table.add_column(heading.replace("_", " "), justify="right", no_wrap=True)
    table.add_column("")
    for result in results:
        table.add_row(*(axis_text(result, axis) for axis in axes), *_numbers(result), _note(result))
    return table


def _numbers(result: SweepResult) -> tuple[str, ...]:
    rate, overhead = rate_of(result)[0], overhead_of(result)
    return (
        UNKNOWN if rate is None else rate_text(rate),
        UNKNOWN if result.step_time_ns is None else f"{result.step_time_ns / 1e6:.1f} ms",
        UNKNOWN if overhead is None else f"{100 * overhead:+.1f}%",
        UNKNOWN if result.peak_reserved_bytes is None else format_bytes(result.peak_reserved_bytes),
    )


def _note(result: SweepResult) -> Text:
    return Text(note_of(result), style="" if result.fits else "red")


def _value(result: SweepResult, axis: str) -> Any:
    return result.configuration.to_json_dict().get(axis)
