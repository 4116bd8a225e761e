"""`verify` without a GPU: its verdicts, its gradients on the CPU, and its error where there is none."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import apply_zoo
import trainfit
from trainfit import _verify
from trainfit._verify import _real_batch
from trainfit._verify_record import Gradients, Measured, Verification
from trainfit.cli import main
from trainfit.errors import BadStep, NoGpu
from trainfit.records import BlockDecision

GIB = 2**30
AS_PLANNED = Verification(
    gpu="h200",
    torch="2.13.0",
    memory="allocated",
    budget_bytes=20 * GIB,
    predicted_allocated_bytes=19 * GIB,
    predicted_reserved_bytes=22 * GIB,
    predicted_step_ns=200_000_000,
    planned=Measured(
        allocated_bytes=19 * GIB,
        reserved_bytes=22 * GIB,
        first_step_allocated_bytes=18 * GIB,
        step_ns=204_000_000,
        fastest_step_ns=203_000_000,
        slowest_step_ns=206_000_000,
    ),
    unplanned=Measured(
        allocated_bytes=30 * GIB,
        reserved_bytes=32 * GIB,
        first_step_allocated_bytes=28 * GIB,
        step_ns=170_000_000,
        fastest_step_ns=170_000_000,
        slowest_step_ns=170_000_000,
    ),
    checkpointed_blocks=(),
    deterministic=True,
    gradients=Gradients(3, 3, 0.0),
    noise=Gradients(3, 3, 0.0),
)


def changed(**fields: Any) -> Verification:
    """AS_PLANNED with other figures; those of `Measured` are the planned step's."""
    measured = {name: fields.pop(name) for name in list(fields) if hasattr(AS_PLANNED.planned, name)}
    return replace(AS_PLANNED, planned=replace(AS_PLANNED.planned, **measured), **fields)


def failed(verification: Verification) -> list[str]:
    return [check.name for check in verification.checks if not check.passed]


def test_what_is_as_planned_passes() -> None:
    assert AS_PLANNED.passed
    assert failed(AS_PLANNED) == []


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"first_step_allocated_bytes": 20 * GIB + 1}, "allocated within the budget"),
        ({"memory": "reserved"}, "reserved within the budget"),
        ({"allocated_bytes": int(19.02 * GIB)}, "peak allocated"),
        ({"reserved_bytes": int(22.3 * GIB)}, "peak reserved"),
        ({"step_ns": 211_000_000}, "step time"),
        ({"step_ns": 189_000_000}, "step time"),
        ({"checkpointed_blocks": ("layers.0",)}, "blocks that did something else"),
        ({"gradients": Gradients(3, 2, 1e-6)}, "gradients, deterministic"),
        (
            {"deterministic": False, "gradients": Gradients(3, 2, 3e-6), "noise": Gradients(3, 2, 1e-6)},
            "gradients, not deterministic",
        ),
    ],
)
def test_each_promise_is_checked(change: dict[str, Any], name: str) -> None:
    assert failed(changed(**change)) == [name]


def test_gradients_as_near_to_eager_as_eager_is_pass() -> None:
    noisy = replace(AS_PLANNED, gradients=Gradients(3, 1, 1.5e-6), noise=Gradients(3, 2, 1e-6))
    assert noisy.passed


def test_the_table_names_what_failed() -> None:
    text = str(changed(step_ns=300_000_000))
    assert text.startswith("not verified on h200")
    assert "FAIL step time" in text
    assert re.search(r"200\.0 ms +5\.0% off +300\.0 ms \(\+50\.0%\), median of 5: 203\.0 to 206\.0", text)
    assert re.search(r"ok   peak allocated +19456\.0 MiB +0\.1% off +19456\.0 MiB \(equal to the byte\)", text)
    assert "ok   peak allocated" in text
    assert text.splitlines()[-1] == (
        "without the plan: 30.0 GiB allocated, 32.0 GiB reserved, 170.0 ms a step; "
        "the plan saves 11.0 GiB allocated and 10.0 GiB reserved for +76.5% time"
    )


def test_a_step_that_fits_only_with_the_plan_says_so() -> None:
    alone = replace(AS_PLANNED, unplanned=None, gradients=None, noise=None)
    assert alone.passed
    assert str(alone).endswith("without the plan the step does not fit on this GPU")
    assert "not compared: the unplanned step does not fit" in str(alone)


def test_the_json_is_plain() -> None:
    fields = json.loads(json.dumps(AS_PLANNED.to_json_dict()))
    assert fields["passed"] is True
    assert fields["gradients"] == {"count": 3, "equal": 3, "worst": 0.0}


DECISIONS = {"layers.0": BlockDecision(()), "layers.1": BlockDecision((12,))}


def test_gradients_under_a_plan_are_compared_with_those_without() -> None:
    case = apply_zoo.ready("transformer").case
    step = trainfit.Step(model=case.build, batch=case.inputs, loss=case.loss)
    run = _verify._Run(step, "cpu")
    run.step()
    with _verify.deterministic_kernels():
        planned, noise = _verify.compare_gradients(run, DECISIONS, strict=True)
    count = len(list(run.model.parameters()))
    assert planned == noise == Gradients(count, count, 0.0)


def test_deterministic_settings_are_put_back() -> None:
    before = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    with _verify.deterministic_kernels():
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        assert torch.get_deterministic_debug_mode() == 2
    assert os.environ.get("CUBLAS_WORKSPACE_CONFIG") == before
    assert torch.get_deterministic_debug_mode() == 0


def test_a_step_that_runs_out_of_memory_is_left_out() -> None:
    def out_of_memory() -> int:
        raise torch.OutOfMemoryError("CUDA out of memory")

    assert _verify._if_it_fits(out_of_memory) is None
    assert _verify._if_it_fits(lambda: 3) == 3


def test_a_difference_is_measured_relative_to_the_largest_entry() -> None:
    found = _verify._compare(
        [torch.tensor([1.0, 4.0]), torch.tensor([2.0])], [torch.tensor([1.5, 4.0]), torch.tensor([2.0])]
    )
    assert found == Gradients(count=2, equal=1, worst=0.125)


def test_a_model_without_weights_cannot_be_run() -> None:
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    with pytest.raises(BadStep, match="on meta"):
        _verify._Run(trainfit.Step(model=model, batch=(torch.ones(1, 2),)), "cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NoGpu, match="finds no GPU"):
        trainfit.verify(None, None)  # type: ignore[arg-type]
    assert main(["verify", str(tmp_path / "none.json"), "gpt2"]) == 2
    assert "none.json cannot be read" in capsys.readouterr().err


def test_a_batch_on_meta_gets_values_that_any_model_can_read() -> None:
    tokens = torch.empty(2, 3, dtype=torch.int64, device="meta")
    images = torch.empty(2, 3, 4, 4, device="meta")
    (), batch = _real_batch({"tokens": tokens, "labels": tokens, "images": images}, "cpu")
    assert batch["tokens"] is batch["labels"]  # one tensor stays one
    assert batch["tokens"].tolist() == [[0, 0, 0], [0, 0, 0]]
    assert 0.5 < batch["images"].std() < 1.5
