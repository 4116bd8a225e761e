"""The rule for multi-tensor kernels: optimizers' ops on lists of tensors, and norms of them.

In: an `Op`. Out: `Work`s, the most special rule first. Tensors are cut into chunks, each for a block of threads, and
lists that are too long for one launch take several. A block goes through its chunk load by load, so a launch takes no
less than the longest chunk in it, however little there is besides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trainfit.cost.work import Work, base_name, item_bytes, log, tensors_of, total_bytes
from trainfit.records import Op, TensorRef

_TENSORS_PER_LAUNCH = (110, 64, 48, 36, 30)
"""By how many lists a multi-tensor kernel goes through at once, one to five: its arguments have room for so many."""
_CHUNK, _CHUNKS_PER_LAUNCH = 64 * 1024, 320
_LOAD = 512 * 4
"""Elements that a block reads at once."""
_LOAD_BYTES, _FUSED_LOAD_BYTES = 1_800_000, 5_000_000
"""What memory could move meanwhile: 0.4 us on the H200, and 1.1 where a whole update is computed."""


class Launch(NamedTuple):
    num_elements: int
    num_loads: int  # of its longest chunk


_CACHED = 0.1
"""The share of what fetching costs that steps were seen to save: little, as lists are long."""


def foreach(op: Op) -> tuple[Work, ...]:
    """By bytes, and by how much longer than those chunks take."""
    name = base_name(op)
    lists = [tensors_of(value) for value in op.args if isinstance(value, tuple)]
    first = next((items for items in lists if items), [])
    if not first:
        return ()
    written = list(op.outputs) or _written(name, lists)
    read = dict.fromkeys(tensor for items in lists for tensor in items)  # Adam multiplies gradients by themselves
    nbytes = total_bytes(read) + total_bytes(written)
    alike = [items for items in (*lists, op.outputs) if items and items[0].numel == first[0].numel]
    made = launches([tensor.numel for tensor in first], len(alike))
    per_element = nbytes / max(sum(tensor.numel for tensor in first), 1)
    load_bytes = _FUSED_LOAD_BYTES if name.startswith("_fused") else _LOAD_BYTES
    seen = round(sum(max(per_element * one.num_elements, load_bytes * (one.num_loads - 1)) for one in made))
    size = item_bytes(first[0].dtype)
    family = "_foreach_norm" if name == "_foreach_norm" else "_foreach_mul"
    rules = [f"{name} {size}", f"{family} {size}", f"{name} 4", f"{family} 4"]
    kernels = len(made) + (2 if name == "_foreach_norm" else 0)  # joined by two more
    coordinates = log(nbytes, seen / max(nbytes, 1))
    return tuple(Work(rule, coordinates, 0, "", seen, kernels, cached=_CACHED) for rule in dict.fromkeys(rules))


def launches(sizes: Sequence[int], num_lists: int) -> list[Launch]:
    """A launch takes so many tensors and so many chunks, whichever comes first."""
    max_tensors = _TENSORS_PER_LAUNCH[min(num_lists, len(_TENSORS_PER_LAUNCH)) - 1]
    found: list[Launch] = []
    tensors = chunks = elements = loads = 0
    for size in sizes:
        left = -(-size // _CHUNK)
        tensors += 1
        loads = max(loads, -(-min(size, _CHUNK) // _LOAD))
        while chunks + left >= _CHUNKS_PER_LAUNCH:
            taken = _CHUNKS_PER_LAUNCH - chunks
            found.append(Launch(elements + min(size, taken * _CHUNK), loads))
            left, size = left - taken, max(size - taken * _CHUNK, 0)
            tensors, chunks, elements = int(left > 0), 0, 0
            loads = -(-min(size, _CHUNK) // _LOAD)
        chunks, elements = chunks + left, elements + size
        if tensors == max_tensors:
            found.append(Launch(elements, loads))
            tensors = chunks = elements = loads = 0
    return [*found, Launch(elements, loads)] if chunks or not found else found


def _written(name: str, lists: list[list[TensorRef]]) -> list[TensorRef]:
    """What an in-place multi-tensor op writes: its first list, or parameters and both moments for a fused Adam."""
    if name.startswith("_fused_adam"):
        return [*lists[0], *lists[2], *lists[3]]
    return lists[0]
