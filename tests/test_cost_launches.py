"""Kernels as torch launches them: who adds up what in a reduction, and how pieces are joined."""

from __future__ import annotations

from math import log2

import pytest

from priced_ops import op
from trainfit.cost.classify import hidden_ops, works
from trainfit.cost.work import Work
from trainfit.records import Op

LOAD, STEP = 3_000_000, 1_150_000


def summed(args: list[object], result: str) -> Work:
    return works(op("aten.sum.dim_IntList", args, [result]), 132)[0]


def test_of_few_columns_the_last_block_adds_up_what_many_found() -> None:
    # Four columns to a thread, 32 threads side by side, 4 below each other: two blocks have all 256 columns. 2112 run
    # at once, so 1056 share a column; each thread adds up 2^20 / 4 / 1056 rows, and the last block what 1056 found.
    work = summed(["bfloat16[1048576,256]", [0]], "bfloat16[256]")
    assert work.rule == "sum outer 2"
    assert work.nbytes == 2 * 256 * (2**20 + 1) + STEP * 264
    assert work.coordinates[1:] == (8.0, log2(249), 6.0, 0.0)  # by vectors of four columns


def test_threads_that_add_up_much_each_wait_for_it() -> None:
    # 768 rows are too few to share: 4 threads below each other have 192 rows each, in 48 loads.
    assert summed(["float32[768,768]", [0]], "float32[768]").nbytes == LOAD * 48


def test_a_row_that_lies_in_memory_is_shared_by_threads_side_by_side() -> None:
    # 32 threads share a row of 128, and 16 rows are in a block: four elements each, in one load, by four waves of 8192
    # blocks.
    work = summed(["bfloat16[131072,128]", [1]], "bfloat16[131072]")
    assert work.rule == "sum inner 2"
    assert work.coordinates[1:] == (17.0, 2.0, 0.0, 0.0)
    assert work.nbytes == LOAD * -(-8192 // (132 * 4))


def test_results_that_lie_otherwise_than_the_operand_are_read_apart() -> None:
    # Results are in order of the second dimension, whose elements are 32 apart, and threads read those.
    plain = summed(["float32[8,32,16]{512,16,1}", [0]], "float32[32,16]")
    apart = summed(["float32[8,32,16]{512,1,32}", [0]], "float32[32,16]")
    assert (plain.rule, apart.rule) == ("sum outer 4", "sum outer 4")
    assert (plain.coordinates[3], apart.coordinates[3]) == (6.0, -3.0)


def test_a_reduction_fetches_whole_sectors_for_elements_that_lie_apart() -> None:
    # Results that are 16 elements apart: 32 bytes come for 4, unless threads beside them read the others.
    apart = summed(["float32[256,131072]{2097152,16}", [0]], "float32[131072]")
    assert (apart.rule, apart.nbytes) == ("sum outer 4", 32 * 2**25)
    beside = summed(["float32[256,8192,16]{131072,16,1}", [0]], "float32[8192,16]")
    assert beside.nbytes == 4 * (2**25 + 2**17)
    # What a thread adds up next has come with it: 8 rows of 2 elements side by side.
    rows = summed(["bfloat16[1048576,8,2]", [1]], "bfloat16[1048576,2]")
    assert rows.nbytes == 2 * (2**24 + 2**21)
    # Two elements side by side share a sector.
    pairs = summed(["bfloat16[256,65536,2]{2097152,32,1}", [0]], "bfloat16[65536,2]")
    assert pairs.nbytes == 16 * 2**25


def test_the_order_of_a_norm_is_no_dimension() -> None:
    norm = works(op("aten.linalg_vector_norm.default", ["float32[8,16,32]", 2, [1]], ["float32[8,32]"]), 132)[0]
    assert norm.rule == "sum outer 4"


def joined(name: str, pieces: list[str], dim: int, result: str) -> Op:
    return op(f"aten.{name}.default", [pieces, dim], [result])


@pytest.mark.parametrize(
    ("name", "pieces", "dim", "result", "rule"),
    [
        ("cat", ["2*float32[64,32]"], 1, "float32[64,64]", "cat whole"),
        ("cat", ["float32[64,32]", "float32[64,5]"], 1, "float32[64,37]", "cat odd"),
        ("cat", ["float32[64,32]", "float32[5,32]"], 0, "float32[69,32]", "cat whole"),
        ("cat", ["float32[64,32]", "float32[64,32]{1,64}"], 0, "float32[128,32]", "cat strided"),
        ("stack", ["2*float32[64,32]"], -1, "float32[64,32,2]", "cat odd"),
        ("stack", ["2*float32[8,4,16,32]"], 1, "float32[8,2,4,16,32]", "cat whole"),
    ],
)
def test_pieces_are_joined_by_the_kernel_that_their_rows_allow(
    name: str, pieces: list[str], dim: int, result: str, rule: str
) -> None:
    an_op = joined(name, pieces, dim, result)
    assert works(an_op, 132)[0].rule == rule
    assert hidden_ops(an_op) == ()


@pytest.mark.parametrize(
    ("name", "pieces", "dim", "result"),
    [
        ("stack", ["3*float32[2,4,16,8]"], -1, "float32[2,4,16,8,3]"),
        ("cat", ["3*float32[2,4,16,8,2]"], 4, "float32[2,4,16,8,6]"),
    ],
)
def test_more_than_four_dimensions_are_copied_piece_by_piece(
    name: str, pieces: list[str], dim: int, result: str
) -> None:
    an_op = joined(name, pieces, dim, result)
    assert works(an_op, 132)[0].rule == "copy strided"
    assert [copy.name for copy in hidden_ops(an_op)] == ["aten.copy_.default"] * 2


def test_pieces_of_two_types_are_converted_one_by_one() -> None:
    an_op = joined("cat", ["float32[64,32]", "bfloat16[64,32]"], 0, "float32[128,32]")
    rules = [works(one, 132)[0].rule for one in (an_op, *hidden_ops(an_op))]
    assert rules == ["copy contiguous", "cast 2 to 4 contiguous mixed"]


def test_four_hundred_pieces_take_four_kernels() -> None:
    assert works(joined("stack", ["400*float32[]"], 0, "float32[400]"), 132)[0].kernels == 4
