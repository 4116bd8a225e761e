"""Ops as a calibration writes them, and back: "bfloat16[8,4]{1,8}" -> `TensorRef`. In: JSON values. Out: an `Op`.

Strides are written only where a tensor is not contiguous; "3*float32[8]" in a list stands for three equal tensors.
Storages are numbered as the tensors come, since a described op does not say which of them share memory.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

from trainfit.cost.work import contiguous_stride
from trainfit.errors import BadProfile
from trainfit.records import Op, Phase, TensorRef

_TENSOR = re.compile(r"(?:(\d+)\*)?(\w+)\[([\d,]*)\](?:\{([\d,]*)\})?")


def read_op(
    name: str, args: Sequence[object], kwargs: Mapping[str, object], outputs: Sequence[object], phase: Phase
) -> Op:
    """The op that `trainfit.calibrate.measure` described; "tf32" is no argument of torch's."""
    storages = itertools.count()
    return Op(
        name=name,
        phase=phase,
        module="",
        args=tuple(_read_items(args, storages)),
        kwargs=tuple((key, _read_one(value, storages)) for key, value in kwargs.items() if key != "tf32"),
        outputs=tuple(item for item in _read_items(outputs, storages) if isinstance(item, TensorRef)),
        tf32=bool(kwargs.get("tf32")),
    )


def described(
    args: Sequence[object], kwargs: Sequence[tuple[str, object]], tf32: bool
) -> tuple[list[object], dict[str, object]]:
    """An op's arguments as they are written; "tf32" is one of them where it counts."""
    named = {key: _described_one(value) for key, value in kwargs}
    return _described_items(args), named | ({"tf32": True} if tf32 else {})


def _described_items(items: Sequence[object]) -> list[object]:
    """Neighbours that are equal tensors become one with a count."""
    found: list[object] = []
    for item, run in itertools.groupby(map(_described_one, items)):
        is_tensor = isinstance(item, str) and _TENSOR.fullmatch(item) is not None
        count = len(list(run))
        found += [f"{count}*{item}"] if is_tensor and count > 1 else [item] * count
    return found


def _described_one(value: object) -> object:
    if isinstance(value, TensorRef):
        text = f"{value.dtype}[{','.join(map(str, value.shape))}]"
        return (
            text if value.stride == contiguous_stride(value.shape) else f"{text}{{{','.join(map(str, value.stride))}}}"
        )
    if isinstance(value, tuple):
        return _described_items(value)
    return value


def _read_items(items: Sequence[object], storages: Iterator[int]) -> Iterator[object]:
    for item in items:
        match = _TENSOR.fullmatch(item) if isinstance(item, str) else None
        if match:
            for _ in range(int(match[1] or 1)):
                yield _tensor(match, storages)
        else:
            yield _read_one(item, storages)


def _read_one(value: object, storages: Iterator[int]) -> object:
    if isinstance(value, list):
        return tuple(_read_items(value, storages))
    match = _TENSOR.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    if match[1]:
        raise BadProfile(f"{value!r} stands where one tensor should", hint="the file was edited; calibrate again")
    return _tensor(match, storages)


def _tensor(match: re.Match[str], storages: Iterator[int]) -> TensorRef:
    shape = _integers(match[3])
    stride = contiguous_stride(shape) if match[4] is None else _integers(match[4])
    return TensorRef(next(storages), match[2], shape, stride, 0)


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",")) if text else ()
