"""Rules for pooling, resizing and sampling images.

In: an `Op` and how many processors the GPU has. Out: `Work`s. What counts is how many threads a kernel has and how many
elements each of them looks at, one after the other; bytes matter little. Where there are fewer threads than the GPU
holds, those that are missing take as long.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import starmap
from math import ceil, gcd, log2, prod, sqrt

from trainfit.cost import stream
from trainfit.cost.work import (
    ALL_CACHED,
    SOME_CACHED,
    Work,
    argument,
    base_name,
    by_bytes,
    contiguous_stride,
    is_channels_last,
    item_bytes,
    log,
    total_bytes,
    waited_bytes,
)
from trainfit.records import Op, TensorRef

POOLS = frozenset(
    """max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward upsample_nearest2d
    upsample_nearest2d_backward upsample_bilinear2d upsample_bilinear2d_backward _adaptive_avg_pool2d
    _adaptive_avg_pool2d_backward adaptive_max_pool2d adaptive_max_pool2d_backward upsample_bicubic2d
    upsample_bicubic2d_backward _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward _upsample_nearest_exact2d
    _upsample_nearest_exact2d_backward max_pool3d_with_indices max_pool3d_with_indices_backward avg_pool3d
    avg_pool3d_backward upsample_nearest1d upsample_nearest1d_backward upsample_linear1d upsample_linear1d_backward
    upsample_nearest3d upsample_nearest3d_backward upsample_trilinear3d upsample_trilinear3d_backward
    _adaptive_avg_pool3d _adaptive_avg_pool3d_backward adaptive_max_pool3d adaptive_max_pool3d_backward""".split()
)
SAME_POOL = {
    "_upsample_nearest_exact2d": "upsample_nearest2d",
    "_upsample_nearest_exact2d_backward": "upsample_nearest2d_backward",
}
"""Resizing that runs the kernels of another."""

_THREADS, _WARP = 2048, 32
"""How many a processor holds, and of which all do the same."""
_STEP_BYTES = 8
"""Of an element that is read and written."""
_SMOOTH = ("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d")
"""Resizing by a thread for every pixel of the result, which goes through all images and channels."""
_SMOOTH_THREADS = 1024
"""Of those of images and signals, how many a processor has at a time: one block. More come in whole waves."""
_HELD_BYTES, _LOST_BYTES = 24_000_000, 64_000_000
"""So many bytes of image and result the cache answers for, in half the time; of more than these, none."""
_BY_ADDING = (*_SMOOTH, "adaptive", "max_pool3d")
"""Gradients to which threads add one after the other: narrow numbers take many times as long."""
_REACHES = {"linear1d": 2, "bicubic2d": 16}
"""Places to which a pixel of such a result adds its gradient."""
_MEETING_BYTES = {2: 13_600_000, 4: 384_000, 8: 384_000}
"""What memory could move while the first addition to a place is made, by the width of its numbers: 2.8 us, since those
of two bytes are compared and written until nobody came in between, and 80 ns. More take longer by the root of their
number, about: those of neighbours come together."""
_MANY_CHANNELS = 16
"""From which on a kernel of its own resizes images whose channels come last."""
_BLOCK = (8, 32)
"""Threads of adaptive pooling, rows and columns of the smaller image; a block has a channel of an image."""


def pool(op: Op, num_sms: int) -> tuple[Work, ...]:
    """An image that keeps its size while it is resized is copied."""
    name, image, out = base_name(op), next(op.input_refs()), op.outputs[0]
    if "upsample" in name and "2d" in name and image.shape == out.shape:
        return stream.pointwise(Op("aten.clone.default", op.phase, op.module, (image,), (), op.outputs))
    kind, layout = SAME_POOL.get(name, name), _layout(op)
    if (name, layout) == ("upsample_bilinear2d", "nhwc"):
        if out.shape[1] >= _MANY_CHANNELS:  # a thread for every element, whatever its type
            nbytes = out.numel * _STEP_BYTES
            return by_bytes([f"{kind} nhwc"], log(nbytes, _STEP_BYTES), nbytes)
        layout = "strided"
    last = (_largest_of_last(op, num_sms),) if (name, layout) == ("max_pool2d_with_indices", "nhwc") else ()
    threads, steps = _threads_and_steps(op, layout, num_sms)
    grown = log2(max(image.numel, 1) / max(out.numel, 1))
    coordinates = (*log(threads, steps, item_bytes(out.dtype)), grown)
    waits = not name.endswith("backward") and any(part in name for part in (*_SMOOTH, "adaptive"))
    nbytes = max(threads, num_sms * _THREADS) * steps * _STEP_BYTES
    if name.endswith("backward") and (reach := _REACHES.get(name.split("_")[1], 0)):
        meeting = reach * max(image.numel / max(out.numel, 1), 1)
        nbytes = max(nbytes, round(steps * sqrt(meeting) * _MEETING_BYTES[item_bytes(out.dtype)]))
    cached = ALL_CACHED if waits else SOME_CACHED
    if waits:
        waited = _waited_bytes(name, total_bytes((image, out)), num_sms * _THREADS, steps)
        nbytes = max(waited, threads * steps * _STEP_BYTES)
        if (name, layout) == ("upsample_bicubic2d", "nhwc"):
            nbytes += round(steps * min(threads, _SMOOTH_THREADS) * _APART_BYTES * _apart(image))
    rules = [f"{kind} {layout}", f"{kind} nchw"]
    if name.endswith("backward") and any(part in name for part in _BY_ADDING):
        sizes = dict.fromkeys((item_bytes(out.dtype), 4, 2))
        rules = [f"{rule} {size}" for size in sizes for rule in rules]
    found = []
    for rule in dict.fromkeys(rules):
        where = _further(rule, image)
        found.append(Work(rule, (*coordinates, *where), 0, "", nbytes, cached=cached, num_sizes=2, num_alike=2))
    return (*last, *(one for one in found if not last or one.rule != last[0].rule))


def _waited_bytes(name: str, nbytes: int, held: int, steps: int) -> int:
    """What memory could move while threads wait for it, step by step."""
    if not any(kind in name for kind in _SMOOTH):
        return waited_bytes(nbytes, held, steps)
    lost = min(max(nbytes - _HELD_BYTES, 0) / (_LOST_BYTES - _HELD_BYTES), 1.0)
    return round(held * steps * _STEP_BYTES * (1 + lost) / 2)


_APART_BYTES = 25_000
"""What memory could move while a thread fetches the sixteen elements of a smooth curve one by one, which lie apart
where channels come last: 5.2 ns."""
_LINE_BYTES = 128
"""Of what is fetched at once: narrower pixels share it."""


def _apart(image: TensorRef) -> float:
    """The share of neighbours that lie apart."""
    return min(image.shape[1] * item_bytes(image.dtype) / _LINE_BYTES, 1.0)


def _further(rule: str, image: TensorRef) -> tuple[float, ...]:
    """What else a kernel's blocks are made of, which are cut by channels and by places, and how pixels lie."""
    if rule == "upsample_bicubic2d nhwc":
        pixel_bytes = image.shape[1] * item_bytes(image.dtype)
        return log2(_apart(image)), log2(min(pixel_bytes & -pixel_bytes, _LINE_BYTES)) / 2
    if rule == "max_pool2d_with_indices_backward nhwc":
        return log(image.shape[1])
    if rule.startswith("max_pool3d"):
        channels, places = log(image.shape[-4], prod(image.shape[-3:]))
        return channels / 2, places / 2
    return ()


_LAST_THREADS, _LAST_CHANNELS, _LAST_PLACES = 1024, 4, 2
"""Of a block of the kernel for the largest of windows whose channels come last: threads, and channels and places along
either side that a thread has."""
_LAST_STEP_BYTES = 120_000
"""What memory could move while such a thread looks at an element: 25 ns."""


def _largest_of_last(op: Op, num_sms: int) -> Work:
    """A block has a power of two of channels, columns and rows, and each of its threads some of each; the blocks come
    in waves, and a thread looks at its elements one after the other (DilatedMaxPool2d.cu)."""
    image, out = next(op.input_refs()), op.outputs[0]
    batch, channels, rows, columns = out.shape if len(out.shape) > 3 else (1, *out.shape)
    beside = min(_floor_power(channels), _WARP)
    wide = min(_floor_power(columns), _LAST_THREADS // beside)
    high = min(_floor_power(rows), _LAST_THREADS // beside // wide)
    beside = min(_floor_power(channels), _LAST_THREADS // wide // high)
    cuts = ceil(channels / (beside * _LAST_CHANNELS))
    across, down = ceil(columns / (wide * _LAST_PLACES)), ceil(rows / (high * _LAST_PLACES))
    blocks, threads = batch * cuts * across * down, beside * wide * high
    window, stride = _window(op, 1)
    each = ceil(channels / (beside * cuts)) * ceil(columns / across / wide) * ceil(rows / down / high)
    steps = each * prod(window)
    waves = ceil(blocks / (num_sms * max(_THREADS // threads, 1)))
    nbytes = _LAST_STEP_BYTES * waves * steps + total_bytes((image, *op.outputs))
    overlap = log2(prod(window) / max(prod(stride), 1))
    coordinates = (*log(blocks * threads, steps, item_bytes(image.dtype)), overlap)
    return Work("max_pool2d_with_indices nhwc", coordinates, 0, "", nbytes)


def _floor_power(size: int) -> int:
    return 1 << (max(size, 1).bit_length() - 1)


def _layout(op: Op) -> str:
    images = [tensor for tensor in (*op.input_refs(), *op.outputs) if len(tensor.shape) > 3 and tensor.numel > 1]
    found = {is_channels_last(tensor) for tensor in images}
    if base_name(op) == "max_pool2d_with_indices_backward":  # what lies otherwise than the image is copied first
        return "nhwc" if is_channels_last(images[1]) else "nchw"
    if base_name(op) == "upsample_bicubic2d_backward":  # additions take longer than anything that is read
        return "nchw"
    return "nhwc" if True in found else "nchw"


def turned(op: Op) -> tuple[Op, ...]:
    """Copies of what comes with the image of the largest of windows and lies otherwise."""
    gradient, image, *others = (tensor for tensor in op.input_refs() if len(tensor.shape) > 3)
    is_last = is_channels_last(image)
    copies = []
    for tensor in (gradient, *others):
        if tensor.numel > 1 and is_channels_last(tensor) != is_last and prod(tensor.shape[2:]) > 1:
            dims = (0, 2, 3, 1) if is_last else (0, 1, 2, 3)
            steps = contiguous_stride(tuple(tensor.shape[dim] for dim in dims))
            stride = tuple(steps[dims.index(dim)] for dim in range(4))
            rows = replace(tensor, storage=-1, stride=stride)
            copies.append(Op("aten.clone.default", op.phase, op.module, (tensor,), (), (rows,)))
    return tuple(copies)


def _threads_and_steps(op: Op, layout: str, num_sms: int) -> tuple[int, int]:
    name, image, out = base_name(op), next(op.input_refs()), op.outputs[0]
    is_backward = name.endswith("backward")
    if "pool" in name and "adaptive" not in name:
        window, stride = _window(op, 2 if is_backward else 1)
        reached = [ceil(size / step) for size, step in zip(window, stride, strict=True)] if is_backward else window
        sides = image.shape[-len(window) :]  # a window may be larger than the image
        return out.numel, prod(map(min, reached, sides))
    if any(kind in name for kind in _SMOOTH):
        if is_backward and "bilinear2d" in name:
            return image.numel, 1
        larger = image if is_backward else out
        places, planes = prod(larger.shape[2:]), prod(larger.shape[:2])
        if "trilinear3d" in name:
            return places, planes
        at_once = num_sms * _SMOOTH_THREADS
        return min(places, at_once), planes * ceil(places / at_once)
    if "adaptive" in name and "3d" in name:  # a thread has an element of the smaller one
        windows = starmap(_mean_window, zip(image.shape[-3:], out.shape[-3:], strict=True))
        return out.numel, 1 if is_backward else ceil(prod(windows))
    if name == "adaptive_max_pool2d_backward":  # zeros take longer than the few numbers that are added to them
        return out.numel, 1
    if "adaptive" in name:
        return _adaptive(image, out, layout, is_backward)
    gathered = prod(ceil(size / max(step, 1)) for size, step in zip(image.shape[2:], out.shape[2:], strict=True))
    if is_backward and layout == "nchw":  # a thread goes through the images of a batch
        return out.numel // max(out.shape[0], 1), out.shape[0] * gathered
    if not is_backward and "2d" not in name:
        return out.numel // max(out.shape[0], 1), out.shape[0]
    return out.numel, gathered if is_backward else 1


def _adaptive(image: TensorRef, out: TensorRef, layout: str, is_backward: bool) -> tuple[int, int]:
    small, large = (image, out) if is_backward else (out, image)
    area = ceil(prod(starmap(_mean_window, zip(large.shape[-2:], small.shape[-2:], strict=True))))
    rows, columns = small.shape[-2:]
    if layout == "nhwc":  # a power of two of rows and columns at a time
        rounds = prod(ceil(size / 2 ** (size.bit_length() - 1)) for size in (rows, columns))
        return out.numel, 1 if is_backward else rounds * area
    planes = small.numel // max(rows * columns, 1)
    rounds = ceil(rows / _BLOCK[0]) * ceil(columns / _BLOCK[1])
    return planes * min(rows, _BLOCK[0]) * min(columns, _BLOCK[1]), max(rounds, 1) * area


def _mean_window(large: int, small: int) -> float:
    """How long windows are that cover `large` in `small` steps; where that leaves a rest they overlap."""
    return large / max(small, 1) + 1 - gcd(large, small) / max(small, 1)


def _window(op: Op, position: int) -> tuple[list[int], list[int]]:
    """Sizes of the window and its steps along every dimension."""
    dims = 3 if "3d" in op.name else 2
    window, stride = (
        _integers(argument(op, position + k, name, ())) for k, name in enumerate(("kernel_size", "stride"))
    )
    window = (window or [1]) * (dims if len(window) < 2 else 1)
    stride = (stride or window) * (dims if len(stride) == 1 else 1)
    return window, stride


def _integers(values: object) -> list[int]:
    return [value for value in values if isinstance(value, int)] if isinstance(values, tuple) else []
