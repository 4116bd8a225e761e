"""A plan as text: the comparison, the decisions with equal layers in one row, and differences between two plans."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trainfit.fingerprint import format_ranges
from trainfit.units import format_bytes

if TYPE_CHECKING:
    from trainfit._plan_record import Decision, Plan


def plan_view(plan: Plan) -> RenderableType:
    """The verdict, the comparison, the decisions, and what limits."""
    moment = plan.predicted.peak_at
    where = f" in {moment.module}" if moment.module else ""
    return Group(
        _verdict(plan),
        "",
        _comparison(plan),
        "",
        Text("decisions", style="bold"),
        Padding(_decisions(plan), (0, 0, 0, 2)),
        "",
        Text(f"the peak is in {moment.phase.value}, at {moment.op}{where}"),
        *([Text(_gap(plan))] if plan.decisions else []),
    )


def frontier_view(plans: Sequence[Plan]) -> RenderableType:
    """Peak against step time, a row per plan."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("budget", f"peak {plans[0].memory}", "step", "overhead"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for plan in plans:
        row, base_ns = plan.rows[-1], plan.rows[0].step_ns
        overhead = f"+{100 * (row.step_ns - base_ns) / max(1, base_ns):.1f}%"
        sizes = format_bytes(plan.budget_bytes), format_bytes(row.peak_bytes)
        table.add_row(*sizes, f"{row.step_ns / 1e6:.1f} ms", overhead, plan.status)
    return table


def diff(one: Plan, other: Plan) -> str:
    """A unified diff of what the plans say, in words."""
    lines = difflib.unified_diff(_facts(one), _facts(other), "this plan", "the other", lineterm="", n=0)
    return "\n".join(line for line in lines if not line.startswith("@@"))


def blocks_in_words(blocks: Sequence[str]) -> str:
    """Numbered neighbours as a range: "model.layers.0-11 (x12)"."""
    rows: dict[tuple[str, str], list[int]] = {}
    for block in blocks:
        parts = block.split(".")
        number = next((i for i in reversed(range(len(parts))) if parts[i].isdigit()), None)
        if number is None:
            rows[block, ""] = []
        else:
            key = "".join(f"{part}." for part in parts[:number]), "".join(f".{part}" for part in parts[number + 1 :])
            rows.setdefault(key, []).append(int(parts[number]))
    names = [f"{before}{format_ranges(sorted(numbers))}{after}" for (before, after), numbers in rows.items()]
    return f"{', '.join(names)} (x{len(blocks)})" if len(blocks) > 1 else names[0]


def _verdict(plan: Plan) -> Text:
    predicted = plan.predicted
    peak_bytes = predicted.peak_reserved_bytes if plan.memory == "reserved" else predicted.peak_allocated_bytes
    sizes = f"{format_bytes(peak_bytes)} of {format_bytes(plan.budget_bytes)} {plan.memory}"
    share = f"{100 * peak_bytes / plan.budget_bytes:.1f}%"
    return Text.assemble((plan.status, "bold green"), f" on {plan.gpu}: {sizes} ({share}), gap {100 * plan.gap:.2f}%")


def _gap(plan: Plan) -> str:
    """What the gap is relative to, and how much of it the allocator makes."""
    bound = (
        f"gap {100 * plan.gap:.2f}%: no plan that allocates at most {format_bytes(plan.budget_bytes)} is faster by more"
    )
    if plan.memory == "allocated" or plan.gap_as_allocated is None:
        return bound
    allocated_bytes = plan.predicted.peak_allocated_bytes
    wasted_bytes = plan.predicted.peak_reserved_bytes - allocated_bytes
    return (
        f"{bound}\n{plan.allocator} segments waste {format_bytes(wasted_bytes)}; no plan that allocates as little, "
        f"{format_bytes(allocated_bytes)}, is faster by more than {100 * plan.gap_as_allocated:.2f}%"
    )


def _comparison(plan: Plan) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("")
    for heading in (f"peak {plan.memory}", "step", "overhead"):
        table.add_column(heading, justify="right")
    table.add_column("")
    base_ns = plan.rows[0].step_ns
    for row in plan.rows:
        table.add_row(
            Text(row.name, style="bold" if row.name == "plan" else ""),
            format_bytes(row.peak_bytes),
            f"{row.step_ns / 1e6:.1f} ms",
            f"+{100 * (row.step_ns - base_ns) / max(1, base_ns):.1f}%",
            Text("fits", style="green") if row.fits else Text("does not fit", style="red"),
        )
    return table


def _decisions(plan: Plan) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    for decision in plan.decisions:
        table.add_row(blocks_in_words(decision.blocks), decision.summary)
        table.add_row("", Text(_cost(decision), style="dim"))
    if not plan.decisions:
        table.add_row("nothing to recompute: every block keeps everything")
    return table


def _cost(decision: Decision) -> str:
    return f"keeps {format_bytes(decision.kept_bytes)}, recomputes {decision.recompute_ns / 1e6:.2f} ms per block"


def _facts(plan: Plan) -> list[str]:
    return list(_fact_lines(plan))


def _fact_lines(plan: Plan) -> Iterator[str]:
    for name in ("trainfit", "torch", "gpu", "allocator", "memory", "status"):
        yield f"{name}: {getattr(plan, name)}"
    yield f"budget: {format_bytes(plan.budget_bytes)}"
    yield f"peak allocated: {format_bytes(plan.predicted.peak_allocated_bytes)}"
    yield f"peak reserved: {format_bytes(plan.predicted.peak_reserved_bytes)}"
    yield f"step: {plan.predicted_step_ns / 1e6:.1f} ms"
    yield from (f"input: {line}" for line in plan.inputs)
    yield from (f"model: {line}" for line in plan.model)
    for decision in plan.decisions:
        yield f"{blocks_in_words(decision.blocks)}: {decision.summary}; storages {list(decision.kept)}"
