"""Puts every measured table of benchmarks/results/ into docs/accuracy.md, below its marker: `make accuracy`.

In: the results' Markdown files, each with a title, a text that says how it was measured, and tables. Out: the page,
whose own text above the marker stays. A test fails while the page is not what this script would write.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "accuracy.md"
RESULTS = ROOT / "benchmarks" / "results"
MARKER = "<!-- Below this line: docs/make_accuracy.py -->\n"


def section(path: Path) -> str:
    """One result: its title, how it was measured, and its tables, folded."""
    # Links in a result are from where it lies.
    content = re.sub(r"\]\((?!\w+://|#)", "](../benchmarks/results/", path.read_text())
    title, _, rest = content.partition("\n")
    table = re.search(r"^(\||```)", rest, re.MULTILINE)
    how, tables = (rest[: table.start()], rest[table.start() :]) if table else (rest, "")
    parts = [f"## {title.removeprefix('# ')}", how.strip(), f"[{path.name}](../benchmarks/results/{path.name})"]
    if tables:
        parts.append(f"<details><summary>all rows</summary>\n\n{tables.strip()}\n\n</details>")
    return "\n\n".join(part for part in parts if part)


def page() -> str:
    """The whole page as it should be."""
    head, marker, _ = PAGE.read_text().partition(MARKER)
    assert marker, f"{PAGE} has lost its marker"
    return head + MARKER + "\n" + "\n\n".join(section(path) for path in sorted(RESULTS.glob("*.md"))) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
