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
        ("float16[1000,512,8]", "float16[1000,8,1]", "float16[1000,512,1]", "half vector along", 2 * 15_400),
        ("float16[1000,3,32]", "float16[1000,32,1]", "float16[1000,3,1]", "half vector along odd", 3100),
        ("float32[1000,64,1]", "float32[1000,1,65]", "float32[1000,64,65]", "float32 outer", 30_000),
    ],
)
def test_products_with_vectors_go_by_how_the_matrix_lies(
    first: str, second: str, out: str, rule: str, nbytes: int
) -> None:
    found = work_of("aten.bmm.default", [first, second], out)
    assert found.rule == f"bmm {rule}"
    assert found.nbytes == nbytes * 1000


def test_pieces_that_lie_otherwise_have_as_many_blocks_as_the_longest() -> None:
    pieces = ["float32[8,64,12]{768,1,64}", "float32[8,16,12]{192,1,16}"]
    found = work_of("aten.cat.default", [pieces, 1], "float32[8,80,12]")
    assert (found.rule, found.nbytes) == ("cat strided", max(2 * 4 * 7680, 12 * 2 * 8 * 64 * 12))
    whole = 0.7 * log2(4 * 7680)
    assert found.coordinates == (whole, 2.0, 1.5, 0.7 * 8.0, 4.0)  # two pieces, rows beyond 256 bytes, all turned
