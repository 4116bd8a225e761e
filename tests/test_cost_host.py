"""What the CPU takes to issue ops: costs from single ops and small models, and what ops are charged for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from priced_ops import HOST, KNOWN_NS, TIMINGS, WEIGHTS, op, timed
from trainfit.cost.classify import works
from trainfit.cost.host import WEIGHED, further_times_ns, issue_times_ns, kernels_in_turn
from trainfit.cost.host_fit import SINGLE_KINDS, Timing, reduce_host, reduce_known, reduce_weights
from trainfit.records import HostWork, Phase


def test_the_host_s_costs_are_those_that_explain_the_times_of_small_models() -> None:
    assert reduce_host(TIMINGS, WEIGHTS, KNOWN_NS) == {
        "forward_ns": 10_000,
        "loop_ns": 6_000,
        "backward_ns": 20_000,
        "backward_loop_ns": 15_000,
        "backward_pass_ns": 70_000,
        "cast_ns": 7_000,
        "module_ns": 30_000,
        "inner_ns": 3_000,
        "backward_inner_ns": 2_500,
        "inner_view_ns": 100,
        "further_kernel_ns": 4_000,
        "recurrent_ns": 300_000,
        "recurrent_kernel_ns": 9_000,
        "hook_ns": 1_000,
        "checkpoint_ns": 500_000,
        "reentrant_ns": 90_000,
        "optimizer_step_ns": 50_000,
        "optimizer_call_ns": 8_000,
        "optimizer_tensor_ns": 200,
        "wait_ns": 11_000,
        "host_op_ns": 2_000,
        "host_elements_ns": 700,
        "fast_percent": 100,
        "slow_percent": 100,
        "weights_percent": WEIGHTS,
    }


def test_a_cost_that_would_be_negative_is_nothing() -> None:
    faster = timed({"forward": 10, "module": 10}, {}, {}, 90_000, 1, 1)
    assert reduce_host({"kernels": TIMINGS["kernels"], "faster": faster}, WEIGHTS, KNOWN_NS)["module_ns"] == 0


def test_a_further_kernel_costs_what_three_of_a_multi_tensor_op_took_whatever_models_say() -> None:
    processes = [
        HOST_TIMES | {"list of one": [1000, 1200, 9000], "list of one large": [7100, 7000, 7200]},  # 2000 each
        HOST_TIMES | {"list of one": [1000], "list of one large": [16000]},
    ]
    assert reduce_known(processes)["further_kernel"] == 3500
    slower = timed({"forward": 1, "further_kernel": 10}, {}, {}, 80_000, 1, 1)
    costs = reduce_host({"slower": slower}, WEIGHTS, KNOWN_NS | {"further_kernel": 3500.0})
    assert (costs["further_kernel_ns"], costs["forward_ns"]) == (3500, 45_000)


HOST_TIMES = {
    "read": [9000, 8000, 10000], "host op": [1500], "host ops large": [4 * (1500 + 64 * 20)],
    "leaf": [8000], "leaf again": [9500], "product": [1500], "product with views": [2100],
    "plain": [1200], "binary": [800], "activation": [700],
}  # fmt: skip


def test_reading_inner_ops_and_ops_on_the_host_cost_what_single_ones_took() -> None:
    launches = {"list of one": [1000], "list of one large": [4000]}
    # Four ops on 65,536 elements: 20 ns per 1,024 of them beyond what an op of few takes. Three views of 200.
    other = HOST_TIMES | launches | {"read": [12000], "leaf again": [10500]}
    assert reduce_known([HOST_TIMES | launches, other]) == {
        "inner": 900, "backward_inner": 2000, "inner_view": 200, "further_kernel": 1000, "wait": 10500, "host_op": 1500,
        "host_elements": 20,
    }  # fmt: skip


ONE_OF_EACH = {"forward": {"forward": 1}, "backward": {"backward": 1}, "optimizer": {"optimizer_call": 1}}


def test_the_host_s_spread_leaves_one_in_eighty_steps_out_at_each_end() -> None:
    steps = [500, 800, *[1000] * 76, 1200, 1500]
    process = {"forward": steps, "backward": steps, "optimizer": steps}
    costs = reduce_host({"one": Timing(charges=ONE_OF_EACH, processes_ns=[process])}, WEIGHTS, KNOWN_NS)
    assert (costs["fast_percent"], costs["slow_percent"]) == (80, 120)
    assert costs["forward_ns"] == 1000


def test_a_process_is_as_fast_as_its_mean_step_without_pauses() -> None:
    # Slow two times out of three: the median would be 1900. More than twice that is no step's own time.
    process = {"forward": [1000, 1900, 1900, 4000], "backward": [1000, 1900, 1900, 3000], "optimizer": [1000] * 4}
    costs = reduce_host({"one": Timing(charges=ONE_OF_EACH, processes_ns=[process])}, WEIGHTS, KNOWN_NS)
    assert (costs["forward_ns"], costs["backward_ns"], costs["optimizer_call_ns"]) == (1600, 1950, 1000)


def test_models_that_are_too_fast_count_no_more_than_those_that_are_too_slow() -> None:
    def model(ns: int) -> Timing:
        return Timing(charges=ONE_OF_EACH, processes_ns=[{part: [ns] for part in ONE_OF_EACH}])

    # Errors relative to what was measured would be smallest with 923.
    costs = reduce_host({"fast": model(800), "slow": model(1200)}, WEIGHTS, KNOWN_NS)
    assert (costs["forward_ns"], costs["fast_percent"], costs["slow_percent"]) == (1000, 67, 150)


def test_measured_over_predicted_is_one_on_average_over_phases_of_any_length() -> None:
    charges = [{"forward": 1.0}, {"forward": 4.0, "module": 1.0}, {"forward": 1.0, "module": 8.0}]
    times_ns = [1100, 5000, 9000]
    timings = {
        str(number): Timing(charges={"forward": charged}, processes_ns=[{"forward": [ns]}])
        for number, (charged, ns) in enumerate(zip(charges, times_ns, strict=True))
    }
    costs = reduce_host(timings, WEIGHTS, KNOWN_NS)
    predicted_ns = [sum(costs[f"{kind}_ns"] * count for kind, count in charged.items()) for charged in charges]
    ratios = [ns / predicted for ns, predicted in zip(times_ns, predicted_ns, strict=True)]
    assert sum(ratios) / 3 == pytest.approx(1, abs=5e-4)


def test_several_processes_count_alike() -> None:
    processes = [{part: [ns] for part in ONE_OF_EACH} for ns in (1000, 1000, 4000)]
    timing = Timing(charges=ONE_OF_EACH, processes_ns=processes)
    assert reduce_host({"one": timing}, WEIGHTS, KNOWN_NS)["forward_ns"] == 2000


def test_an_op_weighs_what_ops_of_its_kind_took_beside_plain_ones() -> None:
    def process(view: int) -> dict[str, list[int]]:
        return {kind: [2000] for kind in SINGLE_KINDS} | {
            "plain": [1400, 1200, 9000], "binary": [800], "activation": [900], "view": [view],  # plain ones 1000
            "product": [1500],
            "backward plain": [6000], "backward activation": [4000],  # plain ones 5000
            "leaf": [8000], "leaf again": [9000], "backward products": [11000],
            "list of one": [1250], "list of one large": [2000], "backward attention": [3000],
        }  # fmt: skip

    # Four kernels of a convolution: three launches of 250 are not part of its 2000.
    kernels = dict.fromkeys(SINGLE_KINDS, 1) | {"convolution": 4, "backward products": 2, "backward attention": 5}
    weights = reduce_weights([process(300), process(200), process(400)], kernels)
    assert weights == dict.fromkeys(WEIGHED, 200) | {
        "view": 30, "product": 150, "convolution": 125,
        "backward view": 40, "backward cast": 40, "backward norm": 40, "backward batch norm": 40,
        "backward convolution": 40, "backward native batch norm": 40,
        "backward attention": 40, "backward leaf": 40,  # 8000 - 6000
        "backward product": 190,  # 11000, and 1.5 times 9000 - 8000 for the second of the two
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
    assert issue_times_ns(ops, [1, 0, 1, 1, 0, 1, 0, 1], HOST) == (115, 12, 60, 20, 10, 40, 0, 540 + 3 * 2)
    assert issue_times_ns(ops[:1], [5], HOST) == (100 + 10 + 5 + 4 * 4,)  # further kernels cost 4 each
    # An optimizer's too; its step is paid for once.
    assert issue_times_ns(ops[-1:] * 2, [3, 1], HOST) == (540 + 3 * 2 + 2 * 4, 40 + 3 * 2)
    assert further_times_ns(ops[:3], [5, 1, 0], HOST) == (16, 0, 0)


def test_what_the_cpu_does_for_itself_is_paid_before_the_op_whatever_its_phase() -> None:
    work = HostWork(True, 2, 5120)  # 15 for waiting, 5 for each op, 6 for each 1,024 elements
    names = {Phase.FORWARD: "aten.detach.default", Phase.BACKWARD: "c", Phase.OPTIMIZER: "aten._cudnn_rnn.default"}
    ops = [replace(op(name, [], [], phase), before=work) for phase, name in names.items()]
    plain = [replace(one, before=None) for one in ops]
    with_work, without = (issue_times_ns(ones, [0, 1, 1], HOST) for ones in (ops, plain))
    assert [slow - fast for slow, fast in zip(with_work, without, strict=True)] == [15 + 10 + 30] * 3


def test_each_backward_pass_is_paid_for_once() -> None:
    forward, backward = op("f", [], []), op("g", [], [], Phase.BACKWARD)
    host = replace(HOST, backward_pass_ns=900)
    ops = [forward, backward, backward, forward, backward]
    assert issue_times_ns(ops, [1] * 5, host) == (15, 920, 20, 15, 920)


def test_a_process_that_did_not_time_a_kind_says_nothing_of_it() -> None:
    whole = {kind: [2000] for kind in SINGLE_KINDS} | {"plain": [1000], "binary": [1000], "activation": [1000]}
    earlier = {kind: times_ns for kind, times_ns in whole.items() if kind not in ("read", "native batch norm")}
    kernels = dict.fromkeys(SINGLE_KINDS, 1)
    slower = earlier | {"norm": [4000]}
    weights = reduce_weights([whole, earlier, slower], kernels)
    assert (weights["native batch norm"], weights["norm"]) == (200, 200)
    assert reduce_known([earlier, whole | {"read": [7000]}])["wait"] == 7000


def test_gradients_that_are_kept_or_added_up_have_no_node_of_their_own() -> None:
    kept, added = (op(f"aten.{name}", [], [], Phase.BACKWARD) for name in ("detach.default", "add_.Tensor"))
    assert issue_times_ns([kept, added], [0, 1], HOST) == (12, 8)  # 60% of a plain node, and an inner op


def test_of_the_ops_of_a_call_only_the_first_kernel_has_python_around_it() -> None:
    names = ["slice.Tensor", "copy_.default", "slice.Tensor", "mm.default", "_to_copy.default"]
    first, *others = (op(f"aten.{name}", [], [], module="block") for name in names)
    call = [first, *(replace(other, continues=True) for other in others)]
    # The copy pays for the call, 10, beside its own 5; a product weighs three times as much; casts are autocast's.
    assert issue_times_ns(call, [0, 1, 0, 1, 1], HOST) == (101, 15, 1, 15, 60)
    assert issue_times_ns([first, *others], [0, 1, 0, 1, 1], HOST) == (112, 15, 12, 25, 60)
    views = [first, replace(first, continues=True), first]
    assert issue_times_ns(views, [0, 0, 0], HOST) == (112, 1, 12)  # a call of nothing but views


def test_of_the_ops_of_a_node_only_the_first_kernel_has_the_node_around_it() -> None:
    names = ["add_.Tensor", "detach.default", "mm.default", "mm.default", "sum.dim_IntList", "add_.Tensor"]
    ops = [op(f"aten.{name}", [], [], Phase.BACKWARD) for name in names]
    node = [ops[0], ops[1], *(replace(one, continues=True) for one in ops[2:])]
    # A saved tensor that is looked at, both gradients of a product, a bias's, and a sum of gradients in the end.
    assert issue_times_ns(node, [1, 0, 1, 1, 1, 1], HOST) == (8, 1, 40, 24, 8, 8)


def test_recurrent_layers_pay_each_and_for_each_kernel_that_their_library_launches() -> None:
    ops = [
        op("aten._cudnn_rnn.default", [*[None] * 9, 1], [], module="lstm"),
        op("aten._cudnn_rnn_backward.default", [*[None] * 13, 2], [], Phase.BACKWARD, "lstm"),
    ]
    assert issue_times_ns(ops, [100, 50], HOST) == (3900, 6450)
    assert further_times_ns(ops, [100, 50], HOST) == (99 * 9, 49 * 9)


def test_kernels_of_a_library_s_own_streams_leave_no_gaps() -> None:
    def convolution(groups: int) -> list[object]:
        return ["float32[2,8,8,8]", "float32[8,4,3,3]", None, [1, 1], [1, 1], [1, 1], False, [0, 0], groups]

    ops = [
        op("aten.convolution.default", convolution(1), ["float32[2,8,8,8]"]),
        op("aten.convolution.default", convolution(2), ["float32[2,8,8,8]"]),
        op("aten.convolution_backward.default", ["float32[2,8,8,8]", *convolution(2)], [], Phase.BACKWARD),
        op("aten._cudnn_rnn.default", [], []),
        op("aten.add.Tensor", [], []),
    ]
    assert kernels_in_turn(ops, [4, 5, 6, 7, 0]) == (4, 1, 1, 1, 0)


def test_a_region_that_is_run_again_pays_once_and_for_each_tensor_that_is_hooked() -> None:
    hook = op("aten.detach.default", [], [], Phase.BACKWARD)  # between the ops of a region, and not its end
    first, second = (op("f", [], [], Phase.RECOMPUTE, module) for module in ("a", "b"))
    ops = [first, hook, second, second, op("g", [], [], Phase.BACKWARD, "b"), second, first, hook, hook, hook]
    # Each of these enters a module but the third and, after a backward op of the same module, the first of the second.
    # Of the hooks behind a region every second one is of tensors that are used.
    times_ns = (1115, 7, 115, 12, 20, 1015, 115, 7, 12, 7)
    assert issue_times_ns(ops, [1, 0, 1, 0, 1, 1, 1, 0, 0, 0], HOST) == times_ns
    assert issue_times_ns([hook, first], [0, 1], HOST) == (12, 115)  # no region: a gradient that is kept


def test_a_region_pays_where_its_forward_began_and_one_of_a_shared_module_where_its_own_did() -> None:
    forward = [op(name, [], [], module=module) for module, name in (("a", "f"), ("b", "g")) * 2]
    hook = op("aten.detach.default", [], [], Phase.BACKWARD)
    again = [op("f", [], [], Phase.RECOMPUTE, "a"), hook, op("g", [], [], Phase.RECOMPUTE, "b")]
    backward = op("h", [], [], Phase.BACKWARD, "b")
    ops = [*forward, *again, backward, *again, backward]
    # Each forward op enters its module for 100; the two regions of 1,000 begin at the first and at the third. What the
    # second of them ends with is cheaper.
    times_ns = issue_times_ns(ops, [1, 1, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1], HOST)
    assert times_ns == (1115, 115, 1115, 115, 115, 7, 115, 20, 115, 7, 108, 6)


@pytest.mark.parametrize(("phase", "first", "again"), [(Phase.FORWARD, 15, 8), (Phase.BACKWARD, 20, 6)])
def test_what_a_loop_repeats_is_cheaper_from_its_second_round_on(phase: Phase, first: int, again: int) -> None:
    entered = 100 if phase is Phase.FORWARD else 0
    ops = [op(name, [], [], phase, "cell") for name in "fgh" * 3]
    # Whether it is one is seen by three ops in a row.
    assert issue_times_ns(ops, [1] * 9, HOST) == (entered + first, *[first] * 4, *[again] * 4)
    others = [replace(one, module=f"cell.{index // 3}") for index, one in enumerate(ops)]  # layers are no loop
    assert again not in issue_times_ns(others, [1] * 9, HOST)


@pytest.mark.parametrize(("length", "num_cheaper"), [(32, 30), (33, 0)])
def test_a_loop_that_is_long_costs_what_other_code_does(length: int, num_cheaper: int) -> None:
    ops = [op(f"f{index % length}", [], []) for index in range(2 * length)]
    assert issue_times_ns(ops, [1] * len(ops), HOST).count(8) == num_cheaper


def test_a_region_without_hooks_is_reentrant_and_cheaper() -> None:
    first, second = (op("f", [], [], Phase.RECOMPUTE, module) for module in ("a", "b"))
    assert issue_times_ns([first, second, second], [1, 1, 0], HOST) == (815, 115, 12)


def test_the_replay_of_a_plan_calls_no_modules_and_pays_for_no_region() -> None:
    replayed = op("f", [], [], Phase.RECOMPUTE, "block")
    assert issue_times_ns([replayed] * 3, [1, 1, 0], HOST) == (115, 15, 12)


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
