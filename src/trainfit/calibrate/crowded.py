"""Workloads in which many threads add to few places, whose sizes, types and layouts a seed draws.

Each is a callable that runs torch code on the GPU; `OpTimer` times the ops inside. See `drawn`. Tables of positions
are resized to an image's size, maps to a picture's, and rows are added up by few numbers: of types, bins, heads,
experts. Threads wait for each other then, the longer the more meet at a place and the narrower its type is.
"""

from __future__ import annotations

from functools import partial
from math import prod

import torch
from torch.nn import functional as F

from trainfit.calibrate.drawn import TYPES, Draw, Kinds, Shape, draws, laid_out
from trainfit.calibrate.workloads import FP32, Workload, aside, gradients, randn

SEED = 41
_MOST_NS, _MEETING_NS = 12_000_000, 300
"""How long a gradient may take, and what two additions that meet wait for each other, about."""
_SMOOTH_MODES = {1: ("linear",), 2: ("bilinear", "bilinear", "bicubic", "bicubic"), 3: ("trilinear",)}
_WEIGHTS = {"linear": 2, "bilinear": 4, "bicubic": 16, "trilinear": 8}
"""Places to which one element of the result adds."""


def resized(shape: Shape, sides: Shape, mode: str, options: tuple[bool, bool, bool], dtype: torch.dtype) -> None:
    is_aligned, is_smoothed, is_last = options
    order = (0, *range(2, len(shape)), 1) if is_last else tuple(range(len(shape)))
    x = laid_out(shape, order, dtype).requires_grad_()
    gradients(F.interpolate(x, sides, mode=mode, align_corners=is_aligned, antialias=is_smoothed), x)


def tables(draw: Draw) -> Workload:
    """Of positions, a row or a square for every place of a patch, as few as there were in training or many more."""
    dims = draw.choice((1, 2, 2, 2, 2, 3))
    mode, dtype = draw.choice(_SMOOTH_MODES[dims]), draw.choice(TYPES)
    sides = tuple(draw.choice((4, 7, 7, 8, 12, 14, 14, 16, 24, 27, 32)) for _ in range(dims))
    if draw.random() < 0.7:
        sides = sides[:1] * dims
    most = 160 if dims < 3 else 48
    grown = tuple(max(min(round(side * 2 ** draw.uniform(-1, 4)), most), 2) for side in sides)
    if draw.random() < 0.7:
        grown = grown[:1] * dims
    meeting = max(prod(grown) / prod(sides), 1) * _WEIGHTS[mode]
    waiting_ns = meeting * _MEETING_NS / (8 if dtype == FP32 else 1)
    most_planes = max(_MOST_NS / waiting_ns, 16) if mode != "bilinear" else 2**24 / prod(grown)
    planes = draw.size(8, max(min(most_planes, 4096), 16))
    batch = 1 if draw.random() < 0.7 else draw.choice((2, 3, 4, 8, 16))
    options = (draw.random() < 0.3, dims == 2 and draw.random() < 0.15, dims == 2 and draw.random() < 0.3)
    return partial(resized, (batch, max(planes // batch, 1), *sides), grown, mode, options, dtype)


def maps(draw: Draw) -> Workload:
    """Of features or classes, resized to their picture, or to a map of another stage."""
    side, ratio = draw.choice((7, 8, 10, 14, 16, 20, 28, 32, 40, 56, 64, 96, 128)), draw.choice((2, 2, 2, 4, 4, 8, 16))
    side = min(side, 512 // ratio)
    channels = draw.choice((1, 2, 3, 19, 21, 32, 48, 64, 96, 128, 150, 192, 256, 384, 512))
    batch = max(min(draw.size(1, 64), 2**25 // (channels * (side * ratio) ** 2)), 1)
    channels = max(min(channels, 2**25 // (side * ratio) ** 2), 1)
    options = (draw.random() < 0.3, False, draw.random() < 0.4)
    return partial(resized, (batch, channels, side, side), (side * ratio,) * 2, "bilinear", options, draw.choice(TYPES))


def summed(places: int, rows: int, width: int, dtype: torch.dtype) -> None:
    """Rows added up by numbers that are few, in all ways in which that is written."""
    with aside():
        index = torch.randint(places, (rows,), device="cuda")
        spread, values = index[:, None].expand(rows, width).contiguous(), randn(rows, width, dtype=dtype)
        zeros = torch.zeros(places, width, device="cuda", dtype=dtype)
    zeros.index_add_(0, index, values)
    zeros.scatter_add_(0, spread, values)
    zeros.scatter_reduce_(0, spread, values, "amax")
    torch.ops.aten._index_put_impl_(zeros, [index], values, True, True)
    torch.ops.aten.embedding_dense_backward(values, index, places, -1, False)


def sums(draw: Draw) -> Workload:
    places, width = draw.choice((1, 2, 2, 3, 4, 6, 8, 10, 16, 24, 32, 64, 128)), draw.size(1, 1024)
    rows = draw.size(64, max(min(2**22 / width, 2**17), 128))
    return partial(summed, places, rows, width, draw.choice(TYPES))


KINDS: Kinds = ((tables, 200), (maps, 90), (sums, 90))


def crowded(seed: int = SEED) -> list[Workload]:
    return draws(KINDS, seed)
