"""A `Page` as one HTML file that needs nothing else: no request goes out, its scripts are the two of this package.

The template escapes whatever it is given. The content security policy allows no connection and only scripts with the
hashes of those two, so text that got through as markup would still not run.
"""

from __future__ import annotations

import base64
import hashlib
import html
from functools import cache
from importlib import resources

import jinja2
from markupsafe import Markup

from trainfit.records import Category
from trainfit.report import charts
from trainfit.report.sweep_page import SweepPage
from trainfit.report.view import Page
from trainfit.units import format_bytes

FRAME_HEIGHT_PX = 900


def render(page: Page) -> str:
    """The file's content."""
    memory = page.memory
    return _template("page.html").render(
        page=page,
        timelines=() if memory is None else charts.draw_timelines(memory),
        cursor_data=None if memory is None else charts.cursor_data(memory),
        frontier=None
        if not page.frontier
        else charts.draw_frontier(page.frontier, page.comparison, page.budget_bytes, page.memory_kind),
        stack=[category.value for category in charts.STACK],
        **_style_and_scripts(),
    )


def render_sweep(page: SweepPage) -> str:
    """The file's content, for a sweep."""
    return _template("sweep.html").render(page=page, **_style_and_scripts())


def notebook_frame(page: Page) -> str:
    """The page in a frame of its own, for a notebook's output: its style and scripts stay inside."""
    content = html.escape(render(page), quote=True)
    return (
        f'<iframe srcdoc="{content}" sandbox="allow-scripts allow-downloads" '
        f'style="width:100%;height:{FRAME_HEIGHT_PX}px;border:0"></iframe>'
    )


def _style_and_scripts() -> dict[str, str]:
    return {
        "style": _asset("page.css"),
        "theme_script": _asset("theme.js"),
        "page_script": _asset("page.js"),
        "script_hashes": " ".join(f"'sha256-{_sha256(_asset(name))}'" for name in ("theme.js", "page.js")),
    }


@cache
def _template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("trainfit.report", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "size": format_bytes,
        "ms": lambda ns: f"{ns / 1e6:.{1 if ns >= 10**6 else 3}f} ms" if ns else "0",
        "bytes_of": lambda moment, category: dict(zip(Category, moment.bytes_by_category, strict=True))[category],
        "signed": lambda share: f"{share:+.1%}",
        "share": lambda part, whole: f"{100 * part / whole:.1f}%" if whole else "",
        "width": lambda part, whole: round(100 * part / whole, 2) if whole else 0,
    }
    return environment.get_template(name)


@cache
def _asset(name: str) -> Markup:
    """One of the package's own files, put into the page as it is."""
    return Markup(resources.files("trainfit.report").joinpath("templates", name).read_text())


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
