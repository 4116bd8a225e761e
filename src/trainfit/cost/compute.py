"""Rules for ops that compute: matrix products, attention.

In: an `Op`. Out: `Work`s, the most special rule first. Efficiency depends on the shape of the product, on how operands
lie (which side is transposed, whether rows start at aligned addresses) and on the type.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import ceil, log2, prod
from typing import NamedTuple

from trainfit.cost.vectors import by_vectors
from trainfit.cost.work import (
    VECTOR_BYTES,
    Work,
    argument,
    base_name,
    item_bytes,
    log,
    parts_of,
    resizable,
    row_alignment,
    tensors_of,
    traffic_bytes,
)
from trainfit.records import Op, TensorRef

MATMULS = frozenset("mm addmm bmm baddbmm _addmm_activation".split())
ATTENTIONS = frozenset(
    f"_scaled_dot_product_{backend}_attention{way}"
    for backend in ("cudnn", "flash", "efficient")
    for way in ("", "_backward")
)
_ALIGNMENT_WEIGHT, _TURN_WEIGHT, _HALF_WEIGHT = 3.0, 0.5, 4.0
"""How far apart, in doublings, two products are whose rows are aligned to different powers of two below 16 bytes, of
which one has a side turned, or, if rows start at odd addresses, of which one is of float16, the other of bfloat16."""
_TILES = ((256, 128), (128, 256))
"""Rows and columns of the result that a processor computes at a time in the kernels for large products."""
_FILL_WEIGHT = 2.0
"""How far apart, in doublings, two products are of which one keeps half as many processors busy."""
_LEAST_TILE, _ROUND_TILE, _TILES_AT_ONCE = 16, (128, 64), 2
"""Rows and columns of which results are computed whole, whatever is needed of them; those of the tiles by which rounds
are counted, and how many of these a processor has at a time."""
_DEEPER = {"bfloat16": 128, "tf32": 64, "float32": 32}
"""By how much deeper a product would be that took as long as to begin and end a tile, by type."""
_ALONE_RESULTS = 7 * 1024
"""As many results of a product a processor computes in the time that it takes over fewer, waiting step by step:
products of a batch are not divided along their depth, however few they are. 38, 4 and 1.8 ns a step of float32, TF32
and 16-bit types on the H200, which is the same number of results at each one's rate; rows of halves at odd addresses
have kernels of all kinds."""
_LIFTS = {"float32": 1.025, "tf32": 1.015}
"""How many times as long products take as what is interpolated between powers of two, which have no tiles at the edges:
6% and 4% on average of those that were held out, whose sizes are odder than those of most nets."""


_TOPS = {
    "matmul": (0, 17, 17, 17), "batched": (12, 13, 13, 13), "grouped": (7, 15, 15, 15), "attention": (14, 15, 15, 9),
}  # fmt: skip
"""log2 of the largest sizes that are measured, about."""
_LONGEST = 21
"""And of the longest rows of products without a batch."""


def matmul(op: Op, num_sms: int) -> tuple[Work, ...]:
    """(batch) x (rows, depth) x (depth, columns), by layout: "n" for rows that lie in memory, "t" for columns.

    Products with a bias run other kernels than those without, and so do those of which a row starts at an odd address,
    with a bias or not. How well tiles fill the last wave of processors is a coordinate, so that a shape is compared
    with shapes that waste as much. Both 16-bit types run the same kernels.
    """
    name = base_name(op)
    tensors = tensors_of(op.args)
    a, b = tensors[-2:]
    is_batched = len(a.shape) == 3 and a.shape[0] > 1  # one alone runs as any product does
    own = (a.shape[0] if is_batched else 1, a.shape[-2], b.shape[-1], a.shape[-1])
    alignment = min(_alignment(a), _alignment(b), row_alignment(own[2], op.outputs[0].dtype))
    skew = tuple(_ALIGNMENT_WEIGHT * value for value in log(alignment))
    added = [(tensor, (0, 1, 2) if len(tensor.shape) > 1 else (2,)) for tensor in (*tensors[:-2], *op.outputs)]
    parts = parts_of([(a, (0, 1, 3)), (b, (0, 2, 3)), *added], own)
    layout = _layout(a) + _layout(b)
    dtype = "tf32" if op.tf32 else a.dtype
    is_narrow = op.tf32 or item_bytes(dtype) == 2  # TF32 runs on the same units as 16-bit types
    known = "bfloat16" if item_bytes(dtype) == 2 else dtype

    def work(rule: str, *sizes: int) -> Work:
        batch, rows, columns, depth = sizes
        flops, nbytes = 2 * prod(sizes), traffic_bytes(parts, sizes)
        results: float = _round_up(rows, _LEAST_TILE) * _round_up(columns, _LEAST_TILE)
        if is_batched and not (known == "bfloat16" and alignment < VECTOR_BYTES):
            results = max(results, _ALONE_RESULTS * num_sms / batch)
        tiled = results * (depth + _DEEPER.get(known, 0))
        tiles = batch * -(-rows // _ROUND_TILE[0]) * -(-columns // _ROUND_TILE[1])
        stretch, rounds = tiled / max(rows * columns * depth, 1), -(-tiles // (_TILES_AT_ONCE * num_sms))
        found = Work(rule, (*log(*sizes), *skew), flops, dtype, nbytes, stretch=stretch, rounds=rounds, num_alike=1)
        if is_batched:
            return replace(found, num_sizes=4)
        fill = _wave_fill(rows, columns, num_sms)
        return replace(found, coordinates=(*found.coordinates[1:], _FILL_WEIGHT * log2(fill)), fill=fill, num_sizes=3)

    tops: tuple[int, ...] = _TOPS["batched" if is_batched else "matmul"]
    if not is_batched:  # few are longer, and none of these is compared with what is longer still
        tops = tuple(max(top, min((size - 1).bit_length(), _LONGEST)) for top, size in zip(tops, own, strict=True))
    names = ["bmm"] if is_batched else ["addmm" if "addmm" in name else "mm", "mm"]
    dtypes = dict.fromkeys((known, "bfloat16" if is_narrow else "float32"))
    orders = dict.fromkeys((layout, "nt", "nn"))
    rules = dict.fromkeys(f"{kind} {one} {order}" for one in dtypes for order in orders for kind in names)
    even = (resizable(partial(work, rule), own, tops, _LIFTS.get(known, 1.0)) for rule in rules)
    if is_batched and 1 in own[1:]:
        return (*by_vectors(op), *even)
    if 1 in own[1:]:  # a vector, or an outer product: no tiles
        kind = "outer" if own[3] == 1 else "vector"
        made = (work(f"{names[-1]} {one} {order} {kind}", *own) for one in dtypes for order in orders)
        thin = (replace(one, stretch=1.0, rounds=0, num_sizes=0) for one in made)
        return (*thin, *even)
    if alignment == VECTOR_BYTES:
        return tuple(even)
    is_odd_half = dtype == "float16" and alignment == item_bytes(dtype)
    turns = (*(_TURN_WEIGHT * (side == "t") for side in layout), _HALF_WEIGHT * is_odd_half)
    odd = (work(f"{names[-1]} {one} odd", *own) for one in dtypes)  # a larger one may be even, and faster
    return (*(replace(one, coordinates=(*one.coordinates, *turns), num_sizes=0) for one in odd), *even)


def _wave_fill(rows: int, columns: int, num_sms: int) -> float:
    """The share of the processors' time that computes results: waves are whole, tiles at the edge are not."""
    shares = []
    for tile_rows, tile_columns in _TILES:
        tiles = -(-rows // tile_rows) * -(-columns // tile_columns)
        waves = -(-tiles // num_sms)
        shares.append(rows * columns / (tile_rows * tile_columns * waves * num_sms))
    return max(shares)


def _layout(matrix: TensorRef) -> str:
    return "n" if matrix.stride[-1] == 1 or matrix.shape[-1] == 1 else "t"


def _alignment(matrix: TensorRef) -> int:
    """The power of two, up to 16 bytes, at which every row (or column, if those lie in memory) starts."""
    steps = [stride for size, stride in zip(matrix.shape, matrix.stride, strict=True) if size > 1 and stride != 1]
    return min((row_alignment(step, matrix.dtype) for step in steps), default=VECTOR_BYTES)


def grouped_matmul(op: Op) -> tuple[Work, ...]:
    """One product per expert; tokens are taken to be spread evenly."""
    tensors = tensors_of(op.args)
    a, b, out = tensors[0], tensors[1], op.outputs[0]
    groups = max(tensor.shape[0] for tensor in (a, b, out) if len(tensor.shape) == 3)
    if len(a.shape) == 2 and len(b.shape) == 2:  # the weights' gradient: depth is what is grouped
        rows, depth, columns = a.shape[0], a.shape[1] // groups, b.shape[1]
    elif len(a.shape) == 2:
        rows, depth, columns = a.shape[0] // groups, a.shape[1], b.shape[-1]
    else:
        rows, depth, columns = a.shape[1], a.shape[2], b.shape[-1] // (groups if len(b.shape) == 2 else 1)
    own = (groups, rows, columns, depth)
    parts = parts_of([(a, (0, 1, 3)), (b, (0, 2, 3)), (out, (0, 1, 2))], own)
    kind = "weights" if len(out.shape) == 3 and len(a.shape) == 2 else "tokens"
    dtype = "tf32" if op.tf32 else a.dtype

    def work(rule: str, *sizes: int) -> Work:
        return Work(rule, log(*sizes), 2 * prod(sizes), dtype, traffic_bytes(parts, sizes), num_sizes=4)

    return tuple(
        resizable(partial(work, rule), own, _TOPS["grouped"])
        for rule in dict.fromkeys((f"_grouped_mm {kind} {dtype}", f"_grouped_mm {kind} bfloat16"))
    )


def attention(op: Op, num_sms: int) -> tuple[Work, ...]:
    """Fused attention by backend; causal counts half the products. Backward does five products for forward's two.

    Sequences count as whole tiles, and heads as whole waves: blocks of threads have some queries forward, some keys
    backward, and as many as run at a time take as long as one fewer. Causal blocks are of different lengths and fill
    each other's gaps. Where blocks do not fill a wave, the processors that idle take as long, and nearly so those that
    have one block of several: the efficient kernels, whose tiles are known, are compared with what idles as much.
    """
    name = base_name(op).removeprefix("_scaled_dot_product_")
    is_backward = name.endswith("_backward")
    tensors = tensors_of(op.args)
    query, key, value = tensors[1:4] if is_backward else tensors[:3]
    batch, heads, length, dim = query.shape
    backend = name.split("_")[0]
    is_causal, dropout = _attention_options(op, backend, is_backward)
    products = (5 if is_backward else 2) * (1 + value.shape[3] / dim) / (2 if is_causal else 1)
    is_efficient, is_half = backend == "efficient", item_bytes(query.dtype) == 2
    tile = _tile(backend, is_backward, is_half, dim)
    sides = tile[:3]
    round_up = _round_up_or_half if is_efficient else _round_up
    is_computed_wider = backend == "cudnn" and is_backward
    moved_sides = (*sides[:2], _MOVED_HEAD) if is_computed_wider else sides
    whole = tuple(round_up(size, side) for size, side in zip((length, key.shape[2], dim), moved_sides, strict=True))
    flops = round(products * batch * heads * prod(map(max, whole, moved_sides)))
    own = (batch * heads if is_causal else _in_whole_waves(batch * heads, whole[is_backward], tile, num_sms), *whole)
    axes = ((tensor, _attention_axes(tensor, query, key)) for tensor in (*tensors, *op.outputs))
    parts = parts_of(axes, (batch * heads, length, key.shape[2], dim))  # of whole tiles all bytes count
    shared = log(heads / key.shape[1])
    mask = _mask(op, backend, is_backward)
    aligned = () if mask is None else (_MASK_ALIGNMENT_WEIGHT * log(_alignment(mask))[0],)
    added = () if mask is None else _of_a_mask(mask, is_learned=is_backward and op.outputs[-1].shape == mask.shape)

    def work(rule: str, *sizes: float) -> Work:
        pairs, length, key_length, dim = sizes
        tile = _tile(backend, is_backward, is_half, dim)  # a wider head's may be another
        computed = (*sizes[1:3], _round_up(ceil(sizes[3]), tile.head)) if is_computed_wider else sizes[1:]
        whole_flops = products * pairs * prod(map(max, computed, tile[:3]))
        waves = pairs * -(-(key_length if is_backward else length) // tile.block) / (tile.at_once * num_sms)
        busy = min(waves, 1.0) or 1.0
        slowness = _EFFICIENT_HALF_SLOWNESS if is_half and " efficient " in rule else 1.0
        stretch = slowness * whole_flops / max(flops, 1) / busy
        idle = min(-log2(busy), _MOST_IDLE) if is_efficient else 0.0
        kind, others = (*shared, *aligned * (" mask" in rule)), (*added * (" mask" in rule), idle)
        coordinates = (*log(length, key_length, pairs), *(2 * value for value in log(dim)), *kind, *others)
        nbytes = traffic_bytes(parts, sizes)
        return Work(rule, coordinates, flops, query.dtype, nbytes, stretch=stretch, num_sizes=4, num_alike=len(kind))

    direction = "backward" if is_backward else "forward"
    causal = "causal" if is_causal else "full"
    half = "half" if is_half else "fp32"
    extra = (" mask" if mask is not None else "") + (" dropout" if dropout else "")
    base = f"attention {backend} {half} {direction}"
    other = "full" if is_causal else "causal"
    rules = [f"{base} {causal}{extra}", f"{base} {causal}", f"{base} {other}{extra}", f"{base} {other}"]
    rules += [f"attention efficient {half} {direction} {causal}{option}" for option in (extra, "")]
    return tuple(resizable(partial(work, rule), own, _TOPS["attention"]) for rule in dict.fromkeys(rules))


def _attention_axes(tensor: TensorRef, query: TensorRef, key: TensorRef) -> tuple[int, ...]:
    """To which of heads, queries, keys and a head's size a tensor's bytes are in proportion."""
    if len(tensor.shape) < 3:
        return ()
    if tensor.shape[2:] == query.shape[2:]:
        return (0, 1, 3)
    if tensor.shape[2] == key.shape[2] and tensor.shape[1] == key.shape[1]:
        return (0, 2, 3)
    return (0, 1, 2) if tensor.shape[-1] == key.shape[2] else (0, 1)  # a mask, or a number per query


class _Tile(NamedTuple):
    """How a kernel of attention divides its scores among blocks of threads."""

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


_TILES_OF_ATTENTION = {
    ("cudnn", False): _Tile(128, 128, 64), ("cudnn", True): _Tile(64, 64, 64),
    ("flash", False): _Tile(128, 128, 32), ("flash", True): _Tile(128, 128, 32),
}  # fmt: skip
_MOVED_HEAD = 32
"""cuDNN's gradients compute heads as wide as a multiple of 64, by their names, but times follow what is moved of a
multiple of this: that priced samples better that were left out."""
_NARROW, _WIDE = 64, 128
"""Head sizes up to which PyTorch has efficient kernels of their own; one takes all that are wider."""
_MANY_HEADS, _MOST_BLOCKS = 256, 200
"""PyTorch's: so many heads fill a GPU without their keys being divided, and the backward kernel for wide 16-bit heads,
which needs memory for sums of each block's, gets no more blocks."""
_EFFICIENT_HALF_SLOWNESS = 8.0
"""How many times as long as by the datasheet the efficient kernels compute with 16-bit types: their instructions are
those of older GPUs. Without it small heads with a mask would seem to wait for memory."""
_MOST_IDLE = 1.0
"""How far apart, in doublings, two of the efficient kernels are at most of which one keeps fewer processors busy."""


def _tile(backend: str, is_backward: bool, is_half: bool, dim: float) -> _Tile:
    """Those of PyTorch's efficient kernels by their names; how many run at once as measured: of large ones one fills a
    processor."""
    if backend != "efficient":
        return _TILES_OF_ATTENTION[backend, is_backward]
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
    places = num_sms if blocks <= num_sms else _round_up(blocks, tile.wave * num_sms)
    return places * -(-parts // per_head) / parts


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _round_up_or_half(size: int, side: int) -> int:
    """Of a tile that is half empty or more some is skipped, by how much is for the table to say."""
    return side // 2 if 0 < size <= side // 2 else _round_up(size, side)


_OPTION_PLACES = {  # backend, backward: where dropout, is_causal and the mask stand; None: there is no mask
    ("cudnn", False): (5, 6, 3), ("cudnn", True): (13, 14, 8),
    ("flash", False): (3, 4, None), ("flash", True): (10, 11, None),
    ("efficient", False): (5, 6, 3), ("efficient", True): (9, 11, 4),
}  # fmt: skip


def _attention_options(op: Op, backend: str, is_backward: bool) -> tuple[bool, bool]:
    dropout_at, causal_at, _ = _OPTION_PLACES[backend, is_backward]
    dropout = argument(op, dropout_at, "dropout_p", 0.0)
    is_causal = argument(op, causal_at, "is_causal", False)
    return is_causal is True, isinstance(dropout, float) and dropout > 0


def _mask(op: Op, backend: str, is_backward: bool) -> TensorRef | None:
    mask_at = _OPTION_PLACES[backend, is_backward][2]
    mask = argument(op, mask_at, "attn_bias", None) if mask_at is not None else None
    return mask if isinstance(mask, TensorRef) else None


_FOR_ALL_QUERIES_WEIGHT, _FOR_ALL_HEADS_WEIGHT, _MASK_ALIGNMENT_WEIGHT, _LEARNED_WEIGHT = 1.0, 0.5, 1.0, 2.0


def _of_a_mask(mask: TensorRef, is_learned: bool) -> tuple[float, ...]:
    """Coordinates: whether queries, and heads, have one row together; whether it has a gradient."""
    for_all = [size == 1 or stride == 0 for size, stride in zip(mask.shape, mask.stride, strict=True)]
    is_for_heads = len(for_all) < 3 or for_all[-3]
    return (
        _FOR_ALL_QUERIES_WEIGHT * (len(for_all) < 2 or for_all[-2]),
        _FOR_ALL_HEADS_WEIGHT * is_for_heads,
        _LEARNED_WEIGHT * is_learned,
    )
