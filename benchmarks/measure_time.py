"""Step time on a GPU with nothing beside it: every case of the zoo in a process of its own, one after the other.

    python benchmarks/measure_time.py --out OUT                  # every case: OUT/time.jsonl
    python benchmarks/measure_time.py --out OUT gemma t5_amp     # these only

measure_memory.py times three steps in passing; a launch-bound step varies more than that shows. Here, after three steps
to warm up, eleven are timed by CUDA events, each from an idle GPU: the median, the fastest and the slowest; then one is
profiled for the time the GPU was busy. Classic allocator.
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

import forks
from loop import training_step
from measure_memory import kernels, step_ms
from zoo import Case, select

WARM_UP, TIMED = 3, 11
Job = tuple[Case, bool]


def measure(job: Job) -> dict[str, Any]:
    case, checkpointed = job
    step = training_step(case, "cuda", checkpointed)
    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    times_ms = [step_ms(step, "cuda") for _ in range(TIMED)]
    row = {"step_ms": statistics.median(times_ms), "fastest_ms": min(times_ms), "slowest_ms": max(times_ms)}
    return row | kernels(step)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--out", type=Path, required=True, help="folder for time.jsonl")
    parser.add_argument("--timeout-s", type=float, default=40, help="for one case")
    args = parser.parse_args()
    jobs = [(case, late) for case in select(args.cases) for late in (False, True) if case.checkpoint or not late]
    rows = (
        {
            "case": case.name,
            "variant": "every layer" if checkpointed else "plain",
            "allocator": "classic",
            "torch": torch.__version__,
        }
        | found
        for (case, checkpointed), found in forks.run(jobs, measure, width=1, timeout_s=args.timeout_s)
    )
    for row in forks.write_lines(args.out / "time.jsonl", rows):
        print({key: value for key, value in row.items() if key != "torch"}, flush=True)


if __name__ == "__main__":
    main()
