"""`trainfit estimate TARGET`: whether a training step fits a GPU, what its peak is made of, and how long it takes."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
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
from trainfit.gpus.catalogue import find_gpu
from trainfit.units import parse_bytes

if TYPE_CHECKING:
    from trainfit._estimate import Estimate

DOES_NOT_FIT = 3


def add_parser(verbs: Any) -> None:
    """Add the verb and its options."""
    parser = verbs.add_parser(
        "estimate",
        help="predict the peak memory and the time of a training step, and whether it fits",
        description="Predict the peak memory and the time of one training step on a GPU that need not be there.",
        epilog=f"presets: {', '.join(presets.PRESETS)}",
    )
    add_target(parser, ANY_TARGET)
    add_gpu(parser)
    add_ranks(parser)
    parser.add_argument(
        "--budget", metavar="SIZE", help="72GiB, 80GB or 90%% of the GPU (default: all of it less the driver's context)"
    )
    add_profile(parser)
    parser.add_argument("--report", metavar="FILE", type=Path, help="write an HTML page with everything on it")
    add_exports(parser)
    add_output(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Estimate the target and print the result."""
    # What can be wrong without torch is said before torch is imported, which takes seconds.
    gpu = find_gpu(args.gpu)
    if args.budget is not None:
        parse_bytes(args.budget, of_bytes=gpu.memory_bytes)
    check_profile(gpu, args.profile)
    # The user's code may print; stdout is for the result.
    with contextlib.redirect_stdout(sys.stderr), progress.bar(f"{args.target} on a ghost {gpu.name}"):
        result = _estimate(args)
        written = _write(args, result)
    if args.json:
        print(json.dumps(result.to_json_dict(), indent=2))
    else:
        _print(result)
    for path in written:
        print(f"Wrote {path}", file=sys.stderr if args.json else sys.stdout)
    return 0 if result.fits() else DOES_NOT_FIT


def _estimate(args: argparse.Namespace) -> Estimate:
    from trainfit.targets import resolve

    with loading():
        step = spread(resolve(args.target, batch=args.batch, seq=args.seq), args)
        import trainfit.trace
    return trainfit.estimate(step, args.gpu, allocator=args.allocator, budget=args.budget, profile=args.profile)


def _write(args: argparse.Namespace, result: Estimate) -> list[Path]:
    from trainfit._profile import profile_step

    written = []
    if args.report is not None:
        result.report(args.report, command=args.command)
        written.append(args.report)
    source = result.source
    return written + write_exports(args, lambda: profile_step(source.trace, source.pricing, result.allocator))


def _print(result: Estimate) -> None:
    from rich.console import Console

    from trainfit.report import text

    if sys.stdout.isatty():
        Console().print(text.estimate_view(result))
    else:
        print(result)
