"""The third blind test, the memory of image nets: predictions that were written down first, beside measured rows.

    python benchmarks/blind_images.py --predict >> benchmarks/results/blind_images_predicted_h200.jsonl
    python benchmarks/measure_memory.py --out OUT $(python benchmarks/blind_images.py --names)    # OUT/memory.jsonl
    python benchmarks/blind_images.py > benchmarks/results/blind_images_h200.md

Predictions are made twice, where cuDNN is installed and asked, and where it is not and imitated. The table reads them
and results/blind_images_h200.jsonl, the measured rows, and predicts nothing itself.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from blind_memory import ALLOCATORS, FIELDS, MIB, read, share
from trainfit.gpus.catalogue import find_gpu
from trainfit.gpus.hidden import cudnn_library, hidden_memory
from trainfit.simulate import simulate_memory
from trainfit.trace import trace_step
from zoo import make_step
from zoo.images import image_net_cases

TORCH = "2.11.0+cu130"  # that of the GPU's machine
HOW = ("asked", "imitated")
LIMITS = (0.001, 0.01)
HEAD = """# Twelve image nets that were predicted before they were measured

`python benchmarks/blind_images.py` (H200, torch 2.11.0+cu130, each row a process of its own). The predictions were
committed before the GPU ran any of these (zoo/images.py). cuDNN's choices were asked of an installed one, or imitated,
as on a CPU-only build of torch. Shares are predicted over measured.

| case | allocator | measured MiB | asked | imitated | measured reserved MiB | asked | imitated |
|---|---|---|---|---|---|---|---|"""


def predictions() -> Iterator[dict[str, Any]]:
    gpu = find_gpu("h200")
    how = "asked" if cudnn_library.is_installed() else "imitated"
    for case in image_net_cases():
        trace = trace_step(make_step(case), gpu)
        for allocator in ALLOCATORS:
            memory = simulate_memory(trace, hidden_memory(gpu, TORCH), allocator)
            found = {field: getattr(memory, field) for field in FIELDS}
            yield {"case": case.name, "allocator": allocator, "torch": TORCH, "cudnn": how, **found}


def table() -> Iterator[str]:
    predicted = {
        (row["case"], row["allocator"], row["cudnn"]): row for row in read("blind_images_predicted_h200.jsonl")
    }
    errors: dict[tuple[str, str], list[float]] = {(how, field): [] for how in HOW for field in FIELDS}
    yield HEAD
    for row in sorted(read("blind_images_h200.jsonl"), key=lambda row: (row["case"], row["allocator"])):
        cells = [row["case"], row["allocator"]]
        for field in FIELDS:
            cells.append(f"{row[field] / MIB:.1f}")
            for how in HOW:
                found = predicted[row["case"], row["allocator"], how][field]
                cells.append(share(found, row[field]))
                errors[how, field].append(abs(found / row[field] - 1))
        yield f"| {' | '.join(cells)} |"
    yield ""
    for how in HOW:
        counted = []
        for field, limit in zip(FIELDS, LIMITS, strict=True):
            shares = errors[how, field]
            within, worst = sum(share <= limit for share in shares), max(shares)
            counted.append(f"{field} {within} of {len(shares)} within {limit:.1%}, worst {worst:.3%}")
        yield f"- {how}: {'; '.join(counted)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predict", action="store_true", help="print predictions, one per line")
    parser.add_argument("--names", action="store_true", help="print the cases")
    args = parser.parse_args()
    if args.names:
        print(*(case.name for case in image_net_cases()))
    elif args.predict:
        for row in predictions():
            print(json.dumps(row), flush=True)
    else:
        print(*table(), sep="\n")


if __name__ == "__main__":
    main()
