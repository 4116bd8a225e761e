"""`trainfit plan` and `trainfit show` from the command line: results, files, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainfit._plan_record import Plan
from trainfit.cli import main
from trainfit.cli.plan import largest_that_fits
from trainfit.errors import UsageError

TARGET = """
import torch, trainfit
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.sum()

def make_step():
    return trainfit.Step(model=Model, batch=(torch.empty(4096, 64, device="meta"),))
"""


@pytest.fixture
def target(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text(TARGET)
    return f"{tmp_path / 'train.py'}:make_step"


def run(*argv: object) -> int:
    return main([str(arg) for arg in argv])


def test_a_plan_is_printed_written_and_shown_again(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.json"
    assert run("plan", target, "--budget", "100MiB", "--memory", "allocated", "-o", file) == 0
    printed = capsys.readouterr().out
    assert printed.endswith(f"Wrote {file}\n")
    made = Plan.load(file)
    assert made.predicted.peak_allocated_bytes <= 100 * 2**20
    assert "layers.1" in made.block_decisions()
    assert "layers.1  " in printed
    assert run("show", file) == 0
    assert capsys.readouterr().out == printed.removesuffix(f"Wrote {file}\n")
    assert run("show", file, "--diff", file) == 0
    assert capsys.readouterr().out == "the plans are equal\n"


def test_json_is_the_plan_file(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", target, "--json") == 0
    fields = json.loads(capsys.readouterr().out)
    assert (fields["schema"], fields["status"], fields["decisions"]) == (1, "nothing to recompute", [])


def test_what_does_not_fit_exits_with_3_and_names_the_smallest(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", target, "--budget", "1MiB") == 3
    assert "the smallest peak is" in capsys.readouterr().err
    assert run("plan", target, "--budget", "min") == 0


def test_the_frontier_is_written_and_shown(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "frontier.json"
    assert run("plan", target, "--memory", "allocated", "--frontier", file) == 0
    capsys.readouterr()
    assert run("show", "--frontier", file) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["budget", "peak", "allocated", "step", "overhead"]
    assert lines[-1].endswith("nothing to recompute")


@pytest.mark.parametrize(
    "argv",
    [
        ("plan", "gpt2", "--budget", "80"),
        ("plan", "gpt2", "--gpu", "no-such-gpu"),
        ("plan", "gpt2", "--maximize", "batch", "--budget", "min"),
        ("show", "no-such-plan.json"),
        ("show", "--frontier", "no-such-frontier.json"),
    ],
)
def test_what_cannot_be_right_exits_with_2(argv: tuple[str, ...]) -> None:
    assert run(*argv) == 2


def test_the_largest_size_that_fits_is_found_by_doubling_and_bisection() -> None:
    asked: list[int] = []

    def attempt(size: int) -> Plan | None:
        asked.append(size)
        return f"plan for {size}" if size <= 21 else None  # type: ignore[return-value]

    assert largest_that_fits(attempt, None) == (21, "plan for 21")
    assert asked == [1, 2, 4, 8, 16, 32, 24, 20, 22, 21]
    assert largest_that_fits(attempt, 30) == (21, "plan for 21")
    with pytest.raises(UsageError, match="not even the size 1 fits"):
        largest_that_fits(lambda size: None, None)
