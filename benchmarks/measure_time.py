"""Step time on a GPU with nothing beside it: every case of the zoo in a fresh process, timed one after the other.

    python benchmarks/measure_time.py --out OUT                  # every case: OUT/time.jsonl
    python benchmarks/measure_time.py --out OUT gemma t5_amp     # these only
    python benchmarks/measure_time.py --out OUT --repeats 3 --only-steps gemma    # three processes each, not profiled

measure_memory.py times three steps in passing; a launch-bound step varies more than that shows. Here, after steps to
warm up, eleven are timed by CUDA events, each from an idle GPU: the median, the fastest and the slowest; then one is
profiled for the time the GPU was busy. Classic allocator. Processes start and build their models side by side; when all
of a round are ready they wait, and each is told in turn to go on. None is forked from another: a fork shares its
parent's memory until it writes to it, which would slow the very Python that is timed.

Right before, two of the small models by which `trainfit calibrate` knows the host are timed in the same process
(`probe_ns`, the median step of each): a host's speed differs between processes, and this is what it was here.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

WARM_UP, TIMED = 3, 11
PROBES = ("fused norms", "flat autocast")
VARIANTS = ("plain", "every layer")
Job = tuple[str, str, bool]
"""The case's name, the variant, whether a step is profiled."""


def run_child(job: Job) -> None:
    """One case: "ready" is written when it is built; a line on stdin starts the clock, and the row is written."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from loop import training_step
    from measure_memory import kernels, step_ms
    from trainfit.calibrate.host import time_models
    from trainfit.calibrate.models import small_models
    from zoo import select

    name, variant, profiled = job
    step = training_step(select([name])[0], "cuda", variant == "every layer")
    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    if profiled:  # its first start is slow
        with profile(activities=[ProfilerActivity.CUDA]):
            torch.cuda.synchronize()
    print("ready", flush=True)
    sys.stdin.readline()
    found = time_models([small_models()[probe] for probe in PROBES])
    probe_ns = [sum(statistics.median(times) for times in phases.values()) for phases in found]
    times_ms = [step_ms(step, "cuda") for _ in range(WARM_UP + TIMED)][WARM_UP:]
    row = {
        "torch": torch.__version__,
        "step_ms": statistics.median(times_ms),
        "fastest_ms": min(times_ms),
        "slowest_ms": max(times_ms),
        "probe_ns": dict(zip(PROBES, probe_ns, strict=True)),
    }
    print(json.dumps(row | (kernels(step) if profiled else {})), flush=True)
    sys.stdin.read()  # taking CUDA down would slow whoever is timed next: wait until the round is over


def run_round(jobs: Sequence[Job], timeout_s: float) -> Iterator[tuple[Job, dict[str, Any]]]:
    """The rows of some cases whose processes live at the same time; those that are late are ended."""
    children = [_start(job) for job in jobs]
    deadline = threading.Timer(timeout_s, _kill, [children])
    deadline.start()
    try:
        are_ready = [_line(child) == "ready" for child in children]
        for job, child, is_ready in zip(jobs, children, are_ready, strict=True):
            text = ""
            if is_ready and child.poll() is None:
                assert child.stdin is not None
                child.stdin.write("go\n")
                child.stdin.flush()
                text = _line(child)
            yield job, json.loads(text) if text else {"error": "the process failed or was too slow"}
    finally:
        deadline.cancel()
        for child in children:
            assert child.stdin is not None
            child.stdin.close()
        for child in children:
            child.wait()


def _kill(children: Sequence[subprocess.Popen[str]]) -> None:
    for child in children:
        child.kill()


def _start(job: Job) -> subprocess.Popen[str]:
    name, variant, profiled = job
    command = [sys.executable, "-W", "ignore", __file__, name, "--child", variant]
    return subprocess.Popen(
        command if profiled else [*command, "--only-steps"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _line(child: subprocess.Popen[str]) -> str:
    """The child's next line of ours; empty when it has ended. Libraries print, too."""
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith(("ready", "{")):
            return line.strip()
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--out", type=Path, help="folder for time.jsonl")
    parser.add_argument("--timeout-s", type=float, default=90, help="for one round of processes")
    parser.add_argument("--width", type=int, default=8, help="processes per round")
    parser.add_argument("--repeats", type=int, default=1, help="processes per case")
    parser.add_argument("--only-steps", action="store_true", help="leave the profiled step out")
    parser.add_argument("--child", choices=VARIANTS, help="be the process of one case")
    args = parser.parse_args()
    if args.child:
        run_child((args.cases[0], args.child, not args.only_steps))
        return
    from zoo import select

    jobs = [
        (case.name, VARIANTS[late], not args.only_steps)
        for _ in range(args.repeats)
        for case in select(args.cases)
        for late in (False, True)
        if case.checkpoint or not late
    ]
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "time.jsonl").open("w") as file:
        for first in range(0, len(jobs), args.width):
            for (name, variant, _), found in run_round(jobs[first : first + args.width], args.timeout_s):
                row = {"case": name, "variant": variant, "allocator": "classic"} | found
                print(row, flush=True)
                file.write(json.dumps(row) + "\n")
                file.flush()


if __name__ == "__main__":
    main()
