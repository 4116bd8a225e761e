"""A process of one's own that is told what to do, line by line, and answers in lines.

In: Python code that reads its standard input. Out: what it writes; and where it ends with an error, what that was.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping

_CAUSE = re.compile(r"[\w.]*(Error|Exception|Exit)\b")
_MOST_CHARACTERS = 2000


class ProcessFailed(RuntimeError):
    """One ended with an error."""

    def __init__(self, name: str, told: str) -> None:
        causes = (line for line in told.splitlines() if _CAUSE.match(line))
        self.cause = next(causes, told.strip().rpartition("\n")[2])
        """The first error that it named: others follow from it."""
        ending = told.strip()[-_MOST_CHARACTERS:]
        super().__init__(f"{name} failed:\n{ending if self.cause in ending else f'{self.cause} ... {ending}'}")


class Process:
    """A fresh one, which runs `code`. `name` is what it is called if it fails; `environment` is added to this one's."""

    def __init__(self, code: str, name: str, environment: Mapping[str, str] | None = None) -> None:
        self._code, self._name = code, name
        self._environment = os.environ | dict(environment or {})
        self._start()

    def _start(self) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-c", self._code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=self._environment,
        )

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure() from None

    def answer(self) -> str:
        """Its next line."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._failure()
        return line.rstrip("\n")

    def last_answer(self) -> str:
        """Its last line; it ends, since it is told nothing more."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        lines = self._process.stdout.read().splitlines()
        if self._process.wait():
            raise self._failure()
        return lines[-1]

    def end(self) -> None:
        with self._errors, contextlib.suppress(BrokenPipeError), self._process:  # it may not have read all it was told
            self._process.kill()

    def restart(self) -> None:
        self.end()
        self._start()

    def _failure(self) -> ProcessFailed:
        self._process.wait()
        self._errors.seek(0)
        return ProcessFailed(self._name, self._errors.read())
