"""Where the default generators stand, taken and put back without synchronising.

`position(device)` is that of the generator from which ops on the device draw. A GPU's is a seed and an offset, two
numbers; the CPU's is its whole state. On a ghost GPU nothing draws, and there is nothing to take. While a CUDA graph is
captured a GPU's generator tells nothing, which matters only to what would go back to it. `host_positions` are those of
Python's and NumPy's generators, from which a block's own code may draw.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from trainfit.errors import PlanMismatch


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


class InGraph(NamedTuple):
    """Of a GPU on which a CUDA graph is being captured: the graph has random numbers of its own at each launch."""

    def go_back(self) -> None:
        raise PlanMismatch(
            "a planned block cannot draw its random numbers again, or be run again, while a CUDA graph is captured",
            hint="train without CUDA graphs, or with a plan that keeps what random ops make and runs no block again",
        )


class InPython(NamedTuple):
    """Python's generator, likewise."""

    state: Any

    def go_back(self) -> None:
        random.setstate(self.state)


class InNumpy(NamedTuple):
    """NumPy's global generator, likewise."""

    kind: str
    keys: bytes
    rest: tuple[Any, ...]

    def go_back(self) -> None:
        numpy = sys.modules["numpy"]
        numpy.random.set_state((self.kind, numpy.frombuffer(self.keys, dtype="uint32"), *self.rest))


Position = OnGpu | OnCpu | Nowhere | InGraph | InPython | InNumpy


def position(device: torch.device) -> Position:
    """Where the generator of the device stands now."""
    if device.type != "cuda":
        return OnCpu(torch.get_rng_state())
    generators: Sequence[torch.Generator] = torch.cuda.default_generators
    if not generators:
        return Nowhere()
    if torch.cuda.is_current_stream_capturing():
        return InGraph()
    gpu = torch.cuda.current_device() if device.index is None else device.index
    generator = generators[gpu]
    return OnGpu(gpu, generator.initial_seed(), generator.get_offset())


def host_positions() -> tuple[Position, ...]:
    """Where the generators of Python and, if the program uses it, NumPy stand now; equal if nobody has drawn since."""
    found: list[Position] = [InPython(random.getstate())]
    if "numpy" in sys.modules:
        kind, keys, *rest = sys.modules["numpy"].random.get_state()
        found.append(InNumpy(kind, keys.tobytes(), tuple(rest)))
    return tuple(found)
