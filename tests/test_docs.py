"""README and docs: every command in them is run and prints what they say, every link leads somewhere."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from doc_blocks import Block, Command, blocks, commands, first_mismatch
from trainfit.cli import build_parser, main
from trainfit.records import Category, TimelinePoint

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SMALL_STEP = """
import torch, trainfit
from torch import nn

def make_step():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    return trainfit.Step(model=model, batch=(torch.ones(4, 8),), loss=torch.sum)
"""
NOT_RUN = {"git", "pip", "cd", "sudo"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a page's files are: as if the reader stood there and typed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    sys.modules.pop("train", None)
    yield tmp_path
    sys.modules.pop("train", None)


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
        assert block.note in ("", "about"), f"{where}: {block.note!r} means nothing"
        code, printed = run_trainfit(arguments)
        assert code == command.exit_code, f"{where}: exit {code}\n{printed}"
        mismatch = first_mismatch(command.expected, printed, about=block.note == "about")
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


# ---- What scripts write --------------------------------------------------------------------------------------------


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_the_page_of_accuracy_has_every_result_as_it_is() -> None:
    accuracy = script("make_accuracy")
    assert accuracy.PAGE.read_text() == accuracy.page(), "run make accuracy"


def test_the_summary_of_memory_is_that_of_its_table() -> None:
    """Equal to the byte cannot be told from the table's allocated column, which is rounded."""
    table = (ROOT / "benchmarks" / "results" / "memory_h200.md").read_text()
    number = r"\s+([\d.]+)\s+([\d.]+)\s+[+-][\d.]+\s+[+-][\d.]+%"
    rows = re.findall(rf"^\w+ .*(?:class|expan){number} \|{number}", table, re.MULTILINE)
    for kind, first in (("allocated", 0), ("reserved", 2)):
        errors = [abs(float(row[first]) / float(row[first + 1]) - 1) for row in rows]
        within = [sum(error <= limit for error in errors) for limit in (0, 0.001, 0.01)]
        equal = r"\d+" if kind == "allocated" else str(within[0])
        line = rf"\| peak {kind} \| {equal} of {len(rows)} \| {within[1]} \| {within[2]} \| {100 * max(errors):.2g}% "
        for page in (ROOT / "README.md", ROOT / "docs" / "accuracy.md"):
            assert re.search(line, page.read_text()), f"{page.name}: {line}"


def test_the_pictures_are_whole_and_fetch_nothing() -> None:
    pictures = sorted((ROOT / "docs" / "pictures").glob("*.svg"))
    assert [path.stem for path in pictures] == ["flow", "frontier", "menu", "timeline"]
    for path in pictures:
        root = ElementTree.parse(path).getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert len(root) > 10
        assert "://" not in path.read_text().replace("http://www.w3.org/2000/svg", "")


def test_a_picture_stacks_categories_and_keeps_peaks() -> None:
    pictures = script("make_pictures")
    order = list(Category)
    memory = {Category.PARAMETERS: 2, Category.ACTIVATIONS: 1}
    low = tuple(memory.get(category, 0) * 2**30 for category in order)
    high = tuple(nbytes * 2 for nbytes in low)
    points = [TimelinePoint(op=op, time_ns=op * 10**6, bytes_by_category=high if op == 3 else low) for op in range(10)]
    thin = pictures.thinned(points, 5)
    assert [point.op for point in thin] == [0, 3, 4, 6, 8]
    plot = pictures.Plot(0, 0, 90, 60, (0, 9), (0, 6))
    paths = dict(zip(pictures.COLOURS, pictures.areas(plot, thin), strict=True))
    parameters, activations = paths[Category.PARAMETERS], paths[Category.ACTIVATIONS]
    # 2 GiB of parameters from the bottom up, 4 at the peak; on them 1 GiB of activations, 2 at the peak.
    assert 'd="M0.0,60.0H0.0V40.0H30.0V20.0H40.0V40.0H60.0V40.0H80.0V40.0V60.0' in parameters
    assert 'd="M0.0,40.0H0.0V30.0H30.0V0.0H40.0V30.0' in activations


@pytest.mark.parametrize(("low", "high", "expected"), [(0, 9, list(range(10))), (84, 106, [85, 90, 95, 100, 105])])
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert script("make_pictures").ticks(low, high) == expected


def test_the_demo_ends_in_a_report(folder: Path) -> None:
    estimate, plan = re.findall(r"^\t\$\(BIN\)/trainfit (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert build_parser().parse_args(estimate.split()).target == "llama3-8b"
    arguments = plan.split()
    assert build_parser().parse_args(arguments).report == Path("build/demo.html")
    # The same command for a smaller model, which fits.
    (folder / "build").mkdir()
    (folder / "train.py").write_text(SMALL_STEP)
    code, printed = run_trainfit([arguments[0], "train.py:make_step", *arguments[4:]])
    assert code == 0, printed
    assert printed.endswith("Wrote build/demo.json\nWrote build/demo.html\n")
    assert (folder / "build" / "demo.html").read_text().startswith("<!DOCTYPE html>")


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


@pytest.mark.parametrize(
    ("expected", "printed", "is_near"),
    [
        ("peak 100.0 GiB (10%)", "peak 103.0 GiB (12%)", True),
        ("peak 100.0 GiB", "peak 104.0 GiB", False),
        ("gap 1.0%", "gap 3.1%", False),
        ("peak 100 GiB", "top 100 GiB", False),
        ("h200: ... of 120.0 GiB +2.9% fits", "h200: 119.7 GiB of 120.0 GiB +3.1% fits", True),
        ("overhead -1%", "overhead +1%", True),
        ("12 blocks", "12% blocks", False),
        ("21,400 tokens/s", "21,323 tokens/s", True),
        ("21,400 tokens/s", "23,400 tokens/s", False),
    ],
)
def test_numbers_that_need_only_be_near(expected: str, printed: str, is_near: bool) -> None:
    assert (first_mismatch((expected,), printed, about=True) is None) is is_near
