"""Processes that time the GPU's kernels, one at a time, after all of them have rehearsed.

In: chunks of calls. Out: their samples, as records.

Most of what a first run takes is the CPU's: libraries compile kernels or load them. So processes share the chunks, all
run theirs once, at the same time, and then each is timed in its turn, alone on the GPU and with everything at hand.
While one is timed, those before read what the profiler wrote. A process that dies (some of a library's kernels do not
work everywhere) is replaced by one that has rehearsed nothing.
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
from threading import Lock
from typing import Any, TextIO

import torch

from trainfit import progress
from trainfit.calibrate.arguments import Pool
from trainfit.calibrate.chunks import Chunk, all_chunks, shares
from trainfit.calibrate.measure import NUMBERS_BYTES, Sample, hold_memory, marker_name, measure, rehearse
from trainfit.calibrate.processes import Process, ProcessFailed
from trainfit.gpus.catalogue import Gpu

MOST_WORKERS = 16
BYTES_PER_WORKER = 9 * 2**30
"""Of the GPU's memory: a process takes half a GiB before it does anything, random numbers, and what calls return."""
_SERVE = "from trainfit.calibrate.workers import serve; serve()"
_FIELDS = tuple(field.name for field in dataclasses.fields(Sample))

Record = dict[str, Any]


class Worker(Process):
    """One of the processes."""

    def __init__(self) -> None:
        super().__init__(_SERVE, "the process that times kernels")
        self.has_worked = False

    def rehearse(self, chunk: str) -> None:
        """Run its calls once."""
        self.tell(json.dumps({"rehearse": chunk}))
        self.answer()
        self.has_worked = True

    def begin(self, chunk: str) -> None:
        """Time its calls; this waits until the GPU is free for others."""
        self.tell(json.dumps({"measure": chunk}))
        self.answer()

    def finish(self) -> list[Record]:
        """The samples and failures of what was begun, when the profiler's books are read."""
        found = []
        while "chunk" not in (record := json.loads(self.answer())):
            found.append(record)
        return found


@contextlib.contextmanager
def gpu_workers(gpu: Gpu, num_chunks: int) -> Iterator[list[Worker]]:
    """As many as the machine has use for; they end with the context."""
    count = max(1, min(_num_cores(), gpu.memory_bytes // BYTES_PER_WORKER, MOST_WORKERS))
    workers = [Worker() for _ in range(min(count, num_chunks))]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.end()


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def rehearse_all(
    workers: Sequence[Worker], chunks: Sequence[Chunk], report: Callable[[str], None]
) -> dict[str, Worker]:
    """By its name, who has rehearsed which chunk: each takes its share, and then of others' what is left. Where one
    ends over a chunk it is replaced and has not rehearsed it; one that never did any work fails for other reasons."""
    waiting = [deque(share) for share in shares(chunks, len(workers))]
    taking = Lock()
    found: dict[str, Worker] = {}

    def taken(own: deque[Chunk]) -> Chunk | None:
        with taking:
            return own.popleft() if own else (fullest.pop() if (fullest := max(waiting, key=len)) else None)

    def work(worker: Worker, own: deque[Chunk]) -> None:
        while chunk := taken(own):
            try:
                worker.rehearse(chunk.name)
            except ProcessFailed as failure:
                if not worker.has_worked:
                    raise
                report(f"{chunk.name}, rehearsed: {failure.cause}")
                worker.restart()
            found[chunk.name] = worker
            progress.tell("getting ready: libraries load kernels, or compile them", len(found), len(chunks))

    with ThreadPoolExecutor(max(1, len(workers))) as pool:
        working = [
            pool.submit(copy_context().run, work, worker, own) for worker, own in zip(workers, waiting, strict=True)
        ]
        for one in working:
            one.result()
    return found


def serve() -> None:
    """What such a process does. What libraries print goes where errors go."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    torch.set_num_threads(1)
    torch.manual_seed(0)
    pool = Pool("cuda", NUMBERS_BYTES)
    hold_memory()
    marker_name()  # the profiler's first session takes a while, too
    answer(sys.stdin, answers, pool)


def answer(orders: TextIO, answers: TextIO, pool: Pool) -> None:
    """All orders, one by one."""
    by_name = {chunk.name: chunk for chunk in all_chunks()}

    def write(record: Record) -> None:
        answers.write(json.dumps(record) + "\n")

    def write_over() -> None:
        write({"over": True})
        answers.flush()

    for line in orders:
        order = json.loads(line)
        if "rehearse" in order:
            rehearse(by_name[order["rehearse"]].calls, pool)
            write({"rehearsed": order["rehearse"]})
        else:
            chunk = by_name[order["measure"]]
            # All of them before the first is told: where nobody listens yet, telling would wait.
            for result in list(measure(chunk.calls, pool, write_over)):
                write({"failed": result} if isinstance(result, str) else {"sample": _as_record(result)})
            write({"chunk": chunk.name})
        answers.flush()


def _as_record(sample: Sample) -> Record:
    return {name: getattr(sample, name) for name in _FIELDS}
