"""Small block programs for the solver's tests: written by hand, and drawn by hypothesis."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from trainfit.records import BlockProgram, Op, Phase, TensorRef
from trainfit.solve.graph import BlockGraph, build_graph
from trainfit.solve.memory import BaseMemory
from trainfit.solve.menu import frontier
from trainfit.solve.whole import Problem

UNIT = 512


def ref(storage: int) -> TensorRef:
    return TensorRef(storage, "float32", (1,), (1,), 0)


def op(name: str, reads: Sequence[int], writes: Sequence[int], module: str = "") -> Op:
    return Op(name, Phase.FORWARD, module, tuple(ref(s) for s in reads), (), tuple(ref(s) for s in writes))


def program(
    ops: Sequence[Op],
    units: Sequence[int],
    *,
    inputs: Sequence[int],
    saved: Sequence[int],
    outputs: Sequence[int] = (),
    parameters: Sequence[int] = (),
    submodule_outputs: Sequence[int] = (),
    saved_after: Sequence[int] = (),
) -> BlockProgram:
    """A program whose storage s has `units[s]` times 512 bytes."""
    return BlockProgram(
        ops=tuple(ops),
        storage_bytes=tuple(UNIT * n for n in units),
        inputs=tuple(ref(s) for s in inputs),
        parameters=tuple((f"p{s}", ref(s)) for s in parameters),
        saved=tuple(ref(s) for s in saved),
        outputs=tuple(ref(s) for s in outputs),
        submodule_outputs=tuple((f"m{s}", s) for s in submodule_outputs),
        saved_after=tuple(saved_after) or (len(ops),) * len(saved),
        writes=tuple((i, (o.outputs[0].storage,)) for i, o in enumerate(ops) if o.name.split(".")[1].endswith("_")),
        random=tuple(i for i, o in enumerate(ops) if "dropout" in o.name),
        opaque=tuple(i for i, o in enumerate(ops) if o.name.startswith("c10d")),
    )


@st.composite
def programs(draw: st.DrawFn, max_ops: int = 8) -> tuple[BlockProgram, list[int]]:
    """A program and the ns of its ops: branches, views that share a storage, in-place, random and opaque ops.

    A view of a storage is the same storage read again, so sharing is drawn as several reads and several saves of one
    number; storage 0 is the input, 1 a parameter.
    """
    num_storages = 2
    ops: list[Op] = []
    for _ in range(draw(st.integers(1, max_ops))):
        reads = draw(st.lists(st.integers(0, num_storages - 1), min_size=1, max_size=3))
        kind = draw(st.sampled_from(["plain"] * 5 + ["in place"] * 2 + ["random"] * 2 + ["opaque"]))
        if kind == "in place":
            written = reads[0] if reads[0] != 1 else 0
            ops.append(op("aten.add_.Tensor", [written, *reads[1:]], [written]))
            continue
        name = {"plain": "aten.mm.default", "random": "aten.native_dropout.default"}.get(
            kind, "c10d.all_reduce.default"
        )
        num_outputs = draw(st.integers(1, 2))
        ops.append(op(name, reads, range(num_storages, num_storages + num_outputs)))
        num_storages += num_outputs
    made = st.integers(0, num_storages - 1)
    drawn = program(
        ops,
        [draw(st.integers(0, 6)) for _ in range(num_storages)],
        inputs=[0],
        parameters=[1],
        saved=(saved := draw(st.lists(made, max_size=6))),
        saved_after=[draw(st.integers(0, len(ops))) for _ in saved],
        outputs=[num_storages - 1],
        submodule_outputs=draw(st.lists(made, max_size=2)),
    )
    return drawn, [draw(st.integers(0, 9)) for _ in ops]


def memory_of(slopes: list[tuple[int, int]], loss_units: int) -> BaseMemory:
    """Blocks after which `saved` units stay, and in whose backward `gradient` units are added that stay."""
    num_blocks = len(slopes)
    other, backward = [], []
    for p in range(num_blocks):
        saved_before = sum(saved for saved, _ in slopes[: p + 1])
        gradients = sum(gradient for _, gradient in slopes[p:])
        other.append(UNIT * saved_before)
        backward.append(UNIT * (saved_before + gradients + 3))
    other.append(UNIT * (sum(saved for saved, _ in slopes) + loss_units))
    return BaseMemory(
        blocks=tuple(f"layers.{p}" for p in range(num_blocks)),
        forward_bytes=tuple(size - UNIT for size in other),
        other_bytes=tuple(other),
        backward_bytes=tuple(backward),
        start_bytes=tuple(size - 2 * UNIT for size in backward),
        forward_op=tuple(range(num_blocks + 1)),
        other_op=tuple(range(50, 51 + num_blocks)),
        backward_op=tuple(range(100, 100 + num_blocks)),
    )


def equal_blocks(num_blocks: int, *, gradient_units: int = 0) -> Problem:
    """Blocks that save a (6 units, 10 ns to rebuild) and b (4 units, 1 ns), after which one unit stays besides."""
    block = program(
        [op("aten.mm.default", [0], [1]), op("aten.silu.default", [0], [2])], [1, 6, 4], inputs=[0], saved=[1, 2]
    )
    graph = build_graph(block, [10, 1])
    return Problem(
        memory=memory_of([(11, gradient_units)] * num_blocks, 5),
        class_of=(0,) * num_blocks,
        graphs=(graph,),
        menus=(frontier(graph),),
        base_ns=1000,
    )


def cast_and_product() -> BlockGraph:
    """A cast of a parameter (4 units, 1 ns) and a product with it (4 units, 10 ns), both saved."""
    block = program(
        [op("aten._to_copy.default", [1], [2]), op("aten.mm.default", [0, 2], [3])],
        [1, 8, 4, 4],
        inputs=[0],
        parameters=[1],
        saved=[2, 3],
    )
    return build_graph(block, [1, 10])


@st.composite
def problems(draw: st.DrawFn) -> tuple[Problem, list[BlockProgram]]:
    """One or two classes of small blocks in runs of up to three."""
    cases = draw(st.lists(programs(max_ops=5), min_size=1, max_size=2))
    graphs = tuple(build_graph(drawn, times) for drawn, times in cases)
    class_of: list[int] = []
    for _ in range(draw(st.integers(1, 3))):
        class_of += [draw(st.integers(0, len(graphs) - 1))] * draw(st.integers(1, 3))
    class_of = class_of[:5]
    gradient_units = [draw(st.integers(0, 8)) for _ in graphs]
    slopes = [(graphs[c].saved_bytes // UNIT + 1, gradient_units[c]) for c in class_of]
    return (
        Problem(
            memory=memory_of(slopes, draw(st.integers(0, 8))),
            class_of=tuple(class_of),
            graphs=graphs,
            menus=tuple(frontier(graph) for graph in graphs),
            base_ns=10,
        ),
        [drawn for drawn, _ in cases],
    )
