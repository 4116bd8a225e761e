"""Records what whole processes, and the ops of one steady step, ask of the allocator on a GPU: to find what is off.

    python benchmarks/record_steps.py --out OUT NAME NAME:every ...     # on a GPU
    python benchmarks/record_steps.py --out OUT --device cpu NAME        # a small one, no GPU

OUT/steps.jsonl.gz: a line per case and variant, classic allocator, each measured in a process of its own: peaks as
measure_memory.py has them; "history", what record_allocations.py records from the start of the process through the
third step, column by column; "asked", bytes asked for in one later step, in order; and that step op by op, as
`StepAllocations` has it. Those that fit on the GPU beside each other run side by side.
"""

from __future__ import annotations

import os

# CUDA must not start in the parent of forked processes.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

import argparse
import gzip
import json
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

import forks
from loop import training_step
from measure_memory import peaks
from measure_time import jobs_of
from op_allocations import step_allocations
from record_allocations import ACTIONS, compact
from recorder import history, start_history
from survey_measure import CONTEXT_BYTES, THREADS, Job, import_models, rounds
from zoo import select

MEASURED = Path(__file__).parent / "results" / "libraries_h200.jsonl"
UNKNOWN_BYTES = 16 * 2**30
READY_S = 60.0


def record(job: Job, device: str) -> dict[str, Any]:
    """One line; runs in a process of its own."""
    torch.set_num_threads(THREADS)
    name, variant = job
    if device == "cuda":
        start_history()
    step = training_step(select([name], tiny=device == "cpu")[0], device, variant == "every layer")
    for _ in range(3):
        step()
    row: dict[str, Any] = {"torch": torch.__version__}
    if device == "cuda":
        torch.cuda.synchronize()
        row["history"] = columns(compact(history()))
        row |= peaks(step)
    before = len(history()) if device == "cuda" else 0
    row |= asdict(step_allocations(step, device))
    if device == "cuda":
        row["asked"] = [entry["size"] for entry in history()[before:] if entry["action"] == "alloc"]
    return row


def columns(events: list[list[int]]) -> dict[str, Any]:
    """Numbers of one kind beside each other take less room."""
    return {"actions": ACTIONS, "events": list(zip(*events, strict=True))}


def needed_bytes(jobs: list[Job]) -> dict[Job, int]:
    rows = map(json.loads, MEASURED.read_text().splitlines())
    known = {(row["case"], row["variant"]): row.get("peak_reserved_bytes", UNKNOWN_BYTES) for row in rows}
    return {job: known.get(job, UNKNOWN_BYTES) + CONTEXT_BYTES for job in jobs}


def summary(row: dict[str, Any]) -> str:
    if "error" in row:
        return str(row["error"])[:300]
    allocated, reserved = (row.get(f"peak_{kind}_bytes", 0) / 2**20 for kind in ("allocated", "reserved"))
    return f"{allocated:.2f} MiB, {reserved:.0f} reserved, {len(row['ops'])} ops, {len(row['events'])} events"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", help="cases; NAME:plain and NAME:every are one variant of a case")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--seconds", type=float, default=90, help="start no further round after this")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    start_s = time.monotonic()
    jobs = jobs_of(args.names)
    import_models(jobs)
    print(f"{time.monotonic() - start_s:.0f} s: {len(jobs)} jobs", flush=True)
    for chosen in rounds(jobs, needed_bytes(jobs)):
        if time.monotonic() - start_s > args.seconds:
            print(f"no time left for {chosen}", file=sys.stderr)
            continue
        for job, row in forks.run(chosen, partial(record, device=args.device), width=len(chosen), timeout_s=READY_S):
            line = json.dumps({"case": job[0], "variant": job[1]} | row, separators=(",", ":")) + "\n"
            with (args.out / "steps.jsonl.gz").open("ab") as file:
                file.write(gzip.compress(line.encode(), mtime=0))
            print(f"{time.monotonic() - start_s:.0f} s: {' '.join(job)}: {summary(row)}", flush=True)


if __name__ == "__main__":
    main()
