"""`trainfit gpus`: the catalogue."""

from __future__ import annotations

import argparse
import sys
from typing import Any


def add_parser(verbs: Any) -> None:
    """Add the verb; it has no options."""
    parser = verbs.add_parser(
        "gpus", help="list the GPUs that can be estimated for", description="List the GPUs that can be estimated for."
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the catalogue."""
    from rich.console import Console

    from trainfit.gpus.catalogue import GPUS
    from trainfit.report import text

    if sys.stdout.isatty():
        Console().print(text.gpus_view(GPUS))
    else:
        print(text.render(text.gpus_view(GPUS)))
    return 0
