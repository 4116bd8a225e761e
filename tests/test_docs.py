"""README and docs: every command in them is run and prints what they say, every link leads somewhere."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from doc_blocks import Block, Command, blocks, commands, first_mismatch
from trainfit.cli import build_parser, main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NOT_RUN = {"git", "pip", "cd", "sudo"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a page's files are: as if the reader stood there and typed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "train", raising=False)
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.usefixtures("folder")
def test_what_is_shown_is_what_happens(page: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.kind == "python":
            run_python(block, namespace)
        elif block.kind == "console":
            for command in commands(block):
                run_command(block, command)
        else:
            stray = re.search(r"^(\$ |trainfit |python |torchrun ).*", block.text, re.MULTILINE)
            assert stray is None, f"{page.name}:{block.line}: put {stray and stray[0]!r} in a console block"


def run_python(block: Block, namespace: dict[str, Any]) -> None:
    code = compile("\n" * (block.line - 1) + block.text, str(block.path), "exec")
    if block.note.endswith(".py"):
        Path(block.note).write_text(block.text)
    elif block.note != "fragment":
        assert block.note == "", f"{block.path.name}:{block.line}: {block.note!r} means nothing"
        with contextlib.redirect_stdout(io.StringIO()):
            exec(code, namespace)


def run_command(block: Block, command: Command) -> None:
    where = f"{block.path.name}:{command.line}"
    program, *arguments = command.argv
    if program == "trainfit" and block.note == "gpu":
        assert "run" in build_parser().parse_args(arguments), where
    elif program == "trainfit":
        assert block.note == "", f"{where}: {block.note!r} means nothing"
        code, printed = run_trainfit(arguments)
        assert code == command.exit_code, f"{where}: exit {code}\n{printed}"
        mismatch = first_mismatch(command.expected, printed)
        assert mismatch is None, f"{where}: {mismatch!r} is not in\n{printed}"
    elif program == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(arguments) <= set(targets), where
    elif program in ("python", "torchrun"):  # test_examples.py runs every example
        script = arguments[-1]
        assert script.startswith("examples/"), where
        assert (ROOT / script).is_file(), where
    else:
        assert block.note == "setup", where
        assert program in NOT_RUN, where


def run_trainfit(arguments: list[str]) -> tuple[int, str]:
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            code = main(arguments)
        except SystemExit as stop:  # argparse
            code = int(stop.code or 0)
    return code, output.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", prose):
        assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_readme_has_an_index_of_the_docs_and_the_examples() -> None:
    readme = (ROOT / "README.md").read_text()
    for path in [*(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.py")]:
        assert f"({path.relative_to(ROOT)})" in readme, path.name


# ---- How blocks are read -------------------------------------------------------------------------------------------


def block_of(tmp_path: Path, text: str) -> Block:
    (tmp_path / "page.md").write_text(text)
    (block,) = blocks(tmp_path / "page.md")
    return block


def test_a_block_is_read_with_its_kind_note_and_line(tmp_path: Path) -> None:
    block = block_of(tmp_path, "one\n\n```python train.py\nx = 1\n```\n")
    assert (block.kind, block.note, block.line, block.text) == ("python", "train.py", 4, "x = 1\n")


def test_commands_have_exit_codes_and_what_they_print(tmp_path: Path) -> None:
    block = block_of(tmp_path, "```console\n$ trainfit a 'b c' # too large: exit 3\nout\n...\n$ trainfit d\n```\n")
    first, second = commands(block)
    assert first == Command(2, ("trainfit", "a", "b c"), 3, ("out", "..."))
    assert second == Command(5, ("trainfit", "d"), 0, ())


@pytest.mark.parametrize(
    ("expected", "printed", "mismatch"),
    [
        ("a\nb", "a\nb\n", None),
        ("a\nb", "a\nc\n", "b"),
        ("a", "a\nb\n", "(the end, where there is: b)"),
        ("a\nb", "a\n", "b"),
        ("a\n...\nd", "a\nb\nc\nd\n", None),
        ("a\n...", "a\nb\n", None),
        ("...\nb", "a\nc\n", "b"),
        ("a   12.5 s", "a 3 s", None),
        ("a 12.5 ms", "a 12.6 ms", "a 12.5 ms"),
        ("torch 2.13.0+cpu", "torch 2.11.0+cu130", None),
        ("a ... c", "a b c", None),
        ("a ... c", "a b d", "a ... c"),
        ("a.b", "axb", "a.b"),
    ],
)
def test_printed_lines_are_compared(expected: str, printed: str, mismatch: str | None) -> None:
    assert first_mismatch(tuple(expected.splitlines()), printed) == mismatch
