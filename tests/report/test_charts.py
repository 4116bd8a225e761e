"""Where things lie in the pictures, computed by hand."""

from __future__ import annotations

from profiles import ACTIVATIONS, BACKWARD, FORWARD, PARAMETERS, profile_of

from trainfit.report.charts import Bar, Level, Tick, cursor_data, draw_frontier, draw_timelines
from trainfit.report.moments import timeline
from trainfit.report.view import ComparisonRow, FrontierPoint, Memory

MIB = 2**20
STEP = profile_of(
    [
        (FORWARD, "a", [(ACTIVATIONS, 30 * MIB)]),
        (FORWARD, "b", [(ACTIVATIONS, 20 * MIB)]),
        (BACKWARD, "b", [(ACTIVATIONS, -20 * MIB)]),
        (BACKWARD, "a", [(ACTIVATIONS, -30 * MIB)]),
    ],
    before=[(PARAMETERS, 50 * MIB)],
)


def memory(budget_bytes: int, measured_bytes: int | None = None) -> Memory:
    return Memory((timeline("step", STEP, slice_ns=1),), budget_bytes, "reserved", (measured_bytes,))


def test_memory_is_stairs_under_running_sums() -> None:
    # The top is the reserved peak, 100 MiB, and 6%: 400 * 50 / 106 is 189, 400 * 80 / 106 is 302, 400 * 100 / 106 377.
    (chart,) = draw_timelines(memory(80 * MIB))
    assert chart.areas == (
        ("activations", "M0 400H0V98H250V23H750V98H1000V400Z"),
        ("parameters", "M0 400H0V211H1000V400Z"),
    )
    assert chart.bands == (Bar("forward", 0.0, 50.0), Bar("backward", 50.0, 50.0))
    assert chart.peak_left == 25.0


def test_the_budget_and_what_was_measured_are_lines() -> None:
    (chart,) = draw_timelines(memory(80 * MIB, measured_bytes=53 * MIB))
    assert chart.levels == (
        Level("reserved", "reserved 100.0 MiB", 94.34, True),
        Level("budget", "budget 80.0 MiB", 75.47, False),
        Level("measured", "measured peak 53.0 MiB", 50.0, True),
    )
    assert [tick.label for tick in chart.y_ticks] == ["0 MiB", "20 MiB", "40 MiB", "60 MiB", "80 MiB", "100 MiB"]


def test_a_budget_far_above_is_named_and_not_drawn() -> None:
    (chart,) = draw_timelines(memory(1000 * MIB))
    assert [level.kind for level in chart.levels] == ["reserved"]
    assert chart.note == "the budget, 1000.0 MiB, is far above the plot"


def test_the_cursor_knows_the_op_and_the_module_of_each_column() -> None:
    data = cursor_data(memory(80 * MIB))
    (columns,) = data["timelines"]
    assert (data["modules"], columns["module"]) == (["a", "b"], [0, [1, 2], 0])
    assert [data["ops"][index] for index in columns["op"]] == [f"aten.op{n}.default" for n in range(4)]
    by_category = dict(zip(data["categories"], columns["units"], strict=True))
    unit = MIB // data["unit_bytes"]
    assert by_category["activations"] == [30 * unit, [50 * unit, 2], 30 * unit]
    assert by_category["parameters"] == [[50 * unit, 4]]


def test_the_frontier_has_the_plans_the_rows_and_the_budget() -> None:
    def row(name: str, peak: int, step_ns: int, *, measured: bool = False) -> ComparisonRow:
        is_plan = name == "plan"
        return ComparisonRow(name, peak * MIB, step_ns, 0.0, True, is_plan, measured)

    points = [
        FrontierPoint(200 * MIB, 10_000_000, ("keep everything",), False),
        FrontierPoint(100 * MIB, 20_000_000, ("layers.0: recompute",), True),
    ]
    rows = [row("nothing", 200, 10_000_000), row("plan", 100, 20_000_000), row("plan", 100, 15_000_000, measured=True)]
    # x: 100 to 200 MiB with 8% of air on both sides, 92 to 208; y: 9.2 to 20.8 ms.
    drawn = draw_frontier(points, rows, 150 * MIB, "reserved")
    assert [(dot.kind, dot.left, dot.bottom, dot.facts) for dot in drawn.dots] == [
        ("baseline", 93.1, 6.9, "200.0 MiB, 10.0 ms (+0.0%)"),
        ("plan", 6.9, 93.1, "100.0 MiB, 20.0 ms (+100.0%)"),
        ("point", 93.1, 6.9, "200.0 MiB, 10.0 ms (+0.0%)"),
        ("measured", 6.9, 50.0, "100.0 MiB, 15.0 ms (+50.0%)"),
    ]
    assert drawn.budget == Level("budget", "budget 150.0 MiB", 50.0)
    assert drawn.x_ticks[0] == Tick(6.9, "100 MiB")
