"""Rules for norms over channels: batch norm, group norm.

In: an `Op`. Out: `Work`s, the most special rule first. Whose kernels run, and how they go through memory, depends on
how images and channels lie; how fast they are, on how many channels there are and how long each is: coordinates.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from math import ceil

from trainfit.cost.rowwise import by_sizes, wanted, whole_bytes
from trainfit.cost.stream import is_dense
from trainfit.cost.work import (
    Work,
    argument,
    base_name,
    contiguous_stride,
    is_channels_last,
    item_bytes,
    log,
    resizable,
    resized,
    touched_bytes,
    waited_bytes,
)
from trainfit.records import Op, TensorRef

IMAGE_NORMS = frozenset(
    """native_batch_norm native_batch_norm_backward cudnn_batch_norm cudnn_batch_norm_backward native_group_norm
    native_group_norm_backward _native_batch_norm_legit _batch_norm_with_update batch_norm_backward""".split()
)
SAME_IMAGE_NORM = {
    "_native_batch_norm_legit": "native_batch_norm",
    "_batch_norm_with_update": "native_batch_norm",
    "batch_norm_backward": "native_batch_norm_backward",
}


_BLOCKS_PER_PROCESSOR = 4
"""Of the threads that have a channel each: 512 of 2048."""


_AGAIN, _FIXED = " again", " fixed "
_READ_ONCE_KIB = {4: (112, 112), 2: (152, 168), 1: (56, 56)}
"""Of a channel cuDNN keeps so much on a processor, of a norm's input and of its gradient's operands, which are float32,
pairs of halves or halves one by one; of longer ones everything is read again, by kernels of which one block to a
processor takes as long as one and a half."""
_KEPT_BYTES, _FORGOTTEN = 36 * 2**20, 1.7
"""Up to so much of a gradient's tensors is still in the cache when it is read again; of more and more nothing is, and
that takes so many times as long."""


_ODD, _PAIR, _LAST_VECTOR, _LAST_CHANNELS, _ODD_ELEMENT_BYTES = " odd", 2, 4, 64, 45
"""cuDNN reads pairs of halves, where images have no odd number of pixels, and where channels come last four at a time,
by blocks of threads that have so many, be they there or not; else it has kernels that take two to four times as long,
where channels come last as long for an element as memory for so many bytes."""


def _lies_in_order(tensor: TensorRef) -> bool:
    """Whether channels and pixels do; images may be apart."""
    steps = zip(tensor.shape[1:], tensor.stride[1:], contiguous_stride(tensor.shape)[1:], strict=True)
    return all(stride == step for size, stride, step in steps if size > 1)


def _by_kernels_of_cudnn(
    rules: list[str], layout: str, size: int, sizes: tuple[int, int, int], is_backward: bool
) -> list[str]:
    """The rules, and before them those of what cuDNN reads again and of what it cannot read in pairs."""
    channels, batch, pixels = sizes
    is_single = size == 2 and pixels % _PAIR == 1
    channel_kib = batch * pixels * size * (1 + is_backward) / 1024
    if layout == "nchw" and channel_kib > _READ_ONCE_KIB[1 if is_single else 2 if size == 2 else 4][is_backward]:
        rules = [f"{rule}{_AGAIN}" if rule.startswith("cudnn") else rule for rule in rules] + rules
    is_odd = (layout == "nchw" and is_single) or (layout == "nhwc" and channels % _LAST_VECTOR)
    return [f"{rules[0]}{_ODD}", *rules] if is_odd and rules[0].startswith("cudnn") else rules


def image_norm(op: Op, num_sms: int) -> tuple[Work, ...]:
    """Batch norm by channels and values per channel, group norm by image.

    A block of threads has one channel, unless channels come last: where there are fewer than the GPU runs at a time,
    the bytes of those that are missing take as long.
    """
    inputs = list(op.input_refs())
    tensor = max(inputs, key=lambda candidate: candidate.numel)
    channels = tensor.shape[1] if len(tensor.shape) > 1 else 1
    batch = tensor.shape[0] if tensor.shape else 1
    pixels = tensor.numel // max(channels * batch, 1)
    name = SAME_IMAGE_NORM.get(base_name(op), base_name(op))
    nbytes = whole_bytes(op, tensor.numel)
    is_last = is_channels_last(tensor) or len(tensor.shape) == 2
    layout = "nhwc" if is_last and "batch" in name else "nchw"
    if layout == "nchw" and not _lies_in_order(tensor):
        layout = "strided"
    other = name.replace("cudnn", "native") if "cudnn" in name else name.replace("native_batch", "cudnn_batch")
    size = item_bytes(tensor.dtype)
    rules = [
        f"{kernels} {order} {item}"
        for order in dict.fromkeys((layout, "nchw" if layout == "strided" else layout))
        for item in (size, 2, 4)
        for kernels in (name, other)
    ]
    is_backward = name.endswith("backward")
    rules = _by_kernels_of_cudnn(rules, layout, size, (channels, batch, pixels), is_backward)
    if "batch" not in name:
        return _group_norm(op, rules, nbytes, batch, num_sms)
    is_turned = name.startswith("native") and not _is_fixed(op) and _is_turned(inputs[: 1 + is_backward])
    turned = _turned_norm(op, name) if is_turned else ()
    if name == "native_batch_norm_backward" and not _is_fixed(op) and not _is_of_one_kind(*inputs[:2]):
        return _norm_in_two(op, nbytes, num_sms)
    if _is_fixed(op):
        kinds = [f"{name}{_FIXED}{order} {item}" for item in (size, 2, 4) for order in dict.fromkeys((layout, "nchw"))]
        rules = kinds + rules
    if layout == "nhwc":
        return tuple(_last_norm(op, rule, tensor, nbytes, num_sms) for rule in dict.fromkeys(rules))
    own = (channels, batch, pixels)

    def work(rule: str, channels: int, batch: int, pixels: int) -> Work:
        if _FIXED in rule:
            seen = max(resized(nbytes, (channels, batch, pixels), own), _PLANE_BYTES * channels * batch)
            return Work(rule, log(channels, batch, pixels), 0, "", seen, num_sizes=3)
        least = 3 * num_sms // 2 if _AGAIN in rule else num_sms
        seen = resized(nbytes, (max(channels, least), batch, pixels), own)
        if _AGAIN in rule and is_backward:
            kept = resized(nbytes, (channels, batch, pixels), own)
            seen = round(seen * min(max(kept / _KEPT_BYTES, 1.0), _FORGOTTEN))
        return Work(rule, log(channels, batch, pixels), 0, "", seen, num_sizes=3)

    walked = _walked_bytes(nbytes, own, op, num_sms)
    blocks = _blocks_coordinate(channels, num_sms)
    plain = (
        Work(rule, log(blocks, batch, pixels), 0, "", walked, num_sizes=3)
        if rule.startswith("native")
        else resizable(partial(work, rule), own, (12, 10, 17))
        for rule in dict.fromkeys(rules)
    )
    return (*turned, *plain)


def _is_fixed(op: Op) -> bool:
    """Whether a norm's statistics are given."""
    return argument(op, 7 if "backward" in op.name else 5, "training", True) is False


_CHANNEL_THREADS, _LEAST_THREADS = 512, 32
"""Of a block that has a channel, and the fewest that go along an image's pixels."""
_FEW_CHANNELS_WEIGHT = 0.25
"""How far apart two norms are of which one has twice the channels, where there are fewer than processors."""
_BLOCK_STEPS = 7
"""A block that adds up begins, joins what its threads have and ends in the time of so many steps."""
_PLANE_BYTES = 3200
"""What memory could move while a block of threads comes and goes that has a channel of an image: 0.66 ns."""
_BEGUN_BYTES = 14_000_000
"""And while its other kernels begin and end."""
_PLANES = 2**18
"""The most blocks that have a channel of some images each."""


def _walked_bytes(nbytes: int, sizes: tuple[int, int, int], op: Op, num_sms: int) -> int:
    """torch's own batch norm: a block of threads goes through all images of a channel, once for its statistics and
    twice for its gradient; others write the result, one for a channel of an image however small or large that is."""
    channels, batch, pixels = sizes
    threads = min(max(2 ** (pixels - 1).bit_length(), _LEAST_THREADS), _CHANNEL_THREADS)
    steps = ceil(batch * threads / _CHANNEL_THREADS) * ceil(pixels / threads)
    rounds = ceil(channels / (_BLOCKS_PER_PROCESSOR * num_sms))
    at_once = _BLOCKS_PER_PROCESSOR * num_sms * _CHANNEL_THREADS
    walked = waited_bytes(nbytes, at_once, rounds * (steps + _BLOCK_STEPS))
    if "backward" in op.name:
        return max(2 * walked, nbytes)
    images = 2 if threads == _LEAST_THREADS else 1  # of a block
    blocks = channels * min(max(_PLANES // channels, 1), ceil(batch / images))
    one_block = waited_bytes(nbytes, at_once, ceil(pixels / threads))
    return _BEGUN_BYTES + max(_PLANE_BYTES * blocks, nbytes, one_block) + (0 if _is_fixed(op) else walked)


def _blocks_coordinate(channels: int, num_sms: int) -> float:
    """Channels, of which fewer than processors have one each, and are as fast but for what the cache knows."""
    return max(channels, num_sms) * (min(channels, num_sms) / num_sms) ** _FEW_CHANNELS_WEIGHT


def _is_of_one_kind(gradient: TensorRef, tensor: TensorRef) -> bool:
    """Whether torch has one kernel for both: an input whose channels do not come last is read however it lies, and so
    is its gradient; a single channel counts as the last, and as the first."""
    if not _counts_as_last(tensor):
        return True
    return tensor.shape[1] > 1 and _counts_as_last(gradient)


def _counts_as_last(tensor: TensorRef) -> bool:
    if len(tensor.shape) not in (4, 5) or tensor.shape[1] == 1:
        return len(tensor.shape) in (2, 4, 5)
    return is_channels_last(tensor) and is_dense(tensor)


_TURNED_BYTES, _WIDENED_BYTES = 48, 14
"""What memory could move while an element of what is turned is counted and normalized, by kernels for tensors that lie
anyhow, and while a half becomes a float32 before: 9.9 and 2.9 ps."""


def _is_turned(tensors: Iterable[TensorRef]) -> bool:
    """Whether one is a turned sequence. torch knows channels that come last of four dimensions or five."""
    return any(len(tensor.shape) == 3 and not _lies_in_order(tensor) for tensor in tensors)


def _turned_norm(op: Op, name: str) -> tuple[Work, ...]:
    """torch's batch norm of a turned sequence: statistics are those of any reduction, of float32, and elements are
    normalized one by one; in the backward pass a block goes through each channel twice, a sector for every element."""
    tensors = list(op.input_refs())[:2]
    tensor = tensors[-1] if name.endswith("backward") else tensors[0]
    batch, channels, pixels = tensor.shape
    size = item_bytes(tensor.dtype)
    if name.endswith("backward"):
        each = sum(2 * (size if _lies_in_order(one) else _APART_BYTES) for one in tensors) + size
    else:
        each = _TURNED_BYTES + (_WIDENED_BYTES if size < 4 else 0)
    return by_sizes([f"{name} turned {item}" for item in (size, 2, 4)], each * tensor.numel, channels, batch, pixels)


_APART_BYTES = 32
"""Of memory, that come for an element whose neighbours in its channel are apart."""
_PLACED_BYTES, _CONVERTED_BYTES = 31, 28
"""What memory could move while the gradient of an element is placed whose operands lie differently, and while its
channel's weight becomes a float32 on the way: 6.4 and 5.8 ps."""


def _norm_in_two(op: Op, nbytes: int, num_sms: int) -> tuple[Work, ...]:
    """Gradients of a batch norm that torch sums up by one kernel and writes by another. Where the input has channels
    last and its gradient does not, or not densely, a block goes through each channel, a sector of memory for every
    element that is apart, and the other looks for both element by element. A single channel is summed up by many
    blocks, as where channels come last, and written by one for each image."""
    gradient, tensor, weight = list(op.input_refs())[:3]
    batch, channels, size = tensor.shape[0], tensor.shape[1], item_bytes(tensor.dtype)
    pixels = max(tensor.numel // max(batch * channels, 1), 1)
    threads = min(max(2 ** (pixels - 1).bit_length(), _LEAST_THREADS), _CHANNEL_THREADS)
    at_once = _BLOCKS_PER_PROCESSOR * num_sms * _CHANNEL_THREADS
    if channels == 1:
        kind, same = "single", "native_batch_norm nchw"
        seen = max(waited_bytes(nbytes, at_once, ceil(pixels / threads)), nbytes)
    else:
        kind, same = "apart", "native_batch_norm_backward nchw"
        steps = ceil(batch * threads / _CHANNEL_THREADS) * ceil(pixels / threads) + _BLOCK_STEPS
        walked = waited_bytes(nbytes, at_once, ceil(channels / (_BLOCKS_PER_PROCESSOR * num_sms)) * steps)
        num_apart = sum(not _lies_in_order(one) for one in (gradient, tensor))
        placed = _PLACED_BYTES + (_CONVERTED_BYTES if weight.dtype != "float32" else 0)
        seen = max(walked, _APART_BYTES * num_apart * tensor.numel) + placed * tensor.numel
    rules = [f"native_batch_norm_backward {kind} {size}", f"{same} {size}", f"{same} 2", f"{same} 4"]
    coordinates = log(_blocks_coordinate(channels, num_sms), batch, pixels)
    return tuple(Work(rule, coordinates, 0, "", _BEGUN_BYTES + seen, num_sizes=3) for rule in dict.fromkeys(rules))


_BLOCK_CHANNELS, _THREAD_ROWS, _MOST_PARTS, _FEWEST_PARTS = 32, 16, 128, 8
"""Channels that lie side by side which a block of threads has at most; rows that a thread goes through at least; how
many blocks share the rows of a channel, none if fewer would."""
_NORM_BYTES = {False: (26_000_000, 1_960_000, 13), True: (23_500_000, 710_000, 4)}
"""What memory could move while the kernels of a norm and of its gradient begin and end, during a step of theirs, and
while an element is counted."""


_IMAGE_ELEMENT_BYTES = 260
"""What memory could move while an element of an image is normalized by given statistics, where cuDNN has few threads
for each image: 54 ps."""


def _last_norm(op: Op, rule: str, tensor: TensorRef, nbytes: int, num_sms: int) -> Work:
    """torch's batch norm of channels that lie side by side: blocks of threads go down the rows, some of each channel's,
    but one goes through all rows of less than 1793, which takes longer than more would; cuDNN's goes by bytes, or where
    statistics are given by the elements of an image."""
    channels = tensor.shape[1]
    rows = tensor.numel // max(channels, 1)
    coordinates = log(channels, rows)
    base, step, element = _NORM_BYTES["backward" in op.name]
    if _FIXED in rule and rule.startswith("cudnn"):
        return Work(rule, coordinates, 0, "", max(nbytes, _IMAGE_ELEMENT_BYTES * tensor.numel // tensor.shape[0]))
    if not rule.startswith("native") or _is_fixed(op):
        if rule.endswith(_ODD):
            elements = rows * ceil(channels / (_LAST_CHANNELS // _LAST_VECTOR)) * _LAST_CHANNELS // _LAST_VECTOR
            return Work(rule, coordinates, 0, "", max(_ODD_ELEMENT_BYTES * elements, nbytes) + base)
        padded = 1.0 if _is_fixed(op) else ceil(channels / _LAST_CHANNELS) * _LAST_CHANNELS / max(channels, 1)
        return Work(rule, coordinates, 0, "", round(nbytes * padded) + base)
    width = min(_floor_power(channels), _BLOCK_CHANNELS)
    height = min(_floor_power(ceil(rows / _THREAD_ROWS)), _CHANNEL_THREADS // width)
    parts = min(ceil(rows / (height * _THREAD_ROWS)), _MOST_PARTS)
    parts = 1 if parts < _FEWEST_PARTS else parts
    at_once = num_sms * _BLOCKS_PER_PROCESSOR * _CHANNEL_THREADS
    rounds = ceil(ceil(channels / width) * parts * width * height / at_once)
    counted = max(element * tensor.numel, step * rounds * ceil(rows / (height * parts)))
    return Work(rule, coordinates, 0, "", base + counted + 2 * nbytes)


def _floor_power(size: int) -> int:
    return 1 << (max(size, 1).bit_length() - 1)


_FEW_IMAGES, _TILE_IMAGES = 128, 32
"""The most images over which a thread adds up a weight's gradient one by one, and of how many threads of a tile have
their share of more."""
_IMAGE_BYTES = 500_000
"""What memory could move while it adds one: 0.1 us."""
_ROW_ELEMENT_BYTES, _CROWDED, _MOST_CROWDED = {False: 3840, True: 4100}, 0.55, 1.6
"""What memory could move while a block of threads waits for an element of its row: 0.8 and 0.85 ns; how much longer it
waits in the backward pass, which reads two, where every processor has a row, and of how many rows each that is true."""
_RECALLED_BYTES, _WARM_BYTES = 22 * 2**20, 18 * 2**20
"""Of an operand that was just written the cache answers in half the time, of larger ones less and less; sooner so in a
warm run, which has its own result in the cache as well."""


def _recalled(nbytes: int, kept: int) -> float:
    return min(max((nbytes / kept) ** 2, 1.0) / 2, 1.0)


def _group_norm(op: Op, rules: list[str], nbytes: int, batch: int, num_sms: int) -> tuple[Work, ...]:
    """A block of threads goes along a group of channels of one image, in the backward pass along one channel, and waits
    for memory if there are few. Gradients of the weights are added up image by image."""
    tensor = max(op.input_refs(), key=lambda candidate: candidate.numel)
    is_backward, steps = base_name(op).endswith("_backward"), 0
    if is_backward:
        rules = [rule.removeprefix("native_") for rule in rules]
        parts: object = tensor.shape[1] if len(tensor.shape) > 1 else 1
        if any(wanted(op)[1:]):
            steps = batch if batch <= _FEW_IMAGES else ceil(batch / _TILE_IMAGES)
    else:
        parts = argument(op, 6, "group", 1)
    rows = max(batch * (parts if isinstance(parts, int) else 1), 1)
    own = (rows, max(tensor.numel // rows, 1))

    at_once, recalled, warm = _BLOCKS_PER_PROCESSOR * num_sms, None, 1.0
    if own[0] <= num_sms and not is_backward:  # whose input was written long ago
        recalled, warm = (_recalled(touched_bytes(tensor), kept) for kept in (_RECALLED_BYTES, _WARM_BYTES))

    def work(rule: str, rows: int, length: int) -> Work:
        waited = max(rows / at_once, 1.0) * _ROW_ELEMENT_BYTES[is_backward] * length
        if is_backward:
            waited *= 1 + _CROWDED * min(rows / num_sms, _MOST_CROWDED)
        seen = max(resized(nbytes, (rows, length), own), round(waited if recalled is None else recalled * waited))
        coordinates = log(rows, length, steps) if is_backward else log(rows, length)
        made = Work(rule, coordinates, 0, "", seen + _IMAGE_BYTES * steps, num_sizes=2, num_alike=int(is_backward))
        return replace(made, recalled=recalled, recalled_warm=warm)

    return tuple(resizable(partial(work, rule), own, (17, 22)) for rule in dict.fromkeys(rules))
