"""Predicts the time of every case of the zoo on a ghost GPU, and compares with what a GPU measured.

    python benchmarks/predict_time.py --measured memory.jsonl --measured time.jsonl --timed host.jsonl    # a table
    python benchmarks/predict_time.py --measured memory.jsonl llama1b gpt2m            # these only
    python benchmarks/predict_time.py --freeze blind.jsonl bloom_amp gptj_bf16         # predictions alone, to a file
    python benchmarks/predict_time.py --frozen zoo.jsonl --measured time.jsonl         # a table of such predictions

The rows of measure_memory.py and measure_time.py have the measured times: GPU busy is the sum of the times of all
kernels, copies and fills of a profiled step, the step a median by CUDA events (of three, or of eleven with nothing
beside it); each case ran in a fresh process, and is predicted in one. A case may have been measured in several runs:
the last row counts. `--timed` has rows of measure_host.py from the host that the profile knows, each case in one or
several processes (of several files the last that has it counts): their median is the measured step, and each is
compared with the range. Errors are predicted / measured - 1. Predicting the whole zoo takes three minutes on two cores.
"datasheet" ignores the profile of the GPU and scales smoothed efficiencies by its row of the catalogue. A step is
launch-bound when the GPU idles for more than 15% of it.

With `--blind` and `--blind-measured` a second table compares predictions that were written down before the cases were
measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from trainfit._time_estimate import LAUNCH_BOUND_IDLE, time_step
from trainfit.cost import Profile, datasheet_pricing, pricing_for
from trainfit.gpus.catalogue import Gpu, find_gpu
from trainfit.records import Trace
from trainfit.trace import trace_step
from zoo import make_step, select

MAIN_CASES = ("llama1b", "gpt2m", "bertl")
VARIANTS = ("plain", "every layer")
Runs = dict[tuple[str, str], list[dict[str, Any]]]
"""What was measured of each case and variant, in the order of the files."""
Measured = dict[tuple[str, str], dict[str, Any]]
Steps = dict[tuple[str, str], list[float]]
"""Milliseconds of the median step of each process."""


def predict(name: str, variant: str, gpu_name: str) -> dict[str, Any]:
    gpu = find_gpu(gpu_name)
    trace = trace_step(make_step(select([name])[0], variant == "every layer"), gpu)
    return {"case": name, "variant": variant, "torch": trace.torch_version, **predicted_times(trace, gpu)}


def predicted_times(trace: Trace, gpu: Gpu, profile: Profile | None = None) -> dict[str, Any]:
    """By the given profile, or by the shipped one."""
    pricings = pricing_for(gpu, profile), datasheet_pricing(gpu)
    by_profile, by_datasheet = (time_step(trace, pricing) for pricing in pricings)
    return {
        "busy_ms": by_profile.gpu_busy_ms,
        "busy_range_ms": by_profile.gpu_busy_range_ms,
        "datasheet_ms": by_datasheet.gpu_busy_ms,
        "step_ms": by_profile.step_ms,
        "range_ms": by_profile.range_ms,
        "host_ms": by_profile.host_ms,
        "launch_bound": by_profile.launch_bound,
        "launch_bound_sure": by_profile.launch_bound_sure,
        "roofline_share": by_profile.roofline_share,
    }


def predict_all(jobs: Iterable[tuple[str, str]], gpu_name: str) -> list[dict[str, Any]]:
    """Each case and variant in a process of its own, one per core at a time."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda job: predict_in_a_fresh_process(job[0], job[1], gpu_name), jobs))


def predict_in_a_fresh_process(name: str, variant: str, gpu_name: str) -> dict[str, Any]:
    command = [sys.executable, __file__, name, "--variant", variant, "--gpu", gpu_name]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(f"{name} {variant} failed:\n{result.stderr}")
    row: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return row


def table(rows: list[dict[str, Any]], runs: Runs, timed: Steps, gpu_name: str) -> Iterable[str]:
    measured = with_steps(last(runs), timed)
    versions = sorted({found["torch"] for found in measured.values()})
    yield f"# GPU time and step time on {gpu_name}: predicted, measured, error"
    yield ""
    yield f"Measured with torch {', '.join(versions)}; predicted with torch {rows[0]['torch']}, no GPU. Milliseconds."
    yield from (
        "Printed by benchmarks/predict_time.py. The datasheet's efficiencies are the shipped profile's, smoothed: on",
        "that profile's GPU the column shows what smoothing costs, not how well they carry over to another GPU.",
        "The host's costs are what `trainfit calibrate` finds from single ops and small models in several processes.",
        "Steps that wait for the CPU were timed in turns with those (measure_host.py), each in several processes of",
        "its own, and are predicted for the host of that run (zoo_host_fifth_h200.jsonl.gz, own_host.py; earlier runs:",
        "host_by_run_h200.md): the shipped profile has another one.",
        '"Measured" is the median of all processes, "range" what the estimate',
        'states, and "in it" how many of them had their median there.',
    )
    yield ""
    yield (
        "| case | variant | GPU busy | measured | error | datasheet error "
        "| step | measured | error | bound by | range | in it |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        found = measured[row["case"], row["variant"]]
        busy, step = found["kernels_ms"], found["step_ms"]
        errors = [row["busy_ms"] / busy - 1, row["datasheet_ms"] / busy - 1, row["step_ms"] / step - 1]
        bound = "CPU" if is_launch_bound(found) else "GPU"
        if is_launch_bound(found) != row["launch_bound"]:
            bound += ", predicted otherwise" if row["launch_bound_sure"] else ", predicted otherwise but not for sure"
        low, high = row["range_ms"]
        steps = timed.get((row["case"], row["variant"]), [step])
        yield (
            f"| {row['case']} | {row['variant']} | {row['busy_ms']:.2f} | {busy:.2f} | {errors[0]:+.1%} | "
            f"{errors[1]:+.1%} | {row['step_ms']:.1f} | {step:.1f} | {errors[2]:+.1%} | {bound} | "
            f"{low:.0f} to {high:.0f} | {num_inside(row, steps)} of {len(steps)} |"
        )
    yield ""
    yield from summary(rows, measured)
    waiting = [
        (row, timed[row["case"], row["variant"]])
        for row in rows
        if is_launch_bound(measured[row["case"], row["variant"]]) and (row["case"], row["variant"]) in timed
    ]
    num_steps = sum(len(steps) for _, steps in waiting)
    inside = sum(num_inside(row, steps) for row, steps in waiting)
    near = sum(abs(row["step_ms"] / step - 1) <= 0.2 for row, steps in waiting for step in steps)
    yield f"- single processes of launch-bound steps: {near} of {num_steps} within 20%, {inside} within the range."


def with_steps(measured: Measured, timed: Steps) -> Measured:
    """The rows with the median of the timed processes for the step."""
    return {
        key: found | {"step_ms": statistics.median(timed[key])} if key in timed else found
        for key, found in measured.items()
    }


def read_steps(paths: list[Path]) -> Steps:
    """Of what several files have the last one's count."""
    steps: Steps = {}
    for path in paths:
        own: Steps = {}
        for row in map(json.loads, path.read_text().splitlines()):
            if "step_ms" in row:
                own.setdefault((row["case"], row["variant"]), []).append(row["step_ms"])
        steps |= own
    return steps


def num_inside(row: dict[str, Any], timed: list[float]) -> int:
    low, high = row["range_ms"]
    return sum(low <= step_ms <= high for step_ms in timed)


def blind_table(rows: list[dict[str, Any]], measured: Measured) -> Iterable[str]:
    yield ""
    yield "Blind: architectures that were predicted, and the predictions written down, before they were ever measured."
    yield "The host's speed was another one by then, so only GPU-bound steps say much."
    yield ""
    yield "| case | variant | GPU busy | measured | error | datasheet error | step | measured | error | bound by |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        found = measured[row["case"], row["variant"]]
        busy, step = found["kernels_ms"], found["step_ms"]
        yield (
            f"| {row['case']} | {row['variant']} | {row['busy_ms']:.2f} | {busy:.2f} | "
            f"{row['busy_ms'] / busy - 1:+.1%} | {row['datasheet_ms'] / busy - 1:+.1%} | "
            f"{row['step_ms']:.1f} | {step:.1f} | "
            f"{row['step_ms'] / step - 1:+.1%} | {'CPU' if is_launch_bound(found) else 'GPU'} |"
        )
    yield ""
    errors = [abs(row["busy_ms"] / measured[row["case"], row["variant"]]["kernels_ms"] - 1) for row in rows]
    within = sum(error <= 0.08 for error in errors)
    yield f"- GPU busy, blind: median {statistics.median(errors):.1%}, {within} of {len(errors)} within 8%."


def summary(rows: list[dict[str, Any]], measured: Measured) -> Iterable[str]:
    def errors(kind: str, truth: str, chosen: list[dict[str, Any]]) -> list[float]:
        return [abs(row[kind] / measured[row["case"], row["variant"]][truth] - 1) for row in chosen]

    main = [row for row in rows if row["case"] in MAIN_CASES]
    others = [row for row in rows if row["case"] not in MAIN_CASES]
    launch = [row for row in rows if is_launch_bound(measured[row["case"], row["variant"]])]
    busy = [row for row in rows if row not in launch]
    recognised = sum(is_launch_bound(measured[row["case"], row["variant"]]) == row["launch_bound"] for row in rows)
    for what, values, limit in (
        (f"GPU busy, {', '.join(MAIN_CASES)}", errors("busy_ms", "kernels_ms", main), 0.04),
        ("GPU busy, other architectures", errors("busy_ms", "kernels_ms", others), 0.08),
        ("GPU busy by the datasheet", errors("datasheet_ms", "kernels_ms", rows), 0.2),
        ("step of GPU-bound steps", errors("step_ms", "step_ms", busy), 0.08),
        ("step of launch-bound steps", errors("step_ms", "step_ms", launch), 0.2),
    ):
        if values:
            within = sum(value <= limit for value in values)
            yield f"- {what}: median {statistics.median(values):.1%}, {within} of {len(values)} within {limit:.0%}."
    sure = [row for row in rows if row["launch_bound_sure"]]
    surely = sum(is_launch_bound(measured[row["case"], row["variant"]]) == row["launch_bound"] for row in sure)
    yield f"- launch-bound or not: {recognised} of {len(rows)} recognised; {surely} of the {len(sure)} said to be sure."


def is_launch_bound(found: dict[str, Any]) -> bool:
    return bool(found["step_ms"] - found["gpu_busy_ms"] > LAUNCH_BOUND_IDLE * found["step_ms"])


def read_runs(paths: list[Path]) -> Runs:
    runs: Runs = {}
    for line in (line for path in paths for line in path.read_text().splitlines()):
        found = json.loads(line)
        if "gpu_busy_ms" in found and found["allocator"] == "classic":
            found["kernels_ms"] = sum(found[f"{kind}_ms"] for kind in ("kernel", "memcpy", "memset"))
            runs.setdefault((found["case"], found["variant"]), []).append(found)
    return runs


def last(runs: Runs) -> Measured:
    return {key: found[-1] for key, found in runs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="cases of the zoo")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--measured", type=Path, action="append", help="rows of measure_memory.py or measure_time.py")
    parser.add_argument(
        "--timed", type=Path, action="append", default=[], help="rows of measure_host.py on such a host"
    )
    parser.add_argument("--variant", choices=VARIANTS, help="print one prediction as JSON and nothing else")
    parser.add_argument("--freeze", type=Path, help="write predictions of the named cases to this file")
    parser.add_argument("--frozen", type=Path, help="such a file, for the table")
    parser.add_argument("--blind", type=Path, help="such a file, for a second table")
    parser.add_argument("--blind-measured", type=Path, help="rows of measure_time.py of those cases")
    args = parser.parse_args()
    if args.variant:
        print(json.dumps(predict(args.names[0], args.variant, args.gpu)))
        return
    if args.freeze:
        jobs = [
            (case.name, VARIANTS[late])
            for case in select(args.names)
            for late in (False, True)
            if case.checkpoint or not late
        ]
        found = predict_all(jobs, args.gpu)
        args.freeze.write_text("".join(json.dumps(row) + "\n" for row in found))
        return
    if args.measured is None:
        parser.error("--measured is needed for a table")
    runs = read_runs(args.measured)
    cases = [(case.name, variant) for case in select(args.names) for variant in VARIANTS]
    chosen = [case for case in cases if case in runs]
    if args.frozen:
        known = {(row["case"], row["variant"]): row for row in map(json.loads, args.frozen.read_text().splitlines())}
        rows = [known[case] for case in chosen]
    else:
        rows = predict_all(chosen, args.gpu)
    print(*table(rows, runs, read_steps(args.timed), args.gpu), sep="\n")
    if args.blind:
        frozen = [json.loads(line) for line in args.blind.read_text().splitlines()]
        print(*blind_table(frozen, last(read_runs([args.blind_measured]))), sep="\n")


if __name__ == "__main__":
    main()
