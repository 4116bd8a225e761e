"""`trainfit report PLAN [TARGET] -o FILE`: a plan's file as an HTML page; with the target, its pictures too."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import Any

from trainfit import progress
from trainfit.cli.arguments import add_ranks, positive, spread
from trainfit.cli.exports import add_exports, write_exports


def add_parser(verbs: Any) -> None:
    """Add the verb and its options."""
    parser = verbs.add_parser(
        "report",
        help="write a plan as an HTML page",
        description="Write a plan as one HTML page that works offline. The memory timeline, the frontier and the "
        "modules are on it if the target is named that the plan was made for.",
    )
    parser.add_argument("plan", metavar="PLAN", type=Path, help="a file that 'trainfit plan -o' wrote")
    parser.add_argument("target", metavar="TARGET", nargs="?", help="the target that the plan was made for")
    parser.add_argument("--batch", type=positive, metavar="N", help="batch size, of a target that takes it")
    parser.add_argument("--seq", type=positive, metavar="N", help="sequence length, of a target that takes it")
    add_ranks(parser)
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="the page to write")
    parser.add_argument(
        "--measured", metavar="FILE", type=Path, help="what 'trainfit verify --json' printed, to show beside the plan"
    )
    add_exports(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="show the traceback of an error")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the page."""
    import trainfit
    from trainfit import _report
    from trainfit.report import html

    plan = trainfit.Plan.load(args.plan)
    measured = None if args.measured is None else _report.load_verification(args.measured)
    with contextlib.redirect_stdout(sys.stderr), progress.bar(str(args.plan)):
        planner = None
        if args.target is not None:
            from trainfit.targets import resolve

            step = spread(resolve(args.target, batch=args.batch, seq=args.seq), args)
            planner = _report.planner_for(plan, step)
        page = _report.plan_page(plan, planner, measured=measured, command=args.command)
        args.output.write_text(html.render(page), encoding="utf-8")
        written = [args.output]
        written += write_exports(args, lambda: _report.plan_profile(plan, planner))
    for path in written:
        print(f"Wrote {path}")
    return 0
