"""Chooses the calls that `trainfit calibrate` times among those that were measured before.

    python benchmarks/select_calls.py SAMPLES.partial.gz src/trainfit/calibrate/ops.jsonl.gz

In: samples of a run of `calibrate`, the more the better. Out: the list of calls of the next one. A call stays if its
sample is of use to a price, took no more than 100 ms, and it can be made again from its description. Of those that are
alike, priced by one rule and with sizes that differ by four fifths of a doubling or less, one is kept; of convolutions,
which take longest to get ready for, one within a doubling and a third, and such as were drawn at random only where nets
and libraries leave a rule few points. What that costs: dev/LOG.md. The file has calls of one kind together: a process
that has loaded a kernel has use for it again.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainfit.calibrate.arguments import Pool, arguments
from trainfit.calibrate.calls import Call, read_call
from trainfit.cost import convolution, lookups
from trainfit.cost.classify import ROOFLINE, hidden_ops, works
from trainfit.cost.described import read_op
from trainfit.cost.work import short_name
from trainfit.gpus.catalogue import find_gpu
from trainfit.records import Phase, TensorRef

GPU = find_gpu("h200")
PER_DOUBLING, CONVOLUTIONS_PER_DOUBLING = 1.25, 0.75
LONGEST_NS = 100_000_000
DRAWN_CONVOLUTIONS = ("drawn", "extreme", "usual", "frequent", "long")
"""Groups of the first lists whose convolutions nobody's net has."""
FEW_POINTS = 150
KEPT_WHOLE = ("filters in groups",)
"""Groups of which none is left out: times of convolutions in groups over signals change in leaps (wav2vec2 was 10% off
without 108 of 503)."""
LEFT_OUT = ("max_unpool2d", "repeat_interleave", "_cudnn_rnn_flatten_weight", "masked_select", "nonzero",
            "_linalg_check_errors")  # fmt: skip
"""What random values would make another op of."""
NO_PLAN = ("engine", "tiling")
Sample = dict[str, Any]


def grouped_samples(path: Path) -> Iterator[tuple[str, Sample]]:
    """With the names of their chunks; samples stand before the name."""
    waiting: list[Sample] = []
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        record = json.loads(line)
        if "sample" in record:
            waiting.append(record["sample"])
        elif "chunk" in record:
            yield from ((record["chunk"], sample) for sample in waiting)
            waiting = []


def is_convolution(sample: Sample) -> bool:
    return short_name(sample["op"]).startswith("convolution")


def is_drawn(group: str, sample: Sample) -> bool:
    return is_convolution(sample) and group.startswith(DRAWN_CONVOLUTIONS)


def kind_of(sample: Sample) -> tuple[object, ...] | None:
    """What samples that are alike have in common; None where no price is made of it."""
    outputs = [output for output in sample["outputs"] if output]
    op = read_op(sample["op"], sample["args"], sample["kwargs"], outputs, Phase.FORWARD)
    per_doubling = PER_DOUBLING
    if is_convolution(sample):
        if convolution.is_by_winograd(op, sample["kernel"]):
            return None
        op, per_doubling = (
            convolution.as_measured(op, sample["kernel"], sample["num_kernels"]),
            CONVOLUTIONS_PER_DOUBLING,
        )
    work = next(iter(works(op, GPU.num_sms)), None)
    if work is None or work.rule == ROOFLINE or hidden_ops(op) or lookups.checks_indices(op):
        return None
    if not sample["num_kernels"]:
        return None
    return short_name(sample["op"]), work.rule, *(round(per_doubling * value) for value in work.coordinates)


def call_of(sample: Sample) -> Call:
    return read_call(
        sample["op"], sample["args"], {name: value for name, value in sample["kwargs"].items() if name not in NO_PLAN}
    )


def can_be_made(call: Call, pool: Pool) -> bool:
    """Whether arguments can be made of the description: not where all indices lay in the host's memory."""
    if call.short_name in LEFT_OUT:
        return False
    if call.short_name.startswith(("index", "_index")) and len(call.args) > 1 and isinstance(call.args[1], tuple):
        return any(isinstance(index, TensorRef) for index in call.args[1])
    try:
        arguments(call, pool)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return True


def selected(samples: list[tuple[str, Sample]]) -> list[Call]:
    pool = Pool("meta", 2**40)
    found: dict[tuple[object, ...], Call] = {}
    num_points: Counter[object] = Counter()
    for group, sample in sorted(samples, key=lambda one: is_drawn(*one)):
        kind = kind_of(sample)
        if kind is None or sample["cold_ns"] > LONGEST_NS:
            continue
        if group.startswith(KEPT_WHOLE):
            kind = (*kind, str(call_of(sample)))
        if kind in found or (is_drawn(group, sample) and num_points[kind[1]] >= FEW_POINTS):
            continue
        call = call_of(sample)
        if can_be_made(call, pool):
            found[kind] = call
            num_points[kind[1]] += 1
    return [found[kind] for kind in sorted(found, key=str)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("samples", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    samples = list(grouped_samples(args.samples))
    calls = selected(samples)
    text = "".join(f"{call}\n" for call in calls)
    args.out.write_bytes(gzip.compress(text.encode(), mtime=0))
    num_convolutions = sum(call.short_name.startswith("convolution") for call in calls)
    print(f"{len(calls)} of {len(samples)} calls, {num_convolutions} of them convolutions")


if __name__ == "__main__":
    main()
