"""The unplanned step's memory by position, on a trace small enough to draw."""

from __future__ import annotations

from dataclasses import replace

from trainfit.records import (
    LAST_OUTPUT,
    OUTPUT,
    BlockProgram,
    Category,
    MemoryEvent,
    Op,
    Phase,
    Section,
    Storage,
    TensorRef,
    Trace,
)
from trainfit.solve.memory import base_memory, resident_storages

UNIT = 512


def traced(ops: list[tuple[Phase, str, list[int], list[int]]], units: list[int], at_start: list[int]) -> Trace:
    """Ops as (phase, module, storages that appear, storages that go); one section after the one that builds."""
    events = [
        MemoryEvent(index, storage, is_alloc)
        for index, (_, _, come, go) in enumerate(ops)
        for is_alloc, storages in ((True, come), (False, go))
        for storage in storages
    ]
    return Trace(
        gpu="h200",
        torch_version="2.13.0",
        num_parameters=0,
        ops=tuple(Op("aten.f.default", phase, module, (), (), ()) for phase, module, _, _ in ops),
        storages=tuple(Storage(UNIT * n, Category.ACTIVATIONS) for n in units),
        sections=(
            Section("build", 0, 0, tuple(MemoryEvent(-1, s, True) for s in at_start)),
            Section("micro_batch", 0, len(ops), tuple(events)),
        ),
        first_step=(0, 1),
        steady_step=(1,),
    )


def nothing_hidden(op: Op) -> tuple[int, ...]:
    return ()


F, B, OPT = Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER

# Storage 0 is the parameters (10), 1 and 2 what the blocks save (3 and 4), 3 a temporary of the loss (20), 4 and 5 the
# gradients (2 each), 6 the optimizer's temporary (1).
TWO_BLOCKS = traced(
    [
        (F, "layers.0.mlp", [1], []),
        (F, "layers.1.mlp", [2], []),
        (F, "", [3], []),
        (B, "", [], [3]),
        (B, "layers.1.mlp", [4], [2]),
        (B, "layers.0.mlp", [5], [1]),
        (OPT, "", [6], [6, 4, 5]),
    ],
    [10, 3, 4, 20, 2, 2, 1],
    at_start=[0],
)


def unrecorded(names: list[str]) -> dict[str, BlockProgram]:
    """Blocks whose programs are found nowhere in a trace."""
    return dict.fromkeys(names, BlockProgram((), (), (), (), (), (), ()))


def test_each_position_has_the_most_bytes_of_its_moments() -> None:
    memory = base_memory(TWO_BLOCKS, unrecorded(["layers.0", "layers.1", "never.run"]), nothing_hidden)
    assert memory.blocks == ("layers.0", "layers.1")
    units = [tuple(n // UNIT for n in sizes) for sizes in (memory.forward_bytes, memory.other_bytes)]
    assert units == [(13, 17, 37), (15, 0, 37)]
    assert tuple(n // UNIT for n in memory.backward_bytes) == (17, 19)
    assert tuple(n // UNIT for n in memory.start_bytes) == (15, 17)


def test_each_size_names_the_op_at_which_it_is_reached() -> None:
    memory = base_memory(TWO_BLOCKS, unrecorded(["layers.0", "layers.1"]), nothing_hidden)
    assert (memory.forward_op, memory.other_op, memory.backward_op) == ((0, 1, 2), (6, -1, 3), (5, 4))


def test_a_block_without_backward_is_no_block() -> None:
    frozen = traced([(F, "layers.0", [1], []), (F, "layers.1", [2], []), (B, "layers.1", [], [2])], [1, 1, 1], [0])
    assert base_memory(frozen, unrecorded(["layers.0", "layers.1"]), nothing_hidden).blocks == ("layers.1",)


def test_a_name_that_another_one_starts_with_is_not_taken_for_it() -> None:
    similar = traced(
        [(F, "layers.1", [1], []), (F, "layers.10", [2], []), (B, "layers.10", [], [2]), (B, "layers.1", [], [1])],
        [1, 3, 4],
        [0],
    )
    memory = base_memory(similar, unrecorded(["layers.1", "layers.10"]), nothing_hidden)
    assert memory.blocks == ("layers.1", "layers.10")
    assert tuple(n // UNIT for n in memory.forward_bytes) == (4, 8, 0)


def test_blocks_that_overlap_count_only_where_all_before_them_are_between_forward_and_backward() -> None:
    # Block 0 runs again after block 1: while block 1 runs, nothing of block 0 may be taken for dropped.
    twice = traced(
        [
            (F, "a", [1], []),
            (F, "b", [2], []),
            (F, "a", [3], []),
            (F, "", [], []),
            (B, "a", [], [3]),
            (B, "b", [], [2]),
            (B, "a", [], [1]),
        ],
        [10, 1, 2, 4],
        [0],
    )
    memory = base_memory(twice, unrecorded(["a", "b"]), nothing_hidden)
    assert tuple(n // UNIT for n in memory.forward_bytes) == (17, 0, 17)
    assert tuple(n // UNIT for n in memory.backward_bytes) == (17, 0)


def test_inputs_and_outputs_that_go_before_backward_are_found_by_following_the_program() -> None:
    def ref(storage: int) -> TensorRef:
        return TensorRef(storage, "float32", (1,), (1,), 0)

    def op(name: str, module: str, reads: list[int], writes: list[int], phase: Phase = F) -> Op:
        return Op(name, phase, module, tuple(map(ref, reads)), (), tuple(map(ref, writes)))

    # In the trace the block's input is 7, its output 9; a view and a module that lives elsewhere are in between.
    ops = (
        op("aten.f.default", "", [], [7]),
        op("aten.view.default", "block", [7], [7]),
        op("aten.mm.default", "block", [7], [8]),
        op("aten.rope.default", "elsewhere", [8], [5]),
        op("aten.add.Tensor", "block", [5, 7], [9]),
        op("aten.sum.default", "", [9], [10]),
        op("aten.mm.default", "block", [10], [11], B),
    )
    program = BlockProgram(
        ops=(
            op("aten.mm.default", "", [0], [1]),
            op("aten.rope.default", "", [1], [2]),
            op("aten.add.Tensor", "", [2, 0], [3]),
        ),
        storage_bytes=(UNIT,) * 4,
        inputs=(ref(0),),
        parameters=(),
        saved=(ref(1),),
        outputs=(ref(3),),
        submodule_outputs=(),
    )

    def trace_with(*frees: MemoryEvent) -> Trace:
        section = Section("micro_batch", 0, len(ops), frees)
        return replace(TWO_BLOCKS, ops=ops, sections=(section,), first_step=(0,), steady_step=(0,))

    assert resident_storages(trace_with(), "block", program) == {0, 3}
    assert resident_storages(trace_with(MemoryEvent(4, 7, False)), "block", program) == {3}
    assert resident_storages(trace_with(MemoryEvent(5, 9, False), MemoryEvent(6, 7, False)), "block", program) == {0}


def test_the_temporaries_of_a_kernel_count_while_it_runs() -> None:
    def hidden(op: Op) -> tuple[int, ...]:
        return (1000, OUTPUT, LAST_OUTPUT, 600, -600, -1000) if op.phase is B else ()

    plain = base_memory(TWO_BLOCKS, unrecorded(["layers.0", "layers.1"]), nothing_hidden)
    memory = base_memory(TWO_BLOCKS, unrecorded(["layers.0", "layers.1"]), hidden)
    assert memory.forward_bytes == plain.forward_bytes
    assert memory.backward_bytes == tuple(size + 4 * UNIT for size in plain.backward_bytes)
    assert memory.start_bytes == plain.start_bytes
