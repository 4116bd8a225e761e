"""What the CPU takes to issue ops: costs from single ops and small models, and what ops are charged for."""

from __future__ import annotations

import pytest

from priced_ops import FURTHER_KERNEL_NS, HOST, TIMINGS, WEIGHTS, op, timed
from trainfit.cost.classify import works
from trainfit.cost.host import (
    SINGLE_KINDS,
    WEIGHED,
    Timing,
    further_times_ns,
    issue_times_ns,
    reduce_host,
    reduce_launch_ns,
    reduce_weights,
)
from trainfit.records import Phase


def test_the_host_s_costs_are_those_that_explain_the_times_of_small_models() -> None:
    assert reduce_host(TIMINGS, WEIGHTS, FURTHER_KERNEL_NS) == {
        "forward_ns": 10_000,
        "backward_ns": 20_000,
        "cast_ns": 7_000,
        "module_ns": 30_000,
        "further_kernel_ns": 4_000,
        "recurrent_ns": 300_000,
        "recurrent_kernel_ns": 9_000,
        "hook_ns": 1_000,
        "checkpoint_ns": 500_000,
        "reentrant_ns": 90_000,
        "optimizer_step_ns": 50_000,
        "optimizer_call_ns": 8_000,
        "optimizer_tensor_ns": 200,
        "fast_percent": 100,
        "slow_percent": 100,
        "weights_percent": WEIGHTS,
    }


def test_a_cost_that_would_be_negative_is_nothing() -> None:
    faster = timed({"forward": 10, "module": 10}, {}, {}, 90_000, 1, 1)
    assert reduce_host({"kernels": TIMINGS["kernels"], "faster": faster}, WEIGHTS, 0.0)["module_ns"] == 0


def test_a_further_kernel_costs_what_three_of_a_multi_tensor_op_took_whatever_models_say() -> None:
    processes = [
        {"list of one": [1000, 1100, 9000], "list of one large": [7100, 7000, 7200]},  # 2000 each
        {"list of one": [1000], "list of one large": [16000]},
    ]
    assert reduce_launch_ns(processes) == 3500
    slower = timed({"forward": 1, "further_kernel": 10}, {}, {}, 80_000, 1, 1)
    assert reduce_host({"slower": slower}, WEIGHTS, 3500.0)["further_kernel_ns"] == 3500
    assert reduce_host({"slower": slower}, WEIGHTS, 3500.0)["forward_ns"] == 45_000


def test_the_host_s_spread_leaves_a_twentieth_of_the_steps_out_at_each_end() -> None:
    steps = [500, 800, *[1000] * 16, 1200, 1500]
    process = {"forward": steps, "backward": steps, "optimizer": steps}
    charges = {"forward": {"forward": 1}, "backward": {"backward": 1}, "optimizer": {"optimizer_call": 1}}
    costs = reduce_host({"one": Timing(charges=charges, processes_ns=[process])}, WEIGHTS, 0.0)
    assert (costs["fast_percent"], costs["slow_percent"]) == (80, 120)
    assert costs["forward_ns"] == 1000  # a process is as fast as its median step


def test_several_processes_count_alike() -> None:
    charges = {"forward": {"forward": 1}, "backward": {"backward": 1}, "optimizer": {"optimizer_call": 1}}
    processes = [{"forward": [ns], "backward": [ns], "optimizer": [ns]} for ns in (1000, 1000, 4000)]
    assert reduce_host({"one": Timing(charges=charges, processes_ns=processes)}, WEIGHTS, 0.0)["forward_ns"] == 2000


def test_an_op_weighs_what_ops_of_its_kind_took_beside_plain_ones() -> None:
    def process(view: int, linear: int) -> dict[str, list[int]]:
        return {kind: [2000] for kind in SINGLE_KINDS} | {
            "plain": [1300, 1200, 9000], "binary": [800], "activation": [900], "view": [view],  # plain ones 1000
            "product": [1500], "product with views": [linear],
            "backward plain": [6000], "backward activation": [4000],  # plain ones 5000
            "leaf": [8000], "leaf again": [9000], "backward products": [11000],
        }  # fmt: skip

    weights = reduce_weights([process(300, 1200), process(200, 1800), process(400, 9000)])
    assert weights == dict.fromkeys(WEIGHED, 200) | {
        "view": 30, "product": 150, "inner view": 10,  # (1800 - 1500) / 3
        "backward view": 40, "backward cast": 40, "backward norm": 40, "backward batch norm": 40,
        "backward attention": 40, "backward leaf": 40,  # 8000 - 6000
        "backward sum": 20, "backward product": 110,  # half of 11000
    }  # fmt: skip


def test_the_cpu_pays_for_kernels_by_kind_views_modules_and_listed_tensors() -> None:
    ops = [
        op("a", [], [], module="block"),  # the module is entered
        op("b", [], [], module="block"),
        op("aten._to_copy.default", [], [], module="block"),
        op("c", [], [], Phase.BACKWARD, "block"),
        op("d", [], [], Phase.BACKWARD, "block"),
        op("aten.mm.default", [], [], Phase.BACKWARD, "block"),
        op("aten.t.default", [], [], Phase.BACKWARD, "block"),  # part of what the product costs
        op("e", [["3*float32[2]"]], [], Phase.OPTIMIZER),
    ]
    assert issue_times_ns(ops, [1, 0, 1, 1, 0, 1, 0, 1], HOST) == (110, 3, 60, 20, 10, 40, 0, 540 + 3 * 2)
    assert issue_times_ns(ops[:1], [5], HOST) == (100 + 10 + 4 * 4,)  # further kernels cost 4 each
    # An optimizer's too; its step is paid for once.
    assert issue_times_ns(ops[-1:] * 2, [3, 1], HOST) == (540 + 3 * 2 + 2 * 4, 40 + 3 * 2)
    assert further_times_ns(ops[:3], [5, 1, 0], HOST) == (16, 0, 0)


def test_gradients_that_are_kept_or_added_up_have_no_node_of_their_own() -> None:
    kept, added = (op(f"aten.{name}", [], [], Phase.BACKWARD) for name in ("detach.default", "add_.Tensor"))
    assert issue_times_ns([kept, added], [0, 1], HOST) == (12, 8)  # 60% and 40% of a plain node


def test_recurrent_layers_pay_once_and_for_each_kernel_that_their_library_launches() -> None:
    ops = [
        op("aten._cudnn_rnn.default", [], [], module="lstm"),
        op("aten._cudnn_rnn_backward.default", [], [], Phase.BACKWARD, "lstm"),
    ]
    assert issue_times_ns(ops, [100, 50], HOST) == (3900, 3450)
    assert further_times_ns(ops, [100, 50], HOST) == (99 * 9, 49 * 9)


def test_a_region_that_is_run_again_pays_once_and_for_each_tensor_that_is_hooked() -> None:
    hook = op("aten.detach.default", [], [], Phase.BACKWARD)  # between the ops of a region, and not its end
    first, second = (op("f", [], [], Phase.RECOMPUTE, module) for module in ("a", "b"))
    ops = [first, hook, second, second, op("g", [], [], Phase.BACKWARD, "b"), second, first, hook, hook, hook]
    # Each of these enters a module but the third and, after a backward op of the same module, the first of the second.
    # Of the hooks behind a region every second one is of tensors that are used.
    times_ns = (1110, 7, 110, 3, 20, 1010, 110, 7, 12, 7)
    assert issue_times_ns(ops, [1, 0, 1, 0, 1, 1, 1, 0, 0, 0], HOST) == times_ns
    assert issue_times_ns([hook, first], [0, 1], HOST) == (12, 110)  # no region: a gradient that is kept


def test_a_region_without_hooks_is_reentrant_and_cheaper() -> None:
    first, second = (op("f", [], [], Phase.RECOMPUTE, module) for module in ("a", "b"))
    assert issue_times_ns([first, second, second], [1, 1, 0], HOST) == (810, 110, 3)


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
