"""The rule for classes of every place of an image (`nll_loss2d`), summed or averaged.

In: an `Op` and how many processors the GPU has. Out: `Work`s. One block of threads goes through all places of an image,
or several where they are very many (NLLLoss2d.cu), so a large image takes as long as many; every block adds to one
number in the end, which in halves takes a while.
"""

from __future__ import annotations

from math import log2, prod

from trainfit.cost import rowwise
from trainfit.cost.work import Work, argument, base_name, item_bytes, log, tensors_of, touched_bytes
from trainfit.records import Op

LOSSES = frozenset(f"nll_loss{dims}_{way}" for dims in ("", "2d") for way in ("forward", "backward"))
_THREADS, _SHARING, _AT_ONCE = 1024, 128, 2
"""Threads of a block; how many times as many places a block has before another shares them; blocks that a processor
runs at a time."""
_STEP_BYTES = 4_500_000
"""What memory could move while a thread waits for the next of its places: 0.95 us."""


def nll_loss(op: Op, num_sms: int) -> tuple[Work, ...]:
    """By waves of blocks and places that a thread of one has; a gradient is filled with zeros first."""
    name = base_name(op)
    is_backward = name.endswith("backward")
    reduction = argument(op, 4 if is_backward else 3, "reduction", 1)
    if "2d" not in name or reduction == 0:
        return rowwise.nll_loss(op)
    log_probabilities = tensors_of(op.args)[is_backward]
    batch, classes, *sides = log_probabilities.shape
    places = max(prod(sides), 1)
    blocks = max(-(-places // _THREADS) // _SHARING, 1)
    steps = -(-places // (blocks * _THREADS))
    waves = -(-batch * blocks // (_AT_ONCE * num_sms))
    nbytes = _STEP_BYTES * steps * waves + (touched_bytes(log_probabilities) if is_backward else 0)
    coordinates = (*log(steps, batch * blocks, item_bytes(log_probabilities.dtype)), log2(max(classes, 1)) / 2)
    return (Work(name, coordinates, 0, "", nbytes),)
