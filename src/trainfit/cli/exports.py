"""The files that several verbs write beside what they print: the page, and the step for other tools' viewers."""

from __future__ import annotations

import argparse
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainfit.records import StepProfile


def add_exports(parser: argparse.ArgumentParser) -> None:
    """--perfetto and --memory-viz."""
    parser.add_argument(
        "--perfetto", metavar="FILE", type=Path, help="write the step as a Chrome trace, for ui.perfetto.dev"
    )
    parser.add_argument(
        "--memory-viz",
        metavar="FILE",
        type=Path,
        help="write the predicted allocations as a memory snapshot (a pickle), for pytorch.org/memory_viz",
    )


def write_exports(args: argparse.Namespace, profile: Callable[[], StepProfile]) -> list[Path]:
    """Write what was asked for; `profile` is called if anything was."""
    written: list[Path] = []
    if args.perfetto is None and args.memory_viz is None:
        return written
    step = profile()
    if args.perfetto is not None:
        from trainfit.report.perfetto import chrome_trace

        args.perfetto.write_text(json.dumps(chrome_trace(step), separators=(",", ":")))
        written.append(args.perfetto)
    if args.memory_viz is not None:
        from trainfit.report.memory_viz import PICKLE_PROTOCOL, snapshot

        args.memory_viz.write_bytes(pickle.dumps(snapshot(step), protocol=PICKLE_PROTOCOL))
        written.append(args.memory_viz)
    return written
