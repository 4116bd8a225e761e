"""`estimate`: the stages in a row, Step -> trace -> price -> simulate -> `Estimate`, and the record that comes out.

This file composes the stages and has no logic of theirs. It is not called estimate.py, because importing a submodule of
that name would put the module where the public function `trainfit.estimate` is.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainfit._time_estimate import TimeEstimate, time_step, timed_points
from trainfit.cost import Network, Pricing, load_profile, network_of, pricing_for
from trainfit.errors import BadStep, UsageError
from trainfit.gpus.catalogue import Gpu, find_gpu
from trainfit.gpus.hidden import cudnn_library, hidden_memory
from trainfit.records import Category, PeakMoment, TimelinePoint, Trace
from trainfit.report import text
from trainfit.simulate import AllocatorMode, simulate_memory
from trainfit.step import Step
from trainfit.units import format_bytes, parse_bytes

ALLOCATORS: tuple[AllocatorMode, ...] = ("classic", "expandable")


@dataclass(frozen=True, slots=True)
class Source:
    """What an estimate was made from, for its report."""

    trace: Trace
    pricing: Pricing


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What one training step takes on the target GPU, at steady state."""

    gpu: str
    torch: str
    """The torch version whose kernels and allocator were modelled."""
    allocator: AllocatorMode
    peak_allocated_bytes: int
    """What torch.cuda.max_memory_allocated() would say."""
    peak_reserved_bytes: int
    """What torch.cuda.max_memory_reserved() would say."""
    peak_at: PeakMoment
    """When the allocated bytes are at their peak."""
    breakdown_bytes: dict[str, int]
    """The allocated bytes at the peak by category; they sum to `peak_allocated_bytes`."""
    budget_bytes: int
    num_parameters: int
    trace_seconds: float
    timeline: tuple[TimelinePoint, ...]
    """Allocated bytes per category after each op of the step."""
    not_modelled: tuple[str, ...]
    parallelism: str | None = None
    """How the step is spread over GPUs, this being one of them; None where there is one."""
    time: TimeEstimate | None = None
    """How long the step takes; None in an estimate that was read from a plan's file."""
    source: Any = field(default=None, repr=False, compare=False)
    """A `Source`, in an estimate that `trainfit.estimate` made; None in others. (Any: a plan's file has none of it.)"""

    @property
    def step_time_ms(self) -> float:
        """How long a step takes, from its first op's issue until CPU and GPU are done."""
        if self.time is None:
            raise UsageError(
                "this estimate has no time", hint="estimate the step again; a plan's file keeps memory only"
            )
        return self.time.step_ms

    def fits(self, budget: str | None = None) -> bool:
        """Whether the reserved peak is within `budget` ("80GiB", "90%"), or within `budget_bytes` when None."""
        if budget is None:
            return self.peak_reserved_bytes <= self.budget_bytes
        return self.peak_reserved_bytes <= parse_bytes(budget, of_bytes=find_gpu(self.gpu).memory_bytes)

    def to_json_dict(self) -> dict[str, Any]:
        """The estimate as plain JSON values, without the timeline."""
        return {
            "gpu": self.gpu,
            "torch": self.torch,
            "allocator": self.allocator,
            "fits": self.fits(),
            "budget_bytes": self.budget_bytes,
            "peak_allocated_bytes": self.peak_allocated_bytes,
            "peak_reserved_bytes": self.peak_reserved_bytes,
            "peak_at": {"phase": self.peak_at.phase.value, "op": self.peak_at.op, "module": self.peak_at.module},
            "breakdown_bytes": dict(self.breakdown_bytes),
            "num_parameters": self.num_parameters,
            "parallelism": self.parallelism,
            "trace_seconds": round(self.trace_seconds, 3),
            "not_modelled": list(self.not_modelled),
            **(self.time.to_json_dict() if self.time is not None else {}),
        }

    def report(self, path: str | Path, *, command: str | None = None) -> None:
        """Write the estimate as one HTML file; `command` is what made it, if a command line did."""
        from trainfit._report import estimate_page
        from trainfit.report import html

        Path(path).write_text(html.render(estimate_page(self, command=command)), encoding="utf-8")

    def _repr_html_(self) -> str:
        """The report, in a notebook."""
        from trainfit._report import estimate_page
        from trainfit.report import html

        return html.notebook_frame(estimate_page(self))

    def __str__(self) -> str:
        return text.render(text.estimate_view(self))


def trace_step(step: Step, gpu: Gpu) -> Trace:
    """The stage `trace`, which is imported when it is needed: an Estimate is read from a file without torch."""
    from trainfit import trace

    return trace.trace_step(step, gpu)


def estimate(
    step: Step,
    gpu: str = "h200",
    *,
    allocator: AllocatorMode = "classic",
    budget: str | None = None,
    profile: str | Path | None = None,
) -> Estimate:
    """Predict the memory and the time of one training step on `gpu`, without one.

    `budget` is a size such as "72GiB" or "90%" of the GPU; when None, the GPU's memory less the driver's context.
    `profile` is a file that `trainfit calibrate` wrote on such a GPU; when None, the one that comes with the package if
    there is one, else the datasheet.
    """
    if not isinstance(step, Step):
        raise BadStep(
            f"a {type(step).__name__} is not a trainfit.Step", hint="pass trainfit.Step(model=..., batch=...)"
        )
    if allocator not in ALLOCATORS:
        raise UsageError(f"no allocator is called {allocator!r}", hint=f"pass {' or '.join(ALLOCATORS)}")
    target = find_gpu(gpu)
    budget_bytes = free_bytes(target) if budget is None else parse_bytes(budget, of_bytes=target.memory_bytes)
    pricing = replace(
        pricing_for(target, None if profile is None else load_profile(profile)), network=network_of_step(step, target)
    )
    start = time.perf_counter()
    trace = trace_step(step, target)
    trace_seconds = time.perf_counter() - start
    result = estimate_trace(trace, target, allocator)
    step_time = time_step(trace, pricing)
    return replace(
        result,
        budget_bytes=budget_bytes,
        parallelism=step.parallelism,
        trace_seconds=trace_seconds,
        timeline=timed_points(trace, result.timeline, step_time.op_ends_ns),
        time=with_throughput(step_time, step),
        source=Source(trace, pricing),
    )


def with_throughput(step_time: TimeEstimate, step: Step) -> TimeEstimate:
    """The time with what is done per second."""
    samples, tokens = work_of_step(step)
    if samples is None or not step_time.step_ms:
        return step_time
    per_second = 1e3 / step_time.step_ms
    return replace(
        step_time,
        samples_per_second=samples * per_second,
        tokens_per_second=None if tokens is None else tokens * per_second,
    )


def work_of_step(step: Step) -> tuple[int | None, int | None]:
    """The samples and the tokens of a step of one rank, None where the batch has none.

    Samples are the first dimension of the batch's first tensor, tokens the elements of its first integers.
    """
    values = step.batch.values() if isinstance(step.batch, Mapping) else step.batch
    tensors = [value for value in values if getattr(value, "ndim", 0) >= 1]
    if not tensors:
        return None, None
    ids = next((tensor for tensor in tensors if tensor.ndim == 2 and not tensor.is_floating_point()), None)
    return tensors[0].shape[0] * step.micro_batches, None if ids is None else ids.numel() * step.micro_batches


def network_of_step(step: Step, gpu: Gpu) -> Network | None:
    """What joins the ranks that the step is spread over; None where there is one GPU."""
    ranks = step.fsdp or step.ddp
    if ranks is None:
        return None
    return network_of(gpu, ranks.gpus_per_node, ranks.intra_node_gb_per_s, ranks.inter_node_gb_per_s)


def free_bytes(gpu: Gpu) -> int:
    """What a process can use of the GPU: its memory less the driver's context."""
    return gpu.memory_bytes - gpu.context_bytes


def estimate_trace(trace: Trace, gpu: Gpu, allocator: AllocatorMode) -> Estimate:
    """The estimate of a step that was traced, for the budget of the whole GPU."""
    memory = simulate_memory(trace, hidden_memory(gpu, trace.torch_version), allocator)
    peak_op = trace.ops[memory.peak_op]
    return Estimate(
        gpu=gpu.name,
        torch=trace.torch_version,
        allocator=allocator,
        peak_allocated_bytes=memory.peak_allocated_bytes,
        peak_reserved_bytes=memory.peak_reserved_bytes,
        peak_at=PeakMoment(phase=peak_op.phase, op=peak_op.name, module=peak_op.module),
        breakdown_bytes={category.value: 0 for category in Category} | dict(memory.breakdown_bytes),
        budget_bytes=free_bytes(gpu),
        num_parameters=trace.num_parameters,
        trace_seconds=0.0,
        timeline=memory.points,
        not_modelled=_not_modelled(trace, gpu),
    )


def _not_modelled(trace: Trace, gpu: Gpu) -> tuple[str, ...]:
    left_out = [
        f"the driver's context and loaded kernels: {format_bytes(gpu.context_bytes)} assumed, outside both peaks",
        "communication buffers (NCCL), and whatever else the program keeps on the GPU",
        "torch.compile: the step is taken as eager",
    ]
    if gpu.vendor == "amd":
        left_out.append("ROCm: its kernels' temporaries and workspaces are taken to be CUDA's")
    elif any(op.name.startswith("aten.convolution") for op in trace.ops) and not cudnn_library.is_installed():
        left_out.append(
            "cuDNN's choice among its convolution kernels: imitated, since there is none here to ask"
            " (Linux: pip install 'trainfit[cudnn]')"
        )
    return tuple(left_out)
