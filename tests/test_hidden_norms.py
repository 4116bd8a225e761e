"""Hidden memory of norms, sums, attention and products of several factors: bytes worked out by hand, on an H200.

benchmarks/results/hidden_calls_h200.jsonl.gz has calls like these, which took as much.
"""

from __future__ import annotations

from typing import Any

import pytest

from trainfit.gpus.catalogue import find_gpu
from trainfit.gpus.hidden import RULES, hidden_memory
from trainfit.records import LAST_OUTPUT, OUTPUT, Op, Phase, TensorRef

H200 = find_gpu("h200")


def t(dtype: str, *shape: int, order: tuple[int, ...] | None = None) -> TensorRef:
    """Dense, with its dimensions in this order, the slowest first."""
    stride, step = [0] * len(shape), 1
    for dim in reversed(order or range(len(shape))):
        stride[dim] = step
        step *= shape[dim]
    return TensorRef(0, dtype, shape, tuple(stride), 0)


def steps(name: str, *args: object, **kwargs: object) -> tuple[int, ...]:
    op = Op(f"aten.{name}", Phase.FORWARD, "", args, tuple(kwargs.items()), ())
    return RULES[op.name](op, H200)


LAST = (0, 2, 3, 1)
WEIGHTS = (t("float32", 64),) * 4


def test_cudnn_norms_go_by_64_channels_and_of_odd_ones_by_16() -> None:
    # 16,384 pixels: 256 blocks; two sums of 128 channels each, 2 flags each, counters.
    x = t("float32", 16, 96, 32, 32, order=LAST)
    forward = (8 * 128 * 256 + 4 * 256 * 2 + 1072 + 4 * 2,)
    assert steps("cudnn_batch_norm.default", x, *WEIGHTS, True, 0.1, 1e-05) == forward == (265_272,)
    # 100,352 pixels: 1568 blocks; 83 channels are 6 times 16.
    odd = t("float32", 32, 83, 56, 56, order=LAST)
    expected = (8 * 96 * 1568 + 4 * 1568 * 6 + 1072 + 4 * 6,)
    assert steps("cudnn_batch_norm.default", odd, *WEIGHTS, True, 0.1, 1e-05) == expected == (1_242_952,)
    small = t("float32", 19, 16, 10, 10, order=LAST)
    assert steps("cudnn_batch_norm_backward.default", small, small) == (8 * 64 * 20 + 1056 + 4,)


@pytest.mark.parametrize("name", ["cudnn_batch_norm.default", "native_batch_norm.default"])
def test_norms_take_nothing_in_evaluation(name: str) -> None:
    x = t("float32", 64, 512, 13, 13, order=LAST)
    assert steps(name, x, *WEIGHTS, False, 0.1, 1e-05) == ()


def test_norms_of_one_channel_are_contiguous() -> None:
    x = t("bfloat16", 1, 1, 48, 48, 48)
    assert steps("native_batch_norm.default", x, *WEIGHTS, True, 0.1, 1e-05) == ()


def test_evaluation_makes_inverse_deviations_for_backward_unless_they_were_saved() -> None:
    x, weight = t("float32", 8, 48, 34, 34, order=LAST), t("float32", 48)
    # 9248 rows: blocks of 32 x 16 threads; 37 of them, each with two sums of 48; a semaphore for both of its columns.
    staged = (37 * 2 * 4 * 48, 8)
    tail = (LAST_OUTPUT, LAST_OUTPUT, *staged, *(-step for step in reversed(staged)), OUTPUT)
    made = (weight,) * 3 + (t("float32", 0),) * 2
    saved = (weight,) * 5
    assert steps("native_batch_norm_backward.default", x, x, *made, False, 1e-05, (True,) * 3) == (192, 192, 192, *tail)
    assert steps("native_batch_norm_backward.default", x, x, *saved, False, 1e-05, (True,) * 3) == (192, 192, *tail)


def test_group_norms_without_weight_have_no_products_with_it() -> None:
    x, sums = t("bfloat16", 8, 48, 64, 64), t("bfloat16", 8, 16)
    found = steps("native_group_norm_backward.default", x, x, sums, sums, None, 8, 48, 4096, 16, (True, False, False))
    assert found == (1536, 1536, 512, 512)


def test_weights_of_two_dimensions_are_summed_up_over_the_last() -> None:
    # 431,104 rows in parts of 32: 13,472 sums of two columns, twice.
    x, weight, mean = t("float32", 421, 1024, 21, 2), t("float32", 21, 2), t("float32", 421, 1024, 1, 1)
    found = steps("native_layer_norm_backward.default", x, x, (21, 2), mean, mean, weight, weight, (True,) * 3)
    assert found[:5] == (OUTPUT, 168, 168, 107_776, 107_776)


def test_flash_attention_copies_heads_that_lie_together() -> None:
    heads, rows = t("float16", 3, 8, 4096, 24), t("float32", 3, 8, 4096)
    found = steps("_scaled_dot_product_flash_attention_backward.default", *(heads,) * 5, rows)
    assert found == (4_718_592, 4_718_592, OUTPUT, OUTPUT, OUTPUT, 393_216, 12_582_912)
    apart = t("float16", 3, 8, 4096, 24, order=(0, 2, 1, 3))
    found = steps("_scaled_dot_product_flash_attention_backward.default", *(apart,) * 5, rows)
    assert found == (393_216, 12_582_912)


def test_outputs_of_a_reduction_go_by_the_results_strides() -> None:
    # [2, 3] results of 1,200,000 with strides of 1 and 2: 3 lies inside 2, so nothing is read as vectors. 4 x 128
    # threads: two blocks of outputs, of 264 blocks each.
    x = t("float32", 2, 3, 1_200_000, order=(2, 1, 0))
    assert steps("amax.default", x, (2,)) == (4 * 6 * 264 * 4, 8)
    # A stride of 2 is less than that of 3, 2,400,000: along the rows. One block for each row, 88 share it.
    x = t("float32", 2, 3, 1_200_000, order=(1, 2, 0))
    assert steps("amax.default", x, (2,)) == (4 * 6 * 88, 24)


def test_expanded_dimensions_do_not_count_as_the_fastest() -> None:
    # 64 results beside each other, of 1024 numbers that are there 256 times: 16 x 8 threads of 4 results, 32,768 values
    # each; 2048 blocks leave 16 of them to each thread.
    spread = TensorRef(0, "float32", (256, 64, 1024), (0, 1, 64), 0)
    assert steps("sum.dim_IntList", spread, (0, 2)) == (4 * 64 * 2048 * 64, 4)


def test_flags_are_summed_as_integers() -> None:
    assert steps("sum.default", t("bool", 512, 256)) == (8 * 131_072, 8 * 16, 4)
    assert steps("sum.dim_IntList", t("bool", 48, 65_536), (-1,)) == (8 * 48 * 65_536,)


def test_complex_magnitudes_are_complex_first() -> None:
    assert steps("abs.default", t("complex64", 2, 128)) == (2048,)
    assert steps("abs.default", t("float32", 2, 128)) == ()


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ((t("float32", 3, 4096), 1), (1, 1, 49_152)),
        ((t("float32", 16_384, 3), 4, True), (196_608,) * 3),
        # One row is summed up by a scan: 3 tiles of 1920 and 32 of 8 bytes, 280 -> 512; 767 -> 768 + 255.
        ((t("float32", 4096), 4, True), (16_384, 16_384, 16_384, 1023)),
    ],
)
def test_places_are_drawn(args: tuple[Any, ...], expected: tuple[int, ...]) -> None:
    assert steps("multinomial.default", *args) == expected


def test_three_factors_are_two_products_for_each_place() -> None:
    factors = t("float32", 152, 16), t("float32", 5, 16, 8), t("float32", 152, 8)
    found = steps("_trilinear.default", *factors, (1, 3), (0,), (1, 2), (2, 3))
    assert found == (4 * 152 * 8, 4 * 152)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((8, 32), (64, 64)), ((8, 64), ()), ((96, 64), (768, 768)), ((96, 1024), ()), ((1, 4), (8, 8))],
)
def test_triangular_systems_are_solved_at_once_or_one_by_one(shape: tuple[int, int], expected: tuple[int, ...]) -> None:
    matrices = t("float32", shape[0], shape[1], shape[1])
    assert steps("linalg_solve_triangular.default", matrices, matrices, upper=False) == expected


def test_many_cholesky_factors_need_pointers() -> None:
    hidden = hidden_memory(H200, "2.11.0")
    op = Op("aten.linalg_cholesky_ex.default", Phase.FORWARD, "", (t("float32", 96, 32, 32),), (), ())
    assert hidden.temporaries(op) == (768,)
