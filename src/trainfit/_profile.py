"""`profile_step`: a traced step op by op, Trace -> price -> simulate -> `StepProfile`, for pictures and exports.

This file composes the stages and has no logic of theirs.
"""

from __future__ import annotations

from trainfit.cost import Pricing, further_times_ns, issue_times_ns, price_with
from trainfit.gpus.hidden import hidden_memory
from trainfit.records import OpRun, StepProfile, Trace
from trainfit.simulate import AllocatorMode, simulate_blocks, simulate_time
from trainfit.simulate.time import READS_BACK


def profile_step(trace: Trace, pricing: Pricing, allocator: AllocatorMode) -> StepProfile:
    """The steady step of `trace`, each op with its times and each block of memory with its op."""
    events, segments = simulate_blocks(trace, hidden_memory(pricing.gpu, trace.torch_version), allocator)
    return StepProfile(trace=trace, runs=_runs(trace, pricing), events=events, segments=segments)


def _runs(trace: Trace, pricing: Pricing) -> tuple[OpRun, ...]:
    sections = (trace.sections[index] for index in trace.steady_step)
    numbers = [op for section in sections for op in range(section.first_op, section.last_op)]
    ops = [trace.ops[number] for number in numbers]
    costs = price_with(ops, pricing)
    kernels, host = [cost.kernels for cost in costs], pricing.profile.host
    issue_ns = issue_times_ns(ops, kernels, host)
    gpu_ns, further_ns = [cost.time_ns for cost in costs], further_times_ns(ops, kernels, host)
    ends_ns = simulate_time(ops, issue_ns, gpu_ns, further_ns).ends_ns
    runs, host_now_ns = [], 0
    for number, op, cost, issue, end_ns in zip(numbers, ops, costs, issue_ns, ends_ns, strict=True):
        start_ns, host_now_ns = host_now_ns, host_now_ns + issue
        runs.append(OpRun(number, start_ns, host_now_ns, end_ns - cost.time_ns, cost.time_ns, op.stream))
        if op.name in READS_BACK:
            host_now_ns = end_ns
    return tuple(runs)
