"""`Rerun`: plain checkpointing of one call of a block, for blocks that do not do what was recorded of them.

In: the call's arguments and the states (generators, autocast) in which it began. `run` runs the block's forward again
and collects everything that autograd saves there. Arguments that were changed since raise, as they do in a replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

import torch

from trainfit.apply.generators import Position, host_positions, position
from trainfit.apply.twins import Copies, tensors_in

CPU = torch.device("cpu")
KINDS = (("cpu",), ("cpu", "cuda"))
"""The device types whose autocast a block's code can see: on the CPU, on a GPU."""


class Start(NamedTuple):
    """The states in which a call of a block began."""

    positions: tuple[Position, ...]  # of every generator that the block's code can draw from
    autocast: tuple[tuple[str, torch.dtype, bool], ...]  # device type, dtype, enabled
    autocast_cache: bool

    @staticmethod
    def now(device: torch.device, with_host: bool = False) -> Start:
        """`with_host`: also of the generators that are not torch's."""
        on_gpu = device.type == "cuda"
        cpu = position(CPU)
        autocast = [(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)) for kind in KINDS[on_gpu]]
        positions = (*(host_positions() if with_host else ()), cpu, *((position(device),) if on_gpu else ()))
        return Start(positions, tuple(autocast), torch.is_autocast_cache_enabled())

    def put_back_generators(self) -> None:
        """Put the generators back to where they stood."""
        for each in self.positions:
            each.go_back()


class _AllSaved(Exception):
    """Ends a forward that is run again when it has saved what it saved before."""


class Rerun:
    """Rebuilds what a call of a block saved by running the block again."""

    __slots__ = ("_args", "_device", "_forward", "_kwargs", "_start", "_versions", "name", "num_saved")

    def __init__(
        self,
        name: str,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        versions: Sequence[int],
        start: Start,
        device: torch.device,
    ) -> None:
        self.name = name
        self._forward = forward
        self._args, self._kwargs = Copies(_cut).of((args, kwargs))
        self._versions = versions  # of the tensors among the arguments, when the block's forward began
        self._start = start
        self._device = device
        self.num_saved: int | None = None
        """How many tensors forward saved, once it is known: what comes after the last is not run again."""

    def inputs(self) -> Iterator[tuple[torch.Tensor, int]]:
        """The tensors that the block was called with, and their versions then."""
        tensors = tensors_in((self._args, self._kwargs))
        return ((t, version) for t, version in zip(tensors, self._versions, strict=True) if not t.is_inference())

    def run(self) -> list[torch.Tensor]:
        """What autograd saves when the block runs again, in order."""
        collected: list[torch.Tensor] = []

        def collect(tensor: torch.Tensor) -> None:
            collected.append(tensor.detach())
            if len(collected) == self.num_saved:
                raise _AllSaved

        with ExitStack() as stack:
            stack.callback(Start.now(self._device, with_host=True).put_back_generators)
            self._start.put_back_generators()
            stack.enter_context(torch.enable_grad())
            for kind, dtype, enabled in self._start.autocast:
                stack.enter_context(torch.autocast(kind, dtype, enabled, self._start.autocast_cache))
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(collect, _refuse))
            with suppress(_AllSaved):
                args, kwargs = Copies(_cut).of((self._args, self._kwargs))
                self._forward(*args, **kwargs)
        return collected


def _cut(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _refuse(packed: Any) -> torch.Tensor:
    raise RuntimeError("a planned block that runs backward inside its forward cannot be run again as a whole")
