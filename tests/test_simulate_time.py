"""The two queues by hand: the CPU issues, streams run; every number is added up in the comments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainfit.records import HostWork, Op, Phase
from trainfit.simulate import simulate_time
from trainfit.simulate.time import KERNEL_GAP_NS

GAP = KERNEL_GAP_NS


def op(phase: Phase = Phase.FORWARD, name: str = "aten.mm.default", stream: int = 0, waits: tuple[int, ...] = ()) -> Op:
    return Op(name, phase, "", (), (), (), stream, waits)


def test_a_gpu_that_is_behind_runs_kernels_back_to_back() -> None:
    played = simulate_time([op()] * 3, [100] * 3, [50_000] * 3)
    # Starts at 100, then each waits for the one before and the gap between kernels.
    assert played.ends_ns == (50_100, 100_100 + GAP, 150_100 + 2 * GAP)
    assert played.step_ns == 150_100 + 2 * GAP
    assert (played.gpu_busy_ns, played.host_ns) == (150_000, 300)


def test_a_gpu_that_is_ahead_waits_for_each_issue() -> None:
    played = simulate_time([op()] * 3, [10_000] * 3, [200] * 3)
    assert played.ends_ns == (10_200, 20_200, 30_200)
    assert played.step_ns == 30_200  # bound by the CPU: three issues and the last kernel
    assert (played.gpu_busy_ns, played.host_ns) == (600, 30_000)


def test_work_issued_while_a_long_kernel_runs_is_hidden_behind_it() -> None:
    played = simulate_time([op()] * 3, [1_000] * 3, [50_000, 10, 10])
    assert played.ends_ns == (51_000, 51_010 + GAP, 51_020 + 2 * GAP)


def test_an_op_without_kernel_takes_only_the_cpu_s_time() -> None:
    played = simulate_time([op(), op(), op()], [1_000, 400, 1_000], [0, 0, 700])
    assert played.ends_ns == (1_000, 1_400, 3_100)
    assert played.step_ns == 3_100


def test_a_step_that_ends_on_the_cpu_lasts_until_the_cpu_is_done() -> None:
    assert simulate_time([op(), op()], [1_000, 9_000], [100, 0]).step_ns == 10_000


def test_after_it_waited_the_cpu_issues_when_all_it_had_given_the_stream_is_done() -> None:
    after_reading = Op("aten.mm.default", Phase.FORWARD, "", (), (), (), before=HostWork(True, 0, 0))
    played = simulate_time([op(), op(stream=1), after_reading, op()], [100, 100, 3_000, 100], [50_000, 90_000, 200, 0])
    # The kernel ends at 50,100; only then is the third op issued, which takes 3,000. The other stream goes on.
    assert played.issued_ns == (100, 200, 53_100, 53_200)
    assert played.ends_ns == (50_100, 90_200, 53_300, 53_200)
    assert played.host_ns == 3_300


def test_the_cpu_does_not_wait_for_what_only_the_stream_waits_for() -> None:
    after_reading = Op("aten.mm.default", Phase.FORWARD, "", (), (), (), 0, (2,), before=HostWork(True, 0, 0))
    played = simulate_time([op(stream=1), op(), after_reading], [100] * 3, [20_000, 5_000, 300])
    # The stream's own kernel ends at 5,200, so the third op is issued at 5,300; it runs when the other stream is done.
    assert played.issued_ns == (100, 200, 5_300)
    assert played.ends_ns == (20_100, 5_200, 20_100 + GAP + 300)


def test_streams_run_side_by_side_and_each_in_order() -> None:
    played = simulate_time([op(), op(stream=1), op()], [100] * 3, [5_000, 7_000, 10_000])
    assert played.ends_ns == (5_100, 7_200, 15_100 + GAP)
    assert played.gpu_busy_ns == 22_000


def test_a_stream_waits_for_what_another_had_been_given() -> None:
    # A gather of 20 us on stream 1; what needs it comes second on stream 0, what does not comes before and is hidden.
    ops = [op(stream=1), op(), op(waits=(2,)), op()]
    played = simulate_time(ops, [100] * 4, [20_000, 8_000, 3_000, 1_000])
    third = 20_100 + GAP + 3_000
    assert played.ends_ns == (20_100, 8_200, third, third + GAP + 1_000)


def test_a_wait_that_a_view_brings_holds_for_the_kernels_after_it() -> None:
    played = simulate_time([op(stream=1), op(waits=(1,)), op()], [100] * 3, [20_000, 0, 3_000])
    assert played.ends_ns == (20_100, 200, 20_100 + GAP + 3_000)


def test_waiting_for_a_view_is_waiting_for_the_kernels_before_it() -> None:
    played = simulate_time([op(stream=1), op(stream=1), op(waits=(1,))], [100] * 3, [20_000, 0, 3_000])
    assert played.ends_ns == (20_100, 200, 20_100 + GAP + 3_000)


def test_an_op_of_many_kernels_runs_while_its_later_ones_are_issued() -> None:
    # Issued from 0 to 9,000; the first kernel is in the queue at 1,000. The GPU is done at 1,000 + 5,000, but waits for
    # the last kernel until 9,000; an op that takes it longer is done when it is.
    assert simulate_time([op()], [9_000], [5_000], [8_000]).ends_ns == (9_000,)
    assert simulate_time([op()], [9_000], [50_000], [8_000]).ends_ns == (51_000,)


def test_between_the_kernels_of_an_op_lies_the_same_gap_as_between_ops() -> None:
    played = simulate_time([op(), op(), op()], [100] * 3, [50_000, 0, 7_000], [0] * 3, [3, 0, 1])
    assert played.ends_ns == (50_100 + 2 * GAP, 200, 50_100 + 3 * GAP + 7_000)
    assert played.gpu_busy_ns == 57_000


def test_what_ran_before_the_step_is_done() -> None:
    assert simulate_time([op(waits=(5,))], [100], [3_000]).ends_ns == (3_100,)


def test_time_is_booked_to_the_phase_that_was_running_and_adds_up() -> None:
    ops = [op(Phase.FORWARD), op(Phase.BACKWARD), op(Phase.RECOMPUTE), op(Phase.BACKWARD), op(Phase.OPTIMIZER)]
    played = simulate_time(ops, [0] * 5, [100, 200, 30, 40, 5])
    gaps = {Phase.FORWARD: 100, Phase.BACKWARD: 240 + 2 * GAP, Phase.RECOMPUTE: 30 + GAP, Phase.OPTIMIZER: 5 + GAP}
    assert dict(played.phase_ns) == gaps
    assert played.step_ns == sum(gaps.values())


def test_nothing_takes_no_time() -> None:
    assert simulate_time([], [], []).step_ns == 0


def test_every_op_needs_both_times() -> None:
    with pytest.raises(ValueError, match="shorter"):
        simulate_time([op(), op()], [1, 1], [1])


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 10_000), st.integers(0, 2)), max_size=30))
def test_a_step_is_bounded_by_both_queues_and_slower_kernels_never_end_it_sooner(
    times: list[tuple[int, int, int]],
) -> None:
    issue, gpu, streams = ([row[index] for row in times] for index in range(3))
    ops = [op(stream=stream) for stream in streams]
    played = simulate_time(ops, issue, gpu)
    assert played.step_ns >= sum(issue)
    assert all(
        played.step_ns >= sum(ns for ns, stream in zip(gpu, streams, strict=True) if stream == chosen)
        for chosen in range(3)
    )
    assert sum(ns for _, ns in played.phase_ns) == played.step_ns
    slower = simulate_time(ops, issue, [2 * ns for ns in gpu])
    assert slower.step_ns >= played.step_ns
