"""Values that an op can work with, where random ones will not do. In: a call, and arguments with random values. Out:
the same list, with others in their places; by op, in `MEANINGS`.

Points lie inside of their image and as nets have them, groups are equally large, masks have as many places as there are
values, and what another op would have returned is what it returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from trainfit.calibrate.calls import Call
from trainfit.cost.samplers import MANY_QUERIES, is_few_per_query

Meaning = Callable[[Call, list[Any]], None]


def _probabilities(call: Call, args: list[Any]) -> None:
    args[:] = [
        torch.rand_like(value) if isinstance(value, Tensor) and value.is_floating_point() else value for value in args
    ]


def _positive(call: Call, args: list[Any]) -> None:
    """Roots of negative numbers take up to twice as long. Numbers that others read are not changed."""
    for place, value in enumerate(args):
        if isinstance(value, list):
            _positive(call, value)
        elif isinstance(value, Tensor) and value.is_floating_point():
            args[place] = value.abs()


def _places_of_rows(call: Call, args: list[Any]) -> None:
    """An index for each element: those of a row go to one place, as where rows are added up by their numbers."""
    dim, index = args[1:3]
    num_behind = prod(index.shape[dim % index.dim() + 1 :]) if index.dim() else 1
    if num_behind > 1 and index.is_contiguous():
        rows = index.view(-1, num_behind)
        args[2] = rows[:, :1].expand_as(rows).reshape(index.shape)


def _inside_of_bins(call: Call, args: list[Any]) -> None:
    low, high = args[2:4]
    args[0] = torch.rand_like(args[0]).mul_(high - low).add_(low)


_LARGEST_WINDOW, _DIRECTIONS = 16, 8
"""Rows and columns of points around one place; the directions in which heads of deformable attention look at first."""


def _points(place: int) -> Meaning:
    """As nets have them: the gradients of points that lie beside each other meet in the same pixels."""

    def lie(call: Call, args: list[Any]) -> None:
        image, grid = args[place - 1], args[place]
        pixel = 2 / torch.tensor(image.shape[:1:-1], device=grid.device)
        args[place] = _lying(grid.shape, pixel).clamp_(-1, 1).to(grid.dtype)

    return lie


def _lying(shape: Sequence[int], pixel: Tensor) -> Tensor:
    """Few points for each of many queries (deformable attention): around the query's own place, a pixel further each,
    where queries are many, those of all pixels in their order. Small windows of larger images (correlations): around
    any place, pixel by pixel. Rows and columns of points: an image that is bent or resized. A line of points: anywhere.
    """
    count, sizes, dims = shape[0], tuple(shape[1:-1]), shape[-1]
    device = pixel.device
    if is_few_per_query(sizes):
        queries, points = sizes
        side = math.isqrt(queries - 1) + 1
        in_order = _lattice((side, side), device).view(-1, dims)[:queries]
        centres = in_order.expand(count, -1, -1) if queries >= MANY_QUERIES else _anywhere((count, queries, 2), device)
        angle = torch.arange(count, device=device) % _DIRECTIONS * (2 * math.pi / _DIRECTIONS)
        direction = torch.stack([angle.cos(), angle.sin()], -1) * pixel
        steps = torch.arange(1, points + 1, device=device)
        return centres[:, :, None] + direction[:, None, None] * steps[:, None]
    if 1 in sizes:
        return _anywhere(shape, device)
    lattice = _lattice(sizes, device)
    reach = torch.tensor(sizes[::-1], device=device) * pixel / 2
    if max(sizes) <= _LARGEST_WINDOW and bool((reach < 1).all()):
        return _anywhere((count, *[1] * len(sizes), dims), device) + lattice * reach
    return lattice + _anywhere(shape, device) * pixel


def _anywhere(shape: Sequence[int], device: torch.device) -> Tensor:
    """From -1 to 1."""
    return torch.rand(shape, device=device).mul_(2).sub_(1)


def _lattice(sizes: Sequence[int], device: torch.device) -> Tensor:
    """The middles of so many equal parts of each dimension, from -1 to 1; a place's last coordinate stands first."""
    parts = [(torch.arange(size, device=device) * 2 + 1) / size - 1 for size in sizes]
    return torch.stack(torch.meshgrid(*parts, indexing="ij")[::-1], -1)


def _places_of_largest(call: Call, args: list[Any]) -> None:
    args[7] = _forward(call)(*args[1:7])[1]


def _places_of_largest_parts(call: Call, args: list[Any]) -> None:
    args[2] = _forward(call)(args[1], args[0].shape[2:])[1]


def _ends_of_groups(call: Call, args: list[Any]) -> None:
    is_by_rows = args[0].dim() == 2 and args[1].dim() == 3
    total, count = args[0].shape[0 if is_by_rows else -1], len(args[2])
    args[2] = torch.arange(1, count + 1, device=args[2].device, dtype=args[2].dtype) * (total // count)


def _bags(call: Call, args: list[Any]) -> None:
    args[2] = _starts(len(args[1]), args[2])


def _bags_backward(call: Call, args: list[Any]) -> None:
    num_bags = len(args[2])
    args[2], args[3] = _starts(len(args[1]), args[2]), _starts(num_bags, args[3])
    args[4] = torch.full_like(args[4], len(args[1]) // num_bags)


def _from_host(call: Call, args: list[Any]) -> None:
    if args[1] is None:
        args[1] = torch.ones(args[0].shape, dtype=args[0].dtype)


def _put(call: Call, args: list[Any]) -> None:
    first = args[1][0]
    if args[2] is None:
        args[2] = torch.zeros((), dtype=args[0].dtype)
    elif first is not None and first.dtype == torch.bool:
        args[1][0] = _mask(first, len(args[2]))


def _masked(call: Call, args: list[Any]) -> None:
    args[1] = _mask(args[1], args[2].numel() if isinstance(args[2], Tensor) else prod(args[2]))


def _recurrent(call: Call, args: list[Any]) -> None:
    _flatten(args[0].shape[-1], args[1:3], args[6:10], args[10], args[13])


def _recurrent_backward(call: Call, args: list[Any]) -> None:
    _flatten(args[0].shape[-1], args[1:3], args[10:14], args[14], args[17])
    forward = torch.ops.aten._cudnn_rnn.default
    args[6], _, _, args[20], args[3] = forward(*args[:3], None, *args[4:6], *args[10:20])


def _forward(call: Call) -> Any:
    return Call(call.name.replace("_backward", ""), (), (), False).function


def _starts(total: int, like: Tensor) -> Tensor:
    """Of groups that are equally large, one after the other."""
    return torch.arange(len(like), device=like.device) * total // len(like)


def _mask(like: Tensor, num_true: int) -> Tensor:
    """So many, spread evenly."""
    places = torch.arange(like.numel(), device=like.device)
    return (places * num_true % like.numel() < num_true).view(like.shape)


def _flatten(inputs: int, weights: list[Any], sizes: list[Any], batch_first: bool, both_ways: bool) -> None:
    """Let the weights of recurrent layers lie in one piece, as torch's modules have them."""
    tensors, per_layer = weights
    mode, hidden, projected, layers = sizes
    tensors[:] = [tensor.clone() for tensor in tensors]
    torch.ops.aten._cudnn_rnn_flatten_weight(
        tensors, per_layer, inputs, mode, hidden, projected, layers, batch_first, both_ways
    )


MEANINGS: Mapping[str, Meaning] = {
    **dict.fromkeys(
        ("multinomial", "bernoulli", "binary_cross_entropy", "binary_cross_entropy_backward"), _probabilities
    ),
    **dict.fromkeys(("sqrt", "_foreach_sqrt", "_fused_adam", "_fused_adamw"), _positive),
    **dict.fromkeys(("gather", "scatter", "scatter_add", "scatter_reduce"), _places_of_rows),
    **dict.fromkeys(("grid_sampler_2d", "grid_sampler_3d", "cudnn_grid_sampler"), _points(1)),
    **dict.fromkeys(("grid_sampler_2d_backward", "grid_sampler_3d_backward"), _points(2)),
    "cudnn_grid_sampler_backward": _points(1),
    **dict.fromkeys(("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward"), _places_of_largest),
    **dict.fromkeys(("adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward"), _places_of_largest_parts),
    **dict.fromkeys(("index_put", "_index_put_impl", "_unsafe_index_put"), _put),
    **dict.fromkeys(("masked_scatter", "masked_scatter_backward"), _masked),
    "histc": _inside_of_bins,
    "_grouped_mm": _ends_of_groups,
    "_embedding_bag": _bags,
    "_embedding_bag_backward": _bags_backward,
    "copy": _from_host,
    "_cudnn_rnn": _recurrent,
    "_cudnn_rnn_backward": _recurrent_backward,
}
