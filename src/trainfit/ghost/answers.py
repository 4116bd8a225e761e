"""What a ghost answers when a program asks for data.

Known values (`values.py`) are given. Other scalars get a stated answer: True for bool, 1 for numbers, False for
`any()`, 0 for the overflow flag of a GradScaler: the answers of a step in which nothing special happens. Shapes that
depend on unknown data cannot be guessed: the user states them with `assume_size`, or the trace stops at that line.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path

import torch

from trainfit import torch_compat
from trainfit.errors import DataDependentShape
from trainfit.ghost.tensor import Ghost
from trainfit.ghost.values import known_value

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
    values = known_value(ghost)
    if values is not None:
        with torch_compat.host_kernels():
            return values.item()
    if isinstance(ghost, Ghost) and ghost.stated_value is not None:
        return ghost.stated_value
    if ghost.dtype == torch.bool:
        return True
    if ghost.dtype.is_complex:
        return 1 + 0j
    return 1.0 if ghost.dtype.is_floating_point else 1


def count_nonzero(op_name: str, mask: torch.Tensor) -> int:
    """How many elements a data-dependent op finds: known, or stated by the user; raises when neither."""
    values = known_value(mask)
    if values is not None:
        with torch_compat.host_kernels():
            return int(values.count_nonzero())
    if not isinstance(mask, Ghost):
        return _stated_size(op_name)
    if mask.stated_count is None or mask.stated_count[1] != mask._version:
        mask.stated_count = _stated_size(op_name, mask.written_through_at), mask._version
    return mask.stated_count[0]


def note_written_through(mask: torch.Tensor, elements: int | None) -> None:
    """A mask says where to write, `elements` of them if that is clear. Backward, where no line is the user's, may ask
    for their number: what was stated at this line holds until the mask is written itself; else the error names it."""
    if not isinstance(mask, Ghost):
        return
    if elements is None and _STATED_SIZES:
        elements = _STATED_SIZES[-1]
    if elements is not None:
        mask.stated_count = elements, mask._version
    else:
        mask.written_through_at = _user_line()


def count_unique(x: torch.Tensor) -> int:
    """How many distinct values a tensor has: known, or stated by the user; raises when neither."""
    values = known_value(x)
    if values is None:
        return _stated_size("aten.unique")
    with torch_compat.host_kernels():
        return values.unique().numel()


def _stated_size(op_name: str, line: str | None = None) -> int:
    if _STATED_SIZES:
        return _STATED_SIZES[-1]
    raise DataDependentShape(
        f"{op_name} at {line or _user_line()}: the size of its result depends on data, and a ghost has none",
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
