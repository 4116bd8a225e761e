"""Predicts the memory of every case of the zoo on a ghost GPU, and compares with what a GPU measured.

    python benchmarks/predict_memory.py                                  # every case, both allocators: a table
    python benchmarks/predict_memory.py gpt2m unet_amp --allocator classic
    python benchmarks/predict_memory.py --measured memory.jsonl          # beside the rows of measure_memory.py
    python benchmarks/predict_memory.py --ops gpt2m --hidden hidden_models.jsonl   # which ops differ in number

Each case is traced once per variant; kernels and hidden memory are those of the torch version which measured, or else
of the one installed. Sizes are MiB, differences predicted - measured; allocated bytes first, then reserved ones. With
--ops, the op counts of the case are compared with those of the recorded step (probe_hidden.py): where they differ, the
ghost chose other kernels than the GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainfit.errors import TrainfitError
from trainfit.gpus.catalogue import find_gpu
from trainfit.gpus.hidden import hidden_memory
from trainfit.records import Trace
from trainfit.simulate import AllocatorMode, simulate_memory
from trainfit.trace import trace_step
from zoo import Case, make_step, select

MIB = 2**20
ALLOCATORS: tuple[AllocatorMode, ...] = ("classic", "expandable")
VARIANTS = {False: "plain", True: "every layer"}
VIEWS = ("aten.view.", "aten.t.", "aten.transpose.", "aten.detach.", "aten.alias.", "aten.expand.", "aten.unsqueeze.")


@dataclass(frozen=True)
class Row:
    """One case, variant and allocator; the measured numbers are None where nothing was measured."""

    name: str
    variant: str
    allocator: str
    predicted: tuple[int, int]  # allocated, reserved
    measured: tuple[int, int] | None
    peak_at: str


def predict(case: Case, checkpointed: bool, args: argparse.Namespace, measured: dict[Any, Any]) -> Iterator[Row]:
    gpu = find_gpu(args.gpu)
    allocators: Sequence[AllocatorMode] = args.allocator or ALLOCATORS
    rows = {allocator: measured.get((case.name, VARIANTS[checkpointed], allocator)) for allocator in allocators}
    version = next((found["torch"] for found in rows.values() if found), torch.__version__)
    trace = trace_step(make_step(case, checkpointed), gpu, torch_version=version)
    for allocator, found in rows.items():
        memory = simulate_memory(trace, hidden_memory(gpu, version), allocator)
        op = trace.ops[memory.peak_op]
        yield Row(
            case.name,
            VARIANTS[checkpointed],
            allocator,
            (memory.peak_allocated_bytes, memory.peak_reserved_bytes),
            (found["peak_allocated_bytes"], found["peak_reserved_bytes"]) if found else None,
            f"{op.phase} {op.name.removeprefix('aten.')}",
        )


def table_line(row: Row) -> str:
    head = f"{row.name:24} {'ckpt' if row.variant != 'plain' else '':4} {row.allocator[:5]:5}"
    cells = []
    for index in (0, 1):
        predicted = row.predicted[index]
        cell = f"{predicted / MIB:10.2f}"
        if row.measured:
            difference = predicted - row.measured[index]
            share = 100 * difference / row.measured[index]
            cell += f" {row.measured[index] / MIB:10.2f} {difference / MIB:+9.2f} {share:+8.3f}%"
        cells.append(cell)
    return f"{head} {' | '.join(cells)}  {row.peak_at}"


def summary(rows: list[Row]) -> Iterator[str]:
    for index, what in enumerate(("allocated", "reserved")):
        shares = []
        for row in rows:
            if row.measured:
                share = (row.predicted[index] - row.measured[index]) / row.measured[index]
                shares.append((abs(share), row.predicted[index] == row.measured[index], row.name, row.variant))
        if shares:
            equal = sum(is_equal for _, is_equal, *_ in shares)
            counts = ", ".join(
                f"{sum(s <= limit for s, *_ in shares)} within {limit:.1%}" for limit in (0.001, 0.005, 0.01)
            )
            worst = ", ".join(f"{name} {share:.2%}" for share, _, name, _ in sorted(shares, reverse=True)[:5])
            yield f"{what}: {equal} of {len(shares)} equal, {counts}; worst: {worst}"


def op_differences(case: Case, trace: Trace, recorded: dict[str, int]) -> Iterator[str]:
    """Ops that ran more or less often than on the GPU; views and the profiler's marks do not matter."""
    steady = [index for section in trace.steady_step for index in _ops(trace, section)]
    counts = Counter(trace.ops[index].name for index in steady)
    for name in sorted({*counts, *recorded}):
        if counts[name] != recorded.get(name, 0) and not name.startswith((*VIEWS, "profiler.")):
            yield f"{case.name:24} {name:60} ghost {counts[name]:6} GPU {recorded.get(name, 0):6}"


def _ops(trace: Trace, section: int) -> range:
    return range(trace.sections[section].first_op, trace.sections[section].last_op)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="cases of the zoo")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--allocator", choices=ALLOCATORS, action="append", help="only this one")
    parser.add_argument("--measured", type=Path, help="rows of measure_memory.py")
    parser.add_argument("--ops", action="store_true", help="compare op counts instead of memory")
    parser.add_argument("--hidden", type=Path, help="rows of probe_hidden.py, for --ops")
    args = parser.parse_args()
    measured = {}
    for line in args.measured.read_text().splitlines() if args.measured else ():
        found = json.loads(line)
        if "peak_allocated_bytes" in found:
            measured[found["case"], found["variant"], found["allocator"]] = found
    recorded = {}
    for line in args.hidden.read_text().splitlines() if args.hidden else ():
        found = json.loads(line)
        if "op_counts" in found:
            recorded[found["case"]] = found["op_counts"]
    rows = []
    for case in select(args.names):
        try:
            if args.ops:
                trace = trace_step(make_step(case), find_gpu(args.gpu))
                print(*op_differences(case, trace, recorded.get(case.name, {})), sep="\n", flush=True)
                continue
            for checkpointed in (False, True) if case.checkpoint else (False,):
                for row in predict(case, checkpointed, args, measured):
                    rows.append(row)
                    print(table_line(row), flush=True)
        except TrainfitError as error:
            print(f"{case.name:24} {error}", file=sys.stderr, flush=True)
    print(*summary(rows), sep="\n")


if __name__ == "__main__":
    main()
