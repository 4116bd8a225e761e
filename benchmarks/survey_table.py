"""The survey's table: predictions beside what the GPU measured, for the blind cases and those to develop with.

    python benchmarks/survey_table.py > benchmarks/results/survey_h200.md
    python benchmarks/survey_table.py --part development --predicted P.jsonl --measured ROWS.jsonl    # from other files

In: results/survey_predicted_h200.jsonl, survey_development_predicted_h200.jsonl (second_predict.py), survey_h200.jsonl
(survey_measure.py), survey_steps_h200.jsonl (measure_host.py: further processes of steps that wait for the CPU; the
step is the median of all), survey_own_host_h200.jsonl (predictions by the same prices of kernels and what `calibrate`
timed of the host in the very run that measured). Out: tables, and how many rows are within the limits. Errors are
predicted / measured - 1.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from second_table import ALLOCATED, KERNELS, LAUNCHES, MIB, RESERVED, Job, Rows, is_launch_bound, share
from survey import DRAWN, job_names
from zoo_survey_nets import survey_nets

RESULTS = Path(__file__).parent / "results"
DATASHEET = 0.2
HEAD = """# Architectures that a seed chose

`python benchmarks/survey_table.py` (H200, torch 2.11.0+cu130, transformers 5.17; each row a process of its own, steps
that wait for the CPU in several). survey_draw.py drew model types of transformers and ways to train them,
zoo_survey_nets.py draws precision, optimizer, batch and part of nets in plain torch. The blind cases were predicted,
and the predictions committed, before any of them was measured. Predicted with torch 2.11 and no GPU; errors are
predicted / measured - 1. "own host": the step by what `calibrate` timed of the host in the run that measured these
rows, for steps that wait for the CPU; everything else is by the shipped profile. Allocated and reserved are of the
classic allocator.
"""
DEVELOPMENT = """These were measured first and looked into op by op: prices and the host's costs were mended where they
were off, so this is no blind test. Predicted by the shipped profile of now."""


def read(paths: Sequence[Path]) -> Rows:
    """By case and variant; later rows count."""
    rows = (json.loads(line) for path in paths if path.exists() for line in path.read_text().splitlines())
    return {(row["case"], row["variant"]): row for row in rows}


def read_steps(paths: Sequence[Path]) -> dict[Job, list[float]]:
    found: dict[Job, list[float]] = {}
    for row in (json.loads(line) for path in paths if path.exists() for line in path.read_text().splitlines()):
        if "step_ms" in row:
            found.setdefault((row["case"], row["variant"]), []).append(row["step_ms"])
    return found


def jobs_of(part: str) -> list[Job]:
    names = job_names(part) + [case.name for case in survey_nets()[part == "blind"]]
    return [(name.removesuffix(":every"), "every layer" if name.endswith(":every") else "plain") for name in names]


def table(jobs: Sequence[Job], predicted: Rows, measured: Rows, own_host: Rows) -> Iterator[str]:
    yield (
        "| case | allocated MiB | error | reserved MiB | error | GPU busy ms | error | by datasheet"
        " | step ms | error | own host | range | bound by |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|---|"
    for job in jobs:
        row, found = predicted[job], measured[job]
        bytes_found = found["peak_allocated_bytes"], found["peak_reserved_bytes"]
        cells = [job[0] + (", every layer checkpointed" if job[1] != "plain" else "")]
        for value, truth in zip(row["classic"], bytes_found, strict=True):
            cells += [f"{truth / MIB:.1f}", share(value, truth)]
        busy, step = found["kernels_ms"], found["step_ms"]
        cells += [f"{busy:.1f}", error(row["busy_ms"], busy), error(row["datasheet_ms"], busy)]
        cells += [f"{step:.1f}", error(row["step_ms"], step)]
        cells += [error(own_host[job]["step_ms"], step) if job in own_host else ""]
        cells += ["{:.0f} to {:.0f}".format(*row["range_ms"]), bound(row, found)]
        yield f"| {' | '.join(cells)} |"


def error(predicted: float, measured: float) -> str:
    return f"{predicted / measured - 1:+.1%}"


def bound(row: dict[str, Any], found: dict[str, Any]) -> str:
    text = "launches" if is_launch_bound(found) else "kernels"
    if is_launch_bound(found) == row["launch_bound"]:
        return text
    return f"{text}, predicted otherwise" + ("" if row["launch_bound_sure"] else " but not for sure")


def summary(jobs: Sequence[Job], predicted: Rows, measured: Rows, own_host: Rows) -> Iterator[str]:
    waiting = [job for job in jobs if is_launch_bound(measured[job])]
    working = [job for job in jobs if job not in waiting]

    def counted(what: str, chosen: Sequence[Job], errors: Sequence[float], limit: float) -> str:
        equal = f", {sum(one == 0 for one in errors)} equal" if limit in (ALLOCATED, RESERVED) else ""
        beyond = [f"{job[0]} {one:+.1%}" for job, one in zip(chosen, errors, strict=True) if abs(one) > limit]
        sizes = [abs(one) for one in errors]
        return (
            f"- {what}: median {statistics.median(sizes):.2%}, {len(errors) - len(beyond)} of {len(errors)} within"
            f" {limit:.1%}{equal}" + (f"; beyond: {', '.join(beyond)}" if beyond else "") + "."
        )

    for index, (what, limit) in enumerate((("allocated", ALLOCATED), ("reserved", RESERVED))):
        errors = [predicted[job]["classic"][index] / measured[job][f"peak_{what}_bytes"] - 1 for job in jobs]
        yield counted(what, jobs, errors, limit)
    for what, kind, truth, chosen, rows, limit in (
        ("GPU busy", "busy_ms", "kernels_ms", jobs, predicted, KERNELS),
        ("GPU busy by the datasheet", "datasheet_ms", "kernels_ms", jobs, predicted, DATASHEET),
        ("step, bound by kernels", "step_ms", "step_ms", working, predicted, KERNELS),
        ("step, bound by launches", "step_ms", "step_ms", waiting, predicted, LAUNCHES),
        ("step, bound by launches, host of that run", "step_ms", "step_ms", waiting, own_host, LAUNCHES),
    ):
        if chosen and rows:
            yield counted(what, chosen, [rows[job][kind] / measured[job][truth] - 1 for job in chosen], limit)
    right = [job for job in jobs if is_launch_bound(measured[job]) == predicted[job]["launch_bound"]]
    sure = [job for job in jobs if predicted[job]["launch_bound_sure"]]
    inside = [
        job
        for job in jobs
        if predicted[job]["range_ms"][0] <= measured[job]["step_ms"] <= predicted[job]["range_ms"][1]
    ]
    yield (
        f"- launch-bound or not: {len(right)} of {len(jobs)} recognised, {sum(job in right for job in sure)} of the"
        f" {len(sure)} said to be sure; the step within the stated range in {len(inside)}."
    )


def section(part: str, predicted: Rows, measured: Rows, own_host: Rows) -> Iterator[str]:
    jobs = [job for job in jobs_of(part) if job in measured and "classic" in predicted.get(job, ())]
    yield from table(jobs, predicted, measured, own_host)
    yield ""
    yield from summary(jobs, predicted, measured, own_host)
    if missing := [" ".join(job) for job in jobs_of(part) if job not in jobs]:
        yield f"- not measured, or not predicted: {', '.join(missing)}."


def with_all_steps(rows: Rows, steps: dict[Job, list[float]]) -> Rows:
    """The rows that were profiled, with the median step of all processes."""
    return {
        job: row | {"step_ms": statistics.median([row["step_ms"], *steps.get(job, ())])}
        for job, row in rows.items()
        if "kernels_ms" in row
    }


def document() -> Iterator[str]:
    measured = with_all_steps(read([RESULTS / "survey_h200.jsonl"]), read_steps([RESULTS / "survey_steps_h200.jsonl"]))
    own_host = read([RESULTS / "survey_own_host_h200.jsonl"])
    yield HEAD
    yield "## Blind\n"
    yield from section("blind", read([RESULTS / "survey_predicted_h200.jsonl"]), measured, own_host)
    yield f"\n## Development\n\n{DEVELOPMENT}\n"
    yield from section("development", read([RESULTS / "survey_development_predicted_h200.jsonl"]), measured, {})
    yield "\n## Left out\n"
    lines = [json.loads(line) for line in DRAWN.read_text().splitlines()]
    yield from (f"- {line['type']}: {' '.join(line['skipped'].split())}" for line in lines if "skipped" in line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=["development", "blind"])
    parser.add_argument("--predicted", type=Path, nargs="+", default=[])
    parser.add_argument("--measured", type=Path, nargs="+", default=[])
    parser.add_argument("--timed", type=Path, nargs="+", default=[])
    args = parser.parse_args()
    if args.part is None:
        print(*document(), sep="\n")
        return
    measured = with_all_steps(read(args.measured), read_steps(args.timed))
    print(*section(args.part, read(args.predicted), measured, {}), sep="\n")


if __name__ == "__main__":
    main()
