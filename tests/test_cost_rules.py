"""What rules count: operands read once, passes over memory, copies that come first, processors that idle."""

from __future__ import annotations

import dataclasses
from math import log2

import pytest

from priced_ops import H200, SIMPLE_GPU, ns_of, op, profile_of, rule_of
from trainfit.cost import price_ops
from trainfit.cost.classify import hidden_ops, works
from trainfit.cost.reduce import in_a_step_ns, reduce_samples
from trainfit.cost.work import Work
from trainfit.records import Op

CONTIGUOUS = {"copy contiguous": [((0.0, 0.0, 0.0), 1.0)]}


def test_a_list_that_is_multiplied_by_itself_is_read_once() -> None:
    profile = profile_of({"_foreach_addcmul 4": [((0.0, 0.0), 1.0)]})
    update = op("aten._foreach_addcmul_.Scalar", [["3*float32[100]"], ["3*float32[100]"], ["3*float32[100]"], 0.1], [])
    moments, gradients = update.args[:2]
    own = dataclasses.replace(update, args=(moments, gradients, gradients, 0.1))
    assert ns_of(update, profile=profile) == 1000 + 4 * 3 * 400
    assert ns_of(own, profile=profile) == 1000 + 3 * 3 * 400


def test_products_of_experts_in_float32_are_rounded_where_torch_may_round() -> None:
    shapes = ["float32[16384,2048]", "float32[16,2048,1024]", "int32[16]"]
    exact = op("aten._grouped_mm.default", shapes, ["float32[16384,1024]"])
    rounded = works(dataclasses.replace(exact, tf32=True), H200.num_sms)
    assert rule_of(exact) == "_grouped_mm tokens float32"
    assert [(work.rule, work.flops_dtype) for work in rounded[:2]] == [
        ("_grouped_mm tokens tf32", "tf32"),
        ("_grouped_mm tokens bfloat16", "tf32"),
    ]


def test_a_roll_goes_over_memory_once_for_every_dimension() -> None:
    profile = profile_of({"roll": [((0.0, 0.0), 1.0)]})
    once, twice = (
        op("aten.roll.default", ["float32[10,10]", shifts, dims], ["float32[10,10]"])
        for shifts, dims in (([1], [0]), ([1, 2], [0, 1]))
    )
    # 22 bytes' time for each of 100 elements, more than the 8 that it has, and in every pass.
    assert (ns_of(once, profile=profile), ns_of(twice, profile=profile)) == (1000 + 2200, 1000 + 2 * 2200)


def test_padding_that_adds_nothing_is_a_copy() -> None:
    profile = profile_of(CONTIGUOUS | {"copy strided": [((0.0, 0.0, 0.0), 2.0)]})
    nothing = op("aten.constant_pad_nd.default", ["float32[10,10]", [0, 0]], ["float32[10,10]"])
    less = op("aten.constant_pad_nd.default", ["float32[10,10]", [0, -2]], ["float32[10,8]"])
    assert ns_of(nothing, profile=profile) == 1000 + 800
    assert ns_of(less, profile=profile) == 2 * (1000 + 640)


FOUND_BYTES = 18_000_000
"""What memory could move while a thread finds its first element by index."""


def test_what_is_picked_counts_and_not_what_could_be_and_a_result_of_its_own_is_copied_first() -> None:
    profile = profile_of({"elements gathered": [((0.0,) * 4, 1.0)], "scatter_add inner 4": [((0.0, 0.0, 0.0), 1.0)]})
    picked = op("aten.gather.default", ["float32[10,5000]", 1, "int64[10,1]"], ["float32[10,1]"])
    assert ns_of(picked, profile=profile) == 1000 + FOUND_BYTES + 10 * 8 + 2 * 10 * 4
    table, operands = "float32[10,5000]", [1, "int64[10,1]", "float32[10,1]"]
    in_place, copied = (
        op(f"aten.{name}.default", [table, *operands], [table]) for name in ("scatter_add_", "scatter_add")
    )
    added_ns = FOUND_BYTES + 10 * 8 + 10 * 4 + 2 * 10 * 4
    assert ns_of(in_place, profile=profile) == 1000 + added_ns
    assert ns_of(copied, profile=profile) == 1000 + added_ns + 2 * 10 * 5000 * 4


def test_a_thread_finds_an_element_no_faster_than_so_were_it_ever_so_narrow() -> None:
    profile = profile_of({"elements gathered": [((0.0,) * 4, 1.0)]})
    each, shared = (
        op("aten.gather.default", ["bfloat16[10,10]", 1, index], ["bfloat16[10,10]"])
        for index in ("int64[10,10]", "int64[10,10]{0,1}")
    )
    assert ns_of(each, profile=profile) == 1000 + FOUND_BYTES + (8 + 2 + 2) * 100
    places_ns = (8 + 2 * 2) * 100  # of two dimensions; 80 bytes of indices, 400 of elements
    assert ns_of(shared, profile=profile) == 1000 + FOUND_BYTES + places_ns
    far = op("aten.gather.default", ["float32[1,9000000]", 1, "int64[1,10]"], ["float32[1,10]"])
    assert ns_of(far, profile=profile) == 1000 + FOUND_BYTES + 10 * 8 + 2 * 10 * 32  # a sector for each


def test_elements_gathered_are_told_apart_by_dimensions_and_by_how_much_there_is_to_choose_from() -> None:
    table, out = "float32[4,65536,9]", "float32[4,512,9]"
    alike, apart = (
        works(op("aten.gather.default", [table, 1, f"int64[4,512,9]{stride}"], [out]), H200.num_sms)[0]
        for stride in ("{4608,9,1}", "{0,1,0}")
    )
    # 9 MiB to choose from. Columns are one dimension with those they are chosen from in no operand.
    chosen = 0.5 * log2(4 * 65536 * 9 * 4)
    assert alike.coordinates == (log2(4 * 512 * 9), 3.0, 0.5 * 3, chosen)
    assert apart.coordinates == (log2(4 * 512 * 9), 0.0, 0.5 * 3, chosen)
    small = op("aten.gather.default", ["float32[64,9]", 0, "int64[512,9]{1,0}"], ["float32[512,9]"])
    assert works(small, H200.num_sms)[0].coordinates == (log2(512 * 9), 0.0, 0.5 * 2, 0.5 * 20)


def test_elements_added_behind_another_dimension_take_longer_to_place() -> None:
    def nbytes(shape: str, dim: int, values: str) -> int:
        added = op("aten.index_add_.default", [f"bfloat16{shape}", dim, "int64[100]", f"bfloat16{values}"], [])
        return works(added, H200.num_sms)[0].nbytes

    assert nbytes("[50,64]", 0, "[100,64]") == FOUND_BYTES + 22 * 100 * 64
    assert nbytes("[3,50,64]", 1, "[3,100,64]") == FOUND_BYTES + (22 + 3) * 3 * 100 * 64


def test_elements_picked_by_several_indices_take_as_long_as_it_takes_to_find_them() -> None:
    behind = op("aten.index.Tensor", ["bfloat16[4,10,8]", [None, "int64[5]"]], ["bfloat16[4,5,8]"])
    both = op("aten.index.Tensor", ["bfloat16[4,10,8]", ["int64[5]", "int64[5]"]], ["bfloat16[5,8]"])
    rows = op("aten.index.Tensor", ["bfloat16[10,8]", ["int64[5]"]], ["bfloat16[5,8]"])
    found = [works(one, H200.num_sms)[0] for one in (behind, both, rows)]
    assert [work.rule for work in found] == ["index", "index", "rows gathered"]
    assert [work.nbytes for work in found] == [22 * 4 * 5 * 8, 22 * 5 * 8, 5 * 2900]


def test_a_slice_s_gradient_is_a_fill_and_a_copy_and_so_is_padding() -> None:
    profile = profile_of({"fill contiguous": [((0.0, 0.0, 0.0), 1.0)], "copy strided": [((0.0, 0.0, 0.0), 2.0)]})
    cut = op("aten.slice_backward.default", ["float32[10,4]", [10, 8], 1, 0, 4, 1], ["float32[10,8]"])
    padded = op("aten.constant_pad_nd.default", ["float32[10,4]", [0, 4]], ["float32[10,8]"])
    costs = price_ops([cut, padded], H200, profile)
    assert [cost.time_ns for cost in costs] == [1000 + 320 + 2 * (1000 + 320)] * 2
    assert [cost.kernels for cost in costs] == [2, 2]


def test_a_mask_that_is_filled_in_elsewhere_has_a_rule_of_its_own() -> None:
    copied, in_place = (
        op(f"aten.{name}.Scalar", ["float32[8,8]", "bool[8,8]", 0.0], ["float32[8,8]"])
        for name in ("masked_fill", "masked_fill_")
    )
    assert (rule_of(copied), rule_of(in_place)) == ("masked_fill contiguous", "pointwise in place contiguous")


def test_results_that_take_their_operands_place_have_rules_of_their_own() -> None:
    def rule(name: str, other: str) -> str:
        return rule_of(op(f"aten.{name}.Tensor", ["float32[8,16]", other], ["float32[8,16]"]))

    same, row, turned = "float32[8,16]", "float32[16]", "float32[8,16]{1,8}"
    assert [rule("add", other) for other in (same, row)] == ["pointwise contiguous", "pointwise broadcast"]
    assert [rule("add_", other) for other in (same, row, turned)] == [
        "pointwise in place contiguous", "pointwise in place broadcast", "pointwise transposed",
    ]  # fmt: skip


def test_fewer_channels_than_the_gpu_has_processors_take_as_long_as_those_by_cudnn() -> None:
    profile = profile_of({"cudnn_batch_norm nchw 4": [((0.0,) * 3, 1.0)]})
    gpu = dataclasses.replace(SIMPLE_GPU, num_sms=64)
    profile = dataclasses.replace(profile, gpu=gpu)

    def norm(channels: int) -> Op:
        x = f"float32[2,{channels},4,4]"
        return op("aten.cudnn_batch_norm.default", [x, f"4*float32[{channels}]", True, 0.1, 1e-5], [x])

    assert [ns_of(norm(channels), gpu, profile) for channels in (16, 64, 128)] == [17_384, 17_384, 33_768]


def test_rows_added_up_by_index_are_sorted_and_wait_for_others_of_their_place() -> None:
    def put(name: str, index: list[object], values: str, accumulate: bool) -> Op:
        return op(f"aten.{name}.default", ["float32[64,8]", index, values, accumulate], ["float32[64,8]"])

    by_row = works(put("index_put_", ["int64[16]"], "float32[16,8]", True), H200.num_sms)[0]
    behind, by_element, *_ = works(put("index_put_", [None, "int64[4]"], "float32[64,4]", True), H200.num_sms)
    assert (by_row.rule, by_row.coordinates) == ("index_put accumulated", (4.0, 3.0, log2(1.25)))
    assert (behind.rule, behind.coordinates) == ("index_put behind", (8.0, 0.0, log2(1.5)))  # 4 columns, for 64 rows
    assert by_element.rule == "index_put accumulated"
    # A sort; rows, which are read and written; a place is named a quarter of a time, and three roots of that more.
    assert by_row.nbytes == 58_000_000 + 16 * 1240 + 2 * 16 * 8 * 4 + round(900_000 * 1.75)
    copied = works(put("index_put", ["int64[16]"], "float32[16,8]", True), H200.num_sms)[0]
    assert copied.nbytes == by_row.nbytes + 2 * 64 * 8 * 4
    assert rule_of(put("index_put_", ["int64[16]"], "float32[16,8]", False)) == "index_put plain"


def test_what_is_repeated_and_does_not_lie_along_the_result_is_transposed() -> None:
    along, across = (
        op("aten.mul.Tensor", ["float32[8,16,32]", small], ["float32[8,16,32]"])
        for small in ("float32[1,16,32]", "float32[1,16,32]{512,1,16}")
    )
    assert rule_of(along) == "pointwise broadcast"
    assert rule_of(across) == "pointwise transposed broadcast"


def sample(name: str, args: list[str], cold_ns: int, warm_ns: int, outputs: list[str]) -> dict[str, object]:
    times = {"cold_ns": cold_ns, "warm_ns": warm_ns, "num_kernels": 1, "overlap": 1.0}
    return {"op": name, "args": args, "kwargs": {}, "outputs": outputs, **times}


def test_a_step_finds_two_fifths_of_the_operands_in_the_cache_and_writes_back_what_is_there() -> None:
    def priced(cold_ns: int, warm_ns: int) -> float:
        one = sample("aten.add.Tensor", ["2*float32[1024]"], cold_ns, warm_ns, ["float32[1024]"])
        return reduce_samples(H200, [one]).lines["pointwise contiguous"][0][-1]

    assert (priced(8000, 4000), priced(8000, 9000)) == (6400, 9000)


def test_a_reduction_also_pays_for_a_quarter_of_what_others_left_in_the_cache() -> None:
    def in_a_step(args: list[object], out: str) -> float:
        one = op("aten.sum.dim_IntList", args, [out])
        return in_a_step_ns(works(one, H200.num_sms)[0], 9000, 8000, SIMPLE_GPU)

    assert in_a_step(["float32[65536,256]", [1]], "float32[65536]") == 9000 + 12 * 2**20  # of 48 MiB at most
    assert in_a_step(["float32[512,768]", [0]], "float32[768]") == pytest.approx(9000 - 700)  # waits: 0.7 is cached


def test_of_two_runs_of_one_call_their_mean_counts_and_of_three_the_middle_one() -> None:
    factors, out = ["2*bfloat16[8192,8192]"], ["bfloat16[8192,8192]"]
    runs = [sample("aten.mm.default", factors, time, time, out) for time in (1_000_000, 4_000_000, 9_000_000)]
    assert reduce_samples(H200, runs[:2]).times_ns["mm bfloat16 nn"] == [2_000_000]
    assert reduce_samples(H200, runs).times_ns["mm bfloat16 nn"] == [4_000_000]


def test_a_norm_whose_weights_are_frozen_sums_nothing_down_the_columns() -> None:
    inputs = ["2*float32[8,16]", [16], "float32[8,1]", "float32[8,1]", "2*float32[16]"]
    trained, frozen = (
        op("aten.native_layer_norm_backward.default", [*inputs, wanted], ["float32[8,16]"])
        for wanted in ([True, True, True], [True, False, False])
    )
    assert rule_of(trained) == "native_layer_norm_backward 4"
    assert [work.rule for work in works(frozen, H200.num_sms)] == [
        "native_layer_norm_backward frozen 4",
        "native_layer_norm_backward frozen 2",
        "roofline",
    ]


def test_a_recurrent_cell_is_an_op_of_its_own() -> None:
    cell = op("aten._thnn_fused_gru_cell.default", ["2*float32[8,48]", "float32[8,16]"], ["float32[8,16]"])
    assert rule_of(cell).startswith("_thnn_fused_gru_cell ")


def test_an_op_of_no_kind_is_priced_by_its_bytes_where_it_was_measured() -> None:
    profile = profile_of({"pointwise contiguous": [((0.0, 0.0, 1.0), 2.0)], "mylib.twist": [((0.0, 0.0), 3.0)]})
    known, unknown = (op(f"mylib.{name}.default", ["float32[100]"], ["float32[100]"]) for name in ("twist", "turn"))
    assert ns_of(known, profile=profile) == 3 * (1000 + 800)
    assert (ns_of(unknown, profile=profile), rule_of(unknown)) == (2 * (1000 + 800), "mylib.turn")


def test_the_stride_of_a_convolution_tells_it_apart_whether_or_not_it_has_a_bias() -> None:
    def stride_of(bias: str | None, stride: int) -> float:
        rest = [[stride, stride], [1, 1], [1, 1], False, [0, 0], 1]
        side = 32 // stride
        forward = op("aten.convolution.default", ["float32[8,64,32,32]", "float32[64,64,3,3]", bias, *rest],
                     [f"float32[8,64,{side},{side}]"])  # fmt: skip
        return works(forward, H200.num_sms)[0].coordinates[6]

    assert [stride_of(bias, stride) for bias in (None, "float32[64]") for stride in (1, 2)] == [0.0, 1.0, 0.0, 1.0]
    args = ["bfloat16[8,64,16,16]", "bfloat16[8,64,32,32]", "bfloat16[64,64,3,3]", [64], [2, 2], [1, 1], [1, 1]]
    backward = op("aten.convolution_backward.default", [*args, False, [0, 0], 1, [True, True, True]],
                  ["bfloat16[8,64,32,32]", "bfloat16[64,64,3,3]", "bfloat16[64]"])  # fmt: skip
    assert works(backward, H200.num_sms)[0].coordinates[6] == 1.0


def test_a_matrix_that_is_turned_costs_less_where_its_rows_are_short() -> None:
    # 128 threads need as many sectors of 32 bytes for 4 bytes each, and write 512 bytes; of rows of 32 elements they
    # need two neighbours of each, and to look for a line per element takes longest.
    long, short = (
        works(op("aten.clone.default", [f"float32[4096,{columns}]{{1,4096}}"], [f"float32[4096,{columns}]"]), 132)[0]
        for columns in (256, 32)
    )
    assert (long.rule, short.rule) == ("copy transposed", "copy transposed")
    assert (long.nbytes, short.nbytes) == (round((0.84 * 4 + 28) * 4096 * 256), 19 * (32 + 1) * 4096 * 32 // 32)


def turned(shape: str, stride: str) -> int:
    return works(op("aten.clone.default", [f"float32{shape}{stride}"], [f"float32{shape}"]), 132)[0].nbytes


def test_sectors_side_by_side_come_faster_and_those_that_the_cache_has_lost_come_in_bursts() -> None:
    # Rows of 8 lie beside each other: a sector for each element, but all sectors of a line.
    assert turned("[8,4096]", "{1,8}") == round((0.84 * 4 + 14) * 8 * 4096)
    # 12 MiB of sectors until the neighbour of an element is needed, and 64 bytes more, of rows of 33 and of 8.
    assert turned("[33,393218]", "{1,33}") == round((0.84 * 4 + 64) * 33 * 393218)
    assert turned("[8,3145744]", "{1,8}") == pytest.approx((0.84 * 4 + 32) * 8 * 3145744, rel=0.01)


def test_elements_that_a_block_reads_later_are_found_again_only_at_times() -> None:
    # 128 threads of 4 halves each, along rows of 128: the first ones need a line each, all four share one.
    of_halves = op("aten.clone.default", ["bfloat16[4096,128]{1,4096}"], ["bfloat16[4096,128]"])
    missed = 0.8 * 28 + 0.2 * 28 / 4
    assert works(of_halves, 132)[0].nbytes == round((0.84 * 2 + missed) * 4096 * 128)


def test_what_is_repeated_from_afar_and_what_is_one_of_three_types_lie_further_away() -> None:
    def dims(name: str, operands: list[str]) -> float:
        return works(op(name, operands, ["float32[8,256,256]"]), 132)[0].coordinates[2]

    image = "bfloat16[8,256,256]"
    assert dims("aten.mul.Tensor", [image, "float32[256,1]"]) == 3.0
    assert dims("aten.mul.Tensor", [image, "float32[256,256]"]) == 2.5  # 256 KiB, eight times
    assert dims("aten.mul.Tensor", [image, "float32[8,256,1]"]) == 2.0
    assert dims("aten.where.self", ["bool[8,256,256]", image, "float32[256,256]"]) == 3.5


def test_a_loss_per_element_is_no_sum() -> None:
    each = op("aten.mse_loss.default", ["2*float32[64]", 0], ["float32[64]"])
    mean = op("aten.mse_loss.default", ["2*float32[64]"], ["float32[]"])
    assert (rule_of(each), rule_of(mean)) == ("mse_loss contiguous", "mse_loss summed")


def test_rows_of_16_bytes_or_a_multiple_are_gathered_each_in_its_time_and_other_runs_are_not() -> None:
    short = op("aten.index.Tensor", ["float32[64,8]", ["int64[16]"]], ["float32[16,8]"])
    long = op("aten.embedding.default", ["float32[64,4096]", "int64[16]"], ["float32[16,4096]"])
    found = [works(one, H200.num_sms)[0] for one in (short, long)]
    assert [(work.rule, work.nbytes) for work in found] == [
        ("rows gathered", 16 * 2900),
        ("rows gathered", 16 * 8 + 2 * 16 * 4096 * 4),
    ]
    odd = op("aten.index.Tensor", ["float32[64,1]", ["int64[16]"]], ["float32[16,1]"])
    elements = op("aten.index.Tensor", ["float32[64,8]", [None, "int64[4]"]], ["float32[64,4]"])
    sliced, shifted = (
        op("aten.index.Tensor", [f"float32[64,8]{{{row},1}}", ["int64[16]"]], ["float32[16,8]"]) for row in (12, 9)
    )
    assert [rule_of(one) for one in (sliced, shifted)] == ["rows gathered", "index"]  # rows start at vectors, or not
    columns = op("aten.index_select.default", ["float32[64,64]", 1, "int64[8]"], ["float32[64,8]"])
    found = [works(one, H200.num_sms)[0] for one in (odd, elements, columns)]
    assert [(work.rule, work.nbytes) for work in found] == [
        ("index", 16 * (8 + 4) + 64 * 4),  # all of so small a table
        ("index", 22 * 64 * 4),
        ("index_select", 8 * 8 + 64 * 8 * (4 + 32)),  # the sector that a number lies in
    ]


def test_a_number_on_the_gpu_is_read_for_every_element_and_one_of_the_host_is_not() -> None:
    of_gpu = op("aten.mul.Tensor", ["float32[64,64]", "float32[]"], ["float32[64,64]"])
    of_host = op("aten.mul.Tensor", ["float32[64,64]", None], ["float32[64,64]"])
    assert [rule_of(one) for one in (of_gpu, of_host)] == ["pointwise broadcast", "pointwise contiguous"]


def test_truth_values_are_converted_where_they_are_counted_with_and_not_where_they_choose() -> None:
    product = op("aten.mul.Tensor", ["float32[64]", "bool[64]"], ["float32[64]"])
    choice = op("aten.where.self", ["bool[64]", "2*float32[64]"], ["float32[64]"])
    assert [rule_of(one) for one in (product, choice)] == ["pointwise contiguous mixed", "pointwise contiguous"]


def test_every_other_element_fetches_what_lies_between_and_is_not_turned() -> None:
    gaps = works(op("aten.clone.default", ["float32[64,32]{64,2}"], ["float32[64,32]"]), H200.num_sms)[0]
    assert (gaps.rule, gaps.nbytes) == ("copy strided", 4 * 64 * 32 * (2 + 1))


def test_attention_counts_whole_tiles_and_whole_waves() -> None:
    def found(pairs: int, length: int, way: str = "", is_causal: bool = False, dim: int = 64) -> Work:
        query = f"float32[{pairs},1,{length},{dim}]"
        name = f"aten._scaled_dot_product_efficient_attention{way}.default"
        options = [None, query, query, None, None, 0.0, None, is_causal] if way else [None, False, 0.0, is_causal]
        return works(op(name, [*[query] * (4 if way else 3), *options], [query]), H200.num_sms)[0]

    assert found(264, 65).flops == found(264, 128).flops == 2 * 2 * 264 * 128 * 128 * 64
    # One block on each of 132 processors takes as long as two, then each takes its share.
    assert [found(pairs, 64).stretch for pairs in (33, 132, 264, 300)] == [8.0, 2.0, 1.0, 396 / 300]
    assert [found(pairs, 64, "_backward").stretch for pairs in (33, 132, 133, 300)] == [8.0, 2.0, 264 / 133, 528 / 300]
    assert [found(pairs, 64, "_backward", True).stretch for pairs in (33, 264, 300)] == [8.0, 1.0, 1.0]
    assert found(33, 512, "_backward").coordinates == found(20, 512, "_backward").coordinates
    # Of wider heads a processor has one block at a time.
    wide = [found(pairs, 64, "_backward", dim=128).stretch for pairs in (33, 132, 133, 300)]
    assert wide == [4.0, 1.0, 264 / 133, 396 / 300]


def attention_work(
    backend: str, query: str, keys: str = "", mask: str = "", way: str = "", dropout: float = 0.0
) -> Work:
    keys = keys or query
    name = f"aten._scaled_dot_product_{backend}_attention{way}.default"
    bias: object = mask or None
    options: dict[tuple[str, str], list[object]] = {
        ("cudnn", ""): [bias, False, dropout, False],
        ("cudnn", "_backward"): [query, None, None, None, bias, None, None, 64, 64, dropout, False],
        ("flash", ""): [dropout, False],
        ("flash", "_backward"): [query, None, None, None, 64, 64, dropout, False],
    }
    tensors = [*([query] if way else []), query, keys, keys]
    return works(op(name, [*tensors, *options[backend, way]], [query, keys, keys]), 132)[0]


def steps_ns(work: Work, flops: float) -> float:
    """How many steps of so many operations on each processor."""
    return work.stretch * work.flops / (132 * flops)


def test_attention_of_cudnn_walks_over_scores_in_whole_waves_of_blocks() -> None:
    def found(pairs: int, dim: int, way: str = "", length: int = 1024) -> Work:
        return attention_work("cudnn", f"bfloat16[{pairs},1,{length},{dim}]", way=way)

    # Forward: 128 queries to a block, 128 keys to a step, one block to a processor; a step is wider by 66.
    step = 4 * 128 * 128 * (64 + 66)
    assert [steps_ns(found(pairs, 64), step) for pairs in (1, 16, 17, 33)] == pytest.approx([8, 8, 16, 16])
    assert found(16, 64).rounds == 1.5
    assert found(33, 64).rounds == 3.0
    # Backward: 64 keys to a block, 64 queries to a step, two blocks to a processor up to heads of 128, then one.
    narrow, wide = 10 * 64 * 64 * (64 + 60), 10 * 64 * 64 * (256 + 356)
    assert [steps_ns(found(pairs, 64, "_backward"), 2 * narrow) for pairs in (1, 16, 17)] == pytest.approx([16, 16, 32])
    assert [steps_ns(found(pairs, 256, "_backward"), wide) for pairs in (1, 8, 9, 16)] == pytest.approx(
        [16, 16, 32, 32]
    )
    assert found(1, 24).stretch * found(1, 24).flops == found(1, 64).stretch * found(1, 64).flops
    assert found(1, 64).flops == 4 * 1024**2 * 64
    assert found(1, 64, length=1000).flops == 4 * 1000**2 * 64  # what is asked for, whatever is computed


def test_gradients_of_attention_move_queries_thirteen_times_beside_the_products() -> None:
    query, keys = "bfloat16[2,8,512,64]", "bfloat16[2,2,512,64]"
    alone, shared = (attention_work("cudnn", query, one, way="_backward") for one in (query, keys))
    assert alone.is_serial
    assert (alone.nbytes, alone.kernels) == (13 * 2 * 16 * 512 * 64, 4)
    assert (shared.nbytes, shared.kernels) == ((13 + 4) * 2 * 16 * 512 * 64, 6)  # and keys' four times
    assert (attention_work("cudnn", query).nbytes, attention_work("cudnn", query).kernels) == (6 * 2 * 16 * 512 * 64, 2)


def test_attention_of_cudnn_takes_longer_over_masks_and_longest_over_rows_that_begin_at_odd_elements() -> None:
    def found(keys: int, mask: bool, dropout: float = 0.0) -> Work:
        rows = f"bfloat16[264,1,128,{keys}]" if mask else ""
        return attention_work("cudnn", "bfloat16[264,1,128,64]", f"bfloat16[264,1,{keys},64]", rows, dropout=dropout)

    step = 4 * 128 * 128
    kinds = [found(128, False), found(128, True), found(127, True), found(128, True, 0.5), found(127, True, 0.5)]
    wider = [round(steps_ns(one, step) / 2) - 64 for one in kinds]  # two waves of one step
    assert wider == [66, 190, 490, 460, 760]
    even, odd = kinds[1], kinds[2]
    # How wide heads are computed and are, heads to a key's, where rows begin.
    assert [one.coordinates[3:6] for one in (even, odd)] == [(24.0, 0.0, 4.0), (24.0, 0.0, 1.0)]


def test_flash_attention_divides_keys_where_queries_leave_processors_idle() -> None:
    def found(pairs: int, dropout: float = 0.0) -> Work:
        query, keys = f"bfloat16[{pairs},1,64,64]", f"bfloat16[{pairs},1,4096,64]"
        return attention_work("flash", query, keys, dropout=dropout)

    step = 2 * 4 * 64 * 256 * (64 + 141)  # of two blocks on a processor
    assert [steps_ns(found(pairs), step) for pairs in (1, 16, 33, 200)] == pytest.approx([1, 1, 2, 16])
    assert found(1).kernels == 2
    # Two blocks to a processor fill less than 0.8 of them: 211 do not, and none of dropout.
    assert (found(211).kernels, found(212).kernels, found(1, 0.5).kernels) == (2, 1, 1)
    assert steps_ns(found(212), 2 * 4 * 128 * 128 * (64 + 141)) == pytest.approx(32)


def test_flash_attention_has_kernels_of_their_own_for_what_fills_all_tiles() -> None:
    def evenness(length: int, dim: int, way: str = "") -> float:
        return attention_work("flash", f"bfloat16[264,1,{length},{dim}]", way=way).coordinates[4]

    assert [evenness(*sizes) for sizes in ((256, 64), (255, 64), (256, 56), (256, 128))] == [2.0, 0.0, 0.0, 2.0]
    assert [evenness(192, 128, way) for way in ("", "_backward")] == [0.0, 0.0]
    assert [evenness(256, 256, way) for way in ("", "_backward")] == [2.0, 2.0]


@pytest.mark.parametrize(("dtype", "deeper"), [("float32", 32), ("bfloat16", 128)])
def test_few_small_products_of_a_batch_take_as_long_as_what_fills_the_processors(dtype: str, deeper: int) -> None:
    def work(batch: int) -> Work:
        sizes = (f"{batch},32,4096", f"{batch},4096,32", f"{batch},32,32")
        first, second, out = (f"{dtype}[{size}]" for size in sizes)
        return works(op("aten.bmm.default", [first, second], [out]), 132)[0]

    # 7 x 1024 results on each of 132 processors, of which 24 x 1024 are wanted, or all that there are.
    assert work(24).stretch == pytest.approx(7 * 132 / 24 * (4096 + deeper) / 4096)
    assert work(7 * 132).stretch == work(2000).stretch == pytest.approx((4096 + deeper) / 4096)


def test_both_types_of_halves_run_the_same_odd_kernels_but_for_rows_at_odd_elements() -> None:
    def coordinates(dtype: str, columns: int) -> tuple[float, ...]:
        operands: list[object] = [f"{dtype}[8,16,64]", f"{dtype}[8,64,{columns}]"]
        return works(op("aten.bmm.default", operands, [f"{dtype}[8,16,{columns}]"]), 132)[0].coordinates

    assert coordinates("float16", 34) == coordinates("bfloat16", 34)
    assert coordinates("float16", 35) != coordinates("bfloat16", 35)


def test_windows_are_put_together_row_by_row() -> None:
    sizes = [[10, 10], [3, 3], [1, 1], [1, 1], [1, 1]]
    for layout, copies in (("", 0), ("{3600,1,36}", 1)):
        together = op("aten.col2im.default", [f"bfloat16[8,36,100]{layout}", *sizes], ["bfloat16[8,4,10,10]"])
        assert [one.name for one in hidden_ops(together)] == ["aten.clone.default"] * copies
