"""Fourier transforms: passes over memory, and what torch does around cuFFT."""

from __future__ import annotations

import pytest

from priced_ops import ns_of, op, profile_of
from trainfit.cost.classify import hidden_ops, works
from trainfit.records import Op

PROFILE = profile_of(
    {
        "fft": [((0.0, 0.0), 1.0)],
        "copy contiguous": [((0.0, 0.0, 0.0), 1.0)],
        "copy strided": [((0.0, 0.0, 0.0), 3.0)],
        "pointwise contiguous": [((0.0, 0.0, 0.0), 1.0)],
    }
)


def rows_there(length: int, count: int = 100, normalization: int = 0) -> Op:
    args: list[object] = [f"float32[{count},{length}]", [1], normalization, True]
    return op("aten._fft_r2c.default", args, [f"complex64[{count},{length // 2 + 1}]"])


def test_a_transform_of_rows_reads_and_writes_once_and_is_scaled_by_another_kernel() -> None:
    assert ns_of(rows_there(8), profile=PROFILE) == 1000 + 3200 + 4000
    assert ns_of(rows_there(8, normalization=2), profile=PROFILE) == 1000 + 3200 + 4000 + 1000 + 2 * 4000


def test_every_dimension_is_a_pass_over_the_spectrum() -> None:
    plane = op("aten._fft_c2c.default", ["complex64[10,4,4]", [1, 2], 0, True], ["complex64[10,4,4]"])
    flat = op("aten._fft_c2c.default", ["complex64[10,1,16]", [1, 2], 0, True], ["complex64[10,1,16]"])
    real = op("aten._fft_r2c.default", ["float32[10,4,8]", [1, 2], 0, True], ["complex64[10,4,5]"])
    assert ns_of(plane, profile=PROFILE) == 2 * (1000 + 2 * 1280)
    assert ns_of(flat, profile=PROFILE) == 1000 + 2 * 1280
    assert ns_of(real, profile=PROFILE) == 2000 + 1280 + 3 * 1600


def test_one_kernel_transforms_small_complex_planes_both_ways() -> None:
    def plane(rows: int, columns: int) -> Op:
        shape = f"complex64[10,{rows},{columns}]"
        return op("aten._fft_c2c.default", [shape, [1, 2], 0, True], [shape])

    small, large, odd = (works(plane(*sides), 132) for sides in ((64, 128), (64, 256), (64, 96)))
    assert [(work.rule, work.kernels, work.nbytes) for work in small[:2]] == [
        ("fft planes", 1, 2 * 655_360),
        ("fft", 2, 4 * 655_360),
    ]
    assert (large[0].rule, odd[0].rule) == ("fft", "fft mixed")


def test_on_the_way_back_to_real_numbers_the_spectrum_is_copied_first() -> None:
    back = op("aten._fft_c2r.default", ["complex64[100,5]", [1], 2, 8], ["float32[100,8]"])
    assert [hidden.name for hidden in hidden_ops(back)] == ["aten.clone.default", "aten.mul_.Tensor"]
    assert ns_of(back, profile=PROFILE) == (1000 + 4000 + 3200) + (1000 + 2 * 4000) + (1000 + 2 * 3200)


def test_what_is_not_transformed_is_brought_into_one_piece() -> None:
    def along(shape: str, dim: int, out: str) -> Op:
        return op("aten._fft_r2c.default", [f"float32[{shape}]", [dim], 0, True], [f"complex64[{out}]"])

    (copy,) = hidden_ops(along("10,8,6", 1, "10,5,6"))
    assert [(tensor.shape, tensor.stride) for tensor in (*copy.input_refs(), *copy.outputs)] == [
        ((10, 6, 8), (48, 1, 6)),
        ((10, 6, 8), (48, 8, 1)),
    ]
    assert hidden_ops(along("8,6", 0, "5,6")) == ()
    assert hidden_ops(along("10,6,8", 2, "10,6,5")) == ()
    assert hidden_ops(along("10,8,1", 1, "10,5,1")) == ()


def test_a_convolution_by_one_kernel_takes_as_long_as_two_passes() -> None:
    work = works(rows_there(2 * 131), 132)[0]
    assert (work.kernels, work.nbytes) == (1, 100 * 4 * 262 + 3 * 100 * 8 * 132)


@pytest.mark.parametrize(
    ("length", "rule", "kernels"),
    [
        (16384, "fft", 1),
        (32768, "fft", 2),
        (16 * 31, "fft mixed", 1),
        (37, "fft primes", 1),
        (2 * 37, "fft primes", 2),
        (64 * 127, "fft primes", 3),
        (2 * 131, "fft convolved", 1),
        (4 * 1049, "fft convolved", 6),
    ],
)
def test_the_largest_prime_factor_and_the_length_decide_on_the_kernels(length: int, rule: str, kernels: int) -> None:
    work = works(rows_there(length, count=1), 132)[0]
    assert (work.rule, work.kernels) == (rule, kernels)
