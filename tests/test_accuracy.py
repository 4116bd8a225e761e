"""Predictions against what an H200 measured (benchmarks/results): every case, variant and allocator.

The cases are those of the zoo, and the ten nets that were predicted before they were measured; those were not timed.
Kernels and hidden memory are those of the torch version that measured; the models' code is run by the installed one.
"""

from __future__ import annotations

import json
import sys
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from trainfit._time_estimate import time_step
from trainfit.cost import datasheet_pricing, pricing_for
from trainfit.gpus.catalogue import find_gpu
from trainfit.gpus.hidden import hidden_memory
from trainfit.records import Trace
from trainfit.simulate import simulate_memory
from trainfit.trace import trace_step

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what transformers says about itself when it is imported
    from predict_time import last, read_runs
    from zoo import make_step, zoo
    from zoo.blind import blind_cases

    CASES = zoo() | {case.name: case for case in blind_cases(tiny=False)}

MIB = 2**20
ROWS = [
    json.loads(line)
    for name in ("memory_h200.jsonl", "blind_memory_h200.jsonl")
    for line in (BENCHMARKS / "results" / name).read_text().splitlines()
]
MEASURED = sorted({(row["case"], row["variant"]) for row in ROWS})
RUNS = last(read_runs([BENCHMARKS / "results" / f"{name}_h200.jsonl" for name in ("memory", "time")]))
THE_THREE = ("llama1b", "gpt2m", "bertl")


@cache
def traced(case: str, variant: str, torch_version: str) -> Trace:
    step = make_step(CASES[case], checkpointed=variant == "every layer")
    return trace_step(step, find_gpu("h200"), torch_version=torch_version)


def predicted(row: dict[str, Any]) -> tuple[int, int]:
    trace = traced(row["case"], row["variant"], row["torch"])
    timeline = simulate_memory(trace, hidden_memory(find_gpu("h200"), row["torch"]), row["allocator"])
    return timeline.peak_allocated_bytes, timeline.peak_reserved_bytes


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("case", "variant"), MEASURED, ids=lambda value: value.replace(" ", "-"))
def test_prediction_is_what_the_gpu_measured(case: str, variant: str) -> None:
    check_memory(case, variant)
    if (case, variant) in RUNS:
        check_time(case, variant)
    traced.cache_clear()


def check_memory(case: str, variant: str) -> None:
    for row in ROWS:
        if (row["case"], row["variant"]) != (case, variant):
            continue
        allocated, reserved = predicted(row)
        error = abs(allocated - row["peak_allocated_bytes"])
        assert error <= 0.001 * row["peak_allocated_bytes"]
        assert abs(reserved - row["peak_reserved_bytes"]) <= 0.01 * row["peak_reserved_bytes"]
        if case in THE_THREE:
            assert error <= 2 * MIB
            assert abs(reserved - row["peak_reserved_bytes"]) <= 0.005 * row["peak_reserved_bytes"]


def check_time(case: str, variant: str) -> None:
    """How long the GPU is busy, by the profile and by the datasheet alone; of a GPU-bound step the whole."""
    run, gpu = RUNS[case, variant], find_gpu("h200")
    trace = traced(case, variant, run["torch"])
    by_profile, by_datasheet = (time_step(trace, pricing) for pricing in (pricing_for(gpu), datasheet_pricing(gpu)))
    limit = 0.04 if case in THE_THREE else 0.08
    assert by_profile.gpu_busy_ms == pytest.approx(run["kernels_ms"], rel=limit)
    assert by_datasheet.gpu_busy_ms == pytest.approx(run["kernels_ms"], rel=0.2)
    if case in THE_THREE:
        assert by_profile.step_ms == pytest.approx(run["step_ms"], rel=limit)
