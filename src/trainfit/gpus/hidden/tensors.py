"""What the rules ask about an op's tensors: sizes in bytes, layouts, arguments. No torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

from trainfit.gpus.catalogue import Gpu
from trainfit.records import Op, TensorRef

Rule = Callable[[Op, Gpu], tuple[int, ...]]
"""The steps of an op's kernel, as `trainfit.records.OUTPUT` describes them."""

_ITEM_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float16": 2,
    "bfloat16": 2,
    "int16": 2,
    "float32": 4,
    "int32": 4,
    "float64": 8,
    "int64": 8,
    "complex64": 8,
    "complex128": 16,
}
INTEGERS = ("bool", "uint8", "int8", "int16", "int32", "int64")
HALVES = ("float16", "bfloat16")


def item_bytes(dtype: str) -> int:
    if dtype not in _ITEM_BYTES:
        raise ValueError(f"the size of a {dtype} is not known; add it to trainfit/gpus/hidden/tensors.py")
    return _ITEM_BYTES[dtype]


def nbytes(tensor: TensorRef) -> int:
    return tensor.numel * item_bytes(tensor.dtype)


def accumulator_bytes(dtype: str) -> int:
    """Kernels sum halves in fp32 and everything else in its own type."""
    return 4 if dtype in HALVES else item_bytes(dtype)


def has_strides(tensor: TensorRef, order: Sequence[int]) -> bool:
    """Is the tensor dense with its dimensions in this order, the slowest first? Dimensions of size 1 do not count."""
    expected = 1
    for dim in reversed(order):
        if tensor.shape[dim] != 1 and tensor.stride[dim] != expected:
            return False
        expected *= tensor.shape[dim]
    return True


def is_contiguous(tensor: TensorRef) -> bool:
    return tensor.numel == 0 or has_strides(tensor, range(len(tensor.shape)))


def is_channels_last(tensor: TensorRef) -> bool:
    dims = len(tensor.shape)
    return dims in (4, 5) and has_strides(tensor, (0, *range(2, dims), 1))


def suggests_channels_last(tensor: TensorRef) -> bool:
    """Whether torch takes an image's strides for those of channels that come last. It looks at dimensions of one
    element too: a weight of [8, 1, 3, 1] that autocast made has strides of [3, 1, 1, 1] and is taken so, one of
    [3, 3, 1, 1] is not."""
    if len(tensor.shape) != 4 or not tensor.stride[1]:
        return is_channels_last(tensor) and not is_contiguous(tensor)
    least = 0
    for dim in (1, 3, 2, 0):
        size, stride = tensor.shape[dim], tensor.stride[dim]
        if not size or stride < least or (dim == 0 and least == tensor.stride[1]):
            return False
        least = stride * size if size > 1 else stride
    return True


def contiguous(tensor: TensorRef) -> TensorRef:
    """The tensor as a copy of it would lie."""
    steps = [product([max(size, 1) for size in tensor.shape[dim + 1 :]]) for dim in range(len(tensor.shape))]
    return replace(tensor, stride=tuple(steps))


def flat(tensor: TensorRef) -> TensorRef:
    """All elements as one row."""
    return replace(tensor, shape=(tensor.numel,), stride=(1,), offset=0)


def copy_unless_contiguous(tensor: TensorRef) -> tuple[int, ...]:
    """The buffer of `.contiguous()`; none where the tensor already is."""
    return () if is_contiguous(tensor) else (nbytes(tensor),)


def tensor_argument(op: Op, index: int) -> TensorRef:
    value = op.args[index]
    if not isinstance(value, TensorRef):
        raise ValueError(f"argument {index} of {op.name} should be a tensor, but is {value!r}")
    return value


def argument(op: Op, index: int, name: str, default: object) -> object:
    """An argument that may stand in its place, by name, or not at all."""
    if index < len(op.args):
        return op.args[index]
    return dict(op.kwargs).get(name, default)


def integers(value: object) -> tuple[int, ...]:
    """A list of integers in an op's arguments; a plain integer is a list of one."""
    if isinstance(value, int):
        return (value,)
    if not isinstance(value, tuple | list):
        raise ValueError(f"{value!r} should be a list of integers")
    return tuple(item for item in value if isinstance(item, int))


def given_dims(op: Op, place: int = 1) -> tuple[int, ...]:
    """The dimensions that a reduction is over; none stand for all."""
    dims = argument(op, place, "dim", None)
    return integers(dims) if dims is not None else ()


def freed(steps: Sequence[int]) -> tuple[int, ...]:
    """The steps that free these buffers again, the last first."""
    return tuple(-size for size in reversed(steps))


def ceil_div(value: int, divisor: int) -> int:
    return -(-value // divisor)


def round_up(value: int, multiple: int) -> int:
    return ceil_div(value, multiple) * multiple


def last_pow2(value: int) -> int:
    """The largest power of two that is not above the value; 1 for 0."""
    return 1 << (max(value, 1).bit_length() - 1)


def product(sizes: Sequence[int]) -> int:
    return prod(sizes)


def max_threads_per_sm(gpu: Gpu) -> int:
    """Resident threads of a multiprocessor, by compute capability (CUDA programming guide)."""
    if gpu.compute_capability == (7, 5):
        return 1024
    if gpu.compute_capability[0] == 12 or gpu.compute_capability in ((8, 6), (8, 9)):
        return 1536
    return 2048
