"""One case of the zoo: how to build a model and its batch, and how to train it.

In: nothing is built until asked, so a case can be listed and imported with no GPU.
Out: `Case.module()` for a real GPU, `make_step(case)` for the predictor. Both describe the same training step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

if TYPE_CHECKING:
    import trainfit

Precision = Literal["bf16", "amp", "fp16amp", "fp32", "tf32"]
AUTOCAST: dict[str, torch.dtype | None] = {
    "bf16": None,  # bf16 weights
    "amp": torch.bfloat16,  # fp32 weights
    "fp16amp": torch.float16,  # fp32 weights and a GradScaler
    "fp32": None,
    "tf32": None,  # fp32 whose products may be rounded, for the whole process
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A training step that is measured on a GPU and predicted without one."""

    name: str
    build: Callable[[], nn.Module]  # on the current default device, in the current default dtype
    batch: Callable[[str], Mapping[str, Any]]  # device -> keyword arguments of the model
    precision: Precision
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW
    loss: Callable[[Any], torch.Tensor] | None = None  # None: the output's `.loss`, or the output itself
    checkpoint: bool = False  # has a second variant in which every layer is checkpointed (non-reentrant)
    clip_grad_norm: float | None = None
    micro_batches: int = 1

    @property
    def autocast(self) -> torch.dtype | None:
        return AUTOCAST[self.precision]

    @property
    def grad_scaler(self) -> bool:
        return self.precision == "fp16amp"

    def module(self, checkpointed: bool = False) -> nn.Module:
        """The model in training mode, on the current default device."""
        torch.set_float32_matmul_precision("high" if self.precision == "tf32" else "highest")
        previous = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16 if self.precision == "bf16" else torch.float32)
        try:
            model = self.build().train()
        finally:
            torch.set_default_dtype(previous)
        if checkpointed:
            enable: Any = model.gradient_checkpointing_enable
            enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return model


def make_step(case: Case, checkpointed: bool = False) -> trainfit.Step:
    """The case as the predictor takes it; the batch is on the CPU."""
    import trainfit

    return trainfit.Step(
        model=lambda: case.module(checkpointed),
        batch=case.batch("cpu"),
        optimizer=case.optimizer,
        loss=case.loss,
        autocast=case.autocast,
        grad_scaler=case.grad_scaler,
        clip_grad_norm=case.clip_grad_norm,
        micro_batches=case.micro_batches,
    )
