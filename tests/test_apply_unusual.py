"""Blocks and training loops that few have: under a plan gradients, buffers and losses are the same bit for bit."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from apply_zoo import Stack, TransformerBlock, assert_same, mlp_block, plan
from trainfit.apply import apply_decisions
from trainfit.errors import PlanMismatch
from trainfit.records import BlockDecision

X = torch.linspace(-1, 1, 120).view(3, 5, 8)
BLOCKS = {"layers.0": BlockDecision(()), "layers.1": BlockDecision(())}
Results = tuple[torch.Tensor, ...]


def step(model: nn.Module, x: torch.Tensor = X) -> Results:
    torch.manual_seed(3)
    model.zero_grad()
    loss = model(x).square().sum()
    loss.backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return (loss.detach(), *gradients, *(buffer.clone() for buffer in model.buffers()))


def compare(make: Callable[[], nn.Module], *drives: Callable[[nn.Module], Results]) -> list[tuple[int, int]]:
    """Drive a model with and without a plan that keeps nothing; (replays, reruns) per block."""
    torch.manual_seed(0)
    plain = make()
    model = copy.deepcopy(plain)
    handle = apply_decisions(model, BLOCKS, strict=False)
    for drive in drives:
        assert_same(drive(plain), drive(model))
    return [(stats.replays, stats.reruns) for stats in handle.stats()]


class Block(nn.Module):
    """A linear layer, and what the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("average", torch.zeros(8))


# ---- what a block does ---------------------------------------------------------------------------------------------


class Averages(Block):
    """Keeps a running average, in place, and reads it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x).tanh()
        with torch.no_grad():
            self.average.mul_(0.9).add_(h.mean((0, 1)), alpha=0.1)
        return (h - self.average).exp()


class Counts(Block):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return (self.linear(x) * self.calls).tanh()


class LeavesLoss(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x).exp()
        self.auxiliary = h.mean()
        return h.sin()


class WithLosses(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        return out * (1 + sum(layer.auxiliary for layer in self.layers))  # type: ignore[misc, union-attr]


class GivesObject(Block):
    def forward(self, hidden: Any = None, flag: str = "", extra: Any = None) -> Any:
        return {"out": F.gelu(self.linear(hidden)).exp(), "none": None, "flag": flag}


class OfObjects(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(hidden=x, flag="a", extra={"values": [1, None]})["out"]
        return x


def with_spectral_norm() -> nn.Module:
    model = Stack(mlp_block)
    for layer in model.layers:
        nn.utils.parametrizations.spectral_norm(layer[1])  # type: ignore[index]
    return model


@pytest.mark.parametrize(
    "make",
    [
        with_spectral_norm,
        lambda: Stack(Averages),
        lambda: Stack(Counts),
        lambda: WithLosses(LeavesLoss),
        lambda: OfObjects(GivesObject),
    ],
    ids=["power iteration", "running average", "counter", "auxiliary loss", "objects"],
)
def test_what_a_block_leaves_behind_is_of_the_one_forward_that_was_run(make: Callable[[], nn.Module]) -> None:
    assert compare(make, step, step, step) == [(3, 0), (3, 0)]


class Energy(Block):
    """Differentiates what it has just computed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.linear(inner).tanh().sum(), inner, create_graph=True)
        return x - slope


def test_a_block_that_runs_backward_itself_keeps_all_that_it_saves_and_says_so() -> None:
    with pytest.warns(
        UserWarning, match=r"'layers\.0' .* it runs backward itself.*all that it saves is kept"
    ) as caught:
        assert compare(lambda: Stack(Energy), step, step) == [(0, 0), (0, 0)]
    assert len(caught) == 1
    model = Stack(Energy)
    plan(model, BLOCKS, strict=True)
    with pytest.raises(PlanMismatch, match="runs backward itself"):
        step(model)


def seeds(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(11)
    return F.dropout(x, 0.5)


def seeds_and_puts_back(x: torch.Tensor) -> torch.Tensor:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(11)
        return F.dropout(x, 0.5)


@pytest.mark.parametrize("random", [seeds, seeds_and_puts_back])
def test_a_block_that_seeds_a_generator_is_checkpointed_with_the_same_seed(
    random: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    class Seeded(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.dropout(random(self.linear(x).exp()), 0.5)

    with pytest.warns(UserWarning, match="draws random numbers on the host or seeds a generator"):
        assert compare(lambda: Stack(Seeded), step, step) == [(0, 2), (0, 2)]


# ---- what is done to the model after the plan ----------------------------------------------------------------------


class Lora(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down, self.up = nn.Linear(base.in_features, 2, bias=False), nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


def with_lora(model: nn.Module) -> Results:
    torch.manual_seed(5)
    for layer in model.layers:  # type: ignore[union-attr]
        layer.up = Lora(layer.up)
    return step(model)


def with_hooks(model: nn.Module) -> Results:
    model.layers[0].up.register_forward_hook(lambda module, args, out: out * 2)  # type: ignore[index, union-attr]
    model.layers[0].register_forward_pre_hook(lambda module, args: (args[0] * 1.5,))  # type: ignore[index]
    model.layers[1].register_full_backward_pre_hook(lambda module, grads: (grads[0] * 3,))  # type: ignore[index]
    return step(model)


def with_other_weights(model: nn.Module) -> Results:
    model.load_state_dict({name: value * 1.3 for name, value in model.state_dict().items()}, assign=True)
    return step(model.requires_grad_())


def in_bfloat16(model: nn.Module) -> Results:
    return step(model.bfloat16(), X.bfloat16())


@pytest.mark.parametrize("change", [with_lora, with_hooks, with_other_weights, in_bfloat16])
def test_a_model_that_is_changed_after_the_plan_is_followed_as_it_is_now(
    change: Callable[[nn.Module], Results],
) -> None:
    assert compare(lambda: Stack(TransformerBlock), step, change) == [(2, 0), (2, 0)]


# ---- how it is run -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "context",
    [
        torch.autograd.graph.save_on_cpu,
        torch.autograd.graph.allow_mutation_on_saved_tensors,
        lambda: torch.autograd.set_detect_anomaly(True),
        lambda: torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda packed: packed),
    ],
    ids=["offloaded", "mutable", "anomalies", "hooks of others"],
)
def test_other_contexts_of_autograd_change_no_gradient(
    context: Callable[[], contextlib.AbstractContextManager[Any]],
) -> None:
    def drive(model: nn.Module) -> Results:
        with context():
            return step(model)

    assert compare(lambda: Stack(TransformerBlock), drive, drive) == [(2, 0), (2, 0)]


def called_with_other_weights(model: nn.Module) -> Results:
    weights = {name: (p.detach() * 1.1).requires_grad_() for name, p in model.named_parameters()}
    torch.manual_seed(3)
    torch.func.functional_call(model, weights, (X,)).square().sum().backward()
    return tuple(weight.grad for weight in weights.values() if weight.grad is not None)


def test_weights_that_are_put_in_for_one_call_are_replayed_with() -> None:
    drives = (step, called_with_other_weights, step)
    assert compare(lambda: Stack(TransformerBlock), *drives) == [(3, 0), (3, 0)]


def transformed(model: nn.Module) -> Results:
    weights = {name: p.detach() for name, p in model.named_parameters()}
    loss = lambda weights: torch.func.functional_call(model, weights, (X,)).square().sum()  # noqa: E731
    return (*torch.func.grad(loss)(weights).values(), torch.func.vmap(model)(X.unsqueeze(1)).detach())


def test_under_the_transforms_of_torch_func_a_plan_does_nothing() -> None:
    assert compare(lambda: Stack(mlp_block), transformed, step) == [(1, 0), (1, 0)]
