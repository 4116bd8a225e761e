"""Sweeps on a Ray cluster; what needs one is skipped where Ray, which is an extra, is not installed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import trainfit
from sweep_steps import make_step, step_of_batch
from trainfit.errors import UsageError
from trainfit.sweeps import Configuration, SweepResult, configurations

HAS_RAY = importlib.util.find_spec("ray") is not None
HERE = Path(__file__).parent


@pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed (240 MB): pip install 'trainfit[ray]'")
def test_a_sweep_on_two_nodes_survives_the_death_of_one(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, str(HERE / "sweep_on_ray.py"), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    first, second = dict.fromkeys((tmp_path / "nodes of 2").read_text().split())
    assert first != second

    results = [SweepResult.from_json_dict(fields) for fields in json.loads((tmp_path / "results").read_text())]
    grid = {"folder": [str(tmp_path)], "batch": [1, 2, 4, 0], "gpu": ["h100-80gb", "h200"], "budget": ["auto", "min"]}
    assert Counter(each.configuration for each in results) == Counter(configurations(grid))
    rows = [json.loads(line) for line in (tmp_path / "sweep.jsonl").read_text().splitlines()]
    assert Counter(Configuration.from_json_dict(row["configuration"]) for row in rows) == Counter(configurations(grid))
    for each in results:
        batch, budget = dict(each.configuration.arguments)["batch"], each.configuration.budget
        if batch == 0:
            assert (each.status, each.error) == ("failed", "ValueError: a batch of 0")
        else:
            step = step_of_batch(256 * batch)  # type: ignore[operator]
            assert each.plan == trainfit.plan(step, each.configuration.gpu, budget=None if budget == "auto" else budget)


@pytest.mark.skipif(HAS_RAY, reason="Ray is installed")
def test_without_ray_it_is_said_how_to_get_it() -> None:
    with pytest.raises(UsageError, match="--ray needs Ray, which is not installed") as raised:
        list(trainfit.sweep(make_step, {"batch": [1]}, ray="auto"))
    assert raised.value.hint == "pip install 'trainfit[ray]'"
