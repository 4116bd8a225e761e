"""The rule for batches of products with vectors: matrices by a vector each, and of two vectors.

In: an `Op`. Out: `Work`s, none where neither operand is a vector. No tiles are filled here: a matrix takes a while
however small it is, and so does each number of the result. Which kernel runs depends on whether what is added up lies
side by side ("along") or what comes out does ("across"), not on which operand is the matrix; in halves whose sizes and
steps are all multiples of 16 bytes it is that of larger products, tile by tile. Those of float32 that may be rounded to
TF32 run the kernels of those that may not.
"""

from __future__ import annotations

from trainfit.cost.work import Work, item_bytes, log, row_alignment, tensors_of, total_bytes
from trainfit.records import Op

_EVEN_BYTES = 16
_TILE, _LARGEST_TILE = 64, 256
"""Numbers of the result, and of those that are added up in a step, that a tile has; some have up to four times it."""
_DIVIDED_WEIGHT = 0.5
"""How far apart, in doublings, two are of which one's results are divided by a larger power of two: such have larger
tiles."""
_TILE_BYTES, _DEEP_BYTES = 12_500, 2900
"""What memory could move while a tile begins and ends, and during a step: 2.6 and 0.6 ns."""
_MATRIX_BYTES = {("along", 2): 3100, ("along", 4): 4600, ("across", 2): 3100, ("across", 4): 6700}
"""And while a matrix begins and ends in other kernels, by the width of its numbers: 0.65 to 1.4 ns."""
_RESULT_BYTES = {2: 115, 4: 275}
"""While one number of the result is added up where its terms lie side by side: 24 and 57 ps."""
_TERM_BYTES = {"along": 10.5, "across": 5.8}
"""And one of its terms."""
_OUTER_BYTES = 15_000
"""While a tile of a product of two vectors is written: 3.1 ns."""
_EVEN_OUTER_BYTES = 10_000
"""In the kernels of larger products: 2.1 ns."""
_SPARE = 1.1
"""By how much such products take longer than their bytes at best."""


def by_vectors(op: Op) -> tuple[Work, ...]:
    """By matrices, results and terms of each."""
    a, b = tensors_of(op.args)[-2:]
    (batch, rows, depth), columns = a.shape, b.shape[2]
    if 1 not in (rows, columns, depth):
        return ()
    size = item_bytes(a.dtype)
    kind = "half" if size == 2 else "float32"
    nbytes = round(_SPARE * total_bytes((a, b, *op.outputs)))
    if 1 not in (rows, columns):
        is_odd = size == 2 and any(row_alignment(one, a.dtype) < _EVEN_BYTES for one in (rows, columns))
        tiles = -(-rows // _TILE) * -(-columns // _TILE)
        coordinates, least = log(batch, rows, columns), _OUTER_BYTES * tiles
        names = ["outer odd", "outer"] if is_odd else ["outer"]
        if size == 2 and not is_odd and all(_is_stepped(one, a.dtype) for one in (a.stride[1:], b.stride[1:])):
            least, names = _EVEN_OUTER_BYTES * tiles, ["outer even", "outer"]
    else:
        matrix, results = (a, rows) if columns == 1 else (b, columns)
        is_along = results == 1 or matrix.stride[2 if columns == 1 else 1] == 1
        way = "along" if is_along else "across"
        steps = [step for length, step in zip(matrix.shape, matrix.stride, strict=True) if length > 1 and step != 1]
        is_odd = any(row_alignment(one, a.dtype) < _EVEN_BYTES for one in (results, depth, *steps))
        if size == 2 and not is_odd:
            least = -(-results // _TILE) * (_TILE_BYTES + _DEEP_BYTES * -(-depth // _TILE))
        else:
            added = _RESULT_BYTES[2 if size == 2 else 4] * results if is_along else 0
            least = max(_MATRIX_BYTES[way, 2 if size == 2 else 4], added, round(_TERM_BYTES[way] * results * depth))
        divided = _DIVIDED_WEIGHT * log(min(results & -results, _LARGEST_TILE))[0] if size == 2 and not is_odd else 0.0
        coordinates = (*log(batch, results, depth), divided)
        names = [f"vector {way} odd", f"vector {way}"] if size == 2 and is_odd else [f"vector {way}"]
    nbytes = max(nbytes, batch * least)
    return tuple(
        Work(f"bmm {one} {name}", coordinates, 2 * batch * rows * columns * depth, a.dtype, nbytes)
        for one in dict.fromkeys((kind, "float32"))
        for name in names
    )


def _is_stepped(steps: tuple[int, ...], dtype: str) -> bool:
    """Whether a vector of a product of two, taken as a matrix, has rows or columns that start at even addresses: one
    that lies as it stands has a step of one number between those of its single elements."""
    return row_alignment(max(steps), dtype) == _EVEN_BYTES
