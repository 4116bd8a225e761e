"""How long a sweep of 64 configurations of llama3-8b takes, beside sweeps of one; prints a Markdown table.

    python benchmarks/sweep_speed.py [--workers 2]
    python benchmarks/sweep_speed.py --parts       # CPU seconds of the parts of two groups that share a trace

Each row is a process of its own, from its start to its end. CPU seconds are those of all its processes: where other
programs share the cores, they say more than the wall clock.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise

import torch

CASES = {
    "1, nothing to recompute": "--batch 1 --seq 2048 --gpu h200 --world-size 8",
    "1, a plan is found": "--batch 4 --seq 8192 --gpu h100-80gb --world-size 64",
    "1, nothing fits": "--batch 8 --seq 8192 --gpu h100-80gb --world-size 8 --budget 60GiB",
    "64": "--batch 1,2,4,8 --seq 2048,8192 --gpu h100-80gb,h200 --world-size 8,64 --budget auto,60GiB",
}


def parts() -> None:
    """What a family's trace takes, and of each of its GPUs the menus, the plans, and the traces of planned models."""
    import trainfit
    from trainfit._plan import Planner, TracedStep, trace_for_plans
    from trainfit.errors import InfeasibleBudget
    from trainfit.gpus.catalogue import find_gpu
    from trainfit.targets import resolve

    torch.set_num_threads(1)
    print("| batch x seq, GPUs | trace, shared | GPU | priced | menus | plans | of these, planned models traced |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for batch, seq, world_size in ((4, 8192, 64), (8, 8192, 8), (8, 2048, 8)):
        step = replace(resolve("llama3-8b", batch=batch, seq=seq), fsdp=trainfit.FSDP(world_size=world_size))
        start_s = time.process_time()
        traced = trace_for_plans(step, find_gpu("h100-80gb"))
        trace_s = time.process_time() - start_s
        decided = set()
        for gpu in map(find_gpu, ("h100-80gb", "h200")):
            own = TracedStep(replace(traced.trace, gpu=gpu.name), traced.programs)
            planner = Planner(step, gpu, "reserved", "classic", own)
            marks_s = [time.process_time()]
            for part in (lambda: planner.base, lambda: planner.problem):  # noqa: B023
                part()
                marks_s.append(time.process_time())
            for budget in (None, "60GiB"):
                with contextlib.suppress(InfeasibleBudget):
                    planner.plan(budget)
            marks_s.append(time.process_time())
            seconds = [f"{after - before:.1f}" for before, after in pairwise(marks_s)]
            judged = f"{len(planner._judged)}, {len(decided & planner._judged.keys())} as on the other GPU"
            decided |= planner._judged.keys()
            head = f"{batch} x {seq}, {world_size} | {trace_s:.1f}"
            print(f"| {head} | {gpu.name} | {' | '.join(seconds)} | {judged} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--parts", action="store_true")
    args = parser.parse_args()
    if args.parts:
        parts()
        return
    workers = args.workers
    print("# Speed of a sweep\n\nPrinted by `benchmarks/sweep_speed.py`, no GPU. One run.\n")
    print(f"Python {sys.version.split()[0]}, torch {torch.__version__}, {os.cpu_count()} cores, {workers} workers.\n")
    print("| configurations | wall s | CPU s | fit |\n|---|---|---|---|", flush=True)
    for name, axes in CASES.items():
        before, start = os.times(), time.perf_counter()
        command = [sys.executable, "-m", "trainfit", "sweep", "llama3-8b", *axes.split(), "--workers", str(workers)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        wall, after = time.perf_counter() - start, os.times()
        if result.returncode not in (0, 3):
            raise SystemExit(result.stderr)
        cpu = sum(after[2:4]) - sum(before[2:4])
        print(f"| {name} | {wall:.1f} | {cpu:.1f} | {result.stdout.split(' configurations')[0]} |", flush=True)


if __name__ == "__main__":
    main()
