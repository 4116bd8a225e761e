"""Workspaces of plans that cuDNN makes without a GPU, against those of the GPU's own plans.

The rows are benchmarks/probe_convolutions.py's (H200, cuDNN 9.19). Asking the library needs one, which torch's CUDA
builds bring; the formulas do not.
"""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trainfit
from trainfit.gpus.catalogue import find_gpu
from trainfit.gpus.hidden import convolution, cudnn, cudnn_kernels, cudnn_library, cudnn_transforms
from trainfit.gpus.hidden.cudnn_kernels import Choice, Tiling
from trainfit.gpus.hidden.cudnn_library import Convolution, Plan, Proposal
from trainfit.records import OUTPUT, Op, Phase, TensorRef

H200 = find_gpu("h200")
TILE_BYTES = 4 * 128 * 128  # fp32 sums of a tile
PLAN_BYTES = 175
Shape = tuple[int, ...]


def problem(kind: cudnn.Kind, x: Shape, weight: Shape, y: Shape, **settings: Any) -> cudnn.Problem:
    stride = settings.get("stride", (1, 1))
    padding = tuple(pixels // 2 for pixels in weight[2:])
    return cudnn.Problem(
        kind,
        settings.get("dtype", "float32"),
        settings.get("channels_last", False),
        x,
        weight,
        y,
        stride,
        padding,
        (1,) * len(stride),
    )


def shared_plan(engine: int, tile: int = 0, cluster: tuple[int, int] = (1, 1), alone: int = 0) -> Plan:
    """A plan whose blocks share tiles, with a workspace that only a machine without a GPU would state."""
    return Plan(engine, ((2, tile), (13, 0), (18, 1), (25, alone), (27, cluster[0]), (28, cluster[1])), 12345)


def test_tiles_of_a_weight_gradient_are_shared_by_all_blocks() -> None:
    # 2 x 2 tiles of 128 x 128 for each of 9 pixels; 132 blocks cut each of the 36 into 3, which are added as 2 pairs
    # and 1 of those. The H200 took just this.
    asked = problem("weight gradient", (64, 256, 14, 14), (256, 256, 3, 3), (64, 256, 14, 14))
    copies_bytes = 4 * (64 * 256 * 14 * 14 * 2 + 256 * 256 * 9)
    assert copies_bytes == 28049408
    expected = copies_bytes + 36 * (3 * TILE_BYTES + 4 * (2 + 1)) + PLAN_BYTES
    assert cudnn.planned_bytes(asked, shared_plan(68), H200) == expected == 35127903


def test_clusters_leave_blocks_idle() -> None:
    # 9 tiles of 64 x 64; clusters of 3 fit 39 times, so each tile is cut into 117 // 9 = 13. The H200 took 1917591.
    asked = problem(
        "weight gradient", (64, 64, 56, 56), (64, 64, 3, 3), (64, 64, 56, 56), dtype="bfloat16", channels_last=True
    )
    assert (
        cudnn.planned_bytes(asked, shared_plan(65, tile=5, cluster=(1, 3)), H200)
        == 9 * (13 * 4 * 64 * 64 + 4 * (7 + 4 + 2 + 1)) + PLAN_BYTES
        == 1917607
    )


def test_only_the_last_wave_is_shared_and_no_part_is_shorter_than_four_steps() -> None:
    # 4096 tiles are 31 waves of 132, and 4 more; 9 x 256 products are 72 steps, 18 parts. The H200 took 543949299.
    asked = problem("output", (16, 256, 1, 16384), (256, 256, 1, 9), (16, 256, 1, 16384))
    copies_bytes = 4 * (16 * 256 * 16384 * 2 + 256 * 256 * 9)
    expected = copies_bytes + 4 * (18 * TILE_BYTES + 4 * (9 + 5 + 3 + 2 + 1)) + PLAN_BYTES
    assert cudnn.planned_bytes(asked, shared_plan(67, cluster=(1, 2)), H200) == expected == 543949295


@pytest.mark.parametrize(
    ("dtype", "channels", "parts"),
    [
        # 18 tiles, which 117 blocks could cut into 6: but a third round of adding is not worth it, as measured
        ("bfloat16", (256, 128), 18 * 4),
        ("float16", (256, 128), 18 * 6),
        # 9 tiles: 13 parts of 59 steps each
        ("bfloat16", (128, 128), 9 * 13),
    ],
)
def test_sums_of_halves_are_cut_into_powers_of_two_unless_they_are_long(
    dtype: str, channels: tuple[int, int], parts: int
) -> None:
    image = (96, channels[0], 16, 16)
    asked = problem(
        "weight gradient", image, (channels[1], channels[0], 3, 3), (96, channels[1], 16, 16),
        dtype=dtype, channels_last=True,
    )  # fmt: skip
    found = cudnn.planned_bytes(asked, shared_plan(65, cluster=(1, 3)), H200)
    assert found // TILE_BYTES == parts


def test_narrow_groups_are_one_product_with_channels_padded_to_a_power_of_two() -> None:
    # 4 groups of 96 channels, padded to 128: a tile per group and pixel of the kernel, 36. Clusters of 3 leave 117
    # blocks, 3 for each tile, which are added as 2 pairs and 1 of those. The H200 took just this.
    image = (64, 384, 56, 56)
    asked = problem("weight gradient", image, (384, 96, 3, 3), image, dtype="bfloat16")
    copies_bytes = 2 * (2 * 64 * 4 * 128 * 56 * 56 + 4 * 128 * 128 * 9)
    expected = copies_bytes + 36 * (3 * TILE_BYTES + 4 * (2 + 1)) + PLAN_BYTES
    assert cudnn.planned_bytes(asked, shared_plan(65, cluster=(1, 3)), H200) == expected == 419299935


def test_groups_share_a_tile_that_is_wider_than_they_are() -> None:
    # 32 groups of 16 channels: 4 in a tile of 64 x 64, so 8 tiles times 16 pixels, which clusters of 3 make 18: 144, of
    # which 27 are left for the last wave of 117. 121 steps are worth one round: 2 parts. The H200 took just this.
    asked = problem("weight gradient", (64, 512, 14, 14), (512, 16, 4, 4), (64, 512, 11, 11), dtype="bfloat16")
    copies_bytes = 2 * 512 * (64 * 14 * 14 + 64 * 11 * 11 + 16 * 16)
    expected = copies_bytes + 27 * (2 * 4 * 64 * 64 + 4 * 1) + PLAN_BYTES
    assert cudnn.planned_bytes(asked, shared_plan(65, tile=5, cluster=(1, 3)), H200) == expected == 21922075


def test_wide_groups_are_a_product_each() -> None:
    # 2 groups of 480 channels: 4 rows of tiles, and 4 columns for each of 3 pixels, 48; 132 blocks cut each into 2.
    # The H200 took 202064608.
    asked = problem("weight gradient", (48, 960, 1, 499), (960, 480, 1, 3), (48, 960, 1, 499))
    copies_bytes = 4 * (2 * 48 * 960 * 499 + 960 * 480 * 3)
    expected = copies_bytes + 2 * 48 * (2 * TILE_BYTES + 4 * 1) + PLAN_BYTES
    assert cudnn.planned_bytes(asked, shared_plan(68, cluster=(1, 2)), H200) == expected == 202064431


def test_images_of_one_pixel_are_not_copied() -> None:
    # They are channels-last as they are. Padding 246 channels to 248 still copies weights and outputs: 992016 measured.
    shape = (128, 240, 1, 1)
    asked = problem("weight gradient", shape, (2880, 240, 1, 1), (128, 2880, 1, 1))
    assert cudnn.planned_bytes(asked, shared_plan(68, tile=5), H200) == 0
    asked = problem("output", (32, 1968, 1, 1), (246, 1968, 1, 1), (32, 246, 1, 1), dtype="bfloat16")
    assert cudnn.planned_bytes(asked, shared_plan(62, cluster=(4, 2)), H200) == 2 * 248 * (1968 + 32) + 16


def test_an_input_gradient_with_a_stride_has_kernels_for_every_phase() -> None:
    # 4 x 4 with stride 2 and padding 1: 2 x 2 phases of 3 x 3 pixels. cuDNN states 119537680 bytes.
    image, weight = (64, 256, 32, 32), (512, 256, 4, 4)
    asked = cudnn.Problem(
        "input gradient", "float32", True, image, weight, (64, 512, 16, 16), (2, 2), (1, 1), (1, 1)
    )  # fmt: skip
    expected = 4 * (64 * 256 * 32 * 32 + 64 * 512 * 16 * 16 + 512 * 256 * 6 * 6) + PLAN_BYTES
    assert cudnn.Form("phases").workspace_bytes(asked, 132) == expected == 119537839


def test_a_plan_that_shares_nothing_takes_what_it_says() -> None:
    asked = problem("output", (16, 256, 1, 16384), (256, 256, 1, 9), (16, 256, 1, 16384))
    assert cudnn.planned_bytes(asked, shared_plan(67, alone=1), H200) == 12345
    assert cudnn.planned_bytes(asked, shared_plan(38), H200) == 12345
    assert cudnn.planned_bytes(asked, shared_plan(67), find_gpu("a100-80gb")) == 12345


def test_a_tree_is_walked_level_by_level() -> None:
    # node 0 asks feature 1; its left child (1) asks feature 0, whose children are 3 and 4; node 2 is a leaf
    tree = cudnn.Tree.of(np.array([1, 0, -1, -1, -1]), np.array([10, 5, 7, 8, 9]))
    assert [tree.form_number(features) for features in ((5, 10), (6, 10), (5, 11))] == [8, 9, 7]


def test_of_several_trees_the_middle_counts() -> None:
    # whole fp32 weights, 4 * 8 * 8 * 9 bytes each: one tree says none, one says 2, one says 5
    asked = problem("weight gradient", (4, 8, 16, 16), (8, 8, 3, 3), (4, 8, 16, 16))
    trees = [cudnn.Tree.of(np.array([-1]), np.array([number])) for number in range(3)]
    forms = [cudnn.Form(""), cudnn.Form("", splits=5), cudnn.Form("", splits=2)]
    assert cudnn.middle_bytes(asked, trees, forms, 132) == 2 * 4 * 8 * 8 * 9 + PLAN_BYTES


def test_a_weight_gradient_by_cublas_is_a_product_per_sample_and_takes_nothing_besides() -> None:
    # As measured: 4 bytes for each weight and sample, and no plan.
    asked = problem("weight gradient", (96, 128, 16, 16), (512, 128, 1, 1), (96, 512, 16, 16), dtype="bfloat16")
    assert cudnn.Form("", per_sample=1).workspace_bytes(asked, 132) == 4 * 96 * 512 * 128 == 25_165_824


def test_cublas_computes_no_weight_gradient_of_volumes() -> None:
    # The last layer of a U-Net over volumes, whose kernels on the H200 were transposes of both operands before a
    # convolution's: 40 channels (4 are padded to 8) of 16 bits.
    volume, result, settings = (2, 32, 96, 96, 96), (2, 4, 96, 96, 96), {"stride": (1, 1, 1), "dtype": "bfloat16"}
    kinds: tuple[cudnn.Kind, ...] = ("output", "input gradient", "weight gradient")
    passes = [problem(kind, volume, (4, 32, 1, 1, 1), result, **settings) for kind in kinds]
    assert [cudnn.is_left_to_cublas(one) for one in passes] == [True, True, False]
    found_bytes = [cudnn.workspace_bytes(one, 132) for one in passes]
    assert found_bytes[:2] == [0, 0]
    assert found_bytes[2] > 40 * 2 * 2 * 96**3 == 141_557_760  # and sums


def test_the_trees_are_small_quick_to_load_and_as_good_as_their_file_says() -> None:
    path = Path(cudnn.__file__).with_name("cudnn_plans.npz")
    assert path.stat().st_size < 1_300_000
    with np.load(path) as stored:
        about = json.loads(str(stored["about"]))
    close = {name: shares["close"] for name, shares in about["accuracy"].items()}
    assert len(close) == 12
    # On convolutions that were not learned, within 1 MiB or 1%.
    assert min(share for name, share in close.items() if "weight" not in name) >= 0.94
    assert min(share for name, share in close.items() if "weight" in name) >= 0.89
    for cached in (cudnn._stored, cudnn._forms, cudnn._trees):
        cached.cache_clear()
    asked = problem("output", (4, 8, 16, 16), (8, 8, 3, 3), (4, 8, 16, 16))
    begin_s = time.process_time()
    cudnn.workspace_bytes(asked, 132)
    assert time.process_time() - begin_s < 0.2  # some 10 ms


def test_a_convolution_that_cudnn_refuses_is_imitated(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*asked: Any) -> Any:
        raise cudnn_library.CudnnError("CUDNN_STATUS_BAD_PARAM")

    monkeypatch.setattr(cudnn_library, "library", object)
    monkeypatch.setattr(cudnn_library, "described_target", lambda gpu: cudnn_library.Target((), (), ()))
    monkeypatch.setattr(cudnn_library, "proposed_plan", refused)
    shape = (0, 4, 8, 8)
    described = Convolution(shape, (4, 4, 3, 3), shape, (1, 1), (1, 1), (1, 1), "float32", False)
    assert cudnn_library.first_plan(described, "output", H200) is None
    cudnn_library.first_plan.cache_clear()


def contiguous(*shape: int) -> TensorRef:
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= size
    return TensorRef(0, "float32", shape, tuple(strides), 0)


def forward_op(x: TensorRef, weight: TensorRef) -> Op:
    args = (x, weight, None, (1,), (4,), (1,), False, (0,), 1)
    return Op("aten.convolution.default", Phase.FORWARD, "", args, (), ())


def test_a_one_dimensional_convolution_is_asked_about_as_an_image_of_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def first_plan(described: Convolution, kind: str, gpu: Any) -> Plan:
        asked.append((described, kind))
        return Plan(38, (), 777)

    monkeypatch.setattr(cudnn_library, "first_plan", first_plan)
    op = forward_op(contiguous(16, 256, 512), contiguous(128, 256, 9))
    steps = convolution.RULES[op.name](op, H200)
    assert steps == (OUTPUT, 777)
    x, weight, y = (16, 256, 1, 512), (128, 256, 1, 9), (16, 128, 1, 512)
    assert asked == [(Convolution(x, weight, y, (1, 1), (0, 4), (1, 1), "float32", False), "output")]


def test_one_number_stands_for_every_image_dimension() -> None:
    # padding="valid" reaches the kernels as (0,); the whole step must be estimated as with (0, 0)
    def peak_bytes(padding: Any) -> int:
        step = trainfit.Step(
            model=torch.nn.Conv2d(16, 32, 3, padding=padding),
            batch=(torch.zeros(4, 16, 32, 32),),
            loss=lambda output: output.sum(),
        )
        return trainfit.estimate(step, "h200").peak_allocated_bytes

    assert peak_bytes("valid") == peak_bytes((0, 0))


def test_a_kernel_of_one_pixel_is_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    def first_plan(*asked: Any) -> Plan:
        raise AssertionError(asked)

    monkeypatch.setattr(cudnn_library, "first_plan", first_plan)
    args = (contiguous(8, 64, 32, 32), contiguous(64, 64, 1, 1), None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1)
    op = Op("aten.convolution.default", Phase.FORWARD, "", args, (), ())
    assert OUTPUT in convolution.RULES[op.name](op, H200)


@pytest.mark.parametrize("is_installed", [True, False])
def test_an_estimate_says_when_the_choice_of_kernels_is_imitated(
    monkeypatch: pytest.MonkeyPatch, is_installed: bool
) -> None:
    monkeypatch.setattr(cudnn_library, "is_installed", lambda: is_installed)

    step = trainfit.Step(
        model=torch.nn.Conv2d(4, 4, 3),
        batch=(torch.zeros(1, 4, 8, 8),),
        loss=lambda output: output.sum(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    lines = trainfit.estimate(step, "h200").not_modelled
    said = [line for line in lines if "imitated" in line]
    assert bool(said) is not is_installed
    assert all("pip install 'trainfit[cudnn]'" in line for line in said)


needs_cudnn = pytest.mark.skipif(not cudnn_library.is_installed(), reason="no cuDNN here; torch's CUDA builds have one")
# kind, x, weight, stride, padding, dtype, channels-last; engine and knobs of the GPU's own first plan
GPU_PLANS: list[tuple[Any, ...]] = [
    ("output", (64, 4, 64, 64), (160, 4, 3, 3), (1, 1), (0, 0), "bfloat16", False, 1, {2: 4, 3: 0}),
    (
        "output",
        (32, 24, 80, 80),
        (320, 24, 3, 3),
        (2, 2),
        (1, 1),
        "float16",
        True,
        62,
        {2: 0, 13: 0, 18: 0, 25: 0, 27: 8, 28: 1},
    ),
    ("output", (4, 40, 1, 49), (40, 40, 1, 7), (1, 1), (0, 3), "float16", False, 45, {2: 5, 5: 3, 14: 6}),
    (
        "output",
        (64, 256, 20, 20),
        (256, 256, 3, 3),
        (1, 1),
        (1, 1),
        "float32",
        True,
        67,
        {2: 9, 13: 0, 18: 0, 25: 0, 27: 4, 28: 1},
    ),
    ("input gradient", (64, 4, 64, 64), (160, 4, 3, 3), (1, 1), (0, 0), "bfloat16", False, 57, {2: 4, 5: 3, 14: 3}),
    (
        "input gradient",
        (32, 24, 80, 80),
        (320, 24, 3, 3),
        (2, 2),
        (1, 1),
        "float16",
        True,
        73,
        {2: 4, 13: 1, 18: 1, 27: 4, 28: 1},
    ),
    ("input gradient", (4, 40, 1, 49), (40, 40, 1, 7), (1, 1), (0, 3), "float16", False, 2, {2: 1, 3: 0}),
    (
        "input gradient",
        (64, 256, 20, 20),
        (256, 256, 3, 3),
        (1, 1),
        (1, 1),
        "float32",
        True,
        71,
        {2: 3, 13: 0, 18: 0, 25: 0, 27: 1, 28: 2},
    ),
    (
        "weight gradient",
        (64, 4, 64, 64),
        (160, 4, 3, 3),
        (1, 1),
        (0, 0),
        "bfloat16",
        False,
        33,
        {0: 56, 2: 4, 5: 3, 14: 3},
    ),
    (
        "weight gradient",
        (32, 24, 80, 80),
        (320, 24, 3, 3),
        (2, 2),
        (1, 1),
        "float16",
        True,
        49,
        {0: 14, 2: 0, 5: 3, 14: 3},
    ),
    (
        "weight gradient",
        (4, 40, 1, 49),
        (40, 40, 1, 7),
        (1, 1),
        (0, 3),
        "float16",
        False,
        9,
        {2: 8, 13: 1, 14: 4, 18: 1, 23: 0},
    ),
    (
        "weight gradient",
        (64, 256, 20, 20),
        (256, 256, 3, 3),
        (1, 1),
        (1, 1),
        "float32",
        True,
        68,
        {2: 0, 13: 0, 18: 1, 25: 0, 27: 1, 28: 1},
    ),
    ("weight gradient", (64, 4, 28, 28), (64, 4, 5, 5), (1, 1), (2, 2), "float32", False, 20, {2: 6, 3: 0}),
]


@needs_cudnn
@pytest.mark.parametrize("row", GPU_PLANS, ids=str)
def test_the_library_proposes_what_it_proposes_on_the_gpu(row: tuple[Any, ...]) -> None:
    if cudnn_library.version() // 100 not in (919, 920):
        pytest.skip("later heuristics choose otherwise; the rows are those of cuDNN 9.19")
    kind, x, weight, stride, padding, dtype, channels_last, engine, knobs = row
    pixels = zip(x[2:], weight[2:], stride, padding, strict=True)
    y = (x[0], weight[0], *((size + 2 * pad - kernel) // step + 1 for size, kernel, step, pad in pixels))
    described = Convolution(x, weight, y, stride, padding, (1,) * len(stride), dtype, channels_last)
    plan = cudnn_library.first_plan(described, kind, H200)
    assert plan is not None
    assert (plan.engine, dict(plan.knobs)) == (engine, knobs)


@needs_cudnn
def test_the_library_plans_for_every_gpu_of_the_vendor() -> None:
    shape = (8, 64, 32, 32)
    described = Convolution(shape, (64, 64, 3, 3), shape, (1, 1), (1, 1), (1, 1), "float16", False)
    for name in ("v100-16gb", "t4", "a10g", "a100-80gb", "l4", "h100-80gb", "b200", "rtx5090"):
        assert cudnn_library.first_plan(described, "output", find_gpu(name)) is not None, name
    assert cudnn_library.first_plan(described, "output", find_gpu("mi300x")) is None


@pytest.mark.parametrize(
    ("kind", "knobs", "tiling"),
    [
        ("output", ((2, 16), (13, 0)), (256, 32, 32, 1)),
        ("weight gradient", ((2, 8), (13, 1), (17, 5)), (64, 32, 64, 5)),
        ("weight gradient", ((0, 3), (2, 7), (5, 2)), (64, 128, 16, 3)),
        ("weight gradient", ((2, 5), (13, 1), (25, 0)), (64, 64, 64, 0)),
        ("weight gradient", ((2, 5), (13, 1), (25, 1)), (64, 64, 64, 1)),
        ("output", ((3, 0),), None),
    ],
)
def test_a_plan_s_knobs_tell_its_tiles_steps_and_parts(
    monkeypatch: pytest.MonkeyPatch,
    kind: cudnn.Kind,
    knobs: tuple[tuple[int, int], ...],
    tiling: tuple[int, ...] | None,
) -> None:
    monkeypatch.setattr(cudnn_library, "version", lambda: 91900)
    monkeypatch.setattr(cudnn_library, "first_proposal", lambda *_: Proposal(62, knobs))
    told = cudnn_kernels.asked(problem(kind, (4, 8, 16, 16), (8, 8, 3, 3), (4, 8, 16, 16)), H200)
    assert told == Choice(62, None if tiling is None else Tiling(*tiling))


def test_the_trees_of_kernels_are_small_quick_to_load_and_as_good_as_their_file_says() -> None:
    path = Path(cudnn_kernels.__file__).with_name("cudnn_kernels.npz")
    assert path.stat().st_size < 2_200_000
    with np.load(path) as stored:
        accuracy = json.loads(str(stored["about"]))["accuracy"]
    assert len(accuracy) == 6
    # Of passes whose windows were not learned.
    assert min(shares["choice"] for shares in accuracy.values()) >= 0.88
    assert min(shares["engine"] for shares in accuracy.values()) >= 0.93
    assert min(shares["kind"] for shares in accuracy.values()) >= 0.94
    for cached in (cudnn_kernels._stored, cudnn_kernels._about, cudnn_kernels._tree, cudnn_kernels._choice_trees):
        cached.cache_clear()
    begin_s = time.process_time()
    cudnn_kernels.imitated(problem("output", (4, 8, 16, 16), (8, 8, 3, 3), (4, 8, 16, 16)))
    assert time.process_time() - begin_s < 0.3  # some 50 ms


def test_without_cudnn_its_choice_is_imitated(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = problem("output", (32, 256, 56, 56), (256, 256, 3, 3), (32, 256, 56, 56), dtype="bfloat16")
    monkeypatch.setattr(cudnn_library, "version", lambda: 0)
    assert cudnn_kernels.asked(plain, H200) is None
    assert cudnn_kernels.chosen(plain, H200) == cudnn_kernels.imitated(plain)
    engine, tiling = cudnn_kernels.usual_engine(plain), cudnn_kernels.imitated(plain).tiling
    assert cudnn_kernels.imitated(plain).engine == engine
    assert tiling is not None
    assert (tiling.rows * tiling.columns, tiling.parts) == (128 * 128, 1)


def test_most_trees_decide_and_another_one_says_how_many_parts_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    leaf = {number: cudnn.Tree([-1], [number], [0]) for number in range(9)}
    choices = Choice(34, Tiling(64, 64, 32, 2)), Choice(68, None)
    monkeypatch.setattr(cudnn_kernels, "_choices", lambda _: choices)
    monkeypatch.setattr(cudnn_kernels, "_tree", lambda name: {"weight gradient, fp32/parts": leaf[7]}[name])
    gradient = problem("weight gradient", (4, 8, 16, 16), (8, 8, 3, 3), (4, 8, 16, 16))
    monkeypatch.setattr(cudnn_kernels, "_choice_trees", lambda _: (leaf[1], leaf[0], leaf[0]))
    assert cudnn_kernels.imitated(gradient) == Choice(34, Tiling(64, 64, 32, 7))
    monkeypatch.setattr(cudnn_kernels, "_choice_trees", lambda _: (leaf[1], leaf[0], leaf[1]))
    assert cudnn_kernels.imitated(gradient) == Choice(68, None)


@pytest.mark.parametrize(
    ("kind", "x", "weight", "y", "nbytes"),
    [
        # 13 x 8 pixels are one frame of 32 x 32, of which 32 x 17 frequencies are kept, 8 bytes each
        ("input gradient", (513, 16, 13, 8), (8, 16, 7, 7), (513, 8, 13, 8), 54_138_880),
        # 79 x 79 are nine, of which two are kept at once
        ("input gradient", (3, 16, 79, 79), (28, 16, 5, 5), (3, 28, 79, 79), 3_098_624),
        # the images and the weights, in frames of 16 x 16, twice; the weights turned around
        ("output", (28, 72, 4, 4), (28, 72, 9, 9), (28, 28, 4, 4), 9_942_912),
        ("output", (7, 40, 28, 11), (56, 40, 11, 11), (7, 56, 28, 11), 86_240_000),
        # the images and the gradient, or the weights, which are more; the gradient turned around
        ("weight gradient", (563, 8, 33, 33), (8, 8, 7, 7), (563, 8, 33, 33), 324_017_760),
        ("weight gradient", (19, 44, 68, 17), (44, 44, 3, 3), (19, 44, 68, 17), 261_585_984),
    ],
)
def test_workspaces_of_transforms_are_what_the_h200_s_cudnn_says(
    kind: cudnn.Kind, x: Shape, weight: Shape, y: Shape, nbytes: int
) -> None:
    assert cudnn_transforms.workspace_bytes(problem(kind, x, weight, y)) == nbytes


def test_frames_hold_padded_images() -> None:
    def sides(kind: cudnn.Kind, side: int, window: int) -> tuple[int, int]:
        shape = (4, 8, side, side)
        frames = cudnn_transforms.frames_of(problem(kind, shape, (8, 8, window, window), shape))
        return frames.side, frames.per_image

    assert [sides("output", side, 3) for side in (4, 14, 15, 30, 62, 63)] == [
        (16, 1), (16, 1), (32, 1), (32, 1), (64, 1), (128, 1),
    ]  # fmt: skip
    assert [sides("input gradient", side, 3) for side in (8, 30, 31)] == [(32, 1), (32, 1), (32, 4)]


def test_small_images_in_float32_are_transformed_where_the_trees_say_so() -> None:
    x, weight, y = (921, 20, 3, 3), (20, 20, 7, 7), (921, 20, 3, 3)
    small = problem("output", x, weight, y)
    assert cudnn_transforms.is_transformed(small)
    assert not cudnn_transforms.is_transformed(dataclasses.replace(small, dtype="bfloat16"))
    assert not cudnn_transforms.is_transformed(dataclasses.replace(small, channels_last=True))
    assert not cudnn_transforms.is_transformed(problem("output", (32, 64, 56, 56), (64, 64, 3, 3), (32, 64, 56, 56)))
