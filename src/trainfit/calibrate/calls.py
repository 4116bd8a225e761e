"""Calls of ops, without their data; and those that `calibrate` times, one a line of `ops.jsonl.gz`.

In: that file, or an op and its arguments. Out: `Call`s.

The file's sizes, types and layouts are those that public nets have, in the shares in which they have them, and others
that were drawn at random around these, so that a rule sees how its op's time changes with every size. Of calls that are
priced by one rule and nearly the same numbers the file has one. `benchmarks/select_calls.py` wrote it.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib.resources
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from trainfit.cost.described import described, read_op
from trainfit.cost.work import short_name
from trainfit.records import Phase, TensorRef
from trainfit.torch_compat import is_rounded_product

_FILE = "ops.jsonl.gz"


@dataclass(frozen=True, slots=True)
class Call:
    """An op and its arguments, which have `TensorRef`s for tensors."""

    name: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    tf32: bool
    """Whether products of float32 are computed in TF32."""

    @property
    def short_name(self) -> str:
        return short_name(self.name)

    @property
    def function(self) -> Any:
        namespace, packet, overload = self.name.split(".")
        return getattr(getattr(getattr(torch.ops, namespace), packet), overload)

    def described(self) -> tuple[list[Any], dict[str, Any]]:
        """Its arguments in JSON's terms."""
        return described(self.args, self.kwargs, self.tf32)

    @contextlib.contextmanager
    def precision(self) -> Iterator[None]:
        """Products inside are computed as the call's are."""
        before = torch.backends.cuda.matmul.fp32_precision
        if self.tf32:
            torch.backends.cuda.matmul.fp32_precision = "tf32"
        try:
            yield
        finally:
            torch.backends.cuda.matmul.fp32_precision = before

    def __str__(self) -> str:
        return json.dumps([self.name, *self.described()])


def call_of(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """What was called with these tensors."""
    named = tuple((name, _plain(value)) for name, value in kwargs.items())
    return Call(str(function), tuple(map(_plain, args)), named, is_rounded_product(function, args))


def _plain(value: Any) -> Any:
    """In a record's terms."""
    if isinstance(value, torch.Tensor):
        return _ref(value)
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    return _name(value)


def describe(tensor: torch.Tensor) -> str:
    """In JSON's terms: "bfloat16[8,4]{1,8}", without strides where these are what a contiguous one's would be."""
    (text,), _ = described((_ref(tensor),), (), False)
    return str(text)


def _ref(tensor: torch.Tensor) -> TensorRef:
    return TensorRef(0, _name(tensor.dtype), tuple(tensor.shape), tuple(tensor.stride()), 0)


def _name(value: object) -> str:
    return str(value).removeprefix("torch.")


def read_call(name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> Call:
    """From JSON's terms (`cost.described`)."""
    op = read_op(name, args, kwargs, (), Phase.FORWARD)
    return Call(op.name, op.args, op.kwargs, op.tf32)


@cache
def all_calls() -> tuple[Call, ...]:
    """In the order of the file, which has those of one kind together."""
    packed = importlib.resources.files("trainfit.calibrate").joinpath(_FILE).read_bytes()
    return tuple(read_call(*json.loads(line)) for line in gzip.decompress(packed).decode().splitlines())
