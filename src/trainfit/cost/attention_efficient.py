"""Rules for PyTorch's memory-efficient attention (CUTLASS).

In: an `Attention`. Out: `Work`s. Sequences count as whole tiles, and heads as whole waves: blocks of threads have some
queries forward, some keys backward, and as many as run at a time take as long as one fewer. Where blocks do not fill a
wave, the processors that idle take as long, and nearly so those that have one block of several; these are compared with
what idles as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import log2, prod
from typing import NamedTuple

from trainfit.cost.attention_op import Attention
from trainfit.cost.work import Parts, Work, log, parts_of, resizable, traffic_bytes

_TOPS = (14, 15, 15, 9)
"""log2 of the most pairs, queries and keys, and of the widest heads, that are measured, about."""


class _Tile(NamedTuple):
    """How a kernel divides its scores among blocks of threads."""

    queries: int
    keys: int
    head: int
    """Scores are computed in tiles of these sides, and heads as wide as a multiple, also where they end within one."""
    block: int = 64
    """Queries, or keys backward, that a block has. It walks over all of the other."""
    at_once: int = 2
    """Blocks that keep a processor busy: fewer take about as long."""
    wave: int = 2
    """Blocks that a processor begins together; 1 where it begins one whenever one ends, and each takes its share."""
    joined_keys: int = 0
    """Where many heads have no more keys, a block has all of a head's."""
    most_blocks: int = 0
    """Where set, about how many blocks there are at most, of which each has several times as many keys."""


_NARROW, _WIDE = 64, 128
"""Head sizes up to which PyTorch has efficient kernels of their own; one takes all that are wider."""
_MANY_HEADS, _MOST_BLOCKS = 256, 200
"""PyTorch's: so many heads fill a GPU without their keys being divided, and the backward kernel for wide 16-bit heads,
which needs memory for sums of each block's, gets no more blocks."""
_HALF_SLOWNESS = 8.0
"""How many times as long as by the datasheet these kernels compute with 16-bit types: their instructions are
those of older GPUs. Without it small heads with a mask would seem to wait for memory."""
_MOST_IDLE = 1.0
"""How far apart, in doublings, two are at most of which one keeps fewer processors busy."""


def efficient_works(found: Attention, num_sms: int) -> tuple[Work, ...]:
    return tuple(_work(found, rule, num_sms) for rule in found.rules())


def _work(found: Attention, rule: str, num_sms: int) -> Work:
    tile = _tile(found.is_backward, found.is_half, found.dim)
    lengths = (found.length, found.key_length, found.dim)
    whole = tuple(_whole(size, side) for size, side in zip(lengths, tile[:3], strict=True))
    flops = round(_flops(found, found.pairs, whole, tile))
    blocked = whole[found.is_backward]
    pairs = found.pairs if found.is_causal else _in_whole_waves(found.pairs, blocked, tile, num_sms)
    parts = parts_of(found.axes, (found.pairs, *lengths))  # of whole tiles all bytes count
    return resizable(partial(_made, found, rule, num_sms, flops, parts), (pairs, *whole), _TOPS)


def _made(found: Attention, rule: str, num_sms: int, flops: int, parts: Parts, *sizes: float) -> Work:
    """With these pairs, queries, keys and widths of heads."""
    pairs, length, key_length, dim = sizes
    tile = _tile(found.is_backward, found.is_half, dim)  # a wider head's may be another
    blocks = pairs * -(-(key_length if found.is_backward else length) // tile.block)
    busy = min(blocks / (tile.at_once * num_sms), 1.0) or 1.0
    slowness = _HALF_SLOWNESS if found.is_half else 1.0
    alike = found.alike(rule)
    return Work(
        rule,
        (*log(length, key_length, pairs), 2 * log(dim)[0], *alike, *found.unlike(rule), min(-log2(busy), _MOST_IDLE)),
        flops,
        found.dtype,
        traffic_bytes(parts, sizes),
        stretch=slowness * _flops(found, pairs, sizes[1:], tile) / max(flops, 1) / busy,
        num_sizes=4,
        num_alike=len(alike),
    )


def _flops(found: Attention, pairs: float, whole: Sequence[float], tile: _Tile) -> float:
    return 2 * found.products * pairs * prod(map(max, whole, tile[:3])) / (2 if found.is_causal else 1)


def _tile(is_backward: bool, is_half: bool, dim: float) -> _Tile:
    """By the kernels' names; how many run at once as measured: of large ones one fills a processor."""
    is_wider, is_widest = dim > _NARROW, dim > _WIDE
    if not is_backward:
        queries, keys = 32 if is_widest else 64, 128 if is_wider else 64
        is_large = is_wider and not is_widest and not is_half
        return _Tile(queries, keys, 64, block=queries, at_once=1 if is_large else 2, wave=1)
    queries, keys = 128 if is_wider else 64, 128 if is_half and is_wider and not is_widest else 64
    if is_half and is_widest:
        return _Tile(queries, keys, 64, block=keys, joined_keys=2 * keys, most_blocks=_MOST_BLOCKS)
    at_once = 1 if is_wider else 3 if is_half else 2
    return _Tile(queries, keys, 64, block=keys, at_once=at_once, wave=at_once, joined_keys=2 * keys)


def _in_whole_waves(heads: int, length: int, tile: _Tile, num_sms: int) -> float:
    """How many heads would take as long without gaps: blocks come one on each processor, or in whole waves."""
    parts = max(length // tile.block, 1)
    per_head = 1 if heads >= _MANY_HEADS and length <= tile.joined_keys else parts
    if tile.most_blocks:
        per_head = max(min(per_head, tile.most_blocks // max(heads, 1)), 1)
    blocks = heads * per_head
    places = num_sms if blocks <= num_sms else -(-blocks // (tile.wave * num_sms)) * tile.wave * num_sms
    return places * -(-parts // per_head) / parts


def _whole(size: int, side: int) -> int:
    """Of a tile that is half empty or more some is skipped, by how much is for the table to say."""
    return side // 2 if 0 < size <= side // 2 else -(-size // side) * side
