"""The table of what it costs that no cuDNN is there to ask: GPU busy time of measured nets, asked and imitated.

    python benchmarks/imitated_table.py predict asked.jsonl       # where cuDNN 9.19 is installed
    python benchmarks/imitated_table.py predict imitated.jsonl    # where none is
    python benchmarks/imitated_table.py > benchmarks/results/imitated_h200.md

`predict` predicts each net that was measured and whose library is installed, in a process of its own. The table reads
results/imitated_asked_h200.jsonl, imitated_h200.jsonl and imitated_before_h200.jsonl, the same as it was with smaller
trees. Errors are predicted / measured - 1.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import forks
from predict_time import last, read_runs
from second_predict import LIMIT_S, predict
from second_table import Job, Rows, read_measured
from survey_table import read
from zoo import known_names

RESULTS = Path(__file__).parent / "results"
SETS = ("zoo", "second set", "surveys", "nets of libraries")
HEAD = """# Without a cuDNN to ask

`python benchmarks/imitated_table.py` (H200, torch 2.11.0+cu130; predicted with torch 2.13.0+cpu). GPU busy time of
measured nets, predicted where cuDNN 9.19 is installed and asked for its choice among convolutions, and where it is
imitated by decision trees (`gpus/hidden/cudnn_kernels.py`), as on a CPU-only build of torch or with another version of
cuDNN. "Before": by the smaller trees of before, which told engines but no tiles. Nets of libraries are those whose
library could be imported. The very convolutions of these nets, but for those of libraries, are not among those that the
trees learned from; rules and prices were developed with these nets in sight. Errors are predicted / measured - 1.

Nets for which asking changes the time are those that have convolutions by cuDNN; the others are left out."""
LIMIT, SHOWN = 0.08, 0.02


def measured_ms() -> dict[str, dict[Job, float]]:
    """By set; a case of two sets is of the first."""
    files = [RESULTS / f"{name}_h200.jsonl" for name in ("memory", "time")]
    found: dict[str, Rows] = {
        "zoo": last(read_runs(files)),
        "second set": read_measured("second_h200.jsonl"),
        "surveys": read([RESULTS / "survey_h200.jsonl"]),
        "nets of libraries": read([RESULTS / "libraries_h200.jsonl"]),
    }
    return {
        name: {job: row["kernels_ms"] for job, row in rows.items() if "kernels_ms" in row}
        for name, rows in found.items()
    }


def predict_all(path: Path) -> None:
    known = set(known_names())
    jobs = dict.fromkeys(job for rows in measured_ms().values() for job in rows if job[0] in known)
    with path.open("w") as file:
        for (name, variant), found in forks.run(list(jobs), partial(predict, None), width=1, timeout_s=LIMIT_S):
            file.write(json.dumps({"case": name, "variant": variant} | found) + "\n")


def errors_of(rows: Rows, measured: dict[Job, float], jobs: Sequence[Job]) -> list[float]:
    return [rows[job]["busy_ms"] / measured[job] - 1 for job in jobs]


def table(asked: Rows, imitated: Rows, before: Rows) -> Iterator[str]:
    kinds = {"asked": asked, "imitated": imitated, "before": before}
    yield "| nets with convolutions by cuDNN | | asked | imitated | before |\n|---|---|---|---|---|"
    shown: list[tuple[Job, float]] = []
    for name, measured in measured_ms().items():
        jobs = [job for job in measured if all("busy_ms" in rows.get(job, {}) for rows in kinds.values())]
        jobs = [job for job in jobs if len({rows[job]["busy_ms"] for rows in kinds.values()}) > 1]
        found = {kind: errors_of(rows, measured, jobs) for kind, rows in kinds.items()}
        counts = (f"{sum(abs(error) <= LIMIT for error in errors)}" for errors in found.values())
        yield f"| {name}: {len(jobs)} | within 8% | {' | '.join(counts)} |"
        yield f"| | median error | {' | '.join(f'{middle(errors):.1%}' for errors in found.values())} |"
        shown += [(job, measured[job]) for job in jobs]
    yield "\n| case | GPU busy ms | asked | imitated | before |\n|---|---|---|---|---|"
    for (case, variant), time_ms in shown:
        cells = [rows[case, variant]["busy_ms"] / time_ms - 1 for rows in kinds.values()]
        if max(map(abs, cells)) > LIMIT or abs(cells[0] - cells[1]) > SHOWN:
            label = case if variant == "plain" else f"{case}, every layer checkpointed"
            yield f"| {label} | {time_ms:.1f} | {' | '.join(f'{cell:+.1%}' for cell in cells)} |"


def middle(errors: Sequence[float]) -> float:
    return statistics.median(map(abs, errors)) if errors else 0.0


def main() -> None:
    if sys.argv[1:2] == ["predict"]:
        predict_all(Path(sys.argv[2]))
        return
    names = ("imitated_asked_h200.jsonl", "imitated_h200.jsonl", "imitated_before_h200.jsonl")
    asked, imitated, before = (read([RESULTS / name]) for name in names)
    print(HEAD, "", *table(asked, imitated, before), sep="\n")


if __name__ == "__main__":
    main()
