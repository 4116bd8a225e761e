"""Draws calls where tables were thin: small pieces of nets in sizes of a seed, traced forward and backward with no GPU.

    python benchmarks/draw_calls.py --out drawn.jsonl.gz

Which pieces (drawn_pieces.py, drawn_products.py, drawn_images.py): those whose ops were off in nets that were predicted
blindly (libraries_h200.md) or looked into op by op, each in the whole range of sizes, types and layouts that nets have,
not those of the nets that were off. Out: a line per call, as calibrate's list has them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from corpus_select import can_be_called
from drawn_images import first_images, grown_images, image_norms, many_images, points, signals, wide_windows
from drawn_pieces import (
    Chance,
    Drawn,
    attention,
    groups,
    named_rows,
    positions,
    recurrent,
    row_norm,
    softmax,
    turned_norm,
)
from drawn_products import batched, linear, long_products, products, vectors, weights_gradient
from trainfit.calibrate.arguments import Pool
from trainfit.cost.described import described
from trainfit.cost.work import short_name
from trainfit.gpus.catalogue import find_gpu
from trainfit.step import Step
from trainfit.trace import trace_step

SEED = "20261119 thin tables"
NOT_ON_META = ("_grouped_mm", "_cudnn_rnn", "_cudnn_rnn_backward")
"""Ops that cannot be called there with the arguments of their samples."""
PIECES: dict[Callable[[Chance], Drawn], int] = {
    attention: 700, row_norm: 220, softmax: 120, turned_norm: 70, positions: 60, groups: 60, many_images: 220,
    recurrent: 60, weights_gradient: 160, named_rows: 50, first_images: 300, products: 500, linear: 700,
    batched: 250, long_products: 160, vectors: 120, grown_images: 120, signals: 120, wide_windows: 100,
    image_norms: 220, points: 140,
}  # fmt: skip
"""How many of each are drawn; every one is a call forward and one or two backward."""


def calls_of(model: nn.Module, wanted: tuple[str, ...]) -> Iterator[list[Any]]:
    step = Step(model=model, batch=(torch.empty(1),), optimizer=torch.optim.SGD, loss=lambda output: output.float())
    for op in trace_step(step, find_gpu("h200"), torch_version="2.11.0+cu130").ops:
        if op.name.removeprefix("aten.").startswith(wanted):
            name, (args, kwargs) = op.name, described(op.args, op.kwargs, op.tf32)
            if short_name(name) == "index_put":  # as autograd calls it, which does not look at the indices before
                name, args = "aten._index_put_impl_.default", [*args, True]
            yield [name, args, kwargs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--piece", nargs="+", choices=[draw.__name__ for draw in PIECES], help="these only")
    args = parser.parse_args()
    pool = Pool("meta", 2**40)
    found: dict[str, None] = {}
    for draw, count in PIECES.items():
        if args.piece and draw.__name__ not in args.piece:
            continue
        failed = 0
        for number in range(count):
            torch.set_float32_matmul_precision("high" if number % 3 == 0 else "highest")
            with torch.device("meta"):
                model, wanted = draw(random.Random(f"{SEED} {draw.__name__} {number}"))
            try:
                calls = list(calls_of(model, wanted))
            except Exception as error:
                failed += 1
                print(f"{draw.__name__} {number}: {type(error).__name__}: {error}"[:200], flush=True)
                continue
            found |= {json.dumps(call): None for call in calls if is_made(call, pool)}
        print(f"{draw.__name__}: {count - failed} of {count}, {len(found)} calls", flush=True)
    args.out.write_bytes(gzip.compress("".join(f"{line}\n" for line in found).encode(), mtime=0))


def is_made(call: list[Any], pool: Pool) -> bool:
    name, args, kwargs = call
    if short_name(name) in NOT_ON_META:
        return True
    return can_be_called(name, args, kwargs, pool)


if __name__ == "__main__":
    main()
