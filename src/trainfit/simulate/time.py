"""Plays a step on two kinds of queue: the CPU issues ops one after the other, the GPU's streams run kernels in order.

In: the ops, per op the CPU time to issue it and the GPU time to run it; for ops of many kernels also how much of the
CPU's time comes after the first kernel is in the queue, and how many kernels there are. Out: a `StepTime`.

A kernel starts when it has been issued, its stream is free, and what the stream was told to wait for is done:
start = max(issued, end of the stream's previous kernel, ends of what it waits for). Where the CPU waited before an op,
for a value or a copy, it issues the op only when what the op's stream had been given is done. A step starts with idle
GPU and CPU.

Invariants: kernels of a stream do not overlap; the step is no shorter than the CPU's time, nor than any stream's.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainfit.records import Op, Phase, StepTime

KERNEL_GAP_NS = 1500
"""What lies between two kernels of a busy stream: measured, steps that keep the GPU busy take 1.1 to 2 us per kernel
more than their kernels do."""


def simulate_time(
    ops: Sequence[Op],
    issue_ns: Sequence[int],
    gpu_ns: Sequence[int],
    further_ns: Sequence[int] | None = None,
    kernels: Sequence[int] | None = None,
) -> StepTime:
    """The step's timeline; an op whose GPU time is 0 launches nothing. What ran before the step is done.

    `further_ns` is the part of `issue_ns` that goes by while the op's first kernels may already run; none by default.
    `kernels` says how many an op runs one after the other; one by default.
    """
    host_now_ns = host_ns = done_ns = 0
    free_at_ns: dict[int, int] = {}
    phase_ns: dict[Phase, int] = {}
    issued_ns: list[int] = []
    ends_ns: list[int] = []
    drained_ns: list[int] = []  # per op, when its stream had done all that it was given so far
    for index, (op, issue, duration) in enumerate(zip(ops, issue_ns, gpu_ns, strict=True)):
        stream = op.stream
        if op.before is not None and op.before.waited:
            host_now_ns = max(host_now_ns, free_at_ns.get(stream, 0))
        for back in op.waits:
            if back <= index:
                free_at_ns[stream] = max(free_at_ns.get(stream, -KERNEL_GAP_NS), drained_ns[index - back])
        host_now_ns += issue
        host_ns += issue
        issued_ns.append(host_now_ns)
        end_ns = host_now_ns
        if duration:
            launched_ns = host_now_ns - (further_ns[index] if further_ns is not None else 0)
            start_ns = max(launched_ns, free_at_ns.get(stream, -KERNEL_GAP_NS) + KERNEL_GAP_NS)
            gaps = max(kernels[index] - 1, 0) if kernels is not None else 0
            end_ns = free_at_ns[stream] = max(start_ns + duration + gaps * KERNEL_GAP_NS, host_now_ns)
        ends_ns.append(end_ns)
        drained_ns.append(free_at_ns.get(stream, 0))
        if end_ns > done_ns:
            phase_ns[op.phase] = phase_ns.get(op.phase, 0) + end_ns - done_ns
            done_ns = end_ns
    return StepTime(done_ns, sum(gpu_ns), host_ns, tuple(phase_ns.items()), tuple(issued_ns), tuple(ends_ns))
