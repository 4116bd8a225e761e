"""Convolutions by direct kernels, without the units of matrix products: how long these compute.

In: one pass and its sizes. Out: `direct_ns`, on an H200's processors, before what was measured corrects it.

They are products too, cut into tiles that their names tell, of which most may be empty: a first layer's three channels
take as long as 32. cuDNN's engine says what is multiplied with what:
* a result is (pixels) x (output channels), and sums go along input channels and the window;
* an image's gradient is gathered like that (engine 74, and 1 of halves), strides or not; others multiply (pixels of the
  smaller image, image by image) x (input channels and the window) and add what they get to the gradient, window by
  window. That takes as long as memory takes to add; halves cannot be added by it, so threads that meet try again;
* a weight's gradient is (output channels) x (input channels and the window), and sums go along all pixels; engine 20
  shares them among all processors and goes from image to image, the other one does not.

Groups have kernels of their own, some of which run at once. Constants were fitted to passes that were timed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

Name = Literal["forward", "input", "weight"]

PROCESSORS = 132
"""Of the GPU that was measured."""
_STEP = 8
"""Terms of a sum that are loaded together."""


@dataclass(frozen=True, slots=True)
class _Kernel:
    """Tiles of so many rows and columns, of which a processor computes some at once; what each takes for one term of
    its sums; what it takes to begin, for each group where there are any; and how many groups run at once."""

    rows: int
    columns: int
    at_once: float
    term_ns: float
    begin_ns: float
    group_ns: float = 1000.0
    streams: int = 8


_GATHERED = {
    (74, 4): _Kernel(32, 32, 1.6, 18.0, 3200.0, 1400.0, 4),
    (1, 2): _Kernel(64, 32, 3.7, 119.0, 11_000.0, 8400.0),
}
_SCATTERED = {4: _Kernel(32, 64, 3.8, 53.0, 8000.0, 1900.0), 2: _Kernel(32, 64, 3.8, 53.0, 22_000.0, 4600.0)}
_ADDED_NS = {4: 6.1e-3, 2: 1.5e-2}
_MEETING = {4: 0.0, 2: 0.5}
"""An addition takes longer by this power of how many pixels of windows meet at one of the image."""
_USUAL_ENGINE = 28
_RESULTS = {
    (70, 4): _Kernel(32, 32, 2.4, 26.0, 3600.0, 440.0, 3), (28, 4): _Kernel(32, 32, 6.7, 77.0, 3000.0, 900.0),
    (28, 2): _Kernel(32, 32, 8.0, 114.0, 3500.0, 850.0), (1, 2): _Kernel(32, 32, 12.0, 133.0, 1500.0, 140.0, 1),
}  # fmt: skip
_WIDE, _WIDE_CHANNELS = _Kernel(128, 64, 2.0, 155.0, 3500.0, 850.0), 64
"""Of the usual engine's results in halves, where groups have so many input and output channels."""
_SHARED, _SHARED_IMAGE_NS = _Kernel(32, 32, 4.6, 77.0, 11_000.0, 1200.0), 54.0
_WEIGHTS = {4: _Kernel(32, 32, 4.0, 52.0, 5200.0, 1200.0), 2: _Kernel(128, 64, 2.2, 180.0, 10_000.0, 10_000.0)}
_SHARING_ENGINE = 20
_WEIGHT_NS = {4: 2.4e-3, 2: 1.5e-3}
"""Of a weight's gradient that is not shared: what writing one weight's takes beside that."""


@dataclass(frozen=True, slots=True)
class Directly:
    """What distinguishes one pass: cuDNN's engine, its images, the pixels of the window and, of the larger image, how
    many there are for one of the smaller, as the images have it and as the stride says."""

    name: Name
    engine: int
    item_bytes: int
    images: int
    window: int
    spread: float
    stride: int
    groups: int


def direct_ns(one: Directly, pixels: float, outputs: float, inputs: int) -> float:
    """Of so many pixels of the smaller images, by the output and input channels of a group."""
    if one.name == "forward":
        kernels = [_RESULTS.get((one.engine, one.item_bytes), _RESULTS[_USUAL_ENGINE, one.item_bytes])]
        if (one.engine, one.item_bytes) == (_USUAL_ENGINE, 2) and min(outputs, inputs) >= _WIDE_CHANNELS:
            kernels.append(_WIDE)
        return min(_tiles_ns(kernel, one.groups, pixels, outputs, inputs * one.window) for kernel in kernels)
    if one.name == "weight":
        return _weight_ns(one, pixels, outputs, inputs * one.window)
    gathered = _GATHERED.get((one.engine, one.item_bytes))
    if gathered is not None:
        return _tiles_ns(gathered, one.groups, pixels * one.spread, inputs, outputs * one.window)
    kernel, columns = _SCATTERED[one.item_bytes], inputs * one.window
    rows = one.images * ceil(pixels / one.images / kernel.rows) * kernel.rows
    meeting = max(one.window / one.stride, 1.0) ** _MEETING[one.item_bytes]
    added_ns = _ADDED_NS[one.item_bytes] * meeting * one.groups * pixels * columns
    return _tiles_ns(kernel, one.groups, rows, columns, outputs) + added_ns


def _weight_ns(one: Directly, pixels: float, outputs: float, columns: int) -> float:
    if one.engine == _SHARING_ENGINE:
        along = one.images * ceil(pixels / one.images / _STEP) * _STEP
        tiles = one.groups * ceil(outputs / _SHARED.rows) * ceil(columns / _SHARED.columns)
        shared_ns = tiles * along * _SHARED.term_ns / (_SHARED.at_once * PROCESSORS)
        return _begin_ns(_SHARED, one.groups) + max(shared_ns, _SHARED_IMAGE_NS * one.images)
    written_ns = _WEIGHT_NS[one.item_bytes] * one.groups * outputs * columns
    return _tiles_ns(_WEIGHTS[one.item_bytes], one.groups, outputs, columns, pixels) + written_ns


def _tiles_ns(kernel: _Kernel, groups: int, rows: float, columns: float, terms: float) -> float:
    """Waves of tiles, no fewer than groups that run at once."""
    tiles = groups * ceil(rows / kernel.rows) * ceil(columns / kernel.columns)
    waves = max(tiles / (kernel.at_once * PROCESSORS), groups / min(groups, kernel.streams))
    return _begin_ns(kernel, groups) + waves * ceil(terms / _STEP) * _STEP * kernel.term_ns


def _begin_ns(kernel: _Kernel, groups: int) -> float:
    return kernel.begin_ns + kernel.group_ns * groups * (groups > 1)
