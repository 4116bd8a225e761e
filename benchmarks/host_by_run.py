"""Launch-bound steps of the zoo run by run, each beside the host that was timed in turns with it, and beside others.

    python benchmarks/host_by_run.py > benchmarks/results/host_by_run_h200.md    # no GPU, two minutes

In: results/time_host_h200.jsonl and time_host_fifth_h200.jsonl, the steps that measure_host.py timed in five runs hours
apart, on machines of one kind, each in a process of its own; and what the host's part of `calibrate` timed in three of
those runs (the records of the first two are of fewer kinds of ops than are asked for today). Out: errors of the steps,
predicted / measured - 1, by run and host. A case counts once per run, by the median of its processes.
"""

from __future__ import annotations

import gzip
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from predict_time import is_launch_bound, last, read_runs, read_steps, with_steps
from trainfit._time_estimate import time_step
from trainfit.calibrate.host import host_costs, traced_models
from trainfit.cost import Profile, pricing_for
from trainfit.cost.host import HostCosts
from trainfit.cost.profile import shipped_profile
from trainfit.gpus.catalogue import find_gpu
from trainfit.trace import trace_step
from zoo import make_step, select

RESULTS = Path(__file__).parent / "results"
TIMED = [RESULTS / f"time_host{run}_h200.jsonl" for run in ("", "_fifth")]
MEASURED = [RESULTS / f"{name}_h200.jsonl" for name in ("memory", "time")]
RECORDS = {
    "third": ("zoo_host_third",),
    "fourth": ("zoo_host",),
    "third and fourth": ("zoo_host_third", "zoo_host"),
    "fifth": ("zoo_host_fifth",),
}
"""By the runs that a host was timed in, the files of its records."""
RUNS = ("first", "second", "third", "fourth", "fifth")
APART_S, FEWEST = 600.0, 12
"""Runs lie so far apart; those with fewer rows looked at a few GPU-bound cases."""
NEAR = 0.2
GPU = find_gpu("h200")
Job = tuple[str, str]
Steps = dict[Job, list[float]]
"""Milliseconds of the median step of each process."""


def timed_runs() -> list[Steps]:
    """In the order in which they were measured."""
    lines = (line for path in TIMED for line in path.read_text().splitlines())
    rows = [row for row in map(json.loads, lines) if "at_s" in row]
    runs: list[list[dict[str, Any]]] = []
    for row in rows:
        if not runs or abs(row["at_s"] - runs[-1][-1]["at_s"]) > APART_S:
            runs.append([])
        runs[-1].append(row)
    return [_steps(run) for run in runs if len(run) >= FEWEST]


def _steps(rows: Iterable[dict[str, Any]]) -> Steps:
    found: Steps = defaultdict(list)
    for row in rows:
        found[row["case"], row["variant"]].append(row["step_ms"])
    return found


def launch_bound_jobs() -> list[Job]:
    """By the medians of the last run that had them."""
    measured = with_steps(last(read_runs(MEASURED)), read_steps(TIMED))
    return [job for job, found in measured.items() if is_launch_bound(found)]


def hosts(profile: Profile) -> dict[str, HostCosts]:
    models = traced_models(GPU)
    found = {}
    for name, files in RECORDS.items():
        texts = (gzip.decompress((RESULTS / f"{file}_h200.jsonl.gz").read_bytes()) for file in files)
        records = [json.loads(line) for text in texts for line in text.splitlines()]
        found[name] = HostCosts.parse(host_costs(records, GPU, profile.tables, models))
    return found


def predicted_ms(job: Job, profiles: dict[str, Profile]) -> dict[str, float]:
    """The step by host."""
    name, variant = job
    trace = trace_step(make_step(select([name])[0], variant == "every layer"), GPU)
    return {host: time_step(trace, pricing_for(GPU, profile)).step_ms for host, profile in profiles.items()}


def lines(runs: list[Steps], predicted: dict[Job, dict[str, float]]) -> Iterator[str]:
    yield "| run | host timed in the run | cases, processes | median error | cases within 20% | processes within 20% |"
    yield "|---|---|---|---|---|---|"
    for name, run in zip(RUNS, runs, strict=True):
        steps = {job: times_ms for job, times_ms in run.items() if job in predicted}
        count = f"{len(steps)}, {sum(map(len, steps.values()))}"
        for host in RECORDS:
            errors = [predicted[job][host] / statistics.median(times_ms) - 1 for job, times_ms in steps.items()]
            single = [predicted[job][host] / time_ms - 1 for job, times_ms in steps.items() for time_ms in times_ms]
            own = ", its own" if host == name else ""
            yield (
                f"| {name} | {host}{own} | {count} | {statistics.median(errors):+.1%} | "
                f"{near(errors)} of {len(errors)} | {near(single)} of {len(single)} |"
            )


def near(errors: Iterable[float]) -> int:
    return sum(abs(error) <= NEAR for error in errors)


def main() -> None:
    profile = shipped_profile("h200")
    if profile is None:
        raise SystemExit("the package ships no profile of the H200")
    profiles = {name: replace(profile, host=host) for name, host in hosts(profile).items()}
    jobs = launch_bound_jobs()
    with ProcessPoolExecutor(2) as pool:
        predicted = dict(zip(jobs, pool.map(predicted_ms, jobs, [profiles] * len(jobs)), strict=True))
    print("# Launch-bound steps of the zoo, run by run\n")
    print("Printed by benchmarks/host_by_run.py (H200, torch 2.11.0+cu130); kernels have the shipped profile's prices.")
    print("Five runs hours apart, on machines of one kind; errors are predicted / measured - 1.\n")
    print(*lines(timed_runs(), predicted), sep="\n")


if __name__ == "__main__":
    main()
