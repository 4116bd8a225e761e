"""`trainfit calibrate -o PROFILE`: measure the GPU of this machine, so that steps on it can be priced."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from trainfit import progress


def add_parser(verbs: Any) -> None:
    """Add the verb and its options."""
    parser = verbs.add_parser(
        "calibrate",
        help="measure this machine's GPU and write a profile for --profile",
        description="Measure the kernels of this machine's GPU and the CPU's cost of issuing them: about five minutes "
        "on 16 cores, more on fewer. What was measured is kept beside the profile, in FILE.partial: a run that was cut "
        "short can be repeated and goes on, and where nothing is missing the profile is written again, with no GPU. "
        "Started on several GPUs by 'torchrun --nproc-per-node 8 -m trainfit calibrate -o FILE', it times collectives "
        "among them, too.",
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the profile to write (JSON)")
    parser.add_argument("-v", "--verbose", action="store_true", help="show the traceback of an error")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure and write; progress goes to stderr."""
    from trainfit.calibrate import calibrate

    with progress.bar(str(args.output)):
        has_written = calibrate(args.output, lambda line: print(line, file=sys.stderr, flush=True))
    if has_written:
        print(f"Wrote {args.output}", file=sys.stderr)
    return 0
