"""Convolutions with a window per channel: by which of cuDNN's kernels, and how long these compute.

In: what distinguishes one pass. Out: the kind of kernels (`engine_kernels`, `named_kernels`), and
`channelwise_ns`, on an H200's processors, before what was measured corrects it.

Kinds, beside torch's own kernels ("own"):
* "specialized" and "channelwise": compiled for this window; the first for halves of 8 images and more, and gradients of
  small square windows;
* "banded": on the units of matrix products, along bands of the image, windows in parts of 3 x 3;
* "widened": channels are widened to vectors and convolved as groups are;
* "naive": a thread for each result; "direct": one launch for each channel.

The engine that cuDNN proposes says which, but without a GPU it does not propose those that it compiles when they are
asked for ("specialized", "channelwise"): these run wherever they can. Constants were fitted to 1,700 passes of the H200
that a seed drew.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

from trainfit.cost.convolution_direct import PROCESSORS, Name

Channelwise = Literal["own", "specialized", "channelwise", "banded", "widened", "naive", "direct"]
CHANNELWISE: tuple[Channelwise, ...] = (
    "specialized", "channelwise", "naive", "widened", "banded", "direct", "own",
)  # fmt: skip
"""Those that are like each other are near each other."""

_ENGINES: dict[Name, dict[int, Channelwise]] = {
    "forward": {0: "naive", 5: "channelwise", 22: "widened", 28: "direct", 57: "banded"},
    "input": {
        0: "naive", 6: "channelwise", 22: "widened", 25: "direct", 40: "widened", 46: "widened", 62: "banded",
    },
    "weight": {
        0: "naive", 1: "direct", 9: "widened", 10: "widened", 16: "channelwise", 19: "channelwise", 23: "widened",
        30: "widened", 49: "direct", 61: "banded",
    },
}  # fmt: skip
_NAMES: tuple[tuple[str, Channelwise], ...] = (
    ("conv_depthwise", "own"), ("specialized", "specialized"), ("c1_k1", "channelwise"),
    ("shmem_tiling", "channelwise"), ("grouped_direct", "naive"), ("depthwise_convolution", "banded"),
    ("convolve", "direct"), ("wgrad_alg", "direct"), ("cutlass", "direct"), ("xmma", "widened"),
    ("tensorTransform", "widened"),
)  # fmt: skip
_SPECIAL_SIDES, _LEAST_IMAGES, _ALIGNED = (1, 3, 5, 7), 8, 4
_SHORTEST_ROW, _ROW_UNIT = 3, 8
"""Of a window of float32, whose image's gradient has kernels; where its rows are long, rows of pixels come in units."""
_STRIDED_SIDE, _SMALL_SIDE, _STRIDED_WIDENED = 5, 8, 10
"""Weights' gradients of such windows with a stride are widened on images up to so small, by this engine."""

# Nanoseconds to begin; how often memory could move the images; what a result takes, and each pixel of its window.
_COSTS: dict[tuple[Channelwise, Name, int], tuple[float, float, float, float]] = {
    ("specialized", "forward", 2): (4500.0, 0.35, 0.0, 1.45e-4),
    ("specialized", "input", 2): (1540.0, 0.1, 0.0, 3.5e-4),
    ("specialized", "input", 4): (1170.0, 0.0, 0.0, 3.8e-4),
    ("channelwise", "forward", 2): (1630.0, 0.05, 0.0, 3.1e-4),
    ("channelwise", "forward", 4): (1370.0, 0.1, 0.0, 3.0e-4),
    ("channelwise", "input", 2): (6560.0, 2.4, 0.0, 1.0e-3),
    ("channelwise", "input", 4): (7700.0, 0.1, 0.0, 1.2e-3),
    ("channelwise", "weight", 2): (5100.0, 1.6, 0.0, 1.3e-4),
    ("banded", "forward", 2): (4760.0, 3.2, 0.0, 1.2e-4),
    ("banded", "input", 2): (8270.0, 1.0, 4.6e-4, 5.0e-5),
    ("banded", "weight", 2): (18500.0, 0.4, 0.0, 1.6e-4),
    ("banded", "weight", 4): (13400.0, 1.0, 4.3e-4, 0.0),
    ("widened", "forward", 2): (35000.0, 2.6, 3.5e-2, 1.1e-3),
    ("widened", "input", 2): (28700.0, 4.5, 4.4e-2, 1.2e-3),
    ("widened", "weight", 2): (44200.0, 1.8, 2.2e-2, 1.4e-3),
    ("widened", "weight", 4): (101_000.0, 2.2, 3.2e-2, 4.3e-3),
    ("naive", "forward", 2): (9100.0, 2.0, 1.5e-2, 2.7e-3),
    ("naive", "forward", 4): (8570.0, 1.0, 1.5e-2, 3.3e-3),
    ("naive", "input", 4): (7950.0, 7.0, 0.0, 2.7e-3),
    ("naive", "weight", 2): (1800.0, 5.0, 2.4e-3, 3.1e-3),
    ("naive", "weight", 4): (3780.0, 1.0, 1.9e-3, 4.2e-3),
}
_UNALIGNED: dict[Name, float] = {"forward": 0.3, "input": 0.46, "weight": 1.1}
"""Of naive kernels: a pixel of the window takes so much were channels not aligned at all, and 1 more where they are
aligned to lines of the cache, which all threads of a warp then ask of the same part of it."""
LINE_BYTES = 128
_ALONE_NS, _NAIVE_ALONE_NS = 3.2, 7.0
"""Of a weight's gradient: a block of threads goes through an image, a pixel at a time; a naive one through all."""
_BAND = 3
"""A side of the part of a window that bands of pixels are multiplied with."""
_LAUNCH_NS: dict[Name, tuple[float, float, float]] = {
    "forward": (4500.0, 0.025, 90.0), "input": (5500.0, 0.025, 90.0), "weight": (60_000.0, 1.7, 0.0),
}  # fmt: skip
"""Of a channel that is launched for itself: to begin, which for an image's gradient is as in groups; a pixel of the
larger image, of which a whole sector of memory is read for one channel (of a weight's gradient one of the smaller); and
a pixel of the window, for each wave of so many results."""
_WAVE = PROCESSORS * 128


@dataclass(frozen=True, slots=True)
class _Planes:
    """Compiled kernels where channels do not come last: a block of threads has one channel of one image, or for a
    weight's gradient of all images, one after the other. What it takes to begin; how many blocks a processor runs at
    once; and what an image's channel takes, each of its pixels, each of the window's, and each pair of these."""

    begin_ns: float
    at_once: float
    image_ns: float
    pixel_ns: float
    tap_ns: float
    pair_ns: float


_PLANES = {
    ("image", 1): _Planes(1550.0, 5.3, 320.0, 1.7, 7.0, 0.135),
    ("image", 2): _Planes(1600.0, 2.0, 10.0, 0.25, 4.2, 0.06),
    ("weight", 1): _Planes(4700.0, 3.8, 170.0, 2.1, 90.0, 0.0),
    ("weight", 2): _Planes(3900.0, 2.1, 80.0, 0.8, 0.0, 0.027),
}
"""By what is computed, images or weights' gradients, and the dimensions of the window; three are taken for two."""
_PLANES_MOVED = 0.1
"""Memory could move the images this often meanwhile."""


@dataclass(frozen=True, slots=True)
class Windows:
    """What decides about the kernels of one pass. `sides` are of the window, `pixels` of the smaller image."""

    name: Name
    item_bytes: int
    sides: tuple[int, ...]
    stride: int
    dilation: int
    multiplier: int
    """Results of each channel."""
    images: int
    channels: int
    pixels: tuple[int, ...]
    is_last: bool

    @property
    def is_special(self) -> bool:
        """A small square, neither spread nor moved far."""
        is_small = len(set(self.sides)) == 1 and self.sides[0] in _SPECIAL_SIDES and len(self.sides) == 2
        return is_small and self.dilation == 1 and self.stride <= 2 and self.multiplier == 1


def engine_kernels(windows: Windows, engine: int) -> Channelwise:
    """Of the engine that cuDNN proposes, with or without a GPU."""
    found = _ENGINES[windows.name].get(engine, "widened")
    if len(windows.sides) == 1 and not windows.is_last:
        return "direct" if found == "direct" else "channelwise"
    if _is_compiled(windows, engine) and (found != "banded" or windows.name == "forward" or not windows.is_last):
        found = "channelwise"
    return _specialized(windows) if found == "channelwise" else found


def _is_compiled(windows: Windows, engine: int) -> bool:
    """Whether cuDNN compiles kernels for the window, and prefers them to the engine that it proposes without a GPU."""
    if windows.name == "input":
        is_moved = windows.stride > 1 and not windows.is_last
        return (windows.is_special and not is_moved) or _has_general_gradient(windows)
    if windows.name == "forward":
        return windows.is_special
    is_small = windows.stride > 1 and windows.sides[-1] == _STRIDED_SIDE and windows.pixels[-1] <= _SMALL_SIDE
    is_widened = is_small and engine == _STRIDED_WIDENED
    return windows.is_special and windows.item_bytes == 2 and windows.stride <= windows.sides[0] and not is_widened


def _has_general_gradient(windows: Windows) -> bool:
    """Whether an image's gradient has kernels for any window; in float32 for those that are not too narrow."""
    if windows.multiplier > 1 or not windows.is_last:
        return False
    row = windows.sides[-1]
    is_fitting = row <= max(_SPECIAL_SIDES) or not windows.pixels[-1] % _ROW_UNIT
    return windows.item_bytes == 2 or (row >= _SHORTEST_ROW and is_fitting)


def _specialized(windows: Windows) -> Channelwise:
    if not windows.is_last or not windows.is_special or windows.name == "weight":
        return "channelwise"
    is_fitting = windows.item_bytes == 2 and windows.images >= _LEAST_IMAGES and not windows.channels % _ALIGNED
    return "specialized" if windows.name == "input" or is_fitting else "channelwise"


def like(kernels: str) -> list[Channelwise]:
    """All kinds, those that are most like these first."""
    place = next((place for place, kind in enumerate(CHANNELWISE) if kind == kernels), 0)
    return sorted(CHANNELWISE, key=lambda kind: abs(CHANNELWISE.index(kind) - place))


def named_kernels(kernel: str) -> Channelwise | None:
    """Of the longest kernel that ran."""
    return next((kind for part, kind in _NAMES if part in kernel), None)


def _costs(kernels: Channelwise, name: Name, item_bytes: int) -> tuple[float, float, float, float]:
    """Those of the other type, or of the result, where cuDNN was never seen to run such."""
    tried: tuple[tuple[Name, int], ...] = ((name, item_bytes), (name, 6 - item_bytes), ("weight", item_bytes))
    found = (_COSTS.get((kernels, *one)) for one in (*tried, ("forward", 2)))
    return next(costs for costs in found if costs is not None)


def times_moved(kernels: Channelwise, windows: Windows) -> float:
    """How often memory could move the images meanwhile."""
    if kernels == "direct":
        return 1.0
    if _is_by_planes(kernels, windows):
        return _PLANES_MOVED
    moved = _costs(kernels, windows.name, windows.item_bytes)[1]
    return moved * _parts(windows) if kernels == "banded" and windows.name == "weight" else moved


def _parts(windows: Windows) -> int:
    """Of a window, in bands."""
    count = 1
    for side in windows.sides:
        count *= ceil(side / _BAND)
    return count


def channelwise_ns(kernels: Channelwise, windows: Windows, pixels: float, channels: float, taps: float) -> float:
    """Of so many pixels and channels of results (an image's gradient's own); `taps` is how many of a window's pixels
    lie inside the image, on average."""
    window, results = 1, pixels * channels
    for side in windows.sides:
        window *= side
    if kernels == "direct":
        launch_ns, pixel_ns, tap_ns = _LAUNCH_NS[windows.name]
        area = windows.stride**2 if windows.name == "forward" else 1
        return channels * (launch_ns + pixel_ns * pixels * area + tap_ns * window * ceil(pixels / _WAVE))
    if _is_by_planes(kernels, windows):
        return _planes_ns(windows, pixels, channels, window)
    begin_ns, _, result_ns, tap_ns = _costs(kernels, windows.name, windows.item_bytes)
    if kernels == "naive":
        aligned = min(line_alignment(windows), LINE_BYTES) / LINE_BYTES
        alone_ns = _NAIVE_ALONE_NS * pixels if windows.name == "weight" else 0.0
        return begin_ns + max(results * (result_ns + tap_ns * taps * (_UNALIGNED[windows.name] + aligned)), alone_ns)
    if windows.name != "weight":
        return begin_ns + results * (result_ns + tap_ns * window)
    if kernels == "banded":
        return begin_ns + results * (result_ns * windows.stride**2 + tap_ns * window)
    alone_ns = _ALONE_NS * pixels / max(windows.images, 1) if kernels == "channelwise" else 0.0
    return begin_ns + max(results * (result_ns + tap_ns * window), alone_ns)


def _is_by_planes(kernels: Channelwise, windows: Windows) -> bool:
    return kernels == "channelwise" and not windows.is_last


def _planes_ns(windows: Windows, pixels: float, channels: float, window: int) -> float:
    """Waves of blocks, of each of which some images' pixels are the work."""
    is_weight, images = windows.name == "weight", max(windows.images, 1)
    planes = _PLANES["weight" if is_weight else "image", min(len(windows.sides), 2)]
    own = pixels / images
    image_ns = planes.image_ns + planes.pixel_ns * own + planes.tap_ns * window + planes.pair_ns * own * window
    blocks, walked = (channels, images) if is_weight else (channels * images, 1)
    return planes.begin_ns + max(blocks / (planes.at_once * PROCESSORS), 1.0) * walked * image_ns


def line_alignment(windows: Windows) -> int:
    """The power of two, up to a line of the cache, at which the channels of every pixel start."""
    nbytes = windows.channels * windows.item_bytes
    return min(nbytes & -nbytes, LINE_BYTES) if nbytes else LINE_BYTES
