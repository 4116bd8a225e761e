"""Convolutions with a window per channel: by which of torch's and cuDNN's kernels, and how long these compute."""

from __future__ import annotations

from dataclasses import replace

import pytest

from priced_ops import H200, computing_ns, op, rule_of
from trainfit.cost import convolution_op
from trainfit.cost.classify import works
from trainfit.cost.convolution_channelwise import Name, Windows, channelwise_ns, times_moved
from trainfit.gpus.hidden.cudnn_kernels import Choice, usual_engine
from trainfit.records import Op

OUT = "bfloat16[2,16,8,8]"


@pytest.fixture(autouse=True)
def _cudnn_has_the_usual_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_op, "chosen", lambda problem, _: Choice(usual_engine(problem), None))


def test_torch_s_own_kernels_of_windows_per_channel_skip_what_lies_outside_the_image() -> None:
    # 2 x 16 x 64 results; of 31 x 31 pixels all 8 x 8 of the image lie under every window. 15 more pay for a result.
    settings: list[object] = [[1, 1], [15, 15], [1, 1], False, [0, 0], 16]
    layer = op("aten.convolution.default", [OUT, "bfloat16[16,1,31,31]", None, *settings], [OUT])
    work = works(layer, 132)[0]
    assert work.rule == "convolution forward depthwise half nchw own"
    assert work.stretch * work.arithmetic_ns(H200) == pytest.approx(2048 * (15 + 64) / 2000)


def _channelwise(
    dtype: str, window: str, name: str = "forward", engine: int | None = None, shape: str = "8,32,8,8", stride: int = 1
) -> Op:
    images, channels, height, width = map(int, shape.split(","))
    small = f"{images},{channels},{height // stride},{width // stride}"

    def last(sizes: str) -> str:
        _, _, rows, row = map(int, sizes.split(","))
        return f"{dtype}[{sizes}]{{{channels * rows * row},1,{channels * row},{channels}}}"

    padding = [int(side) // 2 for side in window.split(",")]
    settings: list[object] = [[stride] * 2, padding, [1, 1], False, [0, 0], channels]
    weight = f"{dtype}[{channels},1,{window}]"
    if name == "forward":
        made = op("aten.convolution.default", [last(shape), weight, None, *settings], [last(small)])
    else:
        args = [last(small), last(shape), weight, None, *settings, [name == "input", name == "weight", False]]
        made = op("aten.convolution_backward.default", args, [last(shape) if name == "input" else weight])
    return made if engine is None else replace(made, kwargs=(("engine", engine),))


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        (_channelwise("bfloat16", "3,3"), "half nhwc specialized"),
        (_channelwise("bfloat16", "3,3", engine=0), "half nhwc specialized"),  # which cuDNN says without a GPU
        (_channelwise("bfloat16", "3,3", engine=5), "half nhwc specialized"),  # and with one
        (_channelwise("bfloat16", "3,3", engine=5, shape="7,32,8,8"), "half nhwc channelwise"),
        (_channelwise("bfloat16", "3,3", engine=5, shape="8,30,8,8"), "half nhwc channelwise"),
        (_channelwise("float32", "7,7", engine=0), "fp32 nhwc channelwise"),
        (_channelwise("float32", "7,7", "input", engine=0), "fp32 nhwc specialized"),
        (_channelwise("float16", "5,5", "input", engine=62), "half nhwc banded"),
        (_channelwise("float16", "5,5", "weight", engine=61), "half nhwc banded"),
        (_channelwise("bfloat16", "5,5", "weight", engine=10), "half nhwc channelwise"),
        (_channelwise("float32", "5,5", "weight", engine=30), "fp32 nhwc widened"),
        (_channelwise("bfloat16", "9,9", engine=0), "half nhwc naive"),
        (_channelwise("bfloat16", "9,9", engine=22), "half nhwc widened"),
        (_channelwise("bfloat16", "9,9", "input", engine=0), "half nhwc channelwise"),
        (_channelwise("float32", "9,9", "input", engine=0), "fp32 nhwc channelwise"),
        (_channelwise("float32", "9,9", "input", engine=0, shape="8,32,8,12"), "fp32 nhwc naive"),  # rows in units of 8
        (_channelwise("float32", "3,7", "input", engine=0, shape="8,32,8,12"), "fp32 nhwc channelwise"),
        (_channelwise("float32", "9,1", "input", engine=0), "fp32 nhwc naive"),
        (_channelwise("bfloat16", "1,1", "weight", engine=0, stride=2), "half nhwc naive"),  # reads every other pixel
        (_channelwise("bfloat16", "1,1", "input", engine=0, stride=2), "half nhwc specialized"),
        (_channelwise("bfloat16", "5,5", "weight", engine=10, stride=2), "half nhwc widened"),
        (_channelwise("bfloat16", "5,5", "weight", engine=10, shape="8,32,18,18", stride=2), "half nhwc channelwise"),
        (_channelwise("bfloat16", "1,7", engine=28), "half nhwc direct"),
        (_channelwise("float32", "9,9", "weight", engine=0), "fp32 nhwc naive"),
        (_channelwise("float32", "3,3", "weight", engine=61), "fp32 nhwc banded"),
    ],
)
def test_windows_and_engines_tell_the_kernels_of_windows_per_channel(layer: Op, kind: str) -> None:
    rule = rule_of(layer)
    assert rule.removeprefix("convolution ").split(" ", 2)[1:] == ["depthwise", kind]


def test_torch_leaves_some_windows_per_channel_in_float16_to_cudnn() -> None:
    def rule(dtype: str, window: str, stride: int = 1, channels: int = 32, row: int = 28) -> str:
        image, out = (f"{dtype}[2,{channels},{side},{side}]" for side in (row, -(-row // stride)))
        settings: list[object] = [[stride] * 2, [int(window[0]) // 2] * 2, [1, 1], False, [0, 0], channels]
        weight = f"{dtype}[{channels},1,{window}]"
        return rule_of(op("aten.convolution.default", [image, weight, None, *settings], [out])).rpartition(" ")[2]

    assert rule("bfloat16", "3,3") == rule("float16", "7,7") == rule("float16", "3,3", row=6) == "own"
    assert rule("float16", "3,3", channels=31) == rule("float16", "3,3", 2) == rule("float16", "3,5") == "own"
    assert rule("float16", "3,3", 2, 256, row=27) == "own"
    assert (
        rule("float16", "3,3") == rule("float16", "5,5", 2, 256) == rule("float16", "3,3", 2, 512, 7) == "channelwise"
    )


def test_cudnn_s_windows_per_channel_of_signals_and_with_a_stride_where_channels_come_first() -> None:
    def kind(sizes: str, window: str, stride: int, name: str, engine: int) -> str:
        dims = sizes.count(",") - 1
        settings: list[object] = [[stride] * dims, [1] * dims, [1] * dims, False, [0] * dims, 512]
        small = ",".join(sizes.split(",")[:2] + [str(int(side) // stride) for side in sizes.split(",")[2:]])
        image, out, weight = (f"float16[{shape}]" for shape in (sizes, small, f"512,1,{window}"))
        args = [out, image, weight, None, *settings, [name == "input", name == "weight", False]]
        made = op("aten.convolution_backward.default", args, [image if name == "input" else weight])
        return rule_of(replace(made, kwargs=(("engine", engine),))).rpartition(" ")[2]

    assert kind("8,512,64", "3", 1, "input", 0) == kind("8,512,64", "3", 1, "weight", 10) == "channelwise"
    assert kind("8,512,64", "3", 1, "weight", 49) == "direct"
    assert kind("8,512,28,28", "3,3", 1, "input", 0) == "channelwise"
    assert kind("8,512,28,28", "3,3", 2, "input", 0) == "naive"


def test_torch_s_own_gradients_of_volumes_look_at_every_pixel_of_the_window() -> None:
    def image_ns(window: int, stride: int) -> float:
        sides, halves = [16] * 3, [16 // stride] * 3
        image, out = (f"float32[2,4,{','.join(map(str, shape))}]" for shape in (sides, halves))
        settings: list[object] = [[stride] * 3, [window // 2] * 3, [1] * 3, False, [0] * 3, 4]
        args = [out, image, f"float32[4,1,{window},{window},{window}]", None, *settings, [True, False, False]]
        return computing_ns(works(op("aten.convolution_backward.default", args, [image]), 132)[0])

    results = 2 * 4 * 16**3
    assert image_ns(3, 1) == pytest.approx(results * (15 + 27) / 2000)
    assert image_ns(3, 2) == pytest.approx(results * (15 + 2.1 * 27) / 2000)
    assert image_ns(5, 1) == pytest.approx(results * (15 + 4 * 125) / 2000)


def test_kernels_of_windows_per_channel_take_so_long_for_a_result_and_for_each_pixel_of_its_window() -> None:
    # 8 x 64 pixels of 32 channels. Compiled kernels of halves: 4.5 us, and 0.145 ps for each of 9; images are moved in
    # 0.35 of the time that it takes to read and write them.
    work = works(_channelwise("bfloat16", "3,3", engine=5), 132)[0]
    assert computing_ns(work) == pytest.approx(4500 + 16_384 * 9 * 1.45e-4)
    weights = round(0.35 * 2 * 32 * 9)
    assert work.nbytes == pytest.approx(2 * round(0.35 * 2 * 16_384) + weights, abs=2)
    # A thread for each result: 15 ps, and 3.3 for each of the window's pixels that lies inside, times 0.3 and 1 more
    # for channels that fill a line of 128 bytes. Along 8 pixels, 5 to 8 of 9 do: 52 of 72.
    naive = works(_channelwise("float32", "9,9", engine=0), 132)[0]
    inside = (2 * (5 + 6 + 7 + 8) / 8) ** 2
    assert computing_ns(naive) == pytest.approx(8570 + 16_384 * (0.015 + 0.0033 * inside * 1.3))
    # A weight's gradient in bands: 13.4 us, and 0.43 ps for each of the smaller image's pixels and its stride; images
    # are read for each 3 x 3 pixels of the window.
    band = works(_channelwise("float32", "5,5", "weight", engine=61, stride=2), 132)[0]
    assert computing_ns(band) == pytest.approx(13_400 + 8 * 16 * 32 * 4.3e-4 * 4)
    assert band.nbytes == 4 * 4 * (8 * 64 * 32 + 8 * 16 * 32 + 32 * 25)
    # A weight's gradient by compiled kernels: no less than 3.2 ns for each pixel of an image.
    alone = works(_channelwise("bfloat16", "3,3", "weight", engine=16, shape="2,8,64,64"), 132)[0]
    assert computing_ns(alone) == pytest.approx(5100 + 3.2 * 64 * 64)
    # One launch for each channel: a wave of 132 x 128 pixels goes through the 7 of the window.
    direct = works(_channelwise("bfloat16", "1,7", engine=28), 132)[0]
    assert computing_ns(direct) == pytest.approx(32 * (4500 + 0.025 * 8 * 64 + 90 * 7))
    # A naive weight's gradient: no less than 7 ns for each pixel of all images, where there are few weights.
    few = works(_channelwise("bfloat16", "1,1", "weight", engine=0, shape="8,2,64,64", stride=2), 132)[0]
    assert computing_ns(few) == pytest.approx(1800 + 7 * 8 * 32 * 32)


def test_compiled_kernels_go_plane_by_plane_where_channels_do_not_come_last() -> None:
    # 4 images of 8 x 8 pixels; 264 planes run at once, 2 on each of 132 processors, or 277.2 in weights' gradients, of
    # which a plane goes through all images.
    def computing(name: Name, channels: int, sides: tuple[int, ...] = (3, 3)) -> float:
        windows = Windows(name, 2, sides, 1, 1, 1, 4, channels, (8,) * len(sides), is_last=False)
        assert times_moved("channelwise", windows) == 0.1
        return channelwise_ns("channelwise", windows, 4 * 8 ** len(sides), channels, 9)

    image_ns = 10 + 0.25 * 64 + 4.2 * 9 + 0.06 * 64 * 9
    assert computing("forward", 66) == pytest.approx(1600 + image_ns)
    assert computing("input", 264) == pytest.approx(1600 + 4 * image_ns)
    weight_ns = 4 * (80 + 0.8 * 64 + 0.027 * 64 * 9)
    assert computing("weight", 132) == pytest.approx(3900 + weight_ns)
    assert computing("weight", 554) == pytest.approx(3900 + 554 / 277.2 * weight_ns)
    # Of signals, along one dimension: 5.3 planes run at once.
    assert computing("forward", 8, (3,)) == pytest.approx(1550 + 320 + 1.7 * 8 + 7 * 3 + 0.135 * 8 * 3)
