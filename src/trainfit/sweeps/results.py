"""What a sweep finds: a result per configuration, and their order."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainfit.errors import TrainfitError
from trainfit.sweeps.grid import Configuration

if TYPE_CHECKING:
    from trainfit._plan_record import Plan

DOES_NOT_FIT = "does not fit"
FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no plan, in words, and what to do."""

    message: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """The best plan for one configuration, or why there is none; numbers are None where there is none."""

    configuration: Configuration
    status: str
    """The plan's status, or "does not fit", or "failed"."""
    tokens_per_second_per_gpu: float | None = None
    """None where the batch has no tokens, too."""
    samples_per_second_per_gpu: float | None = None
    step_time_ns: int | None = None
    unplanned_step_time_ns: int | None = None
    """With nothing recomputed, whether that fits or not."""
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    budget_bytes: int | None = None
    minimum_budget_bytes: int | None = None
    """Where the budget is too small: the smallest that works."""
    error: str | None = None
    hint: str | None = None
    plan_json: str | None = None
    """The plan's file, on one line."""

    @property
    def fits(self) -> bool:
        """Whether there is a plan."""
        return self.plan_json is not None

    @property
    def plan(self) -> Plan | None:
        """The plan, which can be saved and applied."""
        from trainfit._plan_record import Plan

        return None if self.plan_json is None else Plan.from_json(self.plan_json)

    def to_json_dict(self) -> dict[str, Any]:
        """The result as plain JSON values."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        plan_json = fields.pop("plan_json")
        fields["configuration"] = self.configuration.to_json_dict()
        return fields | {"plan": None if plan_json is None else json.loads(plan_json)}

    @classmethod
    def from_json_dict(cls, fields: dict[str, Any]) -> SweepResult:
        """The result that `to_json_dict` gave."""
        rest = {name: value for name, value in fields.items() if name not in ("configuration", "plan")}
        plan = fields["plan"]
        return cls(
            configuration=Configuration.from_json_dict(fields["configuration"]),
            plan_json=None if plan is None else json.dumps(plan),
            **rest,
        )


def failed(configuration: Configuration, failure: Failure) -> SweepResult:
    """The result of a configuration that could not be planned."""
    return SweepResult(configuration=configuration, status=FAILED, error=failure.message, hint=failure.hint)


def failure_of(error: BaseException) -> Failure:
    """What was raised, in words."""
    if isinstance(error, TrainfitError):
        return Failure(error.message, error.hint)
    return Failure(f"{type(error).__name__}: {error}", "trainfit plan -v on this configuration shows the traceback")


def ranked(results: Iterable[SweepResult]) -> list[SweepResult]:
    """By tokens per second per GPU, the most first; samples where there are no tokens; without a plan last.

    Of those that do not fit, the ones that need least come first; what is equal in all this, by its configuration.
    """
    return sorted(results, key=_place)


def _place(result: SweepResult) -> tuple[object, ...]:
    tokens, samples = result.tokens_per_second_per_gpu or 0.0, result.samples_per_second_per_gpu or 0.0
    axes = result.configuration.to_json_dict().values()
    by_configuration = tuple((value is not None, isinstance(value, str), value) for value in axes)
    has_failed, needed = result.status == FAILED, result.minimum_budget_bytes or 0
    return not result.fits, has_failed, -tokens, -samples, needed, by_configuration
