"""Workloads of products whose sizes, types and layouts a seed draws.

Each is a callable that runs torch code on the GPU; `OpTimer` times the ops inside. See `drawn`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from trainfit.calibrate.compute import linear, rounded
from trainfit.calibrate.drawn import SEED, Draw, draws
from trainfit.calibrate.workloads import BF16, FP16, FP32, Workload, randn

MAX_MACS = {FP32: 2**34, BF16: 2**37, FP16: 2**37}
"""Larger ones take too long, and are as efficient."""


def _in_a_type(draw: Draw, make: Callable[[torch.dtype], Workload], half: torch.dtype = BF16) -> Workload:
    """Rounded to TF32, in float32 or in a half type."""
    kind = draw.random()
    if kind < 0.3:
        return partial(rounded, make(FP32))
    return make(FP32 if kind < 0.6 else half)


def _within(sizes: tuple[int, ...], macs: int) -> tuple[int, ...]:
    """The first, second and so on halved until the product is no more than that."""
    found, place = list(sizes), 0
    while _product(found) > macs:
        found[place % len(found)] = max(found[place % len(found)] // 2, 1)
        place += 1
    return tuple(found)


def _product(sizes: list[int]) -> float:
    product = 1.0
    for size in sizes:
        product *= size
    return product


def layers(draw: Draw) -> Workload:
    """Linear layers of any size; of few rows, of many; to few columns."""
    rows, width, depth = draw.size(8, 2**15), draw.size(16, 2**13), draw.size(16, 2**13)
    kind = draw.random()
    if kind < 0.25:
        rows, width, depth = draw.size(2**14, 2**19), draw.size(1, 512), draw.size(1, 512)
    elif kind < 0.35:
        width = draw.size(1, 64)
    elif kind < 0.4:
        width, rows = draw.size(2**13, 2**16), draw.size(256, 4096)
    half, bias = draw.choice((BF16, BF16, FP16)), draw.random() < 0.4

    def make(dtype: torch.dtype) -> Workload:
        one, other, third = _within((rows, width, depth), MAX_MACS[dtype])
        return partial(linear, one, other, third, dtype, bias)

    return _in_a_type(draw, make, half)


def batched(
    batch: int, rows: int, columns: int, depth: int, layout: tuple[bool, bool], is_apart: bool, dtype: torch.dtype
) -> None:
    """One product per head: operands as they stand or turned, side by side or with other heads between their rows."""

    def matrix(height: int, width: int, is_turned: bool) -> torch.Tensor:
        shape = (width, height) if is_turned else (height, width)
        if is_apart:
            found = randn(shape[0], batch, shape[1], dtype=dtype).transpose(0, 1)
        else:
            found = randn(batch, *shape, dtype=dtype)
        return found.transpose(1, 2) if is_turned else found

    a, b = matrix(rows, depth, layout[0]), matrix(depth, columns, layout[1])
    torch.bmm(a, b)
    torch.baddbmm(randn(batch, rows, columns, dtype=dtype), a, b)


def batches(draw: Draw) -> Workload:
    batch, rows, columns, depth = draw.size(2, 2**12), *(draw.size(2, 2048) for _ in range(3))
    kind = draw.random()
    if kind < 0.4:  # heads
        rows = columns = draw.size(16, 2048)
        depth = draw.choice((16, 32, 64, 64, 80, 96, 128))
    elif kind < 0.55:
        columns = draw.size(1, 8)
    elif kind < 0.6:
        depth = 1
    layout, is_apart = (draw.random() < 0.4, draw.random() < 0.4), draw.random() < 0.3
    half = draw.choice((BF16, FP16))

    def make(dtype: torch.dtype) -> Workload:
        one, two, three, four = _within((batch, rows, columns, depth), min(MAX_MACS[dtype], 2**35))
        cap = 2**27 // max(two * four, four * three, two * three)
        return partial(batched, max(min(one, cap), 1), two, three, four, layout, is_apart, dtype)

    return _in_a_type(draw, make, half)


def odd_layers(draw: Draw) -> Workload:
    """Linear layers whose rows start anywhere: vocabularies, features and classes are counted as they come."""
    rows, width, depth = draw.size(64, 2**14), draw.size(256, 2**15), draw.size(64, 2**12)
    width, depth = (size + draw.randrange(8) if draw.random() < 0.7 else size for size in (width, depth))
    half, bias = draw.choice((BF16, FP16)), draw.random() < 0.4

    def make(dtype: torch.dtype) -> Workload:
        count = max(min(rows, MAX_MACS[dtype] // (width * depth)), 1)
        return partial(linear, count, width, depth, dtype, bias)

    return _in_a_type(draw, make, half)


def narrow_layers(draw: Draw) -> Workload:
    """Linear layers of many rows from or to few features: channels of a net's ends, edges, points, experts' scores."""
    rows, few, width = draw.size(2**9, 2**19), draw.size(1, 128), draw.size(4, 1024)
    sides = (few, width) if draw.random() < 0.5 else (width, few)
    half, bias = draw.choice((BF16, FP16)), draw.random() < 0.4

    def make(dtype: torch.dtype) -> Workload:
        count = max(min(rows, MAX_MACS[dtype] // (few * width), 2**27 // max(sides)), 1)
        return partial(linear, count, *sides, dtype, bias)

    return _in_a_type(draw, make, half)


def small_batches(draw: Draw) -> Workload:
    """Many small products: windows, neighbours, fields of a table, single queries."""
    batch, sizes = draw.size(16, 2**17), [draw.size(1, 128) for _ in range(3)]
    if draw.random() < 0.3:
        sizes[draw.randrange(3)] = 1
    rows, columns, depth = sizes
    batch = max(min(batch, 2**25 // max(rows * depth, depth * columns, rows * columns)), 1)
    layout, is_apart = (draw.random() < 0.4, draw.random() < 0.4), draw.random() < 0.2

    def make(dtype: torch.dtype) -> Workload:
        return partial(batched, batch, rows, columns, depth, layout, is_apart, dtype)

    return _in_a_type(draw, make, draw.choice((BF16, FP16)))


def drawn_products(seed: int = SEED) -> list[Workload]:
    kinds = ((layers, 400), (odd_layers, 200), (batches, 320), (narrow_layers, 120), (small_batches, 100))
    return draws(kinds, seed)
