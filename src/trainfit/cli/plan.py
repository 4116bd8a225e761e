"""`trainfit plan TARGET`: what each block keeps, so that the step fits a budget and is as fast as can be."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainfit import presets, progress
from trainfit.cli.arguments import (
    ANY_TARGET,
    add_gpu,
    add_output,
    add_profile,
    add_ranks,
    add_target,
    check_profile,
    spread,
)
from trainfit.cli.exports import add_exports, write_exports
from trainfit.cli.loading import loading
from trainfit.errors import DataDependentShape, InfeasibleBudget, UsageError
from trainfit.gpus.catalogue import find_gpu
from trainfit.units import parse_bytes

if TYPE_CHECKING:
    from trainfit._plan_record import Plan
    from trainfit.records import StepProfile
    from trainfit.step import Step

INTERRUPTED = 130
_LARGEST = 2**20


def add_parser(verbs: Any) -> None:
    """Add the verb and its options."""
    parser = verbs.add_parser(
        "plan",
        help="find the fastest step that fits a budget",
        description="Find what each block keeps and recomputes, so that the step fits and is as fast as can be.",
        epilog=f"presets: {', '.join(presets.PRESETS)}",
    )
    add_target(parser, ANY_TARGET)
    add_gpu(parser)
    add_ranks(parser)
    parser.add_argument(
        "--budget",
        metavar="SIZE",
        help="72GiB, 80GB or 90%% of the GPU, or min for the smallest that works "
        "(default: the GPU less the driver's context and 2%%)",
    )
    parser.add_argument(
        "--memory", choices=("reserved", "allocated"), default="reserved", help="the peak that the budget binds"
    )
    add_profile(parser)
    parser.add_argument("--maximize", choices=("batch", "seq"), help="plan for the largest that fits")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write the plan")
    parser.add_argument("--frontier", metavar="FILE", type=Path, help="write plans for the whole range of budgets")
    parser.add_argument("--report", metavar="FILE", type=Path, help="write an HTML page with everything on it")
    add_exports(parser)
    add_output(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Plan the target and print the result."""
    # What can be wrong without torch is said before torch is imported, which takes seconds.
    gpu = find_gpu(args.gpu)
    if args.budget not in (None, "min"):
        parse_bytes(args.budget, of_bytes=gpu.memory_bytes)
    check_profile(gpu, args.profile)
    if args.maximize and (args.budget == "min" or args.frontier):
        raise UsageError("--maximize goes with one budget", hint="leave out --frontier, and --budget min")
    with contextlib.redirect_stdout(sys.stderr), progress.bar(f"{args.target} on a ghost {gpu.name}"):
        with loading():
            step = _step(args)
            importlib.import_module("trainfit._plan")
        plan = _maximize(args, step) if args.maximize else _plan(args, step)
        points = _frontier(plan) if args.frontier else ()
        written = _write(args, plan, points)
        room = _room(args, step, plan) if plan.status == "nothing to recompute" and not args.maximize else None
    print(plan.to_json() if args.json else plan, end="" if args.json else "\n")
    if points and not args.json:
        _print_frontier(points)
    notes = [] if room is None else [f"the largest batch that fits with nothing recomputed is {room}"]
    for note in (*notes, *(f"Wrote {path}" for path in written)):
        print(note, file=sys.stderr if args.json else sys.stdout)
    return INTERRUPTED if plan.status == "interrupted" else 0


def _step(args: argparse.Namespace, seq: int | None = None) -> Step:
    from trainfit import targets

    return spread(targets.resolve(args.target, batch=args.batch, seq=seq or args.seq), args)


def _plan(args: argparse.Namespace, step: Step) -> Plan:
    import trainfit

    options = {"memory": args.memory, "allocator": args.allocator, "profile": args.profile}
    return trainfit.plan(step, args.gpu, budget=args.budget, **options)


def _room(args: argparse.Namespace, step: Step, plan: Plan) -> int | None:
    """The largest batch that fits as it is; None where a larger one has too many values for the ghost to know."""
    from trainfit._largest import largest_batch

    gpu = find_gpu(args.gpu)
    with contextlib.suppress(KeyboardInterrupt, DataDependentShape):  # the plan is there
        return largest_batch(step, gpu, plan.budget_bytes, memory=args.memory, allocator=args.allocator)
    return None


def _frontier(plan: Plan) -> tuple[Plan, ...]:
    """By the planner that has just made the plan: the step is traced."""
    from trainfit._plan import frontier_of

    assert plan.planner is not None, "the plan was made here"
    return frontier_of(plan.planner)


def _maximize(args: argparse.Namespace, step: Step) -> Plan:
    """The plan for the largest batch or sequence that fits, by doubling and then bisection."""
    from trainfit._largest import batch_size, sequence_length, with_batch_size

    by_batch = args.maximize == "batch"

    def attempt(size: int) -> Plan | None:
        sized = with_batch_size(step, size) if by_batch else _step(args, seq=size)
        try:
            plan = _plan(args, sized)
        except InfeasibleBudget as error:
            print(f"{args.maximize} {size}: {error.message}", file=sys.stderr)
            return None
        print(f"{args.maximize} {size}: fits with {_effort(plan)}", file=sys.stderr)
        return plan

    largest, plan = largest_that_fits(attempt, batch_size(step) if by_batch else sequence_length(step))
    so_far = " so far" if plan.status == "interrupted" else ""
    print(f"the largest {args.maximize} that fits{so_far} is {largest}", file=sys.stderr)
    return plan


def largest_that_fits(attempt: Callable[[int], Plan | None], start: int | None) -> tuple[int, Plan]:
    """The largest size whose attempt gives a plan, and that plan; from `start` upwards if given, else from 1.

    After an interrupt it is the largest found so far, and the plan says so.
    """
    low, best = 0, None
    high, beyond = start or 1, None  # the next size to try; the smallest that does not fit
    try:
        while high <= _LARGEST and (beyond is None or beyond - low > 1):
            plan = attempt(high)
            if plan is None:
                beyond = high
            else:
                low, best = high, plan
                if plan.status == "interrupted":
                    break
            high = 2 * high if beyond is None else (low + beyond) // 2
    except KeyboardInterrupt:
        if best is None:
            raise
        best = best.interrupted()
    if best is None:
        raise UsageError("not even the size 1 fits", hint="raise --budget, or pass a larger --gpu")
    return low, best


def _effort(plan: Plan) -> str:
    """What a plan costs, in a few words."""
    if not plan.decisions:
        return "nothing to recompute"
    base_ns, plan_ns = plan.rows[0].step_ns, plan.rows[-1].step_ns
    return f"{100 * (plan_ns - base_ns) / max(1, base_ns):.1f}% more time"


def _print_frontier(points: Sequence[Plan]) -> None:
    from trainfit.report import plan_text, text

    print(f"\n{text.render(plan_text.frontier_view(points))}")


def _write(args: argparse.Namespace, plan: Plan, points: tuple[Plan, ...]) -> list[Path]:
    written = []
    if args.output:
        plan.save(args.output)
        written.append(args.output)
    if args.frontier:
        content = ",\n".join(point.to_json().rstrip() for point in points)
        args.frontier.write_text(f"[\n{content}\n]\n")
        written.append(args.frontier)
    if args.report:
        plan.report(args.report, command=args.command)
        written.append(args.report)
    return written + write_exports(args, lambda: _profile(plan))


def _profile(plan: Plan) -> StepProfile:
    from trainfit._report import plan_profile

    return plan_profile(plan, plan.planner)
