"""Sweeps on a Ray cluster; what needs one is skipped where Ray, which is an extra, is not installed."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import trainfit
from sweep_steps import make_step, step_of_batch
from trainfit.errors import UsageError
from trainfit.sweeps import Configuration, SweepResult, configurations

HAS_RAY = importlib.util.find_spec("ray") is not None
HERE = Path(__file__).parent
ATTEMPTS, TIMEOUT_S = 2, 120
"""The test takes some 15 s on two free cores; on busy ones Ray itself may give up, so it gets a second chance."""
NO_CLUSTER = 77
"""How sweep_on_ray.py ends where Ray cannot start a node."""


@contextlib.contextmanager
def ray_environment() -> Iterator[dict[str, str]]:
    """An environment for Ray; afterwards whatever runs in it is killed, and its files are gone."""
    folder = tempfile.mkdtemp(prefix="r")  # short: the paths of sockets in it must have less than 108 characters
    mark = {"RAY_TMPDIR": folder}
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "OMP_NUM_THREADS": "1"}
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    try:
        yield {**os.environ, **mark, **quiet, "PYTHONPATH": path}
    finally:
        for pid in running_in(f"RAY_TMPDIR={folder}"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def sweep_on_ray(folder: Path) -> tuple[int, str]:
    """How sweep_on_ray.py ended and what it said."""
    folder.mkdir()
    command = [sys.executable, str(HERE / "sweep_on_ray.py"), str(folder)]
    stderr = folder / "stderr"
    with ray_environment() as environment, stderr.open("w") as file:  # a file: what Ray started would hold a pipe open
        try:
            code = subprocess.run(command, env=environment, stderr=file, timeout=TIMEOUT_S, check=False).returncode
        except subprocess.TimeoutExpired:
            code = -1
    return code, stderr.read_text()


def running_in(setting: str) -> list[int]:
    """The processes that have the setting in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if setting.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


@pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed (240 MB): pip install 'trainfit[ray]'")
@pytest.mark.skipif(sys.platform != "linux", reason="processes are found by /proc")
def test_a_sweep_on_two_nodes_survives_the_death_of_one(tmp_path: Path) -> None:
    from sweep_on_ray import grid

    for attempt in range(ATTEMPTS):
        folder = tmp_path / str(attempt)
        code, said = sweep_on_ray(folder)
        if code == NO_CLUSTER:
            pytest.skip(f"Ray cannot start a node here: {said.splitlines()[-1]}")
        if code == 0:
            break
    assert code == 0, said
    first, second = dict.fromkeys((folder / "nodes of 2").read_text().split())
    assert first != second

    results = [SweepResult.from_json_dict(fields) for fields in json.loads((folder / "results").read_text())]
    assert Counter(each.configuration for each in results) == Counter(configurations(grid(folder)))
    rows = [json.loads(line) for line in (folder / "sweep.jsonl").read_text().splitlines()]
    assert [Configuration.from_json_dict(row["configuration"]) for row in rows] == [
        each.configuration for each in results
    ]
    for each in results:
        batch = dict(each.configuration.arguments)["batch"]
        if batch == 0:
            assert (each.status, each.error) == ("failed", "ValueError: a batch of 0")
        else:
            assert each.plan == trainfit.plan(step_of_batch(256 * int(str(batch))), each.configuration.gpu)


def test_without_ray_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match="--ray needs Ray, which is not installed") as raised:
        list(trainfit.sweep(make_step, {"batch": [1]}, ray="auto"))
    assert raised.value.hint == "pip install 'trainfit[ray]'"
