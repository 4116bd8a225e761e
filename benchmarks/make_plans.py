"""Makes the plans that are run on the GPU, without it; with the torch version that the GPU's machine has.

    python benchmarks/make_plans.py --out DIR                          # llama1b gpt2m bertl
    python benchmarks/make_plans.py --out DIR gpt2m --only budgets
    python benchmarks/make_plans.py --out DIR --tiny                   # two layers: shows that it works

Three kinds, a file each:
  CASE_budget_N.json         five budgets from the smallest feasible to almost nothing recomputed (verify_plans.py)
  CASE_peak_NAME.json        at the allocated peak of what people do without a plan, simulated (curve.py)
  CASE_deterministic.json    a middling budget with the kernels of torch.use_deterministic_algorithms (same_losses.py)
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

import trainfit
from recompute import KEPT_OPS, checkpointed, selective
from zoo import Case, make_step, select

SHARES = (0.2, 0.45, 0.7, 0.95)
"""Of the way from the smallest budget to the peak of recomputing nothing; the smallest comes before them."""
KINDS = ("budgets", "peaks", "deterministic")
BASELINES: dict[str, Callable[[nn.Module], None]] = {
    "every_layer": lambda model: checkpointed(model, 1),
    "every_second_layer": lambda model: checkpointed(model, 2),
    **{name.replace(",", "").replace(" ", "_"): partial(selective, is_kept=ops) for name, ops in KEPT_OPS.items()},
}
Named = Iterator[tuple[str, trainfit.Plan]]


def at_budgets(case: Case, gpu: str, memory: str, allocator: str) -> Named:
    step = make_step(case)
    options = {"gpu": gpu, "memory": memory, "allocator": allocator}
    smallest = trainfit.plan(step, budget="min", **options)
    yield f"{case.name}_budget_0", smallest
    estimate = trainfit.estimate(step, gpu=gpu, allocator=allocator)
    highest = estimate.peak_reserved_bytes if memory == "reserved" else estimate.peak_allocated_bytes
    for index, share in enumerate(SHARES, 1):
        budget_bytes = int(smallest.budget_bytes + share * (highest - smallest.budget_bytes))
        yield f"{case.name}_budget_{index}", trainfit.plan(step, budget=f"{budget_bytes}B", **options)


def at_peaks(case: Case, gpu: str, allocator: str) -> Named:
    step = make_step(case)
    for name, change in BASELINES.items():

        def build(change: Callable[[nn.Module], None] = change) -> nn.Module:
            model = case.module()
            change(model)
            return model

        peak_bytes = trainfit.estimate(replace(step, model=build), gpu=gpu, allocator=allocator).peak_allocated_bytes
        plan = trainfit.plan(step, gpu=gpu, budget=f"{peak_bytes}B", memory="allocated", allocator=allocator)
        yield f"{case.name}_peak_{name}", plan


def deterministic(case: Case, gpu: str, allocator: str) -> Named:
    torch.use_deterministic_algorithms(True)
    try:
        step = make_step(case)
        smallest = trainfit.plan(step, gpu=gpu, budget="min", memory="allocated", allocator=allocator)
        highest = trainfit.estimate(step, gpu=gpu, allocator=allocator).peak_allocated_bytes
        budget_bytes = (smallest.budget_bytes + highest) // 2
        plan = trainfit.plan(step, gpu=gpu, budget=f"{budget_bytes}B", memory="allocated", allocator=allocator)
        yield f"{case.name}_deterministic", plan
    finally:
        torch.use_deterministic_algorithms(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=["llama1b", "gpt2m", "bertl"])
    parser.add_argument("--out", type=Path, required=True, help="folder for the plans")
    parser.add_argument("--only", choices=KINDS, action="append", help="kinds of plans to make; default all")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--memory", choices=["reserved", "allocated"], default="reserved", help="what budgets bind")
    parser.add_argument("--allocator", choices=["classic", "expandable"], default="classic")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    kinds = args.only or KINDS
    start_s = time.monotonic()
    for case in select(args.cases, tiny=args.tiny):
        makers: dict[str, Callable[[], Named]] = {
            "budgets": lambda: at_budgets(case, args.gpu, args.memory, args.allocator),  # noqa: B023
            "peaks": lambda: at_peaks(case, args.gpu, args.allocator),  # noqa: B023
            "deterministic": lambda: deterministic(case, args.gpu, args.allocator),  # noqa: B023
        }
        for kind in kinds:
            for name, plan in makers[kind]():
                plan.save(args.out / f"{name}.json")
                predicted = plan.predicted
                peak = predicted.peak_reserved_bytes if plan.memory == "reserved" else predicted.peak_allocated_bytes
                used = f"{plan.budget_bytes / 2**30:8.3f} GiB  used {peak / plan.budget_bytes:6.1%}"
                print(
                    f"{name:32} {plan.memory:9} {used}"
                    f"  {plan.predicted_step_ns / 1e6:8.1f} ms  {time.monotonic() - start_s:6.1f} s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
