"""Convolutions by direct kernels: waves of tiles, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainfit.cost.convolution_direct import Directly, direct_ns

# 3 x 3 windows over images as large as their results
ONE = Directly("forward", engine=28, item_bytes=4, images=2, window=9, spread=1, stride=1, groups=1)


def test_a_first_layer_s_channels_take_as_long_as_a_tile_of_them() -> None:
    # 2 x 100 pixels are 7 rows of tiles, which all run at once; sums of 3 x 9 are padded to 32, each term 77 ns.
    few, tile = (direct_ns(ONE, 200, outputs, 3) for outputs in (3, 32))
    assert few == tile == pytest.approx(3000 + 32 * 77)
    # 6.7 tiles on each of 132 processors: 2 x 1000 times as many rows
    assert direct_ns(ONE, 200_000, 32, 3) == pytest.approx(3000 + 32 * 77 * 6250 / (6.7 * 132))


def test_an_engine_without_tiles_of_its_own_has_the_usual_ones() -> None:
    assert direct_ns(replace(ONE, engine=0), 200, 3, 3) == direct_ns(ONE, 200, 3, 3)
    assert direct_ns(replace(ONE, engine=70), 200, 3, 3) == pytest.approx(3600 + 32 * 26)


def test_halves_of_many_channels_have_wider_tiles() -> None:
    # 2,000 pixels: 16 x 4 tiles of 128 x 64, which all run at once, and sums of 64 x 9 terms, each 155 ns; narrow ones
    # are 63 x 8, which all do, too, but in 114 ns.
    half = replace(ONE, item_bytes=2)
    assert direct_ns(half, 2000, 256, 64) == pytest.approx(3500 + 576 * 114)
    # Of 200,000 pixels narrow ones come in 47.3 waves, wide ones in 23.7.
    assert direct_ns(half, 200_000, 256, 64) == pytest.approx(3500 + 576 * 155 * 1563 * 4 / (2 * 132))
    assert direct_ns(half, 200_000, 256, 63) == pytest.approx(3500 + 568 * 114 * 6250 * 8 / (8 * 132))


def test_an_image_s_gradient_is_gathered_by_one_engine_and_added_up_by_others() -> None:
    # 2 x 49 pixels at a stride of 2, so 4 of the larger image for each; 8 output and 3 input channels.
    strided = replace(ONE, name="input", spread=4, stride=2)
    # Gathered: 392 pixels are 13 tiles, and sums of 8 x 9 terms.
    assert direct_ns(replace(strided, engine=74), 98, 8, 3) == pytest.approx(3200 + 72 * 18)
    # Added up: each image's 49 pixels are padded to 64, 3 x 9 columns to 64; sums of 8, then 98 x 27 additions.
    assert direct_ns(replace(strided, engine=25), 98, 8, 3) == pytest.approx(8000 + 8 * 53 + 98 * 27 * 0.0061)
    # Halves try again where 9 / 2 windows meet at a pixel.
    half = replace(strided, engine=25, item_bytes=2)
    assert direct_ns(half, 98, 8, 3) == pytest.approx(22_000 + 8 * 53 + 98 * 27 * 0.015 * 4.5**0.5)


def test_a_weight_s_gradient_goes_through_all_pixels_or_shares_them_among_processors() -> None:
    weight = replace(ONE, name="weight", engine=3)
    # One tile of 8 outputs by 27: sums of 2 x 49 pixels, padded to 104, and 8 x 27 weights are written.
    assert direct_ns(weight, 98, 8, 3) == pytest.approx(5200 + 104 * 52 + 8 * 27 * 0.0024)
    # Shared: image by image, of 49 pixels each, padded to 56; no less than 54 ns an image.
    shared = replace(weight, engine=20)
    assert direct_ns(shared, 98, 8, 3) == pytest.approx(11_000 + 54 * 2)
    assert direct_ns(shared, 98, 3200, 3) == pytest.approx(11_000 + 100 * 2 * 56 * 77 / (4.6 * 132))


def test_groups_begin_one_after_the_other_and_run_so_many_at_once() -> None:
    # 16 groups of one tile each: two rounds of eight.
    in_groups = replace(ONE, groups=16)
    assert direct_ns(in_groups, 20, 4, 3) == pytest.approx(3000 + 16 * 900 + 2 * 32 * 77)
    assert direct_ns(replace(in_groups, groups=1), 20, 4, 3) == pytest.approx(3000 + 32 * 77)
