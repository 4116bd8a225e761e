"""Rules for ops over rows, channels and tables: reductions, softmax, norms, losses.

In: an `Op`. Out: `Work`s, the most special rule first. Bytes are those actually moved; how fast they move depends on
how many rows there are and how long they are, which are coordinates.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from math import prod

from trainfit.cost.work import (
    Work,
    argument,
    base_name,
    by_bytes,
    item_bytes,
    log,
    resizable,
    resized,
    tensors_of,
    total_bytes,
    touched_bytes,
)
from trainfit.records import Op

SOFTMAXES = frozenset("_softmax _log_softmax _safe_softmax _softmax_backward_data _log_softmax_backward_data".split())
ROW_NORMS = frozenset("native_layer_norm native_layer_norm_backward _fused_rms_norm _fused_rms_norm_backward".split())
_TALL_ROWS, _TALL_MAX_COLUMNS = 64 * 1024, 2048
"""A norm's weight gradient is summed by other kernels when there are more rows than this and few columns."""


_TOPS = (20, 18, 18)
"""log2 of the largest sizes that were measured, about: of rows and columns, of a batch, channels and pixels."""


def by_sizes(rules: Iterable[str], nbytes: int, *sizes: int) -> tuple[Work, ...]:
    """Works whose coordinates are these sizes, and whose bytes are in proportion to their product."""

    def work(rule: str, *new: int) -> Work:
        return Work(rule, log(*new), 0, "", resized(nbytes, new, sizes), num_sizes=len(new))

    return tuple(resizable(partial(work, rule), sizes, _TOPS[: len(sizes)]) for rule in dict.fromkeys(rules))


def whole_bytes(op: Op, numel: int) -> int:
    """Of the tensors of so many elements: weights and numbers per row are not worth counting."""
    return total_bytes(tensor for tensor in (*op.input_refs(), *op.outputs) if tensor.numel == numel)


_ROWS_PER_PROCESSOR = 8
"""Rows at a time that it takes to keep memory busy, a block of threads for each."""
_ROW_VECTOR = 4
"""Elements that a thread reads at once, if a row has no rest."""
_ROW_BYTES = 5400
"""What memory could move while a block of threads comes and goes that has a row: 1.1 ns."""


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
    nbytes, size = whole_bytes(op, prod(own)), item_bytes(tensor.dtype)
    kind = ""
    if name.endswith("_backward") and not any(wanted(op)[1:]):
        kind = " frozen"
    elif name.endswith("_backward") and own[0] > _TALL_ROWS and columns <= _TALL_MAX_COLUMNS:
        kind = " tall"
    rules = [f"{name}{kind} {item}" for item in (size, 2, 4)]
    if columns % _ROW_VECTOR:
        rules = [f"{name}{kind} odd {item}" for item in (size, 2, 4)] + rules

    def work(rule: str, rows: int, columns: int) -> Work:
        seen = resized(nbytes, (max(rows, _ROWS_PER_PROCESSOR * num_sms), columns), own)
        return Work(rule, log(rows, columns), 0, "", max(seen, _ROW_BYTES * rows), num_sizes=2)

    return tuple(resizable(partial(work, rule), own, (20, 23)) for rule in dict.fromkeys(rules))


def wanted(op: Op) -> tuple[object, ...]:
    """Which gradients a norm's backward pass is asked for: of its input, its weight, its bias."""
    flags = [value for value in op.args if isinstance(value, tuple) and value and isinstance(value[0], bool)]
    return flags[-1] if flags else (True, True)


_PAIR_BYTES = 6700
"""What memory could move while a block of threads has a pair of points: 1.4 ns."""
DISTANCES = frozenset("_cdist_forward _cdist_backward _pdist_forward _pdist_backward".split())


def distance(op: Op) -> tuple[Work, ...]:
    """Of all pairs of points, a block of threads for each: by how many there are, and how long points are."""
    tensors = sorted(tensors_of(op.args), key=lambda tensor: len(tensor.shape))
    points = [tensor for tensor in tensors if len(tensor.shape) > 1]
    width = max(points[-1].shape[-1], 1) if points else 1
    results = op.outputs[0] if base_name(op).endswith("forward") else tensors_of(op.args)[0]
    return by_sizes([base_name(op)], _PAIR_BYTES * results.numel, max(results.numel, 1), width)


def factored(op: Op) -> tuple[Work, ...]:
    """Of many small matrices each: by how many there are, and by their size."""
    tensor = next(op.input_refs())
    size = max(tensor.shape[-1], 1) if len(tensor.shape) > 1 else 1
    nbytes = total_bytes(op.input_refs()) + total_bytes(op.outputs)
    return by_sizes([base_name(op)], nbytes, max(tensor.numel // size**2, 1), size)


_LENGTH_ELEMENT_BYTES = 4800
"""What memory could move while a block of threads waits for an element of its length: 1 ns."""


def weight_norm(op: Op) -> tuple[Work, ...]:
    """A block of threads per length of the first dimension, which waits where there are few; of the last, the time is
    that of the elements behind one length, one after the other."""
    tensors = tensors_of(op.args)
    lengths = max(min(tensor.numel for tensor in tensors), 1)
    elements, name = tensors[0].numel // lengths, base_name(op)
    if tensors[0].shape[0] != lengths:
        return by_sizes([name], elements * item_bytes(tensors[0].dtype), elements)
    nbytes, size = total_bytes(tensors) + total_bytes(op.outputs), item_bytes(tensors[0].dtype)
    plain = by_bytes(["pointwise contiguous"], (*log(nbytes, 3 * size), 1.0), nbytes)
    own = (lengths, elements)

    def work(rule: str, lengths: int, elements: int) -> Work:
        seen = max(resized(nbytes, (lengths, elements), own), _LENGTH_ELEMENT_BYTES * elements)
        return Work(rule, log(lengths, elements), 0, "", seen, num_sizes=2)

    rules = dict.fromkeys((f"{name} first {size}", f"{name} first 4"))
    return (*(resizable(partial(work, rule), own, _TOPS[:2]) for rule in rules), *plain)


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
        return by_sizes(rules, touched_bytes(log_probabilities), rows, classes)

    def forward(rule: str, rows: int, classes: int) -> Work:
        return Work(rule, log(rows, classes), 0, "", 32 * rows, num_sizes=2)

    return tuple(resizable(partial(forward, rule), (rows, classes), _TOPS[:2]) for rule in rules)
