"""The fenced blocks of a Markdown file, and how the commands in them are checked.

A block says by the words after its three backticks what it is:

  console          lines that begin with "$ " are commands; the lines below each are what it prints
  console about    the same, and numbers need only be near: within 3%, percentages within 2 points
  console gpu      as console, but the commands need a GPU: their arguments are parsed and nothing is run
  console setup    what is done before there is a trainfit (git, pip): not run
  python           run, in one namespace for the whole file
  python NAME.py   written to that file, for commands that name it
  python fragment  compiled only: it has parts that are the reader's own

A command's exit code is 0 unless it ends with "# exit N". In what it prints, a line "..." stands for any lines and
"..." within a line for anything; blanks are alike, and so are numbers of seconds and builds of torch.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SECONDS = re.compile(r"\b\d+(\.\d+)? s\b")
NUMBER = re.compile(r"[+-]?\d+(?:,\d{3})*(?:\.\d+)?%?")
TORCH = re.compile(r"\b2\.1[1-5]\.\d+(\+\w+)?")


@dataclass(frozen=True)
class Block:
    path: Path
    line: int  # of the first line inside
    kind: str  # "console", "python", or whatever else
    note: str  # the words after it
    text: str


@dataclass(frozen=True)
class Command:
    line: int
    argv: tuple[str, ...]
    exit_code: int
    expected: tuple[str, ...]


def blocks(path: Path) -> Iterator[Block]:
    """The fenced blocks of the file, in order."""
    lines = path.read_text().splitlines()
    start: int | None = None
    for index, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = index
            continue
        kind, _, note = lines[start].removeprefix("```").strip().partition(" ")
        yield Block(path, start + 2, kind, note, "\n".join(lines[start + 1 : index]) + "\n")
        start = None
    assert start is None, f"{path}:{start} is never closed"


def commands(block: Block) -> Iterator[Command]:
    """The commands of a console block, each with what it is to print."""
    assert block.text.startswith("$ "), f"{block.path}:{block.line} begins with no command"
    for part in re.finditer(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.text, re.MULTILINE):
        line = block.line + block.text.count("\n", 0, part.start())
        words, _, comment = part[1].partition(" # ")
        code = re.search(r"\bexit (\d+)$", comment)
        expected = tuple(part[2].rstrip("\n").splitlines())
        yield Command(line, tuple(shlex.split(words)), int(code[1]) if code else 0, expected)


def first_mismatch(expected: tuple[str, ...], printed: str, *, about: bool = False) -> str | None:
    """The first expected line that the output lacks, None if it has them all; nothing expected: all is fine."""
    if not expected:
        return None
    wanted, got = [_alike(line) for line in expected], [_alike(line) for line in printed.rstrip("\n").splitlines()]
    position, is_gap = 0, False
    for line in wanted:
        if line == "...":
            is_gap = True
            continue
        last = len(got) if is_gap else position + 1
        found = next((i for i in range(position, min(last, len(got))) if _matches(line, got[i], about)), None)
        if found is None:
            return line
        position, is_gap = found + 1, False
    return None if is_gap or position == len(got) else f"(the end, where there is: {got[position]})"


def _matches(line: str, got: str, about: bool) -> bool:
    parts = [part.strip() for part in line.split("...")]
    if not about:
        return re.fullmatch(".*".join(map(re.escape, parts)), got) is not None
    pattern = ".*".join(f"({NUMBER.pattern})".join(map(re.escape, NUMBER.split(part))) for part in parts)
    match = re.fullmatch(pattern, got)
    return match is not None and all(map(_is_near, NUMBER.findall(line), match.groups()))


def _is_near(wanted: str, seen: str) -> bool:
    if wanted.endswith("%") != seen.endswith("%"):
        return False
    one, other = (float(text.rstrip("%").replace(",", "")) for text in (wanted, seen))
    return abs(one - other) <= (2 if wanted.endswith("%") else 0.03 * abs(one))


def _alike(line: str) -> str:
    return " ".join(TORCH.sub("<torch>", SECONDS.sub("<seconds>", line)).split())
