"""The plan's file: stable, one decision per line, strict when loaded, readable when compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from trainfit._estimate import Estimate
from trainfit._plan_record import Decision, Plan, Row, for_plan
from trainfit.errors import BadPlan
from trainfit.fingerprint import fingerprint, first_difference, format_ranges
from trainfit.records import Category, PeakMoment, Phase
from trainfit.report.plan_text import blocks_in_words

GIB = 2**30


class Model(nn.Module):
    def __init__(self, layers: int = 3, width: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, width), nn.ReLU()) for _ in range(layers))
        self.head = nn.Linear(4, 2)


def a_plan(**changes: Any) -> Plan:
    estimate = Estimate(
        gpu="h200",
        torch="2.13.0",
        allocator="classic",
        peak_allocated_bytes=20 * GIB,
        peak_reserved_bytes=26 * GIB,
        peak_at=PeakMoment(Phase.BACKWARD, "aten.mm.default", "layers.2.0"),
        breakdown_bytes={category.value: 0 for category in Category},
        budget_bytes=27 * GIB,
        num_parameters=10,
        trace_seconds=1.5,
        timeline=(),
        not_modelled=("the weather",),
    )
    fields: dict[str, Any] = {
        "schema": 1,
        "trainfit": "0.1.0",
        "torch": "2.13.0",
        "gpu": "h200",
        "allocator": "classic",
        "memory": "reserved",
        "budget_bytes": 27 * GIB,
        "status": "optimal",
        "gap": 0.0004,
        "gap_as_allocated": 0.0001,
        "predicted": for_plan(estimate),
        "predicted_step_ns": 110_000_000,
        "rows": (
            Row(name="nothing recomputed", peak_bytes=33 * GIB, step_ns=100_000_000, fits=False),
            Row(name="every layer checkpointed", peak_bytes=20 * GIB, step_ns=130_000_000, fits=True),
            Row(name="plan", peak_bytes=26 * GIB, step_ns=110_000_000, fits=True),
        ),
        "decisions": (
            Decision(
                blocks=("layers.0", "layers.1"),
                summary="recompute norms, silu; keep matmuls",
                kept_bytes=GIB,
                recompute_ns=5_000_000,
                structure="abc",
                kept=(3, 5),
            ),
            Decision(
                blocks=("layers.2",),
                summary="recompute silu; keep matmuls, norms",
                kept_bytes=2 * GIB,
                recompute_ns=0,
                structure=None,
                kept=(3,),
            ),
        ),
        "inputs": ("input_ids int64[4, 2048]",),
        "model": fingerprint(Model()),
    }
    return Plan(**(fields | changes))


def test_a_saved_plan_is_loaded_as_it_was(tmp_path: Path) -> None:
    plan = a_plan()
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan


def test_the_file_has_one_decision_per_line_and_no_time_of_day() -> None:
    lines = a_plan().to_json().splitlines()
    assert sum('"summary"' in line for line in lines) == 2
    assert not any("seconds" in line or "timeline" in line for line in lines)
    assert lines[1] == '  "schema": 1,'


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.lists(
        st.builds(
            Decision,
            blocks=st.lists(st.text(), min_size=1).map(tuple),
            summary=st.text(),
            kept_bytes=st.integers(0, 2**50),
            recompute_ns=st.integers(0, 2**50),
            structure=st.none() | st.text(),
            kept=st.lists(st.integers(0, 10**6)).map(tuple),
        )
    ).map(tuple),
    st.floats(0, 1),
)
def test_any_plan_survives_the_file(decisions: tuple[Decision, ...], gap: float) -> None:
    plan = a_plan(decisions=decisions, gap=gap)
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.to_json() == plan.to_json()


def broken(path: list[Any], value: Any) -> str:
    fields = json.loads(a_plan().to_json())
    inner = fields
    for key in path[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return json.dumps(fields)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["decisions", 1, "kept", 0], "3", r"Expected `int`, got `str` - at `\$\.decisions\[1\]\.kept\[0\]`"),
        (["decisions", 0, "blocks"], ..., r"missing required field `blocks` - at `\$\.decisions\[0\]`"),
        (["rows", 0, "fits"], 1, r"Expected `bool`, got `int` - at `\$\.rows\[0\]\.fits`"),
        (["colour"], "red", r"unknown field `colour`"),
        (["predicted", "colour"], "red", r"unknown field `colour` - at `\$\.predicted`"),
        (
            ["predicted", "peak_at", "phase"],
            "later",
            r"Invalid enum value 'later' - at `\$\.predicted\.peak_at\.phase`",
        ),
        (["memory"], "virtual", r"Invalid enum value 'virtual' - at `\$\.memory`"),
        (["schema"], 2, r"has schema 2; this version of trainfit knows 1"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_by_its_path(path: list[Any], value: Any, message: str) -> None:
    with pytest.raises(BadPlan, match=message):
        Plan.from_json(broken(path, value))


def test_what_is_no_json_or_no_object_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadPlan, match="no JSON"):
        Plan.from_json("plan")
    with pytest.raises(BadPlan, match="Expected `object`, got `array`"):
        Plan.from_json("[]")
    with pytest.raises(BadPlan, match=r"none\.json cannot be read: No such file"):
        Plan.load(tmp_path / "none.json")


def test_a_plan_for_another_model_names_the_first_module_that_differs() -> None:
    plan = a_plan()
    with pytest.raises(BadPlan, match=r"layers\.0\.0 is Linear\(weight float32\[5, 4\], bias float32\[5\]\), and was"):
        plan.apply(Model(width=5))
    with pytest.raises(BadPlan, match=r"layers\.2 is missing"):
        plan.apply(Model(layers=2))
    with pytest.raises(BadPlan, match=r"layers\.3 is new"):
        plan.apply(Model(layers=4))


def test_the_fingerprint_has_equal_layers_in_one_line() -> None:
    with torch.device("meta"):
        lines = fingerprint(Model())
    assert lines == (
        ": Model()",
        "layers: ModuleList()",
        "layers.{0-2}: Sequential()",
        "layers.{0-2}.0: Linear(weight float32[4, 4], bias float32[4])",
        "layers.{0-2}.1: ReLU()",
        "head: Linear(weight float32[2, 4], bias float32[2])",
    )
    assert first_difference(lines, fingerprint(Model())) is None


def test_ranges_and_blocks_are_written_as_people_do() -> None:
    assert format_ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
    assert blocks_in_words(["model.layers.0", "model.layers.1", "model.layers.3"]) == "model.layers.0-1,3 (x3)"
    assert blocks_in_words(["encoder"]) == "encoder"


def test_the_printed_plan_has_the_comparison_and_the_decisions() -> None:
    assert str(a_plan()).splitlines() == [
        "optimal on h200: 26.0 GiB of 27.0 GiB reserved (96.3%), gap 0.04%",
        "",
        "                          peak reserved      step  overhead",
        "nothing recomputed             33.0 GiB  100.0 ms     +0.0%  does not fit",
        "every layer checkpointed       20.0 GiB  130.0 ms    +30.0%  fits",
        "plan                           26.0 GiB  110.0 ms    +10.0%  fits",
        "",
        "decisions",
        "  layers.0-1 (x2)  recompute norms, silu; keep matmuls",
        "                   keeps 1.0 GiB, recomputes 5.00 ms per block",
        "  layers.2         recompute silu; keep matmuls, norms",
        "                   keeps 2.0 GiB, recomputes 0.00 ms per block",
        "",
        "the peak is in backward, at aten.mm.default in layers.2.0",
        "gap 0.04%: no plan that allocates at most 27.0 GiB is faster by more",
        "classic segments waste 6.0 GiB; no plan that allocates as little, 20.0 GiB, is faster by more than 0.01%",
    ]


def test_the_difference_of_two_plans_is_in_words() -> None:
    plan = a_plan()
    assert plan.diff(a_plan()) == ""
    other = a_plan(budget_bytes=30 * GIB, decisions=plan.decisions[:1])
    assert plan.diff(other).splitlines() == [
        "--- this plan",
        "+++ the other",
        "-budget: 27.0 GiB",
        "+budget: 30.0 GiB",
        "-layers.2: recompute silu; keep matmuls, norms; storages [3]",
    ]


def test_block_decisions_are_by_block() -> None:
    decisions = a_plan().block_decisions()
    assert list(decisions) == ["layers.0", "layers.1", "layers.2"]
    assert (decisions["layers.1"].kept, decisions["layers.1"].structure) == ((3, 5), "abc")
