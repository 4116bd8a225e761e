"""The rule for images and volumes that are sampled at points (`grid_sample`).

In: an `Op` and how many processors the GPU has. Out: `Work`s. torch's kernels have a thread for every point, which goes
through all channels one after the other, cuDNN's one for every element of the result. What a step takes depends on how
many pixels an image has: few of them stay in a processor's cache. A gradient is added up pixel by pixel, so threads
wait for each other where there are many points to a pixel, and of narrow numbers for longer.
"""

from __future__ import annotations

from math import log2, prod

from trainfit.cost.work import ALL_CACHED, SOME_CACHED, Work, base_name, item_bytes, log
from trainfit.records import Op, TensorRef

SAMPLERS = frozenset(
    f"{name}{way}" for name in ("grid_sampler_2d", "grid_sampler_3d", "cudnn_grid_sampler") for way in ("", "_backward")
)
_MODES = ("bilinear", "nearest", "bicubic")
_STEP_BYTES, _ADDED_BYTES = (24, 12, 96), (240, 120, 960)
"""What memory could move while an element is sampled, by mode, and while its gradient is added up: 5 and 50 ps of
bilinear ones; of volumes twice as much."""
_THREADS, _ADDING_THREADS = 300, 128
"""How many of a processor's threads take as long as one: fewer wait for memory."""
_FEW = 1 / 16
"""Points to a pixel: fewer meet no less often."""
_LAST_WEIGHT = _SCATTERED_WEIGHT = 3.0
"""How far apart, in doublings, two are of which one's channels come last, or one's points lie anywhere."""
_MOST_POINTS, MANY_QUERIES = 16, 1024
"""So many points and fewer belong to a query; so many queries and more are those of all pixels, in their order."""


def sampled(op: Op, num_sms: int) -> tuple[Work, ...]:
    """By points, channels, pixels and points to a pixel."""
    name, is_backward = base_name(op), base_name(op).endswith("_backward")
    is_own = not name.startswith("cudnn")
    first = is_backward and is_own  # whose gradient comes before the image
    image, grid = list(op.input_refs())[first : first + 2]
    mode = op.args[first + 2] if is_own and len(op.args) > first + 2 else 0
    mode = mode if isinstance(mode, int) and mode < len(_MODES) else 0
    points, channels = prod(grid.shape[:-1]), image.shape[1]
    pixels = max(prod(image.shape[2:]), 1)
    per_pixel = points / max(image.shape[0], 1) / pixels
    held = num_sms * (_ADDING_THREADS if is_backward else _THREADS) if is_own else 0
    each = (_ADDED_BYTES if is_backward else _STEP_BYTES)[mode] * (2 if len(image.shape) > 4 else 1)
    nbytes = max(points, held) * channels * each
    kinds = _LAST_WEIGHT * _is_last(image), _SCATTERED_WEIGHT * _is_scattered(grid.shape)
    coordinates = (*log(points, channels, pixels), log2(max(per_pixel, _FEW)), *kinds)
    sizes = dict.fromkeys((item_bytes(image.dtype), 4, 2))
    rules = dict.fromkeys(f"{name} {_MODES[one]} {size}" for one in (mode, 0) for size in sizes)
    cached = SOME_CACHED if is_backward else ALL_CACHED
    return tuple(Work(rule, coordinates, 0, "", nbytes, cached=cached, num_sizes=2, num_alike=4) for rule in rules)


def is_few_per_query(sizes: tuple[int, ...]) -> bool:
    """Few points for each of many queries, as deformable attention has them."""
    return len(sizes) == 2 and 1 < sizes[1] <= _MOST_POINTS < sizes[0]


def _is_scattered(shape: tuple[int, ...]) -> bool:
    """Whether nets that have points of this shape have them anywhere, and not in the order of pixels."""
    sizes = shape[1:-1]
    return sizes[0] < MANY_QUERIES if is_few_per_query(sizes) else 1 in sizes


def _is_last(image: TensorRef) -> bool:
    return image.shape[1] > 1 and image.stride[1] == 1 and prod(image.shape[2:]) > 1
