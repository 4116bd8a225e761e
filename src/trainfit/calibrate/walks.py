"""Workloads whose threads walk along memory, and others that a rule of their own prices: softmax across memory, running
sums, weight norm, pooling to a fixed size, volumes that grow.

Each is a callable that runs torch code on the GPU; `OpTimer` times the ops inside.
"""

from __future__ import annotations

import itertools
from functools import partial

import torch
from torch.nn import functional as F

from trainfit.calibrate.workloads import BF16, FP16, FP32, Workload, randn

_SHARED = (
    (1, 256, 64), (1, 4096, 64), (8, 512, 32), (64, 256, 16), (512, 128, 64), (2, 65536, 8), (32, 1024, 8),
    (256, 196, 64), (1024, 64, 4), (16, 2048, 48), (128, 512, 2), (2048, 64, 16), (48, 1024, 64), (4, 16384, 32),
)  # fmt: skip
"""Outer size, length and columns beside each other, of which few share a block of threads."""
_COLUMNS = (
    (32, 17, 4096), (8, 128, 65536), (4, 64, 16384), (128, 9, 1024), (2048, 16, 128), (16384, 8, 64), (64, 1000, 128),
    (512, 50, 512), (4096, 20, 100), (2, 192, 131072), (100_000, 16, 32), (16, 512, 256), (8, 21, 262144),
)  # fmt: skip
_CLASSES = (
    (16, 50257, 75), (4, 32000, 128), (64, 8192, 80), (8, 30522, 100), (2, 65536, 512), (32, 20000, 65),
    (1, 128256, 256), (128, 4096, 196), (24, 50000, 32),
)  # fmt: skip
"""Scores of tens of thousands of classes, which a loss wants before the places of a text."""
_RUNS = ((16, 256, 512), (8, 1024, 1024), (4, 2048, 768), (64, 128, 256), (2, 4096, 2048), (32, 64, 64), (1, 512, 4096))
_WEIGHTS = (
    (1, 512), (16, 48), (64, 192), (128, 896), (256, 2304), (512, 640), (512, 4608), (1024, 1024), (1024, 9216),
    (2048, 512), (4096, 4096), (32, 65536), (8192, 1024), (128, 128),
)  # fmt: skip
_POOLED = (
    ((32, 512, 14), 7), ((8, 512, 32), 6), ((8, 512, 32), 3), ((8, 512, 32), 2), ((16, 2048, 16), 6),
    ((128, 256, 13), 6), ((32, 64, 112), 7), ((16, 128, 56), 4), ((64, 1024, 7), 3), ((2, 256, 128), 12),
    ((4, 1024, 60), 6),
)  # fmt: skip
_GROWN = (((6, 1, 32, 64, 128), 4), ((2, 1, 16, 32, 32), 4), ((4, 8, 16, 16, 16), 4), ((1, 4, 48, 48, 48), 2))
_WIDENED = ((65536, 256), (4096, 1024), (262144, 64), (8192, 4096), (2048, 32000), (32768, 512), (16384, 196))


def softmax(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    for function in (torch.softmax, torch.log_softmax):
        x = randn(*shape, dtype=dtype).requires_grad_()
        function(x, 1).backward(torch.ones_like(x))


def widened(rows: int, columns: int, dtype: torch.dtype) -> None:
    for function in (torch.softmax, torch.log_softmax):
        x = randn(rows, columns, dtype=dtype).requires_grad_()
        function(x, -1, dtype=FP32).backward(randn(rows, columns))


def running(shape: tuple[int, int, int], dim: int, dtype: torch.dtype) -> None:
    x = randn(*shape, dtype=dtype)
    x.cumsum(dim), x.logcumsumexp(dim)


def weight_norm(rows: int, elements: int, dtype: torch.dtype) -> None:
    direction = randn(rows, elements, dtype=dtype).requires_grad_()
    length = torch.ones(rows, 1, device="cuda", dtype=dtype, requires_grad=True)
    torch._weight_norm(direction, length, 0).backward(torch.ones_like(direction))


def pooled(size: tuple[int, int, int], side: int, dtype: torch.dtype, nhwc: bool) -> None:
    batch, channels, large = size
    x = randn(batch, channels, large, large, dtype=dtype)
    x = x.contiguous(memory_format=torch.channels_last if nhwc else torch.contiguous_format).requires_grad_()
    for function in (F.adaptive_avg_pool2d, F.adaptive_max_pool2d):
        out = function(x, side)
        out.backward(torch.ones_like(out))


def grown(size: tuple[int, ...], factor: int, dtype: torch.dtype) -> None:
    for mode in ("trilinear", "nearest"):
        x = randn(*size, dtype=dtype).requires_grad_()
        out = F.interpolate(x, scale_factor=factor, mode=mode)
        out.backward(torch.ones_like(out))


def walks() -> list[Workload]:
    both = (FP32, BF16)
    return [
        *(partial(softmax, *each) for each in itertools.product((*_SHARED, *_COLUMNS), both)),
        *(partial(widened, *shape, dtype) for shape, dtype in itertools.product(_WIDENED, (FP16, BF16))),
        *(partial(running, *each) for each in itertools.product(_RUNS, (1, 2), both)),
        *(partial(weight_norm, *shape, dtype) for shape, dtype in itertools.product(_WEIGHTS, both)),
        *(
            partial(pooled, *sizes, dtype, nhwc)
            for sizes, dtype, nhwc in itertools.product(_POOLED, both, (False, True))
        ),
        *(partial(grown, *sizes, dtype) for sizes, dtype in itertools.product(_GROWN, both)),
    ]


def classes() -> list[Workload]:
    """Softmax over classes that stand before places."""
    return [partial(softmax, *each) for each in itertools.product(_CLASSES, (FP32, BF16))]
