"""The wheel: what is in it, what it asks of an environment, and that it runs from there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import trainfit

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "trainfit"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, since a build leaves files beside the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(PACKAGE, folder / "src" / "trainfit", ignore=shutil.ignore_patterns("__pycache__"))
    pip("wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", folder / "dist", folder)
    (path,) = (folder / "dist").glob("*.whl")
    return path


def pip(*arguments: object) -> str:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *(str(each) for each in arguments)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def requirements(wheel: Path) -> list[Requirement]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    assert metadata["Version"] == trainfit.__version__  # which is written down in one place
    return [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]


def test_everything_that_is_beside_the_sources_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    sources = {f"trainfit/{path.relative_to(PACKAGE)}" for path in PACKAGE.rglob("*") if path.is_file()}
    assert packed == {name for name in sources if "__pycache__" not in name}
    assert {"trainfit/py.typed", "trainfit/cost/profiles/h200.json", "trainfit/__main__.py"} <= packed


@pytest.mark.parametrize("build", ["", "+cpu", "+cu130", "+rocm7.1"])
@pytest.mark.parametrize("version", ["2.11.0", "2.12.1", "2.13.0", "2.14.0", "2.15.2", "2.15.0.dev20261101"])
def test_a_torch_of_a_supported_version_is_left_as_it_is(wheel: Path, version: str, build: str) -> None:
    (torch,) = (each for each in requirements(wheel) if each.name == "torch")
    assert torch.specifier.contains(f"{version}{build}", prereleases=True)


@pytest.mark.parametrize("version", ["2.10.3", "2.16.0", "3.0.0"])
def test_another_torch_is_refused(wheel: Path, version: str) -> None:
    (torch,) = (each for each in requirements(wheel) if each.name == "torch")
    assert not torch.specifier.contains(version)


def test_no_other_requirement_is_pinned_and_extras_stay_out(wheel: Path) -> None:
    needed = [each for each in requirements(wheel) if each.marker is None]
    assert {each.name for each in needed} == {"torch", "numpy", "highspy", "rich", "msgspec", "jinja2"}
    assert [each.name for each in needed if str(each.specifier)] == ["torch"]
    extras = {each.name for each in requirements(wheel) if each.marker is not None}
    assert {"transformers", "accelerate", "pytest"} <= extras


def test_pip_installs_the_wheel_and_nothing_else_where_torch_is(wheel: Path, tmp_path: Path) -> None:
    """No index is asked: were anything missing or of the wrong version, pip would fail."""
    said = pip("install", "--dry-run", "--no-index", "--force-reinstall", "--no-deps", wheel)
    assert said.splitlines()[-1] == f"Would install trainfit-{trainfit.__version__}"
    said = pip("install", "--dry-run", "--no-index", wheel)
    assert "Would install torch" not in said
    pip("install", "--no-index", "--no-deps", "--target", tmp_path, wheel)
    result = subprocess.run(
        [sys.executable, "-c", "import trainfit, trainfit.cli as c; print(trainfit.__file__); c.main(['gpus'])"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert result.stdout.splitlines()[0] == str(tmp_path / "trainfit" / "__init__.py")
    assert "h200" in result.stdout


def test_python_m_trainfit_is_the_command() -> None:
    command = [sys.executable, "-m", "trainfit", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == f"trainfit {trainfit.__version__}\n"


def test_the_changelog_has_this_version() -> None:
    assert f"\n## {trainfit.__version__}" in (ROOT / "CHANGELOG.md").read_text()
