"""What rules count of kernels that go on step by step: running sums, softmax, pooling, norms, recurrent layers."""

from __future__ import annotations

from math import log2

import pytest

from priced_ops import H200, op, rule_of
from trainfit.cost.classify import hidden_ops, works
from trainfit.cost.reduce import in_a_step_ns, reduce_samples
from trainfit.cost.work import Work, waited_bytes
from trainfit.records import Op


def running(shape: str, dim: int) -> Work:
    return works(op("aten.cumsum.default", [shape, dim], [shape]), H200.num_sms)[0]


def test_a_running_sum_across_memory_takes_a_step_for_every_element_of_a_column() -> None:
    few, narrow, many = (
        running(shape, 1) for shape in ("float32[8,16,128]", "bfloat16[8,16,16]", "float32[512,16,1024]")
    )
    assert (few.rule, few.coordinates) == ("cumsum across", (10.0, 4.0, 0.0, 3.0))  # 1024 columns, 16 steps, 8 bytes
    assert narrow.coordinates == (9.0, 4.0, 0.0, 2.0)  # blocks of 16 threads leave a processor's others idle: 64
    # As long as all that the GPU holds; the cache answers twice as fast as memory.
    assert few.nbytes == narrow.nbytes == 16 * 132 * 2048 * 8 // 2
    assert many.nbytes == 16 * 512 * 1024 * 8


def test_a_running_sum_along_memory_takes_a_step_for_every_piece_of_a_row() -> None:
    square, long, many = (
        running(shape, 1) for shape in ("float32[1024,1024]", "float32[8,1024]", "float32[131072,32]")
    )
    assert (square.rule, square.coordinates) == ("cumsum along", (5.0, 5.0, 4.0, 3.0))  # 16 threads to a row: 32 pieces
    assert long.coordinates == (2.0, 1.0, 8.0, 3.0)  # 256 threads: 4 blocks, 2 pieces of 512
    assert many.coordinates == (17.0, 0.0, 9.0, 3.0)  # a block for every row
    assert square.nbytes == 32 * 132 * 4 * 1024 * 8
    assert many.nbytes == 131072 * 1024 * 8


def test_a_running_sum_of_one_row_is_priced_by_its_bytes() -> None:
    flat = running("int64[4096]", 0)
    assert (flat.rule, flat.nbytes, flat.is_by_bytes) == ("cumsum flat", 65536, True)


def test_a_walk_waits_for_memory_where_the_cache_does_not_hold_its_operands() -> None:
    nbytes = [running(f"float32[{rows},8,1024]", 1).nbytes for rows in (128, 4096)]
    assert nbytes == [8 * 132 * 2048 * 8 // 2, 8 * 4096 * 1024 * 8]  # of 8 MiB; of 256, whose columns fill the GPU
    assert waited_bytes(128 * 2**20, 100, 3) == 100 * 3 * 8  # long since from memory
    assert waited_bytes(64 * 2**20, 100, 3) == round(100 * 3 * 8 * 2**0.6 / 2)


def test_what_waits_is_priced_as_it_ran_with_its_operands_in_the_cache() -> None:
    sample = {
        "op": "aten.cumsum.default",
        "args": ["float32[8,16,128]", 1],
        "kwargs": {},
        "outputs": ["float32[8,16,128]"],
    }
    measured = {"cold_ns": 6000, "warm_ns": 3000, "num_kernels": 1, "overlap": 1.0}
    assert reduce_samples(H200, [sample | measured]).times_ns == {"cumsum across": [3000]}


def test_a_running_sum_whose_steps_share_a_sector_has_a_rule_of_its_own_and_so_has_one_that_converts() -> None:
    assert [running(f"float32[64,100,{columns}]", 1).rule for columns in (2, 7, 8)] == [
        "cumsum across narrow", "cumsum across narrow", "cumsum across",
    ]  # fmt: skip
    counted = op("aten.cumsum.default", ["bool[8,16,128]", 1], ["int64[8,16,128]"])
    assert rule_of(counted) == "cumsum converted across"


def test_softmax_of_short_rows_computes_a_power_of_two_and_of_long_ones_needs_a_row_for_every_processor() -> None:
    def rows(shape: str, out: str) -> Work:
        return works(op("aten._softmax.default", [shape, -1, False], [out]), H200.num_sms)[0]

    short, wide = rows("float32[100,300]", "float32[100,300]"), rows("float16[100,300]", "float32[100,300]")
    assert (short.rule, short.nbytes) == ("_softmax rows 4", 100 * (300 * 8 + 3 * 512))
    assert short.coordinates == (log2(100), log2(300), log2(300) - 9)
    assert (wide.rule, wide.nbytes) == ("_softmax rows 2", 100 * (300 * 6 + 3 * 512))
    held, long = (rows(f"float32[33,{columns}]", f"float32[33,{columns}]") for columns in (2048, 4096))
    assert (held.nbytes, held.coordinates[2]) == (33 * 2048 * (8 + 3), 0.0)
    assert (long.nbytes, long.coordinates[2]) == (132 * 4096 * 8, 2.0)
    widened = rows("float16[33,2048]", "float32[33,2048]")  # such are held up to half as long
    assert (widened.rule, widened.nbytes) == ("_softmax rows 2 widened", 132 * 2048 * 6)


def test_rows_of_softmax_that_threads_hold_come_in_thousands_and_longer_ones_may_begin_between_two_vectors() -> None:
    def rows(columns: int, dtype: str = "float32", way: str = "") -> Work:
        row = f"{dtype}[33,{columns}]"
        args: list[object] = [row, row, -1, dtype] if way else [row, -1, False]
        return works(op(f"aten._softmax{way}.default", args, [row]), H200.num_sms)[0]

    assert (rows(2049).rule, rows(2049).nbytes) == ("_softmax rows 4 shared", 132 * 3072 * 8)
    assert rows(2049).coordinates == rows(3072).coordinates == (log2(33), log2(3072), 2.0)
    assert [rows(columns).rule for columns in (2048, 9216, 9217, 9220)] == [
        "_softmax rows 4", "_softmax rows 4 shared", "_softmax rows 4 odd", "_softmax rows 4",
    ]  # fmt: skip
    assert rows(9217).nbytes == 132 * 9217 * 8
    gradients = [rows(columns, "bfloat16", "_backward_data") for columns in (1023, 1025, 1032, 2049)]
    assert [one.rule.removeprefix("_softmax_backward_data ") for one in gradients] == [
        "rows 2", "rows 2 odd", "rows 2", "rows 2 odd",
    ]  # fmt: skip


def test_states_that_are_no_whole_vectors_run_other_products() -> None:
    def rule(width: int, dtype: str) -> str:
        data, weights = f"{dtype}[16,8,{width}]", [f"2*{dtype}[{4 * width},{width}]"]
        args: list[object] = [data, weights, 4, None, data, None, 2, width, 0, 1, False, 0.0, True, False, [], None]
        return rule_of(op("aten._cudnn_rnn.default", args, [data]))

    assert [rule(width, "bfloat16") for width in (648, 650)] == ["_cudnn_rnn lstm 2", "_cudnn_rnn lstm 2 odd"]
    assert [rule(width, "float32") for width in (652, 650)] == ["_cudnn_rnn lstm 4", "_cudnn_rnn lstm 4 odd"]


def test_weight_norm_of_the_first_dimension_moves_its_bytes_and_of_the_last_waits_for_every_element() -> None:
    first, last = (
        works(
            op("aten._weight_norm_interface.default", ["float32[64,32,3]", length, dim], ["float32[64,32,3]", length]),
            132,
        )
        for length, dim in (("float32[64,1,1]", 0), ("float32[1,1,3]", 2))
    )
    assert (first[0].rule, first[0].coordinates) == ("_weight_norm_interface first 4", (6.0, log2(96)))
    assert first[0].nbytes == 4800 * 96  # a block of threads waits 1 ns for each element of its length
    assert (last[0].rule, last[0].coordinates) == ("_weight_norm_interface", (11.0,))


def softmax_work(shape: str) -> Work:
    return works(op("aten._softmax.default", [shape, 1, False], [shape]), H200.num_sms)[0]


def test_softmax_across_memory_takes_a_step_for_every_element_of_the_columns_that_a_thread_walks_down() -> None:
    # 32 blocks of 128 threads walk down 512; of 1024 threads a processor holds 2 blocks, 264 of them walk 249 times.
    few, many = softmax_work("float32[32,512,128]"), softmax_work("float32[65536,2,1024]")
    # Then how long columns are, and half the doublings of 16 MiB.
    assert (few.rule, few.coordinates) == ("_softmax across", (12.0, 9.0, 0.0, 3.0, 9.0, 0.0))
    assert many.coordinates == (log2(264 * 1024), log2(249 * 2), 0.0, 3.0, 1.0, 2.5)
    assert (few.nbytes, many.nbytes) == (512 * 132 * 2048 * 8 // 2, 498 * 132 * 2048 * 8)  # the first from the cache
    # 16 threads share a column of which few lie beside each other, and walk down a 16th of it.
    assert softmax_work("bfloat16[256,1024,64]").coordinates == (18.0, 6.0, 4.0, 2.0)
    assert softmax_work("float32[8,16,1]").rule == "_softmax rows 4"


def test_smooth_resizing_goes_through_images_and_channels_unless_channels_come_last() -> None:
    plain, last = (
        op(
            "aten.upsample_bilinear2d.default",
            [f"float32[4,64,8,8]{order}", [16, 16], False],
            [f"float32[4,64,16,16]{out}"],
        )
        for order, out in (("", ""), ("{4096,1,512,64}", "{16384,1,1024,64}"))
    )
    by_pixel, by_element = (works(one, H200.num_sms)[0] for one in (plain, last))
    # 256 threads, a pixel each, go through 256 planes; elements of 4 bytes; a result four times as large.
    assert (by_pixel.rule, by_pixel.coordinates) == ("upsample_bilinear2d nchw", (8.0, 8.0, 2.0, -2.0))
    assert by_pixel.nbytes == 132 * 2048 * 256 * 8 // 2  # what the cache answers
    assert (by_element.rule, by_element.nbytes) == ("upsample_bilinear2d nhwc", 4 * 64 * 256 * 8)


def pool_work(name: str, args: list[object], out: str) -> Work:
    return works(op(f"aten.{name}.default", args, [out]), H200.num_sms)[0]


def test_smooth_resizing_to_more_pixels_than_threads_comes_in_whole_waves() -> None:
    # A block of 1024 threads on each of 132 processors; 384 x 384 pixels are 144 blocks, 12 more than that.
    wide = pool_work("upsample_bilinear2d", ["float32[2,8,192,192]", [384, 384], False], "float32[2,8,384,384]")
    assert [round(2**size) for size in wide.coordinates[:2]] == [132 * 1024, 2 * 16]
    solid = pool_work("upsample_trilinear3d", ["float32[2,8,32,32,32]", [64, 64, 64], False], "float32[2,8,64,64,64]")
    assert [round(2**size) for size in solid.coordinates[:2]] == [64**3, 16]  # of volumes more blocks run at a time


def test_smooth_resizing_waits_for_memory_where_the_cache_does_not_hold_image_and_result() -> None:
    def nbytes(planes: int) -> int:
        image, result = f"float32[1,{planes},50,50]", f"float32[1,{planes},150,150]"
        return pool_work("upsample_bicubic2d", [image, [150, 150], False], result).nbytes

    # 100,000 bytes of each plane: the cache answers for 24 MB, in half the time, and of 64 MB for nothing.
    step = 132 * 2048 * 8
    assert [nbytes(planes) for planes in (200, 440, 1000)] == [200 * step // 2, 440 * step * 3 // 4, 1000 * step]


def test_gradients_of_smooth_resizing_wait_for_each_other_the_longer_the_more_meet() -> None:
    def nbytes(dtype: str, side: int) -> int:
        sizes = [1, 96, 7, 7]
        gradient, result = f"{dtype}[1,96,{side},{side}]", f"{dtype}[1,96,7,7]"
        return pool_work("upsample_bicubic2d_backward", [gradient, [side, side], sizes, False], result).nbytes

    # 96 planes; 16 places for each pixel, of which there are 1024, or 16, times as many as places: the roots.
    assert [nbytes("bfloat16", side) for side in (224, 28)] == [96 * 128 * 13_600_000, 96 * 16 * 13_600_000]
    assert nbytes("float32", 224) == 96 * 128 * 384_000
    assert nbytes("float32", 7 * 2) == 96 * 8 * 384_000


def test_smooth_curves_through_pixels_whose_channels_come_last_fetch_each_element_by_itself() -> None:
    def work(channels: int) -> Work:
        order, turned = (
            f"{{{16 * channels},1,{4 * channels},{channels}}}",
            f"{{{64 * channels},1,{8 * channels},{channels}}}",
        )
        image, result = f"bfloat16[1,{channels},4,4]{order}", f"bfloat16[1,{channels},8,8]{turned}"
        return pool_work("upsample_bicubic2d", [image, [8, 8], False], result)

    # 64 threads; a line of 128 bytes has 64 of such elements: pixels of 16 channels share it with three others.
    step = 132 * 2048 * 8 // 2
    assert work(64).nbytes == 64 * (step + 64 * 25_000)
    assert work(16).nbytes == 16 * (step + 64 * 25_000 // 4)
    assert work(16).coordinates[-2:] == (-2.0, 2.5)  # that share, and half the doublings of a pixel's 32 bytes


def test_pooling_counts_threads_and_what_each_of_them_looks_at() -> None:
    small, large, half = "float32[2,64,16,16]", "float32[2,64,32,32]", "bfloat16[2,64,32,32]"
    found = [
        pool_work("avg_pool2d", [large, [3, 3], [2, 2], [1, 1]], small),  # 9 elements of a window
        pool_work("avg_pool2d_backward", [small, large, [3, 3], [2, 2], [1, 1], False, True, None], large),
        pool_work("upsample_nearest2d", [small, [32, 32]], large),
        pool_work("upsample_nearest2d_backward", [large, [32, 32], [2, 64, 16, 16]], small),
        pool_work("_adaptive_avg_pool2d", [large, [16, 16]], small),
        pool_work("_adaptive_avg_pool2d_backward", ["bfloat16[2,64,16,16]", half], half),
    ]
    assert [(one.rule, *(round(2**size) for size in one.coordinates[:2])) for one in found] == [
        ("avg_pool2d nchw", 2 * 64 * 256, 9),
        ("avg_pool2d_backward nchw", 2 * 64 * 1024, 4),  # that many windows reach an element
        ("upsample_nearest2d nchw", 2 * 64 * 1024, 1),
        ("upsample_nearest2d_backward nchw", 64 * 256, 2 * 4),  # through the batch
        ("_adaptive_avg_pool2d nchw", 2 * 64 * 8 * 16, 2 * 4),  # 8 rows at a time
        ("_adaptive_avg_pool2d_backward nchw 2", 2 * 64 * 8 * 16, 2 * 4),
    ]


def test_a_pooling_window_larger_than_the_image_looks_at_the_image() -> None:
    image, result, window = "float32[2,64,8,8]", "float32[2,64,1,1]", [1280, 1280]
    forward = pool_work("avg_pool2d", [image, window, window, [0, 0], True], result)
    backward = pool_work("avg_pool2d_backward", [result, image, window, [1, 1], [0, 0], True, True, None], image)
    assert [round(2 ** one.coordinates[1]) for one in (forward, backward)] == [64, 1]


def test_what_lies_otherwise_than_the_image_is_copied_before_its_windows_get_gradients() -> None:
    last, indices = "float32[2,64,32,32]{65536,1,2048,64}", "int64[2,64,16,16]{16384,1,1024,64}"
    mixed = ["float32[2,64,16,16]", last, [2, 2], [2, 2], [0, 0], [1, 1], False, indices]
    gradient = op("aten.max_pool2d_with_indices_backward.default", mixed, [last])
    own = works(gradient, H200.num_sms)[0]
    assert own.rule == "max_pool2d_with_indices_backward nhwc"
    assert own.coordinates == (17.0, 0.0, 2.0, -2.0, 6.0)  # 64 channels last
    (copy,) = hidden_ops(gradient)
    assert (copy.name, copy.outputs[0].stride) == ("aten.clone.default", (16384, 1, 1024, 64))


def test_the_largest_of_windows_whose_channels_come_last_are_found_by_blocks_of_channels_columns_and_rows() -> None:
    image, out = "float32[4,64,56,56]{200704,1,3584,64}", "float32[4,64,28,28]{50176,1,1792,64}"
    indices = "int64[4,64,28,28]{50176,1,1792,64}"
    args = [image, [3, 3], [2, 2], [1, 1]]
    own = works(op("aten.max_pool2d_with_indices.default", args, [out, indices]), 132)[0]
    # 32 channels, 16 columns, 2 rows; a thread has 2 channels, 2 columns, 2 rows: 7 blocks of rows for each image.
    assert own.coordinates == (log2(4 * 7 * 1024), log2(2 * 2 * 2 * 9), 2.0, log2(9 / 4))
    assert own.nbytes == 120_000 * 72 + 4 * (200704 + 50176) * 4 + 8 * 50176 * 4


def test_losses_of_an_image_s_places_are_added_up_by_one_block_up_to_a_quarter_of_a_million() -> None:
    few, many = (
        works(
            op("aten.nll_loss2d_forward.default", [f"float32[300,8,{side}]", f"int64[300,{side}]", None, 1, -100], []),
            132,
        )[0]
        for side in ("64,64", "512,512")
    )
    # 300 blocks of 1024 threads come in two waves of 264 and take 4 places each; 512 x 512 places have two blocks.
    assert (few.coordinates, few.nbytes) == ((2.0, log2(300), 2.0, 1.5), 4_500_000 * 4 * 2)
    assert (many.coordinates, many.nbytes) == ((7.0, log2(600), 2.0, 1.5), 4_500_000 * 128 * 3)


@pytest.mark.parametrize(
    ("shape", "groups", "length", "recalled", "nbytes"),
    [
        # 4 rows of 2048 elements: each takes as long as 3840 bytes, but the cache knows the image, half of it
        ("4,32,8,8", 1, 2048, 0.5, 3840 * 2048 // 2),
        # 46 MB, 2 x 22 MiB, are no longer known
        ("1,11,1024,1024", 1, 11 * 2**20, 1.0, 3840 * 11 * 2**20),
        # more rows than processors do not wait; four of them each keep memory busy
        ("4,132,64,64", 132, 4096, None, 2 * 4 * 4 * 132 * 4096),
    ],
)
def test_a_group_norm_s_rows_are_groups_and_few_of_them_wait_for_memory(
    shape: str, groups: int, length: int, recalled: float | None, nbytes: int
) -> None:
    images, channels = map(int, shape.split(",")[:2])
    x = f"float32[{shape}]"
    args = [x, f"2*float32[{channels}]", images, channels, 64, groups, 1e-5]
    norm = works(op("aten.native_group_norm.default", args, [x, f"2*float32[{images},1]"]), 132)[0]
    assert norm.coordinates == (log2(images * groups), log2(length))
    assert (norm.recalled, norm.nbytes) == (recalled, nbytes)
    cold_ns, warm_ns = 1000, 400  # alone; in a step it takes the share of the first, or a little less of it
    assert in_a_step_ns(norm, cold_ns, warm_ns, H200) == (850 if recalled is None else 1000 * recalled)


@pytest.mark.parametrize(("mebibytes", "recalled", "warm"), [(12, 0.5, 0.5), (20, 0.5, 50 / 81), (48, 1.0, 1.0)])
def test_a_group_norm_that_was_not_run_cold_has_known_as_much_as_a_warm_one_does(
    mebibytes: int, recalled: float, warm: float
) -> None:
    x = f"float32[1,{mebibytes},512,512]"
    args = [x, f"2*float32[{mebibytes}]", 1, mebibytes, 512 * 512, 1, 1e-5]
    norm = works(op("aten.native_group_norm.default", args, [x, "2*float32[1,1]"]), 132)[0]
    assert in_a_step_ns(norm, 1000, 1000, H200) == pytest.approx(1000 * recalled / warm)


@pytest.mark.parametrize(
    ("images", "weights", "steps"), [(64, True, 64), (128, True, 128), (160, True, 5), (64, False, 0)]
)
def test_gradients_of_a_group_norm_s_weights_are_added_up_image_by_image(
    images: int, weights: bool, steps: int
) -> None:
    x, per_group = f"float32[{images},32,8,8]", f"2*float32[{images},4]"
    args = [f"2*{x}", per_group, "float32[32]", images, 32, 64, 4, [True, weights, weights]]
    norm = works(op("aten.native_group_norm_backward.default", args, [x, "2*float32[32]"]), 132)[0]
    assert norm.coordinates == (log2(images * 32), 6.0, log2(max(steps, 1)))
    # of 64 elements of a row each takes as long as 4100 bytes, and 0.55 x 1.6 more where rows crowd; four are at once
    waited = images * 32 / (4 * 132) * 4100 * 64 * (1 + 0.55 * 1.6)
    assert norm.nbytes == round(waited) + 500_000 * steps


def test_few_rows_of_a_group_norm_s_gradient_do_not_crowd() -> None:
    x = "float32[1,33,64,64]"
    args = [f"2*{x}", "2*float32[1,1]", "float32[33]", 1, 33, 4096, 1, [True, False, False]]
    norm = works(op("aten.native_group_norm_backward.default", args, [x, "2*float32[33]"]), 132)[0]
    assert norm.nbytes == round(4100 * 4096 * (1 + 0.55 / 4))  # 33 rows on 132 processors
    assert norm.recalled is None


def test_an_image_sampled_at_points_counts_points_channels_pixels_and_points_to_a_pixel() -> None:
    image, points, out = "float32[100,4,32,32]", "float32[100,5,5,2]", "float32[100,4,5,5]"
    own, library, gradient = (
        works(op(name, args, outputs), H200.num_sms)[0]
        for name, args, outputs in (
            ("aten.grid_sampler_2d.default", [image, points, 0, 0, False], [out]),
            ("aten.cudnn_grid_sampler.default", [image, points], [out]),
            ("aten.cudnn_grid_sampler_backward.default", [image, points, out], [image, points]),
        )
    )
    assert own.rule == "grid_sampler_2d bilinear 4"
    assert own.coordinates == (log2(2500), 2.0, 10.0, -4.0, 0.0, 0.0)  # 25 points to 1024 pixels count as one to 16
    assert own.nbytes == 132 * 300 * 4 * 24  # fewer points wait as long; a thread goes through 4 channels
    assert (library.nbytes, gradient.nbytes) == (2500 * 4 * 24, 2500 * 4 * 240)


@pytest.mark.parametrize(
    ("points", "weight"),
    [
        ("float32[8,64,64,2]", 0.0),  # an image that is bent
        ("float32[8,5440,4,2]", 0.0),  # around every pixel
        ("float32[8,300,4,2]", 3.0),  # around objects
        ("float32[8,2048,1,2]", 3.0),
        ("float32[8,1,2048,2]", 3.0),
    ],
)
def test_points_that_lie_anywhere_are_no_neighbours_of_those_that_lie_in_order(points: str, weight: float) -> None:
    count = ",".join(points.split("[")[1].split(",")[1:3])
    sampled = op("aten.grid_sampler_2d.default", ["float32[8,4,32,32]", points, 0, 0, False], [f"float32[8,4,{count}]"])
    assert works(sampled, H200.num_sms)[0].coordinates[-1] == weight


def recurrent(mode: int, dtype: str, width: int, layers: int = 1, batch: int = 8) -> Op:
    weights, state = [f"{dtype}[{4 * width},{width}]"] * 2, f"{dtype}[{layers},{batch},{width}]"
    options = [mode, width, 0, layers, False, 0.0, True, False, [], None]
    inputs = [f"{dtype}[5,{batch},{width}]", weights, 2, None, state, None, *options]
    return op("aten._cudnn_rnn.default", inputs, [f"{dtype}[5,{batch},{width}]"])


def test_recurrent_networks_are_priced_by_their_mode_and_type() -> None:
    assert rule_of(recurrent(2, "float32", 256)) == "_cudnn_rnn lstm 4"
    assert rule_of(recurrent(3, "bfloat16", 16)) == "_cudnn_rnn gru 2"
    found = [work.rule for work in works(recurrent(3, "float16", 256), H200.num_sms)]
    assert (found[0], "_cudnn_rnn lstm 2" in found) == ("_cudnn_rnn gru 2", True)


def test_a_layer_of_float16_keeps_its_weights_where_torch_asks_for_it() -> None:
    kept = [
        recurrent(2, "float16", 512),
        recurrent(2, "float16", 512, layers=2),
        recurrent(2, "float16", 512, batch=12),
    ]
    assert [rule_of(one).endswith("persistent") for one in kept] == [True, False, False]
    assert [rule_of(recurrent(2, "float16", width)).endswith("persistent") for width in (1024, 1152, 520)] == [
        True, False, False,
    ]  # fmt: skip


def test_small_recurrent_layers_go_through_all_steps_at_once() -> None:
    widths = ((2, 192), (2, 200), (1, 384), (1, 392), (3, 192), (3, 200))
    rules = [rule_of(recurrent(mode, "float32", width)) for mode, width in widths]
    assert [rule.endswith("fused") for rule in rules] == [True, False, True, False, True, False]
    fused, stepwise = (works(recurrent(2, "float32", width), H200.num_sms)[0] for width in (64, 256))
    assert (fused.kernels, stepwise.kernels) == (4, 2 * 5)


def test_narrow_layers_load_their_weights_once_for_every_sequence_of_a_processor() -> None:
    one, two, eight = (
        works(recurrent(2, dtype, 64, batch=batch), 132)[0]
        for dtype, batch in (("float32", 132), ("float32", 133), ("float16", 8 * 132))
    )
    # Five steps, each as long as 0.45 rounds and what 4 x 64 x 64 weights take, which are loaded first.
    wave = 5 * (0.45 + 65536 / 250000) + 65536 / 7000
    assert (one.rounds, two.rounds) == (round(wave), round(2 * wave))
    tensors = 5 * (1.4 + 32768 / 120000) + 32768 / 7000
    assert (eight.rule, eight.rounds) == ("_cudnn_rnn lstm 2 fused", round(tensors))
    assert rule_of(recurrent(2, "float16", 64, batch=12)) == "_cudnn_rnn lstm 4 fused"  # tensor cores take eight


def test_packed_sequences_are_as_many_steps_as_the_longest_and_on_average_so_many() -> None:
    state, rest = "float32[1,4,64]", [2, 64, 0, 1, False, 0.0, True, False]
    sizes: list[object] = [4, 4, 3, 3, 1, 1]  # sequences of 6, 4, 4 and 2 steps
    inputs: list[object] = ["float32[16,64]", ["2*float32[256,64]"], 2, None, state, None, *rest, sizes, None]
    found = works(op("aten._cudnn_rnn.default", inputs, ["float32[16,64]"]), H200.num_sms)[0]
    assert (found.rule, found.kernels) == ("_cudnn_rnn lstm 4", 2 * 6)
    assert found.coordinates == (log2(3), 6.0, 0.0)


def test_a_recurrent_layer_s_width_is_its_state_s_whatever_its_weights_look_like() -> None:
    rest = [0, None, "float16[1,8,512]", None, 3, 512, 0, 1, True, 0.0, True, False, [], None]
    layer = op("aten._cudnn_rnn.default", ["float16[8,16,64]", ["2*float16[786432,1]", "2*float16[1536,1]"], *rest],
               ["float16[8,16,512]"])  # fmt: skip
    found = works(layer, H200.num_sms)[0]
    assert (found.rule, found.coordinates) == ("_cudnn_rnn gru 2", (3.0, 9.0, 0.0))
