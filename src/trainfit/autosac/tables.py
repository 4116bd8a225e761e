"""Tables as text for the `display_*` methods: the only place of the trackers that prints."""

from __future__ import annotations

from collections.abc import Sequence

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def show(*lines: str) -> None:
    for line in lines:
        print(line)  # noqa: T201


def show_table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, ruled: bool = False) -> None:
    """Columns as wide as their longest cell; `ruled` puts lines around the head, as in reStructuredText."""
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    head = "  ".join(f"{cell:<{width}}" for cell, width in zip(headers, widths, strict=True)).rstrip()
    rule = "  ".join("=" * width for width in widths)
    show(*([rule, head, rule, *lines, rule] if ruled else [head, *lines]))


def in_unit(nbytes: int, units: str) -> str:
    """ "1.5 MiB"; whole numbers for bytes."""
    if units not in UNITS:
        raise ValueError(f"no unit is called {units!r}; there are {', '.join(UNITS)}")
    return f"{nbytes} B" if units == "B" else f"{round(nbytes / UNITS[units], 2)} {units}"


def depth_of(fqn: str) -> int:
    """How deep a module lies: 1 for a root."""
    return fqn.count(".") + 1
