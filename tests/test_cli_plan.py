"""`trainfit plan` and `trainfit show` from the command line: results, files, exit codes."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import trainfit
from trainfit import targets
from trainfit._largest import batch_size, with_batch_size
from trainfit._plan_record import Plan
from trainfit.cli import main
from trainfit.cli.plan import largest_that_fits
from trainfit.errors import UsageError
from trainfit.solve import Choice, Search
from trainfit.targets import resolve

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


def load_step(target: str) -> trainfit.Step:
    return resolve(target, batch=None, seq=None)


def run(*argv: object) -> int:
    return main([str(arg) for arg in argv])


def test_a_plan_is_printed_written_and_shown_again(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.json"
    assert run("plan", target, "--budget", "86MiB", "--memory", "allocated", "-o", file) == 0
    printed = capsys.readouterr().out
    assert printed.endswith(f"Wrote {file}\n")
    made = Plan.load(file)
    assert made.predicted.peak_allocated_bytes <= 86 * 2**20
    assert list(made.block_decisions()) == ["layers.0", "layers.1", "layers.2"]
    assert "layers.1-2 (x2)  " in printed
    assert run("show", file) == 0
    assert capsys.readouterr().out == printed.removesuffix(f"Wrote {file}\n")
    assert run("show", file, "--diff", file) == 0
    assert capsys.readouterr().out == "the plans are equal\n"


def test_json_is_the_plan_file(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", target, "--json") == 0
    fields = json.loads(capsys.readouterr().out)
    assert (fields["schema"], fields["status"], fields["decisions"]) == (1, "nothing to recompute", [])


def test_with_room_the_largest_batch_that_fits_is_stated(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", target, "--budget", "1GiB") == 0
    printed = capsys.readouterr().out
    assert "nothing to recompute on h200" in printed
    largest = int(re.search(r"largest batch that fits with nothing recomputed is (\d+)", printed)[1])  # type: ignore[index]
    fits, larger = (trainfit.estimate(with_batch_size(load_step(target), n)) for n in (largest, largest + 1))
    assert fits.peak_reserved_bytes <= 2**30 < larger.peak_reserved_bytes


def test_a_batch_grows_by_the_rows_of_its_integers() -> None:
    batch = (torch.tensor([[1, 2], [3, 4]]), torch.ones(2, 3), torch.empty(2, dtype=torch.int64, device="meta"))
    tokens, floats, labels = with_batch_size(trainfit.Step(model=torch.nn.Identity(), batch=batch), 3).batch
    assert tokens.tolist() == [[1, 2], [3, 4], [1, 2]]
    assert [(tuple(tensor.shape), tensor.is_meta) for tensor in (floats, labels)] == [((3, 3), True), ((3,), True)]


@pytest.mark.parametrize("what", ["batch", "seq"])
def test_the_largest_batch_or_sequence_with_the_best_plan_is_found_with_progress(
    target: str, what: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sized(target: str, *, batch: int | None, seq: int | None) -> trainfit.Step:
        step = resolve(target, batch=None, seq=None)
        sizes = (1, 4096) if what == "batch" else (4096, seq or 1)
        return dataclasses.replace(step, batch=(torch.empty(*sizes, 64, device="meta"),))

    monkeypatch.setattr(targets, "resolve", sized)
    file = tmp_path / "plan.json"
    options = ("--budget", "100MiB", "--memory", "allocated", "--maximize", what)
    assert run("plan", target, *options, "-o", file) == 0
    progress = capsys.readouterr().err.splitlines()
    largest = int(progress[-1].removeprefix(f"the largest {what} that fits is "))
    assert f"{what} {largest}: fits with" in "\n".join(progress)
    assert f"{what} {largest + 1}: no plan fits 100.0 MiB allocated" in "\n".join(progress)
    made = Plan.load(file)
    assert made.decisions  # more fits than with nothing recomputed
    assert made.predicted.peak_allocated_bytes <= 100 * 2**20


def test_an_interrupt_exits_with_130_and_the_best_plan_so_far(
    target: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Search, "_first_within", interrupted_after_the_smallest)
    assert run("plan", target, "--budget", "100MiB", "--memory", "allocated") == 130
    printed = capsys.readouterr().out
    assert printed.startswith("interrupted on h200: ")
    assert re.search(r"of 100\.0 MiB allocated \([\d.]+%\), gap \d+\.\d\d%", printed)


def interrupted_after_the_smallest(search: Search, limit_bytes: int) -> Choice:
    search._sketched(search._model_ladder.lowest)
    raise KeyboardInterrupt


def test_an_interrupt_while_maximizing_exits_with_130_and_the_largest_so_far(
    target: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[int] = []
    plan = trainfit.plan

    def planned(step: trainfit.Step, *args: Any, **kwargs: Any) -> Plan:
        attempts.append(batch_size(step) or 0)
        if len(attempts) == 3:
            raise KeyboardInterrupt
        return plan(step, *args, **kwargs)

    monkeypatch.setattr(trainfit, "plan", planned, raising=False)
    file = tmp_path / "plan.json"
    assert run("plan", target, "--memory", "allocated", "--maximize", "batch", "-o", file) == 130
    assert capsys.readouterr().out.startswith("interrupted on h200: ")
    assert Plan.load(file).status == "interrupted"
    assert attempts[1:] == [2 * attempts[0], 4 * attempts[0]]
    assert f"[{attempts[1]}, " in Plan.load(file).inputs[0]


def test_an_interrupt_before_any_plan_exits_with_130(
    target: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(search: Search, limit_bytes: int) -> Choice:
        raise KeyboardInterrupt

    monkeypatch.setattr(Search, "_first_within", interrupted)
    assert run("plan", target, "--budget", "100MiB", "--memory", "allocated") == 130
    assert capsys.readouterr().out == ""


def test_showing_a_plan_does_not_load_torch(target: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    assert run("plan", target, "--budget", "min", "--memory", "allocated", "-o", file) == 0
    code = f"import sys; from trainfit.cli import main; main(['show', {str(file)!r}]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\nFalse\n")


def test_what_does_not_fit_exits_with_3_and_names_the_smallest(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", target, "--budget", "1MiB") == 3
    assert "the smallest peak is" in capsys.readouterr().err
    assert run("plan", target, "--budget", "min") == 0


def test_the_frontier_is_written_and_shown(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "frontier.json"
    assert run("plan", target, "--memory", "allocated", "--frontier", file) == 0
    printed = capsys.readouterr().out
    assert run("show", "--frontier", file) == 0
    shown = capsys.readouterr().out
    assert shown in printed
    lines = shown.splitlines()
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


@dataclasses.dataclass
class Sized:
    """Stands for a plan."""

    size: int
    status: str = "optimal"

    def interrupted(self) -> Sized:
        return Sized(self.size, "interrupted")


def test_the_largest_size_is_found_by_doubling_and_then_by_halves() -> None:
    asked: list[int] = []

    def attempt(size: int) -> Any:
        asked.append(size)
        return Sized(size) if size <= 21 else None

    assert largest_that_fits(attempt, None) == (21, Sized(21))
    assert asked == [1, 2, 4, 8, 16, 32, 24, 20, 22, 21]
    assert largest_that_fits(attempt, 30) == (21, Sized(21))
    with pytest.raises(UsageError, match="not even the size 1 fits"):
        largest_that_fits(lambda size: None, None)


@pytest.mark.parametrize("interrupted", ["while tracing", "while solving"])
def test_an_interrupt_while_maximizing_gives_the_largest_so_far(interrupted: str) -> None:
    asked: list[int] = []

    def attempt(size: int) -> Any:
        asked.append(size)
        if size < 8:
            return Sized(size)
        if interrupted == "while tracing":
            raise KeyboardInterrupt
        return Sized(size, "interrupted")  # the best plan so far for this size

    found = 4 if interrupted == "while tracing" else 8
    assert largest_that_fits(attempt, None) == (found, Sized(found, "interrupted"))
    assert asked == [1, 2, 4, 8]


def test_an_interrupt_before_anything_fits_is_an_interrupt() -> None:
    def attempt(size: int) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        largest_that_fits(attempt, None)


def test_a_plan_tells_time_by_the_profile_that_it_is_given(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shipped = Path(trainfit.__file__).parent / "cost" / "profiles" / "h200.json"
    profile = json.loads(shipped.read_text())
    profile["host"] |= {name: 10 * cost for name, cost in profile["host"].items() if name.endswith("_ns")}
    (tmp_path / "slow_host.json").write_text(json.dumps(profile))

    def step_ns(*options: str) -> int:
        assert main(["plan", target, "--json", *options]) == 0
        return int(json.loads(capsys.readouterr().out)["predicted_step_ns"])

    # So small a step is the CPU's: it takes ten times as long, but for the kernels that are waited for at its end.
    assert 9 * step_ns() < step_ns("--profile", str(tmp_path / "slow_host.json")) < 11 * step_ns()
    assert main(["plan", target, "--gpu", "a100-80gb", "--profile", str(shipped)]) != 0
    assert "the profile was measured on a h200" in capsys.readouterr().err
