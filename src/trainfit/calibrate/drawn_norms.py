"""Workloads of norms of images, clips and scans in training, that a seed draws: over batches, groups and channels.

`norms(count, seed)` are workloads as any. Sizes are those between a net's layers, up to a gigabyte of images where
`drawn_images` ends at a quarter of that; types and layouts are what people train with, weights of their own type too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from random import Random

import torch
from torch.nn import functional as F

from trainfit.calibrate.drawn import Shape, laid_out
from trainfit.calibrate.usual_filters import between
from trainfit.calibrate.workloads import BF16, FP16, FP32, Workload

_ELEMENTS, _BYTES = 2**15, 2**28
_SIDES = (4, 7, 7, 8, 10, 14, 14, 16, 20, 28, 28, 32, 40, 48, 56, 56, 64, 80, 96, 112, 112, 128, 160, 192, 224, 256)
_CHANNELS = (16, 24, 32, 32, 40, 48, 64, 64, 64, 80, 96, 112, 128, 128, 144, 160, 192, 240, 256, 256, 288, 320, 384,
             480, 512, 512, 640, 672, 768, 960, 1024, 1024, 1152, 1280, 1536, 2048)  # fmt: skip
_TYPES = ((BF16, FP32), (FP16, FP32), (FP32, FP32), (FP32, FP32), (BF16, BF16), (FP16, FP16))
"""Of images and of weights."""


def _shape(random: Random) -> Shape:
    """Mostly of images; of clips and scans, and of signals."""
    kind = random.random()
    channels = random.choice(_CHANNELS) if random.random() < 0.7 else between(random, 8, 2048)
    if kind < 0.68:
        side = random.choice(_SIDES)
        return between(random, 1, 384), channels, side, side if random.random() < 0.85 else max(2, side // 2)
    if kind < 0.92:
        side, is_clip = random.choice((7, 8, 14, 16, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112)), random.random() < 0.6
        frames = random.choice((2, 4, 8, 8, 16, 16, 32)) if is_clip else side
        return between(random, 1, 32), channels, frames, side, side
    return between(random, 1, 256), channels, between(random, 16, 32000)


def _moderate_shape(random: Random, item_bytes: int) -> Shape:
    while not _ELEMENTS <= prod(shape := _shape(random)) <= _BYTES // item_bytes:
        continue
    return shape


def _order(shape: Shape, is_last: bool) -> Shape:
    return (0, *range(2, len(shape)), 1) if is_last else tuple(range(len(shape)))


def batched(shape: Shape, dtype: torch.dtype, weights: torch.dtype, is_last: bool) -> None:
    """A batch norm in training."""
    weight, bias, mean, spread = (torch.ones(shape[1], device="cuda", dtype=weights) for _ in range(4))
    weight.requires_grad_(), bias.requires_grad_()
    order = _order(shape, is_last)
    x = laid_out(shape, order, dtype).requires_grad_()
    F.batch_norm(x, mean, spread, weight, bias, training=True).backward(laid_out(shape, order, dtype))


def grouped(shape: Shape, dtype: torch.dtype, groups: int) -> None:
    """A norm of groups of channels, each image by itself; channels that come last are copied before."""
    weight, bias = (torch.ones(shape[1], device="cuda", dtype=dtype).requires_grad_() for _ in range(2))
    order = _order(shape, is_last=False)
    x = laid_out(shape, order, dtype).requires_grad_()
    F.group_norm(x, groups, weight, bias).backward(laid_out(shape, order, dtype))


def of_pixels(shape: Shape, dtype: torch.dtype, is_mean_kept: bool) -> None:
    """A norm of every pixel's channels, which lie side by side."""
    weight, bias = (torch.ones(shape[-1], device="cuda", dtype=dtype).requires_grad_() for _ in range(2))
    x, gradient = (laid_out(shape, tuple(range(len(shape))), dtype) for _ in range(2))
    x.requires_grad_()
    out = F.rms_norm(x, shape[-1:], weight) if is_mean_kept else F.layer_norm(x, shape[-1:], weight, bias)
    out.backward(gradient)


def _batched(random: Random) -> Workload:
    dtype, weights = random.choice(_TYPES)
    shape = _moderate_shape(random, dtype.itemsize)
    return partial(batched, shape, dtype, weights, len(shape) == 4 and random.random() < 0.5)


def _grouped(random: Random) -> Workload:
    dtype = random.choice((BF16, FP16, FP32, FP32))
    batch, channels, *sides = _moderate_shape(random, dtype.itemsize)
    groups = random.choice((32, 32, 32, 16, 8, 4, 1, channels))
    channels = -(-channels // groups) * groups
    return partial(grouped, (batch, channels, *sides), dtype, groups)


def _of_pixels(random: Random) -> Workload:
    dtype = random.choice((BF16, FP16, FP32))
    batch, channels, *sides = _moderate_shape(random, dtype.itemsize)
    return partial(of_pixels, (batch, *sides, channels), dtype, random.random() < 0.25)


def _of_whole_images(random: Random) -> Workload:
    """One group or a few of all channels: of signals, and of few images."""
    dtype = random.choice((BF16, FP16, FP32, FP32))
    while True:
        batch, channels = between(random, 1, 32), 8 * between(random, 2, 96)
        sides = (between(random, 64, 64000),) if random.random() < 0.6 else (random.choice(_SIDES),) * 2
        if _ELEMENTS <= batch * channels * prod(sides) <= _BYTES // dtype.itemsize:
            return partial(grouped, (batch, channels, *sides), dtype, random.choice((1, 1, 1, 2, 4)))


_Kinds = tuple[tuple[Callable[[Random], Workload], float], ...]
_OF_WHOLE_IMAGES: _Kinds = ((_batched, 0.55), (_of_whole_images, 0.45))
_KINDS: _Kinds = ((_batched, 0.6), (_grouped, 0.2), (_of_pixels, 0.2))


def norms(count: int, seed: int) -> list[Workload]:
    return _drawn(_KINDS, count, seed)


def of_whole_images(count: int, seed: int) -> list[Workload]:
    """Over batches, and over whole images."""
    return _drawn(_OF_WHOLE_IMAGES, count, seed)


def _drawn(kinds: _Kinds, count: int, seed: int) -> list[Workload]:
    random = Random(seed)
    makers, shares = zip(*kinds, strict=True)
    return [random.choices(makers, shares)[0](random) for _ in range(count)]
