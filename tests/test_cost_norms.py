"""Prices of batch norms, worked out by hand: torch's own kernels and cuDNN's."""

from __future__ import annotations

import pytest

from priced_ops import op
from trainfit.cost.classify import works
from trainfit.cost.work import Work


def norm_bytes(name: str, shape: str, is_training: bool, num_sms: int) -> int:
    args: list[object] = [shape, "4*float32[8]", is_training, 0.1, 1e-5]
    if name.endswith("backward"):
        args = [shape, shape, "5*float32[8]", is_training, 1e-5, [True, True, True]]
    return works(op(f"aten.{name}.default", args, [shape]), num_sms)[0].nbytes


def test_torch_s_batch_norm_goes_through_a_channel_s_images_and_then_writes_one_after_the_other() -> None:
    # 8 channels of 100 images of 10 x 10 in bfloat16: 128 threads go along an image, so 4 images at a time, 25 steps;
    # in each the 512 threads of 4 blocks on 2 processors wait for 8 bytes, from the cache in half the time; to begin,
    # to add up and to end takes 7 more.
    walked, moved = 8 * 4 * 2 * 512 * 32 // 2, 2 * 2 * 80_000
    shape = "bfloat16[100,8,10,10]"
    assert norm_bytes("native_batch_norm", shape, True, 2) == 14_000_000 + walked + 3200 * 8 * 100
    assert norm_bytes("native_batch_norm", shape, False, 2) == 14_000_000 + 3200 * 8 * 100
    assert norm_bytes("native_batch_norm_backward", shape, True, 2) == max(2 * walked, 3 * moved // 2)
    # 16 channels are two rounds of 8 blocks; small images share a block of threads.
    assert norm_bytes("native_batch_norm", "bfloat16[100,16,10,10]", True, 2) == 14_000_000 + 2 * walked + 3200 * 1600
    assert norm_bytes("native_batch_norm", "bfloat16[100,8,5,5]", False, 2) == 14_000_000 + 3200 * 8 * 50


def test_torch_s_batch_norm_of_one_large_image_takes_as_long_to_write_as_to_read() -> None:
    # A block for a channel goes through its million places in 2048 steps, first for the statistics, then to write; for
    # 32 MiB the cache answers.
    step = 8 * 4 * 2 * 512 // 2
    assert norm_bytes("native_batch_norm", "bfloat16[1,8,1024,1024]", True, 2) == 14_000_000 + (2055 + 2048) * step
    assert norm_bytes("native_batch_norm", "bfloat16[1,8,1024,1024]", False, 2) == 14_000_000 + 2048 * step


def gradient_of_a_norm(gradient: str, image: str, weight: str) -> Work:
    args: list[object] = [gradient, image, weight, "4*float32[8]", True, 1e-5, [True, True, True]]
    return works(op("aten.native_batch_norm_backward.default", args, [image]), 2)[0]


def test_a_batch_norm_s_gradient_that_lies_otherwise_is_summed_up_by_one_kernel_and_placed_by_another() -> None:
    # 80,000 elements: a sector for each that is apart, 31 bytes to place it, 28 more if its weight is converted
    image, sliced = "bfloat16[100,8,10,10]{800,1,80,8}", "bfloat16[100,8,10,10]{1600,1,160,16}"
    walked, elements = 8 * 4 * 2 * 512 * 32 // 2, 80_000
    one, both, converted = (
        gradient_of_a_norm(*case)
        for case in (
            ("bfloat16[100,8,10,10]", image, "float32[8]"),
            (sliced, image, "float32[8]"),
            (sliced, image, "bfloat16[8]"),
        )
    )
    assert one.rule == both.rule == "native_batch_norm_backward apart 2"
    assert one.nbytes == 14_000_000 + max(walked, 32 * elements) + 31 * elements
    assert both.nbytes == 14_000_000 + max(walked, 64 * elements) + 31 * elements
    assert converted.nbytes == both.nbytes + 28 * elements
    assert gradient_of_a_norm(image, image, "float32[8]").rule == "native_batch_norm_backward nhwc 2"
    assert gradient_of_a_norm(image, "bfloat16[100,8,10,10]", "float32[8]").rule != one.rule


def test_torch_s_batch_norm_of_a_turned_sequence_goes_element_by_element() -> None:
    # 1000 sequences of 20 places with 8 channels, which come last: 160,000 elements. A half is widened first; in the
    # backward pass a sector for each element that is apart comes twice, and elements in order twice, too.
    elements, turned, in_order = 160_000, "[1000,8,20]{160,1,8}", "[1000,8,20]"
    assert norm_bytes("native_batch_norm", f"bfloat16{turned}", True, 2) == (48 + 14) * elements
    assert norm_bytes("native_batch_norm", f"float32{turned}", True, 2) == 48 * elements
    assert norm_bytes("native_batch_norm_backward", f"float32{turned}", True, 2) == (4 * 32 + 4) * elements
    mixed = gradient_of_a_norm(f"bfloat16{in_order}", f"bfloat16{turned}", "bfloat16[8]")
    assert mixed.rule == "native_batch_norm_backward turned 2"
    assert mixed.nbytes == (2 * 2 + 2 * 32 + 2) * elements
    plain = gradient_of_a_norm(f"bfloat16{in_order}", f"bfloat16{in_order}", "bfloat16[8]")
    assert plain.rule == "native_batch_norm_backward nchw 2"


def test_the_gradient_of_a_single_channel_is_written_by_a_block_for_each_image() -> None:
    # Its million places are 2048 steps of 512 threads, of which four times two wait at once; the cache answers.
    image = "bfloat16[2,1,1024,1024]"
    single = gradient_of_a_norm(image, image, "float32[8]")
    assert single.rule == "native_batch_norm_backward single 2"
    assert single.nbytes == 14_000_000 + 2048 * (8 * 4 * 2 * 512 // 2)


@pytest.mark.parametrize(
    ("image", "is_backward", "rule"),
    [
        ("float32[112,8,16,16]", False, "nchw 4"),
        ("float32[113,8,16,16]", False, "nchw 4 again"),
        ("float16[304,8,16,16]", False, "nchw 2"),
        ("float16[305,8,16,16]", False, "nchw 2 again"),
        ("float16[168,8,16,16]", True, "nchw 2"),
        ("float16[169,8,16,16]", True, "nchw 2 again"),
        ("float16[286,8,7,7]", True, "nchw 2 odd"),
        ("float16[293,8,7,7]", True, "nchw 2 again odd"),
    ],
)
def test_cudnn_s_batch_norm_keeps_so_much_of_a_channel(image: str, is_backward: bool, rule: str) -> None:
    # 112 KiB of float32, 152 or 168 of pairs of halves, 56 of single ones; a gradient has two operands
    args: list[object] = [image, "4*float32[8]", True, 0.1, 1e-5]
    if is_backward:
        args = [image, image, "5*float32[8]", 1e-5, "uint8[0]"]
    name = "cudnn_batch_norm" + ("_backward" if is_backward else "")
    assert works(op(f"aten.{name}.default", args, [image]), 132)[0].rule == f"{name} {rule}"


def test_what_cudnn_s_batch_norm_reads_again_is_in_the_cache_up_to_a_size() -> None:
    def nbytes(batch: int) -> int:
        image = f"float32[{batch},198,64,64]"
        args: list[object] = [image, image, "5*float32[198]", 1e-5, "uint8[0]"]
        return works(op("aten.cudnn_batch_norm_backward.default", args, [image]), 132)[0].nbytes

    moved = 3 * 4 * 198 * 64 * 64  # of an image; 36 MiB are less than four
    assert nbytes(3) == 3 * moved
    assert nbytes(5) == round(5 * moved * (5 * moved / (36 * 2**20)))
    assert nbytes(8) == round(8 * moved * 1.7)


def test_few_channels_of_torch_s_batch_norm_have_a_processor_each() -> None:
    def coordinates(channels: int) -> tuple[float, ...]:
        x = f"bfloat16[4,{channels},8,8]"
        args: list[object] = [x, f"4*float32[{channels}]", True, 0.1, 1e-5]
        return works(op("aten.native_batch_norm.default", args, [x]), 128)[0].coordinates

    # three doublings to the 128 processors are three quarters of one
    places = [coordinates(channels) for channels in (16, 128, 256)]
    assert places == [(6.25, 2.0, 6.0), (7.0, 2.0, 6.0), (8.0, 2.0, 6.0)]


def test_batch_norm_of_channels_that_come_last_splits_rows_among_blocks_where_there_are_enough() -> None:
    # 32 channels: blocks of 32 by 16 threads; 1792 rows would be 7 parts, which are none, and 112 steps; 1793 are 8.
    few, more = "bfloat16[1,32,1792,1]{57344,1,32,32}", "bfloat16[1,32,1793,1]{57376,1,32,32}"

    def nbytes(shape: str) -> int:
        args: list[object] = [shape, "4*float32[32]", True, 0.1, 1e-5]
        return works(op("aten.native_batch_norm.default", args, [shape]), 132)[0].nbytes

    assert nbytes(few) == 26_000_000 + 1_960_000 * 112 + 2 * 4 * 32 * 1792
    assert nbytes(more) == 26_000_000 + 1_960_000 * 15 + 2 * 4 * 32 * 1793


def test_cudnn_s_batch_norm_has_slower_kernels_for_odd_images_and_pads_channels_that_come_last() -> None:
    def work(shape: str) -> Work:
        channels = int(shape.split(",")[1])
        args: list[object] = [shape, f"4*float32[{channels}]", True, 0.1, 1e-5]
        return works(op("aten.cudnn_batch_norm.default", args, [shape]), 132)[0]

    assert work("float16[8,64,7,7]").rule == "cudnn_batch_norm nchw 2 odd"
    assert work("float16[8,64,14,7]").rule == "cudnn_batch_norm nchw 2"
    assert work("float32[8,64,7,7]").rule == "cudnn_batch_norm nchw 4"
    # 24 channels are read by blocks of 64; 25 one by one by blocks of 16, in the time of 45 bytes each
    last = work("float16[8,24,8,8]{1536,1,192,24}")
    assert (last.rule, last.nbytes) == ("cudnn_batch_norm nhwc 2", 26_000_000 + 2 * 2 * 8 * 64 * 64)
    odd = work("float16[8,25,8,8]{1600,1,200,25}")
    assert (odd.rule, odd.nbytes) == ("cudnn_batch_norm nhwc 2 odd", 26_000_000 + 45 * 8 * 64 * 32)


def test_cudnn_s_batch_norm_of_given_statistics_waits_for_planes_or_for_the_elements_of_an_image() -> None:
    def work(shape: str) -> Work:
        channels = int(shape.split(",")[1])
        args: list[object] = [shape, f"4*float32[{channels}]", False, 0.1, 1e-5]
        return works(op("aten.cudnn_batch_norm.default", args, [shape]), 132)[0]

    small, large = work("float32[8,64,4,4]"), work("float32[8,64,64,64]")
    assert (small.rule, small.nbytes) == ("cudnn_batch_norm fixed nchw 4", 3200 * 8 * 64)
    assert large.nbytes == pytest.approx(2 * 4 * 8 * 64 * 4096, rel=0.001)
    last = work("float32[1,64,64,64]{262144,1,4096,64}")
    assert (last.rule, last.nbytes) == ("cudnn_batch_norm fixed nhwc 4", 260 * 64 * 4096)
    many = work("float32[64,64,64,64]{262144,1,4096,64}")
    assert many.nbytes == pytest.approx(2 * 4 * 64 * 64 * 4096, rel=0.001)


def test_rows_take_as_long_as_a_block_of_threads_for_each_comes_and_goes() -> None:
    def nbytes(rows: int, columns: int) -> int:
        x, per_row = f"float32[{rows},{columns}]", f"2*float32[{rows},1]"
        args: list[object] = [x, [columns], f"2*float32[{columns}]", 1e-5]
        return works(op("aten.native_layer_norm.default", args, [x, per_row]), 132)[0].nbytes

    assert nbytes(100_000, 64) == 5400 * 100_000
    assert nbytes(4096, 8192) == pytest.approx(2 * 4 * 4096 * 8192, rel=0.001)
