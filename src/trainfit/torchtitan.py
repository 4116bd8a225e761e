"""`PlanAC`: torchtitan's activation checkpointing, done by a plan.

    import trainfit.torchtitan
    Trainer.Config(..., activation_checkpoint=trainfit.torchtitan.PlanAC.Config(plan="plan.json"))

torchtitan applies it after tensor parallel and before compile and FSDP, which is where a plan belongs. Every block runs
as the plan says; blocks that the plan does not name keep everything. Where the plan runs whole blocks again or replays
dropout, pass TrainingConfig(disable_cuda_graphs=True): neither can be captured in a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torchtitan.distributed.activation_checkpoint import ActivationCheckpointing

from trainfit._plan_record import Plan
from trainfit.apply import Handle


class PlanAC(ActivationCheckpointing):
    """Applies a plan to the model; `handle` is there afterwards."""

    @dataclass(kw_only=True, slots=True)
    class Config(ActivationCheckpointing.Config):
        plan: str
        """The plan's file, as `trainfit plan -o` writes it."""

        strict: bool = False
        """Raise where a block does something else than what was planned for, instead of checkpointing it."""

    handle: Handle | None = None

    def apply(self, model: nn.Module) -> None:
        """Make the model's blocks follow the plan."""
        self.handle = Plan.load(self.config.plan).apply(model, strict=self.config.strict)
