"""How well prices carry over to convolutions that nobody chose: drawn by another seed than `calibrate`'s.

    python benchmarks/held_out_convolutions.py measure FILE.jsonl.gz    # on a GPU
    python benchmarks/held_out_convolutions.py table benchmarks/results/convolutions_held_out_h200.jsonl.gz

Lines are samples of single passes, as `calibrate` takes them, of which none is in any table of the profile. The table
has errors by kind, pass and what is unusual; those of less than 4 us are left out.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from math import exp, log
from pathlib import Path
from typing import Any

from drawn_filters import calls_of, frequent_layers, layers
from trainfit.calibrate.arguments import Pool
from trainfit.calibrate.measure import NUMBERS_BYTES, Sample, measure
from trainfit.cost import price_with, pricing_for
from trainfit.cost.described import read_op
from trainfit.gpus.catalogue import find_gpu
from trainfit.gpus.hidden import cudnn_library
from trainfit.records import Op, Phase, TensorRef
from usual_filters import usual_layers

SEED, COUNT, FREQUENT, USUAL, PER_SESSION = 20261116, 360, 80, 160, 60
WHATEVER, OF_NETS = "drawn: whatever can be written", "drawn: as nets have them"
SHORT_NS = 4000
FAR = log(1.25)


def take(path: Path) -> None:
    pool = Pool("cuda", NUMBERS_BYTES)
    kinds = {
        WHATEVER: [*islice(layers(SEED), COUNT), *islice(frequent_layers(SEED), FREQUENT)],
        OF_NETS: [*islice(usual_layers(SEED + 1), USUAL)],
    }
    with gzip.open(path, "wt") as file:
        for kind, chosen in kinds.items():
            calls = [call for layer in chosen for call in calls_of(layer)]
            for first in range(0, len(calls), PER_SESSION):
                for result in measure(calls[first : first + PER_SESSION], pool):
                    if isinstance(result, Sample):
                        file.write(json.dumps({"sample": dataclasses.asdict(result) | {"drawn": kind}}) + "\n")
                    else:
                        print(result, flush=True)


def samples(path: Path) -> Iterator[dict[str, Any]]:
    for line in gzip.decompress(path.read_bytes()).splitlines():
        record = json.loads(line)
        if "sample" in record and record["sample"]["cold_ns"] >= SHORT_NS:
            yield record["sample"]


def traits(op: Op, rule: str) -> Iterator[str]:
    """By which errors are told apart."""
    is_backward = op.name.startswith("aten.convolution_backward")
    tensors = [value for value in op.args if isinstance(value, TensorRef)]
    weight = tensors[2 if is_backward else 1]
    first = 4 if is_backward else 3
    stride, _, dilation, is_transposed = op.args[first : first + 4]
    assert isinstance(stride, tuple)
    assert isinstance(dilation, tuple)
    _, passed, kind, dtype, layout, kernels = rule.split()
    yield "all"
    yield from (f"pass: {passed}", f"channels: {kind}", f"type: {dtype}", f"layout: {layout}", f"kernels: {kernels}")
    yield f"dimensions: {len(weight.shape) - 2}"
    side = max(weight.shape[2:])
    windows = ((1, "1"), (3, "2 to 3"), (7, "4 to 7"), (31, "8 to 31"), (1 << 30, "more than 31"))
    yield "window: " + next(text for most, text in windows if side <= most)
    yield "stride: " + ("1" if max(stride) == 1 else "more than 1")
    yield "dilation: " + ("1" if max(dilation) == 1 else "more than 1")
    if is_transposed:
        yield "transposed"


def table(path: Path) -> None:
    pricing = pricing_for(find_gpu("h200"))
    errors: dict[str, list[float]] = defaultdict(list)
    for sample in samples(path):
        op = read_op(
            sample["op"], sample["args"], sample["kwargs"], [out for out in sample["outputs"] if out], Phase.FORWARD
        )
        (cost,) = price_with([op], pricing)
        error = log(cost.kernel_ns / sample["cold_ns"])
        for trait in (*traits(op, cost.rule), sample["drawn"]):
            errors[trait].append(error)
    print("# Convolutions that were held out\n")
    print("`python benchmarks/held_out_convolutions.py table`: single passes that a seed drew, measured on the H200.")
    print(
        "None is a sample of the profile; which of several rules to keep was decided with these errors in sight. Most"
    )
    print("are far more varied than those of a net; a quarter are as nets have them. Errors are priced / measured - 1.")
    is_asked = "asked" if cudnn_library.version() else "not there to be asked"
    print(f"cuDNN was {is_asked} which kernels it runs.\n")
    print("| | passes | median error | mean | within 25% | one in ten is off by more than |\n|---|---|---|---|---|---|")
    for trait in sorted(errors, key=lambda trait: (":" in trait, trait)):
        found = errors[trait]
        sizes = sorted(map(abs, found))
        mean = exp(statistics.mean(found)) - 1
        near = sum(size <= FAR for size in sizes) / len(sizes)
        print(
            f"| {trait} | {len(found)} | {exp(statistics.median(sizes)) - 1:.1%} | {mean:+.1%} | {near:.0%}"
            f" | {exp(sizes[len(sizes) * 9 // 10]) - 1:.0%} |"
        )


def main() -> None:
    action, path = sys.argv[1:]
    (take if action == "measure" else table)(Path(path))


if __name__ == "__main__":
    main()
