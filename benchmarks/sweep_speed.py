"""How long a sweep of 64 configurations of llama3-8b takes, beside sweeps of one; prints a Markdown table.

    python benchmarks/sweep_speed.py [--workers 2]

Each row is a process of its own, from its start to its end. CPU seconds are those of all its processes: where other
programs share the cores, they say more than the wall clock.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

import torch

CASES = {
    "1, nothing to recompute": "--batch 1 --seq 2048 --gpu h200 --world-size 8",
    "1, a plan is found": "--batch 4 --seq 8192 --gpu h100-80gb --world-size 64",
    "1, nothing fits": "--batch 8 --seq 8192 --gpu h100-80gb --world-size 8 --budget 60GiB",
    "64": "--batch 1,2,4,8 --seq 2048,8192 --gpu h100-80gb,h200 --world-size 8,64 --budget auto,60GiB",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--workers", type=int, default=2)
    workers = parser.parse_args().workers
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
