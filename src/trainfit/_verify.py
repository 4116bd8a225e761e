"""`verify`: run a plan on the GPU it is for, and put what was measured beside what was predicted.

In: a `Plan` and its `Step`, on a machine with that GPU. Out: a `Verification`. The measured step is the loop of
`Step`'s docstring, from building the model on. Its peaks include the first step, in which the blocks are recorded. The
unplanned step is measured after it, where it fits.

Gradients of the planned model are compared with those of the unplanned one under deterministic settings, in which they
must be equal bit for bit. Where torch has no deterministic kernel for an op of the step, they are compared beside the
unplanned model's with itself: a plan cannot be asked to be nearer to eager than eager is. (The file is not called
verify.py for the reason that _estimate.py gives.)
"""

from __future__ import annotations

import contextlib
import copy
import gc
import itertools
import os
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from trainfit._plan_record import Plan
from trainfit._verify_record import TIMED_STEPS, Gradients, Measured, Verification
from trainfit.errors import BadStep, NoGpu, PlanMismatch
from trainfit.gpus.catalogue import find_gpu
from trainfit.progress import tell
from trainfit.records import BlockDecision
from trainfit.step import Step

if TYPE_CHECKING:
    import torch
    from torch import nn

T = TypeVar("T")
REPETITIONS = {True: 2, False: 3}
"""How often the unplanned gradients are made, with deterministic kernels and without."""
WARM_UP_STEPS = 2
CUBLAS_CONFIG = "CUBLAS_WORKSPACE_CONFIG"


def verify(plan: Plan, step: Step) -> Verification:
    """Run `step` under `plan` on this machine's GPU; needs one."""
    import torch

    if not torch.cuda.is_available():
        raise NoGpu("verify runs the step, and torch finds no GPU", hint="run it on a machine with the plan's GPU")
    tell("building the model")
    torch.cuda.empty_cache()  # here and not before the first step: what building leaves in the cache is predicted too
    run = _Run(step, "cuda")
    handle = plan.apply(run.model)
    tell("running the planned step")
    planned = _measure(run)
    decisions = plan.block_decisions()
    checkpointed = tuple(stats.name for stats in handle.stats() if stats.reruns and not decisions[stats.name].rerun)
    handle.remove()
    tell("running the step without the plan")
    run.forget()
    unplanned = _if_it_fits(lambda: _measure(run))
    run.forget()
    tell("comparing gradients")
    deterministic, gradients, noise = _gradients(run, plan, step)
    return Verification(
        gpu=torch.cuda.get_device_name(),
        torch=torch.__version__,
        memory=plan.memory,
        budget_bytes=plan.budget_bytes,
        predicted_allocated_bytes=plan.predicted.peak_allocated_bytes,
        predicted_reserved_bytes=plan.predicted.peak_reserved_bytes,
        predicted_step_ns=plan.predicted_step_ns,
        planned=planned,
        unplanned=unplanned,
        checkpointed_blocks=checkpointed,
        deterministic=deterministic,
        gradients=gradients,
        noise=noise,
    )


def _measure(run: _Run) -> Measured:
    """A first step, further ones to warm up, then timed ones."""
    import torch

    torch.cuda.reset_peak_memory_stats()
    run.step()
    first_step_allocated_bytes = torch.cuda.max_memory_allocated()
    for _ in range(WARM_UP_STEPS):
        run.step()
    torch.cuda.synchronize()
    reserved_bytes = torch.cuda.max_memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    times_ns = [_timed_ns(run.step) for _ in range(TIMED_STEPS)]
    return Measured(
        allocated_bytes=torch.cuda.max_memory_allocated(),
        reserved_bytes=max(reserved_bytes, torch.cuda.max_memory_reserved()),
        first_step_allocated_bytes=first_step_allocated_bytes,
        step_ns=int(statistics.median(times_ns)),
        fastest_step_ns=min(times_ns),
        slowest_step_ns=max(times_ns),
    )


def _if_it_fits(act: Callable[[], T]) -> T | None:
    """What `act` returns, or None where it runs out of memory."""
    import torch

    try:
        return act()
    except torch.OutOfMemoryError:
        pass  # outside of here the error's traceback, which holds the step's tensors, is gone
    gc.collect()
    torch.cuda.empty_cache()
    return None


class _Run:
    """The step on a real device: the model, then the optimizer, then the batch, as a training script has them."""

    def __init__(self, step: Step, device: str) -> None:
        import torch

        self._step = step
        self._device = device
        torch.manual_seed(0)
        self.model = _real_model(step.model, device)
        if not self.model.training:
            self.model.train()
        self.optimizer: torch.optim.Optimizer = (step.optimizer or torch.optim.AdamW)(list(self.model.parameters()))
        self._args, self._kwargs = _real_batch(step.batch, device)
        # The default scale overflows at first: steps would be skipped, and the optimizer's state would come late.
        self._scaler = torch.amp.GradScaler(device, init_scale=256.0, enabled=step.grad_scaler)

    def forget(self) -> None:
        """Let go of what the steps so far have left, but for the weights."""
        import torch

        self.optimizer.state.clear()
        torch.cuda.empty_cache()

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


def _gradients(run: _Run, plan: Plan, step: Step) -> tuple[bool, Gradients | None, Gradients | None]:
    """(with deterministic kernels, planned against unplanned, unplanned against itself)."""
    decisions = plan.block_decisions()
    try:
        with deterministic_kernels():
            return True, *compare_gradients(run, carried(decisions, step), strict=True)
    except PlanMismatch:
        pass  # under these settings the block runs other ops than those that the plan is about
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
    return False, *compare_gradients(run, decisions, strict=False)


@contextlib.contextmanager
def deterministic_kernels() -> Iterator[None]:
    """Every kernel gives the same bits when it runs again; an op that has no such kernel raises."""
    import torch

    mode, cublas = torch.get_deterministic_debug_mode(), os.environ.get(CUBLAS_CONFIG)
    os.environ[CUBLAS_CONFIG] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        if cublas is None:
            del os.environ[CUBLAS_CONFIG]
        else:
            os.environ[CUBLAS_CONFIG] = cublas


def carried(decisions: Mapping[str, BlockDecision], step: Step) -> dict[str, BlockDecision]:
    """The decisions as they are under the present settings, which may have other kernels than the plan's."""
    import torch

    from trainfit.apply import carry_decision, record_blocks

    gpu = find_gpu(torch.cuda.get_device_name())
    now = dict(record_blocks(step, gpu, list(decisions)))
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("default")
    try:
        before = dict(record_blocks(step, gpu, list(decisions)))
    finally:
        torch.set_deterministic_debug_mode(mode)
    return {name: carry_decision(decision, before[name], now[name]) for name, decision in decisions.items()}


def compare_gradients(
    run: _Run, decisions: Mapping[str, BlockDecision], *, strict: bool
) -> tuple[Gradients | None, Gradients | None]:
    """(planned against unplanned, unplanned against itself); None where the unplanned step runs out of memory."""
    from trainfit.apply import apply_decisions

    handle = apply_decisions(run.model, decisions, strict=strict)
    try:
        planned = run.gradients()
    finally:
        handle.remove()
    eager = _if_it_fits(lambda: [run.gradients() for _ in range(REPETITIONS[strict])])
    if eager is None:
        return None, None
    pairs = [_compare(a, b) for a, b in itertools.combinations(eager, 2)]
    against = [_compare(repetition, planned) for repetition in eager]
    # The nearest repetition is what the plan is held against, the farthest pair is what eager allows itself.
    return min(against, key=lambda found: found.worst), max(pairs, key=lambda found: found.worst)


def _compare(expected: list[torch.Tensor], found: list[torch.Tensor]) -> Gradients:
    worst, equal = 0.0, 0
    for a, b in zip(expected, found, strict=True):
        if a.equal(b):
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
            real = _made_up(tensor, device) if tensor.is_meta else tensor.detach().to(device)
            moved[id(tensor)] = real.requires_grad_(tensor.requires_grad)
        return moved[id(tensor)]

    if isinstance(batch, Mapping):
        return (), torch_compat.tree_map_only(torch.Tensor, move, dict(batch))
    return torch_compat.tree_map_only(torch.Tensor, move, batch), {}


def _made_up(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """Values for a batch that has none, as those of presets: zeros, which are an index into anything, or noise."""
    import torch

    if not tensor.is_floating_point():
        return torch.zeros_like(tensor, device=device)
    noise = torch.Generator(device).manual_seed(0)
    return torch.empty_like(tensor, device=device).normal_(generator=noise)
