"""The page as a file: what is on it, that it is closed to the outside, and how large it gets."""

from __future__ import annotations

import html as html_escapes
import json
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from profiles import ACTIVATIONS, BACKWARD, FORWARD, PARAMETERS, RECOMPUTE, Row, profile_of
from small_model import HOSTILE

import trainfit
from trainfit import _report
from trainfit._plan import Planner
from trainfit._report import estimate_page, plan_page
from trainfit._time_estimate import TimeEstimate
from trainfit._verify_record import Verification
from trainfit.cli import main
from trainfit.errors import BadPlan
from trainfit.report import html, view
from trainfit.report.strip import KEPT, RECOMPUTED, BlockClass, BlockValue, strips
from trainfit.solve import Verdict
from trainfit.units import format_bytes

SECTIONS = "measured comparison frontier memory breakdown decisions modules time assumptions provenance".split()


@pytest.fixture(scope="module")
def page(plan: trainfit.Plan) -> view.Page:
    return plan_page(plan, plan.planner)


def sections(text: str) -> list[str]:
    return re.findall(r'<section id="(\w+)">', text)


def test_the_page_has_every_section_in_order(plan_file: Path) -> None:
    assert sections(plan_file.read_text()) == SECTIONS


def test_nothing_is_loaded_from_anywhere(plan_file: Path) -> None:
    text = plan_file.read_text()
    assert "default-src 'none'" in text
    # The rest of the page has no address at all, not even of a namespace.
    assert not re.findall(r"""(?:src|href|action)=["'](?!data:)""", text)
    assert "http://" not in text
    assert "https://" not in text


def test_a_module_s_name_is_only_ever_text(plan_file: Path) -> None:
    text = plan_file.read_text()
    assert HOSTILE not in text
    assert html_escapes.escape(HOSTILE) in text
    assert len(re.findall(r"<script[ >]", text)) == 4  # the theme, the cursor's data, the result, the page's own


def test_the_memory_shown_is_the_memory_predicted(page: view.Page, plan: trainfit.Plan) -> None:
    assert page.memory is not None
    before, after = page.memory.timelines
    assert after.peak_allocated_bytes == plan.predicted.peak_allocated_bytes
    assert after.peak_reserved_bytes == plan.predicted.peak_reserved_bytes
    assert after.step_ns == plan.predicted_step_ns
    assert before.peak_allocated_bytes == plan.rows[0].peak_bytes
    assert before.recomputing == ()
    assert len(after.recomputing) == 2


def test_the_peak_is_described_in_the_markup_itself(page: view.Page, plan: trainfit.Plan) -> None:
    shown = html.render(page).split("<figure>")[2]  # the second timeline
    breakdown = plan.predicted.breakdown_bytes
    assert f">{format_bytes(plan.predicted.peak_allocated_bytes)}</span>" in shown
    assert f"activations <b>{format_bytes(breakdown['activations'])}</b>" in shown
    assert f'<code class="op">{plan.predicted.peak_at.op}</code>' in shown


def test_what_is_recomputed_is_found_in_its_own_module(page: view.Page) -> None:
    again = {row.name for row in page.modules if row.recompute_ns}
    assert again == {f"layers.0-1.{HOSTILE}"}
    held = {row.name: (row.held_bytes, row.held_after_bytes) for row in page.modules}
    size = 4096 * 256 * 4
    assert held[f"layers.0-1.{HOSTILE}"] == (2 * size, 0)
    assert held["layers.1-2.up"] == (2 * size, 2 * size)


def test_the_frontier_has_the_plan_and_falls_with_memory(page: view.Page, plan: trainfit.Plan) -> None:
    (mine,) = [point for point in page.frontier if point.is_plan]
    assert (mine.peak_bytes, mine.step_ns) == (plan.rows[-1].peak_bytes, plan.rows[-1].step_ns)
    assert mine.decisions[0].startswith("layers.0: recompute")
    assert len(page.frontier) >= 4
    times = [point.step_ns for point in sorted(page.frontier, key=lambda point: point.peak_bytes)]
    assert times == sorted(times, reverse=True)


def test_where_written_traces_are_wrong_about_the_plan_the_frontier_is_judged(
    plan: trainfit.Plan, page: view.Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Planner, "written", lambda self, ways: Verdict(peak_bytes=1, step_ns=1))
    monkeypatch.setattr(_report, "FRONTIER_CHOICES", 2)
    judged = plan_page(plan, plan.planner).frontier
    assert [point for point in judged if point.is_plan] == [point for point in page.frontier if point.is_plan]
    assert {judged[0], judged[-1]} == {page.frontier[0], page.frontier[-1]}


def test_the_strip_says_what_each_layer_keeps(page: view.Page) -> None:
    first, strip = page.strips  # the first layer needs no gradient of its input, so it is a class of its own
    assert first.cells == (("layers.0", 0),)
    assert [(group.label, group.states) for group in first.groups] == [("layers.0", (KEPT, RECOMPUTED))]
    assert strip.cells == (("layers.1", 0), ("layers.2", 1), ("layers.3", 1))
    assert [(value.module, value.op) for value in strip.values] == [("up", "addmm"), (HOSTILE, "gelu")]
    assert [(group.label, group.states) for group in strip.groups] == [
        ("layers.1", (KEPT, RECOMPUTED)),
        ("layers.2-3 (x2)", (KEPT, KEPT)),
    ]


def test_a_value_that_is_held_for_a_replay_only_is_kept_or_not_there(plan: trainfit.Plan) -> None:
    decision, _ = plan.decisions
    holds_it = msgspec.structs.replace(decision, blocks=("layers.1",), kept=(99,))
    held = BlockValue(storage=99, module="", op="mm", nbytes=512, time_ns=1, is_needed=False)
    planned = msgspec.structs.replace(plan, decisions=(holds_it,))
    (strip,) = strips(planned, (BlockClass(("layers.0", "layers.1"), (held,)),))
    assert [(group.label, group.states) for group in strip.groups] == [("layers.0", ("",)), ("layers.1", (KEPT,))]


def test_what_was_measured_is_drawn_over_what_was_predicted(plan_file: Path) -> None:
    text = plan_file.read_text()
    assert text.count("measured peak 97.6 MiB") == 1  # the plan's; the unplanned step was not measured
    assert text.count('class="dot measured') == 1


def test_the_result_can_be_downloaded_as_it_is(plan_file: Path, plan: trainfit.Plan) -> None:
    found = re.search(r'id="result">(.*?)</script>', plan_file.read_text(), re.DOTALL)
    assert found is not None
    assert json.loads(found[1]) == plan.to_json()


def test_what_was_measured_is_beside_what_was_predicted(plan: trainfit.Plan, verification: Verification) -> None:
    page = plan_page(plan, None, measured=verification)
    assert page.measured_on == "NVIDIA H200, torch 2.11.0+cu130"
    row = page.comparison[-1]
    assert (row.name, row.is_measured, row.fits) == ("plan, measured", True, True)
    assert row.peak_bytes == plan.predicted.peak_allocated_bytes - 2**20
    assert {check.name: check.passed for check in page.checks}["step time"] is False


def test_a_verification_of_another_plan_is_refused(plan: trainfit.Plan, verification: Verification) -> None:
    with pytest.raises(BadPlan, match="of another plan"):
        plan_page(plan, None, measured=replace(verification, predicted_step_ns=1))


def test_an_estimate_has_a_page_of_its_own(step: trainfit.Step) -> None:
    estimate = trainfit.estimate(step, "h200")
    page = estimate_page(estimate)
    assert page.verdict.headline == "Fits"
    assert page.memory is not None
    assert page.memory.timelines[0].peak_allocated_bytes == estimate.peak_allocated_bytes
    shown = sections(html.render(page))
    assert shown == [name for name in SECTIONS if name not in ("measured", "comparison", "frontier", "decisions")]
    assert page.missing is None
    spread = dict(estimate_page(replace(estimate, parallelism="FSDP over 8 GPUs")).provenance)
    assert spread["parallelism"] == "FSDP over 8 GPUs; all figures are of one of them"
    assert estimate_page(replace(estimate, source=None)).missing is not None


def test_a_plan_that_recomputes_nothing_shows_its_step_once(step: trainfit.Step) -> None:
    roomy = trainfit.plan(step, "h200")
    page = plan_page(roomy, roomy.planner)
    assert page.memory is not None
    assert [timeline.name for timeline in page.memory.timelines] == ["plan"]
    assert page.modules[0].held_after_bytes is None
    assert [point.decisions for point in page.frontier if point.is_plan] == [("every block keeps everything",)]
    assert sections(html.render(page)) == SECTIONS[1:]


def test_notebooks_show_the_page_in_a_frame_of_its_own(plan: trainfit.Plan, step: trainfit.Step) -> None:
    for result in (trainfit.estimate(step, "h200"), trainfit.Plan.from_json(plan.to_json())):
        shown = result._repr_html_()
        assert re.fullmatch(r'<iframe srcdoc="[^"]*" sandbox="allow-scripts allow-downloads" [^<>]*></iframe>', shown)
        assert HOSTILE not in html_escapes.unescape(shown)


def test_the_planner_is_no_part_of_the_plan(plan: trainfit.Plan) -> None:
    loaded = trainfit.Plan.from_json(plan.to_json())
    assert plan.planner is not None
    assert loaded.planner is None
    assert loaded == plan


def test_the_command_line_writes_pages_and_says_so(
    plan: trainfit.Plan, verification: Verification, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan_json, page, measured = tmp_path / "plan.json", tmp_path / "plan.html", tmp_path / "verified.json"
    plan.save(plan_json)
    measured.write_text(json.dumps(verification.to_json_dict()))
    assert main(["report", str(plan_json), "-o", str(page), "--measured", str(measured)]) == 0
    assert capsys.readouterr().out == f"Wrote {page}\n"
    text = page.read_text()
    assert "made from the plan's file alone" in html_escapes.unescape(text)
    assert sections(text) == ["measured", "comparison", "breakdown", "decisions", "assumptions", "provenance"]
    assert f"trainfit report {plan_json}" in text

    assert main(["report", str(plan_json), "-o", str(page), "--perfetto", str(tmp_path / "x")]) == 2
    assert "name the target" in capsys.readouterr().err
    assert main(["report", str(plan_json), "gpt2", "--batch", "1", "--seq", "8", "-o", str(page)]) == 2
    assert "the plan is for another model" in capsys.readouterr().err
    measured.write_text("{}")
    assert main(["report", str(plan_json), "-o", str(page), "--measured", str(measured)]) == 2
    assert "is no verification" in capsys.readouterr().err


def test_a_plan_that_was_loaded_has_everything_when_its_step_is_named(
    plan: trainfit.Plan, step: trainfit.Step, tmp_path: Path
) -> None:
    loaded = trainfit.Plan.from_json(plan.to_json())
    loaded.report(tmp_path / "page.html", step)
    assert sections((tmp_path / "page.html").read_text()) == SECTIONS[1:]


def test_a_step_that_differs_in_what_the_file_does_not_say_is_refused(
    plan: trainfit.Plan, step: trainfit.Step, tmp_path: Path
) -> None:
    loaded = trainfit.Plan.from_json(plan.to_json())
    with pytest.raises(BadPlan, match=r"predicts 98\.6 MiB allocated on torch .*, and the step as named takes 97"):
        loaded.report(tmp_path / "page.html", replace(step, optimizer=torch.optim.SGD))
    other = replace(step, batch=(torch.empty(8, 64, device="meta"),))
    with pytest.raises(BadPlan, match=r"for the inputs 0 float32\[4096, 64\], and the target has 0 float32\[8, 64\]"):
        loaded.report(tmp_path / "page.html", other)


def test_eighty_layers_stay_under_400_kilobytes(page: view.Page, plan: trainfit.Plan) -> None:
    """A step of thousands of ops with long names, no two layers alike, so that nothing folds."""
    names = [f"model.decoder.layers.{n}.self_attention.projection_{k}" for n in range(80) for k in range(8)]
    sizes = [2**20 * (1 + index % 977) for index in range(4 * len(names))]
    forward: list[Row] = [(FORWARD, name, [(ACTIVATIONS, size)]) for name, size in zip(names * 4, sizes, strict=True)]
    backward: list[Row] = [
        (BACKWARD, name, [(ACTIVATIONS, -size)])
        for name, size in zip(reversed(names * 4), reversed(sizes), strict=True)
    ]
    again: list[Row] = [(RECOMPUTE, name, []) for name in names]
    profile = profile_of([*forward, *again, *backward], before=[(PARAMETERS, 2**36)])
    side = view.Side(replace(plan.predicted, time=timed(page)), profile)
    points = tuple(replace(page.frontier[0], peak_bytes=2**36 + n, is_plan=n == 0) for n in range(20))
    values = tuple(BlockValue(n, "self_attention.projection", "mm", 2**27, 10**6, True) for n in range(40))
    blocks = BlockClass(tuple(f"model.decoder.layers.{n}" for n in range(80)), values)
    details = view.PlanDetails(before=side, after=side, points=points, classes=(blocks,))
    text = html.render(view.plan_page(plan, details, command=None))
    assert len(re.findall(r'<div title="model\.decoder', text)) == 80
    assert 200_000 < len(text.encode()) < 400_000


def timed(page: view.Page) -> TimeEstimate:
    last = page.times[-1]
    return TimeEstimate(
        step_ms=last.step_ms, range_ms=(1.0, 2.0), phase_ms=dict(last.phase_ms), gpu_busy_ms=last.gpu_busy_ms,
        gpu_busy_range_ms=(0.5, 1.5), host_ms=1.0, launch_bound=False, launch_bound_sure=True, mfu=0.5,
        source="profile", roofline_share=0.0,
        top_ops=last.top_ops, top_modules=(), op_ends_ns=(),
    )  # fmt: skip
