"""Ground truth on a GPU: what the allocator and the clock say about every case of the zoo at steady state.

    python benchmarks/measure_memory.py --out OUT                  # every case: OUT/memory.jsonl and a table
    python benchmarks/measure_memory.py --out OUT llama1b gpt2m    # these only
    python benchmarks/measure_memory.py --out OUT --device cpu     # no GPU: the tiny zoo, to find misspelt cases

Each row is one process: case x allocator (classic, expandable) x (plain, checkpointed where the case has it). On the
device come the model, the optimizer, the batch, in this order (loop.py); then three steps, then the peaks are reset,
then three steps more, whose peaks are the result. Processes run side by side, since allocations do not depend on the
neighbours; a row whose allocator had to give memory back (alloc_retries) or ran out is measured again alone.
With the classic allocator three further steps are timed alone on the GPU, then one is profiled: gpu_busy_ms is the time
during which at least one kernel, copy or fill ran; kernel_ms the sum over kernels (streams may overlap).
"""

from __future__ import annotations

import os

# torch.cuda.is_available() must not start CUDA in the parent: forked children could not use it.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import forks
from loop import training_step
from zoo import Case, select

MIB = 2**20


@dataclass(frozen=True)
class Job:
    case: Case
    allocator: str
    checkpointed: bool
    device: str


def measure(job: Job) -> dict[str, Any]:
    """One row; runs in a process of its own."""
    if job.allocator == "expandable":
        os.environ["PYTORCH_ALLOC_CONF"] = os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    timed = job.allocator == "classic"
    with forks.shared():
        step = training_step(job.case, job.device, job.checkpointed)
        for _ in range(3):
            step()
        row = peaks(step) if job.device == "cuda" else {}
    if timed:
        with forks.exclusive():
            row["step_ms"] = statistics.median(step_ms(step, job.device) for _ in range(3))
    if timed and job.device == "cuda":
        try:
            with profile(activities=[ProfilerActivity.CUDA]):  # its first start is slow: outside the lock
                torch.cuda.synchronize()
            with forks.exclusive():
                row |= kernels(step)
        except Exception as error:  # the memory is the point of the row, and is known by now
            row["profiler_error"] = f"{type(error).__name__}: {error}"[:300]
    return row


def peaks(step: Callable[[], None]) -> dict[str, Any]:
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    return {
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_requested_bytes": stats["requested_bytes.all.peak"],
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
        "allocated_between_steps_bytes": torch.cuda.memory_allocated(),
        "alloc_retries": stats["num_alloc_retries"],
    }


def step_ms(step: Callable[[], None], device: str) -> float:
    if device != "cuda":
        start_s = time.perf_counter()
        step()
        return (time.perf_counter() - start_s) * 1e3
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    step()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def kernels(step: Callable[[], None]) -> dict[str, Any]:
    """What ran on the GPU during one step."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    results: Any = profiler.profiler
    spans: dict[str, list[tuple[int, int]]] = {"kernel": [], "memcpy": [], "memset": []}
    for event in results.kineto_results.events():
        if event.device_type() != torch.autograd.DeviceType.CUDA or event.name().startswith(("Optimizer.", "Profiler")):
            continue  # annotations appear on the GPU's rows too
        kind = event.name().split(" ")[0].lower()
        spans[kind if kind in spans else "kernel"].append((event.start_ns(), event.start_ns() + event.duration_ns()))
    row: dict[str, Any] = {f"{kind}_ms": sum(end - start for start, end in spans[kind]) / 1e6 for kind in spans}
    return row | {
        "num_kernels": len(spans["kernel"]),
        "gpu_busy_ms": union_ns([span for kind in spans.values() for span in kind]) / 1e6,
    }


def union_ns(spans: list[tuple[int, int]]) -> int:
    """The length of the union of intervals."""
    total, reached = 0, 0
    for start, end in sorted(spans):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def rows(jobs: list[Job], width: int, timeout_s: float) -> Iterator[dict[str, Any]]:
    """Measure all jobs, side by side; then those that were short of memory, one by one."""
    crowded: list[Job] = []
    for job, row in forks.run(jobs, measure, width=width, timeout_s=timeout_s):
        if width > 1 and (row.get("alloc_retries") or "out of memory" in row.get("error", "")):
            crowded.append(job)
            continue
        yield labelled(job, row)
    for job, row in forks.run(crowded, measure, width=1, timeout_s=timeout_s):
        yield labelled(job, row)


def labelled(job: Job, row: dict[str, Any]) -> dict[str, Any]:
    variant = "every layer" if job.checkpointed else "plain"
    head = {"case": job.case.name, "variant": variant, "allocator": job.allocator}
    return head | {"precision": job.case.precision, "torch": torch.__version__} | row


def progress(row: dict[str, Any]) -> str:
    result = row.get("error") or row.get("profiler_error") or f"{row.get('peak_allocated_bytes', 0) / MIB:.1f} MiB"
    return f"{row['case']} {row['variant']} {row['allocator']}: {result[:160]!r}"


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """One line per case and variant, in MiB and ms; requested is the same for both allocators."""
    yield (
        f"{'':24} {'requested':>9} {'allocated':>9} {'reserved':>8} {'expand.':>9} {'reserved':>8} {'step ms':>7}"
        f" {'busy ms':>7} kernels"
    )
    pairs: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in rows:
        pairs.setdefault((row["case"], row["variant"]), {})[row["allocator"]] = row
    for (case, variant), by_allocator in pairs.items():
        classic, expandable = by_allocator.get("classic", {}), by_allocator.get("expandable", {})
        sizes = [
            source.get(f"peak_{kind}_bytes", 0) / MIB
            for source, kind in (
                (classic, "requested"),
                (classic, "allocated"),
                (classic, "reserved"),
                (expandable, "allocated"),
                (expandable, "reserved"),
            )
        ]
        times = [classic.get(key, 0) for key in ("step_ms", "gpu_busy_ms", "num_kernels")]
        yield (
            f"{case + ('*' if variant != 'plain' else ''):24} {sizes[0]:9.2f} {sizes[1]:9.2f} {sizes[2]:8.0f}"
            f" {sizes[3]:9.2f} {sizes[4]:8.0f} {times[0]:7.1f} {times[1]:7.1f} {times[2]:7d}"
        )
    yield "* every layer checkpointed; 0 means not measured"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--out", type=Path, required=True, help="folder for memory.jsonl")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--width", type=int, default=6, help="processes side by side")
    parser.add_argument("--timeout-s", type=float, default=90, help="for one round of processes")
    args = parser.parse_args()
    cases = select(args.cases, tiny=args.device == "cpu")
    jobs = [
        Job(case, allocator, checkpointed, args.device)
        for allocator in ("classic", "expandable")
        for checkpointed in (False, True)
        for case in cases
        if case.checkpoint or not checkpointed
    ]
    start_s = time.monotonic()
    done = []
    for row in forks.write_lines(args.out / "memory.jsonl", rows(jobs, args.width, args.timeout_s)):
        done.append(row)
        print(progress(row), flush=True)
    print(*table(done), sep="\n")
    failed = sum("error" in row for row in done)
    print(f"{len(done)} rows, {failed} failed, {time.monotonic() - start_s:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
