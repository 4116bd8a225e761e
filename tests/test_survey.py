"""The survey's bookkeeping: who is drawn into which part, how measured ops are held against prices, what is counted."""

from __future__ import annotations

import itertools
import json
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest

from trainfit.cost import pricing_for
from trainfit.gpus.catalogue import find_gpu

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what transformers says about itself when it is imported
    import survey_draw
    from compare_ops import by_case, compare
    from survey_measure import GPU_BYTES, rounds
    from survey_table import summary
    from zoo.survey import types as survey
    from zoo.survey.tasks import later_batch


def test_every_type_was_drawn_once_and_what_was_left_out_has_a_reason() -> None:
    lines = [json.loads(line) for line in survey.DRAWN.read_text().splitlines()]
    drawn = [(line["type"], line["part"] == "last") for line in lines if "skipped" not in line]
    assert len(set(drawn)) == len(drawn)
    tasks = [(line["type"], line["task"]) for line in lines if "skipped" not in line]
    assert len(set(tasks)) == len(tasks)
    assert all(line.get("skipped") or line["name"] for line in lines)
    counts = {part: len(survey.job_names(part)) for part in get_args(survey.Part)}
    assert counts == {"development": 36, "blind": 25, "further": 10, "fresh": 26, "third": 6, "unseen": 26, "last": 24}


def test_the_second_draw_leaves_out_what_the_first_had_and_five_of_eighteen_are_open() -> None:
    first, second, *_ = survey_draw.DRAWS
    drawn_first = {job[0] for job in itertools.islice(survey_draw.order(first, set()), 60)}
    jobs = list(itertools.islice(survey_draw.order(second, drawn_first), 36))
    assert not drawn_first & {job[0] for job in jobs}
    assert [job[2] for job in jobs] == (["further"] * 5 + ["fresh"] * 13) * 2


def test_a_wide_draw_has_models_without_a_head_after_all_others() -> None:
    jobs = list(survey_draw.order(survey_draw.DRAWS[2], set()))
    wide = [task in survey_draw.WIDER for _, task, _ in jobs]
    assert wide == sorted(wide)
    assert any(wide)
    assert [part for _, _, part in jobs[:14]] == ["third"] * 3 + ["unseen"] * 11
    assert not any(task in survey_draw.WIDER for _, task, _ in survey_draw.order(survey_draw.DRAWS[1], set()))


def test_the_last_draw_has_other_tasks_is_all_blind_and_begins_with_types_that_nothing_has() -> None:
    seen = {"bert", "depth_anything"}
    jobs = list(survey_draw.order(survey_draw.DRAWS[3], seen))
    assert {part for _, _, part in jobs} == {"last"}
    assert {task for _, task, _ in jobs} == set(survey_draw.LATER) == set(survey.LATER)
    names = [name for name, _, _ in jobs]
    assert len(set(names)) == len(names)
    assert set(names[-2:]) == seen


def test_layers_of_a_model_of_several_parts_are_halved_in_each() -> None:
    config = {"text_config": {"num_hidden_layers": 6, "hidden_size": 64}, "num_layers": 3, "backbone_config": {}}
    assert survey_draw.most_layers(config) == 6
    half = {"text_config": {"num_hidden_layers": 3, "hidden_size": 64}, "num_layers": 1, "backbone_config": {}}
    assert survey_draw.halved(config) == half
    assert survey.merged(config, {"text_config": {"hidden_size": 8}}) == config | {
        "text_config": {"num_hidden_layers": 6, "hidden_size": 8}
    }


@pytest.mark.parametrize(
    ("task", "main_input", "expected"),
    [
        ("tokens", "input_ids", {"input_ids": (3, 8), "labels": (3, 8)}),
        ("answers", "input_ids", {"input_ids": (3, 8), "start_positions": (3,), "end_positions": (3,)}),
        ("segments", "pixel_values", {"pixel_values": (3, 3, 8, 8), "labels": (3, 8, 8)}),
        ("boxes", "pixel_values", {"pixel_values": (3, 3, 8, 8)}),
        ("titles", "input_ids", {"input_ids": (3, 69), "pixel_values": (3, 3, 8, 8), "labels": (3, 69)}),
        ("series", "past_values", {"past_values": (3, 12, 2), "target_values": (3, 4)}),
        ("bare", "input_values", {"input_values": (3, 8)}),
    ],
)
def test_batches_of_the_last_draw(task: str, main_input: str, expected: dict[str, tuple[int, ...]]) -> None:
    config = SimpleNamespace(vocab_size=10, image_token_id=7, context_length=12, num_input_channels=2, num_targets=4)
    batch = later_batch(task, main_input, 3, 8, 5, config, "cpu")
    assert {name: tuple(value.shape) for name, value in batch.items()} == expected


@pytest.mark.filterwarnings("ignore")
def test_a_drawn_line_becomes_a_case_with_the_sizes_that_stand_in_it() -> None:
    drawn = survey.Drawn(
        type="bert",
        name="bert_bf16",
        part="blind",
        model="BertForMaskedLM",
        task="masked",
        config={"num_hidden_layers": 5, "vocab_size": 100},
        precision="bf16",
        optimizer="fused",
        padded=True,
        checkpointed=False,
        clip_grad_norm=1.0,
        rows=6,
        length=128,
    )
    batch = survey.case_of(drawn).batch("cpu")
    assert {name: tuple(value.shape) for name, value in batch.items()} == dict.fromkeys(
        ("input_ids", "attention_mask", "labels"), (6, 128)
    )
    assert int(batch["attention_mask"].sum()) == 3 * 128 + 3 * 96
    assert survey.case_of(drawn, tiny=True).batch("cpu")["input_ids"].shape == (2, 64)


def test_jobs_go_into_the_first_round_with_room() -> None:
    jobs = [(name, "plain") for name in "abcd"]
    needed = dict(zip(jobs, (GPU_BYTES // 2, GPU_BYTES // 2, GPU_BYTES, 1), strict=True))
    assert rounds(jobs, needed) == [[jobs[0], jobs[1]], [jobs[2]], [jobs[3]]]


def test_measured_ops_are_held_against_their_prices_call_by_call() -> None:
    row = {
        "case": "toy",
        "variant": "plain",
        "op": "aten.view.default",
        "args": ["float32[8]", [2, 4]],
        "kwargs": {},
        "outputs": ["float32[2,4]"],
        "count": 3,
        "total_ns": 3000,
        "kernel": "none",
    }
    (found,) = compare([{"op": None}, row], pricing_for(find_gpu("h200")))
    assert (found.rule, found.priced_ns, found.difference_ns) == ("free", 0, -3000)
    assert next(by_case([found])) == "toy: measured 0.00 ms, priced -100.0%"


def test_rows_beyond_a_limit_are_named() -> None:
    job = ("toy", "plain")
    predicted = {
        job: {
            "classic": [1000, 1005],
            "busy_ms": 11.0,
            "datasheet_ms": 10.0,
            "step_ms": 10.5,
            "range_ms": [9.0, 12.0],
            "launch_bound": False,
            "launch_bound_sure": True,
        }
    }
    measured = {
        job: {
            "peak_allocated_bytes": 1000,
            "peak_reserved_bytes": 1000,
            "kernels_ms": 10.0,
            "gpu_busy_ms": 10.0,
            "step_ms": 10.0,
        }
    }
    assert list(summary([job], predicted, measured, {})) == [
        "- allocated: median 0.00%, 1 of 1 within 0.1%, 1 equal.",
        "- reserved: median 0.50%, 1 of 1 within 1.0%, 0 equal.",
        "- GPU busy: median 10.00%, 0 of 1 within 8.0% (asked: each within 8%); beyond: toy +10.0%.",
        "- GPU busy by the datasheet: median 0.00%, 1 of 1 within 20.0% (asked: each within 20%, median 10%).",
        "- step, bound by kernels: median 5.00%, 1 of 1 within 8.0% (asked: each within 8%).",
        "- launch-bound or not: 1 of 1 recognised, 1 of the 1 said to be sure; the step within the stated range in 1"
        " (asked: all recognised, and a range stated).",
    ]
