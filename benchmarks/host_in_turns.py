"""Steps that wait for the CPU, beside predictions for the very host on which they were timed, at the very time.

    python benchmarks/host_in_turns.py --out rows.jsonl --for-s 590              # on a GPU; again, to go on
    python benchmarks/host_in_turns.py --table rows.jsonl                        # no GPU: predicts each row's step
    python benchmarks/host_in_turns.py --out rows.jsonl --device cpu --tiny gemma llama_clip:plain    # tries it out

A host changes its speed within seconds and from process to process, so here a case's steps and the small models of a
calibration take turns in one process: a step, a part of the models, a step, and so on. Each case has a process; those
of a batch get ready together, and then each is timed alone. A row has the times of the case's steps, and what
`trainfit calibrate` would have timed of the host (`host_costs` takes it). Kernels are counted in the first process of
each batch, when all of its own is timed, since a profiler slows its launches for good. Rows are written as they come;
cases that the file has are left out, and what is not done after `--for-s` seconds is ended.

The table predicts each step with the shipped prices of kernels and the costs of the CPU that follow from its own row. A
step is launch-bound when the GPU, by the predicted time of its kernels, idles for more than 15% of what was measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from loop import training_step
from measure_host import CASES, WIDTH, Job, append, import_models, in_turn
from measure_memory import step_ms
from measure_time import jobs_of
from predict_time import predicted_times
from trainfit._time_estimate import LAUNCH_BOUND_IDLE
from trainfit.calibrate.host import (
    HostTimes,
    Prepared,
    Training,
    add_kernels,
    host_costs,
    prepare_host,
    time_models,
    time_ops,
    traced_models,
    training_of,
)
from trainfit.calibrate.models import small_models
from trainfit.calibrate.single_ops import single_ops
from trainfit.cost.host import HostCosts
from trainfit.cost.profile import shipped_profile
from trainfit.gpus.catalogue import find_gpu
from trainfit.trace import trace_step
from zoo import make_step, select

WARM_UP = 2
TURNS = 2
"""A round goes once through the small models, and so many times to the case."""
STEP = "step"


def run_case(
    job: Job,
    device: str,
    tiny: bool,
    with_kernels: bool,
    wait: Callable[[], None],
    answer: Callable[[dict[str, Any]], None],
) -> None:
    name, variant = job
    begin_s = time.monotonic()
    step = training_step(select([name], tiny)[0], device, variant == "every layer")
    for _ in range(WARM_UP):
        step()
    prepared = _prepare(device)
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # others need the memory in their turns
    answer({"started_s": round(time.monotonic() - begin_s, 1)})
    wait()
    times_ms, found = time_in_turns(step, prepared, device)
    if with_kernels and device == "cuda":
        add_kernels(found, prepared)
    if device == "cuda":
        torch.cuda.empty_cache()
    answer({"torch": torch.__version__, "at_s": round(time.time(), 1), "times_ms": times_ms, **found})


def _prepare(device: str) -> Prepared:
    if device == "cuda":
        return prepare_host()
    trainings = {name: training_of(model, device) for name, model in small_models().items()}
    return Prepared(trainings, single_ops(device, large=64))


def time_in_turns(step: Callable[[], None], prepared: Prepared, device: str) -> tuple[list[float], HostTimes]:
    """Milliseconds of every timed step of the case, and what was timed of the host around them."""
    begin = torch.cuda.synchronize if device == "cuda" else _nothing
    models = list(prepared.trainings.values())
    turns: list[Training] = []
    for number in range(TURNS):
        turns += [partial(_timed_step, step, device), *models[number::TURNS]]
    names = [name for number in range(TURNS) for name in (STEP, *list(prepared.trainings)[number::TURNS])]
    times = list(zip(names, time_models(turns, begin), strict=True))
    steps_ns = [ns for name, phases in times if name == STEP for ns in phases[STEP]]
    host_times_ns = {name: phases for name, phases in times if name != STEP}
    found = HostTimes(op_times_ns=time_ops(prepared.ops, begin), host_times_ns=host_times_ns)
    return [round(ns / 1e6, 3) for ns in steps_ns], found


def _nothing() -> None:
    pass


def _timed_step(step: Callable[[], None], device: str, begin: Callable[[], None]) -> list[tuple[str, int]]:
    """The second of two: in training, a step comes after another."""
    step()
    begin()
    return [(STEP, round(step_ms(step, device) * 1e6))]


def measure(names: Sequence[str], out: Path, for_s: float, device: str, tiny: bool) -> None:
    begin_s = time.monotonic()
    torch.set_num_threads(1)
    known = {(row["case"], row["variant"]) for row in _rows(out)} if out.exists() else set()
    jobs = [job for job in jobs_of(names or CASES) if job not in known]
    import_models(jobs)
    for first in range(0, len(jobs), WIDTH):
        left_s = for_s - (time.monotonic() - begin_s)
        if left_s <= 0:
            break
        chosen = jobs[first : first + WIDTH]
        works = [partial(run_case, job, device, tiny, job is chosen[0]) for job in chosen]
        for (name, variant), found in zip(chosen, in_turn(works, left_s), strict=True):
            if "error" not in found:
                append(out, {"case": name, "variant": variant, **found})
            told = found.get("error") or f"{statistics.median(found['times_ms']):.1f} ms"
            print(f"{time.monotonic() - begin_s:.0f} s: {name} {variant}: {told}", flush=True)


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def predictions(rows: Sequence[dict[str, Any]], gpu_name: str, tiny: bool) -> Iterator[dict[str, Any]]:
    """For each row, what is predicted of its step on its own host."""
    gpu, profile = find_gpu(gpu_name), shipped_profile(gpu_name)
    if profile is None:
        raise SystemExit(f"the package ships no profile of the {gpu_name}")
    models = traced_models(gpu)
    counted = [{key: row[key] for key in ("op_kernels", "host_kernels")} for row in rows if "op_kernels" in row]
    if not counted:
        raise SystemExit("kernels were counted in no row, which takes a GPU")
    for row in rows:
        costs = HostCosts.parse(host_costs([row, *counted], gpu, profile.tables, models))
        case = select([row["case"]], tiny)[0]
        trace = trace_step(make_step(case, row["variant"] == "every layer"), gpu)
        yield predicted_times(trace, gpu, dataclasses.replace(profile, host=costs))


def table(rows: Sequence[Mapping[str, Any]], predicted: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    versions = ", ".join(sorted({row["torch"] for row in rows}))
    yield f"Measured with torch {versions}; predicted with torch {torch.__version__}, no GPU. Milliseconds."
    yield "Printed by benchmarks/host_in_turns.py: each step's prediction is for the host of its own process."
    yield ""
    yield "| case | variant | measured: median (fastest to slowest) | predicted | error | range | bound by |"
    yield "|---|---|---|---|---|---|---|"
    errors: dict[bool, list[float]] = {True: [], False: []}
    num_inside = 0
    for row, found in zip(rows, predicted, strict=True):
        times_ms, (low_ms, high_ms) = row["times_ms"], found["range_ms"]
        median_ms = statistics.median(times_ms)
        error = found["step_ms"] / median_ms - 1
        waits = bool(median_ms - found["busy_ms"] > LAUNCH_BOUND_IDLE * median_ms)
        errors[waits].append(error)
        num_inside += waits and low_ms <= median_ms <= high_ms
        bound = "CPU" if waits else "GPU"
        yield (
            f"| {row['case']} | {row['variant']} | {median_ms:.1f} ({min(times_ms):.1f} to {max(times_ms):.1f}) | "
            f"{found['step_ms']:.1f} | {error:+.1%} | {low_ms:.0f} to {high_ms:.0f} | "
            f"{bound if waits == found['launch_bound'] else f'{bound}, predicted otherwise'} |"
        )
    yield ""
    for waits, kind in ((True, "launch-bound"), (False, "GPU-bound")):
        if errors[waits]:
            within = sum(abs(error) <= 0.2 for error in errors[waits])
            yield (
                f"- {kind} steps: {within} of {len(errors[waits])} within 20%, median error "
                f"{statistics.median(errors[waits]):+.1%}, without its sign "
                f"{statistics.median(map(abs, errors[waits])):.1%}."
            )
    yield f"- launch-bound steps within the range: {num_inside} of {len(errors[True])}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="names; NAME:plain and NAME:every are one variant of a case")
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--out", type=Path, help="file for rows")
    chosen.add_argument("--table", type=Path, help="such a file; predicts its steps and prints a table")
    parser.add_argument("--for-s", type=float, default=590)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--gpu", default="h200", help="for the table")
    args = parser.parse_args()
    if args.out:
        measure(args.cases, args.out, args.for_s, args.device, args.tiny)
        return
    rows = _rows(args.table)
    print(*table(rows, predictions(rows, args.gpu, args.tiny)), sep="\n")


if __name__ == "__main__":
    main()
