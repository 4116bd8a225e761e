"""Predictions of one rank of many against what an H200 measured (benchmarks/results/fsdp_h200,
fsdp_features_h200): a sample of their rows.

The sample has four models, both allocators, plans, offload and DDP; benchmarks/fsdp_memory.py predicts all rows. A row
that was measured again counts as it was then: the executor had been mended.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what transformers says about itself when it is imported
    from fsdp_memory import Job, key_of, predict

RESULTS, FEATURES = BENCHMARKS / "results" / "fsdp_h200", BENCHMARKS / "results" / "fsdp_features_h200"
ROWS = {
    key_of(row): row
    for folder in (RESULTS, FEATURES, FEATURES / "again")
    for row in map(json.loads, (folder / "fsdp_measured.jsonl").read_text().splitlines())
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("job", "low_bytes"),
    [
        (Job("gpt2m", "mixed", 8, "every layer", True), 0),
        (Job("gpt2m", "mixed", 8, "every layer", True, "expandable"), 0),
        (Job("llama1b", "bf16", 64, "planned", True), 0),
        (Job("gpt2m", "ddp", 1, "nothing", False), 512),
        (Job("mixtral", "bf16", 8, "planned", True), 0),
        (Job("vit_large", "mixed", 8, "planned", True), 0),
        (Job("gpt2m", "mixed", 8, "every layer", True, feature="offload"), 0),
    ],
    ids=str,
)
def test_a_rank_is_predicted_to_the_byte(job: Job, low_bytes: int) -> None:
    measured = ROWS[tuple(vars(job).values())]
    predicted = predict(job, RESULTS, argparse.Namespace(gpu="h200", torch=measured["torch"]))
    assert predicted["peak_allocated_bytes"] == measured["peak_allocated_bytes"] - low_bytes
    assert predicted["peak_reserved_bytes"] == measured["peak_reserved_bytes"]
