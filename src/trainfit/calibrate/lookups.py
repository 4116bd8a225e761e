"""Workloads whose sizes or options other groups leave out: large lookups, bags, frozen norms, scans, cells, large sums.

Each is a callable that runs torch code on the GPU; `OpTimer` times the ops inside.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from trainfit.calibrate.workloads import BF16, FP32, Workload, randn


def lookup(tokens: int, rows: int, width: int, dtype: torch.dtype) -> None:
    table = randn(rows, width, dtype=dtype).requires_grad_()
    out = F.embedding(torch.randint(rows, (tokens,), device="cuda"), table)
    out.backward(torch.randn_like(out))


def bag(bags: int, items: int, rows: int, width: int, dtype: torch.dtype) -> None:
    table = randn(rows, width, dtype=dtype).requires_grad_()
    out = F.embedding_bag(torch.randint(rows, (bags, items), device="cuda"), table, mode="sum")
    out.backward(torch.randn_like(out))


def frozen_norm(rows: int, columns: int, dtype: torch.dtype) -> None:
    """Norms whose weights are not trained, as under adapters."""
    x, weight = randn(rows, columns, dtype=dtype).requires_grad_(), randn(columns, dtype=dtype)
    F.layer_norm(x, (columns,), weight, randn(columns, dtype=dtype)).backward(torch.randn_like(x))
    F.rms_norm(x, (columns,), weight).backward(torch.randn_like(x))


def scan(outer: int, length: int, inner: int) -> None:
    """Running sums along a dimension with others behind it."""
    x = randn(outer, length, inner, dtype=FP32)
    x.cumsum(1), x.cumsum(2)


def cell(make: Callable[..., nn.Module], batch: int, hidden: int, dtype: torch.dtype) -> None:
    step = make(hidden, hidden, device="cuda", dtype=dtype)
    x = randn(batch, hidden, dtype=dtype).requires_grad_()
    out = step(x)
    (out[0] if isinstance(out, tuple) else out).backward(torch.randn_like(x))


def large_sum(rows: int, columns: int) -> None:
    """Beyond what fits in any cache by far: the first, the last and a middle dimension are summed."""
    x = randn(rows, columns, dtype=FP32)
    x.sum(0), x.sum(1), x.view(64, -1, columns).sum(1)


def lookups() -> list[Workload]:
    workloads: list[Workload] = []
    for tokens, rows, width in itertools.product((2**12, 2**15, 2**18, 2**20), (1000, 30_000, 500_000), (32, 128)):
        workloads.append(partial(lookup, tokens, rows, width, FP32))
    workloads += [partial(lookup, tokens, 30_000, width, BF16) for tokens, width in ((2**17, 128), (2**17, 768))]
    for bags, items, rows in itertools.product((2**11, 2**14, 2**17), (1, 4, 16), (1000, 50_000, 1_000_000)):
        workloads.append(partial(bag, bags, items, rows, 64, FP32))
    workloads += [partial(bag, 2**14, 4, 50_000, width, dtype) for width in (16, 256) for dtype in (FP32, BF16)]
    for rows, columns, dtype in itertools.product((2**9, 2**12, 2**15, 2**17), (128, 768, 2048), (FP32, BF16)):
        workloads.append(partial(frozen_norm, rows, columns, dtype))
    scans = ((64, 256, 256), (1, 1024, 1024), (8, 64, 4096), (1024, 128, 32), (4, 4096, 64))
    workloads += [partial(scan, *sizes) for sizes in scans]
    for batch, hidden, dtype in itertools.product((16, 128, 1024), (128, 512, 1024), (FP32, BF16)):
        workloads += [partial(cell, make, batch, hidden, dtype) for make in (nn.GRUCell, nn.LSTMCell)]
    workloads += [partial(large_sum, 2**30 // columns, columns) for columns in (32, 128, 1024, 8192)]
    return workloads
