"""Which convolutions cuDNN computes on Fourier transforms of their images, and what that takes from the allocator.

In: a `Problem`. Out: `is_transformed`; into how many frames of what size images are cut then (`frames_of`), and the
workspace (`workspace_bytes`).

cuDNN does not offer these engines without a GPU, so they are imitated: a decision tree per pass, grown on what the
H200's own cuDNN 9.19 proposed for 105,000 passes of small images in float32 (benchmarks/fit_transforms.py). Of unseen
ones that are transformed it finds 94% (result), 79% (image's gradient) and 77% (weight's gradient), and is right about
93%, 78% and 79% of those that it names. Workspaces equal 4,101 of 4,431 answers; all but five are within 1%.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import prod
from typing import Any

from trainfit.gpus.hidden.cudnn import Problem, Tree
from trainfit.gpus.hidden.tensors import ceil_div

_COMPLEX_BYTES, _REAL_BYTES = 8, 4
_SMALLEST_SIDE, _GRADIENT_SIDE = 16, 32
_IMAGE_RANK, _LARGEST_SIDE, _WIDEST_WINDOW = 4, 128, 15  # of what was asked
_BUFFERED = 2
"""Frames of an image's gradient whose transforms are kept at once; the other passes keep what they transform, or what
they compute if that is more, twice."""


@dataclass(frozen=True, slots=True)
class Frames:
    side: int
    per_image: int

    @property
    def frequencies(self) -> int:
        """Of real numbers half of them are enough."""
        return self.side * (self.side // 2 + 1)


def is_transformed(problem: Problem) -> bool:
    if problem.dtype != "float32" or problem.channels_last or len(problem.x) != _IMAGE_RANK or problem.groups > 1:
        return False
    is_plain = set(problem.stride) == set(problem.dilation) == {1} and problem.kernel_pixels > 1
    sides, window = problem.x[2:], problem.weight[2:]
    is_small = min(sides) > 1 and max(sides) <= _LARGEST_SIDE and max(window) <= _WIDEST_WINDOW
    return is_plain and is_small and bool(_tree(problem.kind).form_number(features(problem)))


def frames_of(problem: Problem) -> Frames:
    """Padded images whole; for their gradient pieces, which the windows make overlap."""
    sizes = list(zip(problem.x[2:], problem.weight[2:], problem.padding, strict=True))
    if problem.kind == "input gradient":
        pieces = (ceil_div(size, max(_GRADIENT_SIDE - window + 1, 1)) for size, window, _ in sizes)
        return Frames(_GRADIENT_SIDE, prod(pieces))
    longest = max(size + 2 * padding for size, _, padding in sizes)
    return Frames(max(_SMALLEST_SIDE, 1 << (longest - 1).bit_length()), 1)


def workspace_bytes(problem: Problem) -> int:
    """Transforms, and what is turned around before: the weights, or the gradient that a weight's is computed from."""
    frames = frames_of(problem)
    inputs, results = (problem.x[0] * channels for channels in (problem.x[1], problem.weight[0]))
    weights, turned = problem.x[1] * problem.weight[0], 0
    if problem.kind == "input gradient":
        transforms = (inputs + results) * min(frames.per_image, _BUFFERED) + weights
    elif problem.kind == "output":
        transforms, turned = 2 * max(inputs + weights, results), weights * problem.kernel_pixels
    else:
        transforms, turned = 2 * max(inputs + results, weights), results * prod(problem.y[2:])
    return _COMPLEX_BYTES * frames.frequencies * transforms + _REAL_BYTES * turned


def features(problem: Problem) -> tuple[int, ...]:
    """What the trees ask about."""
    (images, inputs, *sides), (outputs, _, *window) = problem.x, problem.weight
    pixels, reaches = prod(window), _reaches(problem)
    return (
        images, inputs, outputs, *sides, *window, problem.stride[0], *problem.padding, max(reaches), min(reaches),
        images * prod(problem.y[2:]), inputs * pixels, outputs * pixels, images * inputs, images * outputs,
        inputs * outputs,
    )  # fmt: skip


def _reaches(problem: Problem) -> list[int]:
    return [size + window - 1 for size, window in zip(problem.x[2:], problem.weight[2:], strict=True)]


@cache
def _tree(kind: str) -> Tree:
    return Tree.of(*(_stored()[f"{kind}/{part}"] for part in ("feature", "value")))


@cache
def _stored() -> Any:
    import numpy as np

    return np.load(io.BytesIO((files(__package__) / "cudnn_transforms.npz").read_bytes()))
