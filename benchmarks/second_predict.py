"""Predicts memory and time of the cases of the second blind test, and writes both down before anything is measured.

    python benchmarks/second_predict.py --out benchmarks/results/second_predicted_h200.jsonl
    python benchmarks/second_predict.py --out again.jsonl cvt_amp dit_amp       # these only

One row per case and variant: peaks of both allocators, the time that the GPU is busy (by profile and by datasheet), the
step with its range, and what bounds it. Each is predicted in a process of its own; one that fails is a row with its
error. Memory is that of the torch version which will measure, 2.11, whatever version traces.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

VARIANTS = ("plain", "every layer")
MEASURED_WITH = "2.11.0+cu130"


def predict(name: str, variant: str, gpu_name: str) -> dict[str, Any]:
    from predict_time import predicted_times
    from trainfit.gpus.catalogue import find_gpu
    from trainfit.gpus.hidden import hidden_memory
    from trainfit.simulate import simulate_memory
    from trainfit.trace import trace_step
    from zoo import make_step, select

    gpu = find_gpu(gpu_name)
    trace = trace_step(make_step(select([name])[0], variant == "every layer"), gpu, torch_version=MEASURED_WITH)
    hidden = hidden_memory(gpu, MEASURED_WITH)
    classic, expandable = (simulate_memory(trace, hidden, allocator) for allocator in ("classic", "expandable"))
    return {
        "case": name,
        "variant": variant,
        "torch": trace.torch_version,
        "classic": [classic.peak_allocated_bytes, classic.peak_reserved_bytes],
        "expandable": [expandable.peak_allocated_bytes, expandable.peak_reserved_bytes],
        **predicted_times(trace, gpu),
    }


def predict_in_a_fresh_process(name: str, variant: str, gpu_name: str) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", __file__, name, "--variant", variant, "--gpu", gpu_name]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        return {"case": name, "variant": variant, "error": result.stderr.strip()[-600:]}
    row: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return row


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
    from zoo import select
    from zoo_second import second_cases

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="cases; all of the second blind test when none is given")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--variant", choices=VARIANTS, help="print one prediction as JSON and nothing else")
    args = parser.parse_args()
    if args.variant:
        print(json.dumps(predict(args.names[0], args.variant, args.gpu)))
        return
    cases = select(args.names) if args.names else second_cases()
    rows = []
    for case in cases:
        for variant in VARIANTS if case.checkpoint else VARIANTS[:1]:
            rows.append(predict_in_a_fresh_process(case.name, variant, args.gpu))
            print(summary(rows[-1]), flush=True)
    if args.out:
        args.out.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
