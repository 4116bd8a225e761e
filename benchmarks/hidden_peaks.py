"""How far memory rises above an op's results: by the allocator's events, and by trainfit's rules.

In: events as recorder.py describes them, steps as `trainfit.records.OUTPUT` does, or a file that probe_calls.py wrote.
Out: bytes, in the allocator's units.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainfit.cost.described import read_op
from trainfit.gpus.hidden import CudaHiddenMemory
from trainfit.records import LAST_OUTPUT, OUTPUT, Phase

UNIT_BYTES = 512


@dataclass(frozen=True)
class Compared:
    """One call."""

    row: dict[str, Any]
    said_bytes: int
    taken_bytes: int

    @property
    def is_equal(self) -> bool:
        return self.said_bytes == self.taken_bytes


def rounded(nbytes: int) -> int:
    return -(-nbytes // UNIT_BYTES) * UNIT_BYTES


def measured_bytes(events: Sequence[tuple[str, int]]) -> int:
    """By events."""
    sizes: list[int] = []
    live = peak = outputs = 0
    for kind, number in events:
        if kind == "free":
            live -= rounded(sizes[number])
        elif kind != "free outer":
            sizes.append(number)
            live += rounded(number)
            outputs += rounded(number) if kind == "out" else 0
        peak = max(peak, live)
    return peak - outputs


def predicted_bytes(steps: Sequence[int], events: Sequence[tuple[str, int]]) -> int:
    """By the rules' steps and the results' real sizes."""
    outputs = [size for kind, size in events if kind == "out"]
    if LAST_OUTPUT in steps:
        outputs.sort(reverse=True)  # these ops return their largest output first, but make it last
    num_first = max(0, len(outputs) - steps.count(OUTPUT) - steps.count(LAST_OUTPUT))
    pending = outputs[num_first:]
    live = peak = sum(map(rounded, outputs[:num_first]))
    for step in steps:
        if step in (OUTPUT, LAST_OUTPUT):
            live += rounded(pending.pop(0 if step == OUTPUT else -1)) if pending else 0
        else:
            live += rounded(step) if step > 0 else -rounded(-step)
        peak = max(peak, live)
    return peak - sum(map(rounded, outputs))


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    yield from map(json.loads, gzip.decompress(path.read_bytes()).decode().splitlines())


def compared(path: Path, hidden: CudaHiddenMemory) -> dict[str, list[Compared]]:
    """Every call of every op that did not fail."""
    found: dict[str, list[Compared]] = defaultdict(list)
    for row in rows_of(path):
        if "error" not in row:
            op = read_op(row["op"], row["args"], row["kwargs"], row["outputs"], Phase.FORWARD)
            events = row.get("events", [])
            said_bytes = predicted_bytes(hidden.temporaries(op), events)
            found[row["op"]].append(Compared(row, said_bytes, measured_bytes(events)))
    return found
