"""What the CPU takes to issue ops: costs from single ops and small models, and what ops are charged for."""

from __future__ import annotations

import pytest

from priced_ops import HOST, TIMINGS, WEIGHTS, op, timed
from trainfit.cost.classify import works
from trainfit.cost.host import WEIGHED, Timing, further_times_ns, issue_times_ns, reduce_host, reduce_weights
from trainfit.records import Phase


def test_the_host_s_costs_are_those_that_explain_the_times_of_small_models() -> None:
    assert reduce_host(TIMINGS, WEIGHTS) == {
        "forward_ns": 10_000,
        "backward_ns": 20_000,
        "cast_ns": 7_000,
        "module_ns": 30_000,
        "further_kernel_ns": 4_000,
        "hook_ns": 1_000,
        "checkpoint_ns": 500_000,
        "optimizer_step_ns": 50_000,
        "optimizer_call_ns": 8_000,
        "optimizer_tensor_ns": 200,
        "fast_percent": 100,
        "slow_percent": 100,
        "weights_percent": WEIGHTS,
    }


def test_a_cost_that_would_be_negative_is_nothing() -> None:
    faster = timed({"forward": 10, "module": 10}, {}, {}, 90_000, 1, 1)
    assert reduce_host({"kernels": TIMINGS["kernels"], "faster": faster}, WEIGHTS)["module_ns"] == 0


def test_the_host_s_spread_leaves_a_twentieth_of_the_processes_out_at_each_end() -> None:
    steps = [500, 800, *[1000] * 16, 1200, 1500]  # 1000 on average
    processes = [{"forward": [1, step, 10**6], "backward": [step], "optimizer": [step]} for step in steps]
    charges = {"forward": {"forward": 1}, "backward": {"backward": 1}, "optimizer": {"optimizer_call": 1}}
    costs = reduce_host({"one": Timing(charges=charges, processes_ns=processes)}, WEIGHTS)
    assert (costs["fast_percent"], costs["slow_percent"]) == (80, 120)
    assert costs["forward_ns"] == 1000  # a process is as fast as its median step


def test_an_op_weighs_what_ops_of_its_kind_took_beside_plain_ones() -> None:
    def process(view: int, linear: int) -> dict[str, list[int]]:
        timed_kinds = [kind for kind in WEIGHED if kind != "inner view"]
        return {kind: [2000] for kind in timed_kinds} | {
            "plain": [1000, 900, 9000], "view": [view], "backward plain": [5000],
            "product": [1500], "product with views": [linear],
        }  # fmt: skip

    weights = reduce_weights([process(300, 1200), process(200, 1800), process(400, 9000)])
    assert weights == dict.fromkeys(WEIGHED, 200) | {
        "view": 30, "product": 150, "inner view": 10,  # (1800 - 1500) / 3
        "backward view": 40, "backward cast": 40,
    }  # fmt: skip


def test_the_cpu_pays_for_kernels_by_kind_views_modules_and_listed_tensors() -> None:
    ops = [
        op("a", [], [], module="block"),  # the module is entered
        op("b", [], [], module="block"),
        op("aten._to_copy.default", [], [], module="block"),
        op("c", [], [], Phase.BACKWARD, "block"),
        op("d", [], [], Phase.BACKWARD, "block"),
        op("aten.mm.default", [], [], Phase.BACKWARD, "block"),
        op("aten.t.default", [], [], Phase.BACKWARD, "block"),
        op("e", [["3*float32[2]"]], [], Phase.OPTIMIZER),
    ]
    assert issue_times_ns(ops, [1, 0, 1, 1, 0, 1, 0, 1], HOST) == (110, 3, 60, 20, 10, 40, 2, 540 + 3 * 2)
    assert issue_times_ns(ops[:1], [5], HOST) == (100 + 10 + 4 * 4,)  # further kernels cost 4 each
    # An optimizer's too; its step is paid for once.
    assert issue_times_ns(ops[-1:] * 2, [3, 1], HOST) == (540 + 3 * 2 + 2 * 4, 40 + 3 * 2)
    assert further_times_ns([5, 1, 0], HOST) == (16, 0, 0)


def test_a_region_that_is_run_again_pays_once_and_for_each_tensor_that_is_hooked() -> None:
    hook = op("aten.detach.default", [], [], Phase.BACKWARD)  # between the ops of a region, and not its end
    first, second = (op("f", [], [], Phase.RECOMPUTE, module) for module in ("a", "b"))
    ops = [first, hook, second, second, op("g", [], [], Phase.BACKWARD, "b"), second, first, hook, hook, hook]
    # Each of these enters a module but the third and, after a backward op of the same module, the first of the second.
    # Of the hooks behind a region every second one is of tensors that are used.
    times_ns = (1110, 7, 110, 3, 20, 1010, 110, 7, 2, 7)
    assert issue_times_ns(ops, [1, 0, 1, 0, 1, 1, 1, 0, 0, 0], HOST) == times_ns
    assert issue_times_ns([hook, first], [0, 1], HOST) == (2, 110)  # no region: a view


def test_the_replay_of_a_plan_calls_no_modules_and_pays_for_no_region() -> None:
    replayed = op("f", [], [], Phase.RECOMPUTE, "block")
    assert issue_times_ns([replayed] * 3, [1, 1, 0], HOST) == (110, 10, 3)


@pytest.mark.parametrize(
    ("sizes", "lists", "launches"),
    [
        ([1024] * 400, 1, 4),  # 110 tensors at a time
        ([1024] * 400, 4, 12),  # 36 at a time
        ([2**20] * 200, 2, 10),  # 3,200 chunks of 64 Ki elements, 320 at a time
        ([2**24] * 8, 1, 7),
        ([10], 1, 1),
    ],
)
def test_a_multi_tensor_op_launches_what_the_h200_was_seen_to(sizes: list[int], lists: int, launches: int) -> None:
    tensors = [f"float32[{size}]" for size in sizes]
    args: list[object] = [tensors] * lists
    assert works(op("aten._foreach_lerp_.Scalar", args, [], Phase.OPTIMIZER), 132)[0].kernels == launches
