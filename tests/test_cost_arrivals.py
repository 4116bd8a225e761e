"""Prices of what comes from the host, of products with vectors and of pieces that are joined, by hand."""

from __future__ import annotations

from math import log2

import pytest

from priced_ops import op, profile_of
from trainfit.cost import price_ops
from trainfit.cost.classify import hidden_ops, works
from trainfit.cost.work import Work


def work_of(name: str, args: list[object], out: str) -> Work:
    return works(op(name, args, [out]), 132)[0]


def test_a_copy_from_the_host_has_a_rule_of_its_own() -> None:
    arriving = work_of("aten._to_copy.default", [], "int64[1024]")
    assert (arriving.rule, arriving.coordinates, arriving.nbytes) == ("host copy", (13.0,), 8192)
    assert work_of("aten.copy_.default", ["int64[1024]", None], "int64[1024]").rule == "host copy"
    assert work_of("aten.copy_.default", ["int64[1024]", "int64[1024]"], "int64[1024]").rule == "copy contiguous"


def test_indices_of_the_host_are_copied_before_they_are_used() -> None:
    profile = profile_of({"host copy": [((0.0,), 1.0)], "index": [((0.0, 0.0, 0.0), 1.0)]})
    picked = op("aten.index.Tensor", ["float32[10,3]", [None]], ["float32[100,3]"])
    (copy,) = hidden_ops(picked)
    assert copy.outputs[0].shape == (100,)
    # 1 us each; 800 bytes of indices, and 22 for each of 300 elements, at 1 GB/s.
    (cost,) = price_ops([picked], profile.gpu, profile)
    assert cost.time_ns == (1000 + 800) + (1000 + 22 * 300)
    behind = op("aten.index.Tensor", ["float32[10,3]", [None, None]], ["float32[10,7]"])
    assert [one.outputs[0].shape for one in hidden_ops(behind)] == [(7,)]


@pytest.mark.parametrize(
    ("first", "second", "out", "rule", "nbytes"),
    [  # 1000 matrices: terms side by side, results side by side; vectors of halves, even and odd; two vectors
        ("float32[1000,64,32]", "float32[1000,32,1]", "float32[1000,64,1]", "float32 vector along", 21504),
        ("float32[1000,1,32]", "float32[1000,32,64]", "float32[1000,1,64]", "float32 vector across", 11878),
        ("float16[1000,64,32]", "float16[1000,32,1]", "float16[1000,64,1]", "half vector along", 12_500 + 2900),
        ("float16[1000,512,8]", "float16[1000,8,1]", "float16[1000,512,1]", "half vector along", 8 * 15_400),
        ("float16[1000,3,32]", "float16[1000,32,1]", "float16[1000,3,1]", "half vector along odd", 3100),
        ("float32[1000,64,1]", "float32[1000,1,65]", "float32[1000,64,65]", "float32 outer", 30_000),
        ("float16[1000,64,1]", "float16[1000,1,72]", "float16[1000,64,72]", "half outer", 30_000),
        ("float16[1000,64,1]{64,1,64}", "float16[1000,1,72]", "float16[1000,64,72]", "half outer even", 20_000),
    ],
)
def test_products_with_vectors_go_by_how_the_matrix_lies(
    first: str, second: str, out: str, rule: str, nbytes: int
) -> None:
    found = work_of("aten.bmm.default", [first, second], out)
    assert found.rule == f"bmm {rule}"
    assert found.nbytes == nbytes * 1000


def test_places_in_pieces_that_lie_otherwise_are_computed_and_a_long_piece_is_left_alone() -> None:
    pieces = ["float32[8,64,12]{768,1,64}", "float32[8,16,12]{192,1,16}"]
    found = work_of("aten.cat.default", [pieces, 1], "float32[8,80,12]")
    # 7680 elements of three dimensions, of which 8 x 12 x 48 of the first have half of the GPU and no company
    assert (found.rule, found.nbytes) == ("cat strided", round((7 + 3 * 3) * (7680 + 0.6 * 4608)))
    whole = 0.7 * log2(4 * 7680)
    assert found.coordinates == (whole, 2.0, 3 + 0.9 * 4608 / 7680, 0.7 * 8.0, 4.0)  # long rows, all turned
    alone = work_of("aten.cat.default", [["float32[0]", "float32[8,64,12]{768,1,64}"], 1], "float32[8,64,12]")
    assert alone.nbytes == round((7 + 3 * 3) * 1.6 * 8 * 64 * 12)
    even = work_of("aten.cat.default", [["float32[8,64,12]{768,1,64}"] * 3, 1], "float32[8,192,12]")
    assert even.nbytes == (7 + 3 * 3) * 3 * 8 * 64 * 12


def test_slices_are_copied_one_by_one_where_channels_come_last() -> None:
    last, part = "float32[8,16,4,4]{256,1,64,16}", "float32[8,16,4,4]{512,1,128,32}"
    out = "float32[8,32,4,4]{512,1,128,32}"
    assert hidden_ops(op("aten.cat.default", [[last, last], 1], [out])) == ()
    assert work_of("aten.cat.default", [[last, part], 1], out).rule.startswith("copy")
    (other,) = hidden_ops(op("aten.cat.default", [[last, part], 1], [out]))
    assert (other.name, other.outputs[0].stride) == ("aten.copy_.default", (512, 1, 128, 32))
