"""Workloads of graphs, tables of positions, chosen tokens, joined pieces and copies from the host, as a seed draws.

Each is a callable that runs torch code on the GPU; `OpTimer` times the ops inside. See `drawn`.
"""

from __future__ import annotations

from functools import partial
from math import prod

import torch

from trainfit.calibrate.drawn import TYPES, Draw, Kinds, Shape, draws, laid_out
from trainfit.calibrate.drawn_indices import put
from trainfit.calibrate.workloads import BF16, FP16, FP32, Workload, aside, randn

SEED = 24


def _places(high: int, count: int, is_sorted: bool) -> torch.Tensor:
    """Any, or one after the other as members of sets are counted."""
    if is_sorted:
        return torch.arange(count, device="cuda") * high // count
    return torch.randint(high, (count,), device="cuda")


def passed_on(nodes: int, edges: int, inner: Shape, is_sorted: bool, dtype: torch.dtype) -> None:
    """What nodes send along edges, and what arrives: picked, added up, the largest, and their gradients."""
    with aside():
        index = _places(nodes, edges, is_sorted)
    x, sent = randn(nodes, *inner, dtype=dtype), randn(edges, *inner, dtype=dtype)
    spread = index.view(-1, *[1] * len(inner)).expand_as(sent)

    def zeros() -> torch.Tensor:
        return torch.zeros(nodes, *inner, device="cuda", dtype=dtype)

    x.index_select(0, index), x[index], x.gather(0, spread)
    zeros().index_add_(0, index, sent), zeros().scatter_add_(0, spread, sent)
    if not is_sorted:  # neighbours that go to one place take several times as long, and a sample does not tell
        zeros().scatter_reduce_(0, spread, sent, "amax", include_self=False)
    if edges < 2**19 and edges < 2**13 * nodes:
        put(zeros(), [index], sent, is_added=True)


def graphs(draw: Draw) -> Workload:
    """Thousands to millions of edges; sets of nodes; weights of heads; numbers."""
    kinds: tuple[Shape, ...] = ((), (draw.size(1, 8),), (draw.size(8, 512),), (draw.size(1, 8), draw.size(4, 64)))
    inner = kinds[draw.choice((0, 1, 2, 2, 3))]
    edges = draw.size(2**9, 2**22)
    nodes = draw.size(2, 2**10) if draw.random() < 0.3 else max(round(edges / draw.size(1, 64)), 2)
    dtype = draw.choice((FP32, FP32, BF16, FP16))
    nodes = min(nodes, 2**25 // prod(inner))
    most = 2**25 if dtype == FP32 or nodes * prod(inner) > 2**15 else 2**21  # halves wait for each other
    return partial(passed_on, nodes, max(min(edges, most // prod(inner)), 2), inner, draw.random() < 0.25, dtype)


def positioned(entries: int, width: int, lookups: Shape, dtype: torch.dtype) -> None:
    """A table of few entries by many indices, and its gradient."""
    index, table = torch.randint(entries, lookups, device="cuda"), randn(entries, width, dtype=dtype)
    found = table[index]
    put(torch.zeros(entries, width, device="cuda", dtype=dtype), [index], found, is_added=True)
    found.movedim(-1, 0).contiguous()
    columns = randn(width, entries, dtype=dtype)
    picked = columns[:, index.flatten()]
    put(columns, [None, index.flatten()], picked, is_added=True)


def positions(draw: Draw) -> Workload:
    side = draw.choice((4, 7, 7, 8, 12, 14, 16, 20, 24))
    entries, width = (2 * side - 1) ** 2 + draw.choice((0, 3)), draw.choice((1, 3, 4, 6, 8, 12, 16, 24, 32))
    tokens = side**2 + draw.choice((0, 0, 1))
    if draw.random() < 0.3:  # along a text
        entries, tokens = draw.size(16, 1024), draw.size(16, 1024)
    return partial(positioned, entries, width, (tokens, tokens), draw.choice((FP32, FP32, BF16, FP16)))


def chosen(batch: int, tokens: int, width: int, kept: int, dtype: torch.dtype) -> None:
    """Tokens that are kept, of every sequence others: by a list for each, by pairs, by truth values."""
    x = randn(batch, tokens, width, dtype=dtype)
    with aside():
        keep = torch.rand(batch, tokens, device="cuda").argsort(1)[:, :kept].contiguous()
        mask = torch.zeros(batch, tokens, device="cuda", dtype=torch.bool).scatter_(1, keep, True)
        rows, places, spread = torch.arange(batch, device="cuda")[:, None], torch.where(mask), keep[..., None]
    some = x.gather(1, spread.expand(-1, -1, width))
    x.scatter(1, spread.expand_as(some), some)
    torch.zeros(x.shape, device="cuda", dtype=dtype).scatter_add_(1, spread.expand_as(some), some)
    x[rows, keep]
    put(x, [rows, keep], some, is_added=True)
    flat = x[mask]
    x[mask] = flat
    x[~mask] = 0.0
    put(x, list(places), flat, is_added=True)
    x.flatten(0, 1)[keep.flatten()]


def choices(draw: Draw) -> Workload:
    """Masked images and texts, experts' tokens, boxes that are left."""
    tokens, width = draw.size(8, 8192), draw.size(1, 1024)
    batch = max(min(draw.size(1, 512), 2**24 // (tokens * width)), 1)
    kept = max(round(tokens * draw.choice((0.1, 0.25, 0.5))), 1)
    return partial(chosen, batch, tokens, width, kept, draw.choice(TYPES))


def side_by_side(shapes: list[Shape], order: Shape, dim: int, parts: bool, dtype: torch.dtype) -> None:
    """Pieces of any widths, whole or cut from what is wider."""
    pieces = [laid_out(shape, order, dtype) for shape in shapes]
    if parts:
        pieces = [piece.narrow(dim, 0, max(piece.shape[dim] // 2, 1)) for piece in pieces]
    torch.cat(pieces, dim)
    if len(set(shapes)) == 1:
        torch.stack(pieces, dim), torch.stack(pieces, -1)
        if len(shapes[0]) > 1:
            torch.stack(pieces, -2)


def joins(draw: Draw) -> Workload:
    """Few neighbours of every piece, channels of maps, tokens before others, results of levels."""
    rank, kind = draw.randint(2, 4), draw.choice(("short", "short", "channels", "any"))
    count = draw.choice((2, 2, 2, 3, 4, 5, 8, 16))
    if kind == "short":
        shape: Shape = (*draw.shape(rank - 1, 2**10, 2**21), draw.size(1, 16))
        dim, order = rank - 1, tuple(range(rank))
    else:
        shape, dim = draw.shape(rank, 2**12, 2**22), 1 if kind == "channels" else draw.randrange(rank)
        order = draw.order(rank)
    count = max(min(count, 2**25 // prod(shape)), 2)
    shapes = [shape] * count
    if draw.random() < 0.4:
        shapes = [(*shape[:dim], max(round(shape[dim] * draw.uniform(0.2, 2)), 1), *shape[dim + 1 :]) for _ in shapes]
    return partial(side_by_side, shapes, order, dim, draw.random() < 0.2, draw.choice(TYPES))


def brought(count: int, dtype: torch.dtype) -> None:
    """From the host's memory, as torch gets it."""
    torch.empty(count, device="cuda", dtype=dtype).copy_(torch.ones(count, dtype=dtype))


def pointed_at(entries: int, width: int, lookups: int, dtype: torch.dtype) -> None:
    """By indices that lie in the host's memory."""
    index, table = torch.randint(entries, (lookups,)), randn(entries, width, dtype=dtype)
    put(table, [index], table[index], is_added=True)


def arrivals(draw: Draw) -> Workload:
    if draw.random() < 0.3:
        width = draw.choice((1, 4, 8, 16))
        return partial(pointed_at, draw.size(100, 4096), width, draw.size(2**8, 2**20), draw.choice((FP32, BF16)))
    dtype = draw.choice((FP32, torch.int64, BF16, torch.bool, torch.uint8))
    return partial(brought, draw.size(1, 2**25), dtype)


def drawn_graphs(seed: int = SEED) -> list[Workload]:
    kinds: Kinds = ((graphs, 80), (positions, 22), (choices, 22), (joins, 115), (arrivals, 35))
    return draws(kinds, seed)
