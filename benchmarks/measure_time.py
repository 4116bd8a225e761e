"""Step time on a GPU with nothing beside it: every case of the zoo in a process of its own, one after the other.

    python benchmarks/measure_time.py --out OUT                  # every case: OUT/time.jsonl
    python benchmarks/measure_time.py --out OUT gemma t5_amp     # these only
    python benchmarks/measure_time.py --out OUT --repeats 3 --only-steps gemma    # three processes each, not profiled

measure_memory.py times three steps in passing; a launch-bound step varies more than that shows. Here, after three steps
to warm up, eleven are timed by CUDA events, each from an idle GPU: the median, the fastest and the slowest; then one is
profiled for the time the GPU was busy. Classic allocator. Models are built side by side, and timed with nothing beside.

Right before and after, two of the small models by which `trainfit calibrate` knows the host are timed in the same
process (`probe_ns`, medians per step): a host's speed changes from minute to minute, and this is its speed then.
"""

from __future__ import annotations

import os

# torch.cuda.is_available() must not start CUDA in the parent: forked children could not use it.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

import argparse
import statistics
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import forks
from loop import training_step
from measure_memory import kernels, step_ms
from trainfit.calibrate.host import time_models
from trainfit.calibrate.models import small_models
from zoo import Case, select

WARM_UP, TIMED = 3, 11
PROBES = ("fused norms", "flat autocast")
Job = tuple[Case, bool, bool]
"""The case, whether every layer is checkpointed, whether a step is profiled."""


def measure(job: Job) -> dict[str, Any]:
    case, checkpointed, profiled = job
    with forks.shared():
        step = training_step(case, "cuda", checkpointed)
        for _ in range(WARM_UP):
            step()
        torch.cuda.synchronize()
        if profiled:  # its first start is slow
            with profile(activities=[ProfilerActivity.CUDA]):
                torch.cuda.synchronize()
    with forks.exclusive():
        before = probe_ns()
        times_ms = [step_ms(step, "cuda") for _ in range(WARM_UP + TIMED)][WARM_UP:]
        after = probe_ns()
        row = {"step_ms": statistics.median(times_ms), "fastest_ms": min(times_ms), "slowest_ms": max(times_ms)}
        probes = {"probe_ns": {name: [before[name], after[name]] for name in PROBES}}
        return row | probes | (kernels(step) if profiled else {})


def probe_ns() -> dict[str, float]:
    """The medians of the probes' steps."""
    found = time_models([small_models()[name] for name in PROBES], rounds=1)
    return {
        name: sum(statistics.median(times) for times in phases.values())
        for name, phases in zip(PROBES, found, strict=True)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--out", type=Path, required=True, help="folder for time.jsonl")
    parser.add_argument("--timeout-s", type=float, default=60, help="for one round of processes")
    parser.add_argument("--width", type=int, default=4, help="processes side by side while models are built")
    parser.add_argument("--repeats", type=int, default=1, help="processes per case, one after the other")
    parser.add_argument("--only-steps", action="store_true", help="leave the profiled step out")
    args = parser.parse_args()
    jobs = [
        (case, late, not args.only_steps)
        for _ in range(args.repeats)
        for case in select(args.cases)
        for late in (False, True)
        if case.checkpoint or not late
    ]
    rows = (
        {
            "case": case.name,
            "variant": "every layer" if checkpointed else "plain",
            "allocator": "classic",
            "torch": torch.__version__,
        }
        | found
        for (case, checkpointed, _), found in forks.run(jobs, measure, width=args.width, timeout_s=args.timeout_s)
    )
    for row in forks.write_lines(args.out / "time.jsonl", rows):
        print({key: value for key, value in row.items() if key != "torch"}, flush=True)


if __name__ == "__main__":
    main()
