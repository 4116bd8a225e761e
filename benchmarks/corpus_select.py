"""Chooses the ops that `trainfit calibrate` replays among those that corpus_draw.py wrote down.

    python benchmarks/corpus_select.py FOLDER src/trainfit/calibrate/ops_of_nets.jsonl.gz --share 0.004

To those that the file has come, of every net, those that take at least this share of its GPU time and can be called on
tensors that are made up: not lists of tensors, recurrent layers or losses of alignments, which have workloads of their
own, nor what depends on values. Of those that are alike, of one rule and with sizes that differ by half a doubling or
less, one is kept, but all convolutions are: with four of ten other samples left out so, 475 of 487 nets were within 8%
(corpus_table.py, families left out), with all of them 474. The order is that of a seed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from trainfit.calibrate.replayed import arguments, function, read, replayed
from trainfit.cost.classify import works
from trainfit.cost.described import read_op
from trainfit.cost.work import base_name, short_name
from trainfit.gpus.catalogue import find_gpu
from trainfit.records import Op, Phase, TensorRef

SEED = 20261118
LEFT_OUT = (
    "_foreach_", "_fused_adam", "_fused_sgd", "_amp_", "_thnn_fused", "_ctc_loss", "_embedding_bag",
    "nonzero", "unique", "masked_select", "_local_scalar_dense", "linalg_", "_linalg_", "_grouped_mm",
)  # fmt: skip
ALL_THE_SAME = ("linalg_vector_norm",)
GPU, PER_DOUBLING = find_gpu("h200"), 2
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


def kind_of(line: str) -> object:
    """What ops that are alike have in common."""
    name, args, kwargs = json.loads(line)
    if short_name(name).startswith(("convolution", "_cudnn_rnn")):
        return line
    made, named = arguments(replayed(read(name, args, kwargs)), "meta")
    result = function(name)(*made, **named)
    results = result if isinstance(result, tuple | list) else (result,)
    outputs = [describe_meta(value) for value in results if isinstance(value, torch.Tensor)]
    work = next(iter(works(read_op(name, args, kwargs, outputs, Phase.FORWARD), GPU.num_sms)), None)
    return line if work is None else (work.rule, *(round(PER_DOUBLING * value) for value in work.coordinates))


def describe_meta(value: torch.Tensor) -> str:
    dtype = str(value.dtype).removeprefix("torch.")
    return "{}[{}]{{{}}}".format(dtype, *(",".join(map(str, sizes)) for sizes in (value.shape, value.stride())))


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
    before = gzip.decompress(args.out.read_bytes()).decode().splitlines() if args.out.exists() else []
    kept = sorted({key for key, is_kept in found.items() if is_kept} | set(before))
    lines = list({kind_of(line): line for line in random.Random(SEED).sample(kept, len(kept))}.values())
    args.out.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))
    num_filters = sum('"aten.convolution' in line for line in lines)
    print(f"{len(lines)} ops, {num_filters} of them convolutions, of {count} nets: {covered / count:.1%} of their time")


if __name__ == "__main__":
    main()
