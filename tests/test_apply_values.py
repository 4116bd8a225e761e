"""What a replay starts from: parameters, what submodules and opaque ops made, random numbers, autocast's casts."""

from __future__ import annotations

import copy
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import apply_zoo
from apply_blocks import NOTHING, Function, X, around, gradients, watch
from apply_zoo import assert_same, plan
from trainfit.apply import record_block
from trainfit.records import BlockDecision


class TestParameters:
    def test_a_parameter_that_is_replaced_before_backward_is_still_the_old_one(self) -> None:
        results = []
        for planned in (False, True):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
            weight = model[1][0].weight
            if planned:
                plan(model, {"1": NOTHING})
            loss = model(X).sum()
            model[1][0].weight = nn.Parameter(torch.zeros(4, 4))
            loss.backward()
            results.append((weight.grad, model[0].weight.grad))
        assert_same(*results)

    def test_a_parameter_that_was_let_go_after_forward_is_looked_up_by_name(self) -> None:
        class Shift(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.shift = nn.Parameter(torch.linspace(0, 1, 4))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return (x + self.shift).exp()

        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), Shift())
        expected = gradients(copy.deepcopy(model), X)[:2]
        plan(model, {"1": NOTHING})
        loss = model(X).sum()
        sharded = model[1].shift
        model[1].shift = nn.Parameter(sharded.detach().clone())
        sharded.untyped_storage().resize_(0)
        loss.backward()
        assert_same(tuple(expected), (model[0].weight.grad, model[0].bias.grad))

    def test_a_buffer_in_whose_place_forward_puts_another_is_the_old_one(self) -> None:
        class Averaged(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("average", torch.zeros(4))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                self.average = self.average * 0.9 + x.detach().mean(0) * 0.1
                return torch.tanh(x - self.average).exp()

        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), Averaged())
        plain = copy.deepcopy(model)
        handle = plan(model, {"1": NOTHING})
        for _ in range(3):
            assert_same(tuple(gradients(plain, X)), tuple(gradients(model, X)))
        assert_same((plain[1].average,), (model[1].average,))
        assert handle.stats()[0].replays == 3


class TestObjects:
    def test_what_forward_puts_into_a_container_is_of_the_real_step(self) -> None:
        class Remembering(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.masks: dict[int, torch.Tensor] = {}
                self.seen: list[torch.Tensor] = []

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                if x.shape[1] not in self.masks:
                    self.masks[x.shape[1]] = torch.linspace(0, 1, x.shape[1])
                self.seen.append(x.detach())
                return torch.tanh(x * self.masks[x.shape[1]]).exp()

        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), Remembering())
        plain = copy.deepcopy(model)
        handle = plan(model, {"1": NOTHING})
        for _ in range(2):
            assert_same(tuple(gradients(plain, X)), tuple(gradients(model, X)))
        assert type(model[1].masks[4]) is torch.Tensor
        assert_same(tuple(plain[1].seen), tuple(model[1].seen))
        assert (handle.stats()[0].replays, handle.stats()[0].reruns) == (2, 0)

    @pytest.mark.parametrize("decision", [NOTHING, BlockDecision((), rerun=True)], ids=["replayed", "run again"])
    def test_an_object_among_the_arguments_is_changed_once(self, decision: BlockDecision) -> None:
        class Sums:
            def __init__(self) -> None:
                self.layers: list[torch.Tensor] = []

        class Adding(nn.Module):
            def forward(self, x: torch.Tensor, sums: Sums) -> torch.Tensor:
                sums.layers.append(x.sum())
                return torch.tanh(x * len(sums.layers)).exp()

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.layers = nn.Linear(4, 4), nn.ModuleList([Adding(), Adding()])

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                x, sums = self.first(x), Sums()
                for layer in self.layers:
                    x = layer(x, sums)
                assert len(sums.layers) == 2
                return x + sums.layers[0] + sums.layers[1]

        torch.manual_seed(0)
        model = Model()
        plain = copy.deepcopy(model)
        plan(model, {"layers.0": decision, "layers.1": decision})
        for _ in range(2):
            assert_same(tuple(gradients(plain, X)), tuple(gradients(model, X)))


class TestKept:
    def test_an_output_of_a_submodule_that_autograd_does_not_save_can_be_kept(self, no_collection: None) -> None:
        torch.manual_seed(0)
        block = nn.Sequential(nn.Linear(4, 4), Function(lambda x: (x + 1).exp()))
        model = nn.Sequential(nn.Linear(4, 4), block)
        plain = copy.deepcopy(model)
        program = record_block(block, (X.clone().requires_grad_(),), {})
        linear_output = dict(program.submodule_outputs)["0"]
        assert linear_output not in {ref.storage for ref in program.saved}
        seen: list[weakref.ref[Any]] = []
        watching = block[0].register_forward_hook(lambda module, args, out: seen.append(watch(out)))
        handle = plan(model, {"1": BlockDecision((linear_output,))})
        loss = model(X).sum()
        assert handle.stats()[0].replayed_ops == 2  # add and exp, but not the linear
        assert seen[-1]() is not None
        model.zero_grad()
        loss.backward()
        assert seen[-1]() is None
        watching.remove()
        assert not block[0]._forward_hooks
        assert_same(tuple(gradients(plain, X)), tuple(p.grad for p in model.parameters() if p.grad is not None))

    def test_what_a_custom_function_makes_is_kept(self) -> None:
        case = apply_zoo.ready("custom function")
        program = case.programs["layers.0"]
        assert [program.ops[op].name for op in program.opaque] == ["aten.mul.Tensor", "aten.mul.Tensor"]

    def test_a_custom_function_that_writes_by_other_means_than_ops_is_right(self) -> None:
        class ByNumpy(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
                out = torch.empty_like(x)
                if type(x) is torch.Tensor:  # a kernel is not launched for tensors without data
                    out.numpy()[:] = x.detach().numpy() * 3
                ctx.save_for_backward(out)
                return out

            @staticmethod
            def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
                return grads[0] * ctx.saved_tensors[0]

        model = around(lambda x: ByNumpy.apply(x.exp()).sin().exp())
        plain = copy.deepcopy(model)
        handle = plan(model, {"1": NOTHING})
        assert_same(tuple(gradients(plain, X)), tuple(gradients(model, X)))
        assert handle.stats()[0].dropped_bytes == 2 * X.nbytes  # exp(x) and the last exp; not what numpy wrote, nor sin

    def test_a_tensor_that_is_no_argument_is_not_guessed(self) -> None:
        outside = torch.ones(4)
        model = around(lambda x: (x + outside).exp().sin())
        plain = copy.deepcopy(model)
        plan(model, {"1": NOTHING})
        loss = model(X).sum()
        outside.mul_(2)
        loss.backward()
        got = tuple(p.grad for p in model.parameters())
        outside.div_(2)
        assert_same(tuple(gradients(plain, X)), got)

    def test_what_an_op_of_another_library_makes_is_kept(self) -> None:
        model = around(lambda x: torch.ops.trainfit_tests.twice(x.exp()).sin().exp())
        plain = copy.deepcopy(model)
        handle = plan(model, {"1": NOTHING})
        assert_same(tuple(gradients(plain, X)), tuple(gradients(model, X)))
        assert twice_calls == 2  # once per model: it is not replayed
        assert (
            handle.stats()[0].dropped_bytes == 2 * X.nbytes
        )  # exp(x) and the last exp; not what `twice` made, nor sin


twice_calls = 0


@torch.library.custom_op("trainfit_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    """Stands for a kernel of somebody else's, say one in Triton."""
    global twice_calls
    twice_calls += 1
    return x * 2


twice.register_fake(torch.empty_like)
twice.register_autograd(
    lambda ctx, grad: grad * 2 * ctx.saved_tensors[0] / ctx.saved_tensors[0],
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),
)


class TestRandom:
    def test_only_the_random_ops_that_are_needed_are_replayed(self) -> None:
        case = apply_zoo.ready("transformer")
        program = case.programs["layers.1"]
        masks = [program.ops[op].outputs[0].storage for op in program.random]
        assert len(masks) == 2
        everything = set(apply_zoo.holdable(program))
        for dropped in masks:
            model = copy.deepcopy(case.model)
            handle = plan(model, {"layers.1": BlockDecision(tuple(sorted(everything - {dropped})))})
            assert_same(case.gradients, apply_zoo.run(case.case, model))
            assert handle.stats()[0].replayed_ops == 3  # empty, bernoulli_, div_

    def test_random_ops_with_nothing_saved_between_them_are_replayed_together(self) -> None:
        def body(x: torch.Tensor) -> torch.Tensor:
            first, second = torch.rand(4), torch.rand(4)
            return x * second + first.sum()

        model = around(body)
        plain = copy.deepcopy(model)
        handle = plan(model, {"1": NOTHING})
        results = []
        for m in (plain, model):
            torch.manual_seed(5)
            results.append((*gradients(m, X), torch.rand(2)))
        assert_same(*results)
        assert handle.stats()[0].replayed_ops == 2


class TestAutocast:
    def test_two_forwards_in_one_autocast_region_share_its_weight_casts(self) -> None:
        case = apply_zoo.ready("transformer, autocast")
        results = []
        for planned in (False, True):
            model = copy.deepcopy(case.model)
            if planned:
                plan(model, apply_zoo.keep_nothing(case.programs))
            torch.manual_seed(1)
            with torch.autocast("cpu", torch.bfloat16):
                loss = sum(case.case.loss(model(*case.case.inputs)) for _ in range(2))
            loss.backward()  # type: ignore[union-attr]
            results.append(tuple(p.grad for p in model.parameters()))
        assert_same(*results)

    def test_a_backward_under_autocast_replays_the_ops_as_they_were(self) -> None:
        model = around(lambda x: torch.mm(x, x.t()).exp())
        plain = copy.deepcopy(model)
        plan(model, {"1": NOTHING})
        results = []
        for m in (plain, model):
            loss = m(X).sum()
            with torch.autocast("cpu", torch.bfloat16):
                loss.backward()
            results.append(tuple(p.grad for p in m.parameters()))
        assert_same(*results)
