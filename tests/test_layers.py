"""What may import what: stages know the records and not each other, and torch is loaded only where it is run."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import trainfit

ROOT = Path(trainfit.__file__).parent

# Each part of the package, and the other parts that its files may import when they are loaded.
ALLOWED = {
    "records": set(),
    "step": set(),
    "errors": set(),
    "units": {"errors"},
    "progress": set(),
    "torch_compat": set(),
    "gpus": {"errors", "records"},
    "ghost": {"errors", "gpus", "torch_compat"},
    "stacks": set(),
    "parallel": {"errors", "stacks", "step", "torch_compat"},
    "trace": {"errors", "ghost", "gpus", "parallel", "progress", "records", "stacks", "step", "torch_compat"},
    "simulate": {"records"},
    "apply": {"errors", "ghost", "gpus", "parallel", "records", "stacks", "step", "torch_compat", "trace"},
    "cost": {"errors", "gpus", "records"},
    "calibrate": {"cost", "errors", "gpus", "progress", "records", "step", "torch_compat", "trace"},
    "autosac": {
        *("calibrate", "cost", "errors", "ghost", "gpus", "records", "simulate", "solve", "torch_compat", "trace"),
    },
    "presets": {"errors", "step"},
    "solve": {"records"},
    "fingerprint": set(),
    "report": {"fingerprint", "gpus", "records", "units"},
    "targets": {"errors", "presets", "step"},
    "_time_estimate": {"cost", "records", "simulate"},
    "_estimate": {
        *("_time_estimate", "cost", "errors", "gpus", "records", "report", "simulate", "step", "trace", "units"),
    },
    "_plan_record": {"_estimate", "errors", "fingerprint", "records", "report"},
    "_sketch": {"records", "simulate", "solve"},
    "_plan": {
        *(
            "__init__",
            "_estimate",
            "_plan_record",
            "_sketch",
            "_time_estimate",
            "apply",
            "cost",
            "errors",
            "fingerprint",
        ),
        *("gpus", "progress", "records", "simulate", "solve", "step", "trace", "units"),
    },
    "_largest": {"_estimate", "_plan_record", "gpus", "progress", "simulate", "step"},
    "_verify": {"_plan_record", "_verify_record", "errors", "gpus", "progress", "records", "step"},
    "_verify_record": {"_plan_record", "units"},
    "_profile": {"_time_estimate", "cost", "gpus", "records", "simulate"},
    "_report": {
        *(
            "__init__",
            "_estimate",
            "_plan",
            "_plan_record",
            "_profile",
            "_verify_record",
            "apply",
            "errors",
            "fingerprint",
        ),
        *("gpus", "progress", "records", "report", "solve", "step", "units"),
    },
    "huggingface": {"_plan_record", "apply", "errors"},
    "torchtitan": {"_plan_record", "apply"},
    "sweeps": {"__init__", "errors", "gpus", "progress", "step", "units"},
    "cli": {"__init__", "errors", "gpus", "presets", "progress", "units"},
    "__init__": {"errors", "step"},
    "__main__": {"cli"},
}
IMPORT_TORCH = {
    "autosac",
    "apply",
    "calibrate",
    "ghost",
    "huggingface",
    "parallel",
    "presets",
    "stacks",
    "torch_compat",
    "torchtitan",
    "trace",
}
FILES = sorted(ROOT.rglob("*.py"))


def part_of(path: Path) -> str:
    relative = path.relative_to(ROOT)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def loaded_imports(path: Path) -> Iterator[str]:
    """The dotted names that the file imports when it is loaded, not those for the type checker or inside functions."""
    pending: list[ast.stmt] = list(ast.parse(path.read_text()).body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, (ast.If, ast.Try, ast.With, ast.ClassDef)) and "TYPE_CHECKING" not in ast.unparse(node):
            pending += node.body


def parts_imported(path: Path) -> set[str]:
    own = part_of(path)
    parts = set()
    for name in loaded_imports(path):
        package, _, rest = name.partition(".")
        if package == "trainfit":
            part = rest.split(".")[0]
            parts.add(part if part in ALLOWED else "__init__")
    return parts - {own}


def test_every_part_of_the_package_has_a_rule() -> None:
    assert {part_of(path) for path in FILES} == set(ALLOWED)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_imports_only_what_its_part_may(path: Path) -> None:
    assert parts_imported(path) <= ALLOWED[part_of(path)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_torch_is_imported_on_load_only_where_it_is_run(path: Path) -> None:
    imports_torch = any(name.split(".")[0] in ("torch", "transformers") for name in loaded_imports(path))
    assert not imports_torch or part_of(path) in IMPORT_TORCH


def test_the_presets_can_be_listed_without_torch() -> None:
    assert not any(name.split(".")[0] == "torch" for name in loaded_imports(ROOT / "presets" / "__init__.py"))


@pytest.mark.parametrize(
    "program",
    [
        "import trainfit; trainfit.Step, trainfit.errors, dir(trainfit)",
        "from trainfit.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass",
        "from trainfit.cli import main\ntry: main(['estimate', '--help'])\nexcept SystemExit: pass",
        "from trainfit.cli import main; main([])",
        "from trainfit.cli import main; main(['gpus'])",
        "from trainfit.cli import main; main(['estimate', 'no-such-preset'])",
        "from trainfit.cli import main; main(['estimate', 'gpt2', '--gpu', 'no-such-gpu'])",
        "from trainfit.cli import main; main(['estimate', 'gpt2', '--budget', '80'])",
        "from trainfit.cli import main; main(['sweep', 'gpt2', '--gpu', 'h200,no-such-gpu'])",
    ],
)
def test_what_needs_no_torch_does_not_wait_for_it(program: str) -> None:
    check = f"{program}\nimport sys\nassert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr


def test_the_public_names_are_there() -> None:
    assert set(dir(trainfit)) == set(trainfit.__all__)
    for name in trainfit.__all__:
        assert getattr(trainfit, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        trainfit.nonsense  # noqa: B018
