"""torchtitan's own Trainer follows a plan: three steps of its debug Llama, on one rank and on two.

Needs torchtitan 0.3; it is skipped without. titan_worker.py says what a CPU needs.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import trainfit

pytest.importorskip("torchtitan.models.llama3")

from test_torchtitan_model import LAYERS, TOKENS, build, loss_of

WORKER = Path(__file__).with_name("titan_worker.py")


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan for an L4, told to recompute everything, whatever kernels the CPU has."""
    made = trainfit.plan(trainfit.Step(model=build, batch=(TOKENS,), loss=loss_of), "l4", budget="min")
    blocks = tuple(f"layers.{index}" for index in range(LAYERS))
    decision = {"blocks": blocks, "summary": "", "kept_bytes": 0, "recompute_ns": 0, "structure": None, "kept": ()}
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    path.write_text(json.dumps({**json.loads(made.to_json()), "decisions": [decision]}))
    return path


def trained(num_ranks: int, folder: Path, plan: Path | None) -> list[dict[str, Any]]:
    """What each rank says of its training."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": num_ranks, "MASTER_ADDR": "localhost", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(folder), *([str(plan)] if plan else [])],
            env=os.environ | {key: str(value) for key, value in {**common, "RANK": rank, "LOCAL_RANK": rank}.items()},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(num_ranks)
    ]
    said = [rank.communicate(timeout=180) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * num_ranks, said[0][1][-2000:]
    return [json.loads(out.splitlines()[-1]) for out, _ in said]


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_the_trainer_has_the_same_losses_bit_for_bit_with_a_plan(
    num_ranks: int, plan_file: Path, tmp_path: Path
) -> None:
    without, planned = trained(num_ranks, tmp_path, None), trained(num_ranks, tmp_path, plan_file)
    assert len(set(without[0]["losses"])) == 3
    for before, after in zip(without, planned, strict=True):
        assert after["losses"] == before["losses"]
        assert before["blocks"] == []
        assert after["blocks"] == [[3, 3, 0]] * LAYERS  # forwards, replays, reruns
