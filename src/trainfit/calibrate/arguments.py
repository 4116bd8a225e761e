"""Tensors for a call that nobody has the tensors of. In: a `Call`, and a pool of random numbers. Out: its arguments.

Every tensor has the shape, the strides and the type that the call names. Values do not matter but where they are places
(of rows, of elements, of classes, of points), which lie inside of what they are places of and are spread evenly, or
where an op takes only some: probabilities, ends of groups, what another op returned. Random numbers are made once and
handed out again and again: making them would take longer than most calls. What a call writes to gets a copy, so that
the numbers stay what they are; products of zeros, say, draw less power and are faster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from trainfit.calibrate.calls import Call
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
_ELEMENTWISE = ("gather", "scatter", "scatter_add", "scatter_reduce")
"""Ops with an index for each element: those of a row go to one place, as where rows are added up by their numbers."""
_ROOTS = ("sqrt", "_foreach_sqrt", "_fused_adam", "_fused_adamw")
"""Ops that take roots, which take up to twice as long of negative numbers."""
_PROBABLE = ("multinomial", "bernoulli", "binary_cross_entropy", "binary_cross_entropy_backward")
"""Ops that take numbers between 0 and 1."""
_RECURRENT, _RECURRENT_BACKWARD = "_cudnn_rnn", "_cudnn_rnn_backward"
_LARGEST = ("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward")
_LARGEST_OF_PARTS = ("adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward")
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
    if pool.device != "meta":
        _give_meaning(call, args, pool)
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


def _give_meaning(call: Call, args: list[Any], pool: Pool) -> None:
    """Values that the op can work with, in place of random ones."""
    base = call.short_name
    if base in _PROBABLE:
        args[:] = [
            torch.rand_like(value) if isinstance(value, Tensor) and value.is_floating_point() else value
            for value in args
        ]
    elif base in _ROOTS:
        _make_positive(args)
    elif base in _ELEMENTWISE:
        args[2] = _by_rows(args[2], args[1], call.args[0].shape[args[1]], pool)
    elif base == "histc":
        low, high = args[2:4]
        args[0] = torch.rand_like(args[0]).mul_(high - low).add_(low)
    elif base.startswith(("grid_sampler", "cudnn_grid_sampler")):
        place = 2 if base in ("grid_sampler_2d_backward", "grid_sampler_3d_backward") else 1
        args[place] = torch.rand_like(args[place]).mul_(2).sub_(1)
    elif base in _LARGEST:
        args[7] = _forward(call)(*args[1:7])[1]
    elif base in _LARGEST_OF_PARTS:
        args[2] = _forward(call)(args[1], args[0].shape[2:])[1]
    elif base == "_grouped_mm":
        args[2] = _ends(args[0].shape[0 if args[0].dim() == 2 and args[1].dim() == 3 else -1], args[2])
    elif base == "_embedding_bag":
        args[2] = _starts(len(args[1]), args[2])
    elif base == "_embedding_bag_backward":
        bags = len(args[2])
        args[2], args[3] = _starts(len(args[1]), args[2]), _starts(bags, args[3])
        args[4] = torch.full_like(args[4], len(args[1]) // bags)
    elif base == "copy" and args[1] is None:
        args[1] = torch.ones(args[0].shape, dtype=args[0].dtype)
    elif base == "index_put" and args[2] is None:
        args[2] = torch.zeros((), dtype=args[0].dtype)
    elif base in _INDEXED and len(args) > 2 and args[1][0] is not None and args[1][0].dtype == torch.bool:
        args[1][0] = _mask(args[1][0], len(args[2]))
    elif base == "masked_scatter":
        args[1] = _mask(args[1], args[2].numel())
    elif base == "masked_scatter_backward":
        args[1] = _mask(args[1], prod(args[2]))
    elif base == _RECURRENT:
        _flatten(args[0].shape[-1], args[1:3], args[6:10], args[10], args[13])
    elif base == _RECURRENT_BACKWARD:
        _flatten(args[0].shape[-1], args[1:3], args[10:14], args[14], args[17])
        forward = torch.ops.aten._cudnn_rnn.default
        args[6], _, _, args[20], args[3] = forward(*args[:3], None, *args[4:6], *args[10:20])


def _make_positive(values: list[Any]) -> None:
    """Numbers of the pool get copies."""
    for place, value in enumerate(values):
        if isinstance(value, list):
            _make_positive(value)
        elif isinstance(value, Tensor) and value.is_floating_point():
            values[place] = value.abs()


def _by_rows(like: Tensor, dim: int, limit: int, pool: Pool) -> Tensor:
    """Indices along `dim` that are the same for all that lies behind it."""
    num_behind = prod(like.shape[dim % like.dim() + 1 :]) if like.dim() else 1
    if num_behind <= 1 or not like.is_contiguous():
        return like
    rows = pool.integers(like.numel() // num_behind, like.dtype, limit)
    return rows.view(-1, 1).expand(-1, num_behind).reshape(like.shape)


def _mask(like: Tensor, num_true: int) -> Tensor:
    """So many, spread evenly."""
    places = torch.arange(like.numel(), device=like.device)
    return (places * num_true % like.numel() < num_true).view(like.shape)


def _forward(call: Call) -> Any:
    return Call(call.name.replace("_backward", ""), (), (), False).function


def _ends(total: int, like: Tensor) -> Tensor:
    """Of groups that are equally large."""
    return torch.arange(1, len(like) + 1, device=like.device, dtype=like.dtype) * (total // len(like))


def _starts(total: int, like: Tensor) -> Tensor:
    """Of groups that are equally large, one after the other."""
    return torch.arange(len(like), device=like.device) * total // len(like)


def _flatten(inputs: int, weights: list[Any], sizes: list[Any], batch_first: bool, both_ways: bool) -> None:
    """Let the weights of recurrent layers lie in one piece, as torch's modules have them."""
    tensors, per_layer = weights
    mode, hidden, projected, layers = sizes
    tensors[:] = [tensor.clone() for tensor in tensors]
    torch.ops.aten._cudnn_rnn_flatten_weight(
        tensors, per_layer, inputs, mode, hidden, projected, layers, batch_first, both_ways
    )
