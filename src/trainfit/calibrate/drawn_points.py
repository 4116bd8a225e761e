"""Workloads that sample, resize and pool images, signals and volumes, whose sizes, types and layouts a seed draws.

Each is a callable that runs torch code on the GPU; `OpTimer` times the ops inside. See `drawn`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from trainfit.calibrate.drawn import TYPES, Draw, Kinds, Shape, draws, laid_out
from trainfit.calibrate.workloads import Workload, aside, gradients, randn

SEED = 21
_MOST = 2**24
"""Elements of what is sampled."""


def looked_at(
    shape: Shape, points: Shape, options: dict[str, Any], order: Shape, spread: float, dtype: torch.dtype
) -> None:
    """Images or volumes sampled anywhere, or near the places of a lattice as flows and offsets do."""
    with aside():
        grid = torch.rand(shape[0], *points, len(points), device="cuda") * 2 - 1
        if spread < 1:
            axes = [torch.linspace(-0.98, 0.98, size, device="cuda") for size in points]
            grid = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).flip(-1) + spread * grid
        grid = grid.to(dtype).requires_grad_(bool(options["learns"]))
    image = laid_out(shape, order, dtype).requires_grad_()
    out = F.grid_sample(image, grid, options["mode"], options["padding"], options["aligned"])
    gradients(out, *(image, grid)[: 1 + bool(options["learns"])])


def _options(draw: Draw, is_plain: bool, is_aligned: bool) -> dict[str, Any]:
    """How is sampled: mostly bilinearly between zeros, points that are learned."""
    return {
        "mode": "bilinear" if is_plain else draw.choice(("bilinear", "bilinear", "nearest", "bicubic")),
        "padding": "zeros" if is_plain else draw.choice(("zeros", "border", "border", "reflection")),
        "aligned": is_aligned,
        "learns": draw.random() < 0.7,
    }


def points(draw: Draw) -> Workload:
    """Deformable attention's, windows of correlations, warped images, points in planes."""
    kind, order = draw.choice(("heads", "heads", "heads", "windows", "warped", "warped", "planes")), (0, 1, 2, 3)
    spread = draw.choice((0.05, 0.3, 1.0, 1.0))
    options = _options(draw, kind in ("heads", "windows"), kind == "windows" or draw.random() < 0.2)
    if kind == "heads":
        batch, channels, side = draw.size(8, 512), draw.choice((8, 16, 32, 32, 32, 64)), draw.size(4, 128)
        count: Shape = (draw.size(50, 2**14), draw.choice((1, 4, 4, 4, 8, 12)))
    elif kind == "windows":
        batch, channels, side = draw.size(256, 2**15), draw.choice((1, 1, 1, 4)), draw.size(4, 96)
        count, spread = (draw.choice((7, 9, 9)),) * 2, 0.3
    elif kind == "warped":
        batch, channels, side = draw.size(1, 64), draw.size(1, 256), draw.size(16, 512)
        count = (round(side * draw.choice((1, 1, 0.5, 2))),) * 2
        order = (0, 2, 3, 1) if draw.random() < 0.3 else order
    else:
        batch, channels, side = draw.size(1, 12), draw.size(2, 64), draw.size(32, 512)
        count, spread = (1, draw.size(2**10, 2**19)), 1.0
    batch = max(min(batch, _MOST // (channels * prod(count)), 2**26 // (channels * side**2)), 1)
    return partial(looked_at, (batch, channels, side, side), count, options, order, spread, draw.choice(TYPES))


def in_order(shape: Shape, queries: int, count: int, dtype: torch.dtype) -> None:
    """Near the places of other pixels, row by row: some points of each, in the direction that a head looks."""
    batch, side = shape[0], max(round(queries**0.5), 1)
    with aside():
        place = torch.arange(queries, device="cuda")
        middle = torch.stack((place % side, place // side), -1) * (2 / side) - 1
        way = randn(batch, 1, 1, 2) * (2 / shape[-1])
        steps = torch.arange(1, count + 1, device="cuda")[:, None]
        grid = middle[:, None] + way * steps + randn(batch, queries, count, 2) * (0.5 / shape[-1])
        grid = grid.to(dtype).requires_grad_()
    image = randn(*shape, dtype=dtype).requires_grad_()
    gradients(F.grid_sample(image, grid, align_corners=False), image, grid)


def rasters(draw: Draw) -> Workload:
    """Deformable attention of all pixels of all levels, and images and maps that are moved a little."""
    if draw.random() < 0.4:
        batch, channels, side = draw.size(1, 64), draw.size(1, 256), draw.size(16, 512)
        batch = max(min(batch, _MOST // (channels * side**2)), 1)
        options = _options(draw, draw.random() < 0.6, draw.random() < 0.3)
        order = (0, 2, 3, 1) if draw.random() < 0.3 else (0, 1, 2, 3)
        shape = (batch, channels, side, side)
        return partial(looked_at, shape, (side, side), options, order, 0.02, draw.choice(TYPES))
    queries, count = draw.choice((100, 300, 300, 900, draw.size(2**9, 2**15))), draw.choice((4, 4, 4, 8))
    channels, side = draw.choice((16, 32, 32, 32, 64)), draw.choice((8, 13, 16, 20, 25, 32, 40, 50, 64, 80, 100, 128))
    batch = max(min(draw.size(1, 32) * 8, 2**25 // (channels * queries * count), 2**26 // (channels * side**2)), 1)
    return partial(in_order, (batch, channels, side, side), queries, count, draw.choice(TYPES))


def solid_points(draw: Draw) -> Workload:
    """Volumes warped by flows, and sampled at points."""
    batch, channels, side = draw.size(1, 8), draw.size(1, 64), draw.size(8, 96)
    count: Shape = (side,) * 3 if draw.random() < 0.6 else (1, 1, draw.size(2**10, 2**18))
    options = _options(draw, draw.random() < 0.5, draw.random() < 0.4) | {"mode": draw.choice(("bilinear", "nearest"))}
    batch = max(min(batch, 2**23 // (channels * prod(count)), 2**24 // (channels * side**3)), 1)
    channels = max(min(channels, 2**23 // prod(count), 2**24 // side**3), 1)
    return partial(
        looked_at, (batch, channels, side, side, side), count, options, (0, 1, 2, 3, 4), draw.choice((0.1, 1.0)),
        draw.choice(TYPES),
    )  # fmt: skip


def changed(shape: Shape, order: Shape, function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    """There and back."""
    x = laid_out(shape, order, dtype).requires_grad_()
    gradients(function(x), x)


def _images(draw: Draw, rank: int, most: float) -> tuple[Shape, Shape]:
    """The shape of images, signals or volumes and how they lie."""
    dims = rank - 2
    channels, side = draw.size(1, 1024), draw.size(4, {1: 2**13, 2: 256, 3: 64}[dims])
    left = max(2 ** draw.uniform(14, most) / (channels * side**dims), 1)
    batch = draw.size(1, max(min(left, 256), 1))
    sides = [side] * dims
    if dims > 1 and draw.random() < 0.3:
        sides[0] = max(round(side * draw.choice((0.5, 0.75, 2))), 2)
    is_last = rank == 4 and draw.random() < 0.4
    return (batch, channels, *sides), ((0, 2, 3, 1) if is_last else tuple(range(rank)))


def resizings(draw: Draw) -> Workload:
    """To twice the size, to that of another map, from classes to a picture, to a quarter."""
    rank = draw.choice((3, 4, 4, 4, 4, 5))
    shape, order = _images(draw, rank, 22)
    modes = {3: ("linear", "nearest"), 4: ("bilinear", "bilinear", "bicubic", "nearest"), 5: ("trilinear", "nearest")}
    mode = draw.choice(modes[rank])
    factor = draw.choice((2, 2, 2, 4, 8, 0.5, 0.25, 2 ** draw.uniform(-2, 2)))
    sizes = tuple(max(round(size * factor), 1) for size in shape[2:])
    most = 2**18 if mode == "bicubic" else 2**25  # whose gradients are added up number by number
    while prod(sizes) * shape[0] * shape[1] > most and max(sizes) > 1:
        sizes = tuple(max(size // 2, 1) for size in sizes)
    if mode == "bicubic":
        shape = (max(min(shape[0], most // prod(shape[1:])), 1), *shape[1:])
    options: dict[str, Any] = {"mode": mode}
    if mode != "nearest":
        options["align_corners"] = draw.random() < 0.3
    if mode in ("bilinear", "bicubic") and draw.random() < 0.15:
        options["antialias"] = True
    return partial(changed, shape, order, partial(F.interpolate, size=sizes, **options), draw.choice(TYPES))


_POOLS: dict[int, tuple[Callable[..., Tensor], ...]] = {
    3: (F.max_pool1d, F.avg_pool1d),
    4: (F.max_pool2d, F.avg_pool2d),
    5: (F.max_pool3d, F.avg_pool3d),
}
_WHOLE: dict[int, tuple[Callable[..., Tensor], ...]] = {
    3: (F.adaptive_avg_pool1d, F.adaptive_max_pool1d),
    4: (F.adaptive_avg_pool2d, F.adaptive_avg_pool2d, F.adaptive_max_pool2d),
    5: (F.adaptive_avg_pool3d, F.adaptive_max_pool3d),
}


def poolings(draw: Draw) -> Workload:
    """Windows side by side and overlapping, and those that make so many of an image."""
    rank = draw.choice((3, 4, 4, 4, 4, 5))
    shape, order = _images(draw, rank, 25)
    side = min(shape[2:])
    if draw.random() < 0.35:
        out = min(draw.choice((2, 3, 4, 6, 7, 8, 14)), side)
        return partial(changed, shape, order, partial(draw.choice(_WHOLE[rank]), output_size=out), draw.choice(TYPES))
    window, stride = draw.choice(((2, 2), (2, 2), (3, 2), (3, 2), (3, 1), (5, 1), (4, 4), (7, 7), (9, 1), (13, 1)))
    window = min(window, side, 3 if rank == 5 else 13)
    padding = window // 2 if window % 2 else 0
    pool = partial(draw.choice(_POOLS[rank]), kernel_size=window, stride=min(stride, window), padding=padding)
    return partial(changed, shape, order, pool, draw.choice(TYPES))


def margins(draw: Draw) -> Workload:
    """Zeros or what lies inside around images, and pixels that become channels."""
    rank = draw.choice((3, 4, 4, 4, 5))
    shape, order = _images(draw, rank, 24)
    mode = draw.choice(("constant", "reflect", "replicate", "circular"))
    if rank == 4 and draw.random() < 0.4:
        factor, groups = draw.choice((2, 2, 4)), draw.choice((2, 4))
        batch, channels, height, width = shape
        shape = (batch, max(channels // 16, 1) * 16, max(height // 4, 1) * 4, max(width // 4, 1) * 4)
        function: Callable[[Tensor], Tensor] = draw.choice(
            (partial(F.pixel_shuffle, upscale_factor=factor), partial(F.pixel_unshuffle, downscale_factor=factor),
             partial(F.channel_shuffle, groups=groups))
        )  # fmt: skip
        return partial(changed, shape, order, function, draw.choice(TYPES))
    pads = [draw.randint(0, 3) for _ in range(2 * (rank - 2))]
    pads[0] = max(pads[0], 1)
    return partial(changed, shape, order, partial(F.pad, pad=pads, mode=mode), draw.choice(TYPES))


def drawn_points(seed: int = SEED) -> list[Workload]:
    kinds: Kinds = ((points, 160), (solid_points, 30), (resizings, 110), (poolings, 110), (margins, 50))
    return draws(kinds, seed)
