"""Rules for Fourier transforms: cuFFT goes through memory once for each dimension, and torch around it.

In: an `Op`. Out: its `Work`s, the most special rule first, and what torch runs beside the transform (`beside`): the
input is turned so that what is not transformed lies in one piece, copied where cuFFT would overwrite it, and the result
is scaled.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from trainfit.cost.work import Work, argument, base_name, contiguous_stride, log, touched_bytes
from trainfit.records import Op, TensorRef

TRANSFORMS = frozenset(("_fft_r2c", "_fft_c2r", "_fft_c2c"))

_DIRECT_FACTOR, _LARGEST_FACTOR = 31, 127
"""The largest prime factors of lengths that one kernel transforms, and that cuFFT splits at all. The prime numbers
between have kernels of their own, and a length with a larger one is transformed as the convolution of a longer row."""
_ONE_KERNEL = 16384
"""The longest rows that one kernel transforms; longer ones are split in two factors."""
_SPLIT_PRIMES = 4096
"""The longest rows that a kernel for the prime factor and one for the rest transform; longer ones take three."""
_CONVOLVED, _CONVOLUTION_KERNELS = 4913 // 2, 6
"""The longest rows that one kernel convolves, and how many it takes for longer ones."""


def transform(op: Op) -> tuple[Work, ...]:
    """By the bytes of the spectrum, and how long the longest rows are."""
    tensor, out = next(op.input_refs()), op.outputs[0]
    lengths = [max(tensor.shape[dim], out.shape[dim]) for dim in _dims(op, tensor)] or [1]
    spectrum_bytes = touched_bytes(tensor if base_name(op) == "_fft_c2r" else out)
    kernels = max(sum(map(_num_kernels, lengths)), 1)
    nbytes = touched_bytes(tensor) + touched_bytes(out) + 2 * (kernels - 1) * spectrum_bytes
    factor = max(map(_largest_factor, lengths))
    kind = "" if factor <= _DIRECT_FACTOR else " primes" if factor <= _LARGEST_FACTOR else " convolved"
    coordinates = log(spectrum_bytes, max(lengths))
    return tuple(Work(rule, coordinates, 0, "", nbytes, kernels) for rule in dict.fromkeys((f"fft{kind}", "fft")))


def beside(op: Op) -> tuple[Op, ...]:
    """Copies before the transform, and the scaling of its result."""
    tensor, out = next(op.input_refs()), op.outputs[0]
    turned = _turned(tensor, _dims(op, tensor))
    copied = [turned] if not _is_in_one_piece(turned, len(tensor.shape) - len(_dims(op, tensor))) else []
    if base_name(op) == "_fft_c2r":
        copied.append(_contiguous(turned))
    copies = [
        Op("aten.clone.default", op.phase, op.module, (one,), (), (replace(_contiguous(one), storage=-1),))
        for one in copied
    ]
    if argument(op, 2, "normalization", 0) == 0:
        return tuple(copies)
    plain = _contiguous(out)
    return *copies, Op("aten.mul_.Tensor", op.phase, op.module, (plain, 0.5), (), (plain,))


def _dims(op: Op, tensor: TensorRef) -> list[int]:
    dims = argument(op, 1, "dim", ())
    return [dim % len(tensor.shape) for dim in dims if isinstance(dim, int)] if isinstance(dims, tuple) else []


def _num_kernels(length: int) -> int:
    """That transform rows of this length; each goes through all of memory."""
    factor = _largest_factor(length)
    if factor > _LARGEST_FACTOR:
        return 1 if length <= _CONVOLVED else _CONVOLUTION_KERNELS
    if factor > _DIRECT_FACTOR:
        return 2 if length <= _SPLIT_PRIMES else 3
    return 0 if length == 1 else 1 if length <= _ONE_KERNEL else 2


def _largest_factor(length: int) -> int:
    """The largest prime number that divides it."""
    factor, found = 2, 1
    while factor * factor <= length:
        if length % factor:
            factor += 1
        else:
            length, found = length // factor, factor
    return max(length, found)


def _turned(tensor: TensorRef, dims: list[int]) -> TensorRef:
    """The dimensions that are not transformed first, those with the longest strides before others."""
    others = sorted(set(range(len(tensor.shape))) - set(dims), key=lambda dim: -tensor.stride[dim])
    order = [*others, *dims]
    shape, stride = (tuple(values[dim] for dim in order) for values in (tensor.shape, tensor.stride))
    return replace(tensor, shape=shape, stride=stride)


def _is_in_one_piece(tensor: TensorRef, num_dims: int) -> bool:
    """Whether its first dimensions are one to a library that knows one distance between rows."""
    steps = list(zip(tensor.shape, tensor.stride, strict=True))[:num_dims]
    real = [(size, step) for size, step in steps if size > 1]
    return all(outer == size * inner for (_, outer), (size, inner) in pairwise(real))


def _contiguous(tensor: TensorRef) -> TensorRef:
    return replace(tensor, stride=contiguous_stride(tensor.shape))
