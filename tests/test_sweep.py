"""Sweeps: what the grid is, what comes out of it, in which order, and what failures and a kill do to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import trainfit
from sweep_steps import DIES_IN_SOLVE, DIES_IN_TRACE, SEQ, make_step, step_of_batch
from trainfit.cli import main
from trainfit.errors import BadSize, InfeasibleBudget, UnknownGpu, UsageError
from trainfit.progress import listening
from trainfit.sweeps import Configuration, SweepResult, configurations, ranked
from trainfit.sweeps.grid import groups_of
from trainfit.sweeps.journal import append_results, read_results
from trainfit.sweeps.tasks import Job, step_of

MIB = 2**20


def point(gpu: str = "h200", budget: str = "auto", world_size: int | None = None, **arguments: int) -> Configuration:
    return Configuration(arguments=tuple(arguments.items()), world_size=world_size, gpu=gpu, budget=budget)


def result_of(batch: int, tokens: float | None, samples: float | None = 1.0, status: str = "optimal") -> SweepResult:
    return SweepResult(
        configuration=point(batch=batch),
        status=status,
        tokens_per_second_per_gpu=tokens,
        samples_per_second_per_gpu=samples,
        plan_json="{}" if status == "optimal" else None,
    )


def test_a_grid_is_every_combination_with_the_last_axis_fastest() -> None:
    grid = {"gpu": ["h200", "a100-80gb"], "batch": [4, 2], "seq": [64]}
    assert configurations(grid) == (
        point("h200", batch=4, seq=64),
        point("a100-80gb", batch=4, seq=64),
        point("h200", batch=2, seq=64),
        point("a100-80gb", batch=2, seq=64),
    )


def test_a_value_that_is_named_twice_is_one_configuration() -> None:
    assert configurations({"gpu": ["H200", "h200"], "batch": [1, 1]}) == (point("h200", batch=1),)


@pytest.mark.parametrize(
    ("grid", "error", "message"),
    [
        ({"gpu": ["h2000"]}, UnknownGpu, "h2000"),
        ({"gpu": "h200"}, UsageError, "the grid's gpu is 'h200'"),
        ({"batch": []}, UsageError, r"the grid's batch is \[\]"),
        ({"batch": [object()]}, UsageError, "the grid's batch has a object"),
        ({"budget": ["80"]}, BadSize, "no unit"),
        ({"budget": [80]}, UsageError, "the grid's budget has 80"),
        ({"world_size": [0]}, UsageError, "the world size 0 is no number of GPUs"),
        ({"world_size": [True]}, UsageError, "the world size True is no number of GPUs"),
    ],
)
def test_what_cannot_be_swept_is_said_before_anything_runs(grid: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        trainfit.sweep(make_step, grid)


def test_gpus_with_equal_kernels_share_a_trace_and_budgets_share_a_planner() -> None:
    grid = {"batch": [1], "gpu": ["h100-80gb", "h200", "h100-pcie", "a100-80gb"], "budget": ["auto", "10GiB"]}
    groups = groups_of(configurations(grid))
    assert [(group.gpu, len(group.configurations)) for group in groups] == [
        ("h100-80gb", 2),
        ("h200", 2),
        ("h100-pcie", 2),
        ("a100-80gb", 2),
    ]
    assert groups[0].family == groups[1].family
    assert len({group.family for group in groups}) == 3


def test_ranking_is_by_tokens_then_by_samples_and_what_has_no_plan_is_last() -> None:
    results = [
        result_of(1, None, None, status="failed"),
        result_of(2, 10.0),
        result_of(3, None, None, status="does not fit"),
        result_of(4, 30.0),
        result_of(5, 20.0),
        result_of(6, 20.0, samples=2.0),
    ]
    assert [dict(each.configuration.arguments)["batch"] for each in ranked(results)] == [4, 6, 5, 2, 3, 1]
    tight = [
        replace(result_of(10 - gib, None, None, "does not fit"), minimum_budget_bytes=gib * 2**30) for gib in (3, 1)
    ]
    equal = [result_of(batch, 20.0) for batch in (16, 2)]
    assert [dict(each.configuration.arguments)["batch"] for each in ranked(tight + equal)] == [2, 16, 9, 7]
    images = [result_of(1, None, 5.0), result_of(2, None, 7.0)]
    assert [dict(each.configuration.arguments)["batch"] for each in ranked(images)] == [2, 1]


def test_a_world_size_shards_the_step_keeps_its_way_and_one_is_a_single_gpu() -> None:
    plain = step_of_batch(1)
    fsdp = trainfit.FSDP(world_size=2, gpus_per_node=4)
    ddp = trainfit.DDP(world_size=2, bucket_cap_mb=1)

    def spread(step: trainfit.Step, world_size: int | None) -> trainfit.Step:
        return step_of(Job(lambda: step, "reserved", "classic"), point(world_size=world_size).family)

    assert spread(plain, None) is plain
    assert spread(plain, 64).fsdp == trainfit.FSDP(world_size=64)
    assert spread(replace(plain, fsdp=fsdp), 64).fsdp == trainfit.FSDP(world_size=64, gpus_per_node=4)
    assert spread(replace(plain, fsdp=fsdp), None).fsdp == fsdp
    assert spread(replace(plain, fsdp=fsdp), 1).fsdp is None
    assert spread(replace(plain, ddp=ddp), 8).ddp == trainfit.DDP(world_size=8, bucket_cap_mb=1)
    assert spread(replace(plain, ddp=ddp), 8).fsdp is None


def test_results_are_read_back_as_they_were_and_a_half_written_last_line_is_dropped(tmp_path: Path) -> None:
    path, identity = tmp_path / "sweep.jsonl", {"target": "toy"}
    assert read_results(path, identity) == []
    results = [result_of(1, 2.5), replace(result_of(2, None, None, status="failed"), error="e", hint="h")]
    assert list(append_results(path, identity, results)) == results
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines()[0])  # all but the newline was written
    assert read_results(path, identity) == results
    assert path.read_bytes() == whole
    assert list(append_results(path, identity, results[:1])) == results[:1]
    assert read_results(path, identity) == [*results, results[0]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"sweep": {"target": "other"}, "configuration": {"gpu": "h200", "world_size": null, "budget": "auto"}, '
         '"status": "failed", "plan": null}', "sweep.jsonl:1 is of another sweep: its target is other, not toy"),
        ("{}", "sweep.jsonl:1 is no result of a sweep"),
        ("[1]", "sweep.jsonl:1 is no result of a sweep"),
        ("words", "sweep.jsonl:1 is no result of a sweep"),
    ],
)  # fmt: skip
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "sweep.jsonl"
    path.write_text(f"{line}\nhalf")
    with pytest.raises(UsageError, match=message):
        read_results(path, {"target": "toy"})
    assert path.read_text() == f"{line}\nhalf"


def test_a_file_that_cannot_be_written_is_said_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written: No such file or directory"):
        list(trainfit.sweep(make_step, {"batch": [1]}, output=tmp_path / "no" / "sweep.jsonl"))


def test_a_function_that_cannot_be_sent_is_an_error_that_says_so() -> None:
    with pytest.raises(UsageError, match="cannot be sent to another process"):
        list(trainfit.sweep(lambda: step_of_batch(1), {}))


def direct(batch: int, gpu: str, budget: str) -> trainfit.Plan | InfeasibleBudget:
    try:
        return trainfit.plan(step_of_batch(batch), gpu, budget=None if budget == "auto" else budget)
    except InfeasibleBudget as error:
        return error


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[SweepResult], list[tuple[str, int, int]]]:
    """Where the calls are, the results as they came, and what was told meanwhile."""
    folder, told = tmp_path_factory.mktemp("calls"), []
    grid = {
        "folder": [str(folder)],
        "batch": [2, 0, DIES_IN_TRACE, DIES_IN_SOLVE],
        "gpu": ["h100-80gb", "h200"],
        "budget": ["auto", "min", "1KiB"],
    }
    with listening(lambda *what: told.append(what)):
        results = list(trainfit.sweep(make_step, grid, workers=2))
    assert Counter(result.configuration for result in results) == Counter(configurations(grid))
    return folder, results, told


def of_batch(results: list[SweepResult], batch: int) -> list[SweepResult]:
    return [result for result in results if dict(result.configuration.arguments)["batch"] == batch]


def test_each_result_is_the_plan_of_its_configuration(swept: tuple[Path, list[SweepResult], Any]) -> None:
    results = of_batch(swept[1], 2)
    assert len(results) == 6
    for result in results:
        expected = direct(512, result.configuration.gpu, result.configuration.budget)
        if isinstance(expected, InfeasibleBudget):
            assert result.configuration.budget == "1KiB"
            assert (result.status, result.plan, result.step_time_ns) == ("does not fit", None, None)
            assert result.minimum_budget_bytes == expected.minimum_bytes
            assert result.error == expected.message
            continue
        assert result.plan == expected
        assert result.status == expected.status
        assert result.step_time_ns == expected.predicted_step_ns
        assert result.unplanned_step_time_ns == expected.rows[0].step_ns
        assert result.peak_allocated_bytes == expected.predicted.peak_allocated_bytes
        assert result.peak_reserved_bytes == expected.predicted.peak_reserved_bytes
        assert result.tokens_per_second_per_gpu == pytest.approx(
            512 * SEQ * 1e9 / expected.predicted_step_ns, rel=1e-12
        )
        assert result.samples_per_second_per_gpu == pytest.approx(512 * 1e9 / expected.predicted_step_ns, rel=1e-12)


def test_auto_is_the_gpu_less_its_context_and_two_percent(swept: tuple[Path, list[SweepResult], Any]) -> None:
    (result,) = (
        each
        for each in of_batch(swept[1], 2)
        if each.configuration.gpu == "h200" and each.configuration.budget == "auto"
    )
    assert result.budget_bytes == int((143156 - 600 - 0.02 * 143156) * MIB)


def test_a_family_is_traced_once_and_each_gpu_of_it_is_planned_once(swept: tuple[Path, Any, Any]) -> None:
    assert (swept[0] / "calls of 2").read_text() == "." * (1 + 2)
    assert (swept[0] / "calls of 0").read_text() == "."


def test_a_configuration_that_fails_is_a_row_with_its_error(swept: tuple[Path, list[SweepResult], Any]) -> None:
    for batch, error in (
        (0, "ValueError: a batch of 0"),
        (DIES_IN_TRACE, "the process that planned it was killed by SIGKILL"),
    ):
        results = of_batch(swept[1], batch)
        assert [(result.status, result.error, result.plan) for result in results] == [("failed", error, None)] * 6
        assert all(result.hint for result in results)


def test_a_process_that_dies_takes_one_configuration_with_it(swept: tuple[Path, list[SweepResult], Any]) -> None:
    results = of_batch(swept[1], DIES_IN_SOLVE)
    assert Counter(result.status for result in results)["failed"] == 1
    (dead,) = (result for result in results if result.status == "failed")
    assert dead.error == "the process that planned it was killed by SIGKILL"
    whole = {(each.configuration.gpu, each.configuration.budget): each.plan for each in of_batch(swept[1], 2)}
    alive = {(each.configuration.gpu, each.configuration.budget): each.plan for each in results if each is not dead}
    assert len(alive) == 5
    assert alive == {key: whole[key] for key in alive}


def test_what_is_done_is_told_as_it_is_done(swept: tuple[Path, Any, list[tuple[str, int, int]]]) -> None:
    assert swept[2] == [("planning", number, 24) for number in range(25)]


TARGET = """
import os, time
from pathlib import Path
from sweep_steps import step_of_batch

def make_step():
    print("noise")
    calls = os.open("calls", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    written = os.write(calls, b"call\\n")
    number = os.lseek(calls, 0, os.SEEK_CUR) // written  # where this call's own line ends, also when two call at once
    os.close(calls)
    while Path("hold").exists() and number >= 5:
        time.sleep(0.05)
    return step_of_batch(256)
"""
AXES = ["--gpu", "a100-80gb,h100-80gb,h200,l40s", "--budget", "auto,min"]


def test_a_sweep_that_is_killed_goes_on_and_repeats_and_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TARGET)
    (tmp_path / "hold").touch()
    output, calls = tmp_path / "sweep.jsonl", tmp_path / "calls"
    command = [sys.executable, "-m", "trainfit", "sweep", "train.py:make_step", *AXES, "-o", output.name, "--json"]
    where: dict[str, Any] = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}}

    # The command's own call, a trace or two and a group or two get through; then both workers are held.
    killed = subprocess.Popen([*command, "--workers", "2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **where)
    deadline = time.monotonic() + 120
    while not (output.exists() and output.read_bytes().count(b"\n") >= 2 and len(calls.read_text().split()) == 6):
        assert killed.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(1)  # until the rows of a second group are written, if it got through
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=30)  # which ends when all its processes have, for they have its stderr
    assert killed.returncode == -signal.SIGKILL
    first = output.read_bytes()
    done = [Configuration.from_json_dict(json.loads(line)["configuration"]) for line in first.splitlines()]
    output.write_bytes(first + b'{"sweep": {"target"')
    (tmp_path / "hold").unlink()
    calls.unlink()

    again = subprocess.run(command, capture_output=True, timeout=120, check=True, **where)
    rows = [json.loads(line) for line in output.read_bytes().splitlines()]
    everything = configurations({"gpu": AXES[1].split(","), "budget": AXES[3].split(",")})
    assert output.read_bytes().startswith(first)
    assert Counter(Configuration.from_json_dict(row["configuration"]) for row in rows) == Counter(everything)
    left = groups_of([each for each in everything if each not in done])
    assert len(left) == len(AXES[1].split(",")) - len(done) // 2 in (2, 3)
    assert len(calls.read_text().split()) == 1 + len({group.family for group in left}) + len(left)
    shown = json.loads(again.stdout)["results"]  # the target's own words are not among it
    rates = [row["tokens_per_second_per_gpu"] for row in shown]
    assert len(rates) == 8
    assert rates == sorted(rates, reverse=True)

    # A third time there is nothing to do.
    calls.unlink()
    third = subprocess.run(command, capture_output=True, timeout=120, check=True, **where)
    assert third.stdout == again.stdout
    assert len(calls.read_text().split()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gpt2", "--batch", "1,,2"], "'1,,2' has an empty value"),
        (["gpt2", "--batch", "1,x"], "'x' is not a positive whole number"),
        (["gpt2", "--ray", "auto", "--workers", "2"], "not allowed with argument"),
        (["gpt2", "--gpu", "h200,h2000"], "h2000"),
        (["gpt3"], "no preset is called 'gpt3'"),
        (["no.py:make_step"], "there is no file no.py"),
    ],
)
def test_what_cannot_be_right_is_said_at_once(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "sweep.jsonl"
    try:
        code = main(["sweep", *arguments, "-o", str(output)])
    except SystemExit as exit_:
        code = exit_.code  # type: ignore[assignment]
    assert code == 2
    assert message in capsys.readouterr().err
    assert not output.exists()
