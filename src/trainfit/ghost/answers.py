"""What a ghost answers when a program asks for data it does not have.

Scalars get a stated answer: True for bool, 1 for numbers. Shapes that depend on data cannot be guessed: the user states
them with `assume_size`, or the trace stops with an error that names the user's line.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from trainfit.errors import DataDependentShape

aten = torch.ops.aten

_STATED_SIZES: list[int] = []


@contextlib.contextmanager
def assume_size(elements: int) -> Iterator[None]:
    """Within this context a data-dependent op (`nonzero`, a boolean mask) on a ghost finds `elements` elements.

    Put it around the line that the error named, for instance the tokens one expert gets under balanced routing.
    """
    _STATED_SIZES.append(elements)
    try:
        yield
    finally:
        _STATED_SIZES.pop()


def answer_scalar(ghost: torch.Tensor) -> bool | int | float | complex:
    """The value of `.item()`, `bool()` and comparisons on a ghost."""
    if ghost.dtype == torch.bool:
        return True
    if ghost.dtype.is_complex:
        return 1 + 0j
    return 1.0 if ghost.dtype.is_floating_point else 1


def stated_size(op_name: str) -> int:
    """The number of elements the user stated for the data-dependent op now running; raises when nobody did."""
    if _STATED_SIZES:
        return _STATED_SIZES[-1]
    raise DataDependentShape(
        f"{op_name} at {_user_line()}: the size of its result depends on data, and a ghost has none",
        hint="wrap that line in `with trainfit.assume_size(n):` to state how many elements it finds",
    )


def _user_line() -> str:
    """The innermost line of the stack outside torch and trainfit."""
    ours = Path(__file__).parents[1]
    torchs = Path(torch.__file__).parent
    for frame in reversed(traceback.extract_stack()):
        path = Path(frame.filename)
        if not (path.is_relative_to(ours) or path.is_relative_to(torchs)) or path.is_relative_to(ours / "presets"):
            return f"{frame.filename}:{frame.lineno} `{frame.line}`"
    return "an unknown line"
