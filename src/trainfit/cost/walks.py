"""Rules for ops whose threads walk along memory: running sums, softmax.

In: an `Op` and how many processors the GPU has. Out: `Work`s. These kernels wait for memory rather than move much of
it: across memory a thread goes down its column element by element, along it a block of threads takes some rows piece
by piece. So what counts is how many steps one walk has; threads that the GPU would hold beside those that there are
take as long, and their bytes are counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import ceil, log2, prod

from trainfit.cost.work import (
    ALL_CACHED,
    VECTOR_BYTES,
    Work,
    argument,
    base_name,
    by_bytes,
    item_bytes,
    log,
    resizable,
    resized,
    row_alignment,
    total_bytes,
    waited_bytes,
)
from trainfit.records import Op, TensorRef

RUNNING = frozenset("cumsum cumprod logcumsumexp cummax cummin".split())
ORDERED = {"sort": 1, "topk": 2, "median": 1, "kthvalue": 2, "argsort": 1, "nanmedian": 1, "mode": 1}
"""Ops that put rows in order, or look for one of their elements; where the dimension stands."""

_BLOCK, _LEAST_THREADS = 9, 4
"""log2 of the threads of a block, and of the fewest that share a row."""
_THREADS, _BLOCKS = 2048, 32
"""How many threads and blocks a processor holds."""
_SOFTMAX_THREADS, _FEW_COLUMNS = 1024, 64
"""The most threads of a block of softmax; up to so many columns share it where they are as long."""
_HELD_COLUMNS, _ROW_TOPS = 2048, (20, 18)
"""The longest rows that a warp holds, half as long if it widens them; log2 of the most rows and columns that are
measured, about."""
_ROW_THREADS, _SHARED_COLUMNS = 1024, 9 * 1024
"""Of a block that has a longer row, and the longest rows of which its threads hold the elements, up to nine each. Those
of longer ones, of rows that are widened, and of gradients they fetch again."""
_LONG_ROWS = 2.0
"""How far apart, in doublings, are rows that a warp holds and longer ones."""
_HELD_BYTES = 3
"""What memory could move while a warp computes an element that it holds: 0.6 ps, of halves and of wider ones."""
_SECTOR_BYTES = 32
"""What is read from memory at once."""
_KEPT_BYTES = 2**24
"""So much stays in the caches, about."""
_STEP_BYTES = 8
"""Of an element that is read and written. Steps of narrower ones take as long, unless columns fill the GPU."""


@dataclass(frozen=True)
class _Walk:
    """What goes on at once, in how many steps, how many threads share a row, elements that pass in a step."""

    count: int
    steps: int
    width: int
    elements: int


_SORTED_AT_ONCE = 4096
"""The longest rows that a block of threads sorts by itself."""
_BY_PARTS = ((20, 20_000), (40, 10_000), (80, 8_000), (199, 5_000), (799, 3_000), (4_000, 800), (None, 400))
"""Of up to so many rows those at least so long are gone through by several blocks each, to find their largest."""
_RESIDENT_ROWS = 2
"""Rows for which a processor has a block of threads at a time, about."""


def ordered(op: Op, num_sms: int) -> tuple[Work, ...]:
    """A block of threads has a row, for as long as the row is; of long ones several do, or all of them together."""
    tensor, name = next(op.input_refs()), base_name(op).replace("argsort", "sort")
    dim = argument(op, ORDERED[base_name(op)], "dim", -1)
    dim = dim % len(tensor.shape) if isinstance(dim, int) and tensor.shape else len(tensor.shape) - 1
    is_flat = not any(isinstance(value, int) for value in op.args[1:]) and name.endswith("median")
    length = tensor.numel if is_flat else tensor.shape[dim] if tensor.shape else 1
    rows, size = tensor.numel // max(length, 1), item_bytes(tensor.dtype)
    kept = argument(op, 1, "k", 1) if name == "topk" else 1
    kind = name
    if name == "topk" and length >= _least_by_parts(rows):
        kind = "topk by parts"
    elif name == "sort" and length > _SORTED_AT_ONCE:
        kind = "sort long"
    nbytes = max(rows, _RESIDENT_ROWS * num_sms) * max(length, 2**_LEAST_THREADS) * (size + _STEP_BYTES)
    coordinates = log(rows, length, size, kept if isinstance(kept, int) else 1)
    return tuple(Work(rule, coordinates, 0, "", nbytes) for rule in dict.fromkeys((kind, name, "sort")))


def _least_by_parts(rows: int) -> int:
    return next(least for most, least in _BY_PARTS if most is None or rows <= most)


def running(op: Op, num_sms: int) -> tuple[Work, ...]:
    tensor = next(op.input_refs())
    dim = argument(op, 1, "dim", -1)
    dim = dim % len(tensor.shape) if isinstance(dim, int) and tensor.shape else 0
    length = tensor.shape[dim] if tensor.shape else 1
    nbytes = sum(item_bytes(one.dtype) for one in (tensor, op.outputs[0]))
    names = dict.fromkeys((base_name(op), "cumsum"))
    if tensor.numel <= length and not base_name(op).startswith("cumm"):
        return by_bytes((f"{name} flat" for name in names), log(nbytes * length, nbytes), nbytes * length)
    is_along = not tensor.shape or dim == len(tensor.shape) - 1
    walk = _along(tensor.numel // max(length, 1), length) if is_along else _across(tensor, dim)
    place = "along"
    if is_along:
        passed = max(walk.elements, 2 * num_sms * _THREADS) * walk.steps * _STEP_BYTES
    else:
        waited = waited_bytes(nbytes * tensor.numel, num_sms * _THREADS, walk.steps)
        passed = max(waited, walk.steps * walk.elements * nbytes)
        row_bytes = prod(tensor.shape[dim + 1 :]) * item_bytes(tensor.dtype)
        place = "across narrow" if row_bytes < _SECTOR_BYTES else "across"  # several steps find theirs in one sector
    coordinates = log(walk.count, walk.steps, walk.width, nbytes)
    if tensor.dtype != op.outputs[0].dtype:  # a kernel of its own converts it first
        names = {f"{name} converted": None for name in names} | names
    return tuple(
        Work(f"{name} {place}", coordinates, 0, "", passed, cached=ALL_CACHED, num_sizes=2, num_alike=2)
        for name in names
    )


def softmax(op: Op, num_sms: int) -> tuple[Work, ...]:
    """Along memory it goes by rows. Across it a thread walks down a column, or part of it where few columns lie beside
    each other; as many blocks as the GPU holds do so again and again."""
    tensor = next(op.input_refs())
    dim = argument(op, 2 if base_name(op).endswith("_backward_data") else 1, "dim", -1)
    dim = dim % len(tensor.shape) if isinstance(dim, int) and tensor.shape else 0
    beside = prod(tensor.shape[dim + 1 :])
    if beside <= 1 or not tensor.numel:
        return _softmax_of_rows(op, tensor.shape[dim] if tensor.shape else 1, num_sms)
    length, outer = tensor.shape[dim], prod(tensor.shape[:dim])
    columns = min(beside, _SOFTMAX_THREADS)
    share = 1
    if columns <= _FEW_COLUMNS <= length:
        share = 2 ** (min(_SOFTMAX_THREADS // columns, length).bit_length() - 1)
    resident = num_sms * min(_THREADS // (columns * share), _BLOCKS)
    inner_blocks = min(ceil(beside / columns), resident)
    outer_blocks = min(ceil(resident / inner_blocks), outer)
    blocks = inner_blocks * outer_blocks
    rounds = ceil(blocks / resident) * ceil(beside / columns / inner_blocks) * ceil(outer / outer_blocks)
    steps = rounds * ceil(length / share)
    nbytes = sum(item_bytes(one.dtype) for one in (*op.input_refs(), op.outputs[0]))
    coordinates = log(min(blocks, resident) * columns * share, steps, share, nbytes)
    passed = waited_bytes(nbytes * tensor.numel, num_sms * _THREADS, steps)
    names = dict.fromkeys((base_name(op), base_name(op).replace("_safe", "")))
    place = "across" if share == 1 else "across shared"
    if share == 1:  # a column is gone through again and again: how much of it the caches have by then
        coordinates += (*log(length), log2(max(tensor.numel * item_bytes(tensor.dtype) / _KEPT_BYTES, 1)) / 2)
    return tuple(Work(f"{name} {place}", coordinates, 0, "", passed, cached=ALL_CACHED) for name in names)


def _softmax_of_rows(op: Op, columns: int, num_sms: int) -> tuple[Work, ...]:
    """Short rows are held by a warp's registers, of which it computes a power of two, needed or not, beside moving the
    bytes of those that are, but a gradient takes as long as its bytes; long rows have a block of threads each. Of rows
    that are not much longer each thread holds some elements, as many as its fellows, needed or not; the longest ones
    are fetched again, by vectors, but for those that begin between two. Each kind has a rule of its own. The kernel
    reads a contiguous tensor; one that lies otherwise is copied first (see hidden_ops)."""
    inputs = list(op.input_refs())
    rows = inputs[0].numel // max(columns, 1)
    size, name = item_bytes(inputs[0].dtype), base_name(op)
    nbytes = total_bytes(inputs) + total_bytes(op.outputs)
    is_widened, is_backward = op.outputs[0].dtype != inputs[0].dtype, name.endswith("_backward_data")
    held_columns = _HELD_COLUMNS // (2 if is_widened or is_backward else 1)
    is_held = columns <= held_columns
    is_shared = not (is_held or is_widened or is_backward) and columns <= _SHARED_COLUMNS
    is_odd = not (is_held or is_shared) and row_alignment(columns, inputs[0].dtype) < VECTOR_BYTES
    rules = [f"{name} rows {size}", f"{name} rows 4"]
    filled = 0.0
    if not is_held and is_widened:
        rules = [f"{name} rows {size} widened", *rules]
    if not is_backward:
        filled = log2(max(columns, 1)) - _bits(columns) if is_held else _LONG_ROWS
        nbytes += _HELD_BYTES * rows * 2 ** _bits(columns) * is_held
    if is_shared:
        computed = ceil(columns / _ROW_THREADS) * _ROW_THREADS
        rules, columns, nbytes = [f"{rules[0]} shared", *rules], computed, nbytes * computed // columns
    own = (rows, columns)

    def work(rule: str, rows: int, columns: int) -> Work:
        seen = rows if is_held else max(rows, num_sms)
        coordinates = (*log(rows, columns), filled)
        return Work(rule, coordinates, 0, "", resized(nbytes, (seen, columns), own), num_sizes=2)

    even = tuple(resizable(partial(work, rule), own, _ROW_TOPS) for rule in dict.fromkeys(rules))
    if not is_odd:
        return even
    odd = replace(work(f"{rules[0]} odd", *own), num_sizes=0)  # a larger one may be even, and faster
    return (odd, *even)


def _across(tensor: TensorRef, dim: int) -> _Walk:
    """A thread has a column, a block up to 512 that lie beside each other; a processor is full of blocks, too."""
    beside = prod(tensor.shape[dim + 1 :])
    columns = min(beside, 2**_BLOCK)
    blocks = prod(tensor.shape[:dim]) * ceil(beside / 2**_BLOCK)
    return _Walk(blocks * max(columns, _THREADS // _BLOCKS), tensor.shape[dim], 1, prod(tensor.shape[:dim]) * beside)


def _along(rows: int, length: int) -> _Walk:
    """A block has 512 threads, so many to a row as make rows and threads of a row alike in number; each takes two
    elements of a piece. Where there are more than 512 rows for every element of one, torch's unsigned number wraps
    around, and every row has a block of its own."""
    excess = _BLOCK + _bits(length) - _bits(rows)
    width = min(max(excess // 2, _LEAST_THREADS), _BLOCK) if excess >= 0 else _BLOCK
    blocks = ceil(rows / 2 ** (_BLOCK - width))
    return _Walk(blocks, ceil(length / 2 ** (width + 1)), 2**width, blocks * 2 ** (_BLOCK + 1))


def _bits(size: int) -> int:
    """How many doublings reach it."""
    return max(size - 1, 0).bit_length()
