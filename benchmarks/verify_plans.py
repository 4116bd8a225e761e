"""Plans at five budgets per case, made without the GPU and then run on it: does the GPU do what the plan said?

    python benchmarks/verify_plans.py --out OUT                    # llama1b gpt2m bertl
    python benchmarks/verify_plans.py --out OUT llama1b --memory allocated
    python benchmarks/verify_plans.py --out OUT --plans-only       # no GPU: the tiny zoo, plans only

Budgets lie between the smallest that works and the peak of recomputing nothing. Each plan is written to OUT, and run
in a process of its own (trainfit.verify), so that its peaks contain nothing of another. OUT/verified.jsonl has one line
per plan: the budget, and all that was measured beside all that was predicted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trainfit
from zoo import Case, make_step, select

SHARES = (0.0, 0.2, 0.45, 0.7, 0.95)
GIB = 2**30


def plans(case: Case, args: argparse.Namespace) -> Iterator[trainfit.Plan]:
    """The case's plans, from the smallest budget up."""
    step = make_step(case)
    options = {"gpu": args.gpu, "memory": args.memory, "allocator": args.allocator}
    smallest = trainfit.plan(step, budget="min", **options)
    low_bytes, high_bytes = smallest.budget_bytes, smallest.rows[0].peak_bytes
    yield smallest
    for share in SHARES[1:]:
        budget_bytes = int(low_bytes + share * (high_bytes - low_bytes))
        yield trainfit.plan(step, budget=f"{budget_bytes}B", **options)


def run_child(path: Path, case: Case, timeout_s: float, allocator: str) -> dict[str, Any]:
    """Verify one plan in a fresh process."""
    command = [sys.executable, __file__, "--child", str(path), "--allocator", allocator, case.name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"no result after {timeout_s:.0f} s"}
    lines = done.stdout.splitlines()
    return json.loads(lines[-1]) if done.returncode == 0 and lines else {"error": done.stderr[-600:]}


def child(path: Path, case: Case, allocator: str) -> None:
    import os

    if allocator == "expandable":
        os.environ["PYTORCH_ALLOC_CONF"] = os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    verification = trainfit.verify(trainfit.Plan.load(path), make_step(case))
    print(json.dumps(verification.to_json_dict()))


def line(plan: trainfit.Plan, row: dict[str, Any]) -> str:
    predicted = plan.predicted.peak_reserved_bytes if plan.memory == "reserved" else plan.predicted.peak_allocated_bytes
    head = f"{plan.budget_bytes / GIB:9.3f} {predicted / GIB:9.3f} {plan.predicted_step_ns / 1e6:9.1f}"
    if not row:
        return head
    if "error" in row:
        return f"{head}  {' '.join(row['error'].split())[-200:]}"
    bound = row["reserved_bytes"] if plan.memory == "reserved" else row["allocated_bytes"]
    errors = [
        row["allocated_bytes"] / row["predicted_allocated_bytes"] - 1,
        row["reserved_bytes"] / row["predicted_reserved_bytes"] - 1,
        row["step_ns"] / row["predicted_step_ns"] - 1,
    ]
    gradients = row["gradients"] and f"{row['gradients']['equal']}/{row['gradients']['count']}"
    failed = ", ".join(check["name"] for check in row["checks"] if not check["passed"]) or "all passed"
    return (
        f"{head} {bound / GIB:9.3f} {bound / plan.budget_bytes:7.1%} {row['step_ns'] / 1e6:8.1f}"
        f" {errors[0]:+9.3%} {errors[1]:+9.2%} {errors[2]:+7.1%} {gradients!s:>9}  {failed}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=["llama1b", "gpt2m", "bertl"])
    parser.add_argument("--out", type=Path, help="folder for the plans and verified.jsonl")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--memory", choices=["reserved", "allocated"], default="reserved")
    parser.add_argument("--allocator", choices=["classic", "expandable"], default="classic")
    parser.add_argument("--timeout-s", type=float, default=180, help="for one plan on the GPU")
    parser.add_argument("--plans-only", action="store_true")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child, select(args.cases)[0], args.allocator)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    for case in select(args.cases, tiny=args.plans_only):
        print(
            f"{case.name}, {args.memory}, {args.allocator}\n   budget predicted      ms  measured    used       ms"
            " allocated  reserved    time gradients"
        )
        for index, plan in enumerate(plans(case, args)):
            path = args.out / f"{case.name}_{args.memory}_{args.allocator}_{index}.json"
            plan.save(path)
            start_s = time.monotonic()
            row = {} if args.plans_only else run_child(path, case, args.timeout_s, args.allocator)
            print(f"{line(plan, row)}  {time.monotonic() - start_s:.0f} s", flush=True)
            with (args.out / "verified.jsonl").open("a") as file:
                file.write(json.dumps({"case": case.name, "plan": path.name, **row}) + "\n")


if __name__ == "__main__":
    main()
