"""A sweep as a table and as a page: what is shown of each result, in which order, and nothing of it is markup."""

from __future__ import annotations

import html as html_escapes
import json
import re
from dataclasses import replace
from pathlib import Path

from browser import Browser, Tab

from trainfit.report import html, text
from trainfit.report.sweep_page import Cell, sweep_page
from trainfit.report.sweep_text import sweep_view
from trainfit.sweeps import Configuration, SweepResult

HOSTILE = "<script>alert(1)</script>"
GIB = 2**30


def result(batch: int, gpu: str = "h200", **fields: object) -> SweepResult:
    configuration = Configuration(arguments=(("batch", batch),), world_size=None, gpu=gpu, budget="auto")
    return SweepResult(configuration=configuration, **fields)  # type: ignore[arg-type]


FAST = result(
    4,
    status="feasible",
    tokens_per_second_per_gpu=12345.6,
    samples_per_second_per_gpu=1.5,
    step_time_ns=110_000_000,
    unplanned_step_time_ns=100_000_000,
    peak_allocated_bytes=2 * GIB,
    peak_reserved_bytes=3 * GIB,
    budget_bytes=4 * GIB,
    plan_json='{"secret": 1}',
)
TIGHT = result(8, "l4", status="does not fit", minimum_budget_bytes=30 * GIB, error="no plan fits")
BROKEN = result(16, status="failed", error=f"ValueError: {HOSTILE}", hint="look")
RESULTS = [FAST, TIGHT, BROKEN]


def test_the_table_has_a_row_per_configuration_and_says_what_failed() -> None:
    assert text.render(sweep_view(RESULTS)).splitlines() == [
        "1 of 3 configurations fit; fastest: batch 4, gpu h200, budget auto: 12,346 tokens/s/GPU",
        "",
        "batch   gpu  budget  tokens/s/GPU      step  overhead  peak reserved",
        "    4  h200    auto        12,346  110.0 ms    +10.0%        3.0 GiB  feasible",
        "    8    l4    auto             -         -         -              -  does not fit: needs 30.0 GiB",
        "   16  h200    auto             -         -         -              -  failed",
        "",
        "what failed",
        f"  ValueError: {HOSTILE}",
    ]


def test_without_tokens_the_samples_are_shown() -> None:
    images = [replace(FAST, tokens_per_second_per_gpu=None)]
    lines = text.render(sweep_view(images)).splitlines()
    assert lines[0] == "1 of 1 configurations fit; fastest: batch 4, gpu h200, budget auto: 1.50 samples/s/GPU"
    assert lines[2] == "batch   gpu  budget  samples/s/GPU      step  overhead  peak reserved"


def test_when_nothing_fits_there_is_no_fastest() -> None:
    assert text.render(sweep_view([TIGHT])).splitlines()[0] == "0 of 1 configurations fit"


def test_the_page_sorts_numbers_as_numbers_and_the_rest_as_text() -> None:
    page = sweep_page(RESULTS, "toy", "trainfit sweep toy")
    headings = [(heading.text, heading.is_sorted_as_text) for heading in page.headings]
    assert headings == [
        ("gpu", True),
        ("budget", True),
        ("batch", False),
        ("tokens/s/GPU", False),
        ("step", False),
        ("overhead", False),
        ("peak reserved", False),
    ]
    assert page.rows[0].cells == (
        Cell("h200", None),
        Cell("auto", None),
        Cell("4", 4.0),
        Cell("12,346", 12345.6),
        Cell("110.0 ms", 110e6),
        Cell("+10.0%", 0.1),
        Cell("3.0 GiB", 3.0 * GIB),
    )
    assert page.rows[1].cells[3:] == (Cell("-", -1.0),) * 4
    assert [(row.note, row.fits, row.error) for row in page.rows] == [
        ("feasible", True, None),
        ("does not fit: needs 30.0 GiB", False, "no plan fits"),
        ("failed", False, f"ValueError: {HOSTILE}"),
    ]


def test_the_page_is_closed_and_what_a_model_says_is_only_text() -> None:
    content = html.render_sweep(sweep_page(RESULTS, HOSTILE, "trainfit sweep toy"))
    assert HOSTILE not in content
    assert f'title="ValueError: {html_escapes.escape(HOSTILE)}"' in content
    assert not re.findall(r"""(?:src|href|action)=["'](?!data:)""", content)
    assert "http" not in content.replace("http-equiv", "")
    assert len(re.findall(r"<script[ >]", content)) == 3  # the theme, the result, the page's own


def test_the_page_s_file_has_the_results_without_the_plans() -> None:
    content = html.render_sweep(sweep_page(RESULTS, "toy"))
    (inside,) = re.findall(r'<script type="application/json" id="result">(.*?)</script>', content)
    rows = json.loads(json.loads(inside))
    assert [row["configuration"]["batch"] for row in rows] == [4, 8, 16]
    assert rows[0]["peak_reserved_bytes"] == 3 * GIB
    assert not any("plan" in row for row in rows)


def test_in_a_browser_a_heading_sorts_by_its_column_and_the_page_is_quiet(chromium: Browser, tmp_path: Path) -> None:
    file = tmp_path / "sweep.html"
    file.write_text(html.render_sweep(sweep_page([replace(FAST, configuration=BROKEN.configuration), *RESULTS], "toy")))
    tab = Tab(chromium, file)

    def column(number: int) -> list[str]:
        found: list[str] = tab.evaluate(
            f"[...document.querySelectorAll('tbody tr td:nth-child({number})')].map((cell) => cell.textContent)"
        )
        return found

    assert column(3) == ["16", "4", "8", "16"]
    tab.click("th:nth-child(3) button")
    assert column(3) == ["16", "16", "8", "4"]
    tab.click("th:nth-child(3) button")
    assert column(3) == ["4", "8", "16", "16"]
    tab.click("th:nth-child(1) button")
    assert column(1) == ["h200", "h200", "h200", "l4"]
    assert tab.complaints() == []
    assert tab.requests() == [file.as_uri()]
    tab.close()
