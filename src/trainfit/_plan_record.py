"""`Plan`: what each block keeps and what it recomputes, what that will cost, and the file it is kept in.

The file is JSON in a stable order with one decision per line, made to be committed and reviewed: no timestamps, no
hosts, nothing that differs when the same plan is made again. Loading is strict: whatever is missing, unknown or of the
wrong type is an error that names its path. Applying checks the model against the plan's fingerprint.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from trainfit._estimate import Estimate
from trainfit.errors import BadPlan
from trainfit.fingerprint import fingerprint, first_difference
from trainfit.records import BlockDecision
from trainfit.report import plan_text, text

if TYPE_CHECKING:
    from torch import nn

    from trainfit._plan import Planner
    from trainfit._verify_record import Verification
    from trainfit.apply import Handle
    from trainfit.step import Step

SCHEMA = 1
# Fields of an Estimate that are not in the file, and what they are when it is loaded.
_NOT_IN_FILE: dict[str, Any] = {"timeline": (), "trace_seconds": 0.0, "not_modelled": (), "time": None, "source": None}

MemoryKind = Literal["reserved", "allocated"]


class Decision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What some equal blocks do."""

    blocks: tuple[str, ...]
    summary: str  # in words: what is recomputed and what is kept
    kept_bytes: int  # per block
    recompute_ns: int  # per block
    structure: str | None  # fingerprint of the program that `kept` is about
    kept: tuple[int, ...]  # storage numbers of the block's program
    rerun: bool = False  # nothing is kept, and the whole forward is run again


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of the comparison: a way to run the step, and what it takes."""

    name: str
    peak_bytes: int
    step_ns: int
    fits: bool


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """A plan for one training step on one kind of GPU; make it with `trainfit.plan`, or load it."""

    schema: int
    trainfit: str
    torch: str
    gpu: str
    allocator: Literal["classic", "expandable"]
    memory: MemoryKind
    """Which of the two peaks the budget binds."""
    budget_bytes: int
    status: str
    """"optimal", "feasible", "nothing to recompute" or "interrupted"."""
    gap: float
    """The share of the step's time that a better plan could save at most."""
    predicted: Estimate
    """The planned step, simulated."""
    predicted_step_ns: int
    rows: tuple[Row, ...]
    """The plan beside what people do without one."""
    decisions: tuple[Decision, ...]
    """One per way in which blocks run; a block that is in none keeps everything."""
    inputs: tuple[str, ...]
    model: tuple[str, ...]
    """The fingerprint of the model."""
    gap_as_allocated: float | None = None
    """The gap against plans that allocate no more than this one, the rest of it being what the allocator wastes; None
    in files of before this was written down."""

    def block_decisions(self) -> dict[str, BlockDecision]:
        """What each planned block keeps."""
        return {
            block: BlockDecision(kept=decision.kept, structure=decision.structure, rerun=decision.rerun)
            for decision in self.decisions
            for block in decision.blocks
        }

    def apply(self, model: nn.Module, *, strict: bool = False) -> Handle:
        """Make `model` follow the plan, in place; do it before torch.compile and fully_shard.

        On several ranks all must have the same plan; that is checked here, or in the first forward if there is no
        process group yet. `strict` raises where a block does something else than what was planned for, instead of
        checkpointing it.
        """
        difference = first_difference(self.model, fingerprint(model))
        if difference is not None:
            raise BadPlan(
                f"the plan is for another model: {difference}", hint="make a plan for this model with trainfit plan"
            )
        from trainfit.apply import agree_when_ranks_meet, apply_decisions

        handle = apply_decisions(model, self.block_decisions(), strict=strict)
        agree_when_ranks_meet(model, self.digest)
        return handle

    @property
    def digest(self) -> str:
        """What tells this plan from others: ranks compare it."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @property
    def planner(self) -> Planner | None:
        """What made the plan; None if it was loaded."""
        return self.__dict__.get("_planner")

    def interrupted(self) -> Plan:
        """The same plan, of a search that was not ended."""
        plan = msgspec.structs.replace(self, status="interrupted")
        return plan if self.planner is None else plan.made_by(self.planner)

    def made_by(self, planner: Planner) -> Plan:
        """Remember the planner, which has traced the step, for `report`. It is no field: not compared, not saved."""
        self.__dict__["_planner"] = planner
        return self

    def report(
        self,
        path: str | Path,
        step: Step | None = None,
        *,
        measured: Verification | None = None,
        command: str | None = None,
    ) -> None:
        """Write the plan as one HTML file.

        `step` is the step that it is for; a plan that `trainfit.plan` made knows it, and a page of a plan that was
        loaded lacks the pictures without it. `measured` is what `trainfit.verify` said, `command` what made the plan.
        """
        from trainfit._report import plan_page, planner_for
        from trainfit.report import html

        planner = self.planner if step is None else planner_for(self, step)
        page = plan_page(self, planner, measured=measured, command=command)
        Path(path).write_text(html.render(page), encoding="utf-8")

    def _repr_html_(self) -> str:
        """The report, in a notebook."""
        from trainfit._report import plan_page
        from trainfit.report import html

        return html.notebook_frame(plan_page(self, self.planner))

    def save(self, path: str | Path) -> None:
        """Write the plan's file."""
        Path(path).write_text(self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan's file; what is wrong with it is said by its path."""
        try:
            content = Path(path).read_text()
        except OSError as error:
            raise BadPlan(f"{path} cannot be read: {error.strerror}", hint="name a file that plan -o wrote") from error
        return cls.from_json(content, name=str(path))

    @classmethod
    def from_json(cls, content: str, *, name: str = "the plan") -> Plan:
        """The plan in a file's content."""
        try:
            fields = json.loads(content)
        except json.JSONDecodeError as error:
            raise BadPlan(f"{name} is no JSON: {error}", hint="make it again with trainfit plan -o") from error
        schema = fields.get("schema") if isinstance(fields, dict) else None
        if isinstance(schema, int) and schema > SCHEMA:
            raise BadPlan(
                f"{name} has schema {schema}; this version of trainfit knows {SCHEMA}", hint="upgrade trainfit"
            )
        try:
            if isinstance(fields, dict) and isinstance(fields.get("predicted"), dict):
                _check_predicted(fields["predicted"])
                fields["predicted"] |= _NOT_IN_FILE
            return msgspec.convert(fields, cls)
        except msgspec.ValidationError as error:
            raise BadPlan(f"{name} is no plan: {error}", hint="make it again with trainfit plan -o") from error

    def to_json(self) -> str:
        """The file's content."""
        fields = msgspec.to_builtins(self)
        for field in _NOT_IN_FILE:
            del fields["predicted"][field]
        return "{\n" + ",\n".join(f"  {json.dumps(key)}: {_lines(value)}" for key, value in fields.items()) + "\n}\n"

    def diff(self, other: Plan) -> str:
        """What `other` does differently, line by line; empty if nothing."""
        return plan_text.diff(self, other)

    def __str__(self) -> str:
        return text.render(plan_text.plan_view(self))


def _lines(value: Any) -> str:
    """Lists with an item per line, everything else on one."""
    if isinstance(value, (list, tuple)) and value:
        return "[\n" + ",\n".join(f"    {json.dumps(item)}" for item in value) + "\n  ]"
    return json.dumps(value)


def _check_predicted(predicted: dict[str, Any]) -> None:
    known = {field.name for field in dataclasses.fields(Estimate)} - _NOT_IN_FILE.keys()
    unknown = sorted(predicted.keys() - known)
    if unknown:
        raise msgspec.ValidationError(f"Object contains unknown field `{unknown[0]}` - at `$.predicted`")


def for_plan(estimate: Estimate) -> Estimate:
    """The estimate as a plan holds it: without what is not in the file."""
    return dataclasses.replace(estimate, **_NOT_IN_FILE)
