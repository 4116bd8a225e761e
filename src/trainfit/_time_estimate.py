"""`time_step`: a traced step is priced and played, Trace -> costs -> `StepTime` -> `TimeEstimate`.

This file composes the stages and adds up what they found: by phase, by op, by module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from trainfit.cost import COLLECTIVE, OpCost, Pricing, issue_times_ns, price_with, unpriced
from trainfit.records import Op, Phase, TimelinePoint, Trace
from trainfit.simulate import simulate_time

LAUNCH_BOUND_IDLE = 0.15
"""A step is launch-bound when the GPU waits for the CPU for more than this share of it."""
TOP = 10
# How far a step's time may be off, as factors: measured beside predicted over the zoo
# (benchmarks/results/time_h200.md).
_RANGES = {"launch-bound": (0.8, 1.3), "profile": (0.92, 1.08), "datasheet": (0.8, 1.2)}


@dataclass(frozen=True, slots=True)
class TimeShare:
    """What one kind of op, or one kind of module, takes of the GPU's time."""

    name: str
    count: int
    """How many ops."""
    time_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeEstimate:
    """How long one step takes, and where the time goes."""

    step_ms: float
    range_ms: tuple[float, float]
    phase_ms: dict[str, float]
    """By what was running; sums to `step_ms`."""
    gpu_busy_ms: float
    """The sum of the kernels' times, collectives left out."""
    host_ms: float
    """What the CPU takes to issue the step."""
    launch_bound: bool
    mfu: float
    """The time that the model's own arithmetic would take at the datasheet's rates, as a share of the step."""
    source: Literal["profile", "datasheet"]
    roofline_share: float
    """The share of the GPU's time that no rule priced."""
    top_ops: tuple[TimeShare, ...]
    top_modules: tuple[TimeShare, ...]
    """Modules that differ only in a number, the layers of a stack, are one: "layers.*.mlp"."""
    op_ends_ns: tuple[int, ...]
    """When each op of the steady step is done, in the order in which they run."""
    samples_per_second: float | None = None
    tokens_per_second: float | None = None
    """None where the batch has no token ids."""
    communication_ms: float = 0.0
    """The sum of the collectives' times."""
    exposed_communication_ms: float = 0.0
    """How much shorter the step would be if collectives took no time."""

    def to_json_dict(self) -> dict[str, Any]:
        """The time's part of an estimate's JSON."""
        return {
            "step_time_ms": round(self.step_ms, 3),
            "step_time_range_ms": [round(value, 3) for value in self.range_ms],
            "phase_time_ms": {phase: round(value, 3) for phase, value in self.phase_ms.items()},
            "gpu_busy_ms": round(self.gpu_busy_ms, 3),
            "communication_ms": round(self.communication_ms, 3),
            "exposed_communication_ms": round(self.exposed_communication_ms, 3),
            "host_ms": round(self.host_ms, 3),
            "launch_bound": self.launch_bound,
            "mfu": round(self.mfu, 4),
            "time_source": self.source,
            "roofline_share": round(self.roofline_share, 4),
            "samples_per_second": _rounded(self.samples_per_second),
            "tokens_per_second": _rounded(self.tokens_per_second),
            "top_ops": [_share_json(share) for share in self.top_ops],
            "top_modules": [_share_json(share) for share in self.top_modules],
        }


def time_step(trace: Trace, pricing: Pricing) -> TimeEstimate:
    """The time of a steady step of `trace`."""
    ops, costs, issue_ns = _steady_step(trace, pricing)
    played = simulate_time(ops, issue_ns, [cost.time_ns for cost in costs])
    silent_ns = [0 if cost.rule == COLLECTIVE else cost.time_ns for cost in costs]
    busy_ns, step_ns = sum(silent_ns), played.step_ns
    communication_ns = played.gpu_busy_ns - busy_ns
    exposed_ns = step_ns - simulate_time(ops, issue_ns, silent_ns).step_ns if communication_ns else 0
    launch_bound = step_ns - exposed_ns - busy_ns > LAUNCH_BOUND_IDLE * step_ns
    source: Literal["profile", "datasheet"] = "profile" if pricing.is_measured else "datasheet"
    low, high = _RANGES["launch-bound" if launch_bound else source]
    arithmetic_ns = sum(
        cost.arithmetic_ns for op, cost in zip(ops, costs, strict=True) if op.phase is not Phase.RECOMPUTE
    )
    phase_ms = {phase.value: 0.0 for phase in Phase if phase is not Phase.BUILD}
    return TimeEstimate(
        step_ms=step_ns / 1e6,
        range_ms=(max(low * step_ns, low * busy_ns) / 1e6, high * step_ns / 1e6),
        phase_ms=phase_ms | {phase.value: elapsed_ns / 1e6 for phase, elapsed_ns in played.phase_ns},
        gpu_busy_ms=sum(cost.kernel_ns for cost in costs if cost.rule != COLLECTIVE) / 1e6,
        host_ms=played.host_ns / 1e6,
        launch_bound=launch_bound,
        mfu=arithmetic_ns / step_ns if step_ns else 0.0,
        source=source,
        roofline_share=unpriced(costs),
        top_ops=_top((op.name, cost) for op, cost in zip(ops, costs, strict=True)),
        top_modules=_top((_module_kind(op), cost) for op, cost in zip(ops, costs, strict=True)),
        op_ends_ns=played.ends_ns,
        communication_ms=communication_ns / 1e6,
        exposed_communication_ms=exposed_ns / 1e6,
    )


def share_not_hidden(trace: Trace, pricing: Pricing, blocks: Sequence[str], work_ns: int) -> float:
    """The share of `work_ns` more work before each block's backward by which the step gets longer, on the average of
    the blocks; less than 1 where the GPU would wait for collectives in the meantime."""
    ops, costs, issue_ns = _steady_step(trace, pricing)
    gpu_ns = [cost.time_ns for cost in costs]
    if work_ns == 0 or not any(op.stream for op in ops):
        return 1.0
    step_ns = simulate_time(ops, issue_ns, gpu_ns).step_ns
    shares = []
    for block in blocks:
        first = next((number for number, op in enumerate(ops) if _is_backward_of(block, op) and gpu_ns[number]), None)
        if first is not None:
            slower = simulate_time(ops, issue_ns, [*gpu_ns[:first], gpu_ns[first] + work_ns, *gpu_ns[first + 1 :]])
            shares.append((slower.step_ns - step_ns) / work_ns)
    return sum(shares) / len(shares) if shares else 1.0


def _is_backward_of(block: str, op: Op) -> bool:
    """Whether the op is the block's own work: the copies of its parameters, which come before any replay, are not."""
    is_own = op.phase is Phase.BACKWARD and op.stream == 0 and op.name.startswith("aten.")
    return is_own and f"{op.module}.".startswith(f"{block}.")


def _steady_step(trace: Trace, pricing: Pricing) -> tuple[list[Op], tuple[OpCost, ...], tuple[int, ...]]:
    """The ops of a steady step, what each costs, and what the CPU takes to issue it."""
    sections = (trace.sections[index] for index in trace.steady_step)
    ops = [op for section in sections for op in trace.ops[section.first_op : section.last_op]]
    costs = price_with(ops, pricing)
    return ops, costs, issue_times_ns(ops, [cost.kernels for cost in costs], pricing.profile.host)


def timed_points(trace: Trace, points: Iterable[TimelinePoint], op_ends_ns: Sequence[int]) -> tuple[TimelinePoint, ...]:
    """The memory timeline with the moment of each point; both are in the order in which the steady step runs."""
    sections = (trace.sections[index] for index in trace.steady_step)
    running = [op for section in sections for op in range(section.first_op, section.last_op)]
    timed, position = [], 0
    for point in points:
        position = running.index(point.op, position)
        timed.append(replace(point, time_ns=op_ends_ns[position]))
    return tuple(timed)


def _top(named: Iterable[tuple[str, OpCost]]) -> tuple[TimeShare, ...]:
    totals: dict[str, tuple[int, int]] = {}
    for name, cost in named:
        if cost.time_ns:
            count, time_ns = totals.get(name, (0, 0))
            totals[name] = count + 1, time_ns + cost.time_ns
    ranked = sorted(totals.items(), key=lambda item: (-item[1][1], item[0]))[:TOP]
    return tuple(TimeShare(name, count, time_ns / 1e6) for name, (count, time_ns) in ranked)


def _module_kind(op: Op) -> str:
    if op.phase is Phase.OPTIMIZER:
        return "(optimizer)"
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", op.module) or "(outside modules)"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _share_json(share: TimeShare) -> dict[str, Any]:
    return {"name": share.name, "count": share.count, "time_ms": round(share.time_ms, 4)}
