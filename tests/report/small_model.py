"""Four layers, one of whose modules has a name that is markup."""

from __future__ import annotations

import torch
from torch import nn

HOSTILE = "<script>owned=1</script>"
"""A module's name that must stay a name."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)
        self.add_module(HOSTILE, nn.GELU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self._modules[HOSTILE](self.up(x))  # type: ignore[misc]
        return x + self.down(hidden)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.sum()
