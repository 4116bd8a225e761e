"""The tasks of a sweep on processes of this machine.

Processes are spawned: a fork would copy torch's threads in whatever state they are. Each runs one task after another
and keeps nothing between them. A trace comes back as bytes, which this process never opens, and goes out with the tasks
that need it. A process that dies takes one configuration with it (or the family that it was tracing), not the sweep;
processes end when the sweep does, also if it is killed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from trainfit.errors import UsageError
from trainfit.sweeps.grid import Family, Group
from trainfit.sweeps.results import Failure, SweepResult, failed, failure_of
from trainfit.sweeps.tasks import Job, solve_group, trace_family


def run_locally(job: Job, groups: Sequence[Group], num_workers: int) -> Iterator[SweepResult]:
    """The results of all groups, in the order in which they are found."""
    try:
        job_bytes = pickle.dumps(job)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UsageError(
            f"the function that makes the step cannot be sent to another process: {error}",
            hint="define it with def in a file, not inside another function or a notebook",
        ) from error
    pool = _Pool(job_bytes, groups)
    try:
        yield from pool.run(min(num_workers, len(groups)))
    finally:
        pool.end()


@dataclass(frozen=True, slots=True)
class _Trace:
    """A task."""

    family: Family
    gpu: str


@dataclass(frozen=True, slots=True)
class _Solve:
    """A task."""

    group: Group
    traced: bytes


@dataclass(frozen=True, slots=True)
class _Traced:
    """What a process says when it has traced."""

    traced: bytes


@dataclass(frozen=True, slots=True)
class _Free:
    """What a process says when it can take a task; `failure` if it never can."""

    failure: Failure | None = None


@dataclass(slots=True)
class _Worker:
    """A process, the end of the pipe to it, and what it is doing."""

    process: BaseProcess
    connection: Connection
    has_started: bool = False
    task: _Trace | _Solve | None = None

    @property
    def is_busy(self) -> bool:
        return self.task is not None or not self.has_started


class _Pool:
    """The processes, and what is left to do."""

    def __init__(self, job_bytes: bytes, groups: Sequence[Group]) -> None:
        self._job_bytes = job_bytes
        self._workers: list[_Worker] = []
        self._untraced: dict[Family, list[Group]] = {}  # families that are traced now stay until they are
        for group in groups:
            self._untraced.setdefault(group.family, []).append(group)
        self._traces = deque(_Trace(family, its[0].gpu) for family, its in self._untraced.items())
        self._solves: deque[_Solve] = deque()

    def run(self, num_workers: int) -> Iterator[SweepResult]:
        for _ in range(num_workers):
            self._workers.append(_start(self._job_bytes))
        while any(worker.is_busy for worker in self._workers):
            ready = wait([worker.connection for worker in self._workers])
            for worker in [worker for worker in self._workers if worker.connection in ready]:
                yield from self._hear(worker)
            for worker in self._workers:
                if not worker.is_busy:
                    self._give_task(worker)

    def end(self) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.connection.close()

    def _give_task(self, worker: _Worker) -> None:
        """Groups whose trace is there come before further traces, so that few traces are held."""
        if tasks := self._solves or self._traces:
            worker.task = tasks.popleft()
            with contextlib.suppress(OSError):  # it is dead, which is heard next
                worker.connection.send(worker.task)

    def _hear(self, worker: _Worker) -> Iterator[SweepResult]:
        """Take in what a process says."""
        try:
            said = worker.connection.recv()
        except (EOFError, OSError):
            yield from self._bury(worker)
            return
        match said, worker.task:
            case SweepResult(), _Solve(group, traced):
                worker.task = _Solve(Group(group.configurations[1:]), traced)
                yield said
            case _Traced(traced), _Trace(family):
                self._solves += [_Solve(group, traced) for group in self._untraced.pop(family)]
            case _Free(None), _:
                worker.has_started, worker.task = True, None
            case _Free(Failure() as failure), _:
                raise UsageError(
                    f"the function that makes the step does not arrive in another process: {failure.message}",
                    hint="define it in a file that can be imported",
                )

    def _bury(self, worker: _Worker) -> Iterator[SweepResult]:
        """A process has died: a failure for what it was doing, and another process for the rest."""
        worker.process.join()
        worker.connection.close()
        self._workers.remove(worker)
        if not worker.has_started:
            raise UsageError(
                "a process of the sweep died before it began",
                hint='its own output is above; in a script, call trainfit.sweep under if __name__ == "__main__":',
            )
        self._workers.append(_start(self._job_bytes))
        failure = _how_it_died(worker.process.exitcode or 0)
        match worker.task:
            case _Trace(family):
                for group in self._untraced.pop(family, ()):  # empty if it died after it had traced
                    yield from (failed(configuration, failure) for configuration in group.configurations)
            case _Solve(group, traced) if group.configurations:
                if rest := group.configurations[1:]:
                    self._solves.append(_Solve(Group(rest), traced))
                yield failed(group.configurations[0], failure)


def _how_it_died(exit_code: int) -> Failure:
    if exit_code < 0:
        name = signal.Signals(-exit_code).name
        return Failure(f"the process that planned it was killed by {name}", "it may have run out of memory")
    return Failure(f"the process that planned it ended with exit code {exit_code}", "its output may say why")


def _start(job_bytes: bytes) -> _Worker:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_work, args=(there, job_bytes), daemon=True)
    process.start()
    there.close()
    return _Worker(process, here)


def _work(connection: Connection, job_bytes: bytes) -> None:
    """What a process does: say that it is free, take a task, say what comes of it, until nobody listens."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that reads the results; it ends this one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.dup2(2, 1)  # the user's code may print; stdout is for the results
    try:
        job: Job = pickle.loads(job_bytes)
    except Exception as error:
        connection.send(_Free(failure_of(error)))
        return
    with contextlib.suppress(EOFError, OSError):
        connection.send(_Free())
        while True:
            for said in _run(job, connection.recv()):
                connection.send(said)
            connection.send(_Free())


def _end_with_parent() -> None:
    """Whoever reads the results may be killed in the middle of a task here."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "this process was spawned"
    parent.join()
    os._exit(1)


def _run(job: Job, task: _Trace | _Solve) -> Iterator[_Traced | SweepResult]:
    match task:
        case _Trace(family, gpu):
            yield _Traced(pickle.dumps(trace_family(job, family, gpu)))
        case _Solve(group, traced):
            yield from solve_group(job, group, pickle.loads(traced))
