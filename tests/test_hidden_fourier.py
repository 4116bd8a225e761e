"""Copies and workspaces of Fourier transforms against what an H200 allocated (torch 2.11, CUDA 13)."""

from __future__ import annotations

import pytest

from priced_ops import H200, op
from trainfit.gpus.hidden import hidden_memory
from trainfit.records import Op


def temporaries(an_op: Op) -> tuple[int, ...]:
    return hidden_memory(H200, "2.11.0+cu130").temporaries(an_op)


def transforms(rows: int, length: int) -> list[Op]:
    """To a spectrum, back from it, and of complex numbers."""
    real, spectrum = f"float32[{rows},{length}]", f"complex64[{rows},{length // 2 + 1}]"
    whole = f"complex64[{rows},{length}]"
    return [
        op("aten._fft_r2c.default", [real, [1], 0, True], [spectrum]),
        op("aten._fft_c2r.default", [spectrum, [1], 2, length], [real]),
        op("aten._fft_c2c.default", [whole, [1], 0, True], [whole]),
    ]


@pytest.mark.parametrize(
    ("rows", "length", "there", "back", "complex_numbers"),
    [
        (4096, 1000, (), (16_416_768,), ()),
        (512, 8192, (), (16_781_312,), ()),
        (64, 65536, (16_777_728,), (16_777_728, 16_777_728), (33_554_432,)),
        (4096, 257, (8_421_376,), (4_227_072, 8_421_376), ()),
        (1024, 1018, (4_169_728,), (4_177_920, 4_169_728), ()),
        (65536, 37, (), (9_961_472,), ()),
        (100, 12_298, (4_920_000,), (4_920_000, 4_920_000), (9_838_400,)),
    ],
)
def test_a_spectrum_is_copied_on_the_way_back_and_rows_of_several_kernels_take_a_workspace(
    rows: int, length: int, there: tuple[int, ...], back: tuple[int, ...], complex_numbers: tuple[int, ...]
) -> None:
    assert [temporaries(one) for one in transforms(rows, length)] == [there, back, complex_numbers]


def test_planes_take_a_workspace_no_more_than_rows() -> None:
    real, spectrum = "float32[102,64,128,128]", "complex64[102,64,128,65]"
    assert temporaries(op("aten._fft_r2c.default", [real, [2, 3], 0, True], [spectrum])) == ()
    assert temporaries(op("aten._fft_c2r.default", [spectrum, [2, 3], 2, 128], [real])) == (434_503_680,)


def test_what_cufft_cannot_read_as_it_lies_is_copied() -> None:
    middle = op("aten._fft_r2c.default", ["float32[64,1024,64]", [1], 0, True], ["complex64[64,513,64]"])
    first = op("aten._fft_r2c.default", ["float32[64,1024,64]", [0], 0, True], ["complex64[33,1024,64]"])
    last = "float32[16,64,128,128]{1048576,1,8192,64}"
    channels = op("aten._fft_r2c.default", [last, [2, 3], 0, True], ["complex64[16,64,128,65]"])
    assert [temporaries(one) for one in (middle, first, channels)] == [(16_777_216,), (), (67_108_864,)]


def test_softmax_s_gradient_is_brought_in_order_first() -> None:
    turned, plain = "float32[64,249,500]{500,32000,1}", "float32[64,249,500]"
    nbytes = 4 * 64 * 249 * 500

    def backward(name: str, gradient: str) -> tuple[int, ...]:
        return temporaries(op(f"aten.{name}.default", [gradient, plain, -1, "float32"], [plain]))

    assert backward("_log_softmax_backward_data", plain) == ()
    assert backward("_log_softmax_backward_data", turned) == (nbytes,)
    assert backward("_softmax_backward_data", plain) == (nbytes,)
    assert backward("_softmax_backward_data", turned) == (nbytes, nbytes)
