"""Convolutions whose window is one pixel: products of matrices, mostly cuBLASLt's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from priced_ops import computing_ns, op, rule_of
from trainfit.cost import convolution_op
from trainfit.cost.classify import works
from trainfit.cost.convolution import as_measured
from trainfit.cost.work import Work
from trainfit.gpus.hidden.cudnn_kernels import Choice, usual_engine


@pytest.fixture(autouse=True)
def _cudnn_has_the_usual_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_op, "chosen", lambda problem, _: Choice(usual_engine(problem), None))


def _product(side: int, is_gradient: bool) -> Work:
    settings: list[object] = [[1, 1], [0, 0], [1, 1], False, [0, 0], 1]
    image, weight = f"bfloat16[4,64,{side},{side}]", "bfloat16[64,64,1,1]"
    layer = op("aten.convolution.default", [image, weight, None, *settings], [image])
    if is_gradient:
        args = [image, image, weight, None, *settings, [False, True, False]]
        layer = op("aten.convolution_backward.default", args, [weight])
    return works(as_measured(layer, "nvjet_sm90_tst_128x64", 1), 132)[0]


def test_products_are_one_of_each_image_and_those_of_unaligned_rows_have_old_kernels() -> None:
    # A wave of tiles of 16 x 64: two for each of 4 images of 25 pixels, one for each of 16. A row of pixels takes as
    # long as 4 columns, a column as 83 rows; a channel's 25 pixels of 2 bytes are aligned to 2, and take longer.
    per_ns = 2 / (989_500 / 132)
    new_ns = 1010 + 560 + 16 * 64 * (4 / 64 + 83 / 16) * 64 * per_ns
    assert computing_ns(_product(4, is_gradient=False)) == pytest.approx(new_ns)
    old_ns = 2170 + 16 * 64 * (2.36 + 246 / 64 + 492 / 16) * 64 * per_ns
    assert computing_ns(_product(5, is_gradient=False)) == pytest.approx(old_ns)
    # The weight's gradient: four such tiles for each image, a step of 64 for its 16 pixels, and 60 ns to add each up.
    gradient_ns = 2600 + 4 * 60 + 1250 + 16 * 64 * (0.58 + 52 / 64 + 52 / 16) * 64 * per_ns
    assert computing_ns(_product(4, is_gradient=True)) == pytest.approx(gradient_ns)


def test_images_of_one_pixel_are_one_product_in_either_layout() -> None:
    settings: list[object] = [[1, 1], [0, 0], [1, 1], False, [0, 0], 1]
    image, weight = "bfloat16[32,64,1,1]", "bfloat16[64,64,1,1]"
    work = works(
        as_measured(op("aten.convolution.default", [image, weight, None, *settings], [image]), "nvjet", 1), 132
    )[0]
    assert work.rule == "convolution forward plain half nhwc product"
    assert computing_ns(work) == pytest.approx(1010 + 560 + 2 * (4 * 32 + 83 * 64) * 64 / (989_500 / 132), rel=0.01)


def test_cublas_computes_products_for_which_cudnn_has_old_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_op, "is_left_to_cublas", lambda _: is_left)

    def kind(mask: list[bool], engine: int, is_last: bool) -> str:
        stride = "{4096,1,512,64}" if is_last else ""
        image, weight = f"bfloat16[4,64,8,8]{stride}", "bfloat16[64,64,1,1]"
        settings: list[object] = [[1, 1], [0, 0], [1, 1], False, [0, 0], 1]
        made = op("aten.convolution_backward.default", [image, image, weight, None, *settings, mask], [image])
        return rule_of(replace(made, kwargs=(("engine", engine),))).rpartition(" ")[2]

    of_image, of_weight = [True, False, False], [False, True, False]
    is_left = False
    assert kind(of_weight, 33, is_last=True) == kind(of_image, 57, is_last=True) == "product"
    assert (kind(of_weight, 33, is_last=False), kind(of_weight, 65, is_last=True)) == ("singly", "fused")
    assert (kind(of_image, 57, is_last=False), kind(of_image, 22, is_last=False)) == ("singly", "product")
    is_left = True
    assert kind(of_weight, 65, is_last=False) == kind(of_weight, 33, is_last=False) == "product"
    assert kind(of_weight, 0, is_last=False) == "naive"


def test_weights_gradients_of_volumes_are_products_of_long_images_and_of_those_that_have_old_kernels() -> None:
    def kind(dtype: str, side: int, channels: int, engine: int | None) -> str:
        image, weight = f"{dtype}[4,{channels},{side},8,8]", f"{dtype}[{channels},{channels},1,1,1]"
        settings: list[object] = [[1] * 3, [0] * 3, [1] * 3, False, [0] * 3, 1]
        args: list[object] = [image, image, weight, None, *settings, [False, True, False]]
        made = op("aten.convolution_backward.default", args, [weight])
        return rule_of(replace(made, kwargs=(("engine", engine),) if engine else ())).rpartition(" ")[2]

    assert [kind("bfloat16", side, 64, None) for side in (4, 2)] == ["product", "fused"]  # 256 pixels, and 128
    assert [kind("bfloat16", 4, 64, engine) for engine in (65, 9, 10, 40)] == ["product", "product", "fused", "loose"]
    assert kind("bfloat16", 4, 4, 65) == "fused"
    assert [kind("float32", 2, 64, engine) for engine in (30, 40, 68)] == ["product", "product", "fused"]
