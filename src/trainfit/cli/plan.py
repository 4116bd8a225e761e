"""`trainfit plan TARGET`: what each block keeps, so that the step fits a budget and is as fast as can be."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
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
from trainfit.errors import InfeasibleBudget, UsageError
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
        plan = _maximize(args) if args.maximize else _plan(args)
        points = _frontier(args) if args.frontier else ()
        written = _write(args, plan, points)
        room = _room(args, plan) if plan.status == "nothing to recompute" and not args.maximize else None
    print(plan.to_json() if args.json else plan, end="" if args.json else "\n")
    notes = [] if room is None else [f"the largest batch that fits with nothing recomputed is {room}"]
    for note in (*notes, *(f"Wrote {path}" for path in written)):
        print(note, file=sys.stderr if args.json else sys.stdout)
    return INTERRUPTED if plan.status == "interrupted" else 0


def _step(args: argparse.Namespace, seq: int | None = None) -> Step:
    from trainfit import targets

    return spread(targets.resolve(args.target, batch=args.batch, seq=seq or args.seq), args)


def _plan(args: argparse.Namespace, step: Step | None = None) -> Plan:
    import trainfit

    options = {"memory": args.memory, "allocator": args.allocator, "profile": args.profile}
    return trainfit.plan(step or _step(args), args.gpu, budget=args.budget, **options)


def _room(args: argparse.Namespace, plan: Plan) -> int | None:
    """The largest batch that fits as it is."""
    from trainfit._largest import largest_batch

    gpu = find_gpu(args.gpu)
    with contextlib.suppress(KeyboardInterrupt):  # the plan is there
        return largest_batch(_step(args), gpu, plan.budget_bytes, memory=args.memory, allocator=args.allocator)
    return None


def _frontier(args: argparse.Namespace) -> tuple[Plan, ...]:
    from trainfit._plan import plan_frontier

    return plan_frontier(_step(args), args.gpu, memory=args.memory, allocator=args.allocator, profile=args.profile)


def _maximize(args: argparse.Namespace) -> Plan:
    """The plan for the largest batch or sequence that fits, by doubling and then bisection."""
    from trainfit._largest import batch_size, with_batch_size

    step = _step(args) if args.maximize == "batch" else None

    def attempt(size: int) -> Plan | None:
        sized = with_batch_size(step, size) if step is not None else _step(args, seq=size)
        try:
            plan = _plan(args, sized)
        except InfeasibleBudget as error:
            print(f"{args.maximize} {size}: {error.message}", file=sys.stderr)
            return None
        print(f"{args.maximize} {size}: fits with {plan.status}", file=sys.stderr)
        return plan

    largest, plan = largest_that_fits(attempt, args.seq if step is None else batch_size(step))
    print(f"the largest {args.maximize} that fits is {largest}", file=sys.stderr)
    return plan


def largest_that_fits(attempt: Callable[[int], Plan | None], start: int | None) -> tuple[int, Plan]:
    """The largest size whose attempt gives a plan, and that plan; from `start` upwards if given, else from 1."""
    low, best = 0, None
    high = start or 1
    while high <= _LARGEST and (plan := attempt(high)) is not None:
        low, best, high = high, plan, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        plan = attempt(middle)
        if plan is None:
            high = middle
        else:
            low, best = middle, plan
    if best is None:
        raise UsageError("not even the size 1 fits", hint="raise --budget, or pass a larger --gpu")
    return low, best


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
