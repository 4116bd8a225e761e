"""Steps for tests of sweeps, in a file of their own: other processes import it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch
from torch import nn

import trainfit

SEQ = 64
DIES_IN_TRACE, DIES_IN_SOLVE = -1, -2


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(128, 32)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        for layer in self.layers:
            x = x + layer(x)
        return x.sum()


def step_of_batch(batch: int) -> trainfit.Step:
    return trainfit.Step(model=Blocks, batch=(torch.empty(batch, SEQ, dtype=torch.int64, device="meta"),))


def make_step(folder: str, batch: int) -> trainfit.Step:
    """A step; some batches go wrong. `folder` is where calls are written down, since other processes make them."""
    assert torch.get_num_threads() == 1
    with (Path(folder) / f"calls of {batch}").open("ab", buffering=0) as file:
        file.write(b".")
        num_calls = file.tell()
    if batch == 0:
        raise ValueError("a batch of 0")
    if batch == DIES_IN_TRACE or (batch == DIES_IN_SOLVE and num_calls == 2):
        os.kill(os.getpid(), signal.SIGKILL)
    return step_of_batch(abs(batch) * 256)
