"""Sizes as people write them, in and out. Inside trainfit a size is always an integer number of bytes.

A size needs a unit, because "80" means 80 GB to some and 80 GiB to others, and the two differ by 7%.
"""

from __future__ import annotations

import re
from fractions import Fraction

from trainfit.errors import BadSize

_UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+|%)?")
_EXAMPLES = "write 72GiB, 80GB, 512MiB or 90%"


def parse_bytes(text: str, *, of_bytes: int) -> int:
    """The bytes of "72GiB", "80GB", "512MiB", or of "90%" of `of_bytes`; fractions of a byte are dropped."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise BadSize(f"{text!r} is not a size", hint=_EXAMPLES)
    number, unit = Fraction(match[1]), match[2]
    if unit is None:
        raise BadSize(f"the size {text!r} has no unit", hint=f"{_EXAMPLES}; {match[1]} alone could be any of them")
    if unit == "%":
        if number > 100:
            raise BadSize(f"{text!r} is more than the whole GPU", hint=_EXAMPLES)
        nbytes = int(number * of_bytes / 100)
    elif unit.upper() in _UNITS:
        nbytes = int(number * _UNITS[unit.upper()])
    else:
        raise BadSize(f"the size {text!r} has the unknown unit {unit!r}", hint=_EXAMPLES)
    if nbytes == 0:
        raise BadSize(f"the size {text!r} is zero", hint=_EXAMPLES)
    return nbytes


def format_bytes(nbytes: int) -> str:
    """One decimal in the largest of KiB, MiB and GiB that fits: "33.6 GiB", "64.0 MiB", "2.0 KiB", "512 B"."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes} B"


def format_mebibytes(nbytes: int) -> str:
    """In MiB with one decimal, where small differences matter: "28692.0 MiB"."""
    return f"{nbytes / 2**20:.1f} MiB"


def format_count(count: int) -> str:
    """A count as people say it: "8.03 B", "124.4 M", "25.6 K", "512"."""
    if count >= 10**9:
        return f"{count / 10**9:.2f} B"
    if count >= 10**6:
        return f"{count / 10**6:.1f} M"
    if count >= 10**3:
        return f"{count / 10**3:.1f} K"
    return str(count)
