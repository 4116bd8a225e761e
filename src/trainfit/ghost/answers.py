"""What a ghost answers when a program asks for data.

Known values (`values.py`) are given. Other scalars get a stated answer: True for bool, 1 for numbers, False for
`any()`, 0 for the overflow flag of a GradScaler: the answers of a step in which nothing special happens. Shapes that
depend on unknown data cannot be guessed: the user states them with `assume_size`, or the trace stops at that line.
Where numbers were read that may be sizes, the line is remembered for the error that a wrong guess may lead to.
"""

from __future__ import annotations

import contextlib
import linecache
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from trainfit import torch_compat
from trainfit.errors import DataDependentShape
from trainfit.ghost.tensor import Ghost
from trainfit.ghost.values import known_value, note_told

aten = torch.ops.aten

_STATED_SIZES: list[int] = []
_GUESSED_AT: list[tuple[str, int]] = []
"""The line that last read numbers which nobody knows, as file and line number; at most one."""
_ASKING_FOR_FAULTS: list[bool] = []


@contextlib.contextmanager
def assume_size(elements: int) -> Iterator[None]:
    """Within this context a data-dependent op (`nonzero`, a boolean mask) on a ghost finds `elements` elements, and an
    unknown integer that is read (`.item()`, `.tolist()`) is that number.

    Put it around the line that the error named, for instance the tokens one expert gets under balanced routing.
    """
    _STATED_SIZES.append(elements)
    try:
        yield
    finally:
        _STATED_SIZES.pop()


@contextlib.contextmanager
def asking_for_faults() -> Iterator[None]:
    """Within this context tensors that nobody knows are not equal: torch's own code compares a finding with True, to
    learn whether something is wrong with the data."""
    _ASKING_FOR_FAULTS.append(True)
    try:
        yield
    finally:
        _ASKING_FOR_FAULTS.pop()


def are_unknown_equal() -> bool:
    """What a comparison of tensors of one shape finds where nobody knows them."""
    return not _ASKING_FOR_FAULTS


def answer_scalar(ghost: torch.Tensor) -> bool | int | float | complex:
    """The value of `.item()`, `bool()` and comparisons on a ghost."""
    values = known_value(ghost)
    if values is not None:
        note_told(ghost)
        with torch_compat.host_kernels():
            return values.item()
    if isinstance(ghost, Ghost) and ghost.stated_value is not None:
        return ghost.stated_value
    number = guessed_number(ghost.dtype)
    if ghost.dtype == torch.bool:
        return bool(number)
    if ghost.dtype.is_complex:
        return complex(number)
    return float(number) if ghost.dtype.is_floating_point else number


def guessed_number(dtype: torch.dtype) -> int:
    """What an unknown number of this type is taken for."""
    if dtype == torch.bool:
        return 1
    _GUESSED_AT[:] = [_user_frame()]
    return _STATED_SIZES[-1] if _STATED_SIZES and not (dtype.is_floating_point or dtype.is_complex) else 1


def hint_of_guesses() -> str | None:
    """What to do about numbers that were read and guessed, if any were since `forget_guesses`."""
    if not _GUESSED_AT:
        return None
    return (
        f"if a size depends on data: {_source_of(*_GUESSED_AT[0])} read numbers that a ghost has not, and got ones;"
        " wrap that line in `with trainfit.assume_size(n):` to state them"
    )


def forget_guesses() -> None:
    _GUESSED_AT.clear()


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


def count_unique(x: torch.Tensor, is_consecutive: bool = False, dim: int | None = None) -> int:
    """How many distinct values a tensor has: known, or stated by the user; raises when neither."""
    values = known_value(x)
    if values is None:
        return _stated_size("aten.unique_consecutive" if is_consecutive else "aten.unique")
    with torch_compat.host_kernels():
        if not is_consecutive:
            return values.unique().numel()
        return int(values.unique_consecutive(dim=dim).shape[dim or 0])


def count_bins(x: torch.Tensor, minimum: int) -> int:
    """How many bins a count of values has: known, stated by the user, or the minimum that the program named."""
    values = known_value(x)
    if values is not None:
        with torch_compat.host_kernels():
            return max(minimum, int(values.max()) + 1 if values.numel() else 0)
    return minimum if minimum and not _STATED_SIZES else _stated_size("aten.bincount")


def count_repeats(repeats: torch.Tensor) -> int:
    """How many elements there are when each is repeated so often: known, or stated by the user; raises when neither."""
    values = known_value(repeats)
    if values is None:
        return _stated_size("aten.repeat_interleave")
    with torch_compat.host_kernels():
        return int(values.sum())


def _stated_size(op_name: str, line: str | None = None) -> int:
    if _STATED_SIZES:
        return _STATED_SIZES[-1]
    raise DataDependentShape(
        f"{op_name} at {line or _user_line()}: the size of its result depends on data, and a ghost has none",
        hint="wrap that line in `with trainfit.assume_size(n):` to state how many elements it finds",
    )


def _user_line() -> str:
    return _source_of(*_user_frame())


def _user_frame() -> tuple[str, int]:
    """The innermost line of the stack outside torch and trainfit."""
    ours = Path(__file__).parents[1]
    torchs = Path(torch.__file__).parent
    frame = sys._getframe(1)
    while frame.f_back is not None:
        path = Path(frame.f_code.co_filename)
        if not (path.is_relative_to(ours) or path.is_relative_to(torchs)) or path.is_relative_to(ours / "presets"):
            break
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _source_of(filename: str, line_number: int) -> str:
    return f"{filename}:{line_number} `{linecache.getline(filename, line_number).strip()}`"
