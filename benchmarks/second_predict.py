"""Predicts memory and time of cases, and writes both down before anything is measured.

    python benchmarks/second_predict.py --out benchmarks/results/second_predicted_h200.jsonl    # the second blind test
    python benchmarks/second_predict.py --out again.jsonl cvt_amp dit_amp:every                 # these only
    python benchmarks/second_predict.py --out own.jsonl --profile own.json cvt_amp              # see own_host.py

One row per case and variant: peaks of both allocators, the time that the GPU is busy (by profile and by datasheet), the
step with its range, and what bounds it. Each is predicted in a process of its own, forked from one that has imported
everything; one that fails is a row with its error. Memory is that of the torch version which will measure, 2.11,
whatever version traces.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import forks
from measure_time import Job, jobs_of
from predict_time import predicted_times
from trainfit.cost import load_profile
from trainfit.gpus.catalogue import find_gpu
from trainfit.gpus.hidden import hidden_memory
from trainfit.simulate import simulate_memory
from trainfit.trace import trace_step
from zoo import Case, make_step, select
from zoo.second import second_cases

MEASURED_WITH = "2.11.0+cu130"
LIMIT_S = 300.0


def predict(profile_path: Path | None, job: Job) -> dict[str, Any]:
    name, variant = job
    return predict_case(select([name])[0], variant, profile_path)


def predict_case(case: Case, variant: str, profile_path: Path | None = None) -> dict[str, Any]:
    gpu = find_gpu("h200")
    profile = None if profile_path is None else load_profile(profile_path)
    trace = trace_step(make_step(case, variant == "every layer"), gpu, torch_version=MEASURED_WITH)
    hidden = hidden_memory(gpu, MEASURED_WITH)
    classic, expandable = (simulate_memory(trace, hidden, allocator) for allocator in ("classic", "expandable"))
    return {
        "case": case.name,
        "variant": variant,
        "torch": trace.torch_version,
        "classic": [classic.peak_allocated_bytes, classic.peak_reserved_bytes],
        "expandable": [expandable.peak_allocated_bytes, expandable.peak_reserved_bytes],
        **predicted_times(trace, gpu, profile),
    }


def summary(row: dict[str, Any]) -> str:
    head = f"{row['case']:22} {row['variant']:11}"
    if "error" in row:
        return f"{head} {row['error'].splitlines()[-1][:200]}"
    allocated, reserved = (value / 2**20 for value in row["classic"])
    bound = ("launches" if row["launch_bound"] else "kernels") + ("" if row["launch_bound_sure"] else ", perhaps")
    return (
        f"{head} {allocated:9.1f} MiB {reserved:8.0f} reserved, busy {row['busy_ms']:6.1f} ms,"
        f" step {row['step_ms']:6.1f} ms, {bound}, roofline {row['roofline_share']:.1%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="NAME:plain and NAME:every are one variant of a case")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--profile", type=Path, help="another one than the shipped")
    args = parser.parse_args()
    rows = []
    jobs = jobs_of(args.names or [case.name for case in second_cases()])
    for (name, variant), found in forks.run(jobs, partial(predict, args.profile), width=1, timeout_s=LIMIT_S):
        rows.append({"case": name, "variant": variant} | found)
        print(summary(rows[-1]), flush=True)
    if args.out:
        args.out.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
