"""Runs a script's cases in fresh processes, one at a time, each already started while the one before it measures.

A child imports what it needs, waits for a line on its stdin, measures, and prints one JSON object per line. What comes
is appended to a file at once, so that nothing is lost when the whole is cut short.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


def wait_for_turn() -> None:
    """Called by a child when everything is imported and nothing is on the GPU yet."""
    sys.stdin.readline()


def ready() -> None:
    """Called by a child that prepares itself before its turn, when it has; see `run_all`'s `together`."""
    emit(ready=True)


def emit(**row: Any) -> None:
    """Called by a child for each result."""
    print(json.dumps(row), flush=True)


class _Child:
    def __init__(self, script: str, arguments: Sequence[str], expandable: bool) -> None:
        environment = dict(os.environ)
        if expandable:
            environment |= dict.fromkeys(["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"], "expandable_segments:True")
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # lives as long as the child
        self.output = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, script, *arguments],
            stdin=subprocess.PIPE, stdout=self.output, stderr=self.errors, text=True, env=environment,
        )  # fmt: skip

    def wait_until_ready(self, deadline_s: float) -> None:
        """Until the child says so, or is gone, or the deadline on the monotonic clock."""
        while self.process.poll() is None and time.monotonic() < deadline_s:
            if b'"ready"' in os.pread(self.output.fileno(), 2**20, 0):  # the child shares the file's position
                return
            time.sleep(0.2)

    def run(self, timeout_s: float) -> Iterator[dict[str, Any]]:
        """The child's rows; the last one tells how long it took, and its error if it failed."""
        start_s = time.monotonic()
        try:
            self.process.communicate("go\n", timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.output.seek(0)
        self.errors.seek(0)
        yield from (json.loads(line) for line in self.output if line.startswith("{"))
        end: dict[str, Any] = {"seconds": round(time.monotonic() - start_s, 1)}
        if self.process.returncode:
            end["error"] = f"exit {self.process.returncode}: " + self.errors.read()[-800:]
        yield end


def run_all(
    script: str,
    cases: Sequence[Sequence[str]],
    out: Path,
    timeout_s: float,
    expandable: bool = False,
    together: bool = False,
) -> Iterator[dict[str, Any]]:
    """Every row of every child, in order, each appended to `out`; a row has the child's arguments as "case".

    `together`: all are started at once, and the first one's turn is when every child has called `ready`.
    """
    started: list[_Child] = []

    def start_up_to(count: int) -> None:
        started.extend(_Child(script, arguments, expandable) for arguments in cases[len(started) : count])

    if together:
        start_up_to(len(cases))
        deadline_s = time.monotonic() + timeout_s
        for child in started:
            child.wait_until_ready(deadline_s)
    for index, arguments in enumerate(cases):
        start_up_to(index + 2)
        for row in started[index].run(timeout_s):
            full = {"case": list(arguments), **row}
            with out.open("a") as file:
                file.write(json.dumps(full) + "\n")
            yield full
