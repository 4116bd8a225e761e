"""Workloads that pick, set and add up by index, whose sizes, types and places a seed draws.

Each is a callable that runs torch code on the GPU; `OpTimer` times the ops inside. See `drawn`.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import torch
from torch.nn import functional as F

from trainfit.calibrate.drawn import SEED, TYPES, Draw, Kinds, Shape, differentiate, draws
from trainfit.calibrate.workloads import BF16, FP16, FP32, Workload, randn

MAX_NUMEL = 2**24
"""Of what an op returns; more takes as long for each."""


def _integers(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(high, shape, device="cuda")


def put(table: torch.Tensor, indices: list[torch.Tensor | None], values: torch.Tensor, is_added: bool = False) -> None:
    """No index stands for a dimension that is not indexed. Added up as autograd does it, which does not look first
    whether indices are in range."""
    if is_added:
        torch.ops.aten._index_put_impl_.default(table, indices, values, True, True)
    else:
        torch.ops.aten.index_put_.default(table, indices, values)


def picked(rows: int, width: int, count: int, dtype: torch.dtype) -> None:
    """Rows by index, and adding them up: lookups, graphs, routed tokens."""
    index, order = _integers(rows, count), torch.randperm(rows, device="cuda")
    x, picked_rows = randn(rows, width, dtype=dtype), randn(count, width, dtype=dtype)
    x.index_add(0, index, picked_rows), x.index_copy_(0, order, x.clone()), x.index_select(0, index)
    x.index_put_((index,), picked_rows), torch.zeros_like(x).index_add_(0, index, picked_rows)
    spread = index[:, None].expand(-1, width)
    torch.zeros_like(x).scatter_add_(0, spread, picked_rows), x.gather(0, spread)
    torch.zeros_like(x).scatter_reduce_(0, spread, picked_rows, "amax")
    put(x, [index], x[index], is_added=True)
    differentiate(F.embedding(index, x.requires_grad_()))


def picks(draw: Draw) -> Workload:
    width = draw.size(1, 1024)
    rows, count = (draw.size(16, min(2**20, 2**25 / width)) for _ in range(2))
    if draw.random() < 0.5:  # sums of few to many rows each, as of a graph's edges
        count = min(rows * draw.size(1, 64), 2**20, 2**25 // width)
    return partial(picked, rows, width, count, draw.choice(TYPES))


def taken(before: Shape, rows: int, after: Shape, index_shape: Shape, dtype: torch.dtype) -> None:
    """Along a dimension behind others and before others, by a list or a matrix of indices."""
    dim, index = len(before), _integers(rows, *index_shape)
    x = randn(*before, rows, *after, dtype=dtype).requires_grad_()
    everything: list[Any] = [slice(None)] * dim
    picked = x[(*everything, index)]
    differentiate(x.index_select(dim, index.flatten()))
    y, order = x.detach(), torch.randperm(rows, device="cuda")
    put(y, [*[None] * dim, index], picked.detach(), is_added=True)
    put(y, [*[None] * dim, order], y.clone())
    y.index_copy_(dim, order, y.clone()), y.index_fill_(dim, order, 0)


def takes(draw: Draw) -> Workload:
    before = tuple(draw.size(2, 128) for _ in range(draw.choice((0, 1, 1, 2, 2, 3))))
    after = tuple(draw.size(2, 256) for _ in range(draw.choice((0, 0, 1, 1, 2))))
    around = prod((*before, *after))
    rows = draw.size(4, max(min(MAX_NUMEL / around, 2**14), 8))
    count = draw.size(2, max(min(MAX_NUMEL / around, 2**16), 4))
    columns = draw.size(1, count) if draw.random() < 0.4 else 0
    index_shape = (max(count // columns, 1), columns) if columns else (count,)
    return partial(taken, before, rows, after, index_shape, draw.choice(TYPES))


def paired(
    before: Shape, sizes: Shape, after: Shape, shapes: tuple[Shape, Shape], kind: str, dtype: torch.dtype
) -> None:
    """By two indices, side by side or with a dimension between them; of what is repeated along the first."""
    first, second = (_integers(size, *shape) for size, shape in zip(sizes, shapes, strict=True))
    every: list[Any] = [slice(None)] * len(before)
    if kind == "repeated":
        x = randn(*before, 1, sizes[1], *after, dtype=dtype).expand(*before, *sizes, *after)
        x[(*every, first, second)]
        return
    is_apart = kind == "apart"
    between: list[Any] = [slice(None)] * is_apart
    x = randn(*before, sizes[0], *[4] * is_apart, sizes[1], *after, dtype=dtype)
    values = x[(*every, first, *between, second)]
    put(x, [*[None] * len(before), first, *[None] * is_apart, second], values, is_added=True)


def pairs(draw: Draw) -> Workload:
    before = tuple(draw.size(2, 64) for _ in range(draw.choice((0, 0, 1, 2))))
    after = tuple(draw.size(2, 128) for _ in range(draw.choice((0, 0, 1))))
    around = prod((*before, *after))
    sizes = draw.size(4, 512), draw.size(4, max(min(MAX_NUMEL / around / 512, 2**12), 8))
    count = draw.size(4, max(min(MAX_NUMEL / around / 4, 2**18), 8))
    columns = draw.size(1, count)
    shapes: tuple[Shape, Shape] = ((count,), (count,))
    if draw.random() < 0.6:
        shapes = ((max(count // columns, 1), 1), (max(count // columns, 1), columns))
    return partial(
        paired, before, sizes, after, shapes, draw.choice(("whole", "whole", "repeated", "apart")), draw.choice(TYPES)
    )


def ranged(shape: Shape, dim: int, count: int, is_repeated: bool, dtype: torch.dtype) -> None:
    """An index for every element, or one for all that lie behind a place."""
    lengths = (*shape[:dim], count, *shape[dim + 1 :])
    behind = (1,) * (len(shape) - dim - 1) if is_repeated else shape[dim + 1 :]
    index = _integers(shape[dim], *shape[:dim], count, *behind).expand(lengths)
    x, values = randn(*shape, dtype=dtype).requires_grad_(), randn(*lengths, dtype=dtype)
    differentiate(x.gather(dim, index))
    y = x.detach()
    y.scatter(dim, index, values), y.scatter_(dim, index, values), y.scatter_(dim, index, 1.0)
    y.scatter_add(dim, index, values), y.scatter_reduce_(dim, index, values, "amax")


def ranges(draw: Draw) -> Workload:
    rank = draw.randint(2, 4)
    shape, dim = draw.shape(rank, 2**12, 2**23), draw.randrange(rank)
    count = draw.size(1, max(min(2 * shape[dim], MAX_NUMEL * shape[dim] / prod(shape)), 2))
    return partial(ranged, shape, dim, count, draw.random() < 0.4, draw.choice(TYPES))


def written(before: int, rows: int, width: int, count: int, dtype: torch.dtype) -> None:
    """Rows and elements by index, in place, as gradients of what was picked are: added up, set, behind others."""
    index, column = _integers(rows, count), _integers(width, count)
    x, flat = randn(before, rows, width, dtype=dtype), randn(rows, width, dtype=dtype)
    put(flat, [index], randn(count, width, dtype=dtype), True)
    put(flat, [index, column], randn(count, dtype=dtype), True)
    put(x, [None, index], randn(before, count, width, dtype=dtype), True)
    put(x, [None, index, column], randn(before, count, dtype=dtype), True)
    put(x, [None, index], randn(before, count, width, dtype=dtype))
    deep = _integers(width, before, rows, min(count, 8, width))
    x.scatter_add_(2, deep, x[..., : deep.shape[2]].clone()), x.scatter_(2, deep, 1.0), x.gather(2, deep)
    x.index_add_(1, index, randn(before, count, width, dtype=dtype)), x.index_fill_(1, index, 0.0)


def writes(draw: Draw) -> Workload:
    before, width = draw.size(1, 64), draw.size(1, 512)
    rows, count = (draw.size(4, max(min(2**22 / (width * before), 2**16), 8)) for _ in range(2))
    return partial(written, before, rows, width, count, draw.choice(TYPES))


def pooled_rows(bags: int, items: int, rows: int, width: int, mode: str, dtype: torch.dtype) -> None:
    table = randn(rows, width, dtype=dtype).requires_grad_()
    differentiate(F.embedding_bag(_integers(rows, bags, items), table, mode=mode))


def bags(draw: Draw) -> Workload:
    items, width = draw.size(1, 64), draw.size(8, 256)
    size = draw.size(256, min(2**20 / items, 2**17))
    mode = draw.choice(("sum", "mean", "sum", "max"))
    dtype = draw.choice((FP32, FP32, BF16, FP16)) if mode != "max" else FP32
    return partial(pooled_rows, size, items, draw.size(100, 2**20), width, mode, dtype)


def masked(shape: Shape, dtype: torch.dtype, share: float) -> None:
    """By truth values: picked, counted, set."""
    x = randn(*shape, dtype=dtype)
    mask = torch.rand(shape, device="cuda") < share
    chosen = x[mask]
    x.masked_select(mask), mask.nonzero(), x.masked_scatter(mask, chosen), x.index_put((mask,), chosen)
    x[mask] = 0.0
    rows = mask.flatten(1).any(1)
    x[rows], x[torch.where(rows)], x * mask, mask.sum(-1), mask.sum(), mask.float(), ~mask & mask.roll(1, 0)
    differentiate(x.masked_scatter(mask, chosen.requires_grad_()))


def masks(draw: Draw) -> Workload:
    shape = draw.shape(draw.randint(2, 3), 2**14, 2**24)
    return partial(masked, shape, draw.choice(TYPES), draw.choice((0.1, 0.5, 0.9)))


def placed(shape: Shape, dim: int, dtype: torch.dtype) -> None:
    """By a flat index, into a part, again and again, by chance."""
    x, size = randn(*shape, dtype=dtype), shape[dim]
    index = _integers(x.numel(), x.numel() // 2)
    (
        x.take(index),
        x.put_(index, randn(index.numel(), dtype=dtype)),
        x.put_(index, randn(index.numel(), dtype=dtype), True),
    )
    x.slice_scatter(x.narrow(dim, 0, (size + 1) // 2).clone(), dim, 0, (size + 1) // 2)
    (
        x.select_scatter(x.select(dim, 0).clone(), dim, 0),
        x.repeat_interleave(2, dim),
        x.unfold(dim, min(size, 3), 1).clone(),
    )
    counts = _integers(3, size)
    x.repeat_interleave(counts, dim), torch.repeat_interleave(counts)
    rows = x.reshape(-1, shape[-1]).float().abs()[: 2**14, : 2**14]
    torch.multinomial(rows, 1), torch.multinomial(rows, 4, replacement=True), rows.unique()
    torch.bucketize(rows, torch.linspace(-2, 2, 64, device="cuda")), x.aminmax(), x.nanmedian()


def places(draw: Draw) -> Workload:
    rank = draw.randint(2, 3)
    return partial(placed, draw.shape(rank, 2**13, 2**22), draw.randrange(rank), draw.choice(TYPES))


def looked_up(tokens: int, rows: int, width: int, dtype: torch.dtype) -> None:
    differentiate(F.embedding(_integers(rows, tokens), randn(rows, width, dtype=dtype).requires_grad_()))


def lookups(draw: Draw) -> Workload:
    """Few words of a long sentence, millions of a table's fields."""
    width = draw.size(1, 4096)
    tokens = draw.size(16, min(2**22, 2**26 / width))
    return partial(looked_up, tokens, draw.size(2, min(2**20, 2**27 / width)), width, draw.choice(TYPES))


def drawn_indices(seed: int = SEED) -> list[Workload]:
    kinds: Kinds = (
        (picks, 30), (takes, 45), (pairs, 30), (ranges, 30), (writes, 20), (bags, 30), (masks, 24), (places, 20),
        (lookups, 40),
    )  # fmt: skip
    return draws(kinds, seed)
