"""`Rerun`: plain checkpointing of one call of a block, for blocks that do not do what was recorded of them.

In: the call's arguments and the states (generators, autocast) in which it began. The first tensor that is asked for
runs the block's forward again and collects everything that autograd saves there, until it is released.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import torch

from trainfit.apply.twins import map_tensors
from trainfit.errors import PlanMismatch


@dataclass(frozen=True, slots=True)
class GeneratorStates:
    """States of the default generators that a block can draw from; taking and setting them does not synchronise."""

    device: torch.device | None  # None or the CPU: the CPU's generator only
    cpu: torch.Tensor
    gpu: torch.Tensor | None

    @staticmethod
    def now(device: torch.device | None) -> GeneratorStates:
        on_gpu = device is not None and device.type == "cuda"
        return GeneratorStates(
            device, torch.get_rng_state(), torch.cuda.get_rng_state(device) if on_gpu and device is not None else None
        )

    def restore(self) -> None:
        torch.set_rng_state(self.cpu)
        if self.gpu is not None and self.device is not None:
            torch.cuda.set_rng_state(self.gpu, self.device)


@dataclass(frozen=True, slots=True)
class Start:
    """The states in which a call of a block began."""

    generators: GeneratorStates
    autocast: tuple[tuple[str, torch.dtype, bool], ...]  # device type, dtype, enabled
    autocast_cache: bool

    @staticmethod
    def now(device: torch.device) -> Start:
        kinds = ("cpu", "cuda") if device.type == "cuda" else ("cpu",)
        autocast = tuple((kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)) for kind in kinds)
        return Start(GeneratorStates.now(device), autocast, torch.is_autocast_cache_enabled())


class _AllSaved(Exception):
    """Ends a forward that is run again when it has saved what it saved before."""


class Rerun:
    """Rebuilds what a call of a block saved by running the block again."""

    __slots__ = ("_args", "_collected", "_forward", "_kwargs", "_name", "_start", "num_saved")

    def __init__(
        self, name: str, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], start: Start
    ) -> None:
        self._name = name
        self._forward = forward
        self._args, self._kwargs = map_tensors(_cut, (args, kwargs))
        self._start = start
        self._collected: dict[int, torch.Tensor] = {}
        self.num_saved: int | None = None
        """How many tensors forward saved, once it is known: what comes after the last is not run again."""

    def get(self, save: int) -> torch.Tensor:
        """The tensor that autograd saved as number `save`."""
        if save not in self._collected:
            self._run()
        if save not in self._collected:
            raise PlanMismatch(
                f"block {self._name} saved fewer tensors when it was run again: number {save} is missing",
                hint="its forward must do the same when it is called again with the same arguments",
            )
        return self._collected[save]

    def has(self, save: int) -> bool:
        return save in self._collected

    def release(self, save: int) -> None:
        self._collected.pop(save, None)

    def let_go(self) -> None:
        self._collected.clear()

    def _run(self) -> None:
        collected: list[torch.Tensor] = []

        def collect(tensor: torch.Tensor) -> None:
            collected.append(tensor.detach())
            if len(collected) == self.num_saved:
                raise _AllSaved

        states = GeneratorStates.now(self._start.generators.device)
        with ExitStack() as stack:
            stack.callback(states.restore)
            self._start.generators.restore()
            stack.enter_context(torch.enable_grad())
            for kind, dtype, enabled in self._start.autocast:
                stack.enter_context(torch.autocast(kind, dtype, enabled, self._start.autocast_cache))
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(collect, _refuse))
            with suppress(_AllSaved):
                self._forward(*map_tensors(_cut, self._args), **map_tensors(_cut, self._kwargs))
        self._collected = dict(enumerate(collected))


def _cut(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _refuse(packed: Any) -> torch.Tensor:
    raise RuntimeError("the graph of a recomputed forward is not differentiated")
