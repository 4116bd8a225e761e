"""Workloads of images and volumes as libraries' nets have them, drawn by a seed: pooled, resized, joined, shifted,
sampled, taken apart, classified pixel by pixel.

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

from trainfit.calibrate.drawn import Draw, Kinds, Shape, draws, laid_out
from trainfit.calibrate.drawn_points import changed, rasters
from trainfit.calibrate.workloads import BF16, FP16, FP32, Workload, aside, gradients, randn

SEED = 32
TYPES = (BF16, BF16, FP16, FP32, FP32)
SIDES = (
    7,
    8,
    10,
    12,
    14,
    14,
    16,
    20,
    24,
    28,
    28,
    32,
    40,
    48,
    56,
    56,
    64,
    64,
    80,
    96,
    112,
    112,
    128,
    160,
    192,
    224,
    256,
)
CHANNELS = (16, 24, 32, 40, 48, 64, 64, 80, 96, 128, 128, 160, 192, 240, 256, 256, 320, 384, 480, 512, 512, 768, 1024)
FIRST, LAST = (0, 1, 2, 3), (0, 2, 3, 1)


def _map(draw: Draw, most: int) -> tuple[Shape, Shape]:
    """A feature map of many images and how it lies."""
    side, channels = draw.choice(SIDES), draw.choice(CHANNELS)
    batch = max(min(draw.size(1, 320), most // (side**2 * channels)), 1)
    while side**2 * channels > most:
        channels //= 2
    return (batch, channels, side, side), draw.choice((FIRST, LAST, LAST))


def pools(draw: Draw) -> Workload:
    """After a first layer, in every stage, beside convolutions."""
    shape, order = _map(draw, 2**27)
    window, stride, padding, is_up = draw.choice(
        ((3, 2, 1, False), (3, 2, 1, False), (3, 2, 0, True), (2, 2, 0, False), (2, 2, 0, True), (3, 1, 1, False),
         (3, 1, 1, True), (5, 1, 2, False), (3, 2, 0, False))
    )  # fmt: skip
    pool: Callable[..., Tensor] = F.max_pool2d if draw.random() < 0.7 else F.avg_pool2d
    function = partial(pool, kernel_size=window, stride=stride, padding=padding, ceil_mode=is_up)
    return partial(changed, shape, order, function, draw.choice(TYPES))


def solid_pools(draw: Draw) -> Workload:
    side, channels = draw.choice((8, 12, 16, 24, 32, 48, 64, 96)), draw.choice((4, 8, 16, 32, 32, 64, 128, 256))
    batch = max(min(draw.size(1, 16), 2**26 // (side**3 * channels)), 1)
    channels = max(min(channels, 2**26 // side**3), 1)
    window, stride, padding = draw.choice(((2, 2, 0), (2, 2, 0), (3, 2, 1), (3, 1, 1)))
    function: Callable[[Tensor], Tensor] = draw.choice(
        (partial(F.max_pool3d, kernel_size=window, stride=stride, padding=padding),
         partial(F.avg_pool3d, kernel_size=window, stride=stride, padding=padding),
         partial(F.interpolate, scale_factor=2, mode="nearest"), partial(F.adaptive_avg_pool3d, output_size=1))
    )  # fmt: skip
    return partial(changed, (batch, channels, side, side, side), (0, 1, 2, 3, 4), function, draw.choice(TYPES))


def solid_sizes(draw: Draw) -> Workload:
    """Volumes to twice their size and to another's."""
    side, channels = draw.choice((2, 4, 6, 8, 12, 16, 24, 32, 48, 64)), draw.choice((1, 2, 4, 8, 16, 32, 64, 128, 256))
    factor = draw.choice((2, 2, 2, 4, 0.5))
    out = max(round(side * factor), 1)
    batch = max(min(draw.size(1, 8), 2**25 // (max(side, out) ** 3 * channels)), 1)
    channels = max(min(channels, 2**25 // max(side, out) ** 3), 1)
    function = partial(F.interpolate, size=(out,) * 3, mode="trilinear", align_corners=draw.random() < 0.3)
    return partial(changed, (batch, channels, side, side, side), (0, 1, 2, 3, 4), function, draw.choice(TYPES))


def lines(draw: Draw) -> Workload:
    """Signals to twice their length and to another's."""
    length, channels = draw.size(8, 2**13), draw.size(1, 512)
    out = max(round(length * draw.choice((2, 2, 4, 0.5, 1.5))), 1)
    batch = max(min(draw.size(1, 64), 2**23 // (max(length, out) * channels)), 1)
    function = partial(F.interpolate, size=out, mode="linear", align_corners=draw.random() < 0.3)
    return partial(changed, (batch, channels, length), (0, 1, 2), function, draw.choice(TYPES))


def sizes(draw: Draw) -> Workload:
    """From one pixel to a map, from map to map, from classes to pictures."""
    kind = draw.random()
    side = draw.choice((1, 1, 2, 3, 4, 6)) if kind < 0.3 else draw.choice(SIDES[:20])
    factor = draw.choice((2, 2, 2, 4, 4, 8)) if kind >= 0.3 else draw.choice((8, 16, 32, 64))
    channels = draw.choice((2, 3, 19, 21, 150)) if kind > 0.7 else draw.choice(CHANNELS[:20])
    out = min(side * factor, 512) + (draw.choice((0, 0, 0, 1)) if kind < 0.5 else 0)
    batch = max(min(draw.size(1, 64), 2**25 // (out**2 * channels)), 1)
    mode = draw.choice(("bilinear", "bilinear", "bilinear", "nearest"))
    options: dict[str, Any] = {} if mode == "nearest" else {"align_corners": draw.random() < 0.4}
    function = partial(F.interpolate, size=(out, out), mode=mode, **options)
    order = LAST if draw.random() < 0.4 else FIRST
    return partial(changed, (batch, channels, side, side), order, function, draw.choice(TYPES))


def joined(shapes: tuple[Shape, ...], orders: tuple[Shape, ...], dtype: torch.dtype) -> None:
    """Maps side by side, and their parts apart again."""
    pieces = [laid_out(shape, order, dtype) for shape, order in zip(shapes, orders, strict=True)]
    whole = torch.cat(pieces, 1)
    part = whole.narrow(1, 0, pieces[0].shape[1])
    part.contiguous(), part.clone(), torch.relu(part), part + pieces[0], part.sum((0, 2, 3))


def joins(draw: Draw) -> Workload:
    """Of decoders, of branches, of layers that see all before them."""
    shape, order = _map(draw, 2**24)
    count = draw.choice((2, 2, 2, 3, 4, 4, 5, 8))
    widths = [shape[1]] + [
        draw.choice((shape[1], shape[1], draw.choice((12, 16, 24, 32, 48)))) for _ in range(count - 1)
    ]
    shapes = tuple((shape[0], width, *shape[2:]) for width in widths)
    orders = [order] * count
    if draw.random() < 0.2:
        orders[-1] = FIRST if order == LAST else LAST
    return partial(joined, shapes, tuple(orders), draw.choice(TYPES))


def classified(batch: int, classes: int, side: int, dtype: torch.dtype) -> None:
    """Losses of every pixel: of one class, of several, of regions."""
    x = randn(batch, classes, side, side, dtype=dtype).requires_grad_()
    with aside():
        truth = torch.randint(classes, (batch, side, side), device="cuda")
    gradients(F.cross_entropy(x, truth), x)
    gradients(torch.softmax(x, 1), x)
    flat = x.detach().flatten(2)
    spread = F.one_hot(truth.flatten(1), classes)
    turned = spread.permute(0, 2, 1).to(dtype)
    (
        (flat * turned).sum((0, 2)),
        flat - turned,
        flat.sigmoid(),
        flat.argmax(1),
        flat.sum((0, 2)),
        spread.movedim(-1, 1).float(),
    )
    gradients(F.binary_cross_entropy_with_logits(x, torch.zeros_like(x)), x)


def losses(draw: Draw) -> Workload:
    classes, side = (
        draw.choice((1, 2, 3, 4, 14, 19, 21, 21, 104, 150)),
        draw.choice((64, 96, 128, 224, 256, 320, 480, 512)),
    )
    batch = max(min(draw.size(1, 32), 2**25 // (classes * side**2)), 1)
    return partial(classified, batch, classes, side, draw.choice((FP32, FP32, BF16, FP16)))


def apart(shape: Shape, order: Shape, window: int, stride: int, padding: int, dtype: torch.dtype) -> None:
    x = laid_out(shape, order, dtype).requires_grad_()
    gradients(F.unfold(x, window, padding=padding, stride=stride), x)


def patches(draw: Draw) -> Workload:
    """Windows taken apart, side by side or overlapping."""
    window = draw.choice((2, 3, 3, 4, 4, 7, 8, 16, 16))
    stride, padding = draw.choice(((window, 0), (window, 0), (1, window // 2), (max(window // 2, 1), window // 2)))
    channels, side = draw.choice((1, 3, 3, 16, 64, 96, 192)), draw.choice((14, 28, 32, 56, 64, 112, 224, 256))
    side = max(side, window)
    places = ((side + 2 * padding - window) // stride + 1) ** 2
    batch = max(min(draw.size(1, 64), 2**24 // (channels * window**2 * places)), 1)
    channels = max(min(channels, 2**24 // (window**2 * places)), 1)
    order = LAST if draw.random() < 0.2 else FIRST
    return partial(apart, (batch, channels, side, side), order, window, stride, padding, draw.choice(TYPES))


def shifted(shape: Shape, shifts: tuple[int, int], dtype: torch.dtype) -> None:
    """Windows shifted, padded and cut, and the other way round; neighbours merged."""
    x = randn(*shape, dtype=dtype)
    (
        torch.roll(x, shifts, (1, 2)),
        torch.roll(x, shifts[0], 1),
        F.pad(x, (0, 0, 0, 3, 0, 3)),
        x.permute(0, 3, 1, 2).contiguous(),
    )
    torch.cat((x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]), -1)
    x[:, :-1, :-1].contiguous(), torch.flip(x, (1,)), x.permute(0, 3, 1, 2).mean((2, 3)), x.mean((1, 2))
    torch.roll(x.permute(0, 3, 1, 2), shifts, (2, 3))


def shifts(draw: Draw) -> Workload:
    side, width = 2 * draw.choice((4, 7, 8, 12, 14, 16, 24, 28, 32, 48)), draw.choice(CHANNELS[5:])
    batch = max(min(draw.size(1, 128), 2**25 // (side**2 * width)), 1)
    shift = draw.choice((-3, -4, 3, 4, 1))
    return partial(shifted, (batch, side, side, width), (shift, shift), draw.choice(TYPES))


def gated(shape: Shape, order: Shape, dtype: torch.dtype) -> None:
    """What attention to channels and dropped paths do to maps, and layers in each other's scale."""
    x, scale = laid_out(shape, order, dtype), randn(*shape[:2], 1, 1, dtype=dtype)
    gate, factor = randn(shape[0], 1, 1, 1, dtype=dtype), torch.ones(shape[1], 1, 1, device="cuda", dtype=FP32)
    out = x * scale
    (
        x * gate,
        out + x,
        x * factor,
        (out * x).sum((2, 3), keepdim=True),
        x.mean((2, 3), keepdim=True),
        torch.sigmoid(scale),
    )
    (
        out.mean(1, keepdim=True),
        out.amax(1, keepdim=True),
        F.silu(x),
        F.hardswish(x),
        x.mul_(scale),
        x.add_(out, alpha=0.5),
    )
    x.flatten(2).transpose(1, 2).contiguous(), scale.expand(shape) / prod(shape[2:])


def gates(draw: Draw) -> Workload:
    shape, order = _map(draw, 2**25)
    return partial(gated, shape, order, draw.choice(TYPES))


def drawn_maps(seed: int = SEED) -> list[Workload]:
    kinds: Kinds = (
        (pools, 110), (solid_pools, 35), (solid_sizes, 40), (lines, 20), (sizes, 90), (joins, 55), (losses, 22),
        (patches, 45), (shifts, 25), (gates, 35), (rasters, 50),
    )  # fmt: skip
    return draws(kinds, seed)
