"""Prices against kernels: a catalogue of several hundred ops beyond those of the zoo, at ordinary sizes.

    python benchmarks/sweep_prices.py measure OUT [FAMILY ...]   # on a GPU: OUT/<family>.jsonl.gz, a line per op
    python benchmarks/sweep_prices.py table OUT                  # priced / measured by op and rule, with no GPU:
    python benchmarks/sweep_prices.py table benchmarks/results/prices_h200 > benchmarks/results/prices_h200.md
    python benchmarks/sweep_prices.py ghost [FAMILY ...]         # with no GPU: which rule prices which op

What was measured is no sample of `calibrate`, so the table says how well its samples carry to other sizes and ops.
results/prices_drawn_h200 are ops of `calibrate`'s drawn groups at sizes, ranks and layouts that another seed drew.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import price_catalogue
import price_layers
import trainfit
from trainfit.calibrate.arguments import Pool
from trainfit.calibrate.calls import Call, call_of
from trainfit.calibrate.measure import NUMBERS_BYTES, Sample, described_outputs, measure
from trainfit.cost import price_with, pricing_for
from trainfit.cost.classify import works
from trainfit.cost.described import read_op
from trainfit.cost.reduce import in_a_step_ns
from trainfit.gpus.catalogue import find_gpu
from trainfit.records import Phase
from trainfit.torch_compat import DispatchMode, is_view

SECONDS = 150.0
SHORT_NS = 5000
WORST = 120


def families(chosen: list[str]) -> dict[str, list[Any]]:
    found = price_layers.families() | price_catalogue.families()
    return {name: found[name] for name in chosen or found}


def take(out: Path, chosen: list[str]) -> None:
    """Family by family, until the time is up."""
    out.mkdir(parents=True, exist_ok=True)
    until_s = time.monotonic() + SECONDS
    pool = Pool("cuda", NUMBERS_BYTES)
    known: set[str] = set()
    for name, workloads in families(chosen).items():
        start_s = time.monotonic()
        count = 0
        with gzip.open(out / f"{name}.jsonl.gz", "wt") as file:
            for first in range(0, len(workloads), 20):
                if time.monotonic() > until_s:
                    print(f"{name}: {len(workloads) - first} workloads left out, the time is up", flush=True)
                    break
                calls = {str(call): call for work in workloads[first : first + 20] for call, _ in recorded(work)}
                new = [call for text, call in calls.items() if text not in known]
                known.update(calls)
                for result in measure(new, pool):
                    if isinstance(result, Sample):
                        file.write(json.dumps(dataclasses.asdict(result)) + "\n")
                        count += 1
                    else:
                        print(name, result[:160], flush=True)
                file.flush()
        print(f"{name}: {len(workloads)} workloads, {count} ops, {time.monotonic() - start_s:.1f} s", flush=True)


def compared(out: Path) -> Iterator[tuple[dict[str, Any], str, float, float]]:
    """(sample, rule, measured ns, priced ns)."""
    pricing = pricing_for(find_gpu("h200"))
    for path in sorted(out.glob("*.jsonl.gz")):
        for line in gzip.decompress(path.read_bytes()).splitlines():
            sample = json.loads(line)
            outputs = [output for output in sample["outputs"] if output]
            op = read_op(sample["op"], sample["args"], sample["kwargs"], outputs, Phase.FORWARD)
            (cost,) = price_with([op], pricing)
            work = next(iter(works(op, pricing.gpu.num_sms)), None)
            measured = in_a_step_ns(work, sample["cold_ns"], sample["warm_ns"], pricing.gpu) if work else 0.0
            yield {**sample, "family": path.name.split(".")[0]}, cost.rule, measured, float(cost.kernel_ns)


def table(out: Path) -> None:
    """By family how far off prices are; then ops by it, with the one that is off by most."""
    families: dict[str, list[float]] = {}
    groups: dict[tuple[str, str], list[tuple[float, float, str]]] = {}
    for sample, rule, measured, priced in compared(out):
        if min(measured, priced) > 0:
            example = f"{sample['args']}{sample['kernel'][:60]}"
            groups.setdefault((sample["op"], rule), []).append((measured, priced, example))
        if measured > SHORT_NS and priced > 0:
            families.setdefault(sample["family"], []).append(abs(math.log(priced / measured)))
    print(f"# Prices of ops that are no samples of the profile's, those of more than {SHORT_NS / 1e3:.0f} us\n")
    print("Rules were mended after a first look at these ops; their times are in no table of the profile.\n")
    print("| family | ops | median error | within 15% |\n|---|---|---|---|")
    every = [error for errors in families.values() for error in errors]
    for name, errors in (*families.items(), ("all", every)):
        near = sum(error < math.log(1.15) for error in errors) / len(errors)
        print(f"| {name} | {len(errors)} | {statistics.median(errors):.1%} | {near:.0%} |")
    print("\n## By op and rule, the worst first\n\n```")
    rows = []
    for (op, rule), found in groups.items():
        ratios = sorted(priced / measured for measured, priced, _ in found)
        worst = max(found, key=lambda row: abs(row[1] - row[0]))
        off = sum(abs(priced - measured) for measured, priced, _ in found) / sum(measured for measured, _, _ in found)
        rows.append((off * math.log(1 + len(found)), op, rule, len(found), off, ratios, worst))
    for _, op, rule, count, off, ratios, (measured, priced, example) in sorted(rows, reverse=True)[:WORST]:
        spread = f"x{statistics.median(ratios):.2f} {ratios[0]:.2f}..{ratios[-1]:.2f}"
        times = f"{measured / 1e3:.0f} us, priced {priced / 1e3:.0f}"
        print(f"{op[5:]:44} {rule[:40]:40} {count:4} off {off:6.1%} {spread} | {times} {example[:110]}")
    print("```")


class _Recorder(DispatchMode):
    """Writes down the ops that run inside it, and what they return."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Call, list[str]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = call_of(func, args, kwargs or {})
        result = func(*args, **(kwargs or {}))
        if not is_view(func):
            self.calls.append((call, described_outputs(result)))
        return result


def recorded(workload: Any) -> list[tuple[Call, list[str]]]:
    """What it calls on the ghost GPU."""
    recorder = _Recorder()
    with trainfit.ghost_gpu("h200"), recorder:
        workload()
    return recorder.calls


def ghost(chosen: list[str]) -> None:
    """Rules by op, from what the ghost runs."""
    pricing = pricing_for(find_gpu("h200"))
    rules: dict[tuple[str, str], list[float]] = {}
    for name, workloads in families(chosen).items():
        failures = 0
        for workload in workloads:
            try:
                calls = recorded(workload)
            except Exception as error:
                failures += 1
                text = " ".join(str(error).split())
                print(f"{name}: {workload}: {type(error).__name__}: {text}"[:300], flush=True)
                continue
            for call, outputs in calls:
                (cost,) = price_with([read_op(call.name, *call.described(), outputs, Phase.FORWARD)], pricing)
                rules.setdefault((call.name, cost.rule), []).append(cost.time_ns)
        print(f"{name}: {len(workloads)} workloads, {failures} failed", flush=True)
    for (op, rule), times_ns in sorted(rules.items(), key=lambda item: (item[0][1] != "roofline", item[0])):
        print(f"{op:50} {rule:40} {len(times_ns):5} {max(times_ns) / 1e3:10.1f} us")


def main(command: str, *arguments: str) -> None:
    if command == "measure":
        take(Path(arguments[0]), list(arguments[1:]))
    elif command == "table":
        table(Path(arguments[0]))
    else:
        ghost(list(arguments))


if __name__ == "__main__":
    main(*sys.argv[1:])
