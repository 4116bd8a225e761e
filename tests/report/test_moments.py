"""The memory timeline of steps that were written by hand."""

from __future__ import annotations

from dataclasses import replace

from profiles import ACTIVATIONS, BACKWARD, FORWARD, OPTIMIZER, PARAMETERS, RECOMPUTE, TEMPORARIES, profile_of

from trainfit.records import Category, OpRun, Phase
from trainfit.report.moments import Moment, Span, event_times_ns, moments, timeline

STEP = profile_of(
    [
        (FORWARD, "a", [(ACTIVATIONS, 30), (TEMPORARIES, 500), (TEMPORARIES, -500)]),
        (FORWARD, "b", [(ACTIVATIONS, 40)]),
        (RECOMPUTE, "b", [(TEMPORARIES, 7)]),
        (BACKWARD, "b", [(ACTIVATIONS, -40), (TEMPORARIES, -7)]),
        (BACKWARD, "a", [(ACTIVATIONS, -30)]),
        (OPTIMIZER, "", []),
    ],
    before=[(PARAMETERS, 100)],
)


def bytes_of(**by_name: int) -> tuple[int, ...]:
    return tuple(by_name.get(category.value, 0) for category in Category)


def test_while_an_op_runs_memory_is_what_it_is_when_it_is_highest() -> None:
    assert moments(STEP) == [
        Moment(0, "aten.op0.default", "a", FORWARD, bytes_of(parameters=100, activations=30, temporaries=500)),
        Moment(10, "aten.op1.default", "b", FORWARD, bytes_of(parameters=100, activations=70)),
        Moment(20, "aten.op2.default", "b", RECOMPUTE, bytes_of(parameters=100, activations=70, temporaries=7)),
        Moment(30, "aten.op3.default", "b", BACKWARD, bytes_of(parameters=100, activations=70, temporaries=7)),
        Moment(40, "aten.op4.default", "a", BACKWARD, bytes_of(parameters=100, activations=30)),
        Moment(50, "aten.op5.default", "", OPTIMIZER, bytes_of(parameters=100)),
    ]


def test_events_happen_when_the_gpu_gets_to_their_op() -> None:
    assert event_times_ns(STEP) == [0, 0, 0, 0, 10, 20, 30, 30, 40]


def test_bands_are_the_phases_and_recomputation_is_part_of_backward() -> None:
    drawn = timeline("x", STEP, slice_ns=1)
    assert drawn.bands == (Span(FORWARD, 0, 20), Span(BACKWARD, 20, 50), Span(OPTIMIZER, 50, 60))
    assert drawn.recomputing == (Span(Phase.RECOMPUTE, 20, 30),)
    assert (drawn.step_ns, drawn.peak_allocated_bytes, drawn.peak_reserved_bytes) == (60, 630, 677)


def test_a_slice_shows_its_highest_moment_and_no_peak_is_lost() -> None:
    drawn = timeline("x", STEP, slice_ns=30)
    assert [(column.start_ns, column.op, column.total_bytes) for column in drawn.columns] == [
        (0, "aten.op0.default", 630),
        (30, "aten.op3.default", 177),
        (50, "aten.op5.default", 100),  # the step ends here, and what comes last is shown
    ]


def test_what_comes_last_goes_on_where_a_slice_has_no_moment() -> None:
    spike = [(TEMPORARIES, 50), (TEMPORARIES, -50)]
    step = profile_of([(FORWARD, "", spike), *[(FORWARD, "", [])] * 2], before=[(PARAMETERS, 10)])
    runs = (step.runs[0], OpRun(1, 1, 2, 10, 1000), OpRun(2, 2, 3, 1010, 10))
    drawn = timeline("x", replace(step, runs=runs), slice_ns=20)
    assert [(column.start_ns, column.total_bytes) for column in drawn.columns] == [(0, 60), (10, 10), (1010, 10)]
