"""`PlanCallback`: a Hugging Face Trainer that follows a plan.

    Trainer(..., callbacks=[trainfit.huggingface.PlanCallback("plan.json")])

The plan is applied when the Trainer has its model and before it wraps it (DDP, FSDP, compile), and taken off when
training ends. Gradient checkpointing must be off: the plan takes its place.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from trainfit._plan_record import Plan
from trainfit.apply import Handle
from trainfit.errors import UsageError


class PlanCallback(TrainerCallback):
    """Applies a plan to the Trainer's model; `handle` is there once the Trainer is made."""

    def __init__(self, plan: str | Path | Plan, *, strict: bool = False) -> None:
        self._plan = plan if isinstance(plan, Plan) else Plan.load(plan)
        self._strict = strict
        self.handle: Handle | None = None

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.gradient_checkpointing:
            raise UsageError(
                "TrainingArguments.gradient_checkpointing is on, and a plan says itself what is recomputed",
                hint="pass gradient_checkpointing=False",
            )
        self.handle = self._plan.apply(kwargs["model"], strict=self._strict)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.handle is None:
            raise UsageError(
                "PlanCallback was added after the Trainer was made, when its model may be wrapped already",
                hint="pass it to the Trainer: Trainer(..., callbacks=[PlanCallback(...)])",
            )

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.handle is not None:
            self.handle.remove()
