"""`Rerun`: plain checkpointing of one call of a block, for blocks that do not do what was recorded of them.

In: the call's arguments and the states (generators, autocast) in which it began. `run` runs the block's forward again
and collects everything that autograd saves there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

import torch

from trainfit.apply.generators import Position, position
from trainfit.apply.twins import map_tensors

CPU = torch.device("cpu")
KINDS = (("cpu",), ("cpu", "cuda"))
"""The device types whose autocast a block's code can see: on the CPU, on a GPU."""


class Start(NamedTuple):
    """The states in which a call of a block began."""

    positions: tuple[Position, ...]  # of every generator that the block's code can draw from
    autocast: tuple[tuple[str, torch.dtype, bool], ...]  # device type, dtype, enabled
    autocast_cache: bool

    @staticmethod
    def now(device: torch.device) -> Start:
        on_gpu = device.type == "cuda"
        cpu = position(CPU)
        autocast = [(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)) for kind in KINDS[on_gpu]]
        return Start((cpu, position(device)) if on_gpu else (cpu,), tuple(autocast), torch.is_autocast_cache_enabled())

    def put_back_generators(self) -> None:
        """Put the generators back to where they stood."""
        for each in self.positions:
            each.go_back()


class _AllSaved(Exception):
    """Ends a forward that is run again when it has saved what it saved before."""


class Rerun:
    """Rebuilds what a call of a block saved by running the block again."""

    __slots__ = ("_args", "_device", "_forward", "_kwargs", "_start", "name", "num_saved")

    def __init__(
        self,
        name: str,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        start: Start,
        device: torch.device,
    ) -> None:
        self.name = name
        self._forward = forward
        self._args, self._kwargs = map_tensors(_cut, (args, kwargs))
        self._start = start
        self._device = device
        self.num_saved: int | None = None
        """How many tensors forward saved, once it is known: what comes after the last is not run again."""

    def run(self) -> list[torch.Tensor]:
        """What autograd saves when the block runs again, in order."""
        collected: list[torch.Tensor] = []

        def collect(tensor: torch.Tensor) -> None:
            collected.append(tensor.detach())
            if len(collected) == self.num_saved:
                raise _AllSaved

        with ExitStack() as stack:
            stack.callback(Start.now(self._device).put_back_generators)
            self._start.put_back_generators()
            stack.enter_context(torch.enable_grad())
            for kind, dtype, enabled in self._start.autocast:
                stack.enter_context(torch.autocast(kind, dtype, enabled, self._start.autocast_cache))
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(collect, _refuse))
            with suppress(_AllSaved):
                self._forward(*map_tensors(_cut, self._args), **map_tensors(_cut, self._kwargs))
        return collected


def _cut(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _refuse(packed: Any) -> torch.Tensor:
    raise RuntimeError("the graph of a recomputed forward is not differentiated")
