"""Rules for rows that are added up by index: gradients of lookups, `index_put` that accumulates.

In: an `Op`. Out: `Work`s. Indices are sorted first, by dozens of kernels however few there are; then rows that go to
the same place are added one after the other. What each of these takes is counted as the bytes that memory could move
meanwhile, seen on the H200; the table says how far from the sum an op is.
"""

from __future__ import annotations

import itertools
from functools import partial
from math import ceil, exp, prod, sqrt

from trainfit.cost.work import (
    Work,
    argument,
    base_name,
    item_bytes,
    log,
    resizable,
    tensors_of,
    touched_bytes,
)
from trainfit.records import Op, TensorRef

_LARGEST_OF_BAG = 2
"""How a bag's rows become one: their sum, their mean, or the largest of each column, whose gradient is not sorted."""
_WARP = 32

_FEW_LOOKUPS, _LOOKUP_BYTES, _MOST_LOOKUPS = 3072, 139_000, 2660
"""So many lookups are not sorted, but gone through one after the other, 29 ns each; to sort more takes about as long as
to go through so many, and 0.13 ns for each."""
_FEW_KERNELS, _SORTING_KERNELS, _KERNEL_BYTES = 2, 31, 4_800_000
"""How many run, and what memory could move while one that does nothing does."""
_SORTED_BYTES, _PART_BYTES = 622, 283
"""Of a lookup, and of every 32 columns of its row."""
_PLACE_BYTES, _PLACE_PART_BYTES = 3390, 2270
"""Of a row of the table that any lookup names, and of every 32 columns of it."""


def embedding_backward(op: Op) -> tuple[Work, ...]:
    """Zeroes the table's gradient, then one kernel goes through the tokens if they are few; else they are sorted and
    their rows added up, by many kernels whatever the width; so are those of bags, whose gradients have fewer rows."""
    indices, out = list(op.input_refs())[1], op.outputs[0]
    own = (indices.numel, out.shape[0], out.shape[-1])
    size = item_bytes(out.dtype)

    def work(rule: str, lookups: int, rows: int, width: int) -> Work:
        parts = ceil(width / _WARP)
        named = rows * (1 - exp(-lookups / rows)) if rows else 0.0
        nbytes = _LOOKUP_BYTES * min(lookups, _MOST_LOOKUPS) + lookups * (_SORTED_BYTES + _PART_BYTES * parts)
        nbytes += round(named * (_PLACE_BYTES + _PLACE_PART_BYTES * parts)) + rows * width * size
        kernels = _FEW_KERNELS if lookups <= _FEW_LOOKUPS or rule.endswith("largest") else _SORTING_KERNELS
        nbytes -= (kernels - _FEW_KERNELS) * _KERNEL_BYTES  # which are in the time of so many lookups
        return Work(rule, log(lookups, rows, width), 0, "", max(nbytes, 0), kernels, num_sizes=3)

    is_largest = base_name(op) == "_embedding_bag_backward" and argument(op, 8, "mode", 0) == _LARGEST_OF_BAG
    rules = dict.fromkeys(
        (base_name(op) + (" largest" if is_largest else ""), base_name(op), "embedding_dense_backward")
    )
    return tuple(resizable(partial(work, rule), own, (22, 20, 15)) for rule in rules)


_BASE_BYTES, _LONG_BYTES, _LONG_LOOKUPS, _INDEX_BYTES = 58_000_000, 92_000_000, 2304, 36_000_000
"""To make one number of the indices of each row and to sort them: at all, of more than a block of threads sorts, and
for every index beside the first."""
_EACH_BYTES, _BEHIND_BYTES = 1240, 820
"""Of a row, and of one behind dimensions that are not indexed, of each of their places."""
_REPEAT_BYTES = ((1, 356_000), (_WARP, 900_000), (None, 2_600_000))
"""Of a row that goes where another went before it, by how wide rows are."""
_SPREAD = 3
"""How much more often than the mean one place is named, in square roots of that."""


def accumulated(op: Op) -> tuple[Work, ...]:
    """Rows added up by index, sorted first; no rule where nothing is added up.

    Behind dimensions that are not indexed the sorted rows are gone through once for each of those. What is not written
    in place is copied first.
    """
    indices, values = argument(op, 1, "indices", ()), argument(op, 2, "values", None)
    if argument(op, 3, "accumulate", False) is not True or not isinstance(values, TensorRef) or not values.numel:
        return ()
    tensor = next(op.input_refs())
    found = tensors_of(indices) if isinstance(indices, tuple) else []
    before, lookups = _indexed(indices if isinstance(indices, tuple) else (), tensor)
    width = max(values.numel // max(before * lookups, 1), 1)
    repeats = lookups * before * width / max(tensor.numel, 1)
    each = next(nbytes for most, nbytes in _REPEAT_BYTES if most is None or width <= most)
    nbytes = _BASE_BYTES + _LONG_BYTES * (lookups > _LONG_LOOKUPS) + _INDEX_BYTES * max(len(found) - 1, 0)
    nbytes += lookups * (_EACH_BYTES + _BEHIND_BYTES * (before if before > 1 else 0)) + 2 * touched_bytes(values)
    nbytes += round(each * (repeats + _SPREAD * sqrt(repeats)))
    if not op.name.split(".")[1].endswith("_"):
        nbytes += 2 * touched_bytes(tensor)
    coordinates = log(before * lookups, width, 1 + repeats)
    rules = ("index_put behind", "index_put accumulated") if before > 1 else ("index_put accumulated",)
    return tuple(Work(rule, coordinates, 0, "", nbytes) for rule in rules)


def checks_indices(op: Op) -> bool:
    """Whether indices were looked at before, by a dozen kernels, as calling it does; a gradient does not, though it is
    traced under the same name."""
    return base_name(op) == "index_put" and argument(op, 3, "accumulate", False) is True


def _indexed(indices: tuple[object, ...], out: TensorRef) -> tuple[int, int]:
    """How many times the indices are gone through, once for each place in the dimensions before them, and how many
    there are. Indices that do not stand side by side are brought to the front."""
    places = [place for place, index in enumerate(indices) if isinstance(index, TensorRef)]
    if not places:
        return 1, 1
    shapes = [index.shape[::-1] for index in tensors_of(indices)]
    lookups = prod(max(sizes) for sizes in itertools.zip_longest(*shapes, fillvalue=1))  # they are broadcast
    is_together = places == list(range(places[0], places[0] + len(places)))
    return (prod(out.shape[: places[0]]) if is_together else 1), lookups
