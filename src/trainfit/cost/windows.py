"""Rules for images that are taken apart into windows (im2col) and put together again (col2im).

In: an `Op` and how many processors the GPU has. Out: `Work`s. Every image is taken apart by a kernel of its own, with a
thread for every window and channel. One kernel puts all of them together: a thread for every place of an image looks at
the windows that cover it, one after the other. Both take longer than memory does; where there are fewer threads than
keep the GPU busy, those that are missing take as long.
"""

from __future__ import annotations

from math import ceil, prod

from trainfit.cost.work import Work, log, total_bytes
from trainfit.records import Op

_PLACE_BYTES, _WINDOW_BYTES = 100, 40
"""What memory could move while a thread has a place of an image, and for each window but the first that covers it: 24
and 10 ps."""
_TAKEN_BYTES, _PIXEL_BYTES = 34, 9
"""And while one has a window, and for each of its pixels: 8 and 2 ps."""
_BUSY_THREADS = 512
"""Of a processor: as many take no longer than fewer."""


def taken_apart(op: Op, num_sms: int) -> tuple[Work, ...]:
    """With margins, images are copied first."""
    image, out = next(op.input_refs()), op.outputs[0]
    images = max(image.shape[0], 1) if len(image.shape) > 3 else 1
    window, has_margins = prod(_sizes(op, 1)), any(_sizes(op, 3))
    windows = out.numel / window / images
    seen = images * round(max(windows, _BUSY_THREADS * num_sms) * (_TAKEN_BYTES + _PIXEL_BYTES * window))
    nbytes = max(total_bytes((image, out)), seen) + 2 * has_margins * total_bytes((image,))
    return (Work("im2col", log(images, windows, window), 0, "", nbytes, kernels=images + has_margins, num_sizes=3),)


def put_together(op: Op, num_sms: int) -> tuple[Work, ...]:
    places, covering = op.outputs[0].numel, _covering(op)
    seen = round(max(places, _BUSY_THREADS * num_sms) * (_PLACE_BYTES + _WINDOW_BYTES * (covering - 1)))
    nbytes = max(total_bytes(op.input_refs()) + total_bytes(op.outputs), seen)
    return (Work("col2im", log(places, covering), 0, "", nbytes, num_sizes=2),)


def _covering(op: Op) -> float:
    """How many windows cover a place: on average along columns, at most along rows, where threads wait for their
    neighbours."""
    (high, wide), spread, _, (down, across) = (_sizes(op, place) for place in (2, 3, 4, 5))
    tall, broad = (step * (side - 1) + 1 for side, step in zip((high, wide), spread, strict=True))
    return max(tall / down, 1.0) * ceil(broad / across)


def _sizes(op: Op, position: int) -> tuple[int, ...]:
    """Along both dimensions of an image."""
    values = op.args[position]
    return tuple(value for value in values if isinstance(value, int)) if isinstance(values, tuple) else ()
