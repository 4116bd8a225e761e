"""How well prices carry over to nets that no sample is of: ops of nets, measured one by one, beside their prices.

    python benchmarks/corpus_table.py FOLDER PARTIAL.gz                 # by the shipped profile
    python benchmarks/corpus_table.py FOLDER PARTIAL.gz --folds 4       # by profiles made without the nets' families
    python benchmarks/corpus_table.py FOLDER PARTIAL.gz --ops           # and the ops that matter, by rule
    python benchmarks/corpus_table.py FOLDER PARTIAL.gz --only convolution cudnn_batch_norm      # ops named so, alone

In: what corpus_draw.py wrote and the samples that `trainfit calibrate` took, the ops of nets among them. A net's time
is the sum over its measured ops, as often as it calls each; errors are priced / measured - 1. With `--folds` families
are dealt into so many parts, and each part is priced by what all other samples give. No GPU is needed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from corpus_select import nets
from trainfit.cost import Pricing, price_with, pricing_for
from trainfit.cost.classify import works
from trainfit.cost.described import described, read_op
from trainfit.cost.profile import Profile, parse_tables, shipped_profile
from trainfit.cost.reduce import in_a_step_ns, reduce_samples
from trainfit.gpus.catalogue import find_gpu
from trainfit.records import Op, Phase

LEAST_COVERED = 0.6
FAR, WORST, SHARE_OF_RULE = 0.08, 6, 0.0003
GPU = find_gpu("h200")
Sample = dict[str, Any]


@dataclass(frozen=True)
class Compared:
    net: str
    net_ns: float
    rule: str
    text: str
    kernel: str
    count: int
    measured_ns: float
    priced_ns: float


def samples(path: Path) -> list[Sample]:
    records = map(json.loads, gzip.decompress(path.read_bytes()).decode().splitlines())
    return [record["sample"] for record in records if "sample" in record]


def key_of(name: str, args: list[Any], kwargs: dict[str, Any]) -> str:
    plain = {key: value for key, value in kwargs.items() if key not in ("engine", "tiling", "device")}
    return json.dumps([name, args, plain])


def passes(op: Op) -> Iterator[Op]:
    """As an op is measured: a convolution pass by pass, without its bias."""
    args = op.args
    if op.name == "aten.convolution.default":
        yield replace(op, args=(*args[:2], None, *args[3:]))
    elif op.name == "aten.convolution_backward.default":
        wanted: Any = args[10]
        for number in (number for number in range(2) if wanted[number]):
            sizes = None if sum(wanted) > 1 else args[3]
            yield replace(op, args=(*args[:3], sizes, *args[4:10], (number == 0, number == 1, False)))
    else:
        yield op


def keys(name: str, args: list[Any], kwargs: dict[str, Any]) -> Iterator[str]:
    for op in passes(read_op(name, args, kwargs, (), Phase.FORWARD)):
        yield key_of(name, *described(op.args, op.kwargs, op.tf32))


def coverage(net: dict[str, Any], measured: dict[str, Sample]) -> float:
    """The share of its time, as it was priced, that was measured."""
    found = sum(op[4] for op in net["ops"] if all(key in measured for key in keys(*op[:3])))
    return found / 1e6 / float(net["busy_ms"])


def compared(
    net: dict[str, Any], measured: dict[str, Sample], pricing: Pricing, only: tuple[str, ...]
) -> Iterator[Compared]:
    for name, args, kwargs, count, _, _ in net["ops"]:
        if not name.startswith(only):
            continue
        for key in keys(name, args, kwargs):
            sample = measured.get(key)
            if sample is None or not sample["num_kernels"]:
                continue
            _, own_args, own_kwargs = json.loads(key)
            op = read_op(name, own_args, own_kwargs, [output for output in sample["outputs"] if output], Phase.BACKWARD)
            (cost,) = price_with([op], pricing)
            yield Compared(
                net["net"]["name"],
                1e6 * float(net["busy_ms"]),
                cost.rule,
                f"{name.removeprefix('aten.')} {own_args} {own_kwargs or ''}".replace("'", ""),
                sample["kernel"],
                count,
                count * step_ns(op, sample),
                count * cost.kernel_ns,
            )


def step_ns(op: Op, sample: Sample) -> float:
    found = works(op, GPU.num_sms)
    return in_a_step_ns(found[0], sample["cold_ns"], sample["warm_ns"], GPU) if found else sample["cold_ns"]


def family(net: dict[str, Any]) -> str:
    own = net["net"]
    return str(own.get("family") or own.get("type") or own["name"])


def fold_of(net: dict[str, Any], folds: int) -> int:
    return random.Random(family(net)).randrange(folds)


def profile_of(kept: Iterable[Sample]) -> Profile:
    shipped = shipped_profile("h200")
    assert shipped is not None
    return replace(shipped, tables={**shipped.tables, **parse_tables(reduce_samples(GPU, kept), GPU)})


def compare_fold(folder: Path, partial_path: Path, folds: int, only: tuple[str, ...], fold: int) -> list[Compared]:
    named = (sample for sample in samples(partial_path) if sample["op"].startswith(only))
    measured = {key_of(sample["op"], sample["args"], sample["kwargs"]): sample for sample in named}
    chosen = [net for net in nets(folder) if not folds or fold_of(net, folds) == fold]
    chosen = [net for net in chosen if coverage(net, measured) >= LEAST_COVERED]
    pricing = pricing_for(GPU)
    if folds:
        own = {key for net in chosen for op in net["ops"] for key in keys(*op[:3])}
        pricing = pricing_for(GPU, profile_of(sample for key, sample in measured.items() if key not in own))
    return [one for net in chosen for one in compared(net, measured, pricing, only)]


def by_net(found: list[Compared]) -> Iterator[str]:
    errors = {
        name: sum(o.priced_ns for o in ops) / sum(o.measured_ns for o in ops) - 1
        for name, ops in grouped(found, "net").items()
    }
    within = sum(abs(error) <= FAR for error in errors.values())
    middle = statistics.median(abs(error) for error in errors.values())
    bias = statistics.mean(errors.values())
    yield f"{within} of {len(errors)} nets within {FAR:.0%}, median {middle:.1%}, bias {bias:+.1%}"
    worst = sorted(errors, key=lambda name: -abs(errors[name]))
    yield ", ".join(f"{name} {errors[name]:+.0%}" for name in worst if abs(errors[name]) > FAR)


def by_rule(found: list[Compared], with_ops: bool) -> Iterator[str]:
    """Shares are of the nets' whole time, as it was priced."""
    num_nets = len({one.net for one in found})

    def off(one: Compared) -> float:
        return abs(one.priced_ns - one.measured_ns) / one.net_ns

    yield f"ops are off by {sum(map(off, found)) / num_nets:.2%} of their net's time in all"
    for rule, ops in sorted(grouped(found, "rule").items(), key=lambda item: -sum(map(off, item[1]))):
        share = sum(map(off, ops))
        if share < SHARE_OF_RULE * num_nets:
            break
        weight = sum(one.measured_ns / one.net_ns for one in ops)
        bias = sum((one.priced_ns - one.measured_ns) / one.net_ns for one in ops)
        yield (
            f"{rule}: {weight / num_nets:.2%} of steps, off by {share / num_nets:.2%} of them, mean error"
            f" {share / weight:.0%}, bias {bias / weight:+.1%}, {len(ops)} ops in {len({one.net for one in ops})} nets"
        )
        if with_ops:
            for one in sorted(ops, key=off, reverse=True)[:WORST]:
                yield (
                    f"  {off(one):.1%} of {one.net}: {one.count} x {one.measured_ns / one.count / 1e3:.1f} us, priced"
                    f" {one.priced_ns / one.count / 1e3:.1f}: {one.text[:200]} | {one.kernel[:60]}"
                )


def grouped(found: list[Compared], field: str) -> dict[str, list[Compared]]:
    groups: dict[str, list[Compared]] = defaultdict(list)
    for one in found:
        groups[getattr(one, field)].append(one)
    return groups


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("partial", type=Path)
    parser.add_argument("--folds", type=int, default=0)
    parser.add_argument("--ops", action="store_true")
    parser.add_argument("--only", nargs="+", default=[""], help="names of ops begin so, without their namespace")
    args = parser.parse_args()
    only = tuple(f"aten.{name}" for name in args.only)
    compare = partial(compare_fold, args.folder, args.partial, args.folds, only)
    with ProcessPoolExecutor(2) as pool:
        parts = pool.map(compare, range(max(args.folds, 1)))
        found = [one for part in parts for one in part]
    print(*by_net(found), sep="\n")
    print(*by_rule(found, args.ops), sep="\n")


if __name__ == "__main__":
    main()
