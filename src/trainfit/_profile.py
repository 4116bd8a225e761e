"""`profile_step`: a traced step op by op, Trace -> price -> simulate -> `StepProfile`, for pictures and exports.

This file composes the stages and has no logic of theirs.
"""

from __future__ import annotations

from trainfit._time_estimate import price_steady_step
from trainfit.cost import Pricing
from trainfit.gpus.hidden import hidden_memory
from trainfit.records import OpRun, StepProfile, Trace
from trainfit.simulate import AllocatorMode, simulate_blocks


def profile_step(trace: Trace, pricing: Pricing, allocator: AllocatorMode) -> StepProfile:
    """The steady step of `trace`, each op with its times and each block of memory with its op."""
    events, segments = simulate_blocks(trace, hidden_memory(pricing.gpu, trace.torch_version), allocator)
    return StepProfile(trace=trace, runs=_runs(trace, pricing), events=events, segments=segments)


def _runs(trace: Trace, pricing: Pricing) -> tuple[OpRun, ...]:
    sections = (trace.sections[index] for index in trace.steady_step)
    numbers = [op for section in sections for op in range(section.first_op, section.last_op)]
    step = price_steady_step(trace, pricing)
    gpu_ns = step.gpu_ns
    played = step.play(gpu_ns)
    return tuple(
        OpRun(number, issued_ns - issue, issued_ns, end_ns - time_ns, time_ns, op.stream)
        for number, op, time_ns, issue, issued_ns, end_ns in zip(
            numbers, step.ops, gpu_ns, step.issue_ns, played.issued_ns, played.ends_ns, strict=True
        )
    )
