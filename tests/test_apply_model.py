"""A planned model is the same model; what a plan does not suit is checkpointed as a whole, with one warning."""

from __future__ import annotations

import copy
import io
import pickle
import random
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
from torch import nn

import apply_zoo
from apply_blocks import around, gradients
from apply_zoo import Stack, TransformerBlock, assert_same, plan
from trainfit.apply import apply_decisions, find_blocks, record_block, structure_of
from trainfit.apply.executor import MAX_SIGNATURES
from trainfit.errors import BadDecision, PlanMismatch
from trainfit.records import BlockDecision

NOTHING = BlockDecision(())
X = torch.linspace(-1, 1, 120).view(3, 5, 8)


def step(model: nn.Module, x: torch.Tensor = X) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(3)
    model.zero_grad()
    model(x).square().sum().backward()
    return tuple(p.grad.clone() for p in model.parameters() if p.grad is not None)


def transformer() -> nn.Module:
    torch.manual_seed(0)
    return Stack(TransformerBlock)


BLOCKS = {"layers.0": NOTHING, "layers.1": NOTHING}


class TestSameModel:
    def test_names_keys_and_identities_are_unchanged(self) -> None:
        model = transformer()
        names = [name for name, _ in model.named_modules()]
        modules = list(model.modules())
        keys = list(model.state_dict())
        text = repr(model)
        plan(model, BLOCKS)
        step(model)
        assert [name for name, _ in model.named_modules()] == names
        assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
        assert list(model.state_dict()) == keys
        assert repr(model) == text
        assert isinstance(model.layers[0], TransformerBlock)  # type: ignore[index]
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())

    def test_a_pickle_knows_nothing_of_the_plan(self) -> None:
        model = transformer()
        before = model.state_dict()
        plan(model, BLOCKS)
        step(model)
        pickled = pickle.dumps(model)
        assert b"trainfit" not in pickled
        loaded = pickle.loads(pickled)
        assert type(loaded.layers[0]) is TransformerBlock
        assert all(torch.equal(before[name], value) for name, value in loaded.state_dict().items())
        assert type(model.layers[0]) is not TransformerBlock  # type: ignore[index]

    def test_torch_save_and_deepcopy_give_an_unplanned_model(self) -> None:
        model = transformer()
        expected = step(copy.deepcopy(model))
        handle = plan(model, BLOCKS)
        step(model)
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        forwards = handle.stats()[0].forwards
        for other in (torch.load(file, weights_only=False), copy.deepcopy(model)):
            assert type(other.layers[0]) is TransformerBlock
            assert_same(expected, step(other))
        assert handle.stats()[0].forwards == forwards
        assert_same(expected, step(model))  # and the planned one still is
        assert handle.stats()[0].forwards == forwards + 1

    def test_remove_makes_the_model_as_it_was_and_leaves_open_graphs_right(self) -> None:
        model = transformer()
        expected = step(copy.deepcopy(model))
        handle = plan(model, BLOCKS)
        torch.manual_seed(3)
        loss = model(X).square().sum()
        handle.remove()
        assert type(model.layers[0]) is TransformerBlock  # type: ignore[index]
        loss.backward()
        assert_same(expected, tuple(p.grad for p in model.parameters() if p.grad is not None))
        plan(model, BLOCKS)

    @pytest.mark.parametrize("how", ["no_grad", "inference_mode", "eval"])
    def test_without_training_a_plan_does_nothing(self, how: str) -> None:
        model = transformer()
        handle = plan(model, BLOCKS)
        if how == "eval":
            step(model.eval())
        else:
            with getattr(torch, how)():
                model(X)
        assert [(s.forwards, s.replays, s.reruns) for s in handle.stats()] == [(0, 0, 0), (0, 0, 0)]

    def test_two_threads_train_two_copies_of_the_data_at_once(self) -> None:
        torch.manual_seed(0)
        model = Stack(apply_zoo.mlp_block)
        expected = torch.autograd.grad(model(X).sum(), list(model.parameters()))
        plan(model, BLOCKS)
        results: list[Any] = [None] * 4

        def work(index: int) -> None:
            results[index] = torch.autograd.grad(model(X).sum(), list(model.parameters()))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for result in results:
            assert_same(expected, result)

    def test_threads_may_have_batches_of_other_sizes(self) -> None:
        torch.manual_seed(0)
        model = Stack(apply_zoo.mlp_block)
        inputs = [torch.linspace(-1, 1, 40 * size).view(size, 5, 8) for size in (2, 3, 4)]
        expected = [torch.autograd.grad(model(x).sum(), list(model.parameters())) for x in inputs]
        handle = plan(model, BLOCKS)
        failures: list[Exception] = []

        def work(index: int) -> None:
            try:
                for _ in range(10):
                    got = torch.autograd.grad(model(inputs[index]).sum(), list(model.parameters()))
                    assert_same(expected[index], got)
            except Exception as error:
                failures.append(error)

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            threads = [threading.Thread(target=work, args=(index,)) for index in range(len(inputs))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(interval)
        assert failures == []
        assert [(stats.reruns, stats.signatures) for stats in handle.stats()] == [(0, 3), (0, 3)]

    @pytest.mark.parametrize("backend", ["eager", "aot_eager"])
    def test_a_compiled_model_still_follows_its_plan(self, backend: str) -> None:
        torch.manual_seed(0)
        model = Stack(apply_zoo.mlp_block)
        expected = step(copy.deepcopy(model))
        handle = plan(model, BLOCKS)
        compiled: Any = torch.compile(model, backend=backend)
        for _ in range(2):
            assert_same(expected, step(compiled))
        assert [(stats.replays, stats.reruns) for stats in handle.stats()] == [(2, 0), (2, 0)]

    @pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler's own
    def test_what_is_compiled_inside_a_planned_block_is_compiled_still(self) -> None:
        torch.manual_seed(0)
        model = around(lambda x: (x.sin() * x).exp())
        expected = gradients(copy.deepcopy(model), X[0, :3, :4])
        graphs: list[Any] = []

        def backend(graph: Any, inputs: Any) -> Any:
            graphs.append(graph)
            return graph.forward

        model[1].function = torch.compile(model[1].function, backend=backend)  # type: ignore[index, union-attr]
        handle = plan(model, {"1": NOTHING})
        for _ in range(2):
            assert_same(tuple(expected), tuple(gradients(model, X[0, :3, :4])))
        assert len(graphs) == 1  # none for the recording
        assert (handle.stats()[0].replays, handle.stats()[0].reruns) == (2, 0)


class TestDecisions:
    def test_an_unknown_block_is_refused(self) -> None:
        with pytest.raises(BadDecision, match=r"no module 'layers\.7'"):
            plan(transformer(), {"layers.7": NOTHING})

    def test_a_second_plan_and_a_patched_forward_are_refused(self) -> None:
        model = transformer()
        plan(model, {"layers.0": NOTHING})
        with pytest.raises(BadDecision, match="already"):
            plan(model, {"layers.0": NOTHING})
        model.layers[1].forward = model.layers[1].forward  # type: ignore[index, union-attr]
        with pytest.raises(BadDecision, match="already"):
            plan(model, {"layers.1": NOTHING})

    def test_a_storage_that_nobody_can_hold_is_refused(self) -> None:
        model = transformer()
        plan(model, {"layers.0": BlockDecision((17, 99))})
        with pytest.raises(BadDecision, match="storage 99"):
            step(model)


class Switching(nn.Module):
    """Does something else from one call to the next, for a reason that no signature shows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.switches: list[str] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = nn.functional.dropout(self.linear(x).exp(), 0.5)
        if "early" in self.switches:
            h = h.exp()
        h = h.sin().cos()
        return h.exp().sin() if "late" in self.switches else h


class TestFallback:
    @pytest.mark.parametrize("switch", ["early", "late"])
    def test_another_op_sequence_is_checkpointed_with_one_warning(self, switch: str) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), Switching())
        plain = copy.deepcopy(model)
        handle = plan(model, {"1": NOTHING}, strict=False)
        assert_same(step(plain), step(model))
        for m in (plain, model):
            m[1].switches.append(switch)
        with pytest.warns(UserWarning, match="block '1' does not do what the plan says: .*saved") as caught:
            assert_same(step(plain), step(model))
        assert len(caught) == 1
        assert_same(step(plain), step(model))
        assert (handle.stats()[0].forwards, handle.stats()[0].reruns) == (3, 2)

    def test_strict_raises_instead(self) -> None:
        model = nn.Sequential(nn.Linear(8, 8), Switching())
        plan(model, {"1": NOTHING}, strict=True)
        step(model)
        model[1].switches.append("early")
        with pytest.raises(PlanMismatch, match="block '1'"):
            step(model)

    def test_a_block_whose_path_depends_on_data_is_checkpointed(self) -> None:
        class Depends(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                h = nn.functional.dropout(x.exp(), 0.5)
                return h.sin() if x.sum() > 0 else h.cos()

        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), Depends())
        plain = copy.deepcopy(model)
        plan(model, {"1": NOTHING}, strict=False)
        with pytest.warns(UserWarning, match="cannot be recorded: DataDependent"):
            assert_same(step(plain), step(model))
        assert_same(step(plain, -X), step(model, -X))

    @pytest.mark.parametrize("draw", [random.random, lambda: float(numpy.random.rand())], ids=["python", "numpy"])
    def test_a_block_that_draws_numbers_on_the_host_is_checkpointed_with_the_same_draws(
        self, draw: Callable[[], float]
    ) -> None:
        class Scaled(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return (x * draw()).exp() if draw() < 0.5 else (x * draw()).tanh()

        def seeded(model: nn.Module, seed: int) -> tuple[Any, ...]:
            random.seed(seed)
            numpy.random.seed(seed)
            return (*gradients(model, X), torch.tensor(draw()))

        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), Scaled())
        plain = copy.deepcopy(model)
        handle = apply_decisions(model, {"1": BlockDecision(())})
        with pytest.warns(UserWarning, match="draws random numbers on the host or seeds a generator"):
            assert_same(seeded(plain, 0), seeded(model, 0))
        for seed in range(1, 6):
            assert_same(seeded(plain, seed), seeded(model, seed))
        assert handle.stats()[0].reruns == 6

    def test_a_checkpointed_block_has_its_autocast_and_frees_what_it_collected(self) -> None:
        case = apply_zoo.ready("transformer, autocast")
        model = copy.deepcopy(case.model)
        decision = BlockDecision((), structure="of another model")
        handle = plan(model, {"layers.0": decision}, strict=False)
        with pytest.warns(UserWarning, match="its op 0, aten.native_layer_norm.default in its norm, is not the one"):
            got = apply_zoo.run(case.case, model)
        assert_same(case.gradients, got)
        assert handle.stats()[0].reruns == 1

    def test_a_tensor_subclass_is_left_to_checkpointing(self) -> None:
        class Marked(torch.Tensor):
            pass

        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.GELU()))
        plain = copy.deepcopy(model)
        plan(model, {"1": NOTHING}, strict=False)
        for m in (plain, model):
            m.register_forward_pre_hook(lambda module, args: args[0].as_subclass(Marked))
        with pytest.warns(UserWarning, match="a tensor of type Marked"):
            assert_same(step(plain), step(model))


class TestSignatures:
    def test_new_shapes_are_recorded_again_and_old_ones_forgotten(self) -> None:
        model = transformer()
        plain = copy.deepcopy(model)
        handle = plan(model, {"layers.0": NOTHING})
        for length in range(1, MAX_SIGNATURES + 4):
            x = torch.linspace(-1, 1, 16 * length).view(2, length, 8)
            assert_same(step(plain, x), step(model, x))
            assert handle.stats()[0].signatures == min(length, MAX_SIGNATURES)

    def test_the_same_decision_suits_other_sizes_of_the_same_structure(self) -> None:
        model = transformer()
        block = model.layers[0]  # type: ignore[index]
        programs = [record_block(block, (torch.ones(n, 5, 8, requires_grad=True),), {}) for n in (1, 4)]
        assert programs[0] != programs[1]
        assert structure_of(programs[0]) == structure_of(programs[1])
        decision = BlockDecision((17,), structure_of(programs[0]))
        assert_same(step(copy.deepcopy(model)), (plan(model, {"layers.0": decision}), step(model))[1])

    def test_a_parameter_that_is_frozen_later_is_another_signature(self) -> None:
        model = transformer()
        plain = copy.deepcopy(model)
        plan(model, BLOCKS)
        for m in (plain, model):
            step(m)
            m.layers[0].up.requires_grad_(False)
        assert_same(step(plain), step(model))

    def test_a_probability_that_changes_is_another_signature(self) -> None:
        model = transformer()
        plain = copy.deepcopy(model)
        handle = plan(model, BLOCKS)
        for p in (0.25, 0.5, 0.25):
            for m in (plain, model):
                m.layers[0].dropout.p = p
            assert_same(step(plain), step(model))
        assert [stats.signatures for stats in handle.stats()] == [2, 1]


@pytest.fixture
def process_group(tmp_path: Path) -> Any:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class TestSharded:
    @pytest.mark.parametrize("reshard", [True, False])
    def test_fsdp2_parameters_are_looked_up_when_replaying(self, process_group: None, reshard: bool) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (1,))
        model = transformer()
        plain = copy.deepcopy(model)
        handle = plan(model, BLOCKS)
        for m in (plain, model):
            for layer in m.layers:
                fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
            fully_shard(m, mesh=mesh)
        for _ in range(2):
            expected, got = (tuple(g.full_tensor() for g in step(m)) for m in (plain, model))
            assert_same(expected, got)
        assert [stats.replays for stats in handle.stats()] == [2, 2]

    def test_tensor_parallel_keeps_dtensors_and_replays_the_rest(self, process_group: None) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        model = transformer()
        for layer in model.layers:  # type: ignore[union-attr]
            parallelize_module(
                layer, init_device_mesh("cpu", (1,)), {"up": ColwiseParallel(), "down": RowwiseParallel()}
            )
        packed: list[type] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(type(t)), lambda t: t):
            model(X)
        assert packed.count(DTensor) == 8
        expected = step(model)
        handle = plan(model, BLOCKS)
        assert_same(tuple(g.full_tensor() if isinstance(g, DTensor) else g for g in expected),
                    tuple(g.full_tensor() if isinstance(g, DTensor) else g for g in step(model)))  # fmt: skip
        for stats in handle.stats():
            assert (stats.replays, stats.reruns) == (1, 0)
            assert stats.dropped_bytes > 0

    def test_ddp(self, process_group: None) -> None:
        model = transformer()
        expected = step(copy.deepcopy(model))
        plan(model, BLOCKS)
        assert_same(expected, step(nn.parallel.DistributedDataParallel(model)))


class TestFindBlocks:
    def test_stacks_of_equal_modules_are_blocks_and_outer_stacks_win(self) -> None:
        inner = nn.ModuleList([nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for _ in range(3)])
        model = nn.ModuleDict({"body": inner, "head": nn.Sequential(nn.Linear(2, 2), nn.GELU())})
        model["acts"] = nn.Sequential(nn.ReLU(), nn.ReLU())
        assert find_blocks(model) == ["body.0", "body.1", "body.2"]

    def test_a_dict_is_a_stack_if_its_keys_are_numbers(self) -> None:
        numbered = nn.ModuleDict({str(index): nn.Linear(2, 2) for index in range(2)})
        named = nn.ModuleDict({"left": nn.Linear(2, 2), "right": nn.Linear(2, 2)})
        assert find_blocks(nn.ModuleDict({"layers": numbered, "heads": named})) == ["layers.0", "layers.1"]

    def test_hugging_face_models(self) -> None:
        for name in ("hf llama", "hf gpt2", "hf bert"):
            case = apply_zoo.ready(name)
            assert tuple(find_blocks(case.model)) == case.case.blocks


def test_a_planned_model_trains_to_the_same_losses_bit_for_bit() -> None:
    losses = []
    for planned in (False, True):
        model = transformer()
        if planned:
            plan(model, {"layers.0": BlockDecision((13,)), "layers.1": NOTHING})
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        torch.manual_seed(4)
        losses.append([])
        for _ in range(10):
            loss = (model(X) - X).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[-1].append(loss.item())
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]


def test_scaled_and_clipped_gradients_of_several_micro_batches_are_bit_identical() -> None:
    results = []
    for planned in (False, True):
        model = transformer()
        if planned:
            handle = plan(model, BLOCKS)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
        torch.manual_seed(2)
        for _ in range(2):
            for micro_batch in (X, -X, X.sin()):
                with torch.autocast("cpu", torch.float16):
                    loss = model(micro_batch).float().square().mean()
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        results.append(tuple(p.detach() for p in model.parameters()))
    assert_same(*results)
    assert [(stats.forwards, stats.replays) for stats in handle.stats()] == [(6, 6), (6, 6)]


def test_recording_leaves_generators_and_attributes_alone() -> None:
    class Counts(nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x * torch.rand(8) * random.random()

    block = Counts()
    before = torch.get_rng_state(), random.getstate()
    record_block(block, (X.clone().requires_grad_(),), {})
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert block.calls == 0


def test_no_warning_is_raised_for_a_model_that_follows_its_plan() -> None:
    model = transformer()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        apply_decisions(model, BLOCKS)
        step(model)
