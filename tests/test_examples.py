"""Every example runs as a reader would run it, on a CPU, in under a minute, and says what it promises."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SAYS = {
    "01_estimate_a_preset.py": r"fits h100-80gb: \d+\.\d GiB of 78\.6 GiB[\s\S]*\n"
    r"  rtx4090 [^\n]*does not fit\n[\s\S]*\n  h200 +\d+\.\d GiB +\d+\.\d ms  fits\n",
    "02_plan_and_apply.py": r"three steps, plain and planned, gave the same weights",
    "03_huggingface_trainer.py": r"training loss without the plan (\d+\.\d{4}), with it \1\n",
    "04_fsdp2.py": r"step 0: loss \d\.\d{4}\nstep 1: loss \d\.\d{4}\nstep 2: loss \d\.\d{4}\n",
    "05_choose_a_budget.py": r"fastest within 2 GiB: +[12]\.\d\d GiB[\s\S]*samples per second\nas long as ",
    "06_autosac_names.py": r"\n1\.8 GiB: optimal, 1\.7\d GiB[\s\S]*: drops \d+%\napplied: 1\.7\d GiB\n",
}


def run(name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if name == "04_fsdp2.py" else []
    return subprocess.run(
        [sys.executable, *launcher, str(EXAMPLES / name)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == SAYS.keys()


@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs_and_says_what_it_promises(name: str, tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = run(name, tmp_path)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(SAYS[name], result.stdout), result.stdout
    assert "UserWarning" not in result.stderr  # no block did otherwise than planned
    # Under a minute, whatever else the machine is doing.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 60
