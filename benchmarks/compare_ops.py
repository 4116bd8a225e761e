"""Which ops are priced wrongly: kernels' times that a GPU measured op by op, beside what the profile says of each.

    python benchmarks/compare_ops.py FILE.ops.jsonl.gz ...              # by rule, over all cases, and the worst cases
    python benchmarks/compare_ops.py --cases FILE.ops.jsonl.gz ...      # case by case, its ops that matter

In: rows of attribute_time.py or survey_measure.py (gzip), one per op signature of a case, with its calls and the sum of
their kernels' times. Out: text. Errors are priced / measured - 1; "of steps" are the differences as shares of a case's
GPU time, averaged over all cases, so it tells what matters. No GPU is needed, and nothing is traced: the measured ops
are priced.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainfit.cost import Pricing, price_with, pricing_for
from trainfit.cost.classify import ROOFLINE
from trainfit.cost.described import read_op
from trainfit.gpus.catalogue import find_gpu
from trainfit.records import Phase

WORST, SHARE_OF_RULE, SHARE_OF_OP = 5, 0.001, 0.01
"""How many ops are shown per rule; what of all steps a rule, and of a step an op, must differ by to be shown."""


@dataclass(frozen=True)
class Compared:
    case: str
    op: str
    rule: str
    count: int
    measured_ns: int
    priced_ns: int
    text: str
    kernel: str

    @property
    def difference_ns(self) -> int:
        return self.priced_ns - self.measured_ns


def compare(rows: Iterable[dict[str, Any]], pricing: Pricing) -> Iterator[Compared]:
    for row in rows:
        if row["op"] is None:
            continue
        outputs = [output for output in row["outputs"] if output]
        op = read_op(row["op"], row["args"], row["kwargs"], outputs, Phase.FORWARD)
        (cost,) = price_with([op], pricing)
        text = " ".join(f"{row['args']} {row['kwargs'] or ''} -> {row['outputs']}".split())
        yield Compared(
            case=row["case"] + ("" if row["variant"] == "plain" else ":every"),
            op=row["op"].removeprefix("aten."),
            rule=cost.rule,
            count=row["count"],
            measured_ns=row["total_ns"],
            priced_ns=cost.kernel_ns * row["count"],
            text=text.replace("'", ""),
            kernel=row["kernel"],
        )


def by_rule(found: list[Compared]) -> Iterator[str]:
    steps_ns = sums(found)
    groups: dict[str, list[Compared]] = defaultdict(list)
    for one in found:
        groups[one.rule].append(one)
    off = {
        rule: sum(abs(one.difference_ns) / steps_ns[one.case] for one in ops) / len(steps_ns)
        for rule, ops in groups.items()
    }
    for rule in sorted(groups, key=lambda rule: -off[rule]):
        if off[rule] < SHARE_OF_RULE and rule != ROOFLINE:
            continue
        ops = groups[rule]
        measured_ns, priced_ns = sum(one.measured_ns for one in ops), sum(one.priced_ns for one in ops)
        yield (
            f"{rule}: off by {off[rule]:.2%} of steps; measured {measured_ns / 1e6:.1f} ms, priced"
            f" {priced_ns / measured_ns - 1:+.1%}, {len(ops)} ops in {len({one.case for one in ops})} cases"
        )
        worst = sorted(ops, key=lambda one: -abs(one.difference_ns) / steps_ns[one.case])
        yield from (line(one, steps_ns[one.case]) for one in worst[:WORST])


def by_case(found: list[Compared]) -> Iterator[str]:
    steps_ns = sums(found)
    for case, step_ns in steps_ns.items():
        ops = [one for one in found if one.case == case]
        difference_ns = sum(one.difference_ns for one in ops)
        yield f"{case}: measured {step_ns / 1e6:.2f} ms, priced {difference_ns / step_ns:+.1%}"
        worst = sorted(ops, key=lambda one: -abs(one.difference_ns))
        yield from (line(one, step_ns) for one in worst if abs(one.difference_ns) > SHARE_OF_OP * step_ns)


def sums(found: list[Compared]) -> dict[str, int]:
    steps_ns: dict[str, int] = defaultdict(int)
    for one in found:
        steps_ns[one.case] += one.measured_ns
    return steps_ns


def line(one: Compared, step_ns: int) -> str:
    return (
        f"  {one.difference_ns / step_ns:+6.1%} of {one.case}: {one.op} {one.count} x"
        f" {one.measured_ns / one.count / 1e3:.1f} us, priced {one.priced_ns / one.count / 1e3:.1f} ({one.rule})"
        f" {one.text[:230]} | {one.kernel[:70]}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--cases", action="store_true")
    args = parser.parse_args()
    rows = (json.loads(text) for path in args.files for text in gzip.decompress(path.read_bytes()).splitlines())
    found = list(compare(rows, pricing_for(find_gpu("h200"))))
    print(*(by_case if args.cases else by_rule)(found), sep="\n")


if __name__ == "__main__":
    main()
