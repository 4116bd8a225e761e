"""`trainfit show FILE`: a plan, or a frontier of plans, as text; with --diff, how another plan differs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from trainfit.errors import BadPlan


def add_parser(verbs: Any) -> None:
    """Add the verb and its options."""
    parser = verbs.add_parser("show", help="print a plan's file", description="Print a plan's file as text.")
    parser.add_argument("plan", metavar="FILE", type=Path, help="a file that 'trainfit plan -o' wrote")
    parser.add_argument("--diff", metavar="OTHER", type=Path, help="another plan: print what it does differently")
    parser.add_argument("--frontier", action="store_true", help="the file is one that 'trainfit plan --frontier' wrote")
    parser.add_argument("-v", "--verbose", action="store_true", help="show the traceback of an error")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print what the file says."""
    from trainfit._plan_record import Plan
    from trainfit.report import plan_text, text

    if args.frontier:
        plans = _load_frontier(args.plan)
        print(text.render(plan_text.frontier_view(plans)))
    elif args.diff:
        print(Plan.load(args.plan).diff(Plan.load(args.diff)) or "the plans are equal")
    else:
        print(Plan.load(args.plan))
    return 0


def _load_frontier(path: Path) -> list[Any]:
    from trainfit._plan_record import Plan

    try:
        items = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadPlan(f"{path} cannot be read: {error}", hint="name a file that plan --frontier wrote") from error
    if not isinstance(items, list) or not items:
        raise BadPlan(f"{path} is no list of plans", hint="leave --frontier out for a single plan")
    return [Plan.from_json(json.dumps(item), name=f"{path}[{index}]") for index, item in enumerate(items)]
