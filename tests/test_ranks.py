"""Real ranks without a GPU: gloo, 2 and 4 processes. What each rank checks is in ranks_worker.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).parent / "ranks_worker.py"
CHECKS = {
    2: ("same_plan", "another_plan", "fsdp", "tensor_parallel", "collectives"),
    4: ("same_plan", "another_plan", "hsdp", "collectives", "a_rank_that_died"),
}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=180, check=False)


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_agree_on_the_plan_and_get_the_gradients_of_the_unplanned_model(world_size: int) -> None:
    checks = CHECKS[world_size]
    done = run(str(WORKER), "--ranks", str(world_size), *checks)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split("\n")[:-1] == [f"{check}: ok" for check in checks]


def test_a_rank_that_is_killed_in_its_backward_ends_the_run_in_an_error_and_not_in_a_hang() -> None:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    done = run(*launcher, str(WORKER), "a_rank_killed_in_its_backward")  # which is given 180 s
    assert done.returncode != 0
    # torchrun names the rank that it found dead first: the one that was killed, or the one that lost it.
    assert any(word in done.stderr for word in ("SIGKILL", "Connection"))
    assert done.stdout == ""
