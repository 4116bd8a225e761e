"""Rules for fused attention, by backend.

In: an `Op`. Out: `Work`s, the most special rule first. cuDNN's kernels and FlashAttention's take what their blocks of
threads walk over (attention_kernels.py), so that their tables have only to say what masks and dropout cost, and what
else kernels differ in; PyTorch's efficient kernels are in attention_efficient.py.
"""

from __future__ import annotations

from functools import partial
from math import ceil

from trainfit.cost.attention_efficient import efficient_works
from trainfit.cost.attention_kernels import Kernel, Scores, cudnn_kernel, flash_kernel, in_whole_waves, walk
from trainfit.cost.attention_op import ATTENTIONS, Attention, attention_of
from trainfit.cost.work import Parts, Work, item_bytes, log, parts_of, resizable, rows_alignment, traffic_bytes
from trainfit.records import Op

_TOPS = (14, 15, 15)
"""log2 of the most pairs, queries and keys that are measured, about."""
_QUERY_PASSES, _KEY_PASSES = 13, 4
"""How often kernels before and after a gradient's own one move the bytes of a tensor of queries: they multiply results
and their gradients, fill sums in float32 with zeros, to which blocks add, and convert them. And of a tensor of keys for
all heads, where heads share a key's: their gradients are added up."""
_WIDTH_WEIGHT, _EVEN_WEIGHT = 2.0, 2.0
"""How far apart, in doublings, two are of which one's heads are twice as wide, or are computed twice as wide, and two
of FlashAttention's of which one fills all tiles: that has kernels of its own."""


def attention(op: Op, num_sms: int) -> tuple[Work, ...]:
    found = attention_of(op)
    if found.backend == "efficient":
        return efficient_works(found, num_sms)
    return tuple(_work(found, rule, num_sms) for rule in found.rules())


def _work(found: Attention, rule: str, num_sms: int) -> Work:
    kernel = _kernel(found, found.pairs, found.length, found.key_length, num_sms)
    lengths = zip((found.length, found.key_length), _sides(found, kernel), strict=True)
    length, key_length = (side * ceil(size / side) for size, side in lengths)
    pairs = in_whole_waves(kernel, _scores(found, found.pairs, length, key_length), num_sms)
    made = partial(_made, found, rule, num_sms, _bytes_moved(found, pairs, length, key_length))
    return resizable(made, (pairs, length, key_length), _TOPS)


def _made(found: Attention, rule: str, num_sms: int, parts: Parts, *sizes: float) -> Work:
    """With these pairs, queries and keys."""
    pairs, length, key_length = sizes
    kernel = _kernel(found, pairs, length, key_length, num_sms)
    walked = walk(kernel, _scores(found, pairs, length, key_length), num_sms)
    flops = round(2 * found.products * found.pairs * found.length * found.key_length * found.dim)
    flops //= 2 if found.is_causal else 1
    counted = walked.steps * kernel.at_once * num_sms * kernel.step_flops(found.products)
    seen = min(key_length, length) if found.is_causal else key_length
    width = _WIDTH_WEIGHT * (log(kernel.head)[0] + log(found.dim)[0])
    return Work(
        rule,
        (*log(length, seen, walked.heads), width, *_evenness(found, kernel), *found.alike(rule), *found.unlike(rule)),
        flops,
        found.dtype,
        traffic_bytes(parts, (*sizes, found.dim)),
        kernels=_num_kernels(found, kernel),
        is_serial=found.is_backward,
        stretch=counted / max(flops, 1),
        rounds=kernel.rounds * walked.blocks,
    )


def _kernel(found: Attention, pairs: float, length: float, key_length: float, num_sms: int) -> Kernel:
    if found.backend == "cudnn":
        is_odd = found.mask is not None and rows_alignment(found.mask) == item_bytes(found.mask.dtype)
        return cudnn_kernel(found.dim, found.is_backward, found.has_dropout, found.mask is not None, is_odd)
    return flash_kernel(found.dim, found.is_backward, found.has_dropout, pairs, length, key_length, num_sms)


def _scores(found: Attention, pairs: float, length: float, key_length: float) -> Scores:
    blocked, others = (key_length, length) if found.is_backward else (length, key_length)
    return Scores(pairs, blocked, others, found.is_causal, found.is_backward)


def _sides(found: Attention, kernel: Kernel) -> tuple[int, int]:
    """Of a tile: queries and keys."""
    return (kernel.step, kernel.block) if found.is_backward else (kernel.block, kernel.step)


def _evenness(found: Attention, kernel: Kernel) -> tuple[float, ...]:
    if found.backend != "flash":
        return ()
    queries, keys = _sides(found, kernel)
    is_even = not (found.length % queries or found.key_length % keys or found.dim % kernel.head)
    return (_EVEN_WEIGHT * is_even,)


def _num_kernels(found: Attention, kernel: Kernel) -> int:
    if found.is_backward:
        return (4 if found.backend == "cudnn" else 3) + 2 * (found.heads_per_key > 1)
    return 2 if found.backend == "cudnn" or kernel.divides_keys else 1


def _bytes_moved(found: Attention, pairs: float, length: float, key_length: float) -> Parts:
    """Forward all that is moved while blocks compute; backward what kernels move that run before and after."""
    if not found.is_backward:
        return parts_of(found.axes, (pairs, length, key_length, found.dim))
    row = item_bytes(found.dtype) * found.dim * found.pairs / pairs
    of_queries = (_QUERY_PASSES * row * found.length / length, (0, 1))
    of_keys = (_KEY_PASSES * row * found.key_length / key_length, (0, 2))
    return (of_queries, of_keys) if found.heads_per_key > 1 else (of_queries,)


__all__ = ["ATTENTIONS", "attention"]
