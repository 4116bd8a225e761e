"""Nets' ops that a run of `trainfit calibrate` may time, among those that corpus_draw.py wrote down.

    python benchmarks/corpus_select.py FOLDER src/trainfit/calibrate/ops.jsonl.gz --share 0.004

To those that the file has come, of every net, those that take at least this share of its GPU time and whose arguments
can be made up: not lists of tensors or losses of alignments, nor what depends on values. When they have been timed,
select_calls.py leaves one of those that are alike.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainfit.calibrate.arguments import Pool, arguments
from trainfit.calibrate.calls import read_call

LEFT_OUT = (
    "_foreach_", "_fused_adam", "_fused_sgd", "_amp_", "_thnn_fused", "_ctc_loss", "_embedding_bag",
    "nonzero", "unique", "masked_select", "_local_scalar_dense", "linalg_", "_linalg_", "_grouped_mm",
)  # fmt: skip
ALL_THE_SAME = ("linalg_vector_norm",)
MOST_BYTES = 6 * 2**30


def nets(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.json.gz")):
        net = json.loads(gzip.decompress(path.read_bytes()))
        if "error" not in net:
            yield net


def can_be_called(name: str, args: list[Any], kwargs: dict[str, Any], pool: Pool) -> bool:
    call = read_call(name, args, kwargs)
    if call.short_name.startswith(LEFT_OUT) and call.short_name not in ALL_THE_SAME:
        return False
    try:
        made, named = arguments(call, pool)
        result = call.function(*made, **named)
    except (RuntimeError, TypeError, NotImplementedError):
        return False
    tensors = [
        value for value in (*made, *(result if isinstance(result, tuple) else (result,))) if hasattr(value, "nbytes")
    ]
    return sum(tensor.nbytes for tensor in tensors) <= MOST_BYTES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--share", type=float, required=True)
    args = parser.parse_args()
    pool = Pool("meta", 2**40)
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
                found[key] = can_be_called(name, values, named, pool)
            covered += found[key] * share
    before = gzip.decompress(args.out.read_bytes()).decode().splitlines() if args.out.exists() else []
    lines = sorted({key for key, is_kept in found.items() if is_kept} | set(before))
    args.out.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))
    num_filters = sum('"aten.convolution' in line for line in lines)
    print(f"{len(lines)} ops, {num_filters} of them convolutions, of {count} nets: {covered / count:.1%} of their time")


if __name__ == "__main__":
    main()
