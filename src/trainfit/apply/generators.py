"""Where the default generators stand, taken and put back without synchronising.

`position(device)` is that of the generator from which ops on the device draw. A GPU's is a seed and an offset, two
numbers; the CPU's is its whole state. On a ghost GPU nothing draws, and there is nothing to take.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch


class OnGpu(NamedTuple):
    """A GPU's generator; `go_back` makes it draw again what it drew from here on."""

    gpu: int
    seed: int
    offset: int

    def go_back(self) -> None:
        generator = torch.cuda.default_generators[self.gpu]
        if generator.initial_seed() != self.seed:
            generator.manual_seed(self.seed)
        generator.set_offset(self.offset)


class OnCpu(NamedTuple):
    """The CPU's generator, likewise."""

    state: torch.Tensor

    def go_back(self) -> None:
        torch.set_rng_state(self.state)


class Nowhere(NamedTuple):
    """Of a GPU that is not there."""

    def go_back(self) -> None:
        pass


Position = OnGpu | OnCpu | Nowhere


def position(device: torch.device) -> Position:
    """Where the generator of the device stands now."""
    if device.type != "cuda":
        return OnCpu(torch.get_rng_state())
    generators: Sequence[torch.Generator] = torch.cuda.default_generators
    if not generators:
        return Nowhere()
    gpu = torch.cuda.current_device() if device.index is None else device.index
    generator = generators[gpu]
    return OnGpu(gpu, generator.initial_seed(), generator.get_offset())
