"""Sizes in and out."""

import pytest

from trainfit.errors import BadSize
from trainfit.units import format_bytes, format_count, parse_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("72GiB", 72 * 2**30),
        ("80GB", 80_000_000_000),
        ("512MiB", 536_870_912),
        ("512 MiB", 536_870_912),
        ("1.5GiB", 1_610_612_736),
        ("0.1GB", 100_000_000),
        ("64kib", 65_536),
        ("1TiB", 2**40),
        ("2TB", 2 * 10**12),
        ("700B", 700),
        ("90%", 900),
        ("12.5%", 125),
        ("100%", 1000),
    ],
)
def test_a_size_with_a_unit_is_exact_bytes(text: str, expected: int) -> None:
    assert parse_bytes(text, of_bytes=1000) == expected


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("80", "has no unit"),
        ("80G", "unknown unit 'G'"),
        ("80GiBs", "unknown unit 'GiBs'"),
        ("", "is not a size"),
        ("GiB", "is not a size"),
        ("-4GiB", "is not a size"),
        ("1e3MB", "is not a size"),
        ("0GiB", "is zero"),
        ("101%", "more than the whole GPU"),
    ],
)
def test_what_is_no_size_is_refused_with_examples(text: str, what: str) -> None:
    with pytest.raises(BadSize, match=what) as caught:
        parse_bytes(text, of_bytes=1000)
    assert "72GiB" in caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (2048, "2.0 KiB"),
        (2**20 - 1, "1024.0 KiB"),
        (64 * 2**20, "64.0 MiB"),
        (2**30, "1.0 GiB"),
        (36_044_800_000, "33.6 GiB"),
    ],
)
def test_bytes_are_shown_with_one_decimal(nbytes: int, expected: str) -> None:
    assert format_bytes(nbytes) == expected


@pytest.mark.parametrize(
    ("count", "expected"),
    [(8_030_261_248, "8.03 B"), (124_439_808, "124.4 M"), (25_600, "25.6 K"), (512, "512")],
)
def test_counts_are_shown_as_people_say_them(count: int, expected: str) -> None:
    assert format_count(count) == expected
