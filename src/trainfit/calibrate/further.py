"""Workloads between those of the other groups: rows that are no power of two, sums to few results, large
norms, picks from many rows, sums over few elements.

Each is a callable that runs torch code on the GPU; `OpTimer` times the ops inside.
"""

from __future__ import annotations

import itertools
from functools import partial

import torch
from torch.nn import functional as F

from trainfit.calibrate import broadcasts, extremes, images, lookups, memory
from trainfit.calibrate.compute import batched_product, linear, rounded
from trainfit.calibrate.workloads import BF16, FP16, FP32, Workload, randn


def products() -> list[Workload]:
    """A tenth and two fifths above powers of two: kernels are chosen otherwise there."""
    widths = [
        (width * hidden, depth * hidden) for hidden in (512, 768, 1024) for width, depth in ((1, 1), (4, 1), (1, 4))
    ]
    shapes = [(rows, *pair) for rows in (1150, 1450, 2300, 2900, 4600, 5800, 9200, 11600, 18400) for pair in widths]
    plain = [
        partial(linear, *shape, dtype, bias)
        for shape, dtype, bias in itertools.product(shapes, (FP32, BF16), (False, True))
    ]
    tf32 = [partial(rounded, partial(linear, *shape, FP32, bias)) for shape in shapes[::2] for bias in (False, True)]
    heads = ((96, 188, 188, 64), (96, 510, 510, 64), (64, 250, 250, 64), (48, 1022, 1022, 64), (256, 77, 77, 64),
             (16384, 64, 1, 1), (4096, 128, 1, 32), (512, 1, 64, 2048), (8, 256, 128, 65536), (192, 1, 512, 64),
             (192, 512, 1, 64))  # fmt: skip
    batches = [partial(batched_product, *shape, dtype) for shape in heads for dtype in (FP32, BF16)]
    return [*plain, *tf32, *batches, *(partial(rounded, partial(batched_product, *shape, FP32)) for shape in heads)]


_UNEVEN = 1.2
"""How far apart, in powers of e, the loads of experts are."""


def experts(tokens: int, count: int, width: int, depth: int) -> None:
    """Products of float32, one per expert, to which as many tokens are sent as an untrained router does: some get many,
    some get none."""
    a, b = randn(tokens, depth).requires_grad_(), randn(count, depth, width).requires_grad_()
    loads = torch.randn(count, generator=torch.Generator().manual_seed(count)).mul(_UNEVEN).softmax(0)
    offsets = (loads.cumsum(0) * tokens).round().to(torch.int32).cuda()
    F.grouped_mm(a, b, offs=offsets).backward(randn(tokens, width))


def norms() -> list[Workload]:
    pictures = ((256, 64, 56), (128, 256, 28), (256, 512, 14), (64, 128, 112), (128, 32, 112), (512, 64, 28))
    lines = ((64, 512, 1024), (64, 1024, 1024), (128, 256, 4096), (32, 2048, 256), (64, 128, 8192), (256, 64, 1024))
    groups = (
        (2, 64, 256, 8),
        (16, 320, 64, 32),
        (4, 512, 32, 1),
        (64, 256, 28, 1),
        (2, 128, 128, 128),
        (8, 512, 128, 512),
        (16, 512, 64, 512),
    )
    rows = ((524288, 64), (262144, 96), (131072, 128), (100000, 192), (32768, 384))
    return [
        *(partial(images.batch_norm, *size, FP16, False) for size in pictures),
        *(partial(extremes.batch_norm, size, dtype) for size in lines for dtype in (FP32, BF16, FP16)),
        *(partial(extremes.group_norm, *case) for case in itertools.product(groups, (FP32, BF16), (False, True))),
        *(partial(memory.norms, *size, dtype) for size in rows for dtype in (FP32, BF16)),
        *(partial(broadcasts.bias_gradient, *size, dtype) for size in rows for dtype in (FP32, BF16)),
    ]


def few_results(rows: int, columns: int, dtype: torch.dtype) -> None:
    """All that is summed up belongs to some results."""
    x = randn(rows, columns, dtype=dtype)
    x.amax(-1), x.mean(-1), x.std(-1), torch.linalg.vector_norm(x, dim=-1), x.sum(-1), x.max(-1), x.argmax(-1)
    (x > 0).sum(-1), (x > 0).sum(0), (x > 0).any(-1), x.amax(), x.max(), x.prod()


def middle(outer: int, few: int, inner: int, dtype: torch.dtype) -> None:
    """Sums and extremes over few elements that lie apart, and over some that lie side by side."""
    x = randn(outer, few, inner, dtype=dtype)
    x.sum(1), x.mean(1), x.amax(1), x.max(1), x.std(1), torch.linalg.vector_norm(x, dim=1), x.argmax(1)
    x.transpose(1, 2).contiguous().max(-1), (x > 0).sum(1), x.softmax(1)


def picks(rows: int, columns: int, count: int, dtype: torch.dtype) -> None:
    """A column or some out of each row, and back; the largest; rows by index."""
    x = randn(rows, columns, dtype=dtype)
    index = torch.randint(columns, (rows, count), device="cuda")
    picked = x.gather(1, index)
    (
        x.scatter(1, index, picked),
        x.scatter_add(1, index, picked),
        x.scatter_(1, index, 0.0),
    )
    x.topk(min(20, columns), -1)
    torch.zeros_like(x).scatter_add_(1, index, picked), x.argsort(-1)
    order = torch.randint(rows, (rows,), device="cuda")
    (
        x[order],
        x.index_select(0, order),
        F.embedding(order, x),
    )
    torch.where(x > 0, x, torch.zeros((), device="cuda", dtype=dtype))
    x.masked_fill_(x > 1, 0.0), x * torch.ones((), device="cuda", dtype=dtype), x * (x > 0), (x > 0) * x[:, :1]


def turned(batch: int, rows: int, columns: int, dtype: torch.dtype) -> None:
    """Copies and products of tensors whose dimensions lie in another order, or with gaps."""
    x, y = randn(batch, rows, columns, dtype=dtype), randn(rows, columns, batch, dtype=dtype)
    y.permute(2, 0, 1).contiguous(), y.permute(2, 0, 1) + x, x[..., ::2].contiguous(), x[..., ::2] * x[..., 1::2]
    x[:, ::2] * 2, torch.stack((x, x), -1), torch.cat((x[..., :1], x), -1), torch.cat((x, x), -1), torch.cat((x, x), 1)


def rest() -> list[Workload]:
    cases: list[Workload] = []
    for dtype in (FP32, BF16):
        few = itertools.product((2, 8, 48, 256), (2**16, 2**20))
        cases += [partial(few_results, *size, dtype) for size in (*few, (65536, 64), (16384, 1024), (1024, 65536))]
        between = (
            (65536, 2, 1024),
            (4096, 4, 768),
            (4096, 2, 64),
            (32768, 20, 64),
            (64, 128, 784),
            (16, 64, 3136),
            (64, 128, 12544),
        )
        cases += [partial(middle, *size, dtype) for size in between]
        some = (
            (8192, 512, 1),
            (8192, 32000, 1),
            (65536, 64, 4),
            (32768, 1024, 20),
            (480_000, 512, 1),
            (2048, 4096, 64),
        )
        cases += [partial(picks, *size, dtype) for size in some]
        cases += [
            partial(turned, *size, dtype)
            for size in ((8, 512, 768), (64, 1024, 512), (16, 56 * 56, 64), (4096, 32, 64))
        ]
        tables = (
            (4096, 256, 32),
            (4096, 1024, 32),
            (2**18, 73, 64),
            (2500, 1000, 192),
            (2**17, 200_000, 16),
            (2**17, 8000, 512),
        )
        cases += [partial(lookups.lookup, *size, dtype) for size in tables]
    cases += [
        partial(experts, *size)
        for size in ((2048, 8, 1024, 1024), (8192, 8, 2048, 768), (8192, 32, 768, 2048), (2048, 16, 2048, 2048))
    ]
    cases += [partial(rounded, partial(experts, *size)) for size in ((2048, 16, 1024, 1024), (8192, 32, 768, 2048))]
    for bags, items, rows, width in ((65536, 20, 10_000, 128), (8192, 2, 2_000_000, 32), (131072, 5, 200_000, 32)):
        cases.append(partial(lookups.bag, bags, items, rows, width, FP32))
    return cases


def further() -> list[Workload]:
    return [*rest(), *norms(), *products()]
