"""Run jobs in forked processes, several at a time, so that imports are paid once and every job has a CUDA of its own.

In: jobs and a function that turns one into a dict. Out: (job, dict) pairs as they finish; a job that raises, crashes or
runs too long gives {"error": ...}. Invariant: the parent never touches CUDA, since a fork cannot use it afterwards.

Jobs go in rounds: `width` at once, and the next round starts when all have ended. Inside a round, work under `shared()`
runs side by side, and work under `exclusive()` waits until every job of the round has left its shared part, then has
the GPU to itself: that is how memory is measured in parallel and time alone. A job that is done waits for the others of
its round before its process ends, since taking CUDA down slows whoever is being timed.
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
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(result))
    unfinished.rename(path)


def _fork(work: Callable[[Job], dict[str, Any]], job: Job, path: Path, round_over: tuple[int, int]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            os.close(round_over[1])
            _child(work, job, path)
            os.read(round_over[0], 1)  # returns when the parent closes its end
        finally:
            os._exit(0)
    return pid


def _wait(pid: int, deadline: float, path: Path) -> dict[str, Any]:
    """The child's result; it is killed at the deadline."""
    while not path.exists():
        if not _is_running(pid) and not path.exists():
            return {"error": "the process ended and left no result"}
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            return {"error": "timed out"}
        time.sleep(0.02)
    return dict(json.loads(path.read_text()))


def _is_running(pid: int) -> bool:
    """Whether the child has not ended; one that has is left to be reaped."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


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
                round_over = os.pipe()
                pids = [_fork(work, job, path, round_over) for job, path in batch]
                results = [_wait(pid, deadline, path) for pid, (_, path) in zip(pids, batch, strict=True)]
                for end in round_over:
                    os.close(end)
                for pid in pids:
                    os.waitpid(pid, 0)
                yield from zip((job for job, _ in batch), results, strict=True)
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
