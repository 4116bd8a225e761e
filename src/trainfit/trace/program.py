"""The training loop that is predicted, run once on the ghost GPU, section by section.

It is the loop of `Step`'s docstring: nothing else holds a tensor between sections but the model, the batch, the
gradients and the optimizer's state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from trainfit.errors import BadStep, TraceError, TrainfitError
from trainfit.ghost import hint_of_guesses
from trainfit.ghost.tensor import Ghost
from trainfit.parallel import Distributed, distribute, local_tensors
from trainfit.progress import tell
from trainfit.records import Phase
from trainfit.step import Step
from trainfit.trace.placement import place_batch, place_model
from trainfit.trace.recorder import Recorder
from trainfit.trace.settling import flags_of, has_settled

_SETTLED = "settled_"
"""What the names of sections start with in the step of a model that its first pass has changed."""


class Program:
    """Builds the model on construction (section "build"); `run` does the rest."""

    def __init__(self, step: Step, recorder: Recorder, watch: Callable[[nn.Module], None] | None = None) -> None:
        self._step = step
        self._recorder = recorder
        self._watch = watch
        self._has_settled = False  # whether the first pass left the model such that the next is another one
        self.forward_survivors: set[int] = set()  # storages alive when a backward started
        self.gradient_storages: set[int] = set()
        tell("building the model")
        with recorder.section("build"), _explaining("building the model"):
            self.model, placed = self._build_model()
            self._called, self._micro_batch_context = placed.model, placed.micro_batch
            self.optimizer = self._make_optimizer()
            self._args, self._kwargs = place_batch(step.batch)
            self._scaler = torch.amp.GradScaler("cuda") if step.grad_scaler else None
        self.num_parameters = sum(p.numel() for p in self.model.parameters())

    def _build_model(self) -> tuple[nn.Module, Distributed]:
        """The user's model and what this rank calls. A sharded one is built without memory, then allocated so."""
        if not self._step.fsdp:
            return self._place()
        with self._recorder.paused():
            model, placed = self._place()
        self._materialize([tensor for tensor in local_tensors(model) if isinstance(tensor, Ghost)])
        return model, placed

    def _place(self) -> tuple[nn.Module, Distributed]:
        model = place_model(self._step.model)
        if self._watch is not None:
            self._watch(model)
        return model, distribute(model, self._step)

    def _materialize(self, tensors: Sequence[torch.Tensor]) -> None:
        """Allocate as `to_empty` does: a tied tensor once for each of its places, the earlier one let go after it."""
        last_place = {id(tensor): place for place, tensor in enumerate(tensors)}
        earlier: dict[int, torch.Tensor] = {}
        for place, tensor in enumerate(tensors):
            if place == last_place[id(tensor)]:
                self._recorder.allocate(tensor)
                earlier.pop(id(tensor), None)
            else:
                earlier[id(tensor)] = torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda")

    def run(self) -> None:
        """The steps that `first_step` and `steady_step` are made of; on several ranks the two differ in more."""
        if self._warm_up():
            for prefix in (*self._warm_up(), ""):
                self._run_step(prefix)
        else:
            self._run_sections()
        if self._has_settled:
            self._run_step(_SETTLED)

    def _warm_up(self) -> tuple[str, ...]:
        """What the names of sections start with in the steps that differ from later ones: a sharded model first
        allocates what it later resizes, a replica makes its buckets anew in the second step."""
        if self._step.fsdp:
            return ("first_",)
        return ("first_", "second_") if self._step.ddp else ()

    def _run_step(self, prefix: str) -> None:
        """One whole step, in sections of its own."""
        names = self._micro_batch_names()
        for name in dict.fromkeys(names):
            before = self._recorder.live_storages()
            with self._recorder.section(prefix + name):
                self._micro_batch(is_last=name == names[-1])
            # What a micro-batch leaves behind is gradients: shards, or whole ones that are yet to be reduced.
            self.gradient_storages |= self._recorder.live_storages() - before - self._recorder.resized
        self._recorder.phase = Phase.OPTIMIZER
        with self._recorder.section(f"{prefix}optimizer_step"), _explaining("the optimizer's step"):
            self._optimizer_step()
        with self._recorder.section(f"{prefix}zero_grad"):
            self.optimizer.zero_grad(set_to_none=self._step.set_to_none)

    def _run_sections(self) -> None:
        before = flags_of(self.model)
        with self._recorder.section("micro_batch"):
            self._micro_batch()
        self._has_settled = has_settled(self.model, before)
        if self._needs_next_micro_batch():
            with self._recorder.section("next_micro_batch"):
                self._micro_batch()
        self._note_gradients()
        tell("tracing the optimizer")
        self._recorder.phase = Phase.OPTIMIZER
        for name in ("first_optimizer_step", "optimizer_step"):
            with self._recorder.section(name), _explaining("the optimizer's step"):
                self._optimizer_step()
        with self._recorder.section("zero_grad"):
            self.optimizer.zero_grad(set_to_none=self._step.set_to_none)

    def first_step(self) -> tuple[int, ...]:
        if self._warm_up():
            step = [*self._micro_batch_names(), "optimizer_step", "zero_grad"]
            return self._indices(["build", *(prefix + name for prefix in self._warm_up() for name in step)])
        names = ["build", "micro_batch", *self._further_micro_batches(), "first_optimizer_step", "zero_grad"]
        return self._indices(names)

    def steady_step(self) -> tuple[int, ...]:
        if self._warm_up() or self._has_settled:
            prefix = _SETTLED if self._has_settled else ""
            names = [*self._micro_batch_names(), "optimizer_step", "zero_grad"]
            return self._indices([prefix + name for name in names])
        first = "micro_batch" if self._step.set_to_none else "next_micro_batch"
        return self._indices([first, *self._further_micro_batches(), "optimizer_step", "zero_grad"])

    def _micro_batch_names(self) -> list[str]:
        """On several ranks the first micro-batch and the last, which synchronizes, differ from those in between."""
        further = self._step.micro_batches - 1
        return ["micro_batch", *["next_micro_batch"] * (further - 1), *["last_micro_batch"] * min(further, 1)]

    def _note_gradients(self) -> None:
        self.gradient_storages |= {
            self._recorder.storage_of(p.grad) for p in self.model.parameters() if p.grad is not None
        }

    def _needs_next_micro_batch(self) -> bool:
        return self._step.micro_batches > 1 or not self._step.set_to_none

    def _further_micro_batches(self) -> list[str]:
        return ["next_micro_batch"] * (self._step.micro_batches - 1)

    def _indices(self, names: list[str]) -> tuple[int, ...]:
        index = {section.name: i for i, section in enumerate(self._recorder.sections)}
        return tuple(index[name] for name in names)

    def _make_optimizer(self) -> torch.optim.Optimizer:
        make = self._step.optimizer or torch.optim.AdamW
        parameters = list(self.model.parameters())
        if not any(p.requires_grad for p in parameters):
            raise BadStep(
                f"{type(self.model).__name__} has no parameter that requires a gradient",
                hint="unfreeze what you train, or check that the model has parameters",
            )
        with _explaining("making the optimizer"):
            optimizer = make(parameters)
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise BadStep(
                f"Step.optimizer returned a {type(optimizer).__name__}, not a torch optimizer",
                hint="pass an optimizer class, or a callable on the parameters: lambda p: torch.optim.SGD(p, lr=0.1)",
            )
        return optimizer

    def _micro_batch(self, is_last: bool = True) -> None:
        with self._micro_batch_context(is_last):
            self._forward_and_backward()

    def _forward_and_backward(self) -> None:
        self._recorder.phase = Phase.FORWARD
        loss = self._forward()
        self.forward_survivors |= self._recorder.live_storages()
        tell("tracing backward")
        self._recorder.phase = Phase.BACKWARD
        with _explaining("backward"):
            (self._scaler.scale(loss) if self._scaler else loss).backward()

    def _forward(self) -> torch.Tensor:
        autocast = (
            torch.autocast("cuda", self._step.autocast) if self._step.autocast is not None else contextlib.nullcontext()
        )
        with autocast, _explaining("forward"):
            return _scalar_loss(self._step, self._called(*self._args, **self._kwargs))

    def _optimizer_step(self) -> None:
        if self._step.fsdp and self._step.fsdp.offload:
            return  # it runs on the host
        scaler, optimizer = self._scaler, self.optimizer
        if self._step.clip_grad_norm is not None:
            if scaler:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self._step.clip_grad_norm)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()


def _scalar_loss(step: Step, output: Any) -> torch.Tensor:
    loss: Any
    if step.loss is not None:
        loss, source = step.loss(output), "Step.loss returned"
    else:
        loss, source = (
            output if isinstance(output, torch.Tensor) else getattr(output, "loss", None),
            "the model returned",
        )
    if not isinstance(loss, torch.Tensor):
        got = f"a {type(output).__name__} without .loss" if step.loss is None else f"a {type(loss).__name__}"
    elif loss.numel() != 1:
        got = f"a tensor of shape {tuple(loss.shape)}"
    elif not loss.requires_grad:
        got = "a scalar that needs no gradient"
    else:
        return loss
    raise BadStep(
        f"{source} {got}, not a scalar loss to differentiate",
        hint="pass Step(loss=...), a function from the model's output to a scalar tensor",
    )


@contextlib.contextmanager
def _explaining(doing: str) -> Iterator[None]:
    """Adds once, at the boundary to the user's code, what was going on when it raised."""
    try:
        yield
    except TrainfitError:
        raise
    except (Exception, SystemExit) as error:
        first_line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        raise TraceError(
            f"{doing} failed on the ghost GPU: {type(error).__name__}: {first_line}",
            hint=(doing == "forward" and hint_of_guesses())
            or "run the step on the CPU to see whether it works there; -v shows the traceback",
        ) from error
