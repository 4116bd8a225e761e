"""`trainfit verify PLAN TARGET`: run a plan on the GPU it is for; exit 4 if the GPU does not do what the plan said."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from trainfit import progress
from trainfit.cli.arguments import add_output, add_target

NOT_VERIFIED = 4


def add_parser(verbs: Any) -> None:
    """Add the verb and its options."""
    parser = verbs.add_parser(
        "verify",
        help="run a plan on a GPU: measured beside predicted",
        description="Run a plan on the GPU it is for: peaks, time and gradients, measured beside predicted.",
    )
    parser.add_argument("plan", metavar="PLAN", type=Path, help="a file that 'trainfit plan -o' wrote")
    add_target(parser, "the target that the plan was made for")
    add_output(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Verify the plan and print the table."""
    import trainfit
    from trainfit.targets import resolve

    with contextlib.redirect_stdout(sys.stderr), progress.bar(f"verifying {args.plan}"):
        plan = trainfit.Plan.load(args.plan)
        step = resolve(args.target, batch=args.batch, seq=args.seq)
        verification = trainfit.verify(plan, step)
    print(json.dumps(verification.to_json_dict()) if args.json else verification)
    return 0 if verification.passed else NOT_VERIFIED
