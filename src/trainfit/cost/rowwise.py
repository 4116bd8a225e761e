"""Rules for ops over rows, channels and tables: reductions, softmax, norms, losses, gradients of lookups.

In: an `Op`. Out: `Work`s, the most special rule first. Bytes are those actually moved; how fast they move depends on
how many rows there are and how long they are, which are coordinates.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from functools import partial
from math import log2, prod

from trainfit.cost.work import (
    Work,
    argument,
    base_name,
    by_bytes,
    contiguous_stride,
    inner_dim,
    is_channels_last,
    item_bytes,
    log,
    parts_of,
    resizable,
    resized,
    tensors_of,
    total_bytes,
    touched_bytes,
    traffic_bytes,
)
from trainfit.records import Op, TensorRef

SOFTMAXES = frozenset("_softmax _log_softmax _safe_softmax _softmax_backward_data _log_softmax_backward_data".split())
ROW_NORMS = frozenset("native_layer_norm native_layer_norm_backward _fused_rms_norm _fused_rms_norm_backward".split())
IMAGE_NORMS = frozenset(
    """native_batch_norm native_batch_norm_backward cudnn_batch_norm cudnn_batch_norm_backward native_group_norm
    native_group_norm_backward _native_batch_norm_legit _batch_norm_with_update batch_norm_backward""".split()
)
SAME_IMAGE_NORM = {
    "_native_batch_norm_legit": "native_batch_norm",
    "_batch_norm_with_update": "native_batch_norm",
    "batch_norm_backward": "native_batch_norm_backward",
}

_TALL_ROWS, _TALL_MAX_COLUMNS = 64 * 1024, 2048
"""A norm's weight gradient is summed by other kernels when there are more rows than this and few columns."""


_TOPS = (20, 18, 18)
"""log2 of the largest sizes that were measured, about: of rows and columns, of a batch, channels and pixels."""


def _by_sizes(rules: Iterable[str], nbytes: int, *sizes: int) -> tuple[Work, ...]:
    """Works whose coordinates are these sizes, and whose bytes are in proportion to their product."""

    def work(rule: str, *new: int) -> Work:
        return Work(rule, log(*new), 0, "", resized(nbytes, new, sizes), num_sizes=len(new))

    return tuple(resizable(partial(work, rule), sizes, _TOPS[: len(sizes)]) for rule in dict.fromkeys(rules))


def _whole_bytes(op: Op, numel: int) -> int:
    """Of the tensors of so many elements: weights and numbers per row are not worth counting."""
    return total_bytes(tensor for tensor in (*op.input_refs(), *op.outputs) if tensor.numel == numel)


_ROWS_PER_PROCESSOR = 8
"""Rows at a time that it takes to keep memory busy, a block of threads for each."""
_ROW_VECTOR = 4
"""Elements that a thread reads at once, if a row has no rest."""


def row_norm(op: Op, num_sms: int) -> tuple[Work, ...]:
    """Layer and RMS norm: a block of threads per row, and in backward a sum down the columns for the weight.

    The bytes of rows that are missing to keep memory busy take as long; rows that are not whole vectors have other
    kernels.
    """
    inputs = list(op.input_refs())
    tensor = inputs[0]
    name = base_name(op)
    normalized = argument(op, 2 if name.endswith("_backward") else 1, "normalized_shape", ())
    columns = prod(item for item in normalized if isinstance(item, int)) if isinstance(normalized, tuple) else 1
    own = (tensor.numel // max(columns, 1), columns)
    nbytes, size = _whole_bytes(op, prod(own)), item_bytes(tensor.dtype)
    kind = ""
    if name.endswith("_backward") and not any(_wanted(op)[1:]):
        kind = " frozen"
    elif name.endswith("_backward") and own[0] > _TALL_ROWS and columns <= _TALL_MAX_COLUMNS:
        kind = " tall"
    rules = [f"{name}{kind} {item}" for item in (size, 2, 4)]
    if columns % _ROW_VECTOR:
        rules = [f"{name}{kind} odd {item}" for item in (size, 2, 4)] + rules

    def work(rule: str, rows: int, columns: int) -> Work:
        seen = resized(nbytes, (max(rows, _ROWS_PER_PROCESSOR * num_sms), columns), own)
        return Work(rule, log(rows, columns), 0, "", seen, num_sizes=2)

    return tuple(resizable(partial(work, rule), own, (20, 23)) for rule in dict.fromkeys(rules))


def _wanted(op: Op) -> tuple[object, ...]:
    """Which gradients a norm's backward pass is asked for: of its input, its weight, its bias."""
    flags = [value for value in op.args if isinstance(value, tuple) and value and isinstance(value[0], bool)]
    return flags[-1] if flags else (True, True)


_BLOCKS_PER_PROCESSOR = 4
"""Of the threads that have a channel each: 512 of 2048."""
_PIXELS_WEIGHT = 0.5
"""How far apart norms of as many values per channel are whose images are half as large: threads go along a row."""


_AGAIN = " again"
_READ_ONCE_BYTES = 128 * 1024
"""Of a channel cuDNN keeps so much on a processor; of longer ones everything is read again, by kernels of which one
block to a processor takes as long as one and a half."""


def _lies_in_order(tensor: TensorRef) -> bool:
    steps = zip(tensor.shape, tensor.stride, contiguous_stride(tensor.shape), strict=True)
    return all(stride == step for size, stride, step in steps if size > 1)


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
    nbytes = _whole_bytes(op, tensor.numel)
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
    channel_bytes = batch * pixels * size * (2 if name.endswith("backward") else 1)
    if layout == "nchw" and channel_bytes > _READ_ONCE_BYTES - (size == 4):
        rules = [f"{rule}{_AGAIN}" if rule.startswith("cudnn") else rule for rule in rules] + rules
    if "batch" not in name:
        return _group_norm(op, rules, nbytes, batch, num_sms)
    fixed: tuple[Work, ...] = ()
    if argument(op, 7 if name.endswith("backward") else 5, "training", True) is False:  # statistics are not computed
        kinds = [f"{name} fixed {order} {item}" for item in (size, 2, 4) for order in (layout, "nchw")]
        fixed = _by_sizes(kinds, nbytes, channels, batch * pixels)
    if layout == "nhwc":
        return (*fixed, *_by_sizes(rules, nbytes, channels, batch * pixels))
    own = (channels, batch, pixels)

    def work(rule: str, channels: int, batch: int, pixels: int) -> Work:
        least = 3 * num_sms // 2 if rule.endswith(_AGAIN) else _BLOCKS_PER_PROCESSOR * num_sms
        seen = resized(nbytes, (max(channels, least), batch, pixels), own)
        coordinates = (*log(channels, batch * pixels), _PIXELS_WEIGHT * log2(pixels))
        return Work(rule, coordinates, 0, "", seen, num_sizes=2)

    return (*fixed, *(resizable(partial(work, rule), own, (12, 10, 17)) for rule in dict.fromkeys(rules)))


def factored(op: Op) -> tuple[Work, ...]:
    """Of many small matrices each: by how many there are, and by their size."""
    tensor = next(op.input_refs())
    size = max(tensor.shape[-1], 1) if len(tensor.shape) > 1 else 1
    nbytes = total_bytes(op.input_refs()) + total_bytes(op.outputs)
    return _by_sizes([base_name(op)], nbytes, max(tensor.numel // size**2, 1), size)


def _group_norm(op: Op, rules: list[str], nbytes: int, batch: int, num_sms: int) -> tuple[Work, ...]:
    """A block of threads has a group of channels of one image, in the backward pass one channel: the bytes of those
    that are missing take as long."""
    tensor = max(op.input_refs(), key=lambda candidate: candidate.numel)
    if base_name(op).endswith("_backward"):
        parts: object = tensor.shape[1] if len(tensor.shape) > 1 else 1
    else:
        parts = argument(op, 6, "group", 1)
    rows = max(batch * (parts if isinstance(parts, int) else 1), 1)
    own = (rows, max(tensor.numel // rows, 1))

    def work(rule: str, rows: int, length: int) -> Work:
        seen = resized(nbytes, (max(rows, _BLOCKS_PER_PROCESSOR * num_sms), length), own)
        return Work(rule, log(rows, length), 0, "", seen, num_sizes=2)

    return tuple(resizable(partial(work, rule), own, (17, 22)) for rule in dict.fromkeys(rules))


def transform(op: Op) -> tuple[Work, ...]:
    """Fourier transforms along rows, or along other dimensions, for which everything is turned first."""
    dims = argument(op, 1, "dim", ())
    tensor = next(op.input_refs())
    found = [dim % len(tensor.shape) for dim in dims if isinstance(dim, int)] if isinstance(dims, tuple) else []
    length = prod(tensor.shape[dim] for dim in found) if found else 1
    place = "inner" if inner_dim(tensor) in found else "outer"
    nbytes = total_bytes(op.input_refs()) + total_bytes(op.outputs)
    rules = [f"{base_name(op)} {len(found)} {place}", f"{base_name(op)} 1 {place}", f"{base_name(op)} 1 inner"]
    if any(_is_rough(max(one.shape[dim] for one in (tensor, *op.outputs))) for dim in found):
        rules = [f"{rule} rough" for rule in rules] + rules
    coordinates = log(tensor.numel / max(length, 1), length)
    return tuple(Work(rule, coordinates, 0, "", nbytes) for rule in dict.fromkeys(rules))


_FAST_FACTORS = (2, 3, 5, 7)


def _is_rough(length: int) -> bool:
    """Whether a transform so long is no product of small numbers, and is computed as a longer convolution."""
    for factor in _FAST_FACTORS:
        while length % factor == 0 and length > 1:
            length //= factor
    return length > 1


def weight_norm(op: Op) -> tuple[Work, ...]:
    """A block of threads per length of the first dimension; of the last, the time is that of the elements behind one
    length, one after the other."""
    tensors = tensors_of(op.args)
    lengths = max(min(tensor.numel for tensor in tensors), 1)
    elements, name = tensors[0].numel // lengths, base_name(op)
    if tensors[0].shape[0] != lengths:
        return _by_sizes([name], elements * item_bytes(tensors[0].dtype), elements)
    nbytes, size = total_bytes(tensors) + total_bytes(op.outputs), item_bytes(tensors[0].dtype)
    plain = by_bytes(["pointwise contiguous"], (*log(nbytes, 3 * size), 1.0), nbytes)
    return (*_by_sizes([f"{name} first {size}", f"{name} first 4"], nbytes, lengths, elements), *plain)


_FEW_LOOKUPS, _LOOKUP_BYTES = 3072, 160_000
"""Up to so many are not sorted, but gone through one after the other; what memory could move during one of them. To
sort more takes about as long as to go through so many."""


_LARGEST_OF_BAG = 2
"""How a bag's rows become one: their sum, their mean, or the largest of each column, whose gradient is not sorted."""


def embedding_backward(op: Op) -> tuple[Work, ...]:
    """Zeroes the table's gradient, then one kernel goes through the tokens if they are few; else they are sorted and
    their rows added up, by many kernels whatever the width; so are those of bags, whose gradients have fewer rows."""
    inputs = list(op.input_refs())
    gradient, indices, out = *inputs[:2], op.outputs[0]
    own = (indices.numel, out.shape[0], out.shape[-1])
    parts = parts_of([(gradient, (0, 2)), (indices, (0,)), (out, (1, 2))], own)

    def work(rule: str, *sizes: int) -> Work:
        nbytes = traffic_bytes(parts, sizes) + _LOOKUP_BYTES * min(sizes[0], _FEW_LOOKUPS)
        return Work(rule, log(*sizes), 0, "", nbytes, num_sizes=3)

    is_largest = base_name(op) == "_embedding_bag_backward" and argument(op, 8, "mode", 0) == _LARGEST_OF_BAG
    rules = dict.fromkeys(
        (base_name(op) + (" largest" if is_largest else ""), base_name(op), "embedding_dense_backward")
    )
    return tuple(resizable(partial(work, rule), own, (20, 20, 15)) for rule in rules)


_SORT_BYTES, _REPEAT_BYTES, _VISIT_BYTES = 60_000_000, 1_200_000, 800
"""What memory could move while the kernels run that sort indices, were there ever so few; while a row is added to one
to which others were added before it: those come one after the other, and rows are taken to come equally often; and
while a row is added behind other dimensions, were it ever so short."""


def accumulated(op: Op) -> tuple[Work, ...]:
    """Rows added up by index, sorted first: as the gradient of a lookup; no rule where nothing is added up.

    Behind dimensions that are not indexed the sorted rows are gone through once for each of those, a block of threads
    for a few of them however short they are. What is not written in place is copied first.
    """
    indices, values = argument(op, 1, "indices", ()), argument(op, 2, "values", None)
    if argument(op, 3, "accumulate", False) is not True or not isinstance(values, TensorRef) or not values.numel:
        return ()
    tensor = next(op.input_refs())
    before, lookups = _indexed(indices if isinstance(indices, tuple) else (), tensor)
    width = max(values.numel // max(before * lookups, 1), 1)
    rows = max(tensor.numel // max(before * width, 1), 1)
    is_in_place = op.name.split(".")[1].endswith("_")
    copied = 0 if is_in_place else 2 * touched_bytes(tensor)
    found = tensors_of(indices) if isinstance(indices, tuple) else []

    def work(rule: str, own: tuple[int, ...], axes: tuple[tuple[int, ...], ...]) -> Work:
        parts = parts_of([(values, axes[0]), *((index, axes[1]) for index in found)], own)

        def make(*sizes: int) -> Work:
            visits = prod(sizes[:-1]) if before > 1 else 0
            added = _SORT_BYTES + 2 * traffic_bytes(parts, sizes) + round(_REPEAT_BYTES * sizes[0] / rows)
            added += _VISIT_BYTES * visits
            return Work(rule, (*log(*sizes), *log((added + copied) / added)), 0, "", added + copied)

        return resizable(make, own, (20, 20, 13)[: len(own)])

    together = work("index_put accumulated", (before * lookups, width), ((0, 1), (0,)))
    if before == 1:
        return (together,)
    return work("index_put behind", (lookups, before, width), ((0, 1, 2), (0,))), together


def _indexed(indices: tuple[object, ...], out: TensorRef) -> tuple[int, int]:
    """How many times the indices are gone through, once for each place in the dimensions before them, and how many
    there are. Indices that do not stand side by side are brought to the front."""
    places = [place for place, index in enumerate(indices) if isinstance(index, TensorRef)]
    if not places:
        return 1, 1
    shapes = [index.shape[::-1] for index in tensors_of(indices)]
    lookups = prod(max(sizes) for sizes in itertools.zip_longest(*shapes, fillvalue=1))  # they are broadcast
    is_together = places == list(range(places[0], places[0] + len(places)))
    return (prod(out.shape[: places[0]]) if is_together else 1), lookups


def nll_loss(op: Op) -> tuple[Work, ...]:
    """The forward pass reads one element per row, and one block adds them up, or none does; the backward pass fills the
    gradient with zeros and one per row."""
    name = base_name(op)
    is_backward = name.endswith("backward")
    log_probabilities = tensors_of(op.args)[1 if is_backward else 0]
    classes = log_probabilities.shape[-1 if len(log_probabilities.shape) < 3 else 1]
    rows = log_probabilities.numel // max(classes, 1)
    is_each = argument(op, 4 if is_backward else 3, "reduction", 1) == 0
    rules = [f"{name} each", name] if is_each else [name]
    if is_backward:
        return _by_sizes(rules, touched_bytes(log_probabilities), rows, classes)

    def forward(rule: str, rows: int, classes: int) -> Work:
        return Work(rule, log(rows, classes), 0, "", 32 * rows, num_sizes=2)

    return tuple(resizable(partial(forward, rule), (rows, classes), _TOPS[:2]) for rule in rules)
