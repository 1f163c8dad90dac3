"""Ages and sizes as people give them on a command line."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_age(text: str) -> datetime.timedelta:
    """An age such as ``36h`` or ``7d``.

    Raises:
        ValueError: The text is none.
    """
    found = re.fullmatch(r"(\d{1,9})([smhdw])", text)
    if found is None or int(found[1]) == 0:
        raise ValueError(f"{text!r} is no age; give a number with s, m, h, d or w, such as 7d")
    try:
        return datetime.timedelta(seconds=int(found[1]) * _SECONDS[found[2]])
    except OverflowError:
        raise ValueError(f"{text!r} is longer than {datetime.timedelta.max.days}d") from None


def parse_size(text: str) -> int:
    """Bytes of a size such as ``50GiB`` or ``50G`` (powers of 1,024).

    Raises:
        ValueError: The text is none.
    """
    found = re.fullmatch(r"(\d{1,12})([KMGT]?)(?:i?B)?", text)
    if found is None or int(found[1]) == 0:
        raise ValueError(f"{text!r} is no size; give bytes, or a number with K, M, G or T, such as 50G")
    return int(found[1]) * _BYTES[found[2]]


def age_text(seconds: float) -> str:
    """An age in the largest unit up to days that divides it, as `--age` takes it if the seconds are whole."""
    if not float(seconds).is_integer():
        return f"{seconds:g}s"
    return _in_units(int(seconds), {unit: _SECONDS[unit] for unit in "smhd"})


def size_text(size_bytes: int) -> str:
    """A size as `--size` takes it, in the largest unit that divides it, such as ``50GiB``."""
    text = _in_units(size_bytes, _BYTES)
    return f"{text}B" if text.isdecimal() else f"{text}iB"  # made from a number


def _in_units(number: int, units: Mapping[str, int]) -> str:
    unit = max((unit for unit in units if number % units[unit] == 0), key=lambda unit: units[unit])
    return f"{number // units[unit]}{unit}"
