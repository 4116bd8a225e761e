"""`trainfit sweep TARGET --batch 1,2 --gpu h100-80gb,h200`: the best plan for each configuration, the fastest first."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trainfit import presets, progress
from trainfit.cli.arguments import ANY_TARGET, add_output, positive

if TYPE_CHECKING:
    from trainfit.sweeps import SweepResult

DOES_NOT_FIT = 3
T = TypeVar("T")


def add_parser(verbs: Any) -> None:
    """Add the verb and its options."""
    parser = verbs.add_parser(
        "sweep",
        help="plan many configurations, and rank them by tokens per second per GPU",
        description="Find the best plan for each combination of the values given, and rank them by tokens per second "
        "per GPU. Values are separated by commas.",
        epilog=f"presets: {', '.join(presets.PRESETS)}",
    )
    parser.add_argument("target", metavar="TARGET", help=ANY_TARGET)
    parser.add_argument(
        "--batch", type=several(positive), metavar="N,N", help="batch sizes, of a target that takes them"
    )
    parser.add_argument(
        "--seq", type=several(positive), metavar="N,N", help="sequence lengths, of a target that takes them"
    )
    parser.add_argument(
        "--gpu",
        type=several(str),
        default=["h200"],
        metavar="GPU,GPU",
        help="GPUs that 'trainfit gpus' lists (default: h200)",
    )
    parser.add_argument(
        "--world-size", type=several(positive), metavar="N,N", help="GPUs to shard over with FSDP2; 1 for no sharding"
    )
    parser.add_argument(
        "--budget",
        type=several(str),
        default=["auto"],
        metavar="SIZE,SIZE",
        help="72GiB, 80GB, 90%% of the GPU, min, or auto: the GPU less the driver's context and 2%% (default: auto)",
    )
    parser.add_argument(
        "--memory", choices=("reserved", "allocated"), default="reserved", help="the peak that the budgets bind"
    )
    parser.add_argument("--allocator", choices=("classic", "expandable"), default="classic", help="kind of segments")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="append results as they come; what the file has is not repeated",
    )
    parser.add_argument("--report", metavar="FILE", type=Path, help="write an HTML page with the table")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--workers", type=positive, metavar="N", help="processes on this machine (default: all cores)")
    where.add_argument("--ray", metavar="ADDRESS", help="run on this Ray cluster, or on the one that auto finds")
    add_output(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Sweep the target and print the ranking."""
    with contextlib.redirect_stdout(sys.stderr), progress.bar(args.target):
        results = _sweep(args)
    if args.json:
        print(json.dumps({"results": [result.to_json_dict() for result in results]}, indent=2))
    else:
        _print(results)
    written = [path for path in (args.output, args.report) if path is not None]
    if args.report is not None:
        from trainfit.report import html, sweep_page

        args.report.write_text(html.render_sweep(sweep_page.sweep_page(results, args.target, args.command)))
    for path in written:
        print(f"Wrote {path}", file=sys.stderr if args.json else sys.stdout)
    if any(result.fits for result in results):
        return 0
    return 1 if all(result.status == "failed" for result in results) else DOES_NOT_FIT


def _sweep(args: argparse.Namespace) -> list[SweepResult]:
    import trainfit
    from trainfit.sweeps import configurations, ranked
    from trainfit.targets import resolve

    axes = {name: getattr(args, name) for name in ("batch", "seq", "world_size", "gpu", "budget")}
    grid = {name: values for name, values in axes.items() if values is not None}
    configurations(grid)
    # A target that leads to no step is an error of the command, not of each configuration.
    resolve(args.target, **{name: grid[name][0] for name in ("batch", "seq") if name in grid})
    results = trainfit.sweep(
        functools.partial(resolve, args.target),
        grid,
        output=args.output,
        workers=args.workers,
        ray=args.ray,
        memory=args.memory,
        allocator=args.allocator,
    )
    return ranked(results)


def _print(results: list[SweepResult]) -> None:
    from rich.console import Console

    from trainfit.report import sweep_text, text

    view = sweep_text.sweep_view(results)
    if sys.stdout.isatty():
        Console().print(view)
    else:
        print(text.render(view))


def several(one: Callable[[str], T]) -> Callable[[str], list[T]]:
    """Values separated by commas."""

    def parse(text: str) -> list[T]:
        parts = text.split(",")
        if not all(parts):
            raise argparse.ArgumentTypeError(f"{text!r} has an empty value")
        return [one(part) for part in parts]

    return parse
