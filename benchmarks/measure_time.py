"""Step time on a GPU with nothing beside it: every case of the zoo in a fresh process, timed one after the other.

    python benchmarks/measure_time.py --out OUT                  # every case: OUT/time.jsonl
    python benchmarks/measure_time.py --out OUT gemma t5_amp     # these only
    python benchmarks/measure_time.py --out OUT --turns 3 --only-steps gemma:every    # in three turns, not profiled

measure_memory.py times three steps in passing; a launch-bound step varies more than that shows. Here, after steps to
warm up, steps are timed by CUDA events, each from an idle GPU, in one or several turns: the median, the fastest and the
slowest of all, and the median of each turn; then one is profiled for the time the GPU was busy. Classic allocator.
Processes start and build their models side by side; when all of a round are ready they wait, and each is told in turn
to go on, turn after turn: a host's speed changes while one process is timed. None is forked from another: a fork shares
its parent's memory until it writes to it, which would slow the very Python that is timed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

WARM_UP, TIMED = 2, 9
VARIANTS = ("plain", "every layer")
TIME, PROFILE = "time\n", "profile\n"
Job = tuple[str, str]
"""The case's name, the variant."""


def run_child(job: Job) -> None:
    """One case: "ready" is written when it is built; for each line on stdin steps are timed, or one is profiled."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from loop import training_step
    from measure_memory import kernels, step_ms
    from zoo import select

    name, variant = job
    step = training_step(select([name])[0], "cuda", variant == "every layer")
    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    print("ready", flush=True)
    for line in sys.stdin:  # after the last one too: taking CUDA down would slow whoever is timed next
        if line == TIME:
            times_ms = [step_ms(step, "cuda") for _ in range(WARM_UP + TIMED)][WARM_UP:]
            print(json.dumps({"torch": torch.__version__, "times_ms": times_ms}), flush=True)
        else:
            with profile(activities=[ProfilerActivity.CUDA]):  # its first start is slow
                torch.cuda.synchronize()
            print(json.dumps(kernels(step)), flush=True)


def run_round(
    jobs: Sequence[Job], turns: int, profiled: bool, timeout_s: float
) -> Iterator[tuple[Job, dict[str, Any]]]:
    """The rows of some cases whose processes live at the same time; those that are late are ended."""
    children = [_start(job) for job in jobs]
    deadline = threading.Timer(timeout_s, _kill, [children])
    deadline.start()
    try:
        for child in children:
            _line(child)
        answers: list[list[dict[str, Any]]] = [[] for _ in jobs]
        for told in [TIME] * turns + [PROFILE] * profiled:
            for child, found in zip(children, answers, strict=True):
                found += _ask(child, told)
        for job, found in zip(jobs, answers, strict=True):
            is_complete = len(found) == turns + profiled
            yield job, _row(found, turns) if is_complete else {"error": "the process failed or was too slow"}
    finally:
        deadline.cancel()
        for child in children:
            assert child.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()
        for child in children:
            child.wait()


def _ask(child: subprocess.Popen[str], told: str) -> list[dict[str, Any]]:
    """Its answer; none where it has ended."""
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(told)
        child.stdin.flush()
        text = _line(child)
        return [json.loads(text)] if text else []
    return []


def _row(answers: Sequence[dict[str, Any]], turns: int) -> dict[str, Any]:
    times_ms = [time_ms for answer in answers[:turns] for time_ms in answer["times_ms"]]
    row = {
        "torch": answers[0]["torch"],
        "step_ms": statistics.median(times_ms),
        "fastest_ms": min(times_ms),
        "slowest_ms": max(times_ms),
        "turns_ms": [statistics.median(answer["times_ms"]) for answer in answers[:turns]],
    }
    return row | dict(*answers[turns:])


def _kill(children: Sequence[subprocess.Popen[str]]) -> None:
    for child in children:
        child.kill()


def _start(job: Job) -> subprocess.Popen[str]:
    name, variant = job
    command = [sys.executable, "-W", "ignore", __file__, name, "--child", variant]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _line(child: subprocess.Popen[str]) -> str:
    """The child's next line of ours; empty when it has ended. Libraries print, too."""
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith(("ready", "{")):
            return line.strip()
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="names; NAME:plain and NAME:every are one variant of a case")
    parser.add_argument("--out", type=Path, help="folder for time.jsonl")
    parser.add_argument("--timeout-s", type=float, default=90, help="for one round of processes")
    parser.add_argument("--width", type=int, default=8, help="processes per round")
    parser.add_argument("--turns", type=int, default=1, help="how often each process is timed")
    parser.add_argument("--only-steps", action="store_true", help="leave the profiled step out")
    parser.add_argument("--child", choices=VARIANTS, help="be the process of one case")
    args = parser.parse_args()
    if args.child:
        run_child((args.cases[0], args.child))
        return
    jobs = jobs_of(args.cases)
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "time.jsonl").open("w") as file:
        for first in range(0, len(jobs), args.width):
            chosen = jobs[first : first + args.width]
            for (name, variant), found in run_round(chosen, args.turns, not args.only_steps, args.timeout_s):
                row = {"case": name, "variant": variant, "allocator": "classic"} | found
                print(row, flush=True)
                file.write(json.dumps(row) + "\n")
                file.flush()


def jobs_of(names: Sequence[str]) -> list[Job]:
    """What is measured, in the order of the names; all of the zoo without any."""
    from zoo import select, zoo

    jobs = []
    for name, _, wanted in (name.partition(":") for name in names or zoo()):
        (case,) = select([name])
        variants = VARIANTS if case.checkpoint else VARIANTS[:1]
        jobs += [(name, variant) for variant in variants if variant.startswith(wanted)]
    return jobs


if __name__ == "__main__":
    main()
