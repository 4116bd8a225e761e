"""Fourier transforms: copies for cuFFT, and its workspaces.

Sources: SpectralOps.cpp (native/cuda), which clones what cuFFT would overwrite and brings what is not transformed into
one piece. Which lengths take several kernels, and a workspace for them, is what the H200 ran (CUDA 13, 54 shapes).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from trainfit.gpus.catalogue import Gpu
from trainfit.gpus.hidden.tensors import Rule, argument, contiguous, integers, nbytes, tensor_argument
from trainfit.records import Op, TensorRef

_TO_REAL, _COMPLEX = "aten._fft_c2r.default", "aten._fft_c2c.default"
DIRECT_FACTOR, LARGEST_FACTOR = 31, 127
"""The largest prime factors of lengths that one kernel transforms, and that cuFFT splits at all. The prime numbers
between have kernels of their own, and a length with a larger one is transformed as the convolution of a longer row."""
_ONE_KERNEL = 16384
"""The longest rows that one kernel transforms; longer ones are split in two factors."""
_SPLIT_PRIMES = 4096
"""The longest rows that a kernel for the prime factor and one for the rest transform; longer ones take three."""
_CONVOLVED, _CONVOLUTION_KERNELS = 4913 // 2, 6
"""The longest rows that one kernel convolves, and how many it takes for longer ones."""
_COMPLEX_BYTES = 8


def kernels_along(length: int) -> int:
    """How many kernels transform rows of this length; each goes through all of memory."""
    factor = largest_factor(length)
    if factor > LARGEST_FACTOR:
        return 1 if length <= _CONVOLVED else _CONVOLUTION_KERNELS
    if factor > DIRECT_FACTOR and factor != length:
        return 2 if length <= _SPLIT_PRIMES else 3
    return 0 if length == 1 else 1 if length <= _ONE_KERNEL else 2


def largest_factor(length: int) -> int:
    """The largest prime number that divides it."""
    factor, found = 2, 1
    while factor * factor <= length:
        if length % factor:
            factor += 1
        else:
            length, found = length // factor, factor
    return max(length, found)


def transformed(op: Op) -> list[int]:
    """The dimensions along which it transforms."""
    num_dims = len(tensor_argument(op, 0).shape)
    return [dim % num_dims for dim in integers(argument(op, 1, "dim", ()))]


def lengths_of(op: Op) -> list[int]:
    """Of the rows that it transforms, along each of those dimensions."""
    tensor, out = tensor_argument(op, 0), op.outputs[0]
    return [max(tensor.shape[dim], out.shape[dim]) for dim in transformed(op)]


def copied(op: Op) -> list[TensorRef]:
    """What is copied before the transform, one after the other: a spectrum that cuFFT would overwrite, and what it
    cannot read as it lies."""
    tensor, copies = tensor_argument(op, 0), []
    if op.name == _TO_REAL:
        copies.append(tensor)
        tensor = contiguous(tensor)
    turned = _turned(tensor, transformed(op))
    if not _is_in_one_piece(turned, len(tensor.shape) - len(transformed(op))):
        copies.append(turned)
    return copies


def _turned(tensor: TensorRef, dims: Sequence[int]) -> TensorRef:
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


def _transform(op: Op, gpu: Gpu) -> tuple[int, ...]:
    return *map(nbytes, copied(op)), *_workspace(op)


def _workspace(op: Op) -> tuple[int, ...]:
    """What lies between the kernels of one row. Real rows that are convolved are unfolded there, those of even length
    as complex ones of half of it."""
    lengths = lengths_of(op)
    is_split = any(kernels_along(length) > 1 for length in lengths)
    if op.name == _COMPLEX:
        return (nbytes(op.outputs[0]),) if is_split else ()
    real, spectrum = tensor_argument(op, 0), op.outputs[0]
    if op.name == _TO_REAL:
        real, spectrum = spectrum, real
    if is_split:
        return (nbytes(spectrum),)
    if max(map(largest_factor, lengths)) > LARGEST_FACTOR:
        return (real.numel * _COMPLEX_BYTES // (1 if lengths[-1] % 2 else 2),)
    return ()


RULES: dict[str, Rule] = dict.fromkeys(("aten._fft_r2c.default", _TO_REAL, _COMPLEX), _transform)
