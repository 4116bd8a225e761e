"""Hidden memory of ops that search and index: bytes worked out by hand from ATen's sources, on an H200."""

from __future__ import annotations

from typing import Any

import pytest

from trainfit.gpus.catalogue import find_gpu
from trainfit.gpus.hidden import RULES
from trainfit.gpus.hidden.cub import scan_bytes
from trainfit.records import LAST_OUTPUT, OUTPUT, Op, Phase, TensorRef

H200 = find_gpu("h200")


def t(dtype: str, *shape: int, stride: tuple[int, ...] | None = None, storage: int = 0) -> TensorRef:
    if stride is None:
        steps = [1]
        for size in reversed(shape[1:]):
            steps.insert(0, steps[0] * size)
        stride = tuple(steps[: len(shape)])
    return TensorRef(storage, dtype, shape, stride, 0)


def steps(name: str, *args: object, outputs: tuple[TensorRef, ...] = (), **kwargs: object) -> tuple[int, ...]:
    op = Op(f"aten.{name}", Phase.FORWARD, "", args, tuple(kwargs.items()), outputs)
    return RULES[op.name](op, H200)


# 2**24 numbers, all to one: 512 threads of 4 at once; 2**24 / 512 = 32,768 values each; 132 * 4 blocks = 528 fill the
# GPU, so 528 partial results of the accumulator's size, and one semaphore.
FLAT = t("float32", 2**24)
TRANSPOSED = t("float32", 4096, 4096, stride=(1, 4096))
# 64 rows of 2**20: blocks of 32 x 16 threads, each on one row; 528 / 64 -> 9 blocks a row.
ROWS = t("bfloat16", 64, 2**20)


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("amax.default", (FLAT,), (4 * 528, 4)),
        ("amax.default", (t("bfloat16", 2**24), (), False), (2 * 528, 4)),
        ("max.default", (TRANSPOSED,), (4 * 2**24, 4 * 528, 4)),
        ("min.default", (FLAT,), (4 * 528, 4)),
        ("max.dim", (FLAT, 0), (16 * 528, 4)),
        ("min.dim", (t("float32", 64, 1000), -1), ()),
        ("argmax.default", (FLAT,), (16 * 528, 4)),
        ("argmax.default", (t("float32", 4096, 4096), -1), ()),
        ("argmin.default", (TRANSPOSED,), (4 * 2**24, 16 * 528, 4)),
        ("aminmax.default", (FLAT,), (8 * 528, 4)),
        ("any.default", (t("bool", 2**24),), (528, 4)),
        ("all.default", (t("int64", 2**24),), (8 * 528, 4)),
        ("any.dim", (t("bool", 8, 100), 1), ()),
        ("all.default", (t("float32", 1),), (1,)),
        ("any.default", (t("bool", 1),), ()),
        ("prod.default", (FLAT,), (4 * 528, 4)),
        ("prod.default", (t("bfloat16", 2**24),), (4 * 528, 4)),
        ("prod.default", (t("int32", 2**24),), (8 * 2**24, 8 * 528, 4)),
        ("prod.dim_int", (t("bool", 10, 10), 1), (800,)),
        ("equal.default", (FLAT, t("float32", 2**24, storage=1)), (2**24, 1, 528, 4)),
        ("equal.default", (FLAT, FLAT), ()),
        ("equal.default", (FLAT, t("float32", 2**23, storage=1)), ()),
    ],
)
def test_reductions(name: str, args: tuple[Any, ...], expected: tuple[int, ...]) -> None:
    assert steps(name, *args) == expected


def test_rows_are_shared_by_blocks() -> None:
    assert steps("argmax.default", ROWS, 1) == (16 * 64 * 9, 4 * 64)
    assert steps("amax.default", ROWS, (1,)) == (2 * 64 * 9, 4 * 64)


def test_beyond_two_gib_pairs_meet_in_a_buffer() -> None:
    logits = t("float32", 32768, 128256)  # 16 GB; its halves are reduced one after the other
    assert steps("argmax.default", logits, -1) == (16 * 32768,)
    assert steps("max.dim", logits, -1) == (16 * 32768,)
    assert steps("amax.default", logits, (-1,)) == ()


def test_storage_of_scans() -> None:
    # 33 states of 8 bytes are 264, so 512 and 255 more are 767; again 768 and 255.
    assert scan_bytes(8, "int32") == 1023
    # 33 of 16 bytes are 528: 768 + 255 = 1023, then 1024 + 255.
    assert scan_bytes(8, "int64") == 1279
    # Halves: 132 -> 256, and twice 66 -> 256: 768 + 255 = 1023.
    assert scan_bytes(8, "bfloat16") == 1279
    # 2**20 / (128 * 7) -> 1171 tiles and 32: 1203 * 16 = 19248 -> 19456 + 255 -> 19712 + 255.
    assert scan_bytes(2**20, "int64") == 19967
    # 2**20 / (128 * 15) -> 547 tiles and 32: 579 * 8 = 4632 -> 4864 + 255 -> 5120 + 255.
    assert scan_bytes(2**20, "float32") == 5375


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "expected"),
    [
        ("cumsum.default", (t("bool", 8, 128), -1), {}, (8192,)),
        ("cumsum.default", (t("int32", 8), 0), {"dtype": "int32"}, (1023,)),
        ("cumsum.default", (t("int64", 8), 0), {}, (1279,)),
        ("cumprod.default", (t("bfloat16", 4, 8), 1), {"dtype": "torch.float32"}, (128,)),
        ("cumprod.default", (t("float32", 4, 8, stride=(1, 4)), 1), {}, (128,)),
        ("logcumsumexp.default", (t("float32", 100), 0), {}, (1023,)),
        ("cummax.default", (t("float32", 4, 8, stride=(1, 4)), 1), {}, (128,)),
        ("cummin.default", (t("float32", 4, 8), 1), {}, ()),
    ],
)
def test_scans(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], expected: tuple[int, ...]) -> None:
    assert steps(name, *args, **kwargs) == expected


def test_short_rows_are_sorted_beside_one_arange() -> None:
    assert steps("sort.default", t("int64", 4096)) == (32768,)
    assert steps("sort.default", t("float32", 64, 1000), 1) == (8000,)
    assert steps("sort.stable", t("float32", 64, 1000), dim=0, stable=True) == (512,)


def test_one_long_row() -> None:
    assert steps("sort.default", t("int64", 32768)) == (262144, 549375)
    # float32, 50,000: 4 passes: 8192 counters; 10 tiles of 5376: 10240; 200,192 and 400,128 of buffers; 256; 255.
    assert steps("sort.default", t("float32", 50_000)) == (400_000, 8192 + 10240 + 200_192 + 400_128 + 256 + 255)
    # bool: one pass, no buffers: 2048; 15 tiles of 3456: 15360; 256; 255.
    assert steps("sort.default", t("bool", 50_000)) == (400_000, 2048 + 15360 + 256 + 255)


def test_several_long_rows() -> None:
    # 4 rows of 8192 float32: 32768 numbers; by value in 4 passes: 8192, 7 tiles: 7168, buffers 131,072 and 262,144;
    # by row in one pass of keys: 2048, 6 tiles of 5760: 6144.
    by_value = 8192 + 7168 + 131_072 + 262_144 + 256 + 255
    rows = (262_144, 262_144, 131_072, by_value, -by_value, -131_072, 2048 + 6144 + 256 + 255)
    assert steps("sort.default", t("float32", 4, 8192), 1) == rows
    # Not along the rows: a copy, and both results once more.
    across = t("float32", 8192, 4)
    assert steps("sort.default", across, 0, outputs=(across,)) == (131_072, 131_072, 262_144, *rows)
    # 128 rows: cub's segments.
    assert steps("sort.default", t("float32", 128, 8192), 1) == (8 * 2**20, 4 * 2**20 + 8 * 2**20 + 255)


def test_medians() -> None:
    x = t("float32", 10, 10)
    assert steps("median.default", x) == (400, 800, 800, -800, -800, 1, OUTPUT)
    turned = t("float32", 10, 10, stride=(1, 10))
    assert steps("median.default", turned) == (400, 400, 800, 800, -800, -800, -400, 1, OUTPUT)
    assert steps("median.dim", x, 1) == ()
    assert steps("nanmedian.dim", turned, 1) == (400, OUTPUT, OUTPUT)
    assert steps("kthvalue.default", turned, 3) == (400, OUTPUT, OUTPUT)


def test_medians_of_what_is_a_number() -> None:
    x = t("float32", 10, 10)
    # Sorted as for a median; which are NaN, how many, as int64; then the place.
    place = (100, 8, 800, -800, 8, 4, 8, -8, -4, -8, -100)
    assert steps("nanmedian.default", x) == (400, 800, 800, -800, -800, *place, OUTPUT)


def test_unique_values() -> None:
    # 4 passes of 2048; 2 tiles of 6912; keys once more; counters. Then 2 tiles of 6528 and 32: 272 -> 512; 1023.
    sorting = 8192 + 2048 + 32_000 + 256 + 255
    expected = (32_000, sorting, -sorting, OUTPUT, 8, 1023, OUTPUT, OUTPUT)
    assert steps("_unique2.default", t("float32", 8000)) == expected
    assert steps("_unique2.default", t("bool", 8000)) == ()


def test_counts_ask_for_both_ends() -> None:
    assert steps("bincount.default", t("int64", 1000)) == (8, -8, OUTPUT)
    assert steps("bincount.default", t("int64", 2**24)) == (8, 8 * 528, 4, -4, -8 * 528, -8, OUTPUT)


def test_mode() -> None:
    assert steps("mode.default", t("float32", 10, 20)) == ()
    assert steps("mode.default", t("float32", 10, 20), 0) == (800,)
    assert steps("mode.default", t("float32", 20, 1), 1) == ()
    # One row at a time: an arange; 4096 keys and indices, digits of 4 passes, those of one tile, 256, 255.
    assert steps("mode.default", t("float32", 10, 4096)) == (163_840, 32_768, 16_384 + 32_768 + 8192 + 1024 + 511)
    # Halves are merged: parts of one tile, keys, indices.
    assert steps("mode.default", t("bfloat16", 10, 4096)) == (81_920, 32_768, 256 + 8192 + 32_768 + 255)


def test_searched_values_and_bounds_of_one_type() -> None:
    bounds = t("float32", 10)
    assert steps("bucketize.Tensor", t("float32", 100), bounds) == ()
    assert steps("bucketize.Tensor", t("bfloat16", 100), bounds) == (400,)
    assert steps("bucketize.Tensor", t("int64", 100), bounds) == (400,)
    assert steps("searchsorted.Tensor", bounds, t("float64", 100)) == (80,)
    turned = t("int64", 10, 10, stride=(1, 10))
    sorter = t("int64", 10, 10, stride=(1, 10))
    assert steps("searchsorted.Tensor", t("float32", 10, 10), turned, sorter=sorter) == (800, 800, 400, -800)


# Of fewer than 4097 flags the sum takes a byte; one tile of 4224 and 32, of 8 bytes, are 264: 512 + 255 -> 768 + 255.
COUNTED = (1, -1)
CHOSEN = (1023, -1023)


def test_masks_become_indices() -> None:
    x, mask = t("float32", 8, 16, 32), t("bool", 8, 16)
    assert steps("nonzero.default", mask) == (4, *COUNTED, OUTPUT, 1023)
    assert steps("nonzero.default", t("bool", 8, 16, stride=(1, 8))) == (128, 4, *COUNTED, OUTPUT, 1023)
    # 132 x 8 blocks at a time, five times: 21,120 -> 21,248 + 255. 71 tiles and 32: 824 -> 1024 + 255 -> 1280 + 255.
    assert steps("nonzero.default", t("int64", 300_000)) == (4, 21_503, -21_503, OUTPUT, 1535)
    chosen = (t("float32", 50),)
    passed = (*COUNTED, 1200, *CHOSEN, -4)
    assert steps("masked_select.default", x, t("bool", 8, 16, 32), outputs=chosen) == (4, *passed, OUTPUT)
    wide = (4096, 4, *passed, -4096, OUTPUT)
    assert steps("masked_select.default", x, t("bool", 8, 16, 1), outputs=chosen) == wide
    assert steps("masked_scatter_backward.default", x, t("bool", 8, 16, 1), (50,), outputs=chosen) == wide
    rows = (4, *COUNTED, 320, *CHOSEN, -4)
    assert steps("index.Tensor", x, (mask,), outputs=(t("float32", 20, 32),)) == (*rows, OUTPUT)
    columns = (4, *COUNTED, 40, *CHOSEN, -4, OUTPUT)
    assert steps("index.Tensor", x, (None, t("bool", 16)), outputs=(t("float32", 8, 5, 32),)) == columns
    assert steps("index_put_.default", x, (mask,), t("float32", 20, 32)) == rows
    assert steps("index_put_.default", x, (mask,), t("float32")) == ()


def test_plain_indices_stay_as_they_were() -> None:
    x = t("bool", 16, 512)
    indices = (t("int64", 16, 1, 1, 1), t("int64", 1, 1, 1, 512))
    assert steps("index.Tensor", x, indices, outputs=(t("bool", 16, 1, 1, 512),)) == (65536, 65536, OUTPUT)
    assert steps("index_put_.default", x, indices, t("bool")) == (65536, 65536)
    assert steps("index_put_.default", x, (t("int64", 4),), t("bool", 4, 512)) == ()
    assert steps("index_put_.default", t("float32", 100, 8), (t("int64", 10),), t("float32", 10, 8), True) == (
        *(80, 80, -80),
        *(80, 80, 80, 1),
    )


def test_indices_are_sorted_by_the_bits_of_the_largest() -> None:
    x, items = t("float32", 4, 300, 8), t("int64", 5000)
    three = (40_000, 40_000, -40_000, 40_000, 40_000, 40_000)
    # 1199 slices of 8: 11 bits, two passes of 2048; 2 tiles of 4608; counters of 256; keys and values once more.
    two_passes = 4096 + 2048 + 256 + 40_192 + 40_192 + 255
    behind = (None, items)
    assert steps("index_put_.default", x, behind, t("float32", 4, 5000, 8), True) == (*three, two_passes)
    # 3 slices of 2400: one pass.
    assert steps("index_put_.default", x, (items,), t("float32", 5000, 300, 8), True) == (*three, 2048 + 2048 + 511)
    # 31 slices of 300: those that are not indexed come last.
    around = (items, None, items)
    assert steps("index_put_.default", x, around, t("float32", 5000, 300), True) == (*three, 2048 + 2048 + 511)


def test_places_of_unfolded_elements() -> None:
    assert steps("unfold_backward.default", t("float32", 8, 86, 512), (8, 11_392), 1, 512, 128) == (91_136,)
    assert steps("unfold_backward.default", t("float32", 8, 4, 2), (8, 20), 1, 2, 4) == (8 * 14,)


def test_masked_scatter() -> None:
    x, source = t("bfloat16", 4, 256, 1024), t("bfloat16", 64, 1024)
    narrow = t("bool", 4, 256, 1024, stride=(256, 1, 0))
    expected = (8 * 2**20, 2**20, 19967, -19967)
    assert steps("masked_scatter.default", x, narrow, source) == expected
    assert steps("masked_scatter_.default", x, t("bool", 4, 256, 1), source) == expected
    turned = t("bfloat16", 64, 1024, stride=(1, 64))
    full = t("bool", 4, 256, 1024)
    assert steps("masked_scatter_.default", x, full, turned) == (8 * 2**20, 19967, -19967, 131_072)


def test_repeats() -> None:
    assert steps("repeat_interleave.Tensor", t("int64", 8)) == (64, 1279, -1279, 8, 1, -1, -8, OUTPUT)
    assert steps("repeat_interleave.Tensor", t("int32", 8), output_size=20) == (64, 64, 1279, -1279, -64, OUTPUT)


def test_scattered_means_count() -> None:
    x, index, source = t("float32", 10, 8), t("int64", 30, 8), t("float32", 30, 8)
    assert steps("scatter_reduce.two", x, 0, index, source, "sum") == ()
    assert steps("scatter_reduce_.two", x, 0, index, source, "mean", include_self=False) == (960, 320, 80)


def test_where_converts() -> None:
    mask, half, single = t("bool", 10), t("bfloat16", 10), t("float32", 10)
    assert steps("where.self", mask, single, single, outputs=(single,)) == ()
    assert steps("where.self", mask, half, single, outputs=(single,)) == (40, OUTPUT)
    assert steps("where.self", t("uint8", 10), single, single, outputs=(single,)) == (10, OUTPUT)


def test_losses_by_class_are_of_contiguous_tensors() -> None:
    x, turned = t("float32", 6, 10), t("float32", 6, 10, stride=(1, 6))
    target, every_other = t("int64", 6), t("int64", 6, stride=(2,))
    assert steps("nll_loss_forward.default", x, target, None, 1, -100) == ()
    assert steps("nll_loss_forward.default", turned, every_other, None, 1, -100) == (240, 48)
    spread = t("float32", 6, stride=(0,))
    assert steps("nll_loss_backward.default", spread, turned, every_other, None, 0, -100) == (48, 240, 24)
    image = t("float32", 2, 5, 4, 4, stride=(80, 1, 20, 5))
    labels, weight = t("int64", 2, 4, 4, stride=(32, 8, 2)), t("float32", 5, stride=(2,))
    assert steps("nll_loss2d_forward.default", image, labels, weight, 1, -100) == (640, 20, 256)
    assert steps("nll_loss2d_forward.default", image, labels, weight, 0, -100) == (20,)
    scalar = t("float32")
    assert steps("nll_loss2d_backward.default", scalar, image, labels, weight, 1, -100, scalar) == (256, 20)
    assert steps("nll_loss2d_backward.default", scalar, image, labels, weight, 0, -100, scalar) == (20,)


def test_ctc() -> None:
    probs, targets, lengths = t("float32", 50, 4, 20), t("int64", 4, 10), (10,) * 4
    assert steps("_ctc_loss.default", probs, targets, lengths, lengths) == (32, 32, 32, LAST_OUTPUT, OUTPUT)
    loss, alpha = t("float32", 4), t("float32", 4, 50, 21)
    small = (loss, probs, targets, lengths, lengths, loss, alpha, 0)
    assert steps("_ctc_loss_backward.default", *small) == (32, 32, 32, 16_800, OUTPUT)
    # 2 * 250 > 450: 1000 rows of 11 sums; their largest, which of those are infinite, exponentials, the results.
    probs, alpha = t("float32", 250, 4, 20), t("float32", 4, 250, 21)
    large = (loss, probs, targets, lengths, lengths, loss, alpha, 0)
    blanks = (44_000, 4000, 4000, 1000, -1000, -4000, 44_000, 4000)
    gone = (-4000, -44_000, -4000, -44_000)
    assert steps("_ctc_loss_backward.default", *large) == (32, 32, 32, 84_000, OUTPUT, *blanks, *gone)
    with_zeros = (32, 32, 32, 84_000, 80_000, *blanks, *gone, 4, 4, OUTPUT)
    assert steps("_ctc_loss_backward.default", *large, True) == with_zeros


def test_numbers_of_the_host_take_nothing() -> None:
    x, mask = t("float32", 8, 4), t("bool", 8, 4)
    assert steps("where.self", mask, x, None, outputs=(x,)) == ()
    assert steps("index_put_.default", x, (mask,), None, outputs=(x,)) == ()


def test_what_is_added_up_under_a_mask_is_sorted_by_what_it_chooses() -> None:
    """The gradient of x[mask]: 20 of 40 rows of 32."""
    x, mask, values = t("float32", 8, 5, 32), t("bool", 8, 5), t("float32", 20, 32)
    # The mask is counted: int64 for 20 rows and 2 dimensions; 20 linear indices, sorted and ordered, in one tile.
    expected = (4, *COUNTED, 320, *CHOSEN, -4, 160, 160, -160, 160, 160, 160, 1)
    assert steps("_index_put_impl_.default", x, (mask,), values, True) == (OUTPUT, *expected)
    assert steps("index_put_.default", x, (mask,), values, True) == expected
    assert steps("index_put_.default", x, (mask,), None, True) == ()
