"""Workloads of recurrent layers whose sizes a seed draws: from one sequence to thousands, short and long, narrow and
wide, of several layers, in both directions.

Each is a callable that runs torch code on the GPU; `OpTimer` times the ops inside.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from trainfit.calibrate.drawn import Draw, Kinds, draws
from trainfit.calibrate.recurrents import Kind, Size
from trainfit.calibrate.workloads import BF16, FP16, FP32, Workload, aside, gradients, randn

SEED = 25
_KINDS: tuple[Kind, ...] = (nn.LSTM, nn.LSTM, nn.GRU, nn.GRU, nn.RNN, partial(nn.RNN, nonlinearity="relu"))
_MOST = 2**25
"""Elements of what all steps return."""
_MOST_WALKS = 192
"""Steps of all layers of those whose steps are launched one by one."""


def recurrent(kind: Kind, size: Size, dtype: torch.dtype) -> None:
    batch, steps, inputs, width, depth, both = size
    with aside():
        rnn = kind(inputs, width, depth, batch_first=True, bidirectional=both, device="cuda", dtype=dtype)
    x = randn(batch, steps, inputs, dtype=dtype).requires_grad_()
    out, _ = rnn(x)
    gradients(out, x, *rnn.parameters())


def layers(draw: Draw) -> Workload:
    """Narrow ones, whose kernels go through all steps at once, as often as wide ones."""
    is_narrow = draw.random() < 0.55
    width = draw.size(16, 192) if is_narrow else draw.size(160, 1536)
    width = max(round(width / 8), 1) * 8 if draw.random() < 0.85 else width
    inputs = width if draw.random() < 0.5 else draw.size(8, 1024)
    batch = draw.size(1, 2**13) if draw.random() < 0.8 else 8 * draw.size(1, 64)
    depth, both = draw.choice((1, 1, 1, 2, 3)), draw.random() < 0.35
    chains = depth * (1 + both)
    steps = draw.size(8, 1024 if is_narrow else 64)
    if not is_narrow:
        steps = max(min(steps, _MOST_WALKS // chains), 4)
    steps = max(min(steps, _MOST // (batch * max(width * (1 + both), inputs)), 2**19 // (batch * chains)), 4)
    size = batch, steps, inputs, width, depth, both
    return partial(recurrent, draw.choice(_KINDS), size, draw.choice((FP32, FP16, FP16, BF16)))


def drawn_recurrents(seed: int = SEED) -> list[Workload]:
    kinds: Kinds = ((layers, 230),)
    return draws(kinds, seed)
