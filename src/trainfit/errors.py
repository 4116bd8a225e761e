"""Every error that is the user's to fix: what happened, to which object, and (the hint) what to do about it.

Only the command line prints them, as `error: ...` and `hint: ...`, and turns `exit_code` into the exit status:
2 when what was asked for cannot be right (a name, a size, a target, a Step), 1 when running it failed.
"Does not fit" is an answer, not an error: the command line exits with 3.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence


class TrainfitError(Exception):
    """Base of all errors that trainfit raises on purpose."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} (hint: {self.hint})"


class UsageError(TrainfitError):
    """What was asked for cannot be right, whatever the model does."""

    exit_code = 2


class UnknownGpu(UsageError):
    """No GPU of that name in the catalogue."""


class UnknownPreset(UsageError):
    """No preset of that name."""


class BadTarget(UsageError):
    """A target that leads to no Step: a file, module, function or config that is missing, or gives something else."""


class BadSize(UsageError):
    """A size without unit, or not a size at all."""


class BadStep(UsageError):
    """A Step that describes no training step: a loss that is not a scalar, an optimizer without parameters, ..."""


class TraceError(TrainfitError):
    """Running the step on the ghost GPU failed: the model, the loss or the optimizer raised."""


class DataDependentShape(TraceError):
    """An op whose output shape depends on values, which a ghost tensor does not have."""


class BadDecision(UsageError):
    """A plan's decision that does not suit the block it is for."""


class PlanMismatch(TrainfitError):
    """A planned block did something else than what was recorded of it."""


class PlanDisagreement(TrainfitError):
    """Ranks of one training job have different plans, or one of them is not heard from."""


class NoGpu(TrainfitError):
    """What was asked for needs a real GPU, and there is none."""


class BadPlan(UsageError):
    """A plan's file that cannot be read as one, or that was made for another model."""


class BadProfile(UsageError):
    """A profile's file that cannot be read as one, or that was measured on another GPU."""


class InfeasibleBudget(TrainfitError):
    """No plan's peak is within the budget; `minimum_bytes` is the smallest budget that works."""

    exit_code = 3

    def __init__(self, message: str, *, hint: str, minimum_bytes: int) -> None:
        super().__init__(message, hint=hint)
        self.minimum_bytes = minimum_bytes


def did_you_mean(name: str, choices: Sequence[str]) -> str:
    """The start of a hint that names the nearest of `choices`; empty when none is near."""
    wanted = name.strip().lower()
    near = [choice for choice in choices if wanted and choice.startswith(wanted)]
    near += [choice for choice in difflib.get_close_matches(wanted, choices) if choice not in near]
    return f"did you mean {' or '.join(near[:2])}? " if near else ""
