"""A model's fingerprint: its modules and their own parameters, in words, equal layers in one line.

In: a module (on any device). Out: lines such as `layers.{0-31}.mlp.up: Linear(weight bfloat16[14336, 4096])`. The
fingerprint is readable on purpose: when two models differ, `first_difference` names the module and says how. No torch
is imported: what is asked of the model is what every module and parameter has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

_RANGES = re.compile(r"\{([0-9,-]+)\}")


def fingerprint(model: nn.Module) -> tuple[str, ...]:
    """One line per module, or per module of a numbered row of equal ones; in the order of `named_modules`."""
    rows: dict[tuple[str, str, str], list[int]] = {}
    for path, module in model.named_modules():
        parts = path.split(".")
        number = next((index for index, part in enumerate(parts) if part.isdigit()), None)
        if number is None:
            rows[path, "", _describe(module)] = []
        else:
            key = ".".join([*parts[:number], ""]), ".".join(["", *parts[number + 1 :]]), _describe(module)
            rows.setdefault(key, []).append(int(parts[number]))
    return tuple(
        f"{before}{{{format_ranges(numbers)}}}{after}: {what}" if numbers else f"{before}: {what}"
        for (before, after, what), numbers in rows.items()
    )


def first_difference(planned: Sequence[str], found: Sequence[str]) -> str | None:
    """The first module, by the plan's order, in which the models differ, and how; None if they are equal."""
    if list(planned) == list(found):
        return None
    theirs = dict(_expanded(found))
    for path, what in _expanded(planned):
        if path not in theirs:
            return f"{path or 'the model'} is missing"
        if theirs[path] != what:
            return f"{path or 'the model'} is {theirs[path]}, and was {what}"
    ours = dict(_expanded(planned))
    extra = next((path for path in theirs if path not in ours), None)
    return None if extra is None else f"{extra} is new"


def format_ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as people write them: "0-11,14"."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def _describe(module: nn.Module) -> str:
    parameters = [
        f"{name} {str(p.dtype).removeprefix('torch.')}{list(p.shape)}{'' if p.requires_grad else ' frozen'}"
        for name, p in module.named_parameters(recurse=False)
    ]
    return f"{type(module).__name__}({', '.join(parameters)})"


def _expanded(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        path, _, what = line.partition(": ")
        ranges = _RANGES.search(path)
        if ranges is None:
            yield path, what
            continue
        for span in ranges[1].split(","):
            first, _, last = span.partition("-")
            for number in range(int(first), int(last or first) + 1):
                yield f"{path[: ranges.start()]}{number}{path[ranges.end() :]}", what
