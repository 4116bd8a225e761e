"""Plans of the presets at the smallest feasible budget and ten between it and nothing recomputed; needs no GPU.

    python benchmarks/ten_budgets.py [--gpu h200] [--memory allocated] [--allocator expandable] [preset ...]

Each budget is searched for anew, as a call of its own would. Peaks and times are those of the planned trace as it is
written; one plan per preset, at the fifth budget, is also applied to the ghost model and traced, and the two peaks are
compared. `time up` says whether a larger budget ever took more time, `over` whether a peak was above its budget.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator

from trainfit import presets
from trainfit._plan import Planner, trace_for_plans
from trainfit.gpus.catalogue import find_gpu
from trainfit.records import Category
from trainfit.solve import Choice, Found, Search, Verdict

BUDGETS = 10
GIB = 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("presets", nargs="*", default=[*presets.PRESETS], metavar="preset")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--memory", choices=("allocated", "reserved"), action="append")
    parser.add_argument("--allocator", choices=("classic", "expandable"), default="classic")
    args = parser.parse_args()
    print(
        "| preset | memory | budgets GiB | gap % at the first | gap % at the others | of these, as allocated "
        "| used % | overhead % | time up | over | traced |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for name in args.presets:
        step, gpu = presets.build(name), find_gpu(args.gpu)
        traced = trace_for_plans(step, gpu)
        for memory in args.memory or ("allocated", "reserved"):
            start = time.perf_counter()
            planner = Planner(step, gpu, memory, args.allocator, traced=traced)
            print(f"| {name} | {memory} | {row(planner)} |", flush=True)
            print(f"{name} {memory}: {time.perf_counter() - start:.0f} s", file=sys.stderr)


def search(planner: Planner) -> Search:
    """A search of its own that knows nothing of other budgets."""
    estimate = planner.base[1]
    return Search(
        planner.problem,
        lambda choice: planner.written(planner.ways(choice)),
        planner.sketch,
        planner.verdict(estimate),
        hidden_bytes=estimate.breakdown_bytes[Category.WORKSPACES],
        is_modelled=planner.memory == "allocated",
        slack=planner.slack if planner.memory == "allocated" else None,
    )


def plans(planner: Planner) -> Iterator[tuple[int, Found]]:
    """At the smallest feasible budget, and then at ten between it and that of recomputing nothing."""
    low, high = search(planner).smallest().minimum_bytes, planner.verdict(planner.base[1]).peak_bytes
    for number in range(BUDGETS + 1):
        budget_bytes = low + (high - low) * number // (BUDGETS + 1)
        found = search(planner).within(budget_bytes)
        assert isinstance(found, Found)
        yield budget_bytes, found


def row(planner: Planner) -> str:
    budgets, found = zip(*plans(planner), strict=True)
    base_ns = planner.verdict(planner.base[1]).step_ns
    times = [one.verdict.step_ns for one in found]
    peaks = [one.verdict.peak_bytes for one in found]
    columns = (
        f"{budgets[0] / GIB:.2f} to {budgets[-1] / GIB:.2f}",
        f"{100 * found[0].gap:.2f}",
        " ".join(f"{100 * one.gap:.2f}" for one in found[1:]),
        " ".join(f"{100 * one.gap_as_allocated:.2f}" for one in found[1:]),
        " ".join(f"{100 * peak / budget:.1f}" for peak, budget in zip(peaks, budgets, strict=True)),
        " ".join(f"{100 * (ns / base_ns - 1):.2f}" for ns in times),
        "never" if times == sorted(times, reverse=True) else "yes",
        "never" if all(peak <= budget for peak, budget in zip(peaks, budgets, strict=True)) else "yes",
        compared(planner, found[BUDGETS // 2].choice, found[BUDGETS // 2].verdict),
    )
    return " | ".join(columns)


def compared(planner: Planner, choice: Choice, written: Verdict) -> str:
    """The peak of the traced plan beside that of the written one."""
    if not any(choice.options):
        return "nothing to recompute"
    difference = planner.judge(choice).peak_bytes - written.peak_bytes
    return f"{difference:+d} B" if difference else "equal"


if __name__ == "__main__":
    main()
