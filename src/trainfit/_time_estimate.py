"""`time_step`: a traced step is priced and played, Trace -> costs -> `StepTime` -> `TimeEstimate`.

This file composes the stages and adds up what they found: by phase, by op, by module.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from trainfit.cost import (
    MEASURED_COLLECTIVE,
    HostCosts,
    OpCost,
    Pricing,
    further_times_ns,
    issue_times_ns,
    kernels_in_turn,
    kernels_off,
    price_with,
    unpriced,
)
from trainfit.records import Op, Phase, StepTime, TimelinePoint, Trace
from trainfit.simulate import simulate_time

LAUNCH_BOUND_IDLE = 0.15
"""A step is launch-bound when the GPU waits for the CPU for more than this share of it."""
TOP = 10
_DATASHEET_OFF = 0.2
"""How far kernels' times may be off on a GPU that nobody measured, as a share, beside what prices are off on the one
that was. How far the host's may be off is part of its costs."""


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
    gpu_busy_range_ms: tuple[float, float]
    """Nine in ten are inside: narrow where ops like the step's were measured, wide where none were."""
    host_ms: float
    """What the CPU takes to issue the step."""
    launch_bound: bool
    launch_bound_sure: bool
    """Whether it is so at both ends of the range: near the line the host's speed decides."""
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
    communication_source: Literal["profile", "links"] | None = None
    """Whether collectives were measured, or all or some of them are by what the links carry; None without any."""

    @property
    def waiting_ms(self) -> float:
        """How long the GPU waits for the CPU."""
        return self.step_ms - self.exposed_communication_ms - self.gpu_busy_ms

    @property
    def bound_by(self) -> Literal["launches", "communication", "kernels"]:
        """What there would have to be less of for the step to be much shorter."""
        if self.launch_bound:
            return "launches"
        return "communication" if self.exposed_communication_ms > self.step_ms / 2 else "kernels"

    def to_json_dict(self) -> dict[str, Any]:
        """The time's part of an estimate's JSON."""
        return {
            "step_time_ms": round(self.step_ms, 3),
            "step_time_range_ms": [round(value, 3) for value in self.range_ms],
            "phase_time_ms": {phase: round(value, 3) for phase, value in self.phase_ms.items()},
            "gpu_busy_ms": round(self.gpu_busy_ms, 3),
            "gpu_busy_range_ms": [round(value, 3) for value in self.gpu_busy_range_ms],
            "communication_ms": round(self.communication_ms, 3),
            "exposed_communication_ms": round(self.exposed_communication_ms, 3),
            "communication_source": self.communication_source,
            "host_ms": round(self.host_ms, 3),
            "launch_bound": self.launch_bound,
            "launch_bound_sure": self.launch_bound_sure,
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
    step = price_steady_step(trace, pricing)
    ops, costs, played = step.ops, step.costs, step.play(step.gpu_ns)
    silent_ns = [0 if cost.is_collective else cost.time_ns for cost in costs]
    busy_ns, step_ns = sum(silent_ns), played.step_ns
    communication_ns = played.gpu_busy_ns - busy_ns
    exposed_ns = step_ns - step.play(silent_ns).step_ns if communication_ns else 0
    source: Literal["profile", "datasheet"] = "profile" if pricing.is_measured else "datasheet"
    launch_bound = _is_launch_bound(step_ns - exposed_ns - busy_ns, step_ns)
    off = kernels_off(costs) if pricing.is_measured else math.hypot(kernels_off(costs), _DATASHEET_OFF)
    ends = _ends_ns(step, pricing.profile.host, off)
    gpu_busy_ms = sum(cost.kernel_ns for cost in costs if not cost.is_collective) / 1e6
    arithmetic_ns = sum(
        cost.arithmetic_ns for op, cost in zip(ops, costs, strict=True) if op.phase is not Phase.RECOMPUTE
    )
    phase_ms = {phase.value: 0.0 for phase in Phase if phase is not Phase.BUILD}
    return TimeEstimate(
        step_ms=step_ns / 1e6,
        range_ms=(ends[0][0] / 1e6, ends[1][0] / 1e6),
        phase_ms=phase_ms | {phase.value: elapsed_ns / 1e6 for phase, elapsed_ns in played.phase_ns},
        gpu_busy_ms=gpu_busy_ms,
        gpu_busy_range_ms=(gpu_busy_ms / (1 + off), gpu_busy_ms * (1 + off)),
        host_ms=played.host_ns / 1e6,
        launch_bound=launch_bound,
        launch_bound_sure=all(
            _is_launch_bound(end_ns - exposed_ns - end_busy_ns, end_ns) == launch_bound for end_ns, end_busy_ns in ends
        ),
        mfu=arithmetic_ns / step_ns if step_ns else 0.0,
        source=source,
        roofline_share=unpriced(costs),
        top_ops=_top((op.name, cost) for op, cost in zip(ops, costs, strict=True)),
        top_modules=_top((_module_kind(op), cost) for op, cost in zip(ops, costs, strict=True)),
        op_ends_ns=played.ends_ns,
        communication_ms=communication_ns / 1e6,
        exposed_communication_ms=exposed_ns / 1e6,
        communication_source=_communication_source(costs),
    )


def steady_step_ns(trace: Trace, pricing: Pricing) -> int:
    """The time of a steady step, and nothing else about it."""
    step = price_steady_step(trace, pricing)
    return step.play(step.gpu_ns).step_ns


def _is_launch_bound(waiting_ns: int, step_ns: int) -> bool:
    return waiting_ns > LAUNCH_BOUND_IDLE * step_ns


def _ends_ns(step: SteadyStep, host: HostCosts, off: float) -> tuple[tuple[int, int], tuple[int, int]]:
    """The step, and how long the GPU is busy in it, on the host at its fastest with kernels as fast as they may be, and
    on the slowest with the slowest."""

    def played_ns(host_percent: int, kernels: float) -> tuple[int, int]:
        times_ns = [round(time_ns * kernels) for time_ns in step.gpu_ns]
        busy_ns = sum(time_ns for cost, time_ns in zip(step.costs, times_ns, strict=True) if not cost.is_collective)
        return step.play(times_ns, host_percent).step_ns, busy_ns

    return played_ns(host.fast_percent, 1 / (1 + off)), played_ns(host.slow_percent, 1 + off)


def _communication_source(costs: Iterable[OpCost]) -> Literal["profile", "links"] | None:
    rules = {cost.rule for cost in costs if cost.is_collective and cost.time_ns}
    if not rules:
        return None
    return "profile" if rules == {MEASURED_COLLECTIVE} else "links"


def hidden_behind_communication_ns(trace: Trace, pricing: Pricing, blocks: Sequence[str], work_ns: int) -> int:
    """How much of `work_ns` more work before each block's backward the step does not get longer by, per block: what
    runs while the GPU would wait for collectives."""
    step = price_steady_step(trace, pricing)
    gpu_ns = step.gpu_ns
    if not any(op.stream for op in step.ops):
        return 0
    own = [(number, f"{op.module}.") for number, op in enumerate(step.ops) if gpu_ns[number] and _is_own_backward(op)]
    slower_ns, num_blocks = list(gpu_ns), 0
    for prefix in (f"{block}." for block in blocks):
        first = next((number for number, module in own if module.startswith(prefix)), None)
        if first is not None:
            slower_ns[first] += work_ns
            num_blocks += 1
    if not num_blocks:
        return 0
    before, after = (step.play(times).step_ns for times in (gpu_ns, slower_ns))
    return max(0, work_ns - (after - before) // num_blocks)


def _is_own_backward(op: Op) -> bool:
    """Whether the op is its module's own work: the copies of parameters, which come before any replay, are not."""
    return op.phase is Phase.BACKWARD and op.stream == 0 and op.name.startswith("aten.")


@dataclass(frozen=True, slots=True)
class SteadyStep:
    """The ops of a steady step and what each costs the GPU and the CPU."""

    ops: list[Op]
    costs: tuple[OpCost, ...]
    issue_ns: tuple[int, ...]
    further_ns: tuple[int, ...]
    """How much of `issue_ns` comes after an op's first kernel."""
    kernels: tuple[int, ...]
    """How many of an op's run one after the other."""

    @property
    def gpu_ns(self) -> list[int]:
        return [cost.time_ns for cost in self.costs]

    def play(self, gpu_ns: Sequence[int], host_percent: int = 100) -> StepTime:
        """The step with these times of kernels, on a host that takes this percentage of its usual time."""
        issue_ns, further_ns = self.issue_ns, self.further_ns
        if host_percent != 100:
            issue_ns, further_ns = (
                tuple([time_ns * host_percent // 100 for time_ns in times]) for times in (issue_ns, further_ns)
            )
        return simulate_time(self.ops, issue_ns, gpu_ns, further_ns, self.kernels)


def price_steady_step(trace: Trace, pricing: Pricing) -> SteadyStep:
    """A section that runs twice is there twice."""
    sections = (trace.sections[index] for index in trace.steady_step)
    ops = [op for section in sections for op in trace.ops[section.first_op : section.last_op]]
    costs = price_with(ops, pricing)
    kernels, host = [cost.kernels for cost in costs], pricing.profile.host
    return SteadyStep(
        ops=ops,
        costs=costs,
        issue_ns=issue_times_ns(ops, kernels, host),
        further_ns=further_times_ns(ops, kernels, host),
        kernels=kernels_in_turn(ops, kernels),
    )


def timed_points(trace: Trace, points: Iterable[TimelinePoint], op_ends_ns: Sequence[int]) -> tuple[TimelinePoint, ...]:
    """The memory timeline with the moment of each point; both are in the order in which the steady step runs. What the
    CPU alone does is never before what the GPU did until then."""
    sections = (trace.sections[index] for index in trace.steady_step)
    running = [op for section in sections for op in range(section.first_op, section.last_op)]
    done_ns = list(itertools.accumulate(op_ends_ns, max))
    timed, position = [], 0
    for point in points:
        position = running.index(point.op, position)
        timed.append(replace(point, time_ns=done_ns[position]))
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
