"""How long kernels of attention compute: by blocks of threads, and the steps in which these walk over scores.

In: `Scores` and a `Kernel`. Out: how many steps a processor takes, one after the other, and how many blocks it begins
(`walk`); what a step takes as operations (`Kernel.step_flops`).

A block has some queries (some keys backward) and walks over all keys (all queries). A processor runs one or two at a
time, by what registers and memory of its own they need; where there are fewer blocks than that, none is faster. All
blocks of one length end together, so they come in whole waves. Causal ones have from one step to all: they fill each
other's gaps, but for the last.

Tiles are those in the kernels' names (cuDNN 9.19's for compute capability 9.0, FlashAttention 2's). What a step takes
beside its products (exponentials, sums, waiting) was fitted together with what blocks take to begin, six numbers to 300
samples of a kernel, which are then 5 to 8% off on average.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor
from typing import NamedTuple


class Kernel(NamedTuple):
    """How scores are divided among blocks of threads."""

    block: int
    """Queries, or keys backward, that a block has."""
    step: int
    """How many of the others it walks over at a time."""
    head: int
    """How wide heads are computed."""
    at_once: int
    """How many blocks a processor runs at a time."""
    wider: int
    """What a step does beside its products takes as long as products of heads that are wider by so many."""
    rounds: float
    """What a block takes to begin and end, as tiles of products do."""
    divides_keys: bool = False
    """Whether processors that would idle get a part of the others' keys."""

    def step_flops(self, products: float) -> float:
        """What a step counts as, for so many products of a score and a head."""
        return 2 * products * self.block * self.step * (self.head + self.wider)


_ROUNDS, _GRADIENT_ROUNDS, _DIVIDED_ROUNDS = 1.5, 5.5, 7.0
"""What a block takes to begin and end: forward, backward, and where its keys are divided."""
_SHARED = 128
"""cuDNN's gradients of heads up to this width leave room for a second block, which computes while one waits."""
_CUDNN_HEADS = 64
_Wider = dict[tuple[bool, int], int]  # backward, and heads' width
_CUDNN: dict[tuple[bool, bool], _Wider] = {  # dropout, mask
    (False, False): {
        (False, 64): 66, (False, 128): 63, (False, 192): 95, (False, 256): 116,
        (True, 64): 60, (True, 128): 62, (True, 192): 356, (True, 256): 356,
    },
    (True, False): {
        (False, 64): 284, (False, 128): 304, (False, 192): 367, (False, 256): 704,
        (True, 64): 108, (True, 128): 134, (True, 192): 540, (True, 256): 700,
    },
    (False, True): {
        (False, 64): 190, (False, 128): 230, (False, 192): 700, (False, 256): 800,
        (True, 64): 155, (True, 128): 285, (True, 192): 850, (True, 256): 860,
    },
    (True, True): {
        (False, 64): 460, (False, 128): 620, (False, 192): 1400, (False, 256): 1900,
        (True, 64): 215, (True, 128): 515, (True, 192): 980, (True, 256): 1000,
    },
}  # fmt: skip
"""How much wider: with a mask, dropout or both registers no longer suffice for wide heads."""
_ODD_MASK = 300
"""And forward where a mask's rows begin at odd elements, which are fetched one by one."""
_FLASH: dict[tuple[bool, bool], dict[int, tuple[int, int, int]]] = {  # backward, dropout: by heads' width
    (False, False): {
        32: (128, 128, 121), 64: (128, 128, 141), 96: (128, 64, 168), 128: (128, 64, 200), 256: (64, 64, 478),
    },
    (False, True): {
        32: (128, 128, 121), 64: (128, 64, 141), 96: (128, 64, 168), 128: (128, 32, 200), 256: (64, 64, 478),
    },
    (True, False): {
        32: (128, 128, 111), 64: (128, 128, 158), 96: (128, 64, 249), 128: (128, 64, 270), 256: (64, 64, 802),
    },
}  # fmt: skip
"""Block, step, and how much wider."""
_DIVIDED = {32: (64, 256, 121), 64: (64, 256, 141), 96: (64, 128, 335), 128: (64, 128, 370), 256: (64, 64, 478)}
"""The same where keys are divided: one more kernel adds up what their parts gave."""
_FILLED = 0.8
"""FlashAttention divides keys where blocks of so many queries fill less than this share of two for each processor."""


def cudnn_kernel(dim: int, is_backward: bool, has_dropout: bool, has_mask: bool, is_odd: bool) -> Kernel:
    head = _CUDNN_HEADS * ceil(dim / _CUDNN_HEADS)
    by_width = _CUDNN[has_dropout, has_mask]
    wider = by_width[is_backward, min(head, max(width for _, width in by_width))]
    if is_backward:
        return Kernel(64, 64, head, 2 if head <= _SHARED else 1, wider, _GRADIENT_ROUNDS)
    return Kernel(128, 128, head, 1, wider + _ODD_MASK * is_odd, _ROUNDS)


def flash_kernel(
    dim: int, is_backward: bool, has_dropout: bool, heads: float, length: float, key_length: float, num_sms: int
) -> Kernel:
    by_width = _FLASH[is_backward, has_dropout and not is_backward]
    head = min((width for width in by_width if width >= dim), default=max(by_width))
    block, step, wider = by_width[head]
    if is_backward:
        return Kernel(block, step, head, 1, wider, _GRADIENT_ROUNDS)
    block_of_few, step_of_few, wider_of_few = _DIVIDED[head]
    are_few = heads * ceil(length / block_of_few) < _FILLED * 2 * num_sms
    if are_few and key_length > step_of_few and not has_dropout:
        return Kernel(block_of_few, step_of_few, head, 2, wider_of_few, _DIVIDED_ROUNDS, divides_keys=True)
    return Kernel(block, step, head, 2, wider, 2 * _ROUNDS)


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores that a kernel walks over: of how many heads, how many of the side that blocks divide, and others."""

    heads: float
    length: float
    others: float
    is_causal: bool
    is_backward: bool


class Walk(NamedTuple):
    """What a processor does, one after the other."""

    steps: float
    blocks: float
    heads: float
    """How many heads would take as long: more than there are, where blocks do not fill a wave."""


def in_whole_waves(kernel: Kernel, scores: Scores, num_sms: int) -> float:
    """How many heads take as long without gaps."""
    if scores.is_causal or kernel.divides_keys:
        return scores.heads
    blocks, at_once = ceil(scores.length / kernel.block), kernel.at_once * num_sms
    return ceil(scores.heads * blocks / at_once) * at_once / blocks


def walk(kernel: Kernel, scores: Scores, num_sms: int) -> Walk:
    """Waves need not be whole: they are where the heads are those of `in_whole_waves`."""
    blocks, steps = ceil(scores.length / kernel.block), ceil(scores.others / kernel.step)
    per_head = blocks / (kernel.at_once * num_sms)
    waves = scores.heads * per_head
    if kernel.divides_keys:
        parts = min(steps, max(floor(1 / waves), 1))
        return Walk(ceil(steps / parts), max(waves, 1.0), scores.heads)
    if not scores.is_causal:
        waves = max(waves, 1.0)
        return Walk(waves * steps, waves, waves / per_head)
    longest, average = _causal_steps(kernel, blocks, steps, scores.is_backward)
    return Walk(max(longest, waves * average + _TAIL * longest), max(1.0, waves + _TAIL), scores.heads)


_TAIL = 0.5
"""The share of the longest causal block for which processors wait for the last one, on average."""


def _causal_steps(kernel: Kernel, blocks: int, steps: int, is_backward: bool) -> tuple[int, float]:
    """Of the longest block, and of one on average: query number i sees keys up to number i."""
    rise = max(kernel.block // kernel.step, 1)
    if is_backward:
        some = min(blocks, ceil(steps / rise))
        return steps, (some * steps - rise * some * (some - 1) / 2) / blocks
    some = min(blocks, steps // rise)
    return min(steps, rise * blocks), (rise * some * (some + 1) / 2 + (blocks - some) * steps) / blocks
