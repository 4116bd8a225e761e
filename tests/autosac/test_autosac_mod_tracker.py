"""`ModTracker`: what torch's own tests of its tracker assert, and what theirs gets wrong (PEERS D21)."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from trainfit.autosac.mod_tracker import ModTracker


class Leaf(nn.Module):
    """Takes and returns a dict, and looks at the tracker in forward and in a gradient hook."""

    def __init__(self, tracker: ModTracker, forward: list[Any], backward: list[Any]) -> None:
        super().__init__()
        self.look = lambda seen: seen.append((tracker.parents, tracker.is_bw))
        self.seen = forward, backward

    def forward(self, x: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        y = x["a"].relu_()
        self.look(self.seen[0])
        y.register_hook(lambda grad: self.look(self.seen[1]))
        return {"a": torch.mm(y, y)}


class Tree(nn.Module):
    def __init__(self, *args: Any) -> None:
        super().__init__()
        self.a = Leaf(*args)
        self.b = nn.ModuleDict({"nest": Leaf(*args)})
        self.c = nn.ModuleList([Leaf(*args)])

    def forward(self, x: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return self.b["nest"](self.a(self.c[0](x)))


def test_parents_are_the_modules_that_run_in_forward_and_in_backward_of_every_step() -> None:
    tracker, forward, backward = ModTracker(), [], []
    model = Tree(tracker, forward, backward)
    with tracker:
        for _ in range(2):
            model({"a": torch.randn(10, 10, requires_grad=True).clone()})["a"].sum().backward()
    ran = [{"Global", "Tree", f"Tree.{name}"} for name in ("c.0", "a", "b.nest")]
    assert forward == [(parents, False) for parents in ran * 2]
    assert backward == [(parents, True) for parents in ran[::-1] * 2]


def test_after_backward_nothing_runs() -> None:
    model = nn.Linear(2, 2)
    with ModTracker() as tracker:
        model(torch.rand(2, requires_grad=True)).sum().backward()
        assert not tracker.is_bw
        assert tracker.parents == {"Global"}


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.foo = nn.Linear(10, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.foo(x).relu_()


def hooked(log: list[Any]) -> ModTracker:
    tracker = ModTracker()

    def note(name: str, module: nn.Module | None) -> None:
        fqn = tracker.get_known_fqn(module) if module is not None else None
        log.append((name, fqn, fqn in tracker.parents, tracker.is_bw))

    tracker.register_user_hooks(
        lambda module, inputs: note("pre_fw", module),
        lambda module, inputs, output: note("post_fw", module),
        lambda module, grads: note("pre_bw", module),
        lambda module, grads: note("post_bw", module),
    )
    return tracker


def test_user_hooks_come_in_the_order_of_torchs_tracker() -> None:
    log: list[Any] = []
    tracker, model = hooked(log), Pair()
    with tracker:
        model(torch.rand(10, 10, requires_grad=True)).sum().backward()
    names = [("pre_fw", "Pair"), ("pre_fw", "Pair.foo"), ("post_fw", "Pair.foo"), ("post_fw", "Pair")]
    back = [("pre_bw", "Pair"), ("pre_bw", "Pair.foo"), ("post_bw", "Pair"), ("post_bw", "Pair.foo")]
    assert log == [(*name, True, False) for name in names] + [(*name, True, True) for name in back]
    with pytest.raises(AssertionError, match="pre_fw_hook already"):
        tracker.register_user_hooks(lambda module, inputs: None)
    log.clear()
    with tracker:
        loss = model(torch.rand(10, 10, requires_grad=True)).sum()
        del model
        loss.backward()
    assert log[4:] == [(name, None, False, True) for name in ("pre_bw", "pre_bw", "post_bw", "post_bw")]


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.linears[0](x))
        return torch.relu(checkpoint(self.linears[1], x, use_reentrant=False))


def test_a_recomputed_forward_is_seen_inside_backward() -> None:
    log: list[Any] = []
    tracker, model = hooked(log), Checkpointed()
    with tracker:
        model(torch.randn(2, 8)).sum().backward()
    root, first, second = "Checkpointed", "Checkpointed.linears.0", "Checkpointed.linears.1"
    assert [(name, fqn) for name, fqn, _, _ in log] == [
        *(("pre_fw", root), ("pre_fw", first), ("post_fw", first), ("pre_fw", second), ("post_fw", second)),
        *(("post_fw", root), ("pre_bw", root), ("pre_bw", second), ("pre_fw", second), ("post_fw", second)),
        *(("post_bw", second), ("pre_bw", first), ("post_bw", first), ("post_bw", root)),
    ]
    assert all(is_parent for _, _, is_parent, _ in log)
    assert [is_bw for *_, is_bw in log] == [False] * 6 + [True] * 8


def test_d21_two_roots_of_one_class_have_two_names_and_the_warnings_module_is_left_alone() -> None:
    """Theirs names both "Linear", and replaces warnings.formatwarning for good when a module runs inside itself."""
    first, second, before = nn.Linear(2, 2), nn.Linear(2, 2), warnings.formatwarning
    with ModTracker() as tracker:
        second(first(torch.rand(2, 2))).sum().backward()
    assert [tracker.get_known_fqn(module) for module in (first, second)] == ["Linear", "Linear#2"]
    assert warnings.formatwarning is before


def test_d21_a_module_that_calls_itself_is_no_reason_to_warn() -> None:
    class Twice(nn.Module):
        def forward(self, x: torch.Tensor, deep: bool = True) -> torch.Tensor:
            return self(x * 2, False) if deep else x + 1

    with warnings.catch_warnings(), ModTracker() as tracker:
        warnings.simplefilter("error")
        Twice()(torch.rand(2, requires_grad=True)).sum().backward()
    assert [call.fqn for call in tracker.calls] == ["Twice", "Twice"]
    assert tracker.parents == {"Global"}


def test_backward_is_attributed_where_no_input_needs_a_gradient() -> None:
    """Theirs tells modules apart by hooks on tensors that need gradients; ours by the autograd nodes."""
    seen: list[set[str]] = []

    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            product = x * self.weight
            product.register_hook(lambda grad: seen.append(tracker.parents))
            return product

    with ModTracker() as tracker:
        Frozen()(torch.ones(3)).sum().backward()
    assert seen == [{"Global", "Frozen"}]
