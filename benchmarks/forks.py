"""Run jobs in forked processes, several at a time, so that imports are paid once and every job has a CUDA of its own.

In: jobs and a function that turns one into a dict. Out: (job, dict) pairs as they finish; a job that raises, crashes or
runs too long gives {"error": ...}. Invariant: the parent never touches CUDA, since a fork cannot use it afterwards.

Jobs go in rounds: `width` at once, and the next round starts when all have ended. Inside a round, work under `shared()`
runs side by side, and work under `exclusive()` waits until every job of the round has left its shared part, then has
the GPU to itself: that is how memory is measured in parallel and time alone.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

Job = TypeVar("Job")
LOCK = Path(tempfile.gettempdir()) / f"trainfit-gpu-{os.getpid()}.lock"


@contextmanager
def _locked(kind: int) -> Iterator[None]:
    with LOCK.open("w") as file:
        fcntl.flock(file, kind)
        yield


def shared() -> Any:
    """Work that may run beside other jobs."""
    return _locked(fcntl.LOCK_SH)


def exclusive() -> Any:
    """Work that must have the GPU to itself."""
    return _locked(fcntl.LOCK_EX)


def _child(work: Callable[[Job], dict[str, Any]], job: Job, path: Path) -> None:
    try:
        result = work(job)
    except BaseException as error:
        traceback.print_exc(limit=-6)
        result = {"error": f"{type(error).__name__}: {error}"[:600]}
    path.write_text(json.dumps(result))


def _fork(work: Callable[[Job], dict[str, Any]], job: Job, path: Path) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            _child(work, job, path)
        finally:
            os._exit(0)
    return pid


def _wait(pid: int, deadline: float, path: Path) -> dict[str, Any]:
    """The child's result; it is killed at the deadline."""
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return {"error": "timed out"}
        time.sleep(0.02)
    if not path.exists():
        return {"error": f"the process ended with status {status} and left no result"}
    return dict(json.loads(path.read_text()))


def run(
    jobs: Sequence[Job], work: Callable[[Job], dict[str, Any]], *, width: int, timeout_s: float
) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Run every job; yield results round by round, in the order of the jobs."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            for first in range(0, len(jobs), width):
                paths = [Path(folder) / f"{index}.json" for index in range(first, min(first + width, len(jobs)))]
                batch = list(zip(jobs[first : first + width], paths, strict=True))
                deadline = time.monotonic() + timeout_s
                pids = [_fork(work, job, path) for job, path in batch]
                for pid, (job, path) in zip(pids, batch, strict=True):
                    yield job, _wait(pid, deadline, path)
        finally:
            LOCK.unlink(missing_ok=True)


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Pass the rows through, appending each to a JSON-lines file as it comes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
            file.flush()
            yield row
