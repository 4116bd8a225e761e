"""`trainfit gpus`: the catalogue."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import Any

from trainfit.cli.arguments import add_output


def add_parser(verbs: Any) -> None:
    """Add the verb and its options."""
    parser = verbs.add_parser(
        "gpus", help="list the GPUs that can be estimated for", description="List the GPUs that can be estimated for."
    )
    add_output(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the catalogue."""
    from rich.console import Console

    from trainfit.gpus.catalogue import GPUS
    from trainfit.report import text

    if args.json:
        print(json.dumps({"gpus": [dataclasses.asdict(gpu) for gpu in GPUS]}, indent=2))
    elif sys.stdout.isatty():
        Console().print(text.gpus_view(GPUS))
    else:
        print(text.render(text.gpus_view(GPUS)))
    return 0
