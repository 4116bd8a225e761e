"""What other tools' viewers read: a Chrome trace by its schema, a memory snapshot by torch's own parsers."""

from __future__ import annotations

import json
import pickle
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
from profiles import ACTIVATIONS, BACKWARD, FORWARD, PARAMETERS, profile_of
from torch.cuda import _memory_viz

import trainfit
from trainfit._report import estimate_profile
from trainfit.cli import main
from trainfit.records import OpRun, StepProfile
from trainfit.report.memory_viz import PICKLE_PROTOCOL, snapshot
from trainfit.report.perfetto import chrome_trace

STEP = profile_of(
    [
        (FORWARD, "layers.0.mlp", [(ACTIVATIONS, 3 * 2**20)]),
        (BACKWARD, "layers.0.mlp", [(ACTIVATIONS, -3 * 2**20)]),
    ],
    before=[(PARAMETERS, 2**20)],
)


@pytest.fixture(scope="module")
def estimate(step: trainfit.Step) -> trainfit.Estimate:
    return trainfit.estimate(step, "h200")


@pytest.fixture(scope="module")
def profile(estimate: trainfit.Estimate) -> StepProfile:
    found = estimate_profile(estimate)
    assert found is not None
    return found


def of_kind(trace: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == kind]


def test_ops_are_on_the_launch_track_and_on_the_gpu_track() -> None:
    trace = chrome_trace(STEP)
    tracks = {event["tid"]: event["args"]["name"] for event in of_kind(trace, "M") if event["name"] == "thread_name"}
    assert tracks == {1: "CPU: launch", 2: "GPU: compute"}
    assert [(e["name"], e["tid"], e["ts"], e["dur"]) for e in of_kind(trace, "X")] == [
        ("op0", 1, 0.0, 0.001),
        ("op0", 2, 0.0, 0.01),
        ("op1", 1, 0.001, 0.001),
        ("op1", 2, 0.01, 0.01),
    ]
    assert of_kind(trace, "X")[0]["args"] == {"op": "aten.op0.default", "module": "layers.0.mlp", "phase": "forward"}


def test_memory_is_a_counter_by_category() -> None:
    counters = of_kind(chrome_trace(STEP), "C")
    assert [(e["ts"], e["args"]["parameters"], e["args"]["activations"]) for e in counters] == [
        (0.0, 2**20, 3 * 2**20)  # during both ops: the second gives it back when it is done
    ]


def test_other_streams_have_tracks_of_their_own() -> None:
    runs = (STEP.runs[0], OpRun(1, 1, 2, 10, 10, stream=2))
    trace = chrome_trace(StepProfile(STEP.trace, runs, STEP.events, STEP.segments))
    names = [event["args"]["name"] for event in of_kind(trace, "M") if event["name"] == "thread_name"]
    assert names == ["CPU: launch", "GPU: compute", "GPU: communication 2"]
    assert [event["tid"] for event in of_kind(trace, "X")] == [1, 2, 1, 4]


def test_a_real_step_makes_a_trace_that_holds_to_the_format(profile: StepProfile, estimate: trainfit.Estimate) -> None:
    trace = json.loads(json.dumps(chrome_trace(profile)))
    slices = of_kind(trace, "X")
    for event in trace["traceEvents"]:
        assert {"ph", "name", "pid", "tid"} <= event.keys()
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in slices)
    for track in (1, 2):  # what is on one track does not overlap
        row = [event for event in slices if event["tid"] == track]
        assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-6 for a, b in pairwise(row))
    end_us = max(event["ts"] + event["dur"] for event in slices)
    assert end_us == pytest.approx(estimate.step_time_ms * 1e3)
    highest = max(sum(event["args"].values()) for event in of_kind(trace, "C"))
    assert highest == estimate.peak_allocated_bytes


def test_a_snapshot_has_the_step_with_modules_as_frames() -> None:
    (entries,) = snapshot(STEP)["device_traces"]
    assert [(e["action"], e["size"], e["time_us"]) for e in entries] == [
        ("alloc", 2**20, 0),
        ("alloc", 3 * 2**20, 0),
        ("free_requested", 3 * 2**20, 0),
        ("free_completed", 3 * 2**20, 0),
    ]
    assert [frame["name"] for frame in entries[0]["frames"]] == ["parameters"]
    assert [frame["name"] for frame in entries[1]["frames"]] == [
        *("aten.op0.default", "layers.0.mlp", "layers.0", "layers", "activations")
    ]


@pytest.mark.parametrize("allocator", ["classic", "expandable"])
def test_torch_s_own_parsers_accept_the_snapshot_of_a_real_step(step: trainfit.Step, allocator: Any) -> None:
    estimate = trainfit.estimate(step, "h200", allocator=allocator)
    profile = estimate_profile(estimate)
    assert profile is not None
    data = pickle.loads(pickle.dumps(snapshot(profile), protocol=PICKLE_PROTOCOL))
    (entries,) = data["device_traces"]
    signs = {"alloc": 1, "free_requested": 0, "free_completed": -1}
    sizes = accumulate(signs[entry["action"]] * entry["size"] for entry in entries)
    assert max(sizes) == estimate.peak_allocated_bytes
    assert sum(segment["total_size"] for segment in data["segments"]) == estimate.peak_reserved_bytes
    assert any(frame["name"] == "layers.3.up" for entry in entries for frame in entry["frames"])
    assert _memory_viz.trace(data).startswith(f"Device 0 ----------------\n{len(entries)} entries\n")
    assert f"segments: {len(data['segments'])}" in _memory_viz.segsum(data)
    by_stack = _memory_viz.memory(data, format_flamegraph=str)
    assert "category:0:parameters" in by_stack
    assert _memory_viz.trace_plot(data).startswith("\n<!DOCTYPE html>")
    assert _memory_viz.segment_plot(data).startswith("\n<!DOCTYPE html>")


def test_the_command_line_writes_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, pickled = tmp_path / "step.json", tmp_path / "step.pickle"
    argv = ["estimate", "gpt2", "--batch", "1", "--seq", "64", "--perfetto", str(trace), "--memory-viz", str(pickled)]
    assert main(argv) == 0
    assert capsys.readouterr().out.endswith(f"Wrote {trace}\nWrote {pickled}\n")
    assert of_kind(json.loads(trace.read_text()), "C")
    (entries,) = pickle.loads(pickled.read_bytes())["device_traces"]
    assert any(frame["name"] == "blocks.11.mlp" for entry in entries for frame in entry["frames"])
