"""Arguments that several verbs share."""

from __future__ import annotations

import argparse


def add_target(parser: argparse.ArgumentParser, help_text: str) -> None:
    """TARGET, and the sizes of those targets whose batch is ours to make."""
    parser.add_argument("target", metavar="TARGET", help=help_text)
    parser.add_argument("--batch", type=positive, metavar="N", help="batch size of a preset or an hf: target")
    parser.add_argument("--seq", type=positive, metavar="N", help="sequence length of a preset or an hf: target")


def add_gpu(parser: argparse.ArgumentParser) -> None:
    """The GPU that need not be there, and its allocator."""
    parser.add_argument("--gpu", default="h200", help="a GPU that 'trainfit gpus' lists (default: %(default)s)")
    parser.add_argument("--allocator", choices=("classic", "expandable"), default="classic", help="kind of segments")


def add_output(parser: argparse.ArgumentParser) -> None:
    """What is printed."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("-v", "--verbose", action="store_true", help="show the traceback of an error")


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


ANY_TARGET = (
    "a preset, file.py:function or package.module:function that returns a trainfit.Step, "
    "or hf:path/config.json of a transformers model"
)
