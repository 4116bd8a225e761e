"""Arguments that several verbs share."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainfit.errors import UsageError

if TYPE_CHECKING:
    from trainfit.gpus.catalogue import Gpu
    from trainfit.step import Step


def add_target(parser: argparse.ArgumentParser, help_text: str) -> None:
    """TARGET, and the sizes of those targets whose batch is ours to make."""
    parser.add_argument("target", metavar="TARGET", help=help_text)
    parser.add_argument("--batch", type=positive, metavar="N", help="batch size, of a target that takes it")
    parser.add_argument("--seq", type=positive, metavar="N", help="sequence length, of a target that takes it")


def add_gpu(parser: argparse.ArgumentParser) -> None:
    """The GPU that need not be there, and its allocator."""
    parser.add_argument("--gpu", default="h200", help="a GPU that 'trainfit gpus' lists (default: %(default)s)")
    parser.add_argument("--allocator", choices=("classic", "expandable"), default="classic", help="kind of segments")


def add_profile(parser: argparse.ArgumentParser) -> None:
    """By what time is told."""
    parser.add_argument(
        "--profile", type=Path, metavar="FILE", help="what 'trainfit calibrate' measured of that GPU, to tell time by"
    )


def check_profile(gpu: Gpu, path: Path | None) -> None:
    """Say what is wrong with the profile before torch is imported."""
    if path is not None:
        from trainfit.cost import load_profile, pricing_for

        pricing_for(gpu, load_profile(path))


def add_ranks(parser: argparse.ArgumentParser) -> None:
    """How many GPUs the step is spread over, and what joins them."""
    ranks = parser.add_argument_group("several GPUs")
    ways = ranks.add_mutually_exclusive_group()
    ways.add_argument("--fsdp", type=positive, metavar="N", help="shard over N GPUs with FSDP2, every block a unit")
    ways.add_argument("--ddp", type=positive, metavar="N", help="replicate over N GPUs with DistributedDataParallel")
    ranks.add_argument("--gpus-per-node", type=positive, metavar="N", help="GPUs in a node (default: 8)")
    ranks.add_argument(
        "--intra-node-gbps", type=float, metavar="GB/S", help="what a GPU sends within its node (default: by its links)"
    )
    ranks.add_argument(
        "--inter-node-gbps", type=float, metavar="GB/S", help="what a GPU sends to other nodes (default: by its kind)"
    )


def spread(step: Step, args: argparse.Namespace) -> Step:
    """The step over as many GPUs as the arguments say; what they do not say stays as the step has it."""
    from trainfit.step import DDP, FSDP

    if args.fsdp is not None:
        fsdp = FSDP(world_size=args.fsdp) if step.fsdp is None else replace(step.fsdp, world_size=args.fsdp)
        step = replace(step, fsdp=fsdp, ddp=None)
    elif args.ddp is not None:
        ddp = DDP(world_size=args.ddp) if step.ddp is None else replace(step.ddp, world_size=args.ddp)
        step = replace(step, ddp=ddp, fsdp=None)
    given = {
        "gpus_per_node": args.gpus_per_node,
        "intra_node_gb_per_s": args.intra_node_gbps,
        "inter_node_gb_per_s": args.inter_node_gbps,
    }
    links = {name: value for name, value in given.items() if value is not None}
    if step.fsdp is not None:
        return replace(step, fsdp=replace(step.fsdp, **links))
    if step.ddp is not None:
        return replace(step, ddp=replace(step.ddp, **links))
    if links:
        raise UsageError("there is one GPU, which nothing joins to others", hint="pass --fsdp N or --ddp N")
    return step


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
