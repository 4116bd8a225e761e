"""Chooses the ops that `trainfit calibrate` replays among those that corpus_draw.py wrote down.

    python benchmarks/corpus_select.py FOLDER src/trainfit/calibrate/ops_of_nets.jsonl.gz --share 0.004

Of every net those that take at least this share of its GPU time and can be called on tensors that are made up: not
lists of tensors, recurrent layers or losses of alignments, which have workloads of their own, nor what depends on
values. One that several nets call is there once; the order is that of a seed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainfit.calibrate.replayed import arguments, function, read, replayed
from trainfit.cost.work import base_name, short_name
from trainfit.records import Op, TensorRef

SEED = 20261118
LEFT_OUT = (
    "_foreach_", "_fused_adam", "_fused_sgd", "_amp_", "_thnn_fused", "_ctc_loss", "_embedding_bag",
    "nonzero", "unique", "masked_select", "_local_scalar_dense", "linalg_", "_linalg_", "_grouped_mm",
)  # fmt: skip
ALL_THE_SAME = ("linalg_vector_norm",)
MOST_STEPS = 1200
MOST_BYTES = 6 * 2**30


def nets(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.json.gz")):
        net = json.loads(gzip.decompress(path.read_bytes()))
        if "error" not in net:
            yield net


def can_be_called(name: str, args: list[Any], kwargs: dict[str, Any]) -> bool:
    base = short_name(name)
    if base.startswith(LEFT_OUT) and base not in ALL_THE_SAME:
        return False
    if base.startswith("_cudnn_rnn"):
        return is_layer(read(name, args, kwargs))
    call = replayed(read(name, args, kwargs))
    try:
        made, named = arguments(call, "meta")
        result = function(name)(*made, **named)
    except (RuntimeError, TypeError, NotImplementedError):
        return False
    tensors = [
        value for value in (*made, *(result if isinstance(result, tuple) else (result,))) if hasattr(value, "nbytes")
    ]
    return sum(tensor.nbytes for tensor in tensors) <= MOST_BYTES


def is_layer(op: Op) -> bool:
    """Whether it is a layer's forward pass, of sequences that are equally long and not too long."""
    if base_name(op) != "_cudnn_rnn":
        return False
    data, projected, layers, batch_first, both, packed = (op.args[place] for place in (0, 8, 9, 10, 13, 14))
    assert isinstance(data, TensorRef)
    assert isinstance(layers, int)
    steps = data.shape[1 if batch_first else 0]
    return not projected and not packed and steps * layers * (1 + bool(both)) <= MOST_STEPS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--share", type=float, required=True)
    args = parser.parse_args()
    found: dict[str, bool] = {}
    count = covered = 0
    for net in nets(args.folder):
        count += 1
        for name, values, named, _, time_ns, _ in net["ops"]:
            share = time_ns / 1e6 / net["busy_ms"]
            if share < args.share:
                continue
            key = json.dumps([name, values, named])
            if key not in found:
                found[key] = can_be_called(name, values, named)
            covered += found[key] * share
    kept = sorted(key for key, is_kept in found.items() if is_kept)
    lines = random.Random(SEED).sample(kept, len(kept))
    args.out.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))
    num_filters = sum('"aten.convolution' in line for line in lines)
    print(f"{len(lines)} ops, {num_filters} of them convolutions, of {count} nets: {covered / count:.1%} of their time")


if __name__ == "__main__":
    main()
