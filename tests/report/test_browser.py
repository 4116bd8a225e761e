"""The page in a real browser: it is quiet, closed to the outside, and does what it should under the mouse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, Tab
from small_model import HOSTILE

import trainfit


@pytest.fixture
def tab(chromium: Browser, plan_file: Path) -> Iterator[Tab]:
    opened = Tab(chromium, plan_file)
    yield opened
    opened.evaluate("localStorage.clear()")
    opened.close()


def text(tab: Tab, selector: str) -> str:
    content: str = tab.evaluate(f"document.querySelector({selector!r}).textContent")
    return content


def column(tab: Tab, number: int) -> list[str]:
    cells = f"document.querySelectorAll('#modules tbody tr td:nth-child({number})')"
    found: list[str] = tab.evaluate(f"[...{cells}].map((cell) => cell.dataset.value ?? cell.textContent)")
    return found


def test_the_page_is_quiet_and_asks_for_nothing_but_itself(tab: Tab, plan_file: Path) -> None:
    tab.hover("#memory .plot", 0.3)
    tab.hover("#frontier .dot.point")
    tab.click("#modules th:nth-child(3) button")
    tab.click("#theme")
    assert tab.complaints() == []
    assert tab.requests() == [plan_file.as_uri()]


def test_a_complaint_and_a_request_would_have_been_seen(tab: Tab, plan_file: Path) -> None:
    tab.evaluate("fetch('http://127.0.0.1:9/').catch(() => console.error('refused'))")
    assert any("refused" in complaint for complaint in tab.complaints())
    assert any("Content Security Policy" in complaint for complaint in tab.complaints())


def test_at_rest_the_cursor_names_the_peak(tab: Tab, plan: trainfit.Plan) -> None:
    assert text(tab, "#memory figure:last-of-type .op") == plan.predicted.peak_at.op
    assert text(tab, "#memory figure:last-of-type .module") == plan.predicted.peak_at.module
    assert text(tab, "#memory figure:last-of-type .flag") == "98.6 MiB"


def test_the_cursor_names_the_op_and_the_module_under_the_mouse(tab: Tab) -> None:
    def under(share: float) -> tuple[str, str]:
        tab.hover("#memory figure:first-of-type .plot", share)
        figure = "#memory figure:first-of-type"
        return text(tab, f"{figure} .when").split(", ")[1], text(tab, f"{figure} .module")

    modules = [under(share) for share in (0.002, 0.1, 0.5)]
    assert modules[0] == ("forward", "layers.0.up")
    assert modules[1][0] == "forward"
    assert modules[2][0] == "backward"
    # The cursor and the data that it is read from agree.
    expected = tab.evaluate(
        """(() => {
          const data = JSON.parse(document.getElementById("cursor-data").textContent);
          const line = data.timelines[0];
          const widths = line.ms.slice(1).map((end, column) => end - line.ms[column]);
          const widest = widths.indexOf(Math.max(...widths));  // the others may share a pixel
          const at = (runs) => runs.flatMap((run) => (Array.isArray(run) ? Array(run[1]).fill(run[0]) : [run]))[widest];
          return [(line.ms[widest] + line.ms[widest + 1]) / 2 / data.axis_ms, data.phases[at(line.phase)],
                  data.modules[at(line.module)]];
        })()"""
    )
    assert under(expected[0]) == (expected[1], expected[2] or "outside modules")


def test_arrow_keys_move_the_cursor(tab: Tab) -> None:
    plot = "#memory figure:first-of-type .plot"
    tab.evaluate(f"document.querySelector({plot!r}).focus()")
    before = text(tab, "#memory figure:first-of-type .when")
    tab.press("ArrowRight")
    assert text(tab, "#memory figure:first-of-type .when") != before
    tab.press("ArrowLeft")
    assert text(tab, "#memory figure:first-of-type .when") == before


def test_a_point_of_the_frontier_says_its_plan(tab: Tab) -> None:
    shown = "#frontier [data-panel]:not([hidden])"
    assert "the plan of this page" in text(tab, shown)
    tab.hover("#frontier .dot.point")
    assert "another plan" in text(tab, shown)
    assert "layers." in text(tab, f"{shown} li")
    tab.hover("h1")
    assert "the plan of this page" in text(tab, shown)


def test_sorting_sorts(tab: Tab) -> None:
    tab.click("#modules th:nth-child(3) button")
    held = [int(value) for value in column(tab, 3)]
    assert held == sorted(held, reverse=True)
    assert len(set(held)) > 2
    tab.click("#modules th:nth-child(3) button")
    assert [int(value) for value in column(tab, 3)] == sorted(held)
    tab.click("#modules th:nth-child(1) button")
    names = column(tab, 1)
    assert names.index("layers.0.up") < names.index("layers.1-2.up")
    assert tab.evaluate("document.querySelectorAll('#modules th[aria-sort]').length") == 1


def test_dark_follows_the_system_and_the_button_overrules_it(tab: Tab) -> None:
    def background() -> str:
        colour: str = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        return colour

    light = background()
    tab.prefer("dark")
    dark = background()
    assert (light, dark) == ("rgb(251, 251, 250)", "rgb(20, 22, 26)")
    tab.click("#theme")
    assert background() == light
    tab.prefer("light")
    tab.click("#theme")
    assert background() == dark


def test_a_module_named_script_is_inert(tab: Tab) -> None:
    assert tab.evaluate("typeof owned") == "undefined"
    assert tab.evaluate("document.scripts.length") == 4
    assert any(HOSTILE in name for name in column(tab, 1))
    assert HOSTILE in text(tab, "#decisions")


def test_the_download_is_the_plan_s_file(tab: Tab, plan: trainfit.Plan) -> None:
    tab.evaluate(
        """window.blobs = []; const make = URL.createObjectURL;
        URL.createObjectURL = (blob) => { window.blobs.push(blob); return make(blob); };"""
    )
    tab.click("#download")
    assert tab.evaluate("window.blobs[0].text()") == plan.to_json()


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_screen(chromium: Browser, plan_file: Path, width: int) -> None:
    opened = Tab(chromium, plan_file, width=width)
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    opened.close()


def test_the_page_prints(tab: Tab) -> None:
    assert tab.print_pages().startswith(b"%PDF")
