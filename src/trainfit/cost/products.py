"""Rules for matrix products.

In: an `Op`. Out: `Work`s, the most special rule first. Efficiency depends on the shape of the product, on how operands
lie (which side is transposed, whether rows start at aligned addresses) and on the type.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import log2, prod

from trainfit.cost.vectors import by_vectors
from trainfit.cost.work import (
    VECTOR_BYTES,
    Work,
    base_name,
    item_bytes,
    log,
    parts_of,
    resizable,
    row_alignment,
    rows_alignment,
    tensors_of,
    traffic_bytes,
)
from trainfit.records import Op, TensorRef

MATMULS = frozenset("mm addmm bmm baddbmm _addmm_activation".split())
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
    "matmul": (0, 17, 17, 17), "batched": (12, 13, 13, 13), "grouped": (7, 15, 15, 15),
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
    alignment = min(rows_alignment(a), rows_alignment(b), row_alignment(own[2], op.outputs[0].dtype))
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


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
