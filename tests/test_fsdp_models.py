"""One rank of many, by hand: models and ways to spread them that are special, and those that cannot be."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import trainfit
from fsdp_steps import GATHER, H200, REDUCE, Model, make_step, named, ranks, refs, steady_ops, trace_of
from trainfit.apply import apply_decisions
from trainfit.errors import BadDecision
from trainfit.records import BlockDecision, Category, Phase, Trace
from trainfit.trace import trace_step


def test_a_step_leaves_no_process_group_behind() -> None:
    trace_of(trainfit.FSDP(world_size=4))
    assert not torch.distributed.is_initialized()
    with pytest.raises(trainfit.errors.BadStep, match=r"names 'head\.7'"):
        trace_of(trainfit.FSDP(world_size=4, units=("head.7",)))
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"world_size": 0}, "a world of 0 ranks, 8 to a node"),
        ({"world_size": 8, "gpus_per_node": 0}, "a world of 8 ranks, 0 to a node"),
        ({"world_size": 4, "hsdp": 3}, r"hsdp=3\) does not divide the world size 4"),
        ({"world_size": 4, "hsdp": 0}, r"hsdp=0\) does not divide the world size 4"),
        ({"world_size": 16, "reshard_after_forward": 5}, r"=5\) does not divide the 16 ranks"),
        ({"world_size": 16, "hsdp": 4, "reshard_after_forward": 8}, r"=8\) does not divide the 4 ranks"),
    ],
)
def test_ranks_that_cannot_be_are_said_before_anything_is_built(options: dict[str, Any], message: str) -> None:
    step = trainfit.Step(model=pytest.fail, batch=(), fsdp=trainfit.FSDP(**options))
    with pytest.raises(trainfit.errors.BadStep, match=message):
        trace_step(step, H200)


def test_sharded_and_replicated_at_once_is_refused() -> None:
    both = make_step(trainfit.FSDP(world_size=4), ddp=trainfit.DDP(world_size=4))
    with pytest.raises(trainfit.errors.BadStep, match="both fsdp and ddp"):
        trace_step(both, H200)
    with pytest.raises(trainfit.errors.UsageError, match="a world of 0 ranks"), trainfit.ranks(0):
        pass


def gathers_and_matmuls(trace: Trace) -> list[str]:
    """The steady step's gathers (by elements of a shard) and matmuls (by module), in the order of their issue."""
    return [
        f"gather {refs(op)[1][1][0]}" if op.name == GATHER else op.module
        for op in steady_ops(trace)
        if op.name == GATHER or "mm.default" in op.name
    ]


def test_each_block_is_gathered_for_its_forward_and_one_block_ahead_in_backward() -> None:
    assert gathers_and_matmuls(trace_of(trainfit.FSDP(world_size=4))) == [
        *(
            "gather 14",
            "gather 43",
            "blocks.0.up",
            "blocks.0.down",
            "gather 43",
            "blocks.1.up",
            "blocks.1.down",
            "head",
        ),
        # Backward: block 1 while the head runs, block 0 while block 1 runs. The first input needs no gradient.
        *("gather 43", "head", "head", "gather 43", *["blocks.1.down"] * 2, *["blocks.1.up"] * 2),
        *(*["blocks.0.down"] * 2, "blocks.0.up"),
    ]


class Checkpointed(Model):
    """Each block checkpointed, by a call around the sharded block or by one inside it."""

    def __init__(self, is_outside: bool) -> None:
        super().__init__()
        self.is_outside = is_outside
        if not is_outside:
            for block in self.blocks:
                block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.is_outside else block(x)
        return self.head(x).sum()


@pytest.mark.parametrize("is_outside", [True, False])
def test_a_checkpointed_block_is_gathered_once_for_its_recomputation_and_its_backward(is_outside: bool) -> None:
    step = replace(make_step(trainfit.FSDP(world_size=4)), model=lambda: Checkpointed(is_outside))
    trace = trace_step(step, H200)
    assert any(op.phase is Phase.RECOMPUTE and "mm.default" in op.name for op in steady_ops(trace))
    as_usual = trace_of(trainfit.FSDP(world_size=4))
    assert [refs(op) for op in named(trace, GATHER)] == [refs(op) for op in named(as_usual, GATHER)]


def test_a_planned_block_is_gathered_once_for_its_replay_and_its_backward() -> None:
    def planned() -> nn.Module:
        model = Model()
        apply_decisions(model, {f"blocks.{n}": BlockDecision(kept=()) for n in range(2)}, strict=True)
        return model

    trace = trace_step(replace(make_step(trainfit.FSDP(world_size=4)), model=planned), H200)
    # Of a block, `up` and relu are replayed, when it is gathered for backward; block 0 is gathered while block 1 runs.
    order = gathers_and_matmuls(trace)
    backward = order[order.index("head") + 1 :]
    assert backward[:4] == ["gather 43", "head", "head", "gather 43"]
    assert backward[4:].count("gather 43") == 0
    assert sum(op.phase is Phase.RECOMPUTE and op.name == "aten.addmm.default" for op in steady_ops(trace)) == 2


class ShardsItself(Model):
    """As a user's own code does it, who has block 1 gathered before block 0 runs."""

    def __init__(self) -> None:
        from torch.distributed.fsdp import fully_shard

        super().__init__()
        mesh = torch.distributed.init_device_mesh("cuda", (4,))
        first, second = (fully_shard(block, mesh=mesh) for block in self.blocks)
        fully_shard(self, mesh=mesh)
        first.set_modules_to_forward_prefetch([second])


def test_a_model_that_shards_itself_is_gathered_as_far_ahead_as_it_says() -> None:
    with trainfit.ranks(4):
        trace = trace_step(trainfit.Step(model=ShardsItself, batch=(torch.zeros(3, 6),)), H200)
    ahead = gathers_and_matmuls(trace)
    assert ahead[:5] == ["gather 14", "gather 43", "gather 43", "blocks.0.up", "blocks.0.down"]
    as_usual = gathers_and_matmuls(trace_of(trainfit.FSDP(world_size=4)))
    assert ahead[5:] == ["blocks.1.up", "blocks.1.down", *as_usual[7:]]


def test_a_model_that_is_sharded_already_is_neither_planned_nor_given_a_plan() -> None:
    step = trainfit.Step(model=ShardsItself, batch=(torch.zeros(3, 6),))
    message = "the model is sharded already, and a plan comes before fully_shard"
    with trainfit.ranks(4), pytest.raises(BadDecision, match=message):
        trainfit.plan(step, gpu="h200", budget="min")
    with trainfit.ghost_gpu("h200"), trainfit.ranks(4), pytest.raises(BadDecision, match=message):
        apply_decisions(ShardsItself(), {"blocks.0": BlockDecision(kept=())})


class Adapted(nn.Module):
    """A frozen weight beside a trained one, in one unit."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 6)) for _ in range(2))
        for block in self.blocks:
            block.get_submodule("0").requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = torch.relu(block(x))
        return x.sum()


def test_frozen_parameters_are_gathered_and_neither_reduced_nor_given_state() -> None:
    step = trainfit.Step(model=Adapted, batch=(torch.zeros(3, 6),), fsdp=trainfit.FSDP(world_size=3))
    trace = trace_step(step, H200)
    # A shard has two rows of each weight and two elements of the bias.
    assert [refs(op)[1][1] for op in named(trace, GATHER)] == [(12 + 12 + 2,)] * 4
    assert [refs(op)[0][1] for op in named(trace, REDUCE)] == [(12 + 2,)] * 2
    state = {ref.storage for op in steady_ops(trace) for ref in op.input_refs()}
    sizes = [trace.storages[s].nbytes for s in state if trace.storages[s].category is Category.OPTIMIZER]
    assert sum(sizes) == 2 * 2 * 4 * (12 + 2)  # two blocks, two states


def test_a_process_that_has_a_group_of_its_own_is_told_so(tmp_path: Any) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        with pytest.raises(trainfit.errors.UsageError, match="a process group of its own"):
            trace_step(make_step(trainfit.FSDP(world_size=4)), H200)
    finally:
        torch.distributed.destroy_process_group()


def tensor_parallel() -> nn.Module:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = nn.Sequential(nn.Linear(64, 256, bias=False), nn.Linear(256, 64, bias=False))
    mesh = torch.distributed.init_device_mesh("cuda", (4,))
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})


def test_tensor_parallel_estimates_follow_the_local_shapes() -> None:
    step = trainfit.Step(model=tensor_parallel, batch=(torch.zeros(8, 64),), loss=torch.sum)
    with trainfit.ranks(4):
        trace = trace_step(step, H200)
        estimate = trainfit.estimate(step, "h200")
    products = [refs(op) for op in named(trace, "aten.mm.default")]
    assert products[:2] == [
        [("float32", (8, 64)), ("float32", (64, 64))],
        [("float32", (8, 64)), ("float32", (64, 64))],
    ]
    (total,) = named(trace, "_c10d_functional.all_reduce.default")
    assert (refs(total), ranks(total)) == ([("float32", (8, 64))], (0, 1, 2, 3))
    # A quarter of two weights of 64 x 256, and AdamW's two states of each.
    assert estimate.breakdown_bytes["parameters"] == 2 * 64 * 64 * 4
    assert estimate.breakdown_bytes["optimizer"] == 2 * 2 * 64 * 64 * 4
    assert estimate.time is not None
    assert estimate.time.communication_ms > 0


def test_offloaded_shards_are_on_the_gpu_only_while_they_are_gathered() -> None:
    offloaded = trainfit.FSDP(world_size=4, offload=True)
    estimate = trainfit.estimate(make_step(offloaded), "h200")
    last = dict(zip(Category, estimate.timeline[-1].bytes_by_category, strict=True))
    assert (last[Category.PARAMETERS], last[Category.OPTIMIZER], last[Category.GRADIENTS]) == (0, 0, 0)
    trace = trace_of(offloaded)
    # Each of the ten shards is copied to the GPU for each of its gathers: the root's two once, the blocks' eight twice.
    shards = [op for op in steady_ops(trace) if op.name == "aten._to_copy.default" and not list(op.input_refs())]
    assert len(shards) == 2 + 2 * 8
    assert [refs(op) for op in named(trace, GATHER)] == [
        refs(op) for op in named(trace_of(trainfit.FSDP(world_size=4)), GATHER)
    ]


def test_offloaded_gradients_that_accumulate_are_refused() -> None:
    with pytest.raises(trainfit.errors.BadStep, match="accumulate on the host"):
        trace_of(trainfit.FSDP(world_size=4, offload=True), micro_batches=2)
    lasting = trace_of(trainfit.FSDP(world_size=4, offload=True, sync_every_micro_batch=False), micro_batches=2)
    assert sum(op.name == REDUCE for op in steady_ops(lasting)) == 3


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(tokens)).sum()


def test_a_tied_shard_is_materialized_in_each_of_its_places_and_the_last_one_stays() -> None:
    batch = (torch.zeros(3, dtype=torch.int64),)
    trace = trace_step(trainfit.Step(model=Tied, batch=batch, fsdp=trainfit.FSDP(world_size=4)), H200)
    events = [(trace.storages[event.storage].nbytes, event.is_alloc) for event in trace.sections[0].events]
    assert events == [(2 * 4 * 4, True), (2 * 4 * 4, True), (2 * 4 * 4, False), (3 * 8, True)]  # last comes the batch
    assert trace.storages[trace.sections[0].events[1].storage].category is Category.PARAMETERS
