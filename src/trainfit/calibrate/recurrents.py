"""Workloads of recurrent layers: batches from one to thousands, states as wide as the input or not, several layers.

Each is a callable that runs torch code on the GPU; `OpTimer` times the ops inside. Where a kernel or two are launched
per step, more than some dozens of steps tell nothing; both 16-bit types then run the same kernels.
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
Kind = Callable[..., nn.RNNBase]
_STEPWISE: tuple[Size, ...] = (
    *((batch, 48, width, width, layers, both) for batch in (16, 64)
      for width, layers, both in ((256, 1, False), (512, 2, False), (512, 1, True), (1024, 1, False))),
    *((32, 48, width, width, 1, False) for width in (256, 512, 1024, 1536)),
    *((32, 48, width, width, 2, True) for width in (256, 512, 768)),
    (32, 48, 1024, 1024, 2, False), (128, 48, 1024, 1024, 2, False), (128, 48, 512, 512, 2, True),
    (1024, 24, 256, 256, 1, False), (512, 32, 512, 512, 1, False), (1024, 16, 512, 512, 1, True),
    (256, 32, 300, 512, 2, True), (2048, 16, 256, 256, 2, False), (64, 48, 80, 320, 2, True),
    (8, 48, 256, 256, 1, False), (1, 48, 256, 512, 1, False), (4, 48, 1024, 1024, 2, False),
    (512, 16, 1024, 1024, 1, False), (128, 32, 640, 640, 1, True), (256, 24, 1024, 1024, 1, False),
    (16, 48, 200, 200, 3, False), (96, 48, 512, 512, 2, False), (256, 24, 256, 256, 1, True),
    (32, 32, 384, 384, 1, False),
)  # fmt: skip
_NARROW: tuple[Size, ...] = (
    (16, 64, 32, 32, 1, False), (256, 32, 32, 32, 1, False), (64, 64, 96, 96, 1, False), (512, 32, 96, 96, 1, True),
    (8, 64, 160, 160, 1, False), (256, 32, 160, 160, 1, False), (64, 32, 192, 192, 1, False),
    (1024, 16, 192, 192, 1, False), (1, 128, 128, 128, 1, False), (16, 100, 64, 64, 2, False),
    (128, 32, 128, 128, 1, True), (4096, 12, 32, 48, 1, False), (512, 32, 128, 128, 1, False),
    (2048, 24, 128, 128, 1, False), (4096, 16, 64, 128, 1, True), (512, 24, 40, 128, 3, False),
    (128, 64, 64, 64, 1, True), (32, 200, 40, 128, 2, False), (4096, 16, 64, 64, 1, False),
    (256, 48, 128, 128, 2, False), (8192, 12, 64, 128, 1, True), (2400, 96, 128, 128, 1, False),
    (1500, 64, 64, 128, 1, True), (600, 96, 64, 64, 2, False), (8, 32, 128, 128, 1, False),
    (5000, 24, 32, 32, 1, False), (1200, 24, 192, 192, 1, False), (150, 96, 128, 128, 1, False),
    (304, 24, 176, 176, 1, False),
)  # fmt: skip
"""Whose weights cuDNN keeps for all steps, but those of bfloat16."""
_PLAIN: tuple[Size, ...] = (
    (8, 32, 128, 128, 1, False), (96, 48, 512, 512, 2, False), (256, 24, 256, 256, 1, True),
    (32, 32, 384, 384, 1, False), (1024, 24, 128, 128, 1, False), (64, 48, 256, 256, 1, False),
)  # fmt: skip
"""Of networks without gates."""
_WIDE_PLAIN: tuple[Size, ...] = (
    (160, 24, 2048, 2048, 1, True), (48, 24, 2048, 2048, 1, True), (24, 32, 1024, 1024, 1, True),
    (96, 24, 1024, 1024, 1, True), (32, 32, 800, 800, 1, True), (64, 24, 1536, 1536, 1, False),
    (16, 32, 1024, 1024, 2, False), (256, 16, 1024, 1024, 1, False), (512, 16, 512, 512, 1, True),
    (8, 32, 2048, 2048, 1, False), (128, 24, 640, 640, 2, True), (384, 12, 2048, 2048, 1, True),
)  # fmt: skip
"""The same, as wide as those of speech models."""
_KEPT: tuple[Size, ...] = tuple(
    (batch, 48, width, width, 1, False) for batch in (8, 32, 128) for width in (256, 512, 1024)
)
"""Whose weights torch asks cuDNN to keep, of LSTMs of float16."""


def recurrent(kind: Kind, size: Size, dtype: torch.dtype) -> None:
    batch, steps, inputs, width, layers, both = size
    rnn = kind(inputs, width, layers, batch_first=True, bidirectional=both, device="cuda", dtype=dtype)
    out, _ = rnn(randn(batch, steps, inputs, dtype=dtype).requires_grad_())
    out.backward(torch.randn_like(out))


def recurrents() -> list[Workload]:
    kinds: tuple[Kind, ...] = (nn.LSTM, nn.GRU)
    found: list[tuple[Kind, Size, torch.dtype]] = [
        *itertools.product(kinds, _STEPWISE, (FP32, BF16)),
        *itertools.product(kinds, _NARROW, (FP32, FP16)),
        *itertools.product(kinds, _NARROW[::3], (BF16,)),
        *itertools.product(kinds[:1], _KEPT, (FP16,)),
        *itertools.product((nn.RNN,), _PLAIN, (FP32, FP16, BF16)),
    ]
    return [partial(recurrent, *each) for each in found]


def plain() -> list[Workload]:
    """Without gates: wide ones, and with relu, which speech models have."""
    relu: Kind = partial(nn.RNN, nonlinearity="relu")
    types = (FP32, FP16, BF16)
    found = [
        *itertools.product((relu,), (*_PLAIN, *_WIDE_PLAIN), types),
        *itertools.product((nn.RNN,), _WIDE_PLAIN, types),
    ]
    return [partial(recurrent, *each) for each in found]
