"""`calibrate`: measures a GPU and its host, and writes the profile by which steps are priced.

In: the path of the profile. Out: that file, JSON. Takes some minutes; what was measured is kept beside the profile in
`<profile>.partial` as it comes, so that a run that was cut short goes on where it stopped.

Raw samples stay in the partial file: where it has everything, the same command measures nothing and writes the profile
again, by the rules of the day and with no GPU.

Under torchrun with more than one rank, collectives among the ranks are timed first, every time; then the first rank
goes on alone, and it alone writes.
"""

from __future__ import annotations

import dataclasses
import json
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from trainfit.calibrate import (
    broadcasts,
    compute,
    drawn,
    drawn_attentions,
    drawn_filters,
    drawn_images,
    drawn_indices,
    drawn_products,
    extremes,
    filters,
    functions,
    further,
    images,
    lookups,
    memory,
    odd_sizes,
    recurrents,
    usual_filters,
    walks,
)
from trainfit.calibrate.collectives import Ranks, gpu_group, measure_collectives
from trainfit.calibrate.host import host_costs, host_processes, traced_models
from trainfit.calibrate.measure import Sample, measure
from trainfit.cost.profile import parse_tables, profile_json, write_profile
from trainfit.cost.reduce import reduce_samples
from trainfit.errors import UsageError
from trainfit.gpus.catalogue import find_gpu
from trainfit.progress import tell
from trainfit.records import Op

RAW_SCHEMA = 6
WORKLOADS_PER_CHUNK = 240
"""What is lost at most when a run is cut short. Fewer would make more sessions of the profiler, some 0.1 s each."""
HOST_STRETCHES = 3
"""The host is timed before, after and between so many stretches of the GPU's measurements."""
SAMPLE_FIELDS = tuple(field.name for field in dataclasses.fields(Sample))
ATTEMPTS = 2
"""A chunk that was begun so often and never finished hangs or crashes on this machine: it is left out."""

Group = tuple[str, int, list[Callable[[], Any]]]


def groups() -> list[Group]:
    """(name, repeats, workloads) in the order in which they are measured, the most used first. Convolutions and
    recurrent layers run once warm and once cold: their library makes many calls, each of which the profiler keeps."""
    bf16, fp32 = torch.bfloat16, torch.float32
    return [
        ("pointwise", 2, memory.pointwise()),
        ("layouts", 2, memory.layouts()),
        ("rows", 2, memory.rowwise()),
        ("matmul bf16", 3, compute.matmuls(bf16, (512, 2048, 4096, 8192, 16384), every=1)),
        ("attention", 3, compute.attentions()),
        ("tables", 2, memory.tables()),
        ("optimizers", 2, memory.updates()),
        ("matmul fp32", 2, compute.matmuls(fp32, (1024, 4096, 8192), every=2)),
        ("convolution", 1, compute.convolutions()),
        ("images", 2, memory.images()),
        ("batched matmul", 3, [*compute.batched_products(), *compute.grouped_products()]),
        ("hidden sizes fp32", 2, compute.hidden_products(fp32, (4096, 8192))),
        ("signals", 2, memory.signals()),
        ("matrices", 2, memory.matrices()),
        ("image layers", 1, images.convolutions()),
        ("image norms", 3, images.norms()),
        ("maps", 2, images.maps()),
        ("between", 2, broadcasts.between()),
        ("matmul tf32", 2, compute.rounded_products()),
        ("rest", 2, broadcasts.rest()),
        ("attention products", 2, compute.attention_products()),
        ("lookups", 2, lookups.lookups()),
        ("filters", 1, filters.filters()),
        ("functions", 2, functions.functions()),
        ("extremes", 2, extremes.extremes()),
        ("further", 2, further.further()),
        ("odd sizes", 2, odd_sizes.odd_sizes()),
        ("drawn", 2, drawn.drawn()),
        ("drawn indices", 2, drawn_indices.drawn_indices()),
        ("drawn images", 2, drawn_images.drawn_images()),
        ("drawn products", 2, drawn_products.drawn_products()),
        ("usual filters", 1, usual_filters.usual(1700, seed=3)),
        ("drawn filters", 1, drawn_filters.drawn(450, seed=1)),
        ("frequent filters", 1, drawn_filters.frequent(250, seed=2)),
        ("drawn attention", 2, drawn_attentions.drawn(460, seed=7)),
        ("walks", 2, walks.walks()),
        ("recurrent", 1, recurrents.recurrents()),
    ]


def calibrate(path: Path, report: Callable[[str], None]) -> bool:
    """Measure what is not yet measured and write the profile, and say whether this process has: of several ranks, the
    first one does. `report` gets a line of progress per chunk of work.
    """
    partial_path = path.with_name(path.name + ".partial")
    if not torch.cuda.is_available():
        if list(_left(_records(partial_path), lambda line: None)):
            raise UsageError(
                "torch sees no GPU here", hint="run calibrate on the machine whose GPU you want a profile of"
            )
        report(f"everything is in {partial_path}: writing the profile again")
        _write(path, partial_path, traced_models(find_gpu(str(_records(partial_path)[0]["gpu"]))))
        return True
    gpu = find_gpu(torch.cuda.get_device_name())  # one that the catalogue lacks is told so now, not after minutes
    collectives = _collectives(report)
    if collectives is None:
        return False
    torch.manual_seed(0)
    header, done = _resume(partial_path)
    left = list(_left(done, report))
    tell("starting processes that time the host")
    with partial_path.open("a") as file, host_processes(sum(not chunk.workloads for chunk in left)) as hosts:
        models = traced_models(gpu)  # while those get ready
        for host in hosts:
            host.wait()

        def keep(record: dict[str, Any]) -> None:
            file.write(json.dumps(record) + "\n")
            if "sample" not in record:  # the last of those are measured again by a run that goes on
                file.flush()

        if not done:
            keep(header)
        if collectives:
            keep({"collectives": collectives})
        known = {_signature(record["sample"]) for record in done if "sample" in record}
        for chunk in left:
            keep({"begun": chunk.name})
            begin_s = time.monotonic()
            if chunk.workloads:
                found = _measure(chunk, known, keep)
            else:
                with_kernels = not any("op_kernels" in record for record in done)
                record = {"chunk": chunk.name, **hosts.pop().times(with_kernels)}
                keep(record)
                done.append(record)
                found = "CPU time of ops and small models"
            report(f"{chunk.name}: {found}, {time.monotonic() - begin_s:.1f} s")
    report("writing the profile")
    tell("writing the profile")
    _write(path, partial_path, models)
    return True


def _measure(chunk: _Chunk, known: set[str], keep: Callable[[dict[str, Any]], None]) -> str:
    """Its workloads; says how many there were."""
    count = 0
    for result in measure(chunk.workloads, chunk.repeats, known):
        if isinstance(result, Sample):
            keep({"sample": {name: getattr(result, name) for name in SAMPLE_FIELDS}})
            count += 1
        else:
            keep({"failed": result})
    keep({"chunk": chunk.name})
    return f"{len(chunk.workloads)} workloads, {count} new ops"


def _collectives(report: Callable[[str], None]) -> list[dict[str, Any]] | None:
    """What was measured among the ranks, nothing where there is one; None on all ranks but the first."""
    ranks = Ranks.of_environment()
    if ranks is None:
        return []
    with gpu_group(ranks):
        tables = measure_collectives(ranks.num_per_node, "cuda", report if ranks.rank == 0 else lambda line: None)
    return tables if ranks.rank == 0 else None


@dataclasses.dataclass(frozen=True, slots=True)
class _Chunk:
    """What is measured in one go: workloads on the GPU, or, where there are none, the host."""

    name: str
    repeats: int = 1
    workloads: tuple[_Counted, ...] = ()


def _chunks() -> list[_Chunk]:
    """The groups cut into pieces, each with a name of its own, and the host among them."""
    pieces = list(_pieces())
    stretch = -(-len(pieces) // HOST_STRETCHES)
    chunks: list[_Chunk] = []
    for first in range(0, len(pieces), stretch):
        chunks += [_Chunk(f"host {first // stretch}"), *pieces[first : first + stretch]]
    return [*chunks, _Chunk(f"host {-(-len(pieces) // stretch)}")]


def _pieces() -> Iterator[_Chunk]:
    num_workloads = sum(len(workloads) for _, _, workloads in groups())
    num_before = 0
    for name, repeats, workloads in groups():
        counted = [_Counted(name, num_before + i, num_workloads, one) for i, one in enumerate(workloads, start=1)]
        num_before += len(workloads)
        for first in range(0, len(workloads), WORKLOADS_PER_CHUNK):
            yield _Chunk(f"{name} {first}", repeats, tuple(counted[first : first + WORKLOADS_PER_CHUNK]))


def _left(done: Iterable[dict[str, Any]], report: Callable[[str], None]) -> Iterator[_Chunk]:
    """The chunks that are neither done nor hopeless."""
    finished = {record["chunk"] for record in done if "chunk" in record}
    begun = Counter(record["begun"] for record in done if "begun" in record)
    for chunk in _chunks():
        if chunk.name in finished:
            continue
        if begun[chunk.name] >= ATTEMPTS:
            report(f"{chunk.name}: left out, it did not finish in {ATTEMPTS} runs")
        else:
            yield chunk


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


def _write(path: Path, partial_path: Path, models: Mapping[str, Sequence[Op]]) -> None:
    records = _records(partial_path)
    header = records[0]
    gpu = find_gpu(str(header["gpu"]))
    reduced = reduce_samples(gpu, (record["sample"] for record in records if "sample" in record))
    costs = host_costs(records, gpu, parse_tables(reduced, gpu), models)
    collectives = [record["collectives"] for record in records if "collectives" in record]
    measured_last = {"collectives": collectives[-1]} if collectives else {}
    write_profile(path, profile_json(header, reduced, costs) | measured_last)


def _signature(sample: dict[str, Any]) -> str:
    return f"{sample['op']}{sample['args']}{sample['kwargs']}"
