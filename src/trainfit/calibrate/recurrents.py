"""Workloads of recurrent layers beyond those of compute.py: batches from one to thousands, inputs that are as wide as
the state or not, one to three layers.

Each is a callable that runs torch code on the GPU; `OpTimer` times the ops inside.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from trainfit.calibrate.workloads import BF16, FP16, FP32, Workload, randn

Size = tuple[int, int, int, int, int, bool]
"""Batch, steps, width of the input and of the state, layers, whether in both directions."""
_SIZES: tuple[Size, ...] = (
    (512, 32, 128, 128, 1, False), (1024, 24, 256, 256, 1, False), (2048, 24, 128, 128, 1, False),
    (4096, 16, 64, 128, 1, True), (512, 32, 512, 512, 1, False), (1024, 16, 512, 512, 1, True),
    (256, 32, 300, 512, 2, True), (512, 24, 40, 128, 3, False), (128, 64, 64, 64, 1, True),
    (2048, 16, 256, 256, 2, False), (64, 100, 80, 320, 2, True), (32, 200, 40, 128, 2, False),
    (8, 256, 256, 256, 1, False), (1, 256, 256, 512, 1, False), (4, 128, 1024, 1024, 2, False),
    (512, 16, 1024, 1024, 1, False),
)  # fmt: skip
_MORE: tuple[Size, ...] = (
    (4096, 16, 64, 64, 1, False), (256, 48, 128, 128, 2, False), (8192, 12, 64, 128, 1, True),
    (128, 48, 640, 640, 1, True), (256, 24, 1024, 1024, 1, False), (16, 128, 200, 200, 3, False),
)  # fmt: skip

_SMALL: tuple[Size, ...] = (
    (16, 64, 32, 32, 1, False), (256, 32, 32, 32, 1, False), (64, 64, 96, 96, 1, False), (512, 32, 96, 96, 1, True),
    (8, 64, 160, 160, 1, False), (256, 32, 160, 160, 1, False), (64, 32, 192, 192, 1, False),
    (1024, 16, 192, 192, 1, False), (1, 128, 128, 128, 1, False), (16, 100, 64, 64, 2, False),
    (128, 32, 128, 128, 1, True), (4096, 12, 32, 48, 1, False), (64, 32, 220, 220, 1, False),
)  # fmt: skip
"""Whose weights cuDNN keeps for all steps."""


def recurrent(kind: Callable[..., nn.RNNBase], size: Size, dtype: torch.dtype) -> None:
    batch, steps, inputs, width, layers, both = size
    rnn = kind(inputs, width, layers, batch_first=True, bidirectional=both, device="cuda", dtype=dtype)
    out, _ = rnn(randn(batch, steps, inputs, dtype=dtype).requires_grad_())
    out.backward(torch.randn_like(out))


def recurrents() -> list[Workload]:
    kinds: tuple[Callable[..., nn.RNNBase], ...] = (nn.LSTM, nn.GRU)
    found = [
        *itertools.product(kinds, _SMALL, (FP32, FP16)),
        *itertools.product(kinds[:1], _MORE, (FP32, FP16)),
        *itertools.product(kinds, _SIZES, (FP32, BF16, FP16)),
    ]
    return [partial(recurrent, *each) for each in found]
