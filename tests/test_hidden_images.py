"""Hidden memory of ops on images, pooling, padding, cells and distances: every size is counted by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from trainfit.gpus.catalogue import find_gpu
from trainfit.gpus.hidden import RULES, images
from trainfit.records import OUTPUT, Op, Phase, TensorRef

H200 = find_gpu("h200")
ITEM = {"float32": 4, "bfloat16": 2, "int64": 8}


def dense(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Strides of a tensor whose dimensions lie in this order, the slowest first."""
    stride = [0] * len(shape)
    step = 1
    for dim in reversed(order):
        stride[dim] = step
        step *= shape[dim]
    return tuple(stride)


def plain(*shape: int, dtype: str = "float32") -> TensorRef:
    return TensorRef(0, dtype, shape, dense(shape, range(len(shape))), 0)


def last(*shape: int, dtype: str = "float32") -> TensorRef:
    """Channels last."""
    return TensorRef(0, dtype, shape, dense(shape, (0, *range(2, len(shape)), 1)), 0)


def sliced(whole: TensorRef) -> TensorRef:
    """The first half of the channels of a tensor."""
    shape = (whole.shape[0], whole.shape[1] // 2, *whole.shape[2:])
    return TensorRef(0, whole.dtype, shape, whole.stride, 0)


def swapped(*shape: int, dtype: str = "float32") -> TensorRef:
    """The last two dimensions exchanged: neither plain nor channels last."""
    rank = len(shape)
    return TensorRef(0, dtype, shape, dense(shape, (*range(rank - 2), rank - 1, rank - 2)), 0)


def steps(name: str, *args: object, **kwargs: object) -> tuple[int, ...]:
    op = Op(f"aten.{name}.default", Phase.FORWARD, "", args, tuple(kwargs.items()), ())
    return RULES[op.name](op, H200)


FIRST_COPIED_1D = ["upsample_nearest1d", "_upsample_nearest_exact1d", "reflection_pad1d"]
FIRST_COPIED_2D = [
    "upsample_bicubic2d_backward",
    "_upsample_bilinear2d_aa_backward",
    "_upsample_bicubic2d_aa_backward",
    "reflection_pad2d",
    "reflection_pad2d_backward",
]
FIRST_COPIED_3D = [
    "upsample_nearest3d_backward",
    "_upsample_nearest_exact3d_backward",
    "avg_pool3d",
    "avg_pool3d_backward",
    "_adaptive_avg_pool3d_backward",
    "adaptive_max_pool3d_backward",
    "reflection_pad3d",
]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *((name, (2, 3, 10)) for name in FIRST_COPIED_1D),
        *((f"{name}_backward", (2, 3, 10)) for name in (*FIRST_COPIED_1D, "upsample_linear1d")),
        *((name, (2, 3, 4, 5)) for name in FIRST_COPIED_2D),
        *((name, (2, 3, 4, 5, 6)) for name in FIRST_COPIED_3D),
    ],
)
def test_the_first_argument_is_made_contiguous(name: str, shape: tuple[int, ...]) -> None:
    numel = {3: 60, 4: 120, 5: 720}[len(shape)]
    assert steps(name, plain(*shape)) == ()
    assert steps(name, swapped(*shape)) == (4 * numel,)
    assert steps(name, swapped(*shape, dtype="bfloat16")) == (2 * numel,)
    if len(shape) > 3:
        assert steps(name, last(*shape)) == (4 * numel,)


@pytest.mark.parametrize("name", ["upsample_nearest2d", "_upsample_nearest_exact2d"])
def test_nearest_resampling(name: str) -> None:
    size = (16, 16)
    assert steps(name, plain(2, 4, 8, 8), size) == ()
    assert steps(name, last(2, 4, 8, 8), size) == ()
    assert steps(name, sliced(last(2, 8, 8, 8)), size) == (4 * 2 * 4 * 64,)
    assert steps(name, sliced(plain(2, 8, 8, 8)), size) == (4 * 2 * 4 * 64,)
    # Three channels: a stand-in of 2 x 3 x 256 beside the copy of 2 x 3 x 64.
    assert steps(name, last(2, 3, 8, 8, dtype="bfloat16"), size) == (2 * 1536, 2 * 384)
    assert steps(name, last(2, 1, 8, 8), size) == ()  # one channel lies either way
    assert steps(name, sliced(last(2, 8, 8, 8)), (8, 8)) == ()  # the same size: copied into the result


@pytest.mark.parametrize(
    "name", ["upsample_nearest2d_backward", "_upsample_nearest_exact2d_backward", "upsample_bilinear2d_backward"]
)
def test_resampling_backward(name: str) -> None:
    assert steps(name, plain(2, 4, 16, 16), (16, 16), (2, 4, 8, 8)) == ()
    assert steps(name, last(2, 4, 16, 16), (16, 16), (2, 4, 8, 8)) == ()
    assert steps(name, sliced(last(2, 8, 16, 16)), (16, 16), (2, 4, 8, 8)) == (4 * 2 * 4 * 256,)
    assert steps(name, swapped(2, 4, 16, 16), (16, 16), (2, 4, 8, 8)) == (4 * 2 * 4 * 256,)
    assert steps(name, last(2, 3, 16, 16), (16, 16), (2, 3, 8, 8)) == (4 * 2 * 3 * 64, 4 * 2 * 3 * 256)
    assert steps(name, last(2, 3, 16, 16), (16, 16), (2, 3, 1, 1)) == (4 * 2 * 3 * 256,)  # a pixel lies either way
    assert steps(name, swapped(2, 3, 16, 16), (16, 16), (2, 3, 16, 16)) == ()


def test_as_measured_on_the_h200() -> None:
    """Rows of data/hidden_rows.json."""
    gradient = TensorRef(0, "float32", (8, 256, 128, 128), (16777216, 1, 131072, 1024), 0)
    assert steps("upsample_bilinear2d_backward", gradient, (128, 128), (8, 256, 16, 16), False) == (134217728,)
    gradient = TensorRef(0, "float32", (8, 512, 32, 32), (1048576, 1024, 32, 1), 0)
    assert steps("upsample_nearest2d_backward", gradient, (32, 32), (8, 512, 16, 16), 2.0, 2.0) == (16777216,)


def test_bilinear_resampling_copies_only_wide_images_whose_channels_come_last() -> None:
    assert steps("upsample_bilinear2d", sliced(last(2, 32, 8, 8)), (16, 16), False) == (4 * 2 * 16 * 64,)
    assert steps("upsample_bilinear2d", sliced(last(2, 30, 8, 8)), (16, 16), False) == ()
    assert steps("upsample_bilinear2d", last(2, 16, 8, 8), (16, 16), False) == ()
    assert steps("upsample_bilinear2d", swapped(2, 16, 8, 8), (16, 16), False) == ()
    assert steps("upsample_bilinear2d", sliced(last(2, 32, 8, 8)), (8, 8), False) == ()


@pytest.mark.parametrize("name", ["_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"])
def test_antialiased_resampling(name: str) -> None:
    assert steps(name, plain(2, 4, 8, 8), (4, 4), False) == ()
    assert steps(name, swapped(2, 4, 8, 8), (4, 4), False) == (4 * 512,)
    assert steps(name, last(2, 4, 8, 8), (4, 4), False) == (4 * 128, 4 * 512)
    assert steps(name, last(2, 4, 8, 8), (8, 8), False) == (4 * 512, 4 * 512)  # of the same size too


def test_resampling_of_volumes() -> None:
    for name in ("upsample_nearest3d", "_upsample_nearest_exact3d"):
        assert steps(name, plain(2, 4, 8, 8, 8), (4, 4, 4)) == ()
        assert steps(name, last(2, 4, 8, 8, 8), (4, 4, 4)) == (4 * 512, 4 * 4096)
        assert steps(name, sliced(last(2, 8, 8, 8, 8)), (4, 4, 4)) == (4 * 512, 4 * 4096)
    name, sizes = "upsample_trilinear3d_backward", ((8, 8, 8), (2, 4, 4, 4, 4))
    assert steps(name, plain(2, 4, 8, 8, 8), *sizes, False) == ()
    assert steps(name, swapped(2, 4, 8, 8, 8), *sizes, False) == (4 * 4096,)
    assert steps(name, last(2, 4, 8, 8, 8), *sizes, False) == (4 * 4096, 4 * 512)


def test_pools_copy_in_the_format_of_the_input() -> None:
    for name in ("avg_pool2d", "max_pool2d_with_indices"):
        assert steps(name, plain(2, 4, 8, 8), (2, 2)) == ()
        assert steps(name, last(2, 4, 8, 8), (2, 2)) == ()
        assert steps(name, plain(4, 8, 8), (2, 2)) == ()
        assert steps(name, swapped(2, 4, 8, 8), (2, 2)) == (4 * 512,)
        assert steps(name, sliced(last(2, 8, 8, 8)), (2, 2)) == (4 * 512,)
    average = ((2, 2), (2, 2), (0, 0), False, True, None)
    assert steps("avg_pool2d_backward", plain(2, 4, 4, 4), plain(2, 4, 8, 8), *average) == ()
    assert steps("avg_pool2d_backward", plain(2, 4, 4, 4), last(2, 4, 8, 8), *average) == (4 * 128,)
    assert steps("avg_pool2d_backward", last(2, 4, 4, 4), last(2, 4, 8, 8), *average) == ()
    assert steps("avg_pool2d_backward", last(2, 4, 4, 4), swapped(2, 4, 8, 8), *average) == (4 * 512, 4 * 128)


def test_largest_of_windows_backward_copies_where_they_were_too() -> None:
    window = ((2, 2), (2, 2), (0, 0), (1, 1), False)
    name, indices = "max_pool2d_with_indices_backward", plain(2, 4, 4, 4, dtype="int64")
    assert steps(name, plain(2, 4, 4, 4), plain(2, 4, 8, 8), *window, indices) == ()
    assert steps(name, last(2, 4, 4, 4), plain(2, 4, 8, 8), *window, indices) == (4 * 128,)
    assert steps(name, last(2, 4, 4, 4), sliced(last(2, 8, 8, 8)), *window, indices) == (4 * 512, 8 * 128)


def test_largest_of_windows_of_volumes() -> None:
    assert steps("max_pool3d_with_indices", last(2, 4, 8, 8, 8), (2, 2, 2)) == ()
    assert steps("max_pool3d_with_indices", swapped(2, 4, 8, 8, 8), (2, 2, 2)) == (4 * 4096,)
    assert steps("max_pool3d_with_indices", sliced(last(2, 8, 8, 8, 8)), (2, 2, 2)) == (4 * 4096,)
    one = TensorRef(0, "float32", (4, 8, 8, 8), (1, 256, 32, 4), 0)  # one volume, its channels last
    assert steps("max_pool3d_with_indices", one, (2, 2, 2)) == ()
    assert steps("max_pool3d_with_indices", swapped(4, 8, 8, 8), (2, 2, 2)) == (4 * 2048,)
    window = ((2, 2, 2), (2, 2, 2), (0, 0, 0), (1, 1, 1), False)
    name, indices = "max_pool3d_with_indices_backward", last(2, 4, 4, 4, 4, dtype="int64")
    assert steps(name, last(2, 4, 4, 4, 4), last(2, 4, 8, 8, 8), *window, indices) == ()
    assert steps(name, plain(2, 4, 4, 4, 4), last(2, 4, 8, 8, 8), *window, indices) == (4 * 512,)
    assert steps(name, plain(2, 4, 4, 4, 4), plain(2, 4, 8, 8, 8), *window, indices) == (8 * 512,)


def test_adaptive_pools() -> None:
    assert steps("_adaptive_avg_pool2d", swapped(2, 4, 8, 8), (4, 4)) == (4 * 512,)
    assert steps("_adaptive_avg_pool2d", sliced(last(2, 8, 8, 8)), (4, 4)) == ()
    assert steps("_adaptive_avg_pool2d", swapped(4, 8, 8), (4, 4)) == ()  # one image
    for name in ("_adaptive_avg_pool3d", "adaptive_max_pool3d"):
        assert steps(name, last(2, 4, 8, 8, 8), (4, 4, 4)) == (4 * 4096,)
        assert steps(name, swapped(4, 8, 8, 8), (4, 4, 4)) == ()
    backward = "_adaptive_avg_pool2d_backward"
    assert steps(backward, swapped(2, 4, 4, 4), last(2, 4, 8, 8)) == ()
    assert steps(backward, last(2, 4, 4, 4), plain(2, 4, 8, 8)) == (4 * 128,)
    assert steps(backward, swapped(4, 4, 4), plain(4, 8, 8)) == (4 * 64,)


def test_adaptive_largest_are_written_beside_results_whose_channels_come_last() -> None:
    name = "adaptive_max_pool2d"
    assert steps(name, plain(2, 4, 8, 8), (4, 4)) == ()
    assert steps(name, last(2, 4, 8, 8, dtype="bfloat16"), (4, 4)) == (2 * 128, 8 * 128, 2 * 512)
    assert steps(name, swapped(2, 4, 8, 8), (4, 4)) == (4 * 512,)
    assert steps(name, swapped(4, 8, 8), (4, 4)) == ()
    backward, indices = "adaptive_max_pool2d_backward", last(2, 4, 4, 4, dtype="int64")
    assert steps(backward, last(2, 4, 4, 4), last(2, 4, 8, 8), indices) == (4 * 128, 8 * 128, 4 * 512)
    assert steps(backward, plain(2, 4, 4, 4), plain(2, 4, 8, 8), plain(2, 4, 4, 4, dtype="int64")) == ()


def test_patches_are_made_like_the_image_and_again_as_large_as_they_are() -> None:
    # 3 x 3 windows with a border of 1: nine times the image of 2 x 4 x 64.
    window = ((3, 3), (1, 1), (1, 1), (1, 1))
    assert steps("im2col", plain(2, 4, 8, 8), *window) == (2048, OUTPUT, -2048)
    assert steps("im2col", last(2, 4, 8, 8), *window) == (2048, 2048, OUTPUT, -2048)
    assert steps("im2col", plain(4, 8, 8), *window) == (1024, OUTPUT, -1024)
    # Windows that do not overlap: as many numbers as the image has.
    assert steps("im2col", plain(2, 4, 8, 8), (2, 2), (1, 1), (0, 0), (2, 2)) == ()
    # 2 x 2 windows 2 apart, every second pixel: one row and column less fit (4 x 4 from 9 pixels: (9 - 3) // 2 + 1).
    assert steps("im2col", plain(1, 1, 9, 9), (2, 2), (2, 2), (0, 0), (2, 2)) == ()
    assert steps("col2im", plain(2, 36, 64), (8, 8), *window) == ()
    assert steps("col2im", swapped(2, 36, 64), (8, 8), *window) == (4 * 2 * 36 * 64,)
    # Windows with gaps between them: 2 x 2 of 16 pixels each way hold less than the image.
    assert steps("col2im", plain(1, 4, 4), (5, 5), (2, 2), (1, 1), (0, 0), (3, 3)) == (64, OUTPUT, -64)


def test_sampling_by_cudnn() -> None:
    image, grid = plain(2, 3, 8, 8), plain(2, 5, 5, 2)
    spread = TensorRef(0, "float32", (2, 3, 8, 8), (0, 64, 8, 1), 0)
    assert steps("cudnn_grid_sampler", image, grid) == ()
    assert steps("cudnn_grid_sampler", last(2, 3, 8, 8), grid) == ()  # any strides but 0
    assert steps("cudnn_grid_sampler", spread, swapped(2, 5, 5, 2)) == (4 * 384, 4 * 100, OUTPUT)
    gradient = TensorRef(0, "float32", (2, 3, 5, 5), (0, 0, 0, 0), 0)
    assert steps("cudnn_grid_sampler_backward", image, grid, gradient) == (4 * 150, OUTPUT, OUTPUT)


def test_random_slopes_copy_in_training() -> None:
    x, noise = swapped(4, 6), plain(4, 6)
    assert steps("rrelu_with_noise", x, noise, 0.1, 0.3, True) == (96,)
    assert steps("rrelu_with_noise", x, noise, 0.1, 0.3, False) == ()
    assert steps("rrelu_with_noise", plain(4, 6), noise, training=True) == ()
    assert steps("rrelu_with_noise_", x, swapped(4, 6), 0.1, 0.3, True) == (96, 96, 96)


def test_distances_expand_both_sides() -> None:
    assert steps("_cdist_forward", plain(3, 5, 8), plain(3, 7, 8), 1.0, None) == ()
    assert steps("_cdist_forward", plain(5, 8), plain(1, 7, 8), 1.0, None) == ()
    assert steps("_cdist_forward", plain(3, 5, 8), plain(7, 8), 1.0, None) == (4 * 3 * 56, OUTPUT)
    assert steps("_cdist_forward", swapped(3, 5, 8), plain(1, 7, 8), 1.0, None) == (4 * 120, 4 * 168, OUTPUT)


def test_distances_backward_have_a_gradient_by_every_pair() -> None:
    sides, distances = (plain(3, 5, 8), plain(3, 7, 8)), plain(3, 5, 7)
    assert steps("_cdist_backward", plain(3, 5, 7), *sides, 1.0, distances) == (OUTPUT, 4 * 3 * 7 * 5 * 8)
    assert steps("_cdist_backward", plain(3, 5, 7), *sides, 0.0, distances) == (OUTPUT,)
    assert steps("_cdist_backward", swapped(3, 5, 7), *sides, 1.0, distances) == (4 * 105, OUTPUT, 4 * 840)
    assert steps("_pdist_backward", plain(10), plain(5, 8), 2.0, plain(10)) == (4 * 4 * 5 * 8,)
    assert steps("_pdist_backward", plain(10), plain(5, 8), 0.0, plain(10)) == ()
    assert steps("_pdist_backward", plain(0), plain(1, 8), 2.0, plain(0)) == ()


def test_biases_of_cells_are_sums_that_may_be_staged() -> None:
    name = "_thnn_fused_lstm_cell_backward_impl"
    state, gates = plain(8192, 16), plain(8192, 64)
    # 64 columns, 4 at a time, are 16 threads wide and 8 high, of 128 in all; each has 1024 of the 8192 rows. The one
    # block may be 132 * 16; with at least 16 rows for every thread it is 64. Each has 16 * 4 places for 64 columns.
    staged = steps(name, state, state, state, state, gates, True)
    assert staged == (4 * 64 * 64 * 16 * 4, 4)
    assert steps(name, state, state, state, state, gates, False) == ()
    assert steps(name, plain(8, 16), None, plain(8, 16), plain(8, 16), plain(8, 64), True) == ()


def test_the_two_sums_of_a_gru_cell_follow_each_other() -> None:
    name, state = "_thnn_fused_gru_cell_backward", plain(8192, 16)
    first = steps(name, state, plain(8192, 80), True)
    staged = first[1:3]
    assert first == (OUTPUT, *staged, -staged[1], -staged[0], OUTPUT, *staged)
    assert steps(name, state, plain(8192, 80), False) == ()
    assert steps(name, plain(8, 16), plain(8, 80), True) == ()


def test_every_rule_is_named_like_an_op() -> None:
    assert len(images.RULES) == sum(len(names.split()) for _, names in images._OPS)
    assert all(name.startswith("aten.") and name.endswith(".default") for name in images.RULES)
