"""What a planned block does between forward and backward: what lives, what dies, what is rebuilt, what raises."""

from __future__ import annotations

import contextlib
import copy
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import apply_zoo
from apply_blocks import NOTHING, Counter, Function, X, around, gradients, watch
from apply_zoo import TransformerBlock, assert_same, plan
from trainfit.apply import record_block, runtime
from trainfit.apply.geometry import geometry_of
from trainfit.apply.packing import Save, finish, write_packing
from trainfit.records import BlockDecision


class TestWhatLives:
    def storages(self, model: nn.Module) -> dict[str, weakref.ref[Any]]:
        """Watches on what the block makes, by the function that made it."""
        seen: dict[str, weakref.ref[Any]] = {}

        def body(x: torch.Tensor) -> torch.Tensor:
            seen["exp"] = watch(a := x.exp())
            seen["sin"] = watch(b := a.sin())
            return b.cos()

        model[1].function = body  # type: ignore[index, assignment]
        return seen

    def kept_after_forward(self, kept: tuple[int, ...] | None) -> dict[str, bool]:
        model = around(torch.exp)
        seen = self.storages(model)
        if kept is not None:
            plan(model, {"1": BlockDecision(kept)})
        loss = model(X).sum()
        alive = {name: storage() is not None for name, storage in seen.items()}
        loss.backward()
        del loss
        assert all(storage() is None for storage in seen.values())
        return alive

    def test_dropped_values_are_freed_in_forward_and_kept_ones_are_not(self, no_collection: None) -> None:
        # input 0, exp 1, sin 2, cos 3; autograd saves 1 (by exp, by sin) and 2 (by cos)
        assert self.kept_after_forward(None) == {"exp": True, "sin": True}
        assert self.kept_after_forward((1, 2)) == {"exp": True, "sin": True}
        assert self.kept_after_forward((1,)) == {"exp": True, "sin": False}
        assert self.kept_after_forward((2,)) == {"exp": False, "sin": True}
        assert self.kept_after_forward(()) == {"exp": False, "sin": False}

    def test_kept_and_rebuilt_storages_are_let_go_when_their_nodes_are_done(self, no_collection: None) -> None:
        kept: list[weakref.ref[Any]] = []
        seen: list[tuple[bool, list[bool]]] = []

        class Spy(torch.autograd.Function):
            """Looks, in backward, when all that comes after it in the block is done and exp is still to come."""

            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
                return x.clone()

            @staticmethod
            def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
                seen.append((kept[-1]() is not None, [ref() is not None for ref in rebuilt]))
                return grads[0]

        def body(x: torch.Tensor) -> torch.Tensor:
            sine = Spy.apply(x.exp()).sin()
            kept.append(watch(sine))
            return sine.cos().tanh()

        model = around(body)
        program = record_block(model[1], (X.clone().requires_grad_(),), {})  # type: ignore[index]
        sine = next(op.outputs[0].storage for op in program.ops if "sin" in op.name)
        plan(model, {"1": BlockDecision((sine,))})
        with watched_rebuilds() as rebuilt:
            model(X).sum().backward()
        # The kept sine, from which tanh was rebuilt, is gone; of what was rebuilt, exp is there and tanh is not.
        assert seen == [(False, [True, False])]

    def test_a_replay_lets_go_of_what_it_no_longer_reads(self, no_collection: None) -> None:
        def chain(x: torch.Tensor) -> torch.Tensor:
            for _ in range(6):
                x = x * 2  # saves nothing
            return x.exp()

        model = around(chain)
        handle = plan(model, {"1": NOTHING})
        hidden = model[0](X)  # type: ignore[index]
        out = model[1](hidden)  # type: ignore[index]
        with Counter([hidden, out]) as counter:
            torch.autograd.grad(out, hidden, torch.ones_like(out))
        assert handle.stats()[0].replayed_ops == 7
        # The gradient, the product being read and the one being made; then the gradient, exp(x) and their product.
        assert counter.peak_bytes == 3 * X.nbytes

    def test_a_graph_that_is_dropped_without_backward_frees_everything(self, no_collection: None) -> None:
        model = around(lambda x: x.exp().sin().cos())
        seen = self.storages(model)
        plan(model, {"1": BlockDecision((1,))})
        loss = model(X).sum()
        assert seen["exp"]() is not None
        del loss
        assert seen["exp"]() is None

    @pytest.mark.parametrize("fails_in", ["forward", "backward"])
    def test_an_exception_leaks_nothing(self, fails_in: str, no_collection: None) -> None:
        class Fails(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
                if is_armed and fails_in == "forward":
                    raise ValueError("as asked")
                return x.clone()

            @staticmethod
            def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
                if is_armed:
                    raise ValueError("as asked")
                return grads[0]

        seen: list[weakref.ref[Any]] = []

        def body(x: torch.Tensor) -> torch.Tensor:
            seen.append(watch(a := x.exp()))
            return Fails.apply(a.sin().cos()).exp()

        model = around(body)
        handle = plan(model, {"1": BlockDecision((1,))})
        is_armed = False
        expected = gradients(model, X)
        is_armed = True
        with contextlib.suppress(ValueError):  # pytest.raises would hold the frames
            gradients(model, X)
        assert len(seen) == 3  # once recorded, twice run
        assert all(storage() is None for storage in seen)
        is_armed = False
        assert_same(tuple(expected), tuple(gradients(model, X)))
        assert handle.stats()[0].reruns == 0

    def test_a_deleted_model_is_freed_without_garbage_collection(self, no_collection: None) -> None:
        model = around(torch.exp)
        weight = watch(model[0].weight)  # type: ignore[index]
        inner = nn.Sequential(model)
        plan(inner, {"0": NOTHING})
        gradients(inner, X)
        del model, inner
        assert weight() is None


def test_a_dropped_tensor_goes_when_the_block_lets_go_of_it_and_not_at_the_next_save(no_collection: None) -> None:
    lives: list[bool] = []

    def body(x: torch.Tensor) -> torch.Tensor:
        saved = x.exp()
        out = saved.sin()  # saves it
        storage = watch(saved)
        del saved
        lives.append(storage() is not None)
        return out.cos()

    model = around(body)
    gradients(model, X)
    plan(model, {"1": NOTHING})
    gradients(model, X)
    assert lives == [True, False, False]  # without a plan, recorded, under the plan


@contextlib.contextmanager
def watched_rebuilds() -> Iterator[list[weakref.ref[Any]]]:
    """Watches on what replays rebuild."""
    refs: list[weakref.ref[Any]] = []
    original = runtime.Call._replay

    def replay(call: Any) -> None:
        original(call)
        refs.extend(watch(mark().tensor) for mark in call.marks.values() if mark() is not None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime.Call, "_replay", replay)
        yield refs


class TestInPlace:
    def test_a_saved_tensor_that_the_block_changes_raises_as_without_a_plan(self) -> None:
        def body(x: torch.Tensor) -> torch.Tensor:
            a = x.exp()
            b = a.sin()  # saves a
            a.mul_(2)
            return b + a

        for decision in (None, NOTHING, BlockDecision((1,))):
            model = around(body)
            if decision:
                plan(model, {"1": decision})
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                gradients(model, X)

    @pytest.mark.parametrize("kept", [(), (1,)])
    def test_a_saved_output_that_is_changed_after_the_block_raises_as_without_a_plan(
        self, kept: tuple[int, ...]
    ) -> None:
        for decision in (None, BlockDecision(kept)):
            model = around(torch.exp)
            if decision:
                plan(model, {"1": decision})
            out = model(X)
            out.add_(1)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                out.sum().backward()

    @pytest.mark.parametrize("decision", [NOTHING, BlockDecision((), rerun=True)], ids=["replayed", "run again"])
    def test_an_input_that_is_changed_after_the_block_raises(self, decision: BlockDecision) -> None:
        model = around(lambda x: (x + 1).exp().sin())
        plan(model, {"1": decision})
        h = model[0](X)  # type: ignore[index]
        out = model[1](h)  # type: ignore[index]
        h.add_(1)
        with pytest.raises(RuntimeError, match=r"modified by an inplace operation.*planned block recomputes"):
            out.sum().backward()

    def test_a_block_that_is_run_again_and_has_changed_its_input_raises(self) -> None:
        model = around(lambda x: (x.detach().mul_(2) + 1).exp() * x)
        plan(model, {"1": BlockDecision((), rerun=True)})
        with pytest.raises(RuntimeError, match=r"modified by an inplace operation.*planned block recomputes"):
            model(X).sum().backward()

    def test_a_buffer_that_changed_since_raises_instead_of_giving_other_gradients(self) -> None:
        class Shifted(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("shift", torch.ones(4))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return (x + self.shift).exp()

        model = nn.Sequential(nn.Linear(4, 4), Shifted())
        plan(model, {"1": NOTHING})
        out = model(X)
        model[1].shift.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()

    def test_the_replay_writes_into_nothing_that_it_did_not_make(self) -> None:
        case = apply_zoo.ready("in place")
        model = copy.deepcopy(case.model)
        before = copy.deepcopy(model.state_dict())
        plan(model, apply_zoo.keep_nothing(case.programs))
        apply_zoo.run(case.case, model)
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())

    def test_batch_statistics_are_updated_once(self) -> None:
        model = nn.Sequential(nn.Conv2d(2, 2, 1), nn.Sequential(nn.BatchNorm2d(2), nn.ReLU()))
        plain = copy.deepcopy(model)
        x = torch.linspace(-1, 1, 64).view(2, 2, 4, 4)
        plan(model, {"1": NOTHING})
        assert_same(tuple(gradients(plain, x)), tuple(gradients(model, x)))
        assert torch.equal(model[1][0].running_var, plain[1][0].running_var)
        assert model[1][0].num_batches_tracked == 1


class TestGraphs:
    def test_backward_twice_over_a_retained_graph(self) -> None:
        case = apply_zoo.ready("transformer")
        for kept in ((), (12, 17), (9, 21)):
            model = copy.deepcopy(case.model)
            handle = plan(model, {"layers.0": BlockDecision(kept), "layers.1": BlockDecision(kept)})
            torch.manual_seed(1)
            loss = case.case.loss(model(*case.case.inputs))
            loss.backward(retain_graph=True)
            model.zero_grad()
            loss.backward()
            assert_same(case.gradients[1:-1], tuple(p.grad for p in model.parameters() if p.grad is not None))
            assert [stats.replays for stats in handle.stats()] == [2, 2]

    @pytest.mark.parametrize("order", [(1, 0, 2), (0, 1, 2), (2, 1, 0)])
    def test_outputs_may_be_differentiated_one_after_the_other(self, order: tuple[int, ...]) -> None:
        def three(x: torch.Tensor) -> Any:
            more = x + 3  # saved by sin, and what the others' inputs are rebuilt from
            return more.sin(), (more + 1).cos(), (more + 2).cos()

        results = []
        for planned in (False, True):
            model = nn.Sequential(Function(three))
            if planned:
                handle = plan(model, {"0": BlockDecision((1,))})
            x = X.clone().requires_grad_()
            outputs = list(model(x))
            for index in order:
                outputs[index].sum().backward()
                outputs[index] = None
            results.append((x.grad,))
        assert_same(*results)
        assert handle.stats()[0].replays == 2

    def test_gradients_of_gradients(self) -> None:
        results = []
        for planned in (False, True):
            torch.manual_seed(0)
            model = nn.Sequential(
                nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.LayerNorm(4), nn.SiLU())
            )
            if planned:
                plan(model, {"1": NOTHING})
            x = X.clone().requires_grad_()
            (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
            slope.square().sum().backward()
            results.append(tuple(p.grad for p in model.parameters() if p.grad is not None))
        assert_same(*results)

    def test_several_forwards_before_backward(self) -> None:
        model = around(lambda x: nn.functional.dropout(x.exp(), 0.5).sin())
        plain = copy.deepcopy(model)
        plan(model, {"1": NOTHING})
        results = []
        for m in (plain, model):
            torch.manual_seed(3)
            losses = [m(X * scale).sum() for scale in (1, 2, 3)]
            for loss in (losses[1], losses[0], losses[2]):
                loss.backward()
            results.append(tuple(p.grad for p in m.parameters()))
        assert_same(*results)

    def test_a_block_that_is_used_twice_in_one_forward(self) -> None:
        torch.manual_seed(0)
        block = TransformerBlock()
        first = nn.Linear(8, 8)
        model = nn.Sequential(first, block, block)
        plain = copy.deepcopy(model)
        handle = plan(model, {"1": NOTHING})
        x = torch.linspace(-1, 1, 80).view(2, 5, 8)
        results = []
        for m in (plain, model):
            torch.manual_seed(3)
            results.append(tuple(gradients(m, x)))
        assert_same(*results)
        assert (handle.stats()[0].forwards, handle.stats()[0].replays) == (2, 2)

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_checkpointing_around_a_planned_block(self, reentrant: bool) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), TransformerBlock())
        x = torch.linspace(-1, 1, 80).view(2, 5, 8)
        results = []
        for m in (copy.deepcopy(model), model):
            if m is model:
                plan(m, {"1": NOTHING})
            torch.manual_seed(3)
            out = checkpoint(lambda t, m=m: m[1](t).exp(), m[0](x), use_reentrant=reentrant)
            out.sum().backward()
            results.append(tuple(p.grad for p in m.parameters()))
        assert_same(*results)

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_checkpointing_inside_a_planned_block(self, reentrant: bool) -> None:
        model = around(lambda x: checkpoint(lambda t: t.exp().sin(), x.cos(), use_reentrant=reentrant).tanh())
        plain = copy.deepcopy(model)
        handle = plan(model, {"1": NOTHING})
        assert_same(tuple(gradients(plain, X)), tuple(gradients(model, X)))
        assert handle.stats()[0].replays == 1

    @pytest.mark.parametrize("structure", [None, "of another model"])
    def test_a_custom_function_may_ask_for_its_saved_tensors_twice(self, structure: str | None) -> None:
        class Asks(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                ctx.save_for_backward(x, y)
                return x * y

            @staticmethod
            def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                return grads[0] * ctx.saved_tensors[1], grads[0] * ctx.saved_tensors[0]

        model = around(lambda x: Asks.apply(x.exp(), x.sin()))
        plain = copy.deepcopy(model)
        runs: list[int] = []
        counted = model[1].function  # type: ignore[index]
        model[1].function = lambda x: (runs.append(1), counted(x))[1]  # type: ignore[index, assignment]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            handle = plan(model, {"1": BlockDecision((), structure)}, strict=False)
            assert_same(tuple(gradients(plain, X)), tuple(gradients(model, X)))
        assert handle.stats()[0].replays == (1 if structure is None else 0)
        assert len(runs) == (2 if structure is None else 3)  # recorded, run, and run again where it is checkpointed

    def test_hooks_on_tensors_and_modules_run_as_without_a_plan(self) -> None:
        def body(x: torch.Tensor) -> torch.Tensor:
            h = x.exp()
            h.register_hook(lambda grad: grad * 2)
            return h.sin()

        model = around(body)
        plain = copy.deepcopy(model)
        plan(model, {"1": NOTHING})
        for m in (plain, model):
            m[1].register_forward_hook(lambda module, args, out: out * 3)
            m[1].register_full_backward_hook(lambda module, gin, gout: (gin[0] * 5,))
        assert_same(tuple(gradients(plain, X)), tuple(gradients(model, X)))

    def test_part_of_a_backward_leaves_nothing_rebuilt(self, no_collection: None) -> None:
        weight = torch.ones(4, requires_grad=True)
        model = around(lambda x: (x.exp().sin() * weight).cos())
        plan(model, {"1": NOTHING})
        out = model(X).sum()
        with watched_rebuilds() as rebuilt:
            torch.autograd.grad(out, [weight])
        assert len(rebuilt) > 1
        assert all(storage() is None for storage in rebuilt)
        del out


def test_a_packing_that_is_finished_holds_no_mark_though_autograd_holds_the_packing() -> None:
    """Otherwise what is rebuilt would live until the block's last node is done: so it was on a GPU with Python 3.12."""
    save = Save(geometry_of(X), value=0, is_dropped=True)
    mark = nn.Identity()
    alive, marks = weakref.ref(mark), [mark]
    packing = write_packing([save], [0])(None, marks, lambda number, tensor: None)
    del mark
    next(packing)
    assert packing.send(X) == (alive(), 0)
    finish(packing)
    assert alive() is None
    finish(packing)  # and once more does no harm
