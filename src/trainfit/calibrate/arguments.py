"""Tensors for a call that nobody has the tensors of. In: a `Call`, and a pool of random numbers. Out: its arguments.

Every tensor has the shape, the strides and the type that the call names. Values do not matter but where they are places
(of rows, of elements, of classes), which lie inside of what they are places of and are spread evenly, or where an op
takes only some (`meanings`). Random numbers are made once and
handed out again and again: making them would take longer than most calls. What a call writes to gets a copy, so that
the numbers stay what they are; products of zeros, say, draw less power and are faster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trainfit.calibrate.calls import Call
from trainfit.calibrate.meanings import MEANINGS
from trainfit.records import TensorRef

_ALIGNED_BYTES = 512
"""As torch's allocator aligns what it gives."""
_POOLED = (torch.float32, torch.bfloat16, torch.float16)
_NOT_TRUE_OR_TRUE = 2
_ROWS = ("index_select", "gather", "scatter", "scatter_add", "scatter_reduce", "index_add", "index_fill", "index_copy")
_PLACES: Mapping[str, Callable[[Sequence[Any]], int]] = {
    "embedding": lambda args: args[0].shape[0],
    "embedding_dense_backward": lambda args: args[2],
    "_embedding_bag": lambda args: args[0].shape[0],
    "_embedding_bag_backward": lambda args: args[6],
    "nll_loss_forward": lambda args: args[0].shape[1],
    "nll_loss_backward": lambda args: args[1].shape[1],
    "nll_loss2d_forward": lambda args: args[0].shape[1],
    "nll_loss2d_backward": lambda args: args[1].shape[1],
    "_ctc_loss": lambda args: args[0].shape[2],
    "_ctc_loss_backward": lambda args: args[1].shape[2],
    "take": lambda args: args[0].numel,
    "put": lambda args: args[0].numel,
    "bincount": lambda args: 64,
    **{name: lambda args: args[0].shape[args[1]] for name in _ROWS},
}
"""How many places there are to choose from, for ops whose integers are places."""
_INDEXED = ("index", "_unsafe_index", "index_put", "_index_put_impl", "_unsafe_index_put")
_SEEDS = ("philox_seed", "philox_offset")
_OF_WHOLE_STORAGES = ("select_scatter", "slice_scatter", "diagonal_scatter", "as_strided_scatter")
"""Ops that copy all of the memory that their tensor lies in."""


class Pool:
    """Random numbers of the usual types, on a device: so many bytes of each. On "meta" there are none."""

    def __init__(self, device: str, bytes_per_type: int) -> None:
        self.device = device
        self._numbers = {
            dtype: torch.randn(bytes_per_type // dtype.itemsize, device=device, dtype=dtype) for dtype in _POOLED
        }
        self._used: Counter[torch.dtype] = Counter()

    def begin(self) -> None:
        """What was handed out is no longer in use."""
        self._used.clear()

    def numbers(self, length: int, dtype: torch.dtype) -> Tensor:
        """So many, which lie nowhere else as long as they are in use."""
        first, step = self._used[dtype], _ALIGNED_BYTES // dtype.itemsize
        pool = self._numbers.get(dtype)
        if pool is None or first + length > len(pool):
            return torch.randn(length, device=self.device, dtype=dtype)
        self._used[dtype] += -(-length // step) * step
        return pool[first : first + length]

    def integers(self, length: int, dtype: torch.dtype, limit: int) -> Tensor:
        below = _NOT_TRUE_OR_TRUE if dtype == torch.bool else max(limit, 1)
        return torch.randint(below, (length,), device=self.device).to(dtype)


def arguments(call: Call, pool: Pool) -> tuple[list[Any], dict[str, Any]]:
    """As the op takes them. On "meta" they have no values."""
    pool.begin()
    base = call.short_name
    schema = call.function._schema.arguments
    limit = _PLACES[base](call.args) if base in _PLACES else _NOT_TRUE_OR_TRUE
    by_name = {argument.name: argument for argument in schema}
    args = [_value(value, argument, pool, limit) for value, argument in zip(call.args, schema, strict=False)]
    kwargs = {name: _value(value, by_name[name], pool, limit) for name, value in call.kwargs}
    if base in _OF_WHOLE_STORAGES:
        args[0] = _copied(args[0])
    if base in _INDEXED:
        sizes = call.args[0].shape
        args[1] = [_indices(index, pool, size) for index, size in zip(call.args[1], sizes, strict=False)]
    if base in MEANINGS and pool.device != "meta":
        MEANINGS[base](call, args)
    return args, kwargs


def _value(value: Any, argument: Any, pool: Pool, limit: int) -> Any:
    """Types, layouts and memory formats are integers to a schema, and have names in a description; what lay in the
    host's memory has no description."""
    if isinstance(value, TensorRef):
        found = _tensor(value, pool, limit)
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        return _copied(found) if is_written else found
    if isinstance(value, tuple):
        return [_value(item, argument, pool, limit) for item in value]
    if value is None and argument.name in _SEEDS:
        return torch.zeros((), dtype=torch.int64)
    kind = str(argument.type)
    if isinstance(value, float) and "int" in kind:
        return int(value)
    if not isinstance(value, str) or "str" in kind:
        return value
    return pool.device if "Device" in kind else getattr(torch, value.removeprefix("torch."))


def _tensor(ref: TensorRef, pool: Pool, limit: int) -> Tensor:
    """Its elements lie as those of the call's do; what repeats is there once. Integers are below the limit."""
    length = 1 + sum((size - 1) * step for size, step in zip(ref.shape, ref.stride, strict=True)) if ref.numel else 0
    dtype = getattr(torch, ref.dtype)
    is_number = dtype.is_floating_point or dtype.is_complex
    values = pool.numbers(length, dtype) if is_number else pool.integers(length, dtype, limit)
    return values.as_strided(ref.shape, ref.stride, values.storage_offset())


def _copied(tensor: Tensor) -> Tensor:
    """Elsewhere, and lying as it did."""
    found = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return found.copy_(tensor) if all(tensor.stride()) else found.zero_()


def _indices(index: Any, pool: Pool, size: int) -> Any:
    return _tensor(index, pool, size) if isinstance(index, TensorRef) else index
