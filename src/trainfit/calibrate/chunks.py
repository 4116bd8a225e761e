"""What `calibrate` does in one go: workloads on the GPU, or the host. In: the groups. Out: `all_chunks`, in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trainfit.calibrate.groups import groups
from trainfit.calibrate.workloads import Workload
from trainfit.progress import tell

WORKLOADS_PER_CHUNK = 120
"""What is lost at most when a run is cut short. Fewer would make more sessions of the profiler, up to 0.1 s each."""
SMALL_CHUNK, SMALL_CHUNKS = 24, ("filters of libraries", "filters by channel", "filters of nets")
"""Groups for whose workloads cuDNN compiles a second each, and how many of them are rehearsed by one process: with more
the others would wait for the last one."""
HOST_STRETCHES = 3
"""The host is timed before, after and between so many stretches of the GPU's measurements."""


@dataclass(frozen=True, slots=True)
class Counted:
    """A workload that tells which of all it is when it is run."""

    group: str
    number: int
    total: int
    workload: Workload

    def __call__(self) -> Any:
        tell(f"calibrating {self.group}", self.number, self.total)
        return self.workload()

    def __str__(self) -> str:
        return str(self.workload)


@dataclass(frozen=True, slots=True)
class Chunk:
    """What is measured in one go: workloads on the GPU, or, where there are none, the host."""

    name: str
    repeats: int = 1
    workloads: tuple[Counted, ...] = ()


def all_chunks() -> list[Chunk]:
    """The groups cut into pieces, each with a name of its own, and the host among them."""
    pieces = list(_pieces())
    stretch = -(-len(pieces) // HOST_STRETCHES)
    found: list[Chunk] = []
    for first in range(0, len(pieces), stretch):
        found += [Chunk(f"host {first // stretch}"), *pieces[first : first + stretch]]
    return [*found, Chunk(f"host {-(-len(pieces) // stretch)}")]


def _pieces() -> Iterator[Chunk]:
    all_groups = groups()
    num_workloads = sum(len(workloads) for _, _, workloads in all_groups)
    num_before = 0
    for name, repeats, workloads in all_groups:
        counted = [Counted(name, num_before + i, num_workloads, one) for i, one in enumerate(workloads, start=1)]
        num_before += len(workloads)
        size = SMALL_CHUNK if name.endswith(SMALL_CHUNKS) else WORKLOADS_PER_CHUNK
        for first in range(0, len(workloads), size):
            yield Chunk(f"{name} {first}", repeats, tuple(counted[first : first + size]))
