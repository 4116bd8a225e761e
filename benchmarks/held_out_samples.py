"""Prices beside samples of an earlier run of `calibrate` that the shipped profile's run has not; no GPU, two minutes.

    git show 6a2233d:benchmarks/results/h200.json.partial.gz > earlier.gz
    python benchmarks/held_out_samples.py earlier.gz > benchmarks/results/held_out_samples_h200.md

In: the earlier run's samples (116,335 of another, longer list, the same GPU and torch), and the shipped profile's,
whose calls are left out. Out: errors, priced / measured - 1, of samples of 3 us and more; means are weighted by the
root of what was measured, and no error counts more than twice. Those of nets are ops that public nets call; the others
were drawn.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from corpus_table import Sample, key_of, samples, step_ns
from select_calls import grouped_samples
from trainfit.cost import price_with, pricing_for
from trainfit.cost.described import read_op
from trainfit.gpus.catalogue import find_gpu
from trainfit.records import Phase

SHIPPED = Path(__file__).parent / "results" / "h200.json.partial.gz"
OF_NETS = ("ops of nets", "filters of nets", "filters of libraries", "pools of nets", "recurrents of nets")
DOUBTS = (0.01, 0.03, 0.04, 0.06, 0.08, 0.12, 0.2, 0.6)
SHORTEST_NS, LARGEST_ERROR, WORST_RULES = 3000, 2.0, 25
GPU = find_gpu("h200")


class Compared(NamedTuple):
    is_of_nets: bool
    is_convolution: bool
    rule: str
    error: float
    doubt: float
    """How far off it is said to be on average."""
    weight: float


def held_out(earlier: Path) -> list[tuple[str, Sample]]:
    def key(sample: Sample) -> str:
        return key_of(sample["op"], sample["args"], sample["kwargs"])

    known = {key(sample) for sample in samples(SHIPPED)}
    found = ((group.rpartition(" ")[0], sample) for group, sample in grouped_samples(earlier))
    return [(group, sample) for group, sample in found if sample["num_kernels"] and key(sample) not in known]


def compared(chosen: Sequence[tuple[str, Sample]]) -> list[Compared]:
    pricing, found = pricing_for(GPU), []
    for group, sample in chosen:
        outputs = [output for output in sample["outputs"] if output]
        op = read_op(sample["op"], sample["args"], sample["kwargs"], outputs, Phase.BACKWARD)
        (cost,) = price_with([op], pricing)
        measured_ns = step_ns(op, sample)
        if measured_ns > SHORTEST_NS:
            error = cost.kernel_ns / measured_ns - 1
            is_convolution = "convolution" in sample["op"]
            doubt, weight = cost.doubt_ns / max(cost.time_ns, 1), math.sqrt(measured_ns)
            found.append(Compared(group in OF_NETS, is_convolution, cost.rule, error, doubt, weight))
    return found


def mean_error(chosen: Sequence[Compared]) -> float:
    errors = sum(min(abs(one.error), LARGEST_ERROR) * one.weight for one in chosen)
    return errors / sum(one.weight for one in chosen)


def table(found: Sequence[Compared]) -> Iterator[str]:
    of_nets = [one for one in found if one.is_of_nets]
    rules: dict[str, list[Compared]] = defaultdict(list)
    for one in of_nets:
        rules[one.rule].append(one)
    total = sum(one.weight for one in of_nets)
    yield "| samples | | median error | mean error |\n|---|---|---|---|"
    for name, chosen in (
        ("ops of nets", of_nets),
        ("their convolutions", [one for one in of_nets if one.is_convolution]),
        ("their other ops", [one for one in of_nets if not one.is_convolution]),
        ("drawn ones", [one for one in found if not one.is_of_nets]),
    ):
        median = statistics.median(abs(one.error) for one in chosen)
        yield f"| {name} | {len(chosen)} | {median:.1%} | {mean_error(chosen):.2%} |"
    yield "\nOps of nets by how far off they are said to be on average; no error counts more than twice:\n"
    yield "| said | samples | mean error | median error |\n|---|---|---|---|"
    for low, high in itertools.pairwise(DOUBTS):
        near = [min(abs(one.error), LARGEST_ERROR) for one in of_nets if low <= one.doubt < high]
        yield f"| {low:.0%} to {high:.0%} | {len(near)} | {statistics.mean(near):.1%} | {statistics.median(near):.1%} |"
    yield "\nRules of nets' ops by what they add to the mean error:\n"
    yield "| rule | samples | adds | median error | bias |\n|---|---|---|---|---|"

    def added(rule: str) -> float:
        return mean_error(rules[rule]) * sum(one.weight for one in rules[rule]) / total

    for rule in sorted(rules, key=added, reverse=True)[:WORST_RULES]:
        errors = [one.error for one in rules[rule]]
        median = statistics.median(map(abs, errors))
        yield f"| {rule} | {len(errors)} | {added(rule):.2%} | {median:.1%} | {statistics.median(errors):+.1%} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("earlier", type=Path)
    chosen = held_out(parser.parse_args().earlier)
    with ProcessPoolExecutor(2) as pool:
        found = [one for part in pool.map(compared, (chosen[::2], chosen[1::2])) for one in part]
    print("# Samples of an earlier run that the shipped profile's run has not\n")
    print(
        f"Printed by benchmarks/held_out_samples.py (H200, torch 2.11.0+cu130): {len(chosen):,} samples, of which those"
    )
    print("of 3 us and more count. Prices by the shipped profile; rules were developed with part of these in sight.\n")
    print(*table(found), sep="\n")


if __name__ == "__main__":
    main()
