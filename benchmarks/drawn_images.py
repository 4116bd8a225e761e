"""Convolutions, norms and samplers of images whose calls draw_calls.py draws.

In and out: as drawn_pieces.py.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from drawn_pieces import HALVES, MOST_FLOPS, TYPES, Chance, Drawn, Piece, between


def many_images(chance: Chance) -> Drawn:
    dtype = chance.choice((torch.float32, torch.float32, *HALVES))
    inputs, outputs = chance.choice((1, 3, 4, 16, 32, 64)), chance.choice((16, 32, 64, 128))
    side, window = chance.choice((7, 9, 14, 20, 28, 32, 42, 64, 84)), chance.choice((3, 3, 4, 5, 8))
    step = chance.choice((1, 1, 2, 4 if window == 8 else 2))
    most = min(2**30 // (max(inputs, outputs // step**2) * side**2 * dtype.itemsize), 32768)
    count = between(chance, 256, max(512, most))
    is_last = chance.random() < 0.5
    window = min(window, side)
    order: Any = torch.channels_last if is_last else torch.contiguous_format
    made = (
        torch.empty(count, inputs, side, side, dtype=dtype),
        torch.empty(outputs, inputs, window, window, dtype=dtype),
    )
    turned = [one.contiguous(memory_format=order) for one in made]
    padding = chance.choice((0, window // 2))

    def filtered(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.conv2d(x, weight, bias, step, padding)

    return Piece(filtered, *turned, torch.empty(outputs, dtype=dtype)), ("convolution",)


def first_images(chance: Chance) -> Drawn:
    """What nobody wants a gradient of: the weight's alone, of few channels."""
    dtype = chance.choice((torch.float32, torch.float32, *HALVES))
    inputs = chance.choice((1, 1, 2, 3, 3, 3, 4, 4, 6, 8, 9, 12))
    outputs = chance.choice((16, 24, 32, 32, 48, 64, 64, 96, 128, 192, 384, 768))
    side = chance.choice((28, 32, 64, 84, 96, 128, 160, 192, 224, 224, 256, 299, 384, 512))
    window = chance.choice((3, 3, 3, 4, 5, 7, 8, 11, 14, 16))
    step = window if window >= 14 else chance.choice((1, 2, 2, window if window in (4, 8) else 2))
    most = 2**30 // (max(inputs, outputs // step**2) * side**2 * dtype.itemsize)
    count = between(chance, 4, max(8, min(most, 4096)))
    order: Any = torch.channels_last if chance.random() < 0.4 else torch.contiguous_format
    made = (
        torch.empty(count, inputs, side, side, dtype=dtype),
        torch.empty(outputs, inputs, window, window, dtype=dtype),
    )
    turned = [one.contiguous(memory_format=order) for one in made]
    padding = chance.choice((0, window // 2)) if step < window else 0
    biases = [torch.empty(outputs, dtype=dtype)] if chance.random() < 0.5 else []

    def filtered(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.conv2d(x.detach(), weight, bias, step, padding)

    return Piece(filtered, *turned, *biases), ("convolution",)


def grown_images(chance: Chance) -> Drawn:
    """Transposed convolutions: of generators, from one pixel on, and of decoders."""
    dtype = chance.choice((torch.float32, torch.float32, *HALVES))
    side = chance.choice((1, 1, 2, 4, 4, 7, 8, 14, 16, 28, 32, 64))
    inputs, outputs = chance.choice((64, 100, 128, 256, 512, 1024)), chance.choice((3, 32, 64, 128, 256, 512))
    window, step, padding = (4, 1, 0) if side == 1 else chance.choice(((4, 2, 1), (2, 2, 0), (3, 2, 1), (5, 2, 2)))
    largest = max(inputs * side**2, outputs * (step * side + window) ** 2)
    count = between(chance, 16, max(32, min(2**29 // (largest * dtype.itemsize), 1024)))
    order: Any = torch.channels_last if chance.random() < 0.3 else torch.contiguous_format
    x, weight = (
        torch.empty(shape, dtype=dtype).contiguous(memory_format=order)
        for shape in ((count, inputs, side, side), (inputs, outputs, window, window))
    )
    is_first = chance.random() < 0.3

    def grown(x: Tensor, weight: Tensor) -> Tensor:
        return F.conv_transpose2d(x.detach() if is_first else x, weight, None, step, padding)

    return Piece(grown, x, weight), ("convolution",)


def signals(chance: Chance) -> Drawn:
    """Convolutions over one dimension, dilated or not."""
    dtype = chance.choice(TYPES)
    inputs, outputs = (chance.choice((32, 64, 80, 128, 256, 256, 384, 512)) for _ in range(2))
    length, window = between(chance, 64, 8192), chance.choice((2, 3, 3, 5, 7, 9))
    dilation = chance.choice((1, 1, 2, 4, 8, 16, 32))
    largest = max(inputs, outputs) * length
    most = min(2**29 // (largest * dtype.itemsize), int(MOST_FLOPS / (6 * inputs * outputs * window * length)))
    count = between(chance, 2, max(4, min(most, 256)))
    padding = chance.choice((0, dilation * (window - 1) // 2))
    length = max(length, 2 * dilation * window)
    made = torch.empty(count, inputs, length, dtype=dtype), torch.empty(outputs, inputs, window, dtype=dtype)

    def filtered(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.conv1d(x, weight, bias, 1, padding, dilation)

    return Piece(filtered, *made, torch.empty(outputs, dtype=dtype)), ("convolution",)


def wide_windows(chance: Chance) -> Drawn:
    """A window for each channel, as wide as conv_mixer's and convnext's."""
    dtype = chance.choice((torch.float32, torch.float32, *HALVES))
    channels, window = chance.choice((96, 128, 192, 256, 384, 512, 768, 1024)), chance.choice((3, 5, 7, 7, 9, 9, 11))
    side = chance.choice((7, 8, 14, 16, 28, 32, 48, 56, 64))
    count = between(chance, 4, max(8, min(2**28 // (channels * side**2 * dtype.itemsize), 256)))
    order: Any = torch.channels_last if chance.random() < 0.3 else torch.contiguous_format
    x, weight = (
        torch.empty(shape, dtype=dtype).contiguous(memory_format=order)
        for shape in ((count, channels, side, side), (channels, 1, window, window))
    )

    def filtered(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.conv2d(x, weight, bias, 1, window // 2, 1, channels)

    return Piece(filtered, x, weight, torch.empty(channels, dtype=dtype)), ("convolution",)


def image_norms(chance: Chance) -> Drawn:
    """Of few channels, of small images, of groups."""
    dtype = chance.choice(TYPES)
    channels = chance.choice((8, 16, 16, 24, 32, 32, 48, 64, 64, 96, 128, 256))
    side = chance.choice((4, 7, 8, 14, 15, 16, 28, 32, 56, 64, 112, 128, 224, 256))
    count = between(chance, 4, max(8, min(2**29 // (channels * side**2 * dtype.itemsize), 1024)))
    order: Any = torch.channels_last if chance.random() < 0.3 else torch.contiguous_format
    x = torch.empty(count, channels, side, side, dtype=dtype).contiguous(memory_format=order)
    of_groups = channels % 8 == 0 and chance.random() < 0.5
    groups = chance.choice([number for number in (1, 2, 4, 8, 16, 32) if channels % number == 0])

    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if of_groups:
            return F.group_norm(x, groups, weight, bias)
        return F.batch_norm(x, None, None, weight, bias, training=True)

    kept = dtype if of_groups else torch.float32
    return Piece(norm, x, *(torch.empty(channels, dtype=kept) for _ in range(2))), (
        "native_group_norm",
        "native_batch_norm",
        "cudnn_batch_norm",
    )


def points(chance: Chance) -> Drawn:
    """Few points of a map for each query, as deformable attention has them."""
    dtype = chance.choice((torch.float32, *HALVES))
    heads, dim, count = chance.choice((4, 8, 8, 8)), chance.choice((16, 32, 32, 64)), between(chance, 1, 24)
    side = chance.choice((4, 7, 8, 10, 13, 16, 20, 25, 32, 40, 50, 64, 80, 100, 128))
    usual = (100, 300, 300, 900, 1024, 2100, 3400, 5440, 8500, 13294, 22223)
    queries = chance.choice(usual)
    each = chance.choice((4, 4, 4, 8))
    count = max(1, min(count, 2**27 // (heads * dim * max(queries * each, side**2))))
    made = (
        torch.empty(count * heads, dim, side, side, dtype=dtype),
        torch.empty(count * heads, queries, each, 2, dtype=dtype),
    )
    return Piece(lambda x, at: F.grid_sample(x, at, align_corners=False), *made), ("grid_sampler", "cudnn_grid")
