"""What a forward depends on besides its arguments is noticed when it changes, and nothing of it is kept alive."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from apply_blocks import NOTHING, X, gradients
from apply_zoo import assert_same, plan
from trainfit.apply.reading import Changed, write_reading


class Block(nn.Module):
    """With a setting in an object, an optional part and an attribute that forward sets."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4)
        self.config = SimpleNamespace(scale=1.0)
        self.extra: nn.Module | None = None
        self.latest: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x) * self.config.scale
        if self.extra is not None:
            x = self.extra(x)
        self.latest = x.detach() + 1
        return self.second(torch.tanh(x)).exp()


class Twice(nn.Module):
    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x if self.inner is None else self.inner(x)) * 2


def twice(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
    return output * 2


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a bias that comes": lambda block: setattr(block.first, "bias", nn.Parameter(torch.ones(4))),
    "a bias that goes": lambda block: setattr(block.second, "bias", None),
    "a module around another": lambda block: setattr(block, "first", Twice(block.first)),
    "a module that comes": lambda block: setattr(block, "extra", Twice()),
    "a setting in an object": lambda block: setattr(block.config, "scale", 2.0),
    "another object": lambda block: setattr(block, "config", SimpleNamespace(scale=2.0)),
    "a hook that changes an output": lambda block: block.first.register_forward_hook(twice),
    "a parametrization": lambda block: nn.utils.parametrizations.weight_norm(block.first),
    "a frozen parameter": lambda block: block.first.weight.requires_grad_(False),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_changed_after_a_step_is_replayed_as_it_is_now(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Block())
    plain = copy.deepcopy(model)
    handle = plan(model, {"1": NOTHING})
    assert_same(tuple(gradients(plain, X)), tuple(gradients(model, X)))
    for changed in (plain, model):
        CHANGES[name](changed[1])
    assert_same(tuple(gradients(plain, X)), tuple(gradients(model, X)))
    (stats,) = handle.stats()
    assert (stats.forwards, stats.replays, stats.reruns) == (2, 2, 0)


def test_nothing_that_forward_leaves_in_an_attribute_is_held() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Block())
    plan(model, {"1": NOTHING})
    for _ in range(3):
        gradients(model, X)
        latest = weakref.ref(model[1].latest)
        model[1].latest = None
        gc.collect()
        assert latest() is None


def test_an_unchanged_module_reads_the_same_and_is_not_kept_alive() -> None:
    block = Block()
    read = write_reading(block)
    assert read() == read()
    gone = weakref.ref(block)
    del block
    assert gone() is None
    with pytest.raises(Changed):
        read()
