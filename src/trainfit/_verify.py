"""`verify`: run a plan on the GPU it is for, and put what was measured beside what was predicted.

In: a `Plan` and its `Step`, on a machine with that GPU. Out: a `Verification`. The measured step is the loop of
`Step`'s docstring. Its peaks include the first step, in which the blocks are recorded. Gradients of the planned model
are compared with those of the unplanned one, beside the unplanned one's with itself: some kernels do not repeat
themselves bit for bit, and a plan cannot be asked to be nearer to eager than eager is.

This file is not called verify.py for the reason that _estimate.py gives.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from trainfit._plan_record import MemoryKind, Plan
from trainfit.errors import BadStep, NoGpu
from trainfit.step import Step
from trainfit.units import format_bytes

if TYPE_CHECKING:
    import torch
    from torch import nn

ALLOCATED_TOLERANCE = 0.001
RESERVED_TOLERANCE = 0.01
TIME_TOLERANCE = 0.05
NOISE_FACTOR = 2.0
"""Eager's difference with itself is one draw of its noise; the plan's difference with eager is another."""
WARM_UP_STEPS = 2
TIMED_STEPS = 5


@dataclass(frozen=True, slots=True)
class Gradients:
    """How two sets of gradients of the same parameters compare."""

    count: int
    equal: int  # bit for bit
    worst: float  # the largest difference, relative to the largest entry of its gradient


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was promised."""

    name: str
    predicted: str
    measured: str
    passed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What the GPU did, beside what the plan said."""

    gpu: str
    torch: str
    memory: MemoryKind
    budget_bytes: int
    predicted_allocated_bytes: int
    predicted_reserved_bytes: int
    predicted_step_ns: int
    allocated_bytes: int
    """The peak of the steps after the first, as torch.cuda.max_memory_allocated() says."""
    reserved_bytes: int
    """The peak since the process began, so with the first step."""
    first_step_allocated_bytes: int
    step_ns: int
    checkpointed_blocks: tuple[str, ...]
    """Blocks that did not do what the plan says and were checkpointed as a whole."""
    gradients: Gradients | None
    """Planned against unplanned; None if the unplanned step does not fit on the GPU."""
    noise: Gradients | None
    """Unplanned against itself."""

    @property
    def checks(self) -> tuple[Check, ...]:
        """All that was promised, in the order in which people ask."""
        return tuple(self._checks())

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    def _checks(self) -> Iterator[Check]:
        highest = max(self.allocated_bytes, self.first_step_allocated_bytes)
        bound = self.reserved_bytes if self.memory == "reserved" else highest
        yield Check(
            f"{self.memory} within the budget",
            format_bytes(self.budget_bytes),
            f"{format_bytes(bound)} ({bound / self.budget_bytes:.1%})",
            bound <= self.budget_bytes,
        )
        for name, predicted, measured, tolerance in (
            ("peak allocated", self.predicted_allocated_bytes, self.allocated_bytes, ALLOCATED_TOLERANCE),
            ("peak reserved", self.predicted_reserved_bytes, self.reserved_bytes, RESERVED_TOLERANCE),
        ):
            error = measured / predicted - 1
            text = f"{format_bytes(measured)} ({error:+.2%})"
            yield Check(name, format_bytes(predicted), text, abs(error) <= tolerance)
        error = self.step_ns / self.predicted_step_ns - 1
        text = f"{self.step_ns / 1e6:.1f} ms ({error:+.1%})"
        yield Check("step time", f"{self.predicted_step_ns / 1e6:.1f} ms", text, abs(error) <= TIME_TOLERANCE)
        blocks = ", ".join(self.checkpointed_blocks) or "none"
        yield Check("blocks that did something else", "none", blocks, not self.checkpointed_blocks)
        yield self._gradient_check()

    def _gradient_check(self) -> Check:
        if self.gradients is None or self.noise is None:
            return Check("gradients", "eager's", "not compared: the unplanned step does not fit", True)
        found, noise = self.gradients, self.noise
        return Check(
            "gradients",
            f"eager's: {noise.equal} of {noise.count} equal to its own, worst {noise.worst:.1e}",
            f"{found.equal} of {found.count} equal, worst {found.worst:.1e}",
            found.equal == found.count or found.worst <= NOISE_FACTOR * noise.worst,
        )

    def to_json_dict(self) -> dict[str, Any]:
        """The verification as plain JSON values."""
        return {**asdict(self), "passed": self.passed, "checks": [asdict(check) for check in self.checks]}

    def __str__(self) -> str:
        rows = [("", "predicted", "measured")]
        rows += [(("ok  " if c.passed else "FAIL") + f" {c.name}", c.predicted, c.measured) for c in self.checks]
        widths = [max(len(row[column]) for row in rows) for column in range(2)]
        lines = [f"{name:{widths[0]}}  {predicted:{widths[1]}}  {measured}" for name, predicted, measured in rows]
        verdict = "verified" if self.passed else "not verified"
        return "\n".join([f"{verdict} on {self.gpu}, torch {self.torch}", "", *lines])


def verify(plan: Plan, step: Step) -> Verification:
    """Run `step` under `plan` on this machine's GPU; needs one."""
    import torch

    if not torch.cuda.is_available():
        raise NoGpu("verify runs the step, and torch finds no GPU", hint="run it on a machine with the plan's GPU")
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    run = _Run(step, "cuda")
    handle = plan.apply(run.model)
    run.step()
    first_step_allocated_bytes = torch.cuda.max_memory_allocated()
    for _ in range(WARM_UP_STEPS):
        run.step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step_ns = statistics.median(_timed_ns(run.step) for _ in range(TIMED_STEPS))
    allocated_bytes, reserved_bytes = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    checkpointed = tuple(stats.name for stats in handle.stats() if stats.reruns)
    handle.remove()
    run.optimizer.state.clear()
    gradients, noise = compare_gradients(run, plan)
    return Verification(
        gpu=torch.cuda.get_device_name(),
        torch=torch.__version__,
        memory=plan.memory,
        budget_bytes=plan.budget_bytes,
        predicted_allocated_bytes=plan.predicted.peak_allocated_bytes,
        predicted_reserved_bytes=plan.predicted.peak_reserved_bytes,
        predicted_step_ns=plan.predicted_step_ns,
        allocated_bytes=allocated_bytes,
        reserved_bytes=reserved_bytes,
        first_step_allocated_bytes=first_step_allocated_bytes,
        step_ns=int(step_ns),
        checkpointed_blocks=checkpointed,
        gradients=gradients,
        noise=noise,
    )


class _Run:
    """The step on a real device: the model, then the optimizer, then the batch, as a training script has them."""

    def __init__(self, step: Step, device: str) -> None:
        import torch

        self._step = step
        self._device = device
        torch.manual_seed(0)
        self.model = _real_model(step.model, device).train()
        self.optimizer: torch.optim.Optimizer = (step.optimizer or torch.optim.AdamW)(list(self.model.parameters()))
        self._args, self._kwargs = _real_batch(step.batch, device)
        # The default scale overflows at first: steps would be skipped, and the optimizer's state would come late.
        self._scaler = torch.amp.GradScaler(device, init_scale=256.0, enabled=step.grad_scaler)

    def forward_backward(self) -> None:
        import torch

        step = self._step
        autocast = torch.autocast(self._device, step.autocast) if step.autocast else contextlib.nullcontext()
        with autocast:
            output = self.model(*self._args, **self._kwargs)
            loss = step.loss(output) if step.loss else output if isinstance(output, torch.Tensor) else output.loss
            del output
        self._scaler.scale(loss).backward()

    def step(self) -> None:
        import torch

        for _ in range(self._step.micro_batches):
            self.forward_backward()
        if self._step.clip_grad_norm is not None:
            self._scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._step.clip_grad_norm)
        self._scaler.step(self.optimizer)
        self._scaler.update()
        self.optimizer.zero_grad(set_to_none=self._step.set_to_none)

    def gradients(self) -> list[torch.Tensor]:
        """The gradients of one forward and backward with fixed random numbers, on the host."""
        import torch

        torch.manual_seed(1)
        self.model.zero_grad(set_to_none=True)
        self.forward_backward()
        found = [p.grad.detach().cpu() for p in self.model.parameters() if p.grad is not None]
        self.model.zero_grad(set_to_none=True)
        return found


def compare_gradients(run: _Run, plan: Plan) -> tuple[Gradients | None, Gradients | None]:
    """(planned against unplanned, unplanned against itself); None where the unplanned step runs out of memory."""
    import torch

    handle = plan.apply(run.model)
    planned = run.gradients()
    handle.remove()
    try:
        eager = run.gradients()
        again = run.gradients()
    except torch.OutOfMemoryError:
        gc.collect()
        return None, None
    return _compare(eager, planned), _compare(eager, again)


def _compare(expected: list[torch.Tensor], found: list[torch.Tensor]) -> Gradients:
    worst, equal = 0.0, 0
    for a, b in zip(expected, found, strict=True):
        if bool((a == b).all()):
            equal += 1
        else:
            largest = a.double().abs().max().item()
            worst = max(worst, (a.double() - b.double()).abs().max().item() / max(largest, 1e-300))
    return Gradients(len(expected), equal, worst)


def _timed_ns(step: Callable[[], None]) -> int:
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    step()
    end.record()
    torch.cuda.synchronize()
    return int(start.elapsed_time(end) * 1e6)


def _real_model(model: nn.Module | Callable[[], nn.Module], device: str) -> nn.Module:
    import torch

    if isinstance(model, torch.nn.Module):
        if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
            raise BadStep(
                "the model is on meta and has no weights to run with",
                hint="pass Step(model=...) a callable that builds it, or a model with weights",
            )
        return copy.deepcopy(model).to(device)
    with torch.device(device):
        return model().to(device)


def _real_batch(batch: Mapping[str, Any] | tuple[Any, ...], device: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    import torch

    from trainfit import torch_compat

    moved: dict[int, torch.Tensor] = {}  # a tensor that comes twice is moved once, as the prediction has it

    def move(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in moved:
            moved[id(tensor)] = tensor.detach().to(device).requires_grad_(tensor.requires_grad)
        return moved[id(tensor)]

    if isinstance(batch, Mapping):
        return (), torch_compat.tree_map_only(torch.Tensor, move, dict(batch))
    return torch_compat.tree_map_only(torch.Tensor, move, batch), {}
