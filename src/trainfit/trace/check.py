"""`check_step`: whether the fields of a Step are what they must be. In: the Step. Out: nothing, or the error."""

from __future__ import annotations

import torch
from torch import nn

from trainfit.errors import BadStep
from trainfit.step import Step

AUTOCAST_DTYPES = (torch.bfloat16, torch.float16)


def check_step(step: Step) -> None:
    """Raise before anything runs: torch's own autocast, for one, is left on by a dtype that is none."""
    if isinstance(step.model, torch.jit.ScriptModule):
        raise BadStep("Step.model is a scripted module", hint="pass the module that it was made from")
    if not isinstance(step.model, nn.Module) and not callable(step.model):
        raise BadStep(
            f"Step.model is a {type(step.model).__name__}", hint="pass an nn.Module, or a callable that builds one"
        )
    if step.optimizer is not None and not callable(step.optimizer):
        raise BadStep(
            f"Step.optimizer is a {type(step.optimizer).__name__}",
            hint="pass an optimizer class, or a callable on the parameters: lambda p: torch.optim.SGD(p, lr=0.1)",
        )
    if step.loss is not None and not callable(step.loss):
        raise BadStep(
            f"Step.loss is a {type(step.loss).__name__}",
            hint="pass a function from the model's output to a scalar tensor",
        )
    if step.autocast is not None and step.autocast not in AUTOCAST_DTYPES:
        raise BadStep(
            f"Step.autocast is {step.autocast!r}", hint="pass torch.bfloat16 or torch.float16, or None for no autocast"
        )
    if not isinstance(step.micro_batches, int) or step.micro_batches < 1:
        raise BadStep(f"Step.micro_batches is {step.micro_batches!r}", hint="pass a whole number of at least 1")
