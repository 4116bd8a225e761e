"""One rank of many, by hand: what is gathered, reduced and held, and when; the sizes are those of `fsdp_steps`."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import nn

import trainfit
from fsdp_steps import (
    COPY_IN_STREAM,
    GATHER,
    GATHER_STREAM,
    H200,
    REDUCE,
    REDUCE_STREAM,
    ROOT_SHARD,
    SHARD,
    SUM,
    SUM_STREAM,
    UNSHARDED,
    Model,
    make_step,
    named,
    ranks,
    refs,
    steady_ops,
    trace_of,
)
from trainfit._time_estimate import hidden_behind_communication_ns
from trainfit.cost import network_of, pricing_for
from trainfit.gpus.hidden import hidden_memory
from trainfit.records import Category, Op, Phase, TensorRef
from trainfit.trace import trace_step


def test_shards_have_the_padded_rows_of_dimension_0() -> None:
    trace = trace_of(trainfit.FSDP(world_size=4))
    build = trace.sections[0]
    sizes = [trace.storages[event.storage].nbytes for event in build.events]
    block = [4 * 18, 4 * 3, 4 * 20, 4 * 2]
    assert sizes == [*block, *block, 4 * 12, 4 * 2, 4 * 18]  # and the batch, 3 x 6
    assert trace.num_parameters == 2 * (60 + 10 + 60 + 6) + 30 + 5


def test_a_tensor_with_fewer_rows_than_ranks_is_padded_to_one_row_each() -> None:
    trace = trace_of(trainfit.FSDP(world_size=16))
    # 10 rows, 6 rows and 5 rows on 16 ranks: one row on each of the first ranks, nothing on the others.
    gathers = [refs(op)[0][1] for op in named(trace, GATHER)]
    assert gathers[:2] == [(16 * (6 + 1),), (16 * (6 + 1 + 10 + 1),)]


def test_what_is_gathered_and_reduced() -> None:
    trace = trace_of(trainfit.FSDP(world_size=4))
    whole, root = ("float32", (4 * SHARD,)), ("float32", (4 * ROOT_SHARD,))
    part, root_part = ("float32", (SHARD,)), ("float32", (ROOT_SHARD,))
    # The root is gathered first and stays; both blocks are gathered for forward, and again for backward.
    assert [refs(op) for op in named(trace, GATHER)] == [[root, root_part], *[[whole, part]] * 4]
    assert [op.phase for op in named(trace, GATHER)] == [Phase.FORWARD] * 3 + [Phase.BACKWARD] * 2
    # Block 0 and the root have inputs without gradients: torch reduces them when backward is over, the root first.
    assert [refs(op) for op in named(trace, REDUCE)] == [[part, whole], [root_part, root], [part, whole]]
    assert {ranks(op) for op in (*named(trace, GATHER), *named(trace, REDUCE))} == {(0, 1, 2, 3)}


def test_each_buffer_comes_from_the_memory_of_the_stream_that_makes_it() -> None:
    trace = trace_of(trainfit.FSDP(world_size=4))
    streams = {event.storage: event.stream for section in trace.sections for event in section.events if event.is_alloc}
    gather, reduce = named(trace, GATHER)[1], named(trace, REDUCE)[0]
    gathered, _ = gather.input_refs()
    reduced, unreduced = reduce.input_refs()
    assert (streams[gathered.storage], gather.stream) == (COPY_IN_STREAM, GATHER_STREAM)
    assert (streams[unreduced.storage], streams[reduced.storage], reduce.stream) == (0, REDUCE_STREAM, REDUCE_STREAM)
    copy_out = named(trace, "fsdp.split_with_sizes_copy.default")[1]
    out = dict(copy_out.kwargs)["out"]
    assert isinstance(out, tuple)
    assert [trace.storages[ref.storage].nbytes for ref in out] == [4 * count for count in UNSHARDED]
    assert {streams[ref.storage] for ref in out} == {0}


def test_unsharded_parameters_are_there_while_their_block_runs_and_no_longer() -> None:
    trace = trace_of(trainfit.FSDP(world_size=4))
    (section,) = (trace.sections[i] for i in trace.steady_step if trace.sections[i].name == "micro_batch")
    copies = named(trace, "fsdp.split_with_sizes_copy.default")
    out = dict(copies[1].kwargs)["out"]  # of the first block, in forward
    assert isinstance(out, tuple)
    events = [event for event in section.events if event.storage == out[0].storage]
    assert [event.is_alloc for event in events] == [True, False, True, False]
    phases = [trace.ops[event.op].phase for event in events]
    assert phases == [Phase.FORWARD, Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD]
    assert trace.storages[out[0].storage].category is Category.PARAMETERS


def test_parameters_that_are_not_resharded_are_gathered_once() -> None:
    trace = trace_of(trainfit.FSDP(world_size=4, reshard_after_forward=False))
    assert [op.phase for op in named(trace, GATHER)] == [Phase.FORWARD] * 3


def test_resharding_to_fewer_ranks_gathers_among_those_in_backward() -> None:
    trace = trace_of(trainfit.FSDP(world_size=4, reshard_after_forward=2))
    forward, backward = (
        [op for op in named(trace, GATHER) if op.phase is phase] for phase in (Phase.FORWARD, Phase.BACKWARD)
    )
    assert [ranks(op) for op in forward] == [(0, 1, 2, 3)] * 3
    assert [ranks(op) for op in backward] == [(0, 1)] * 2
    # Half of what was gathered, padding included.
    assert refs(backward[0])[1] == ("float32", (2 * SHARD,))


def test_mixed_precision_gathers_and_reduces_in_its_own_dtypes() -> None:
    mixed = trainfit.FSDP(world_size=4, param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    trace = trace_of(mixed)
    assert refs(named(trace, GATHER)[1]) == [("bfloat16", (4 * SHARD,)), ("bfloat16", (SHARD,))]
    assert refs(named(trace, REDUCE)[0]) == [("float32", (SHARD,)), ("float32", (4 * SHARD,))]
    assert {ref.dtype for op in named(trace, "aten.addmm.default") for ref in op.input_refs()} == {"bfloat16"}
    unsharded = {event.storage for section in trace.sections for event in section.events}
    assert 2 * 12 * 6 in {trace.storages[number].nbytes for number in unsharded}


def test_hsdp_reduces_within_a_group_and_sums_across_groups() -> None:
    trace = trace_of(trainfit.FSDP(world_size=8, hsdp=4))
    assert {ranks(op) for op in (*named(trace, GATHER), *named(trace, REDUCE))} == {(0, 1, 2, 3)}
    sums = named(trace, SUM)
    assert [ranks(op) for op in sums] == [(0, 4)] * 3
    assert [refs(op) for op in sums] == [[("float32", (size,))] for size in (SHARD, ROOT_SHARD, SHARD)]
    assert {op.stream for op in sums} == {SUM_STREAM}


def test_collectives_of_a_group_wait_for_each_other_and_compute_waits_for_them() -> None:
    trace = trace_of(trainfit.FSDP(world_size=4))
    ops = list(steady_ops(trace))
    previous = None
    for number, op in enumerate(ops):
        if op.name in (GATHER, REDUCE):
            assert previous is None or number - previous in op.waits
            previous = number
    copy_out = ops.index(named(trace, "fsdp.split_with_sizes_copy.default")[0])
    gather = ops.index(named(trace, GATHER)[0])
    told = [
        number - back for number in range(gather, copy_out + 1) if ops[number].stream == 0 for back in ops[number].waits
    ]
    assert gather in told


@pytest.mark.parametrize(("every", "reductions"), [(True, [3, 3, 3]), (False, [0, 0, 3])])
def test_gradient_accumulation_reduces_every_time_or_at_the_end(every: bool, reductions: list[int]) -> None:
    fsdp = trainfit.FSDP(world_size=4, sync_every_micro_batch=every)
    trace = trace_of(fsdp, micro_batches=4)
    names = [trace.sections[index].name for index in trace.steady_step]
    assert names == ["micro_batch", *["next_micro_batch"] * 2, "last_micro_batch", "optimizer_step", "zero_grad"]
    counts = Counter[str]()
    for index in set(trace.steady_step):
        section = trace.sections[index]
        counts[section.name] = sum(op.name == REDUCE for op in trace.ops[section.first_op : section.last_op])
    assert [counts[name] for name in ("micro_batch", "next_micro_batch", "last_micro_batch")] == reductions


def test_unsynchronized_gradients_are_kept_whole() -> None:
    step = make_step(trainfit.FSDP(world_size=4, sync_every_micro_batch=False), micro_batches=2)
    synchronized = replace(step, fsdp=trainfit.FSDP(world_size=4))
    kept, shards = (max_gradients(trainfit.estimate(each, "h200")) for each in (step, synchronized))
    # Ten parameters' whole gradients in blocks of 512 bytes, or the shards alone, in one buffer for each unit. While
    # the last micro-batch is reduced, there are both of the root: its whole gradients go first.
    assert (kept, shards) == (10 * 512, 3 * 512)


def max_gradients(estimate: trainfit.Estimate) -> int:
    position = list(Category).index(Category.GRADIENTS)
    return max(point.bytes_by_category[position] for point in estimate.timeline)


def test_between_steps_a_rank_holds_its_shards_their_state_and_the_batch() -> None:
    estimate = trainfit.estimate(make_step(trainfit.FSDP(world_size=4)), "h200")
    last = dict(zip(Category, estimate.timeline[-1].bytes_by_category, strict=True))
    assert last[Category.PARAMETERS] == 10 * 512  # ten parameters, each a block
    assert last[Category.OPTIMIZER] == 2 * 10 * 512
    assert last[Category.GRADIENTS] == last[Category.ACTIVATIONS] == 0


def test_units_are_the_repeated_blocks_unless_named() -> None:
    named_units = trace_of(trainfit.FSDP(world_size=4, units=("blocks.0.up",)))
    # up of block 0: 18 + 3; the root has the rest: 20 + 2 of block 0, 43 of block 1, 14 of the head.
    assert [refs(op)[1][1] for op in named(named_units, GATHER)] == [(22 + SHARD + ROOT_SHARD,), (21,), (21,)]
    with pytest.raises(trainfit.errors.BadStep, match=r"names 'blocks\.7'"):
        trace_of(trainfit.FSDP(world_size=4, units=("blocks.7",)))


def test_clipping_sums_the_norm_over_all_ranks() -> None:
    trace = trace_of(trainfit.FSDP(world_size=4), clip_grad_norm=1.0)
    assert any(
        op.name == "_c10d_functional.all_reduce.default" and op.phase is Phase.OPTIMIZER for op in steady_ops(trace)
    )


def test_exposed_communication_is_what_the_step_would_save_without_it() -> None:
    slow = trainfit.FSDP(world_size=4, intra_node_gb_per_s=1e-6)
    estimate = trainfit.estimate(make_step(slow), "h200")
    fast = trainfit.estimate(make_step(replace(slow, intra_node_gb_per_s=1e6)), "h200")
    assert estimate.time is not None
    assert fast.time is not None
    # 1 KB/s: gathers of 224, 4 x 688 bytes and reductions of 2 x 688, 224 bytes; three quarters of each go out.
    seconds = 0.75 * (2 * 4 * 4 * ROOT_SHARD + 6 * 4 * 4 * SHARD) / 1e3
    assert estimate.time.communication_ms == pytest.approx(1e3 * seconds, rel=1e-3)
    assert estimate.time.exposed_communication_ms == pytest.approx(1e3 * seconds, rel=1e-2)
    assert fast.time.exposed_communication_ms < fast.time.communication_ms
    assert estimate.to_json_dict()["exposed_communication_ms"] == round(estimate.time.exposed_communication_ms, 3)
    assert (estimate.time.bound_by, fast.time.bound_by) == ("communication", "launches")
    assert "communication bounds it" in str(estimate)
    # What the GPU waits for the CPU has nothing of what it waits for others.
    assert fast.time.waiting_ms == pytest.approx(estimate.time.waiting_ms, rel=0.05)


def tensor(dtype: str, *shape: int, storage: int = 0) -> TensorRef:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return TensorRef(storage, dtype, shape, tuple(strides), 0)


@pytest.mark.parametrize(
    ("name", "args", "out", "nbytes"),
    [
        # Per split two addresses, a size and a sum, a first 0, and per block a number: 4 x 2 + 1 + 2 of 8 bytes.
        ("split_with_sizes_copy", (tensor("float32", 4, 21), (18, 3), 1), (), 88),
        # One split of 32 MiB on 8 ranks: 131072 tiles of 2 KiB for 4224 blocks, 32 each: 6 of the 8 chunks, and of each
        # 6 tiles at a time: 2731 blocks.
        ("split_with_sizes_copy", (tensor("bfloat16", 8, 2**24), (2**24,), 1), (), 8 * (4 + 1 + 2731)),
        # Per tensor six numbers, two first 0s, and per block a number; a chunk of 3 x 6 or 3 numbers is one block.
        ("chunk_cat", ((tensor("float32", 10, 6), tensor("float32", 10)), 0, 4), tensor("float32", 4, 21), 128),
        # A chunk of 2**21 bfloat16 numbers is 8 MiB of float32: 4096 blocks of 2 KiB.
        ("chunk_cat", ((tensor("bfloat16", 2**13, 2**10),), 0, 4), tensor("float32", 4, 2**21), 8 * (8 + 4096)),
    ],
)
def test_the_copies_around_collectives_take_tables(
    name: str, args: tuple[object, ...], out: TensorRef | tuple[()], nbytes: int
) -> None:
    op = Op(f"fsdp.{name}.default", Phase.BACKWARD, "", args, (("out", out),), ())
    assert hidden_memory(H200, "2.11.0").temporaries(op) == (nbytes,)


def test_a_unit_of_two_dtypes_takes_a_table_for_each() -> None:
    gradients = (tensor("float32", 10, 6), tensor("bfloat16", 10), tensor("float32", 10))
    out = tensor("float32", 4, 24)
    op = Op("fsdp.chunk_cat_mixed_dtype.default", Phase.BACKWARD, "", (gradients, 0, 4), (("out", out),), ())
    two_tensors, one_tensor = 8 * (6 * 2 + 2 + 2), 8 * (6 + 2 + 1)
    assert hidden_memory(H200, "2.15.0").temporaries(op) == (two_tensors, -two_tensors, one_tensor)


def test_recomputation_costs_less_where_the_gpu_would_wait_for_collectives() -> None:
    fsdp = trainfit.FSDP(world_size=4)
    blocks = ["blocks.0", "blocks.1"]
    pricing = pricing_for(H200)
    trace = trace_of(fsdp)
    slow, fast = (replace(pricing, network=network_of(H200, intra_gb_per_s=rate)) for rate in (1e-4, 1e9))
    work_ns = 10**6
    # At 0.1 MB/s a block's gradients take 5 ms to reduce, and its parameters as long to gather, one after the other: a
    # millisecond of work before either block's backward passes while something is under way.
    assert hidden_behind_communication_ns(trace, slow, blocks, work_ns) == pytest.approx(work_ns, rel=0.01)
    assert hidden_behind_communication_ns(trace, fast, blocks, 10**8) == pytest.approx(0, abs=10**6)
    # On one GPU there is nothing to wait for.
    alone = trace_step(replace(make_step(fsdp), fsdp=None), H200)
    assert hidden_behind_communication_ns(alone, pricing, blocks, work_ns) == 0


def test_a_plan_for_a_rank_is_what_the_planned_rank_takes() -> None:
    mixed = trainfit.FSDP(world_size=4, param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    step = replace(make_step(mixed), batch=(torch.zeros(2**18, 6),))
    plan = trainfit.plan(step, "h200", budget="min", memory="allocated")
    assert plan.predicted.parallelism == "FSDP2 over 4 GPUs"
    assert {block for decision in plan.decisions for block in decision.blocks} <= {"blocks.0", "blocks.1"}
    assert plan.decisions

    def planned() -> nn.Module:
        model = Model()
        plan.apply(model, strict=True)
        return model

    estimate = trainfit.estimate(replace(step, model=planned), "h200")
    assert estimate.peak_allocated_bytes == plan.predicted.peak_allocated_bytes
    assert estimate.peak_allocated_bytes < trainfit.estimate(step, "h200").peak_allocated_bytes
