"""Workloads of images, signals and volumes, whose sizes, types and layouts a seed draws: norms, pooling, resizing.

Each is a callable that runs torch code on the GPU; `OpTimer` times the ops inside. See `drawn`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F

from trainfit.calibrate.drawn import SEED, TYPES, Draw, Kinds, Shape, differentiate, draws, laid_out
from trainfit.calibrate.workloads import FP32, Workload, randn


def pictured(shape: Shape, dtype: torch.dtype, is_last: bool, groups: int, weights: torch.dtype) -> None:
    """Norms of images, signals and volumes, in training and not."""
    order = (0, *range(2, len(shape)), 1) if is_last else tuple(range(len(shape)))
    weight, bias, mean, spread = (torch.ones(shape[1], device="cuda", dtype=weights) for _ in range(4))
    weight.requires_grad_(), bias.requires_grad_()
    for is_training in (True, False):
        x = laid_out(shape, order, dtype).requires_grad_()
        F.batch_norm(x, mean, spread, weight, bias, is_training).backward(laid_out(shape, order, dtype))
    scale, shift = (randn(shape[1], dtype=dtype).requires_grad_() for _ in range(2))
    x = laid_out(shape, order, dtype).requires_grad_()
    F.group_norm(x, groups, scale, shift).backward(laid_out(shape, order, dtype))


def image_norms(draw: Draw) -> Workload:
    rank = draw.choice((2, 3, 4, 4, 4, 5))
    batch, channels = draw.size(1, 256), 8 * draw.size(1, 128)
    left = max(2**25 // (batch * channels), 16)
    side = draw.size(4, max(min(left, 2**16), 8)) if rank > 2 else 1
    dims = [max(round(side ** (1 / (rank - 2))), 2)] * (rank - 2) if rank > 2 else []
    shape = (batch * 16 if rank == 2 else batch, channels, *dims)
    dtype = draw.choice(TYPES)
    groups = draw.choice([count for count in (1, 4, 8, 32, channels) if channels % count == 0])
    weights = FP32 if draw.random() < 0.7 else dtype
    return partial(pictured, shape, dtype, draw.random() < 0.4 and rank > 2, groups, weights)


MODES = ("nearest", "bilinear", "bicubic", "area")


def resampled(shape: Shape, order: Shape, window: int, stride: int, scale: float, dtype: torch.dtype) -> None:
    """Pooling, resizing, windows taken apart, pixels taken from elsewhere."""

    def image() -> Tensor:
        return laid_out(shape, order, dtype).requires_grad_()

    functions: list[Callable[[Tensor], Tensor]] = [
        lambda x: F.max_pool2d(x, window, stride, window // 2), lambda x: F.avg_pool2d(x, window, stride, window // 2),
        lambda x: F.adaptive_avg_pool2d(x, window + 1), lambda x: F.adaptive_avg_pool2d(x, 1),
        lambda x: F.adaptive_max_pool2d(x, window), lambda x: F.pixel_unshuffle(x, 2), lambda x: F.pad(x, (1, 1, 1, 1)),
        lambda x: F.pad(x, (1, 2, 1, 2), mode="reflect"),
        *(partial(F.interpolate, scale_factor=scale, mode=mode) for mode in MODES),
    ]  # fmt: skip
    if prod(shape) < 2**22:
        functions += [lambda x: F.unfold(x, window, padding=window // 2, stride=stride)]
    for function in functions:
        differentiate(function(image()))
    grid = (torch.rand(shape[0], *shape[2:], 2, device="cuda", dtype=dtype) * 2 - 1).requires_grad_()
    for is_aligned in (True, False):
        differentiate(F.grid_sample(image(), grid, align_corners=is_aligned))


def resamplings(draw: Draw) -> Workload:
    side, channels = 2 * draw.size(4, 80), draw.size(3, 256)
    batch = draw.size(1, max(min(2**22 / (side**2 * channels), 128), 2))
    order = (0, 2, 3, 1) if draw.random() < 0.3 else (0, 1, 2, 3)
    window, scale = draw.choice((2, 3, 3, 5)), draw.choice((2.0, 0.5, 3.0, 1.7))
    shape = (batch, channels, side, side)
    return partial(resampled, shape, order, window, draw.randint(1, 2), scale, draw.choice(TYPES))


def last_norms(draw: Draw) -> Workload:
    """Of images whose channels come last: as narrow as a first layer's, as wide as a last one's."""
    rank, channels = draw.choice((4, 4, 4, 5)), draw.size(8, 1536)
    batch = draw.size(1, 128)
    left = max(min(2**25 // (batch * channels), 2**16), 8)
    side = max(round(draw.size(4, left) ** (1 / (rank - 2))), 2)
    groups = draw.choice([count for count in (1, 2, 4, 8, 16, 32, channels) if channels % count == 0])
    weights = draw.choice((FP32, FP32, None))
    dtype = draw.choice(TYPES)
    return partial(pictured, (batch, channels, *[side] * (rank - 2)), dtype, True, groups, weights or dtype)


def mixed(shape: Shape, orders: tuple[Shape, Shape], dtype: torch.dtype) -> None:
    """Images some of whose channels come last and others' first: copied, added, written to."""
    x, y = (laid_out(shape, order, dtype) for order in orders)
    x + y, x * y, x.add_(y), y.copy_(x), torch.cat((x, y), 1), torch.where(x > 0, x, y), F.silu(x), x.relu()
    x.contiguous(), y.contiguous(memory_format=torch.channels_last), torch.sigmoid(y), x.sum((0, 2, 3)), y.mean((2, 3))
    x * laid_out((1, shape[1], 1, 1), (0, 1, 2, 3), dtype), x[:, : shape[1] // 2].contiguous()


def mixtures(draw: Draw) -> Workload:
    side, channels = draw.size(4, 128), draw.size(2, 1024)
    batch = draw.size(1, max(min(2**24 / (side**2 * channels), 256), 2))
    first, last = (0, 1, 2, 3), (0, 2, 3, 1)
    orders = draw.choice(((first, last), (last, first), (last, last)))
    return partial(mixed, (batch, channels, side, side), orders, draw.choice(TYPES))


def solid(shape: Shape, side: int, dtype: torch.dtype) -> None:
    """Volumes pooled, resized and sampled; pixels put back to where they were the largest."""

    def volume() -> Tensor:
        return laid_out(shape, (0, 1, 2, 3, 4), dtype).requires_grad_()

    functions: list[Callable[[Tensor], Tensor]] = [
        lambda x: F.adaptive_avg_pool3d(x, side), lambda x: F.adaptive_avg_pool3d(x, 1),
        lambda x: F.adaptive_max_pool3d(x, side), lambda x: F.max_pool3d(x, 2), lambda x: F.avg_pool3d(x, 2),
        lambda x: F.max_pool3d(x, 3, 2, 1), lambda x: F.avg_pool3d(x, 3, 2, 1),
        lambda x: F.interpolate(x, scale_factor=2), lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"),
        lambda x: F.pad(x, (1, 1, 1, 1, 1, 1), mode="replicate"),
    ]  # fmt: skip
    for function in functions:
        differentiate(function(volume()))
    grid = (torch.rand(shape[0], *shape[2:], 3, device="cuda", dtype=dtype) * 2 - 1).requires_grad_()
    differentiate(F.grid_sample(volume(), grid, align_corners=False))
    small, places = F.max_pool2d(volume().flatten(2, 3), 2, return_indices=True)
    differentiate(F.max_unpool2d(small, places, [2, 2]))


def solids(draw: Draw) -> Workload:
    side, channels = 2 * draw.size(2, 32), draw.size(1, 128)
    batch = draw.size(1, max(min(2**21 / (side**3 * channels), 32), 2))
    return partial(solid, (batch, channels, side, side, side), draw.randint(2, 4), draw.choice(TYPES[:2]))


def drawn_images(seed: int = SEED) -> list[Workload]:
    kinds: Kinds = (
        (image_norms, 75), (last_norms, 45), (mixtures, 25), (resamplings, 30), (solids, 16),
    )  # fmt: skip
    return draws(kinds, seed)
