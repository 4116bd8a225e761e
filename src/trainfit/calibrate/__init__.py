"""`calibrate`: measures a GPU and its host, and writes the profile by which steps are priced.

In: the path of the profile. Out: that file, JSON. Takes some minutes; what was measured is kept beside the profile in
`<profile>.partial` as it comes, so that a run that was cut short goes on where it stopped.

Raw samples stay in the partial file: where it has everything, the same command measures nothing and writes the profile
again, by the rules of the day and with no GPU.

Under torchrun with more than one rank, collectives among the ranks are timed first, every time; then the first rank
goes on alone, and it alone writes.
"""

from __future__ import annotations

import json
import platform
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any, NamedTuple

import torch

from trainfit.calibrate.chunks import Chunk, all_chunks
from trainfit.calibrate.collectives import Ranks, gpu_group, measure_collectives
from trainfit.calibrate.host import HostProcess, host_costs, host_processes, traced_models
from trainfit.calibrate.plans import Plans, planning
from trainfit.calibrate.processes import ProcessFailed
from trainfit.calibrate.workers import Worker, gpu_workers, rehearse_all
from trainfit.cost.profile import parse_tables, profile_json, write_profile
from trainfit.cost.reduce import reduce_samples
from trainfit.errors import UsageError
from trainfit.gpus.catalogue import Gpu, find_gpu
from trainfit.progress import tell
from trainfit.records import Op

RAW_SCHEMA = 7
ATTEMPTS = 2
"""A chunk that was begun so often and never finished hangs or crashes on this machine: it is left out."""

Keep = Callable[[dict[str, Any]], None]
"""Writes a record to the partial file."""


def calibrate(path: Path, report: Callable[[str], None]) -> bool:
    """Measure what is not yet measured and write the profile, and say whether this process has: of several ranks, the
    first one does. `report` gets a line of progress per chunk of work.
    """
    partial_path = path.with_name(path.name + ".partial")
    if not torch.cuda.is_available():
        records = _records(partial_path)
        if list(_left(records, lambda line: None)) or not any("plans" in record for record in records):
            raise UsageError(
                "torch sees no GPU here", hint="run calibrate on the machine whose GPU you want a profile of"
            )
        report(f"everything is in {partial_path}: writing the profile again")
        _write(path, partial_path, traced_models(find_gpu(str(records[0]["gpu"]))))
        return True
    gpu = find_gpu(torch.cuda.get_device_name())  # one that the catalogue lacks is told so now, not after minutes
    collectives = _collectives(report)
    if collectives is None:
        return False
    header, done = _resume(partial_path)
    left = list(_left(done, report))
    on_gpu = [chunk for chunk in left if chunk.calls]
    with (
        partial_path.open("a") as file,
        host_processes(len(left) - len(on_gpu)) as hosts,
        gpu_workers(gpu, len(on_gpu)) as workers,
        planning(gpu) as planner,
    ):

        def keep(record: dict[str, Any]) -> None:
            file.write(json.dumps(record) + "\n")
            if "sample" not in record:  # the last of those are measured again by a run that goes on
                file.flush()

        if not done:
            keep(header)
        if collectives:
            keep({"collectives": collectives})
        rehearsed_by, models = _get_ready(gpu, hosts, workers, on_gpu, report)
        _measure(left, rehearsed_by, hosts, done, keep, report)
        tell("asking cuDNN for plans")
        keep({"plans": planner.plans()})
    report("writing the profile")
    tell("writing the profile")
    _write(path, partial_path, models)
    return True


def _get_ready(
    gpu: Gpu,
    hosts: Sequence[HostProcess],
    workers: Sequence[Worker],
    chunks: Sequence[Chunk],
    report: Callable[[str], None],
) -> tuple[dict[str, Worker], dict[str, list[Op]]]:
    """Who has rehearsed which chunk, and the ops of small models, which are traced meanwhile."""
    tell("starting processes")
    with ThreadPoolExecutor(1) as pool:
        rehearsing = pool.submit(copy_context().run, rehearse_all, workers, chunks, report)
        models = traced_models(gpu)
        rehearsed_by = rehearsing.result()
    for host in hosts:
        host.wait()
    return rehearsed_by, models


def _measure(
    left: Sequence[Chunk],
    rehearsed_by: Mapping[str, Worker],
    hosts: list[HostProcess],
    done: list[dict[str, Any]],
    keep: Keep,
    report: Callable[[str], None],
) -> None:
    """Chunk by chunk; samples of those before are read while the next is timed, but none while the host is. A chunk
    over which its process ends is tried again after all others."""
    begun = Counter(record["begun"] for record in done if "begun" in record)
    unread: list[_Timed] = []
    waiting = deque(left)
    num_left = len(left)

    def lost(chunk: Chunk, worker: Worker, failure: ProcessFailed) -> None:
        is_last = begun[chunk.name] >= ATTEMPTS
        report(f"{chunk.name}: {failure.cause}; {'left out' if is_last else 'it will be tried again'}")
        keep({"failed": f"{chunk.name}: {failure.cause}"})
        worker.restart()
        if not is_last:
            waiting.append(chunk)

    def read(until: Worker | None) -> None:
        """In the order in which they were timed, until the worker has nothing left to tell; all for no worker."""
        while unread and (until is None or until in [timed.worker for timed in unread]):
            timed = unread.pop(0)
            try:
                timed.read(keep, report)
            except ProcessFailed as failure:
                lost(timed.chunk, timed.worker, failure)

    while waiting or unread:
        if not waiting:
            read(until=None)
            continue
        chunk = waiting.popleft()
        worker = rehearsed_by.get(chunk.name)
        read(until=worker)
        tell(f"timing {chunk.name}", num_left - len(waiting), num_left)
        keep({"begun": chunk.name})
        begun[chunk.name] += 1
        begin_s = time.monotonic()
        if worker is None:
            with_kernels = not any("op_kernels" in record for record in done)
            record = {"chunk": chunk.name, **hosts.pop().times(with_kernels)}
            keep(record)
            done.append(record)
            report(f"{chunk.name}: CPU time of ops and small models, {time.monotonic() - begin_s:.1f} s")
            continue
        try:
            worker.begin(chunk.name)
        except ProcessFailed as failure:
            lost(chunk, worker, failure)
            continue
        unread.append(_Timed(chunk, worker, time.monotonic() - begin_s))


class _Timed(NamedTuple):
    """A chunk whose samples are yet to be read."""

    chunk: Chunk
    worker: Worker
    seconds: float

    def read(self, keep: Keep, report: Callable[[str], None]) -> None:
        records = self.worker.finish()
        for record in records:
            keep(record)
        keep({"chunk": self.chunk.name})
        num_samples = sum("sample" in record for record in records)
        report(f"{self.chunk.name}: {num_samples} of {len(self.chunk.calls)} calls, {self.seconds:.1f} s")


def _collectives(report: Callable[[str], None]) -> list[dict[str, Any]] | None:
    """What was measured among the ranks, nothing where there is one; None on all ranks but the first."""
    ranks = Ranks.of_environment()
    if ranks is None:
        return []
    with gpu_group(ranks):
        tables = measure_collectives(ranks.num_per_node, "cuda", report if ranks.rank == 0 else lambda line: None)
    return tables if ranks.rank == 0 else None


def _left(done: Iterable[dict[str, Any]], report: Callable[[str], None]) -> Iterator[Chunk]:
    """The chunks that are neither done nor hopeless."""
    finished = {record["chunk"] for record in done if "chunk" in record}
    begun = Counter(record["begun"] for record in done if "begun" in record)
    for chunk in all_chunks():
        if chunk.name in finished:
            continue
        if begun[chunk.name] >= ATTEMPTS:
            report(f"{chunk.name}: left out, it did not finish in {ATTEMPTS} runs")
        else:
            yield chunk


def _header() -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(0)
    return {
        "schema": RAW_SCHEMA,
        "gpu": properties.name,
        "num_sms": properties.multi_processor_count,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "python": platform.python_version(),
    }


def _records(partial_path: Path) -> list[dict[str, Any]]:
    """What a run has measured so far; none where there was no run."""
    records: list[dict[str, Any]] = []
    for line in partial_path.read_text().splitlines() if partial_path.exists() else ():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break  # the line at which the run was cut
    return records


def _resume(partial_path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """This machine's header, and the records of a run that was cut short on it."""
    header, records = _header(), _records(partial_path)
    if records and records[0] != header:
        raise UsageError(
            f"{partial_path} was begun on another GPU, or with another torch or trainfit",
            hint="delete it, or choose another output",
        )
    partial_path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return header, records


def samples_of(records: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """What was timed; convolutions have the plans that cuDNN has for them among their arguments."""
    plans: Plans = next((record["plans"] for record in reversed(records) if "plans" in record), {})
    for sample in (record["sample"] for record in records if "sample" in record):
        plan = plans.get(json.dumps([sample["op"], sample["args"], sample["kwargs"]]), {})
        yield sample | {"kwargs": sample["kwargs"] | plan}


def _write(path: Path, partial_path: Path, models: Mapping[str, Sequence[Op]]) -> None:
    records = _records(partial_path)
    header = records[0]
    gpu = find_gpu(str(header["gpu"]))
    reduced = reduce_samples(gpu, samples_of(records))
    costs = host_costs(records, gpu, parse_tables(reduced, gpu), models)
    collectives = [record["collectives"] for record in records if "collectives" in record]
    measured_last = {"collectives": collectives[-1]} if collectives else {}
    write_profile(path, profile_json(header, reduced, costs) | measured_last)
