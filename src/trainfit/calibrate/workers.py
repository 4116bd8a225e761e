"""Processes that time the GPU's kernels, one at a time, after all of them have rehearsed.

In: chunks of workloads. Out: their samples, as records.

Most of what a first run takes is the CPU's: libraries compile kernels or load them. So processes share the chunks, all
run theirs once, at the same time, and then each is timed in its turn, alone on the GPU and with everything at hand.
While one is timed, those before read what the profiler wrote, and ask cuDNN for its plans. A process that dies (some of
a library's kernels do not work everywhere) is replaced by one that has rehearsed nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TextIO

import torch

from trainfit import progress
from trainfit.calibrate.chunks import all_chunks
from trainfit.calibrate.measure import Sample, keep_pool, marker_name, measure, rehearse
from trainfit.calibrate.processes import Process, ProcessFailed
from trainfit.gpus.catalogue import Gpu

MOST_WORKERS = 12
BYTES_PER_WORKER = 8 * 2**30
"""Of the GPU's memory: a process takes half a GiB before it does anything, and a pool for its workloads."""
_SERVE = "from trainfit.calibrate.workers import serve; serve()"
_FIELDS = tuple(field.name for field in dataclasses.fields(Sample))

Record = dict[str, Any]


class Worker(Process):
    """One of the processes."""

    def __init__(self) -> None:
        super().__init__(_SERVE, "the process that times kernels")
        self.has_worked = False
        self._forget()

    def restart(self) -> None:
        """A fresh process, which has rehearsed nothing."""
        super().restart()
        self._forget()

    def _forget(self) -> None:
        self._num_told = 0
        self._found: list[Record] = []

    def rehearse(self, chunk: str) -> None:
        """Run its workloads once."""
        self.tell(json.dumps({"rehearse": chunk}))
        self.answer()
        self.has_worked = True

    def begin(self, chunk: str, known: Sequence[str]) -> None:
        """Time its workloads; this waits until the GPU is free for others. `known` are signatures that need no second
        measurement; it grows only."""
        self.tell(json.dumps({"measure": chunk, "known": known[self._num_told :]}))
        self._num_told = len(known)
        while "over" not in (record := json.loads(self.answer())):
            if "told" in record:
                progress.tell(*record["told"])
            else:
                self._found.append(record)

    def finish(self) -> list[Record]:
        """The samples and failures of what was begun, when the profiler's books are read."""
        while "chunk" not in (record := json.loads(self.answer())):
            self._found.append(record)
        found, self._found = self._found, []
        return found


@contextlib.contextmanager
def gpu_workers(gpu: Gpu, num_chunks: int) -> Iterator[list[Worker]]:
    """As many as the machine has use for; they end with the context."""
    count = max(1, min(_num_cores() * 3 // 4, gpu.memory_bytes // BYTES_PER_WORKER, MOST_WORKERS))
    workers = [Worker() for _ in range(min(count, num_chunks))]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.end()


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def rehearse_all(workers: Sequence[Worker], names: Sequence[str], report: Callable[[str], None]) -> dict[str, Worker]:
    """Which of them has rehearsed which chunk: each takes another when it has done one, the last first. Where one ends
    over a chunk it is replaced and has not rehearsed it; one that never did any work fails for other reasons."""
    waiting = deque(names)
    found: dict[str, Worker] = {}

    def work(worker: Worker) -> None:
        with contextlib.suppress(IndexError):  # none is left
            while name := waiting.pop():
                try:
                    worker.rehearse(name)
                except ProcessFailed as failure:
                    if not worker.has_worked:
                        raise
                    report(f"{name}, rehearsed: {failure.cause}")
                    worker.restart()
                found[name] = worker
                progress.tell("getting ready: libraries load kernels, or compile them", len(found), len(names))

    with ThreadPoolExecutor(max(1, len(workers))) as pool:
        for working in [pool.submit(copy_context().run, work, worker) for worker in workers]:
            working.result()
    return found


def serve() -> None:
    """What such a process does. What libraries print goes where errors go."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    torch.set_num_threads(1)
    keep_pool()
    marker_name()  # the profiler's first session takes a while, too
    answer(sys.stdin, answers)


def answer(orders: TextIO, answers: TextIO) -> None:
    """All orders, one by one."""
    by_name = {chunk.name: chunk for chunk in all_chunks()}
    known: set[str] = set()

    def write(record: Record) -> None:
        answers.write(json.dumps(record) + "\n")

    def write_now(record: Record) -> None:
        write(record)
        answers.flush()

    for line in orders:
        order = json.loads(line)
        torch.manual_seed(0)
        if "rehearse" in order:
            rehearse(by_name[order["rehearse"]].workloads)
            write({"rehearsed": order["rehearse"]})
        else:
            chunk = by_name[order["measure"]]
            known.update(order["known"])
            with progress.listening(lambda *told: write_now({"told": told})):
                # All of them before the first is told: where nobody listens yet, telling would wait.
                for result in list(measure(chunk.workloads, chunk.repeats, known, lambda: write_now({"over": True}))):
                    write({"failed": result} if isinstance(result, str) else {"sample": _as_record(result)})
            write({"chunk": chunk.name})
        answers.flush()


def _as_record(sample: Sample) -> Record:
    return {name: getattr(sample, name) for name in _FIELDS}
