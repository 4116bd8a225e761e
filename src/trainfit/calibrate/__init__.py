"""`calibrate`: measures a GPU and its host, and writes the profile by which steps are priced.

In: the path of the profile. Out: that file, JSON. Takes some minutes; what was measured is kept beside the profile in
`<profile>.partial` as it comes, so that a run that was cut short goes on where it stopped.

Raw samples stay in the partial file, so that the profile can be made again when the rules change.

Under torchrun with more than one rank, collectives among the ranks are timed first, every time; then the first rank
goes on alone, and it alone writes.
"""

from __future__ import annotations

import dataclasses
import json
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from trainfit.calibrate import compute, memory
from trainfit.calibrate.collectives import Ranks, gpu_group, measure_collectives
from trainfit.calibrate.host import host_costs
from trainfit.calibrate.measure import Sample, measure
from trainfit.cost.profile import reduce_samples, write_profile
from trainfit.errors import UsageError
from trainfit.gpus.catalogue import find_gpu
from trainfit.progress import tell

RAW_SCHEMA = 2
WORKLOADS_PER_CHUNK = 40
"""What is lost at most when a run is cut short."""
ATTEMPTS = 2
"""A chunk that was begun so often and never finished hangs or crashes on this machine: it is left out."""

Group = tuple[str, int, list[Callable[[], Any]]]


def groups() -> list[Group]:
    """(name, repeats, workloads) in the order in which they are measured, the most used first."""
    bf16, fp16, fp32 = torch.bfloat16, torch.float16, torch.float32
    return [
        ("pointwise", 3, memory.pointwise()),
        ("layouts", 3, memory.layouts()),
        ("rows", 3, memory.rowwise()),
        ("matmul bf16", 3, compute.matmuls(bf16, (512, 1024, 2048, 4096, 8192, 16384), every=1)),
        ("attention", 3, compute.attentions()),
        ("tables", 3, memory.tables()),
        ("optimizers", 3, memory.updates()),
        ("matmul fp32", 2, compute.matmuls(fp32, (1024, 4096, 8192), every=2)),
        ("convolution", 3, compute.convolutions()),
        ("images", 3, memory.images()),
        ("batched matmul", 3, [*compute.batched_products(), *compute.grouped_products()]),
        ("matmul fp16", 3, compute.matmuls(fp16, (1024, 4096, 8192), every=3)),
        ("hidden sizes fp32", 2, compute.hidden_products(fp32, (4096, 8192))),
        ("window attention", 2, compute.window_attentions()),
        ("more convolution", 2, compute.more_convolutions()),
        ("recurrent", 1, compute.recurrents()),
        ("signals", 3, memory.signals()),
        ("more attention", 3, compute.more_attentions()),
        ("grouped convolution", 2, compute.grouped_convolutions()),
        ("matrices", 3, memory.matrices()),
        ("more recurrent", 1, compute.more_recurrents()),
    ]


def calibrate(path: Path, report: Callable[[str], None]) -> bool:
    """Measure everything and write the profile, and say whether this process has: of several ranks, the first one does.

    `report` gets a line of progress per chunk of work.
    """
    if not torch.cuda.is_available():
        raise UsageError("torch sees no GPU here", hint="run calibrate on the machine whose GPU you want a profile of")
    find_gpu(torch.cuda.get_device_name())  # a GPU that the catalogue lacks is told so now, not after minutes
    collectives = _collectives(report)
    if collectives is None:
        return False
    torch.manual_seed(0)
    partial_path = path.with_name(path.name + ".partial")
    header, done = _resume(partial_path)
    start_s = time.monotonic()
    with partial_path.open("a") as file:

        def keep(record: dict[str, Any]) -> None:
            file.write(json.dumps(record) + "\n")
            file.flush()

        if not done:
            keep(header)
        if collectives:
            keep({"collectives": collectives})
        if not any(record.get("chunk") == "host" for record in done):
            report("host: CPU time per call")
            keep({"chunk": "host", "host": host_costs()})
        known = {_signature(record["sample"]) for record in done if "sample" in record}
        finished = {record["chunk"] for record in done if "chunk" in record}
        begun = Counter(record["begun"] for record in done if "begun" in record)
        for chunk, repeats, workloads in _chunks():
            if chunk in finished:
                continue
            if begun[chunk] >= ATTEMPTS:
                report(f"{chunk}: left out, it did not finish in {ATTEMPTS} runs")
                continue
            keep({"begun": chunk})
            count = 0
            for result in measure(workloads, repeats, known):
                if isinstance(result, Sample):
                    keep({"sample": dataclasses.asdict(result)})
                    count += 1
                else:
                    keep({"failed": result})
            keep({"chunk": chunk})
            report(f"{chunk}: {len(workloads)} workloads, {count} new ops, {time.monotonic() - start_s:.0f} s")
    _write(path, partial_path)
    return True


def _collectives(report: Callable[[str], None]) -> list[dict[str, Any]] | None:
    """What was measured among the ranks, nothing where there is one; None on all ranks but the first."""
    ranks = Ranks.of_environment()
    if ranks is None:
        return []
    with gpu_group(ranks):
        tables = measure_collectives(ranks.num_per_node, "cuda", report if ranks.rank == 0 else lambda line: None)
    return tables if ranks.rank == 0 else None


def _chunks() -> Iterator[tuple[str, int, list[_Counted]]]:
    """The groups cut into pieces, each with a name of its own."""
    num_workloads = sum(len(workloads) for _, _, workloads in groups())
    num_before = 0
    for name, repeats, workloads in groups():
        counted = [_Counted(name, num_before + i, num_workloads, one) for i, one in enumerate(workloads, start=1)]
        num_before += len(workloads)
        for first in range(0, len(workloads), WORKLOADS_PER_CHUNK):
            yield f"{name} {first}", repeats, counted[first : first + WORKLOADS_PER_CHUNK]


@dataclasses.dataclass(frozen=True, slots=True)
class _Counted:
    """A workload that tells which of all it is when it is run."""

    group: str
    number: int
    total: int
    workload: Callable[[], Any]

    def __call__(self) -> Any:
        tell(f"calibrating {self.group}", self.number, self.total)
        return self.workload()

    def __str__(self) -> str:
        return str(self.workload)


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


def _resume(partial_path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """This machine's header, and the records of a run that was cut short on it."""
    header = _header()
    if not partial_path.exists():
        return header, []
    records: list[dict[str, Any]] = []
    for line in partial_path.read_text().splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break  # the line at which the run was cut
    if records and records[0] != header:
        raise UsageError(
            f"{partial_path} was begun on another GPU, or with another torch or trainfit",
            hint="delete it, or choose another output",
        )
    partial_path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return header, records


def _write(path: Path, partial_path: Path) -> None:
    records = [json.loads(line) for line in partial_path.read_text().splitlines()]
    host = next(record["host"] for record in records if "host" in record)
    samples = [record["sample"] for record in records if "sample" in record]
    collectives = [record["collectives"] for record in records if "collectives" in record]
    measured_last = {"collectives": collectives[-1]} if collectives else {}
    write_profile(path, reduce_samples(records[0], samples, host) | measured_last)


def _signature(sample: dict[str, Any]) -> str:
    return f"{sample['op']}{sample['args']}{sample['kwargs']}"
