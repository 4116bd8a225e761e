"""Rules for Fourier transforms: cuFFT goes through memory once for each dimension, and torch around it.

In: an `Op`. Out: its `Work`s, the most special rule first, and what torch runs beside the transform (`beside`): copies
of the input, and the scaling of the result.
"""

from __future__ import annotations

from dataclasses import replace

from trainfit.cost.work import Work, argument, base_name, log, touched_bytes
from trainfit.gpus.hidden.fourier import (
    DIRECT_FACTOR,
    LARGEST_FACTOR,
    copied,
    kernels_along,
    largest_factor,
    lengths_of,
)
from trainfit.gpus.hidden.tensors import contiguous
from trainfit.records import Op

TRANSFORMS = frozenset(("_fft_r2c", "_fft_c2r", "_fft_c2c"))

_PLANE_SIDE = 128
"""The longest side of complex planes, powers of two, that one kernel transforms both ways."""


def transform(op: Op) -> tuple[Work, ...]:
    """By the bytes of the spectrum, and how long the longest rows are."""
    tensor, out = next(op.input_refs()), op.outputs[0]
    lengths = lengths_of(op) or [1]
    spectrum_bytes = touched_bytes(tensor if base_name(op) == "_fft_c2r" else out)
    kernels = max(sum(map(kernels_along, lengths)), 1)
    passes = max(sum(map(_passes, lengths)), 1)
    nbytes = touched_bytes(tensor) + touched_bytes(out) + 2 * (passes - 1) * spectrum_bytes
    coordinates = log(spectrum_bytes, max(lengths))
    rules = dict.fromkeys((_rule(max(map(largest_factor, lengths))), "fft mixed", "fft"))
    works = [Work(rule, coordinates, 0, "", nbytes, kernels) for rule in rules]
    is_small = max(map(largest_factor, lengths)) <= 2 and max(lengths) <= _PLANE_SIDE
    if base_name(op) == "_fft_c2c" and kernels == 2 and is_small:
        works.insert(0, Work("fft planes", coordinates, 0, "", 2 * spectrum_bytes))
    return tuple(works)


def _passes(length: int) -> int:
    """Over memory, of rows of this length; one kernel that convolves them transforms there and back, twice as long."""
    kernels = kernels_along(length)
    return 2 if kernels == 1 and largest_factor(length) > LARGEST_FACTOR else kernels


def _rule(factor: int) -> str:
    """By the largest prime factor of all lengths: powers of two have the fastest kernels."""
    if factor <= 2:
        return "fft"
    return "fft mixed" if factor <= DIRECT_FACTOR else "fft primes" if factor <= LARGEST_FACTOR else "fft convolved"


def beside(op: Op) -> tuple[Op, ...]:
    """Copies before the transform, and the scaling of its result."""
    copies = [
        Op("aten.clone.default", op.phase, op.module, (one,), (), (replace(contiguous(one), storage=-1),))
        for one in copied(op)
    ]
    if argument(op, 2, "normalization", 0) == 0:
        return tuple(copies)
    plain = contiguous(op.outputs[0])
    return *copies, Op("aten.mul_.Tensor", op.phase, op.module, (plain, 0.5), (), (plain,))
