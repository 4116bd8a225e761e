"""Workloads that are single ops, as public nets call them: `ops_of_nets.jsonl.gz` has their arguments, one op a line.

In: a described op (`cost.described`). Out: a workload that makes such arguments and calls it. Values do not matter but
where they are places (of rows, of elements, of classes, of points): these lie inside of what they are places of, spread
evenly. What was drawn by hand in other groups shows how an op's time changes with its sizes; this shows the sizes,
types and layouts that nets have, in the shares in which they have them.
"""

from __future__ import annotations

import gzip
import importlib.resources
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import nn

from trainfit.calibrate.compute import rounded
from trainfit.calibrate.drawn_recurrents import recurrent
from trainfit.calibrate.recurrents import Kind
from trainfit.calibrate.workloads import Workload, aside
from trainfit.cost.described import read_op
from trainfit.cost.work import short_name
from trainfit.records import Op, Phase, TensorRef

_ROWS = ("index_select", "gather", "scatter", "scatter_add", "scatter_reduce", "index_add", "index_fill", "index_copy")
_PLACES: dict[str, Callable[[Sequence[Any]], int]] = {
    "embedding": lambda args: args[0].shape[0],
    "embedding_dense_backward": lambda args: args[2],
    "nll_loss_forward": lambda args: args[0].shape[1],
    "nll_loss_backward": lambda args: args[1].shape[1],
    "nll_loss2d_forward": lambda args: args[0].shape[1],
    "nll_loss2d_backward": lambda args: args[1].shape[1],
    **{name: lambda args: args[0].shape[args[1]] for name in _ROWS},
}
"""How many places there are to choose from, for ops whose integers are places."""
_ONE_OR_NONE = 2
_POOLS = tuple(f"aten.max_pool{dims}d_with_indices_backward" for dims in (2, 3))
_RECURRENT = "aten._cudnn_rnn."
_KINDS: dict[object, Kind] = {0: partial(nn.RNN, nonlinearity="relu"), 1: nn.RNN, 2: nn.LSTM, 3: nn.GRU}
"""By cuDNN's modes."""
_INDEXED = ("index", "_unsafe_index", "index_put", "_index_put_impl", "_unsafe_index_put")


@dataclass(frozen=True, slots=True)
class Replayed:
    """A call of the op on tensors like those that it was given."""

    name: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    tf32: bool

    def __call__(self) -> None:
        with aside():
            args, kwargs = arguments(self, "cuda")
        call = partial(function(self.name), *args, **kwargs)
        rounded(call) if self.tf32 else call()

    def __str__(self) -> str:
        return f"{self.name}{self.args}{self.kwargs}"


def replayed(op: Op) -> Replayed:
    return Replayed(op.name, op.args, op.kwargs, op.tf32)


def ops_of_nets() -> list[Workload]:
    """All that no other group has."""
    others = ("aten.convolution", _RECURRENT, *_POOLS)
    return [replayed(op) for op in _ops() if not op.name.startswith(others)]


def pools_of_nets() -> list[Workload]:
    """Gradients of the largest of windows, which go where these were found."""
    return [replayed(op) for op in _ops() if op.name.startswith(_POOLS)]


def filters_of_nets() -> list[Workload]:
    """Convolutions, whose library makes many calls for each."""
    return [replayed(op) for op in _ops() if op.name.startswith("aten.convolution")]


def recurrents_of_nets() -> list[Workload]:
    """Layers with weights of their own, forward and backward."""
    return [_layer(op) for op in _ops() if op.name.startswith(_RECURRENT)]


def _layer(op: Op) -> Workload:
    data, mode, width, layers, batch_first, both = (op.args[place] for place in (0, 6, 7, 9, 10, 13))
    assert isinstance(data, TensorRef)
    batch, steps = data.shape[:2] if batch_first else data.shape[1::-1]
    size: Any = (batch, steps, data.shape[-1], width, layers, both)
    return partial(recurrent, _KINDS[mode], size, getattr(torch, data.dtype))


@cache
def _ops() -> list[Op]:
    packed = importlib.resources.files("trainfit.calibrate").joinpath("ops_of_nets.jsonl.gz").read_bytes()
    return [read(*json.loads(line)) for line in gzip.decompress(packed).decode().splitlines()]


def read(name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> Op:
    return read_op(name, args, kwargs, (), Phase.FORWARD)


def function(name: str) -> Any:
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


def arguments(call: Replayed, device: str) -> tuple[list[Any], dict[str, Any]]:
    """As the op takes them, on a device; on "meta" nothing is computed."""
    base = short_name(call.name)
    types = [str(argument.type) for argument in function(call.name)._schema.arguments]
    names = [argument.name for argument in function(call.name)._schema.arguments]
    limit = _PLACES[base](call.args) if base in _PLACES else _ONE_OR_NONE
    args = [_value(value, kind, device, limit) for value, kind in zip(call.args, types, strict=False)]
    kwargs = {name: _value(value, types[names.index(name)], device, limit) for name, value in call.kwargs}
    if base in _INDEXED:
        sizes = call.args[0].shape
        args[1] = [_value(index, "", device, size) for index, size in zip(call.args[1], sizes, strict=False)]
    if call.name.startswith(_POOLS) and device != "meta":
        largest = function(call.name.replace("_backward", ""))
        args[7] = largest(*args[1:7])[1]
    if base.startswith("grid_sampler") and device != "meta":
        args[2 if base.endswith("backward") else 1].uniform_(-1, 1)
    return args, kwargs


def _value(value: Any, kind: str, device: str, limit: int) -> Any:
    """Types, layouts and memory formats are integers to a schema, and have names in a description."""
    if isinstance(value, TensorRef):
        return _tensor(value, device, limit)
    if isinstance(value, tuple):
        return [_value(item, kind, device, limit) for item in value]
    if not isinstance(value, str) or "str" in kind:
        return value
    return device if "Device" in kind else getattr(torch, value.removeprefix("torch."))


def _tensor(ref: TensorRef, device: str, limit: int) -> torch.Tensor:
    """Its elements lie as those of the net's do; what repeats is there once. Integers are below the limit."""
    length = 1 + sum((size - 1) * step for size, step in zip(ref.shape, ref.stride, strict=True)) if ref.numel else 0
    dtype = getattr(torch, ref.dtype)
    if device == "meta":
        values = torch.empty(length, dtype=dtype, device=device)
    elif dtype.is_floating_point or dtype.is_complex:
        values = torch.randn(length, device=device, dtype=dtype)
    else:
        values = torch.randint(limit, (length,), device=device).to(dtype)
    return values.as_strided(ref.shape, ref.stride)
