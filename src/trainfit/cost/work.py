"""`Work`: what an op asks of a GPU, and how long an ideal GPU would take over it.

In: an `Op`'s sizes. Out: operations and bytes, the rule (a table of a profile) that says how far from ideal such ops
are, and the coordinates at which to look in that table. Coordinates are log2 of sizes; of the GPU they know at most
how many processors it has, so that what one GPU was measured to do can be asked for another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import log2, prod

from trainfit.gpus.catalogue import Gpu
from trainfit.records import Op, TensorRef

LAUNCH_NS = 1000
"""A kernel that does nothing takes about this long on the GPU."""

_ROUND_NS = 700
"""What a processor takes to begin and end a tile of a product, about."""

_WRITE_BACK = 0.08
"""What an op much larger than the cache pays beyond its bytes at the memory's rate, as a share: results no longer stay
in the cache, and what earlier ops left there is written first. Seen on the H200 between 48 and 96 MiB."""

SOME_CACHED, ALL_CACHED = 0.25, 1.0
"""The share of what fetching all operands from memory costs that a step saves, since they were written just before: in
steps of 38 models on the H200 kernels took 4 to 13% less than cold and 8 to 20% more than warm. All of it where an op
waits for memory to answer rather than moves much."""

VECTOR_BYTES = 16
_ITEM_BYTES = {
    "bool": 1,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "float64": 8,
    "int64": 8,
    "uint64": 8,
    "complex64": 8,
}
_BYTE_TYPES = ("int8", "uint8", "float8")


@dataclass(frozen=True, slots=True)
class Work:
    """One way to price an op: a rule, where to look in it, and the ideal that the rule's ratios are relative to."""

    rule: str
    coordinates: tuple[float, ...]
    flops: int
    flops_dtype: str
    nbytes: int
    kernels: int = 1
    is_serial: bool = False
    """Whether traffic and arithmetic come one after the other, in kernels of their own."""
    is_by_bytes: bool = False
    """Whether the first coordinate is log2 of the bytes, and nothing but more bytes makes such an op larger."""
    fill: float = 1.0
    """The share of the processors' time that computes results, where work comes in whole waves of tiles."""
    stretch: float = 1.0
    """How many times as long arithmetic takes because there is less to do at once than the GPU has processors."""
    rounds: float = 0
    """How often processors begin and end a tile of a product, one after the other."""
    cached: float = SOME_CACHED
    """The share of what fetching all operands from memory costs that a step saves."""
    recalled: float | None = None
    """In a step it takes this share of its cold time, where that is known better than by a warm run, which finds in the
    cache what it wrote itself."""
    recalled_warm: float = 1.0
    """And a warm run this share, which counts where an op lasts so long that it was not run cold."""
    evicted_bytes: int = 0
    """What earlier ops of a step left in the cache and memory gets meanwhile: alone, an op that only reads does not pay
    for it."""
    num_sizes: int = 0
    """How many of the coordinates, from the first, are log2 of sizes: more of any takes no less time. None where a
    library has kernels for larger ones that are much faster."""
    num_alike: int = 0
    """How many of the next coordinates must be equal for two works to be compared."""
    family: Family | None = field(default=None, repr=False, compare=False)
    """What it would be with other sizes; None where more of a size may take less time."""

    def arithmetic_ns(self, gpu: Gpu) -> float:
        """The operations at the datasheet's rate."""
        return self.flops / (peak_tflops(gpu, self.flops_dtype) * 1e3) if self.flops else 0.0

    def ideal_ns(self, gpu: Gpu, fill: float | None = None) -> float:
        """Kernel floors, arithmetic and traffic at the datasheet's rates, overlapped or not.

        Where the GPU's own waves are filled to another share than this work's, `fill`, arithmetic takes as much longer.
        """
        if self.is_by_bytes:
            return streaming_ns(self.nbytes, gpu)
        arithmetic_ns, traffic_ns = self.stretch * self.arithmetic_ns(gpu), _traffic_ns(self.nbytes, gpu)
        if fill is not None:
            arithmetic_ns *= self.fill / fill
        busy_ns = arithmetic_ns + traffic_ns if self.is_serial else max(arithmetic_ns, traffic_ns)
        return self.kernels * LAUNCH_NS + self.rounds * _ROUND_NS + busy_ns


def by_bytes(
    rules: Iterable[str], coordinates: tuple[float, ...], nbytes: int, kernels: int = 1, cached: float = SOME_CACHED
) -> tuple[Work, ...]:
    """Works of one op, of which nothing but the bytes makes it larger."""
    return tuple(
        Work(rule, coordinates, 0, "", nbytes, kernels, is_by_bytes=True, cached=cached)
        for rule in dict.fromkeys(rules)
    )


@dataclass(frozen=True, slots=True)
class Family:
    """A work as one of those that differ in nothing but sizes."""

    make: Callable[..., Work]
    sizes: tuple[float, ...]
    """Its own; no less than 1."""
    tops: tuple[int, ...]
    """log2 of the sizes beyond which nothing is measured."""
    lift: float = 1.0
    """How many times as long it takes on average as the least of it and all that is larger, by what is measured."""


def resizable(make: Callable[..., Work], sizes: tuple[float, ...], tops: tuple[int, ...], lift: float = 1.0) -> Work:
    """The work of these sizes, which knows what it would be with others; one of nothing does not."""
    family = Family(make, sizes, tops, lift) if all(sizes) else None
    return replace(make(*sizes), family=family)


def resized(amount: int, sizes: Iterable[int], own: Iterable[int]) -> int:
    """What is in proportion to the product of the sizes, `amount` for those that are its own."""
    return amount * prod(sizes) // max(prod(own), 1)


Parts = tuple[tuple[float, tuple[int, ...]], ...]
"""Bytes for each unit of the sizes with these numbers, multiplied."""


def parts_of(tensors: Iterable[tuple[TensorRef, tuple[int, ...]]], own: Sequence[float]) -> Parts:
    """The bytes of the tensors, each in proportion to some of the sizes, which are now `own`."""
    found: dict[tuple[int, ...], int] = {}
    for tensor, axes in tensors:
        found[axes] = found.get(axes, 0) + touched_bytes(tensor)
    return tuple((nbytes / max(prod(own[i] for i in axes), 1), axes) for axes, nbytes in found.items())


def traffic_bytes(parts: Parts, sizes: Sequence[float]) -> int:
    """The bytes of all parts with these sizes."""
    total = 0.0
    for nbytes, axes in parts:
        for axis in axes:
            nbytes *= sizes[axis]
        total += nbytes
    return round(total)


_ANSWERED_BYTES, _SLOW = 32 * 2**20, 0.6
"""Up to so many bytes the cache answers for memory, in half the time; beyond, ever fewer, by this power."""


def waited_bytes(nbytes: int, held: int, steps: int) -> int:
    """The bytes that memory moves while an op over `nbytes` goes through its steps, in each of which `held` threads
    wait for an answer."""
    slowness = min(max(nbytes / _ANSWERED_BYTES, 1.0) ** _SLOW / 2, 1.0)
    return round(_WAIT_BYTES * held * steps * slowness)


_WAIT_BYTES = 8
"""What memory moves per thread while it answers."""


def streaming_ns(nbytes: float, gpu: Gpu) -> float:
    """A launch, and so many bytes at the memory's rate."""
    return LAUNCH_NS + _traffic_ns(nbytes, gpu)


def _traffic_ns(nbytes: float, gpu: Gpu) -> float:
    beyond_cache = min(max(nbytes / gpu.l2_bytes - 1, 0.0), 1.0)
    return nbytes * (1 + _WRITE_BACK * beyond_cache) / gpu.dram_gb_per_s


def peak_tflops(gpu: Gpu, dtype: str) -> float:
    """Dense throughput for products of this type; a GPU that lacks it computes in fp32."""
    if dtype == "float16":
        return gpu.fp16_tflops
    if dtype == "bfloat16" and gpu.bf16_tflops is not None:
        return gpu.bf16_tflops
    if dtype.startswith("float8") and gpu.fp8_tflops is not None:
        return gpu.fp8_tflops
    if dtype == "tf32" and gpu.tf32_tflops is not None:
        return gpu.tf32_tflops
    return gpu.fp32_tflops


def item_bytes(dtype: str) -> int:
    return 1 if dtype.startswith(_BYTE_TYPES) else _ITEM_BYTES.get(dtype, 16 if dtype == "complex128" else 4)


def touched_bytes(tensor: TensorRef) -> int:
    """Bytes of the elements that differ: a dimension with stride 0 is read once."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride, strict=True):
        if stride != 0:
            count *= size
    return count * item_bytes(tensor.dtype) if tensor.numel else 0


def total_bytes(tensors: Iterable[TensorRef]) -> int:
    return sum(touched_bytes(tensor) for tensor in tensors)


def log(*sizes: float) -> tuple[float, ...]:
    return tuple(log2(max(size, 1)) for size in sizes)


def base_name(op: Op) -> str:
    """ "add" for aten.add.Tensor and aten.add_.Tensor; other namespaces stay in the name."""
    return short_name(op.name)


def short_name(name: str) -> str:
    parts = name.split(".")
    base = parts[1] if parts[0] == "aten" and len(parts) > 1 else ".".join(parts[:2])
    return base.removesuffix("_") if not base.endswith("__") else base


def argument(op: Op, index: int, name: str, default: object) -> object:
    """An argument that may stand in its place, by name, or not at all."""
    if index < len(op.args):
        return op.args[index]
    return dict(op.kwargs).get(name, default)


def tensors_of(values: Iterable[object]) -> list[TensorRef]:
    return [value for value in values if isinstance(value, TensorRef)]


def inner_dim(tensor: TensorRef) -> int | None:
    """The dimension along which neighbours in memory lie; None for a tensor of one element."""
    dims = [dim for dim, size in enumerate(tensor.shape) if size > 1 and tensor.stride[dim] != 0]
    return min(dims, key=lambda dim: tensor.stride[dim]) if dims else None


def row_alignment(elements: int, dtype: str) -> int:
    """The power of two, up to 16 bytes, at which every row of so many elements starts."""
    nbytes = elements * item_bytes(dtype)
    return min(nbytes & -nbytes, VECTOR_BYTES) if nbytes else VECTOR_BYTES


def rows_alignment(matrix: TensorRef) -> int:
    """The power of two, up to 16 bytes, at which every row (or column, if those lie in memory) starts."""
    steps = [stride for size, stride in zip(matrix.shape, matrix.stride, strict=True) if size > 1 and stride != 1]
    return min((row_alignment(step, matrix.dtype) for step in steps), default=VECTOR_BYTES)


def is_channels_last(tensor: TensorRef) -> bool:
    return (
        len(tensor.shape) == 4
        and tensor.shape[1] > 1
        and tensor.stride[1] == 1
        and tensor.shape[2] * tensor.shape[3] > 1
    )


def contiguous_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
