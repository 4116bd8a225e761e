"""Blocks of one function, and how to run and watch them: what the tests of the executor's mechanics share."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from trainfit import torch_compat
from trainfit.apply.twins import tensors_in
from trainfit.records import BlockDecision

NOTHING = BlockDecision(())


class Function(nn.Module):
    """A block that is one function, with a linear in front so that its input has a history."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def around(function: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), Function(function))


def gradients(model: nn.Module, x: torch.Tensor, **kwargs: Any) -> list[torch.Tensor]:
    model.zero_grad()
    model(x).sum().backward(**kwargs)
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def watch(tensor: torch.Tensor) -> weakref.ref[Any]:
    return weakref.ref(tensor.untyped_storage())


X = torch.linspace(-1, 1, 12).view(3, 4)


class Counter(torch_compat.DispatchMode):
    """Counts the bytes of the storages that come and go, as they do."""

    def __init__(self, there_before: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._known: dict[int, Any] = {tensor.untyped_storage()._cdata: None for tensor in there_before}
        self._live_bytes = 0
        self.peak_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tensors_in(out):
            storage = tensor.untyped_storage()
            if storage._cdata not in self._known:
                self._live_bytes += storage.nbytes()
                gone = functools.partial(self._gone, storage._cdata, storage.nbytes())
                self._known[storage._cdata] = weakref.ref(storage, gone)
        self.peak_bytes = max(self.peak_bytes, self._live_bytes)
        return out

    def _gone(self, address: int, nbytes: int, _reference: Any) -> None:
        del self._known[address]
        self._live_bytes -= nbytes
