"""`simulate_memory` on toy traces whose bytes are added up by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainfit.records import OUTPUT, Category, MemoryEvent, Op, Phase, Section, Storage, Trace
from trainfit.simulate.allocator import AllocatorMode
from trainfit.simulate.memory import simulate_memory

MIB = 2**20
BOTH_MODES = pytest.mark.parametrize("mode", ["classic", "expandable"])


@dataclass(frozen=True)
class Hidden:
    """Hidden memory by op name."""

    temporaries_by_name: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    workspaces_by_name: Mapping[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)

    def temporaries(self, op: Op) -> tuple[int, ...]:
        return self.temporaries_by_name.get(op.name, ())

    def workspaces(self, op: Op) -> tuple[tuple[str, int], ...]:
        return self.workspaces_by_name.get(op.name, ())


NOTHING_HIDDEN = Hidden()


def make_op(name: str, phase: Phase = Phase.FORWARD) -> Op:
    return Op(name=name, phase=phase, module="", args=(), kwargs=(), outputs=())


def make_trace(
    *,
    ops: list[Op],
    storages: dict[str, tuple[int, Category]],
    sections: dict[str, tuple[range, list[str]]],
    first_step: list[str],
    steady_step: list[str],
) -> Trace:
    """A trace whose events are written "op +storage" and "op -storage"; storages are numbered in their order.

    "op +storage@2" takes the memory of stream 2.
    """
    storage_numbers = {name: number for number, name in enumerate(storages)}
    section_numbers = {name: number for number, name in enumerate(sections)}

    def event(text: str) -> MemoryEvent:
        op, change = text.split()
        name, _, stream = change[1:].partition("@")
        return MemoryEvent(int(op), storage_numbers[name], change[0] == "+", int(stream or 0))

    return Trace(
        gpu="h200",
        torch_version="2.13.0",
        num_parameters=0,
        ops=tuple(ops),
        storages=tuple(Storage(nbytes, category) for nbytes, category in storages.values()),
        sections=tuple(
            Section(name, ops.start, ops.stop, tuple(map(event, events))) for name, (ops, events) in sections.items()
        ),
        first_step=tuple(section_numbers[name] for name in first_step),
        steady_step=tuple(section_numbers[name] for name in steady_step),
    )


def one_section(storages: dict[str, tuple[int, Category]], events: list[str], ops: list[Op]) -> Trace:
    """A step that is the same from the first on."""
    return make_trace(
        ops=ops,
        storages=storages,
        sections={"micro_batch": (range(len(ops)), events)},
        first_step=["micro_batch"],
        steady_step=["micro_batch"],
    )


def by_category(**nbytes: int) -> tuple[int, ...]:
    assert set(nbytes) <= set(Category)
    return tuple(nbytes.get(category, 0) for category in Category)


TRAINING = make_trace(
    ops=[
        make_op("empty", Phase.BUILD),
        make_op("forward"),
        make_op("backward", Phase.BACKWARD),
        make_op("create_state", Phase.OPTIMIZER),
        make_op("update", Phase.OPTIMIZER),
    ],
    storages={
        "weight": (20 * MIB, Category.PARAMETERS),
        "cast": (10 * MIB, Category.TEMPORARIES),
        "saved": (40 * MIB, Category.ACTIVATIONS),
        "gradient": (20 * MIB, Category.GRADIENTS),
        "moment": (40 * MIB, Category.OPTIMIZER),
        "square": (20 * MIB, Category.TEMPORARIES),
    },
    sections={
        "build": (range(1), ["0 +weight"]),
        "micro_batch": (range(1, 3), ["1 +cast", "1 +saved", "1 -cast", "2 +gradient", "2 -saved"]),
        "first_optimizer_step": (range(3, 4), ["3 +moment"]),
        "optimizer_step": (range(4, 5), ["4 +square", "4 -square"]),
        "zero_grad": (range(5, 5), ["4 -gradient"]),
    },
    first_step=["build", "micro_batch", "first_optimizer_step", "zero_grad"],
    steady_step=["micro_batch", "optimizer_step", "zero_grad"],
)


# MiB. Before a steady step: weight 20, moment 40. Forward reaches 60 + 10 + 40, backward 60 + 40 + 20.
#
# Classic, segments of exactly the tensors' sizes: first step 20, 10, 40, 20, and `moment` takes the 40 of `saved`; so
# the second step reserves 40 more for `saved`, and that was all: 130.
# Expandable, pages of 20: first step weight 0-20, cast 20-30, saved 30-70, gradient 70-90 (100 mapped), moment 20-60.
# Second step, 60-100 free: cast 60-70, saved 70-110, gradient 110-130 (140 mapped), square 60-80. Then all repeats.
@pytest.mark.parametrize(("mode", "reserved_mib"), [("classic", 130), ("expandable", 140)])
def test_a_training_step_adds_up(mode: AllocatorMode, reserved_mib: int) -> None:
    timeline = simulate_memory(TRAINING, NOTHING_HIDDEN, mode)
    assert timeline.peak_allocated_bytes == 120 * MIB
    assert timeline.peak_reserved_bytes == reserved_mib * MIB
    assert timeline.peak_op == 2
    assert timeline.breakdown_bytes == (
        (Category.PARAMETERS, 20 * MIB),
        (Category.GRADIENTS, 20 * MIB),
        (Category.OPTIMIZER, 40 * MIB),
        (Category.ACTIVATIONS, 40 * MIB),
        (Category.TEMPORARIES, 0),
        (Category.WORKSPACES, 0),
        (Category.OTHER, 0),
    )


def test_points_are_bytes_after_each_op_and_at_the_peak_op_those_of_the_peak() -> None:
    timeline = simulate_memory(TRAINING, NOTHING_HIDDEN, "expandable")
    assert [(point.op, point.time_ns, point.bytes_by_category) for point in timeline.points] == [
        (1, 0, by_category(parameters=20 * MIB, optimizer=40 * MIB, activations=40 * MIB)),
        (2, 0, by_category(parameters=20 * MIB, optimizer=40 * MIB, activations=40 * MIB, gradients=20 * MIB)),
        (4, 0, by_category(parameters=20 * MIB, optimizer=40 * MIB)),  # with zero_grad, which has no op of its own
    ]


def test_the_first_step_does_not_count_for_the_allocated_peak() -> None:
    trace = make_trace(
        ops=[make_op("build", Phase.BUILD), make_op("forward")],
        storages={"scratch": (100 * MIB, Category.TEMPORARIES), "saved": (20 * MIB, Category.ACTIVATIONS)},
        sections={
            "build": (range(1), ["0 +scratch", "0 -scratch"]),
            "micro_batch": (range(1, 2), ["1 +saved", "1 -saved"]),
        },
        first_step=["build"],
        steady_step=["micro_batch"],
    )
    timeline = simulate_memory(trace, NOTHING_HIDDEN, "classic")
    assert timeline.peak_allocated_bytes == 20 * MIB
    assert timeline.peak_reserved_bytes == 100 * MIB


@pytest.mark.parametrize(("mode", "block_mib"), [("classic", 16), ("expandable", 15.5)])
def test_the_breakdown_counts_blocks_with_their_slack(mode: AllocatorMode, block_mib: float) -> None:
    storages = {"saved": (15 * MIB + MIB // 2, Category.ACTIVATIONS), "seed": (8, Category.OTHER)}
    trace = one_section(storages, ["0 +saved", "0 +seed", "0 -saved", "0 -seed"], [make_op("forward")])
    timeline = simulate_memory(trace, NOTHING_HIDDEN, mode)
    assert dict(timeline.breakdown_bytes)[Category.ACTIVATIONS] == block_mib * MIB
    assert dict(timeline.breakdown_bytes)[Category.OTHER] == 512
    assert timeline.peak_allocated_bytes == block_mib * MIB + 512


@BOTH_MODES
def test_a_workspace_is_allocated_at_its_first_use_and_stays(mode: AllocatorMode) -> None:
    trace = one_section(
        {"out": (20 * MIB, Category.TEMPORARIES)},
        ["0 +out", "3 -out"],
        [make_op("mm"), make_op("mm"), make_op("mm", Phase.BACKWARD), make_op("add", Phase.OPTIMIZER)],
    )
    timeline = simulate_memory(trace, Hidden(workspaces_by_name={"mm": (("cublas", 32 * MIB),)}), mode)
    assert timeline.peak_allocated_bytes == (20 + 32 + 32) * MIB
    assert dict(timeline.breakdown_bytes)[Category.WORKSPACES] == 64 * MIB
    assert timeline.points[-1].bytes_by_category == by_category(workspaces=64 * MIB)


@pytest.mark.parametrize(
    ("phases", "num_workspaces"),
    [
        ((Phase.BUILD, Phase.FORWARD, Phase.OPTIMIZER), 1),
        ((Phase.FORWARD, Phase.BACKWARD), 2),
        ((Phase.FORWARD, Phase.RECOMPUTE), 2),
        ((Phase.RECOMPUTE, Phase.BACKWARD), 1),
    ],
)
def test_workspaces_belong_to_the_main_and_the_autograd_thread(phases: tuple[Phase, ...], num_workspaces: int) -> None:
    trace = one_section({}, [], [make_op("mm", phase) for phase in phases])
    timeline = simulate_memory(trace, Hidden(workspaces_by_name={"mm": (("cublas", 8_519_680),)}), "expandable")
    assert timeline.peak_allocated_bytes == num_workspaces * 8_519_680


@BOTH_MODES
def test_each_library_has_a_workspace_per_thread(mode: AllocatorMode) -> None:
    trace = one_section({}, [], [make_op("mm"), make_op("addmm"), make_op("addmm", Phase.BACKWARD)])
    cublas, cublaslt = ("cublas", 32 * MIB), ("cublaslt", MIB)
    hidden = Hidden(workspaces_by_name={"mm": (cublas,), "addmm": (cublas, cublaslt)})
    timeline = simulate_memory(trace, hidden, mode)
    assert timeline.peak_allocated_bytes == 2 * (32 + 1) * MIB


# Which of two requests finds the one free block of 20 MiB, left by `build`, shows in what is reserved:
# 12 MiB in the old segment and a new one of 20 make 40; 20 MiB in the old one and a new one of 12 make 32.
@pytest.mark.parametrize(
    ("hidden", "reserved_mib"),
    [
        pytest.param(Hidden({"mm": (20 * MIB,)}), 40, id="temporaries come after the outputs"),
        pytest.param(Hidden({"mm": (20 * MIB, OUTPUT)}), 32, id="unless the kernel makes them first"),
        pytest.param(Hidden(workspaces_by_name={"mm": (("cublas", 20 * MIB),)}), 40, id="workspaces come last"),
    ],
)
def test_order_of_hidden_memory(hidden: Hidden, reserved_mib: int) -> None:
    trace = make_trace(
        ops=[make_op("empty", Phase.BUILD), make_op("mm")],
        storages={"scratch": (20 * MIB, Category.TEMPORARIES), "out": (12 * MIB, Category.ACTIVATIONS)},
        sections={
            "build": (range(1), ["0 +scratch", "0 -scratch"]),
            "micro_batch": (range(1, 2), ["1 +out"]),  # a cache, so that later steps change nothing
        },
        first_step=["build", "micro_batch"],
        steady_step=["micro_batch"],
    )
    assert simulate_memory(trace, hidden, "classic").peak_reserved_bytes == reserved_mib * MIB


@BOTH_MODES
def test_a_temporary_may_go_before_an_output_comes(mode: AllocatorMode) -> None:
    trace = one_section({"out": (20 * MIB, Category.GRADIENTS)}, ["0 +out", "0 -out"], [make_op("sort")])
    timeline = simulate_memory(trace, Hidden({"sort": (40 * MIB, 2 * MIB, -40 * MIB, OUTPUT)}), mode)
    assert timeline.peak_allocated_bytes == 42 * MIB


@BOTH_MODES
def test_hidden_temporaries_live_beside_what_the_op_frees(mode: AllocatorMode) -> None:
    storages = {"input": (20 * MIB, Category.ACTIVATIONS), "out": (40 * MIB, Category.GRADIENTS)}
    trace = one_section(
        storages,
        ["0 +input", "1 +out", "1 -input", "2 -out"],
        [make_op("forward"), make_op("embedding_backward", Phase.BACKWARD), make_op("add_")],
    )
    timeline = simulate_memory(trace, Hidden({"embedding_backward": (60 * MIB, 20 * MIB)}), mode)
    assert timeline.peak_allocated_bytes == (20 + 40 + 60 + 20) * MIB
    assert timeline.peak_op == 1
    assert [point.bytes_by_category for point in timeline.points] == [
        by_category(activations=20 * MIB),
        by_category(activations=20 * MIB, gradients=40 * MIB, temporaries=80 * MIB),
        by_category(),
    ]


@BOTH_MODES
def test_an_op_without_events_can_be_the_peak_and_the_next_op_shows_the_end_of_it(mode: AllocatorMode) -> None:
    trace = one_section(
        {"saved": (20 * MIB, Category.ACTIVATIONS)},
        ["0 +saved", "3 -saved"],
        [make_op("forward"), make_op("sort_"), make_op("cumsum_"), make_op("backward", Phase.BACKWARD)],
    )
    timeline = simulate_memory(trace, Hidden({"sort_": (20 * MIB,), "cumsum_": (512,)}), mode)
    assert timeline.peak_allocated_bytes == 40 * MIB
    assert timeline.peak_op == 1
    assert [(point.op, sum(point.bytes_by_category)) for point in timeline.points] == [
        (0, 20 * MIB),
        (1, 40 * MIB),
        (2, 20 * MIB),
        (3, 0),
    ]


@BOTH_MODES
def test_the_peak_of_a_step_that_only_comes_back_to_its_start_is_at_its_first_op(mode: AllocatorMode) -> None:
    trace = make_trace(
        ops=[make_op("forward"), make_op("keep")],
        storages={
            "scratch": (60 * MIB, Category.TEMPORARIES),
            "output": (20 * MIB, Category.OTHER),
            "small": (2 * MIB, Category.TEMPORARIES),
        },
        sections={
            "build": (range(0), ["0 +scratch", "0 -scratch", "0 +output"]),
            # The output of the last step goes before the first op of this one.
            "micro_batch": (range(2), ["-1 -output", "0 +small", "0 -small", "1 +output"]),
        },
        first_step=["build", "micro_batch"],
        steady_step=["micro_batch"],
    )
    timeline = simulate_memory(trace, NOTHING_HIDDEN, mode)
    assert timeline.peak_allocated_bytes == 20 * MIB
    assert timeline.peak_op == 0
    assert [(point.op, point.bytes_by_category) for point in timeline.points] == [(0, by_category(other=20 * MIB))]


@BOTH_MODES
def test_a_peak_before_the_first_op_is_shown_at_that_op(mode: AllocatorMode) -> None:
    trace = make_trace(
        ops=[make_op("forward"), make_op("backward")],
        storages={"batch": (60 * MIB, Category.OTHER), "saved": (20 * MIB, Category.ACTIVATIONS)},
        sections={"load": (range(0), ["0 +batch"]), "micro_batch": (range(2), ["-1 -batch", "0 +saved", "1 -saved"])},
        first_step=[],
        steady_step=["load", "micro_batch"],
    )
    timeline = simulate_memory(trace, NOTHING_HIDDEN, mode)
    assert timeline.peak_op == 0
    assert [(point.op, point.bytes_by_category) for point in timeline.points] == [
        (0, by_category(other=60 * MIB)),
        (1, by_category()),
    ]


@BOTH_MODES
def test_what_is_freed_before_the_first_op_is_gone_when_it_allocates(mode: AllocatorMode) -> None:
    trace = make_trace(
        ops=[make_op("forward"), make_op("keep")],
        storages={"old": (20 * MIB, Category.OTHER), "new": (40 * MIB, Category.TEMPORARIES)},
        sections={
            "build": (range(0), ["0 +old"]),
            "micro_batch": (range(2), ["-1 -old", "0 +new", "0 -new", "1 +old"]),
        },
        first_step=["build", "micro_batch"],
        steady_step=["micro_batch"],
    )
    timeline = simulate_memory(trace, NOTHING_HIDDEN, mode)
    assert timeline.peak_allocated_bytes == 40 * MIB
    assert timeline.breakdown_bytes[list(Category).index(Category.TEMPORARIES)] == (Category.TEMPORARIES, 40 * MIB)


@BOTH_MODES
def test_a_cache_is_allocated_once(mode: AllocatorMode) -> None:
    storages = {"cache": (20 * MIB, Category.OTHER), "saved": (40 * MIB, Category.ACTIVATIONS)}
    trace = one_section(storages, ["0 +cache", "0 +saved", "1 -saved"], [make_op("forward"), make_op("backward")])
    timeline = simulate_memory(trace, NOTHING_HIDDEN, mode)
    assert timeline.peak_allocated_bytes == 60 * MIB
    assert timeline.peak_reserved_bytes == 60 * MIB


@BOTH_MODES
def test_a_section_lets_go_of_what_came_before_it_only_once(mode: AllocatorMode) -> None:
    trace = make_trace(
        ops=[make_op("build", Phase.BUILD), make_op("forward"), make_op("add")],
        storages={"old": (20 * MIB, Category.OTHER), "new": (40 * MIB, Category.OTHER), "sum": (8, Category.OTHER)},
        sections={
            "build": (range(1), ["0 +old"]),
            "micro_batch": (range(1, 3), ["1 +new", "1 -old", "2 +sum", "2 -sum"]),
        },
        first_step=["build"],
        steady_step=["micro_batch"],
    )
    timeline = simulate_memory(trace, NOTHING_HIDDEN, mode)
    assert timeline.peak_allocated_bytes == 40 * MIB + 512
    assert timeline.peak_op == 2


@BOTH_MODES
def test_empty_storages_take_no_memory(mode: AllocatorMode) -> None:
    storages = {"empty": (0, Category.OTHER), "saved": (512, Category.ACTIVATIONS)}
    trace = one_section(storages, ["0 +empty", "0 +saved", "0 -empty", "0 -saved"], [make_op("forward")])
    assert simulate_memory(trace, NOTHING_HIDDEN, mode).peak_allocated_bytes == 512


def test_ops_of_a_repeated_section_have_points_for_every_repetition() -> None:
    trace = make_trace(
        ops=[make_op("forward"), make_op("backward", Phase.BACKWARD)],
        storages={"saved": (20 * MIB, Category.ACTIVATIONS)},
        sections={"micro_batch": (range(2), ["0 +saved", "1 -saved"])},
        first_step=["micro_batch"],
        steady_step=["micro_batch", "micro_batch"],
    )
    timeline = simulate_memory(trace, NOTHING_HIDDEN, "classic")
    assert [(point.op, sum(point.bytes_by_category)) for point in timeline.points] == [
        (0, 20 * MIB),
        (1, 0),
        (0, 20 * MIB),
        (1, 0),
    ]


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (["0 -saved"], "section 'micro_batch' frees storage 0, which is not allocated"),
        (["0 +saved", "1 +saved"], "section 'micro_batch' allocates storage 0 twice in a row"),
        (["0 +saved", "1 -saved", "1 -saved"], "section 'micro_batch' frees storage 0 twice in a row"),
        (["0 +saved", "2 -saved"], "section 'micro_batch' has ops 0 to 1, but the event"),
        (["1 +saved", "0 -saved"], "section 'micro_batch' has ops 0 to 1, but the event"),
        ([], "no op of the trace's steady step allocates or frees"),
    ],
)
def test_inconsistent_traces_are_refused(events: list[str], message: str) -> None:
    trace = one_section({"saved": (512, Category.ACTIVATIONS)}, events, [make_op("forward"), make_op("backward")])
    with pytest.raises(ValueError, match=message):
        simulate_memory(trace, NOTHING_HIDDEN, "classic")


def test_a_free_of_what_another_section_has_freed_is_refused() -> None:
    trace = make_trace(
        ops=[make_op("forward"), make_op("update", Phase.OPTIMIZER)],
        storages={"saved": (512, Category.ACTIVATIONS)},
        sections={
            "micro_batch": (range(1), ["0 +saved", "0 -saved"]),
            "optimizer_step": (range(1, 2), ["1 -saved"]),
        },
        first_step=["micro_batch"],
        steady_step=["micro_batch", "optimizer_step"],
    )
    with pytest.raises(ValueError, match="section 'optimizer_step' frees storage 0"):
        simulate_memory(trace, NOTHING_HIDDEN, "classic")


LIFETIMES = st.lists(
    st.tuples(st.integers(0, 30 * MIB), st.sampled_from(Category), st.integers(0, 9), st.integers(0, 9)), min_size=1
)


@given(lifetimes=LIFETIMES, mode=st.sampled_from(["classic", "expandable"]))
def test_the_peak_is_the_highest_sum_of_what_lives_at_one_op(
    lifetimes: list[tuple[int, Category, int, int]], mode: AllocatorMode
) -> None:
    ops = [make_op(f"op{index}") for index in range(10)]
    storages, events, live_bytes = {"always": (512, Category.OTHER)}, ["0 +always", "9 -always"], [512] * 10
    for number, (nbytes, category, *ends) in enumerate(lifetimes):
        name, (first, last) = f"storage{number}", sorted(ends)
        storages[name] = (nbytes, category)
        events += [f"{first} +{name}", f"{last} -{name}"]
        for op in range(first, last + 1):
            live_bytes[op] += -(-nbytes // 512) * 512
    events.sort(key=lambda text: (int(text.split()[0]), "-" in text))  # an op allocates before it frees
    timeline = simulate_memory(one_section(storages, events, ops), NOTHING_HIDDEN, mode)
    if mode == "expandable":
        assert timeline.peak_allocated_bytes == max(live_bytes)
        assert live_bytes[timeline.peak_op] == max(live_bytes)
    else:  # blocks carry slack
        assert 0 <= timeline.peak_allocated_bytes - max(live_bytes) <= MIB * len(lifetimes)
    assert sum(nbytes for _, nbytes in timeline.breakdown_bytes) == timeline.peak_allocated_bytes
    assert max(sum(point.bytes_by_category) for point in timeline.points) == timeline.peak_allocated_bytes
    assert timeline.peak_reserved_bytes >= timeline.peak_allocated_bytes


@pytest.mark.parametrize(("stream", "reserved_mib"), [(0, 20), (3, 40)])
def test_what_a_stream_gave_back_serves_that_stream_only(stream: int, reserved_mib: int) -> None:
    storages = {"gathered": (20 * MIB, Category.TEMPORARIES), "out": (20 * MIB, Category.TEMPORARIES)}
    events = ["0 +gathered", "0 -gathered", f"1 +out@{stream}", "1 -out"]
    timeline = simulate_memory(one_section(storages, events, [make_op("a"), make_op("b")]), NOTHING_HIDDEN, "classic")
    assert (timeline.peak_allocated_bytes, timeline.peak_reserved_bytes) == (20 * MIB, reserved_mib * MIB)


def test_a_kernel_s_temporaries_come_from_the_memory_of_its_stream() -> None:
    ops = [make_op("a"), replace(make_op("sort"), stream=1)]
    trace = one_section({"out": (20 * MIB, Category.TEMPORARIES)}, ["0 +out", "0 -out"], ops)
    assert simulate_memory(trace, Hidden({"sort": (20 * MIB,)}), "classic").peak_reserved_bytes == 40 * MIB
