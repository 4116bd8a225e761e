"""Workloads of attention that a seed draws: lengths, heads, batches, masks and dropout as models have them.

`drawn(count, seed)` are workloads as any, of every backend that torch may choose; `masked(count, seed)` are those with
a mask, or a bias that is learned, of every shape that broadcasts to the scores; `of_few_heads(count, seed)` leave
processors idle; `of_few_queries(count, seed)` have many more keys than queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from math import log2, prod
from random import Random
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from trainfit.calibrate.compute import attention
from trainfit.calibrate.workloads import BF16, FP16, FP32, Workload, randn

_LENGTHS = (49, 50, 64, 77, 128, 196, 197, 256, 257, 512, 512, 577, 1024, 1024, 1500, 2048, 4096)
_HEADS = (1, 2, 3, 4, 6, 8, 8, 12, 12, 16, 16, 20, 24, 32)
_DIMS = (16, 32, 32, 40, 48, 64, 64, 64, 64, 64, 72, 80, 96, 128, 128, 128, 256)
_KINDS = (  # head size, causal, dropout, mask; more than once: more often
    *((64, False, 0.0, False),) * 4, *((64, True, 0.0, False),) * 3, *((128, True, 0.0, False),) * 3,
    *((128, False, 0.0, False),) * 2, *((64, False, 0.1, False),) * 2, (64, True, 0.1, False), (64, False, 0.0, True),
    (32, False, 0.0, False), (40, False, 0.0, False), (24, False, 0.0, False), (80, False, 0.0, False),
    (96, False, 0.0, False), (80, True, 0.0, False),
)  # fmt: skip
"""What is drawn of cuDNN, which compiles a kernel for each, for seconds."""
_MOST_PAIRS, _MOST_ELEMENTS, _FEWEST_PAIRS = 2**29, 2**26, 2**16


def _length(random: Random) -> int:
    return random.choice(_LENGTHS) if random.random() < 0.5 else round(2 ** random.uniform(4, 12.5))


def _case(random: Random) -> tuple[Any, ...]:
    backend = random.choices(
        (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION), (0.2, 0.3, 0.5)
    )[0]
    heads, seq = random.choice(_HEADS), _length(random)
    dim, causal, dropout, has_mask = random.choice(_KINDS)
    dtype = BF16
    if backend is not SDPBackend.CUDNN_ATTENTION:
        dim, causal, dropout = random.choice(_DIMS), random.random() < 0.4, 0.1 if random.random() < 0.25 else 0.0
        has_mask = backend is SDPBackend.EFFICIENT_ATTENTION and not causal and random.random() < 0.3
        dtype = random.choice((BF16, FP16))
    if backend is SDPBackend.EFFICIENT_ATTENTION and random.random() < 0.65:
        dtype = FP32
    key_seq = _length(random) if random.random() < 0.2 and not causal else seq
    shares = [share for share in (2, 4, 8) if heads % share == 0 and backend is not SDPBackend.EFFICIENT_ATTENTION]
    kv_heads = heads // random.choice(shares) if shares and random.random() < 0.2 else heads
    batch = round(2 ** random.uniform(0, log2(2**19 / seq)))
    return backend, dtype, batch, heads, kv_heads, seq, dim, causal, dropout, has_mask, key_seq


def _cases(seed: int) -> Iterator[tuple[Any, ...]]:
    """Neither over at once nor long, without end."""
    random = Random(seed)
    while True:
        case = _case(random)
        _, _, batch, heads, _, seq, dim, *_, key_seq = case
        pairs, elements = batch * heads * seq * key_seq, batch * heads * max(seq, key_seq) * dim
        if _FEWEST_PAIRS <= pairs <= _MOST_PAIRS and elements <= _MOST_ELEMENTS:
            yield case


def drawn(count: int, seed: int) -> list[Workload]:
    return [partial(attention, *case) for case in islice(_cases(seed), count)]


_MASKED_LENGTHS = (49, 64, 77, 128, 144, 196, 197, 256, 256, 320, 384, 512, 512, 577, 640, 832, 1024, 1024, 1178, 2048)
_MASKED_DIMS = (32, 64, 64, 64, 96, 128, 128)
_MOST_MASKED_PAIRS = 2**28


def biased(
    backend: SDPBackend, dtype: torch.dtype, scores: tuple[int, int, int, int], dim: int, mask: tuple[int, ...],
    is_learned: bool, dropout: float,
) -> None:  # fmt: skip
    """Attention with something added to its scores, (batch, heads, queries, keys) of them, and its backward pass."""
    batch, heads, length, key_length = scores

    def project(length: int) -> torch.Tensor:
        return randn(batch, length, heads, dim, dtype=dtype).transpose(1, 2).requires_grad_()

    bias = randn(*mask, dtype=dtype).requires_grad_(is_learned)
    query, key, value = project(length), project(key_length), project(key_length)
    with sdpa_kernel(backend):
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout)
        out.transpose(1, 2).reshape(batch, length, -1).backward(randn(batch, length, heads * dim, dtype=dtype))


def _masked_case(random: Random) -> tuple[Any, ...]:
    is_cudnn = random.random() < 0.4
    length = random.choice(_MASKED_LENGTHS) if random.random() < 0.7 else round(2 ** random.uniform(4, 11))
    key_length = random.choice(_MASKED_LENGTHS) if random.random() < 0.15 else length
    heads, dim = random.choice(_HEADS), random.choice(_MASKED_DIMS)
    batch = round(2 ** random.uniform(0, log2(2**18 / length)))
    scores = (batch, heads, length, key_length)
    kept = random.choice(((1, 0, 1, 1), (1, 0, 0, 1), (1, 0, 0, 1), (0, 0, 1, 1), (0, 1, 1, 1), (1, 1, 1, 1)))
    mask = tuple(size if is_kept else 1 for size, is_kept in zip(scores, kept, strict=True))
    dtype = BF16 if is_cudnn else random.choice((BF16, BF16, FP16, FP32, FP32))
    is_learned = not is_cudnn and bool(kept[1]) and random.random() < 0.7
    dropout = 0.1 if not is_cudnn and random.random() < 0.15 else 0.0
    backend = SDPBackend.CUDNN_ATTENTION if is_cudnn else SDPBackend.EFFICIENT_ATTENTION
    return backend, dtype, scores, dim, mask, is_learned, dropout


def _masked_cases(seed: int) -> Iterator[tuple[Any, ...]]:
    random = Random(seed)
    while True:
        case = _masked_case(random)
        if _FEWEST_PAIRS <= prod(case[2]) <= _MOST_MASKED_PAIRS:
            yield case


def masked(count: int, seed: int) -> list[Workload]:
    return [partial(biased, *case) for case in islice(_masked_cases(seed), count)]


def masked_and_dropped(count: int, seed: int) -> list[Workload]:
    """Padded texts as cuDNN's kernels with dropout have them."""
    cases = ((*case[:6], 0.1) for case in _masked_cases(seed) if case[0] is SDPBackend.CUDNN_ATTENTION)
    return [partial(biased, *case) for case in islice(cases, count)]


def _case_of_few_heads(random: Random) -> tuple[Any, ...]:
    """Of images' places, by heads as wide as all channels or some: blocks are fewer than processors."""
    dtype = random.choice((FP32, FP32, BF16, FP16))
    batch, heads = random.choice((1, 1, 2, 3, 4, 6, 8)), random.choice((1, 1, 2, 2, 3, 4, 5, 8))
    dim = random.choice((32, 40, 64, 64, 80, 128, 160, 256, 320, 512))
    seq = random.choice((256, 576, 1024, 1024, 2304, 4096, 4096, 9216, round(2 ** random.uniform(8, 13))))
    return SDPBackend.EFFICIENT_ATTENTION, dtype, batch, heads, heads, seq, dim, False, 0.0, False, seq


def of_few_heads(count: int, seed: int) -> list[Workload]:
    random = Random(seed)
    return [partial(attention, *_case_of_few_heads(random)) for _ in range(count)]


def _case_of_few_queries(random: Random) -> tuple[Any, ...]:
    """Of latents, or of a text, over what they look at; half of them with a mask of the keys."""
    queries = random.choice((8, 16, 32, 64, 64, 77, 100, 128, 256, round(2 ** random.uniform(3, 8))))
    keys = min(queries * round(2 ** random.uniform(1, 6)), 16384)
    heads, dim = random.choice(_HEADS), random.choice((32, 64, 64, 64, 96, 128))
    batch = round(2 ** random.uniform(0, log2(2**17 / keys)))
    dtype = random.choice((BF16, BF16, FP16, FP32, FP32))
    return dtype, (batch, heads, queries, keys), dim, random.random() < 0.5


def of_few_queries(count: int, seed: int) -> list[Workload]:
    """Where there is a mask torch has no choice of backend; elsewhere flash or cuDNN's kernels run in halves."""
    random, found = Random(seed), list[Workload]()
    while len(found) < count:
        dtype, scores, dim, has_mask = _case_of_few_queries(random)
        batch, heads, queries, keys = scores
        if prod(scores) < _FEWEST_PAIRS or prod(scores) > _MOST_MASKED_PAIRS:
            continue
        if has_mask:
            mask = (batch, 1, random.choice((1, queries)), keys)
            found.append(partial(biased, SDPBackend.EFFICIENT_ATTENTION, dtype, scores, dim, mask, False, 0.0))
        else:
            backend = SDPBackend.EFFICIENT_ATTENTION if dtype is FP32 else SDPBackend.FLASH_ATTENTION
            found.append(partial(attention, backend, dtype, batch, heads, heads, queries, dim, False, 0.0, False, keys))
    return found
