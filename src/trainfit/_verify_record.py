"""`Verification`: what the GPU did beside what a plan promised, what is checked of it, and its text.

In: the measurements of `verify`. Out: checks, each with what was predicted, measured and allowed; passed if all are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from trainfit._plan_record import MemoryKind
from trainfit.units import format_bytes, format_mebibytes

ALLOCATED_TOLERANCE = 0.001
RESERVED_TOLERANCE = 0.01
TIME_TOLERANCE = 0.05
NOISE_FACTOR = 2.0
"""Eager's differences with itself are draws of its noise; the plan's difference with eager is another."""
TIMED_STEPS = 5


@dataclass(frozen=True, slots=True)
class Gradients:
    """How two sets of gradients of the same parameters compare."""

    count: int
    equal: int  # bit for bit
    worst: float  # the largest difference, relative to the largest entry of its gradient


@dataclass(frozen=True, slots=True)
class Measured:
    """A step on the GPU."""

    allocated_bytes: int
    """The peak of the steps after the first, as torch.cuda.max_memory_allocated() says."""
    reserved_bytes: int
    """The peak since the memory was last empty, so with the first step."""
    first_step_allocated_bytes: int
    step_ns: int
    """The median of the timed steps."""
    fastest_step_ns: int
    slowest_step_ns: int


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was promised."""

    name: str
    predicted: str
    measured: str
    allowed: str
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
    planned: Measured
    unplanned: Measured | None
    """None if the unplanned step does not fit on the GPU."""
    checkpointed_blocks: tuple[str, ...]
    """Blocks that did not do what the plan says and were checkpointed as a whole for that reason."""
    deterministic: bool
    """Whether gradients were made with deterministic kernels."""
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
        found = self.planned
        highest = max(found.allocated_bytes, found.first_step_allocated_bytes)
        bound = found.reserved_bytes if self.memory == "reserved" else highest
        yield Check(
            f"{self.memory} within the budget",
            format_mebibytes(self.budget_bytes),
            f"{format_mebibytes(bound)} ({bound / self.budget_bytes:.2%} of it), first step included",
            "no more",
            bound <= self.budget_bytes,
        )
        for name, predicted, measured, tolerance in (
            ("peak allocated", self.predicted_allocated_bytes, found.allocated_bytes, ALLOCATED_TOLERANCE),
            ("peak reserved", self.predicted_reserved_bytes, found.reserved_bytes, RESERVED_TOLERANCE),
        ):
            error = measured / predicted - 1
            off = f"{measured - predicted:+d} B, {error:+.3%}" if measured != predicted else "equal to the byte"
            text = f"{format_mebibytes(measured)} ({off})"
            yield Check(name, format_mebibytes(predicted), text, f"{tolerance:.1%} off", abs(error) <= tolerance)
        error = found.step_ns / self.predicted_step_ns - 1
        spread = f"{found.fastest_step_ns / 1e6:.1f} to {found.slowest_step_ns / 1e6:.1f}"
        text = f"{found.step_ns / 1e6:.1f} ms ({error:+.1%}), median of {TIMED_STEPS}: {spread}"
        expected = f"{self.predicted_step_ns / 1e6:.1f} ms"
        yield Check("step time", expected, text, f"{TIME_TOLERANCE:.1%} off", abs(error) <= TIME_TOLERANCE)
        blocks = ", ".join(self.checkpointed_blocks) or "none"
        yield Check("blocks that did something else", "none", blocks, "none", not self.checkpointed_blocks)
        yield self._gradient_check()

    def _gradient_check(self) -> Check:
        if self.gradients is None or self.noise is None:
            return Check("gradients", "eager's", "not compared: the unplanned step does not fit", "", True)
        found, noise = self.gradients, self.noise
        eager = f"eager's own, run again: {noise.equal} of {noise.count} equal, worst {noise.worst:.1e}"
        return Check(
            f"gradients, {'deterministic' if self.deterministic else 'not deterministic'}",
            "eager's",
            f"{found.equal} of {found.count} equal bit for bit, worst {found.worst:.1e} ({eager})",
            f"{NOISE_FACTOR:g} times eager's worst",
            found.equal == found.count or found.worst <= NOISE_FACTOR * noise.worst,
        )

    def _comparison(self) -> str:
        """The plan beside the step without it."""
        if self.unplanned is None:
            return "without the plan the step does not fit on this GPU"
        before, after = self.unplanned, self.planned
        change = after.step_ns / before.step_ns - 1
        return (
            f"without the plan: {format_bytes(before.allocated_bytes)} allocated, "
            f"{format_bytes(before.reserved_bytes)} reserved, {before.step_ns / 1e6:.1f} ms a step; "
            f"the plan saves {format_bytes(before.allocated_bytes - after.allocated_bytes)} allocated and "
            f"{format_bytes(before.reserved_bytes - after.reserved_bytes)} reserved for {change:+.1%} time"
        )

    def to_json_dict(self) -> dict[str, Any]:
        """The verification as plain JSON values."""
        return {**asdict(self), "passed": self.passed, "checks": [asdict(check) for check in self.checks]}

    def __str__(self) -> str:
        rows = [("", "predicted", "allowed", "measured")]
        for check in self.checks:
            name = f"{'ok  ' if check.passed else 'FAIL'} {check.name}"
            rows.append((name, check.predicted, check.allowed, check.measured))
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [
            "  ".join([*(f"{text:{width}}" for text, width in zip(row, widths, strict=False)), row[3]]) for row in rows
        ]
        verdict = "verified" if self.passed else "not verified"
        return "\n".join([f"{verdict} on {self.gpu}, torch {self.torch}", "", *lines, "", self._comparison()])
