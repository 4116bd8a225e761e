"""A convolution is priced pass by pass: each gradient, the bias, copies of what does not lie as the kernels read it."""

from __future__ import annotations

from dataclasses import replace
from math import log2

import pytest

from priced_ops import H200, SIMPLE_GPU, computing_ns, ns_of, op, profile_of, rule_of
from trainfit.cost import Pricing, convolution_op, price_with
from trainfit.cost.classify import hidden_ops, works
from trainfit.cost.convolution import as_measured, is_by_winograd
from trainfit.cost.reduce import reduce_samples
from trainfit.cost.work import Work
from trainfit.gpus.hidden.cudnn_kernels import Choice, usual_engine
from trainfit.records import Op


@pytest.fixture(autouse=True)
def _cudnn_has_the_usual_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_op, "chosen", lambda problem, _: Choice(usual_engine(problem), None))


ANYWHERE = [((0.0,) * 17, 1.0)]
PASSES = {f"convolution {name} plain half nchw fused": ANYWHERE for name in ("forward", "input", "weight")}
IMAGE, WEIGHT, OUT = "bfloat16[2,8,8,8]", "bfloat16[16,8,3,3]", "bfloat16[2,16,8,8]"
SETTINGS: list[object] = [[1, 1], [1, 1], [1, 1], False, [0, 0], 1]
# One wave of tiles of 64 x 64 on the H200: a processor does 989,500 / 132 operations in a ns, but a row of pixels takes
# as long as 103 columns, one of weights as 15 rows, and 0.33 the rest. Sums are 9 x 64 long: channels come in steps of
# 64. A wave takes 1.25 us more, and what cuDNN takes 12% more than the best. The kernels begin after 2.6 us, layouts
# take 7.2.
COST = 0.33 + (103 + 15) / 64
FORWARD_NS = 2600 + 7200 + 1.12 * (1250 + 2 * 64 * 64 * COST * 576 / (989_500 / 132))
# 2 bytes of each: 1024 of the image, 1152 of the weight, 2048 of the result. All are read or written once, and moved
# 4.3 times more to change layouts, in blocks of 32 channels and 32 pixels: so the image's 8 channels count four times,
# the result's 16 twice, the weight's 8 and its 9 pixels too.
TRAFFIC_NS = 2 * ((1 + 4.3 * 4) * 1024 + (1 + 4.3 * 4 * 32 / 9) * 1152 + (1 + 4.3 * 2) * 2048)


def forward(image: str = IMAGE, bias: str | None = None) -> Op:
    return op("aten.convolution.default", [image, WEIGHT, bias, *SETTINGS], [OUT])


def backward(mask: list[bool], gradient: str = OUT) -> Op:
    outputs = [name for name, wanted in zip((IMAGE, WEIGHT, "bfloat16[16]"), mask, strict=True) if wanted]
    return op("aten.convolution_backward.default", [gradient, IMAGE, WEIGHT, [16], *SETTINGS, mask], outputs)


def signal(groups: int = 1) -> Op:
    """Dilated, so that cuDNN may run any kernels."""
    settings: list[object] = [[1], [0], [8], False, [0], groups]
    args: list[object] = ["bfloat16[4,64,100]", f"bfloat16[64,{64 // groups},5]", None, *settings]
    return op("aten.convolution.default", args, ["bfloat16[4,64,68]"])


def test_layout_changes_and_the_product_come_one_after_the_other() -> None:
    assert H200.bf16_tflops is not None  # the simple GPU does 1 TFLOP/s
    time_ns = 1000 + TRAFFIC_NS + H200.bf16_tflops * FORWARD_NS
    assert ns_of(forward(), profile=profile_of(PASSES)) == pytest.approx(time_ns, abs=1)


def test_two_gradients_are_two_passes() -> None:
    profile = profile_of(PASSES)
    input_ns, weight_ns, both_ns = (
        ns_of(backward(mask), profile=profile)
        for mask in ([True, False, False], [False, True, False], [True, True, False])
    )
    assert input_ns != weight_ns
    assert both_ns == input_ns + weight_ns


def test_the_gradient_of_a_bias_is_a_sum_over_all_but_the_channels() -> None:
    (summed,) = hidden_ops(backward([False, True, True]))
    assert (summed.name, summed.args[1]) == ("aten.sum.dim_IntList", (0, 2, 3))
    assert [ref.shape for ref in (*summed.input_refs(), *summed.outputs)] == [(2, 16, 8, 8), (16,)]


def test_a_bias_is_added_by_a_kernel_of_its_own_unless_torch_s_own_kernel_does_it_on_the_way() -> None:
    (added,) = hidden_ops(forward(bias="bfloat16[16]"))
    assert (added.name, [ref.shape for ref in added.input_refs()]) == (
        "aten.add_.Tensor",
        [(2, 16, 8, 8), (1, 16, 1, 1)],
    )
    depthwise: list[object] = ["bfloat16[16,1,3,3]", "bfloat16[16]", *SETTINGS[:5], 16]
    assert not hidden_ops(op("aten.convolution.default", [OUT, *depthwise], [OUT]))
    last = f"{OUT}{{1024,1,128,16}}"
    (added,) = hidden_ops(op("aten.convolution.default", [last, *depthwise], [last]))
    assert added.name == "aten.add_.Tensor"


def test_what_does_not_lie_as_the_convolution_s_other_operands_is_copied_first() -> None:
    as_tokens = backward([True, True, False], gradient=f"{OUT}{{1024,1,128,16}}")
    copied, weight_pass = hidden_ops(as_tokens)
    assert (copied.name, copied.outputs[0].stride) == ("aten.clone.default", (1024, 64, 8, 1))
    assert next(weight_pass.input_refs()) == copied.outputs[0]  # it is copied once for both
    assert not hidden_ops(weight_pass)


def test_only_what_a_pass_reads_is_copied() -> None:
    # The image lies in pieces: its own gradient does not need it.
    pieces = "bfloat16[2,8,8,8]{1024,64,8,1}"

    def copied(mask: list[bool], image: str, gradient: str, weight: str) -> list[tuple[int, ...]]:
        args: list[object] = [gradient, image, weight, None, *SETTINGS, mask]
        made = op("aten.convolution_backward.default", args, [IMAGE])
        copies = (other for other in hidden_ops(made) if other.name == "aten.clone.default")
        return [tensor.stride for other in copies for tensor in other.input_refs()]

    assert copied([True, False, False], pieces, OUT, WEIGHT) == []
    assert copied([False, True, False], pieces, OUT, WEIGHT) == [(1024, 64, 8, 1)]
    # Where channels come last in the weight alone, torch turns the gradient to lie as the image, and back.
    last, turned = "bfloat16[2,16,8,8]{1024,1,128,16}", "bfloat16[16,8,3,3]{72,1,24,8}"
    assert copied([True, False, False], IMAGE, OUT, turned) == [(1024, 64, 8, 1)]
    assert copied([True, False, False], IMAGE, last, turned) == [(1024, 1, 128, 16), (1024, 64, 8, 1)]
    assert copied([True, True, False], IMAGE, last, turned) == [(512, 64, 8, 1)]


def test_a_transposed_convolution_is_the_gradient_of_a_plain_one_s_input() -> None:
    settings: list[object] = [[2, 2], [1, 1], [1, 1], True, [0, 0], 1]
    small, large, weight = "float32[2,16,8,8]", "float32[2,8,16,16]", "float32[16,8,4,4]"
    up = op("aten.convolution.default", [small, weight, None, *settings], [large])
    down = op("aten.convolution_backward.default", [small, large, weight, None, *settings[:3], False, *settings[4:],
                                                    [True, False, False]], [large])  # fmt: skip
    assert works(up, 132)[0] == works(down, 132)[0]
    assert rule_of(up) == "convolution input plain fp32 nchw fused"
    masks = [True, False, False], [False, True, False]
    assert [
        rule_of(op("aten.convolution_backward.default", [large, small, weight, None, *settings, mask], [small]))
        for mask in masks
    ] == ["convolution forward plain fp32 nchw fused", "convolution weight plain fp32 nchw fused"]


def test_kernels_on_streams_of_their_own_count_by_the_passes_they_are_of() -> None:
    # The first pass's kernels run two at once, the second's one after the other.
    profile = profile_of(PASSES | {"convolution input plain half nchw fused overlap": [((0.0,) * 17, 2.0)]})
    (both,) = price_with([backward([True, True, False])], Pricing(SIMPLE_GPU, profile, True))
    first_ns, second_ns = (
        ns_of(backward(mask), profile=profile) for mask in ([True, False, False], [False, True, False])
    )
    assert both.time_ns == first_ns + second_ns
    assert both.kernel_ns == pytest.approx(2 * first_ns + second_ns, abs=2)


@pytest.mark.parametrize(("cold_ns", "overlap"), [(100_000, 2.0), (200_000, 3.0)])
def test_short_kernels_overlap_half_as_much_in_a_step(cold_ns: int, overlap: float) -> None:
    # Four kernels, three at once: of 25 us each half of what is more than one is left, of 50 us everything.
    args: list[object] = [IMAGE, WEIGHT, None, *SETTINGS]
    times = {"cold_ns": cold_ns, "warm_ns": cold_ns, "overlap": 3.0, "num_kernels": 4, "kernel": XMMA}
    sample = {"op": "aten.convolution.default", "args": args, "kwargs": {}, "outputs": [OUT], **times}
    tables = reduce_samples(H200, [sample]).tables
    assert tables["convolution forward plain half nchw fused overlap"][0][-1] == overlap


XMMA = "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc"


@pytest.mark.parametrize(
    ("kernel", "num_kernels", "groups", "kind"),
    [
        ("void implicit_convolve_sgemm<__nv_bfloat16", 1, 1, "direct"),
        (XMMA, 4, 1, "fused"),
        ("sm80_xmma_fprop_implicit_gemm_indexed_wo_smem_f16f16", 4, 1, "loose"),
        ("void cudnn::cnn::conv2d_grouped_direct_kernel<false, true", 1, 1, "naive"),
        ("void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop", 4, 1, "singly"),
        ("void cudnn::engines_precompiled::nchwToNhwcKernel<__nv_bfloat16", 18, 4, "singly"),
        (XMMA, 18, 4, "fused"),
    ],
)
def test_a_sample_goes_to_the_table_of_the_kernels_that_ran(
    kernel: str, num_kernels: int, groups: int, kind: str
) -> None:
    measured = works(as_measured(signal(groups), kernel, num_kernels), 132)[0]
    channels = "plain" if groups == 1 else "grouped"
    assert measured.rule == f"convolution forward {channels} half nchw {kind}"
    assert measured.flops_dtype == ("float32" if kind in ("direct", "naive") else "bfloat16")


def test_samples_by_winograd_say_nothing_of_others() -> None:
    assert is_by_winograd(forward(), "void cudnn::winograd_nonfused::winogradWgradDelta4x4Kernel<float, float>")
    assert is_by_winograd(forward(), "sm80_xmma_gemm_f32f32_f32f32_f32_nt_n_tilesize32x32x8")
    assert not is_by_winograd(forward(), XMMA)
    assert not is_by_winograd(forward(), FOURIER)
    settings: list[object] = [[1, 1], [0, 0], [1, 1], False, [0, 0], 1]
    product = op("aten.convolution.default", [IMAGE, "bfloat16[16,8,1,1]", None, *settings], [OUT])
    assert not is_by_winograd(product, "sm90_xmma_gemm_f32f32_tf32f32_f32_nt_n")  # cuBLASLt's


FOURIER = "sm80_xmma_gemm_cf32cf32_f32f32_cf32_tn_n_tilesize64x64x8"


def test_images_that_are_transformed_are_multiplied_frequency_by_frequency() -> None:
    # 8 + 3 - 1 = 10 pixels fit into frames of 16 x 16, of which 16 x 9 frequencies are kept. 8 operations for each
    # image, input and output, 30,000 a ns; 8 bytes of each image's channels and of each weight, 2000 a ns.
    work = works(as_measured(forward(), FOURIER, 5), 132)[0]
    assert work.rule == "convolution forward plain half nchw fourier"
    one_ns = 8 * 2 * 16 * 8 / 30_000 + 8 * (2 * (16 + 8) + 16 * 8) / 2000
    assert computing_ns(work) == pytest.approx(2600 + 16 * 9 * one_ns)


def test_a_convolution_is_priced_by_one_of_the_kinds_of_kernels() -> None:
    kinds = {works(as_measured(signal(), name, 1), 132)[0] for name in (XMMA, "convolve", "wo_smem", "cutlass__5x")}
    assert len(kinds) == 4
    assert works(signal(), 132)[0] in kinds


def test_a_profile_without_such_kernels_prices_them_as_the_others() -> None:
    direct = as_measured(signal(), "void implicit_convolve_sgemm<__nv_bfloat16", 1)
    (cost,) = price_with([direct], Pricing(SIMPLE_GPU, profile_of(PASSES), True))
    assert cost.rule == "convolution forward plain half nchw fused"


def test_groups_of_channels_that_come_last_are_copied_to_the_width_of_tiles() -> None:
    # 48 channels in a group are widened to 64: images are moved 10 times for what is read, and 12 for what is written.
    def work(width: int, groups: int) -> Work:
        channels = width * groups
        image = f"bfloat16[2,{channels},8,8]{{{channels * 64},1,{channels * 8},{channels}}}"
        weight = f"bfloat16[{channels},{width},3,3]{{{9 * width},1,{3 * width},{width}}}"
        settings: list[object] = [[1, 1], [1, 1], [1, 1], False, [0, 0], groups]
        return works(
            as_measured(op("aten.convolution.default", [image, weight, None, *settings], [image]), XMMA, 1), 132
        )[0]

    weights = 2 * 96 * 48 * 9
    assert work(48, 2).nbytes == 2 * round((1 + 10 + 12 * 64 / 48) * 2 * 128 * 96) + weights
    assert work(64, 2).nbytes == 2 * 2 * 128 * 128 + 2 * 128 * 64 * 9
    assert work(4, 5).nbytes == 2 * (23 * 2 * 128 * 20) + 2 * 20 * 4 * 9  # 20 channels are no whole vectors


def _by_engine(dilation: int, engine: int) -> Op:
    settings: list[object] = [[1, 1], [dilation] * 2, [dilation] * 2, False, [0, 0], 1]
    layer = op("aten.convolution.default", [IMAGE, WEIGHT, None, *settings], [OUT])
    return replace(layer, kwargs=(("engine", engine),))


def test_what_is_cut_into_tiles_is_told_apart_by_waves_steps_traffic_and_tiles() -> None:
    # 128 pixels are one tile of 256 x 32 on 132 processors, with 9 steps of 32.
    work = _tiled(XMMA, None, 62, 256, 32, 32, 1)
    traffic_ns = work.nbytes / H200.dram_gb_per_s
    waves, steps, share, *others = work.coordinates
    assert (waves, steps) == pytest.approx((-log2(132), log2(9)))
    assert share == pytest.approx(log2(traffic_ns / computing_ns(work)), abs=0.01)
    # half a doubling for twice the window; no groups; aligned to 16 bytes; two dimensions; engine 62; a tile of 2**8 by
    # 2**5 and a step of 2**5, twice
    assert others == pytest.approx([log2(9) / 2, 0, 0, 0, 0, 4, 2, 0, 0, 31, 16, 10, 10, 0])


def test_what_cudnn_says_decides_where_changing_the_layout_took_longest() -> None:
    moved = "void cudnn::engines_precompiled::nchwToNhwcKernel<__nv_bfloat16"
    rules = [works(as_measured(_by_engine(1, engine), moved, 3), 132)[0].rule for engine in (62, 45, 28, 0)]
    kinds = ("fused", "singly", "direct", "naive")
    assert rules == [f"convolution forward plain half nchw {kind}" for kind in kinds]


def test_windows_of_one_pixel_are_products_that_change_no_layout() -> None:
    # 4 images of 256 pixels, 64 channels to 64. For the weight's gradient each image's products, of 4 bytes, are
    # written and read again.
    settings: list[object] = [[1, 1], [0, 0], [1, 1], False, [0, 0], 1]
    image, weight = "bfloat16[4,64,16,16]", "bfloat16[64,64,1,1]"
    layer = op("aten.convolution.default", [image, weight, None, *settings], [image])
    product = works(as_measured(layer, "nvjet_sm90_tst_128x64", 1), 132)[0]
    assert product.rule == "convolution forward plain half nchw product"
    assert product.nbytes == 2 * round(0.69 * 2 * 65536) + round(
        0.69 * 2 * 4096
    )  # some of it is hidden behind products
    copied = works(as_measured(layer, XMMA, 3), 132)[0]
    # images are read or written once, and moved 4.3 times to change their layouts
    moved = round(5.3 * 2 * 65536)
    assert (copied.rule, copied.nbytes) == ("convolution forward plain half nchw fused", 2 * moved + 2 * 4096)
    gradient = op("aten.convolution_backward.default", [image, image, weight, None, *settings, [False, True, False]],
                  [weight])  # fmt: skip
    summed = works(as_measured(gradient, "nvjet_sm90_tst_128x64", 2), 132)[0]
    assert summed.nbytes == 2 * (2 * 65536 + 4096) + 4 * 4096 * 8


def test_channels_that_come_last_are_padded_to_vectors() -> None:
    # 12 channels of 2 bytes are no whole vectors of 16 bytes, 16 are: 2 x 64 x 12 of the image and 16 x 9 x 12 weights
    # are copied, which lasts as long as moving them 8.3 times; 2 x 64 x 16 results are not.
    image, out = "bfloat16[2,12,8,8]{768,1,96,12}", "bfloat16[2,16,8,8]{1024,1,128,16}"
    weight = "bfloat16[16,12,3,3]{108,1,36,12}"
    layer = op("aten.convolution.default", [image, weight, None, *SETTINGS], [out])
    padded = works(as_measured(layer, XMMA, 5), 132)[0]
    assert padded.is_serial
    assert padded.nbytes == round(9.3 * 2 * 1536) + round(9.3 * 2 * 1728) + 2 * 2048
    # So they are for windows of one pixel, where cuBLASLt does not compute them.
    settings: list[object] = [[1, 1], [0, 0], [1, 1], False, [0, 0], 1]
    single = op("aten.convolution.default", [image, "bfloat16[16,12,1,1]{12,1,12,12}", None, *settings], [out])
    copied = works(as_measured(single, XMMA, 5), 132)[0]
    assert copied.nbytes == round(9.3 * 2 * 1536) + round(9.3 * 2 * 192) + 2 * 2048


def test_gradients_of_images_by_products_in_groups_are_launched_group_by_group() -> None:
    # 4 images of 49 pixels, padded to 64, in 2 groups of 32 channels. 22 us to begin and 4.6 for each group; tiles of
    # 32 x 64 that all run at once, and sums of 32 terms, each 53 ns; then 4 x 49 x 32 numbers of each group are added.
    settings: list[object] = [[1, 1], [0, 0], [1, 1], False, [0, 0], 2]
    image, weight = "bfloat16[4,64,7,7]", "bfloat16[64,32,1,1]"
    args: list[object] = [image, image, weight, None, *settings, [True, False, False]]
    layer = replace(op("aten.convolution_backward.default", args, [image]), kwargs=(("engine", 25),))
    work = works(layer, 132)[0]
    assert work.rule == "convolution input grouped half nchw direct"
    assert computing_ns(work) == pytest.approx(22_000 + 2 * 4600 + 32 * 53 + 2 * 4 * 49 * 32 * 0.015)


def test_direct_kernels_of_groups_run_eight_at_once() -> None:
    # 1 image of 16 x 16 pixels, 8 groups of 4 channels: eight tiles of 32 x 32 for each, sums of 4 x 9, padded to 40.
    def computing(dtype: str, groups: int) -> float:
        image, weight = f"{dtype}[1,{4 * groups},16,16]", f"{dtype}[{4 * groups},4,3,3]"
        settings: list[object] = [[1, 1], [1, 1], [1, 1], False, [0, 0], groups]
        layer = op("aten.convolution.default", [image, weight, None, *settings], [image])
        return computing_ns(works(as_measured(layer, "void implicit_convolve_sgemm<float", 8), 132)[0])

    assert computing("float32", 8) == pytest.approx(3000 + 8 * 900 + 40 * 77)
    assert computing("float32", 16) == pytest.approx(3000 + 16 * 900 + 2 * 40 * 77)
    assert computing("bfloat16", 8) == pytest.approx(3500 + 8 * 850 + 40 * 114)


def test_weights_gradients_by_winograd_multiply_a_quarter_as_often() -> None:
    # 4 images of 14 x 14 pixels, 32 to 32 channels, 3 x 3: images are moved ten times. Narrower ones are as they were.
    def gradient(channels: int, engine: int) -> Op:
        image, weight = f"float32[4,{channels},14,14]", f"float32[{channels},{channels},3,3]"
        args: list[object] = [image, image, weight, None, *SETTINGS, [False, True, False]]
        return replace(op("aten.convolution_backward.default", args, [weight]), kwargs=(("engine", engine),))

    work = works(gradient(32, 50), 132)[0]
    assert work.rule == "convolution weight plain fp32 nchw winograd"
    assert computing_ns(work) == pytest.approx(8000 + 2 * 784 * 32 * 32 * 9 / 4 / 66_900)
    assert work.nbytes == 10 * 4 * (2 * 784 * 32 + 32 * 32 * 9)
    kernel = "sm80_xmma_gemm_f32f32_f32f32_f32_nt_n_tilesize32x32x8"
    assert rule_of(as_measured(gradient(16, 17), kernel, 4)) == work.rule
    assert not is_by_winograd(gradient(16, 17), kernel)
    assert rule_of(gradient(16, 50)).endswith("singly")


def test_weights_gradients_by_winograd_begin_with_every_group_and_windows_of_5_x_5_are_of_few_pixels() -> None:
    def gradient(side: int) -> Op:
        image, weight = f"float32[1,128,{side},{side}]", "float32[128,32,5,5]"
        settings: list[object] = [[1, 1], [2, 2], [1, 1], False, [0, 0], 4]
        args: list[object] = [image, image, weight, None, *settings, [False, True, False]]
        return replace(op("aten.convolution_backward.default", args, [weight]), kwargs=(("engine", 50),))

    work = works(gradient(32), 132)[0]
    assert work.rule == "convolution weight grouped fp32 nchw winograd"
    assert computing_ns(work) == pytest.approx(4 * 30_000 + 2 * 1024 * 128 * 32 * 25 / 4 / 66_900)
    assert rule_of(gradient(65)).endswith("singly")


def test_some_engines_copy_the_images_of_each_group_if_there_are_several() -> None:
    def layer(images: int, engine: int) -> Work:
        image = f"float32[{images},64,16,16]"
        settings: list[object] = [[1, 1], [1, 1], [1, 1], False, [0, 0], 4]
        made = op("aten.convolution.default", [image, "float32[64,16,3,3]", None, *settings], [image])
        return works(replace(made, kwargs=(("engine", engine),)), 132)[0]

    image_bytes, weight_bytes = 4 * 64 * 256, 4 * 64 * 16 * 9
    assert layer(1, 70).nbytes == 2 * image_bytes + weight_bytes
    assert layer(2, 28).nbytes == 2 * 2 * image_bytes + weight_bytes
    assert layer(2, 70).nbytes == 75 * 2 * 2 * image_bytes + weight_bytes


def test_first_layers_in_float16_have_kernels_of_four_channels() -> None:
    # 128 results of 16 channels, of 4 channels and 9 pixels each; layouts take 7.2 us.
    settings: list[object] = [[1, 1], [1, 1], [1, 1], False, [0, 0], 1]
    layer = op(
        "aten.convolution.default", ["float16[2,3,8,8]", "float16[16,3,3,3]", None, *settings], ["float16[2,16,8,8]"]
    )
    work = works(replace(layer, kwargs=(("engine", 63),)), 132)[0]
    assert work.rule == "convolution forward plain half nchw first"
    assert rule_of(as_measured(layer, "sm90_xmma_fprop_image_first_layer_f16f16", 1)) == work.rule
    assert computing_ns(work) == pytest.approx(2600 + 7200 + 2 * 128 * 16 * 36 / 130_000)


def test_a_kernel_with_a_thread_for_each_result_counts_every_pixel_of_the_window() -> None:
    # 128 x 16 results of 8 x 9 taps, also those outside the image, and as much as 20 for each: 1310 a ns. The image's
    # gradient looks at 128 x 8 x 16 x 9 of them, 786 a ns, but a thread at no more than one in 200 ns.
    result = works(as_measured(forward(), "conv2d_grouped_direct_kernel", 1), 132)[0]
    assert computing_ns(result) == pytest.approx(128 * 16 * (20 + 72) / 1310)
    image = works(as_measured(backward([True, False, False]), "dgrad2d_grouped_direct_kernel", 1), 132)[0]
    assert computing_ns(image) == pytest.approx(200 * 144)
    args = ["bfloat16[200,16,32,32]", "bfloat16[200,8,32,32]", WEIGHT, None, *SETTINGS, [True, False, False]]
    many = op("aten.convolution_backward.default", args, ["bfloat16[200,8,32,32]"])
    image = works(as_measured(many, "dgrad2d_grouped_direct_kernel", 1), 132)[0]
    assert computing_ns(image) == pytest.approx(200 * 1024 * 8 * 144 / 786)
    # 16 x 8 x 9 weights: for each 0.45 ns, and 0.00185 for each of 128 pixels; no less than 7 ns for each pixel
    weight = works(as_measured(backward([False, True, False]), "wgrad2d_grouped_direct_kernel", 1), 132)[0]
    assert computing_ns(weight) == pytest.approx(max(1152 * (0.45 + 0.00185 * 128), 7 * 128))


def _tiled(name: str, mask: list[bool] | None, engine: int, *tiling: int) -> Work:
    layer = forward() if mask is None else backward(mask)
    planned = replace(layer, kwargs=(("engine", engine), ("tiling", tiling)))
    return works(as_measured(planned, name, 1), 132)[0]


def test_a_plan_s_own_tiles_and_parts_decide() -> None:
    # 128 pixels are one tile of 256 x 32 and a step of 32 holds all 8 channels: 9 steps, on kernels for 9.0.
    begin_ns, per_ns = 9800, 2 / (989_500 / 132)
    told = _tiled(XMMA, None, 62, 256, 32, 32, 1)
    cost = 0.33 + 103 / 32 + 15 / 256
    assert computing_ns(told) == pytest.approx(begin_ns + 1250 + 256 * 32 * cost * 9 * 32 * per_ns)
    assert told.num_sizes == 0  # it is not bounded by others, which may have other tiles
    # However large a tile, a step takes 1.15 times what its operations take: 0.33 + 103 / 256 + 15 / 128 is less.
    large = _tiled(XMMA, None, 62, 128, 256, 64, 1)
    assert computing_ns(large) == pytest.approx(begin_ns + 1250 + 128 * 256 * 1.15 * 9 * 64 * per_ns)
    # The weight's 16 x 72 are two tiles of 32 x 64 on kernels for 8.0, 128 pixels two steps of 64, one for each part.
    weight = [False, True, False]
    parts = _tiled("sm80_xmma_wgrad", weight, 10, 32, 64, 64, 2)
    cost = 0.97 + 83 / 32 + 83 / 64
    assert computing_ns(parts) == pytest.approx(begin_ns + 1250 + 5800 + 32 * 64 * cost * 64 * per_ns)
    # On those for 9.0 a tile lies within one of the window's 9 pixels, and as many processors share it as there are,
    # so that they wait for no more than their share of the sum, which has no less than 76 summands.
    shared = _tiled(XMMA, weight, 65, 64, 64, 64, 0)
    cost = 0.58 + 2 * 52 / 64
    assert computing_ns(shared) == pytest.approx(begin_ns + 1250 + 5800 + 64 * 64 * cost * 76 * per_ns)


def test_kernels_that_wait_for_memory_at_every_step_take_no_longer_for_four_blocks_on_a_processor() -> None:
    # 16 x 72 weights as two tiles of 32 x 64 or as 18 of 16 x 8, in parts of one step: less than four blocks each, of
    # 450 ns. Forward the 128 pixels are one tile and the window's 9 pixels of 8 channels two steps.
    name, weight = "sm80_xmma_wgrad_implicit_gemm_indexed_wo_smem", [False, True, False]
    for rows, columns in ((32, 64), (16, 8)):
        assert computing_ns(_tiled(name, weight, 39, rows, columns, 64, 2)) == pytest.approx(9800 + 4 * 450)
    assert computing_ns(_tiled(name, None, 47, 128, 32, 64, 1)) == pytest.approx(9800 + 4 * 2 * 450)
