"""Plans that were made without the GPU (make_plans.py), run on it: does the GPU do what the plan said?

    python benchmarks/verify_plans.py --plans DIR --out verified.jsonl             # every CASE_budget_N.json in DIR
    python benchmarks/verify_plans.py --plans DIR --out verified.jsonl --only llama1b
    python benchmarks/verify_plans.py --table verified.jsonl                       # no GPU: the table again

Each plan is run by trainfit.verify in a process of its own, so that its peaks contain nothing of another: peaks with
the first step, time, gradients under deterministic settings. A line of the file is all that was measured beside all
that was predicted; it is written as soon as it is there.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import trainfit
from children import emit, run_all, wait_for_turn
from zoo import make_step, select

GIB = 2**30
HEADER = (
    "| plan | budget GiB | of | used | allocated, predicted | measured | | reserved, predicted | measured | "
    "| ms, predicted | measured | | eager GiB, ms | gradients equal | failed |"
)


def child(path: Path, tiny: bool) -> None:
    case = select([path.name.split("_")[0]], tiny=tiny)[0]
    plan = trainfit.Plan.load(path)
    wait_for_turn()
    verification = trainfit.verify(plan, make_step(case))
    emit(plan=path.name, **verification.to_json_dict())


def table(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    yield HEADER
    yield "|" + "---|" * 16
    for row in rows:
        if "error" in row:
            yield f"| {Path(row['case'][-1]).stem} | failed: {' '.join(row['error'].split())[-200:]} |"
        elif "plan" in row:
            yield line(row)


def line(row: dict[str, Any]) -> str:
    found, before = row["planned"], row["unplanned"]
    highest = max(found["allocated_bytes"], found["first_step_allocated_bytes"])
    bound = found["reserved_bytes"] if row["memory"] == "reserved" else highest
    errors = [found[name] / row[f"predicted_{name}"] - 1 for name in ("allocated_bytes", "reserved_bytes", "step_ns")]
    eager = f"{before['allocated_bytes'] / GIB:.3f}, {before['step_ns'] / 1e6:.1f}" if before else "does not fit"
    gradients = row["gradients"] and f"{row['gradients']['equal']} of {row['gradients']['count']}"
    if row["gradients"] and not row["deterministic"]:
        gradients += f" (eager's own {row['noise']['equal']})"
    cells = [
        row["plan"].removesuffix(".json"),
        f"{row['budget_bytes'] / GIB:.3f}",
        row["memory"],
        f"{bound / row['budget_bytes']:.2%}",
        *(str(row["predicted_allocated_bytes"]), str(found["allocated_bytes"]), f"{errors[0]:+.4%}"),
        *(str(row["predicted_reserved_bytes"]), str(found["reserved_bytes"]), f"{errors[1]:+.3%}"),
        *(f"{row['predicted_step_ns'] / 1e6:.1f}", f"{found['step_ns'] / 1e6:.1f}", f"{errors[2]:+.1%}"),
        eager,
        str(gradients),
        ", ".join(check["name"] for check in row["checks"] if not check["passed"]) or "nothing",
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=Path, help="folder with the plans")
    parser.add_argument("--out", type=Path, help="jsonl to append to")
    parser.add_argument("--only", action="append", help="cases; default: all")
    parser.add_argument("--timeout-s", type=float, default=60, help="for one plan")
    parser.add_argument("--expandable", action="store_true", help="for plans made with --allocator expandable")
    parser.add_argument("--tiny", action="store_true", help="for plans made with --tiny")
    parser.add_argument("--table", type=Path, help="print the table of a file")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child, args.tiny)
        return
    if args.table:
        print(*table(json.loads(text) for text in args.table.read_text().splitlines()), sep="\n")
        return
    plans = sorted(args.plans.glob("*_budget_*.json"), key=lambda path: path.stem.rsplit("_", 1)[::-1])
    plans = [path for path in plans if not args.only or path.name.split("_")[0] in args.only]
    cases = [[*(["--tiny"] if args.tiny else []), "--child", str(path)] for path in plans]
    for text in table(run_all(__file__, cases, args.out, args.timeout_s, args.expandable)):
        print(text, flush=True)


if __name__ == "__main__":
    main()
