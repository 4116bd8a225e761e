"""The rule for sums, means, extremes and norms over dimensions: how torch's one kernel for them is launched.

In: an `Op`, how many processors the GPU has. Out: `Work`s, the most special rule first. The kernel gives each result to
a row or a column of a block of threads, and one result to many blocks where there are few; those write down what they
found, and the last one adds that up, step by step. So a sum of a million rows by 256 columns has two blocks' worth of
results, and 264 steps in the end take longer than the reading. Larger ones may take less time.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2, prod

from trainfit.cost.work import Work, base_name, item_bytes, log, touched_bytes
from trainfit.records import Op, TensorRef

REDUCTIONS = frozenset(
    "sum mean amax amin max min var var_mean std std_mean argmax argmin any all linalg_vector_norm norm prod logsumexp "
    "count_nonzero nansum".split()
)
SAME_REDUCTION = {
    "std": "var", "std_mean": "var_mean", "amin": "amax", "min": "max", "argmin": "max", "argmax": "max",
    "linalg_vector_norm": "sum", "norm": "sum", "nansum": "sum", "mean": "sum",
}  # fmt: skip
"""Reductions that run the kernels of another, or as fast ones."""

_MAX_THREADS, _WARP, _THREADS_PER_PROCESSOR = 512, 32, 2048
_VECTOR = 4
"""Elements that a thread reads at once, along memory, or results that it has, across."""
_LONG = 128
"""Shorter ones are not read by vectors along memory, nor are those of several results."""
_FEW, _MANY = 16, 256
"""Elements that a thread adds up: no fewer where that can be chosen, no more where blocks are left."""
_LOAD_BYTES, _STEP_BYTES = 3_000_000, 1_150_000
"""What memory could move while a thread waits for a vector of what it adds up, and during a step of the last block:
0.63 and 0.24 us on the H200."""
_CACHED_BYTES = 32 * 2**20
"""Less was mostly written just before, so that the cache answers for memory."""
_CACHED, _EVICTED_BYTES = 0.7, 48 * 2**20
"""The share of fetching that is saved where threads wait. Other reductions were seen to take longer than cold in steps,
as if to write a quarter of what they read, of so much at most."""
_SECTOR_BYTES, _READ_NEXT = 32, 8
"""What comes from the cache at the least, for an element whose neighbours no thread beside it reads, nor itself in its
next steps."""
_KIND_WEIGHT, _FILL_WEIGHT = 3.0, 4.0
"""How far apart, in doublings, two are that read by other vectors, or of which one leaves half its threads idle."""


@dataclass(frozen=True, slots=True)
class _Reduction:
    """What a launch depends on. Strides are of the operand, in elements; dimensions that lie alike are one."""

    num_results: int
    is_along: bool  # neighbours in memory are added up
    vector: int
    num_reduced_dims: int
    is_apart: bool  # what threads side by side read is not
    beside: tuple[tuple[int, int], ...]  # stride and size of what is
    following: tuple[int, int]  # stride and size of what a thread reads one after the other
    size: int  # bytes of an element


@dataclass(frozen=True, slots=True)
class _Launch:
    values: int
    """That a thread adds up."""
    loads: int
    """One after the other, by a thread and by those that have its place before it."""
    steps: int
    """That the last block of a result takes to add up what the others found."""
    fill: float
    """The share of threads that have a result."""


def reduction(op: Op, num_sms: int) -> tuple[Work, ...]:
    """By launch: one that is longer or has more results may take less time, since more threads share it."""
    (tensor, *others) = op.input_refs()
    out = op.outputs[0] if op.outputs else tensor
    found = _read(op, tensor, out)
    launch = _launched(found, max(tensor.numel // found.num_results, 1), num_sms)
    nbytes = sum(touched_bytes(one) for one in (tensor, *others, *op.outputs))
    kind = _KIND_WEIGHT * (log2(found.vector) + (found.num_reduced_dims > 1 and found.is_along) - found.is_apart)
    coordinates = (*log(nbytes, found.num_results, launch.values), kind, _FILL_WEIGHT * log2(launch.fill))
    fetched = 0 if found.is_along else round(_fetched_bytes(found) * tensor.numel)
    seen = max(nbytes, fetched, _LOAD_BYTES * launch.loads) + _STEP_BYTES * launch.steps
    waits = nbytes < min(_LOAD_BYTES * launch.loads, _CACHED_BYTES)
    cached = _CACHED if waits and not launch.steps else 0.0
    evicted = 0 if waits else min(nbytes, _EVICTED_BYTES) // 4
    name = SAME_REDUCTION.get(base_name(op), base_name(op))
    direction = "inner" if found.is_along else "outer"
    rules = [f"{rule} {direction} {size}" for rule in (name, "sum") for size in (found.size, 4, 2)]
    return tuple(
        Work(rule, coordinates, 0, "", seen, cached=cached, evicted_bytes=evicted) for rule in dict.fromkeys(rules)
    )


def _read(op: Op, tensor: TensorRef, out: TensorRef) -> _Reduction:
    """Dimensions in the order in which the kernel goes through them: those that are added up by how they lie in the
    operand, those that are kept by how they lie in the result."""
    reduced = reduced_dims(op, tensor)
    kept = [dim for dim in range(len(tensor.shape)) if dim not in reduced]
    has_all = len(out.shape) == len(tensor.shape)
    places = {dim: out.stride[dim if has_all else place] for place, dim in enumerate(kept)} if out.shape else {}
    added = _merged([(tensor.stride[dim], tensor.stride[dim], tensor.shape[dim]) for dim in reduced])
    left = _merged([(places.get(dim, 0), tensor.stride[dim], tensor.shape[dim]) for dim in kept])
    is_along = not left or (bool(added) and added[0][0] < left[0][0])
    length = prod(size for _, size in added)
    first_kept = left[0][1] if left else 1
    vector = 1
    if not left and len(added) == 1 and added[0][0] == 1 and length > _LONG:
        vector = _VECTOR
    elif not is_along and left[0][0] == 1:
        steps = [stride for stride, _ in (*left[1:], *added)]
        vector = next(size for size in (4, 2, 1) if all(number % size == 0 for number in (first_kept, *steps)))
    num_results = max(prod(size for _, size in left), 1)
    beside = added if is_along else left
    is_apart = bool(beside) and beside[0][0] != 1
    size = item_bytes(tensor.dtype)
    following = added[0] if added else (0, 1)
    return _Reduction(num_results, is_along, vector, len(added), is_apart, tuple(beside), following, size)


def _fetched_bytes(found: _Reduction) -> float:
    """Per element: whole sectors, which come for each warp, and are at hand for what its threads read next."""
    places = [0]
    for stride, size in found.beside:
        places = [place + stride * step for step in range(min(size, _WARP // len(places))) for place in places]
    stride, size = found.following
    places = [place + stride * step for step in range(min(size, _READ_NEXT)) for place in places]
    sectors = {place * found.size // _SECTOR_BYTES for place in places}
    return _SECTOR_BYTES * len(sectors) / len(places)


def _merged(dims: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """(stride in the operand, size) of dimensions given by what orders them, stride and size."""
    found: list[tuple[int, int]] = []
    for _, stride, size in sorted(dim for dim in dims if dim[2] > 1):
        if found and found[-1][0] * found[-1][1] == stride:
            found[-1] = (found[-1][0], found[-1][1] * size)
        else:
            found.append((stride, size))
    return found


def _launched(found: _Reduction, length: int, num_sms: int) -> _Launch:
    is_along, results = found.is_along, -(-found.num_results // (1 if found.is_along else found.vector))
    threads = _MAX_THREADS // (1 if is_along else found.vector)
    along = length // found.vector if is_along else length
    first, second = (along, results) if is_along else (results, along)
    first, second = (_floor_power(min(max(size, 1), threads)) for size in (first, second))
    height = min(second, threads // min(first, _WARP))
    width = min(first, threads // height)
    values = -(-length // (width if is_along else 1))
    is_split = values >= min(height * _FEW, _MANY)
    per_block = (1 if is_along else width) * (1 if is_split else height)
    if is_split:
        values = -(-values // height)
    blocks = -(-results // per_block)
    at_once = num_sms * (_THREADS_PER_PROCESSOR // (width * height))
    sharing = 1
    if is_split and values >= _MANY and blocks <= at_once:
        sharing = max(min(-(-at_once // blocks), -(-values // _FEW)), -(-values // _MANY))
        values = -(-values // sharing)
    steps = -(-sharing // (width * height if is_along else height)) if sharing > 1 else 0
    loads = -(-values // _VECTOR) * -(-blocks * sharing // at_once)
    return _Launch(values, loads, steps, results / (blocks * per_block))


def _floor_power(size: int) -> int:
    return 1 << (size.bit_length() - 1)


def reduced_dims(op: Op, tensor: TensorRef) -> set[int]:
    """All of them where the op says none, and where one number comes out."""
    everything = set(range(len(tensor.shape)))
    out = op.outputs[0] if op.outputs else None
    if out is None or out.numel <= 1:
        return everything
    for value in op.args[1:]:
        if isinstance(value, tuple) and all(isinstance(item, int) for item in value):
            return {item % len(tensor.shape) for item in value if isinstance(item, int)} or everything
        if isinstance(value, int) and not isinstance(value, bool) and "norm" not in op.name:  # which has an order
            return {value % len(tensor.shape)}
    return everything
