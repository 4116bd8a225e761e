"""What curve.py measured, as tables: rows as its processes wrote them -> one `Way` per model and way -> text.

No torch. A file's rows are peaks, counts and turns of a way, in any order; turns have the times of some steps each.
Rows of verify_plans.py are ways too: plans at budgets, each beside the eager of its own process.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

GIB = 2**30


@dataclass(frozen=True)
class Way:
    """A way of training one model."""

    model: str
    name: str
    allocated_bytes: int
    first_step_allocated_bytes: int
    reserved_bytes: int
    times_ms: tuple[float, ...]  # until the GPU was done
    issued_ms: float | None  # until the CPU had issued everything, median; None where it was not taken
    eager_ms: float  # of the same process
    reruns: int | None = None  # None where nothing is planned

    @property
    def ms(self) -> float:
        return statistics.median(self.times_ms)

    @property
    def over_eager(self) -> float:
        return self.ms / self.eager_ms - 1

    @property
    def quartiles_ms(self) -> tuple[float, float]:
        first, _, third = statistics.quantiles(self.times_ms, n=4, method="inclusive")
        return first, third


def merged(rows: Iterable[dict[str, Any]]) -> list[Way]:
    """The ways that were timed, in the order in which they first appear."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    verified = []
    for row in rows:
        if "error" in row:
            continue
        if "plan" in row:
            verified.append(_verified(row))
        elif "way" in row:
            whole = found.setdefault((row["model"], row["way"]), {"done_ms": [], "issued_ms": []})
            for key, value in row.items():
                whole[key] = whole[key] + value if key in ("done_ms", "issued_ms") else value
    return [
        Way(
            model=model,
            name=name,
            allocated_bytes=whole["allocated_bytes"],
            first_step_allocated_bytes=whole["first_step_allocated_bytes"],
            reserved_bytes=whole["reserved_bytes"],
            times_ms=tuple(whole["done_ms"]),
            issued_ms=statistics.median(whole["issued_ms"]),
            eager_ms=statistics.median(
                (found.get((model, f"eager beside {name}")) or found[model, "eager"])["done_ms"]
            ),
            reruns=whole.get("reruns"),
        )
        for (model, name), whole in found.items()
        if len(whole["done_ms"]) > 1 and "allocated_bytes" in whole
    ] + verified


def _verified(row: dict[str, Any]) -> Way:
    model, _, budget = row["plan"].removesuffix(".json").partition("_")
    planned = row["planned"]
    return Way(
        model=model,
        name=f"plan {budget}",
        allocated_bytes=planned["allocated_bytes"],
        first_step_allocated_bytes=planned["first_step_allocated_bytes"],
        reserved_bytes=planned["reserved_bytes"],
        times_ms=tuple(planned[key] / 1e6 for key in ("fastest_step_ns", "step_ns", "slowest_step_ns")),
        issued_ms=None,
        eager_ms=row["unplanned"]["step_ns"] / 1e6,
        reruns=len(row["checkpointed_blocks"]),
    )


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """A row per way, beside the eager of its process; failures after them."""
    yield "| model | | peak GiB | first step | reserved | ms | quartiles | issued | over eager | steps | reruns |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    ways = merged(rows)
    for way in sorted(ways, key=lambda way: [each.model for each in ways].index(way.model)):
        sizes = (way.allocated_bytes, way.first_step_allocated_bytes, way.reserved_bytes)
        low, high = way.quartiles_ms
        yield (
            f"| {way.model} | {way.name} | {' | '.join(f'{size / GIB:.3f}' for size in sizes)} | {way.ms:.1f}"
            f" | {low:.1f} to {high:.1f} | {'' if way.issued_ms is None else f'{way.issued_ms:.1f}'}"
            f" | {way.over_eager:+.1%} | {len(way.times_ms)} | {'' if way.reruns is None else way.reruns} |"
        )
    for row in rows:
        if "error" in row:
            what = f"{row['model']}, {row['way']}" if "way" in row else " ".join(row["case"][-2:])
            yield f"\nfailed: {what}: {' '.join(row['error'].split())[-200:]}"


LIMITS: dict[str, Callable[[float, float], float]] = {
    "torch selective": lambda eager, other: 0.8 * other,
    "torch selective, attention only": lambda eager, other: 0.8 * other,
    "every second layer": lambda eager, other: eager + 0.5 * (other - eager),
    "every layer": lambda eager, other: other,
}
"""(eager's time, the other's) -> what our plan at the other's peak may take."""


def promises(rows: list[dict[str, Any]]) -> Iterator[str]:
    """What was promised about the curve, per model, and what nobody could keep."""
    found = {(way.model, way.name): way.ms for way in merged(rows)}
    for (model, name), eager in found.items():
        if name != "eager":
            continue
        for other, limit_of in LIMITS.items():
            plan = f"plan peak_{other.removeprefix('torch ').replace(',', '').replace(' ', '_')}"
            if (model, other) not in found or (model, plan) not in found:
                continue
            other_ms, plan_ms = found[model, other], found[model, plan]
            limit = limit_of(eager, other_ms)
            yield (
                f"{model}, {other}: {other_ms:.1f} ms ({other_ms / eager - 1:+.1%} over eager's {eager:.1f}), "
                f"our plan at its peak {plan_ms:.1f} ms ({plan_ms / eager - 1:+.1%}, {plan_ms / other_ms:.2f} of it); "
                f"limit {limit:.1f}: " + _verdict(plan_ms, limit, eager, other_ms)
            )


def _verdict(plan_ms: float, limit_ms: float, eager_ms: float, other_ms: float) -> str:
    if plan_ms <= limit_ms:
        return "holds"
    if limit_ms < eager_ms:
        return (
            f"does not hold; the limit is below eager ({eager_ms / other_ms:.2f} of it): "
            "cannot be met by anything that computes the whole step"
        )
    return "does not hold"
