"""One small plan, made once, and a browser to look at its page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import browser
import pytest
import torch
from small_model import Model

import trainfit
from trainfit._verify_record import Gradients, Measured, Verification


@pytest.fixture(scope="session")
def step() -> trainfit.Step:
    return trainfit.Step(model=Model, batch=(torch.empty(4096, 64, device="meta"),))


@pytest.fixture(scope="session")
def plan(step: trainfit.Step) -> trainfit.Plan:
    return trainfit.plan(step, "h200", budget="100MiB", memory="allocated")


@pytest.fixture(scope="session")
def verification(plan: trainfit.Plan) -> Verification:
    """A GPU that allocated a little less than predicted and took a tenth longer."""
    predicted = plan.predicted
    planned = Measured(
        allocated_bytes=predicted.peak_allocated_bytes - 2**20,
        reserved_bytes=predicted.peak_reserved_bytes,
        first_step_allocated_bytes=predicted.peak_allocated_bytes,
        step_ns=plan.predicted_step_ns * 11 // 10,
        fastest_step_ns=plan.predicted_step_ns,
        slowest_step_ns=plan.predicted_step_ns * 12 // 10,
    )
    return Verification(
        gpu="NVIDIA H200",
        torch="2.11.0+cu130",
        memory=plan.memory,
        budget_bytes=plan.budget_bytes,
        predicted_allocated_bytes=predicted.peak_allocated_bytes,
        predicted_reserved_bytes=predicted.peak_reserved_bytes,
        predicted_step_ns=plan.predicted_step_ns,
        planned=planned,
        unplanned=None,
        checkpointed_blocks=(),
        deterministic=True,
        gradients=Gradients(16, 16, 0.0),
        noise=Gradients(16, 16, 0.0),
    )


@pytest.fixture(scope="session")
def plan_file(plan: trainfit.Plan, verification: Verification, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the plan, with what was measured."""
    file = tmp_path_factory.mktemp("page") / "plan.html"
    plan.report(file, measured=verification, command="trainfit plan train.py:make_step --budget 100MiB")
    return file


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    if browser.CHROMIUM is None:
        pytest.skip(browser.WHY_NOT)
    started = browser.Browser(tmp_path_factory.mktemp("profile"))
    try:
        started.call("Browser.getVersion")
    except (AssertionError, OSError) as error:
        pytest.skip(f"chromium is installed here and does not start: {error}")
    yield started
    started.close()
