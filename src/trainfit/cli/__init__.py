"""The command line: `main(argv) -> exit code`. One file per verb; this one has the parser, and prints every error.

Results go to stdout, everything else to stderr. Nothing here imports torch before a verb runs, so `--help` is quick.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import traceback
from collections.abc import Sequence

from trainfit import __version__
from trainfit.cli import calibrate, doctor, estimate, gpus, plan, report, show, sweep, verify
from trainfit.cli.loading import let_be
from trainfit.cli.parser import WELCOME, Parser
from trainfit.errors import TrainfitError

_EXAMPLES = """\
examples:
  trainfit estimate llama3-8b --batch 1 --seq 8192 --gpu h100-80gb
  trainfit estimate train.py:make_step --gpu a100-80gb --budget 90%
  trainfit estimate hf:path/config.json --batch 4 --seq 2048 --json
  trainfit plan llama3-8b --batch 2 --seq 8192 --gpu h100-80gb --budget 72GiB -o plan.json
  trainfit show plan.json
  trainfit report plan.json llama3-8b --batch 2 --seq 8192 -o plan.html
  trainfit verify plan.json train.py:make_step
  trainfit sweep llama3-8b --batch 1,2,4,8 --gpu h100-80gb,h200 --world-size 8,64 -o sweep.jsonl
  trainfit gpus

exit codes: 0 fine, 1 failed, 2 usage, 3 does not fit, 4 not verified, 130 interrupted
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; a verb sets `run`, which takes the arguments and returns the exit code."""
    parser = Parser(
        prog="trainfit",
        description="How much GPU memory a PyTorch training step needs, with no GPU.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-V", "--version", action="version", version=f"trainfit {__version__}")
    parser.set_defaults(verbose=False)
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND")
    estimate.add_parser(verbs)
    plan.add_parser(verbs)
    show.add_parser(verbs)
    report.add_parser(verbs)
    verify.add_parser(verbs)
    sweep.add_parser(verbs)
    gpus.add_parser(verbs)
    calibrate.add_parser(verbs)
    doctor.add_parser(verbs)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the only place that turns errors into text and exit codes."""
    parser = build_parser()
    args = parser.parse_args(argv)
    args.command = shlex.join(["trainfit", *(sys.argv[1:] if argv is None else argv)])
    if "run" not in args:
        print(WELCOME, end="")
        return 0
    try:
        code: int = args.run(args)
        return code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read our output has seen enough: trainfit ... | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it flushes
        return 1
    except Exception as error:
        if args.verbose:
            traceback.print_exc()
        return _report(error)


def command() -> int:
    """`main` as all that a process does."""
    code = main()
    let_be()
    return code


def _report(error: Exception) -> int:
    if isinstance(error, TrainfitError):
        message, hint, code = error.message, error.hint, error.exit_code
    else:
        message = f"trainfit itself failed: {type(error).__name__}: {error}"
        hint, code = "this is a bug; please report it with the traceback that -v shows", 1
    print(f"error: {_one_line(message)}\nhint: {_one_line(hint)}", file=sys.stderr)
    return code


def _one_line(text: str) -> str:
    return " ".join(text.split())
