"""`trainfit doctor`: a line per thing, hints where something is missing, and what works in the end."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import stat
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import trainfit
from trainfit.cli import doctor, main
from trainfit.cli.doctor import gpu_finding, supports, verdict


def no_gpu(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("PATH", str(path))


def test_without_a_gpu_everything_works_but_what_needs_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    no_gpu(monkeypatch, tmp_path)
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"ok  trainfit      {trainfit.__version__}, Python {platform.python_version()}, ")
    assert lines[1].startswith(f"ok  torch         {torch.__version__} (")
    assert lines[2] == f"ok  solver        highspy {importlib.metadata.version('highspy')}"
    assert re.fullmatch(r"ok  ghost GPU     a step was estimated in \d+\.\d s", lines[3])
    assert lines[4].startswith("--  GPU           torch sees none; estimate and plan need none; hint: ")
    assert lines[5] == "--  driver        no nvidia-smi here"
    assert [line.split()[1] for line in lines[6:-1]] == ["cuDNN", "transformers", "accelerate", "torchtitan", "ray"]
    assert lines[-1] == "every command works here but verify and calibrate, which need a GPU"


def test_a_gpu_is_named_as_the_catalogue_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 580.65.06\n")
    smi.chmod(smi.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    properties = SimpleNamespace(name="NVIDIA H200", total_memory=150_000_000_000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[4] == "ok  GPU 0         NVIDIA H200, 139.7 GiB: --gpu h200"
    assert lines[5] == "ok  driver        NVIDIA 580.65.06"
    assert lines[-1] == "every command works here"


def test_a_gpu_that_the_catalogue_lacks_gets_a_hint() -> None:
    assert str(gpu_finding(1, "NVIDIA GTX 980", 4 * 2**30)) == (
        "ok  GPU 1         NVIDIA GTX 980, 4.0 GiB, not in the catalogue; hint: pass --gpu with the nearest of its kind"
    )


def test_a_driver_that_does_not_answer_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho no devices were found\nexit 6\n")
    smi.chmod(smi.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert str(doctor._driver()) == "--  driver        nvidia-smi failed: no devices were found"


@pytest.mark.parametrize(
    ("version", "supported"),
    [
        ("2.10.1", False),
        ("2.11.0+cu130", True),
        ("2.13.0+cpu", True),
        ("2.15.0.dev20261101+cu130", True),
        ("2.16.0", False),
        ("nonsense", False),
    ],
)
def test_the_versions_of_torch_that_are_supported(version: str, supported: bool) -> None:
    assert supports(version) is supported


def test_the_range_is_the_one_that_pip_is_told() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    (oldest, newest) = (".".join(map(str, each)) for each in (doctor.OLDEST_TORCH, doctor.NEWEST_TORCH))
    above = f"{doctor.NEWEST_TORCH[0]}.{doctor.NEWEST_TORCH[1] + 1}"
    assert f"torch>={oldest},<{above}" in project["dependencies"], newest


def test_another_torch_is_told_and_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    no_gpu(monkeypatch, tmp_path)
    monkeypatch.setattr(torch, "__version__", "2.9.0")
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "NO  torch         2.9.0; hint: trainfit supports 2.11 to 2.15"
    assert lines[-1] == "estimate and plan do not work here: see torch"


def test_what_fails_is_a_finding_and_not_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)  # as if it could not be imported
    finding = next(each for each in doctor.examine() if each.what == "solver")
    assert not finding.ok
    assert finding.says.startswith("ModuleNotFoundError: ")
    assert verdict([finding]) == "estimate and plan do not work here: see solver"


def test_an_extra_that_is_missing_says_what_it_is_for() -> None:
    assert str(doctor._extra("no-such-extra", "nothing", "leave it")) == (
        "--  no-such-extra not installed; it is for nothing; hint: leave it"
    )


def test_a_cudnn_that_can_be_asked_is_named_and_its_absence_has_a_hint() -> None:
    assert str(doctor.cudnn_finding(92000)) == "ok  cuDNN         9.20.0, asked which kernels convolutions use"
    assert str(doctor.cudnn_finding(0)) == (
        "--  cuDNN         none to ask: its choice of convolution kernels is imitated;"
        " hint: for exact workspaces, pip install 'trainfit[cudnn]' (Linux, 1.2 GB)"
    )
    assert [each.what for each in doctor.examine()].count("cuDNN") == 1


def test_the_cudnn_of_the_extra_is_one_that_the_formulas_were_measured_with() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["cudnn"] == ["nvidia-cudnn-cu13>=9.19,<9.21; sys_platform == 'linux'"]
