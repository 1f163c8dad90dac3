"""The kinds of values of settings: how a text or a value of TOML becomes the value, and how it is shown.

Inside: numbers, sizes, times, choices, names, files, sources of locations.
Not inside: the settings, and the places that values come from (``dlog.settings``, ``bookie.config``).
Always: no error quotes a value, because a secret may stand in the wrong place.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from ledger.placement.config import AnnouncedLocations, LocationSource, ScriptLocations, TableLocations

_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"([0-9]{1,15})([KMGT]?)(?:i?B)?")
_WHOLE = re.compile(r"-?[0-9]{1,15}")
_NUMBER = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,9})?")
_NUMBER_MAX = 10**15
WHOLE_MAX = 2**63 - 1

NONE = "none"  # the text for "no limit"


@attrs.frozen(eq=False)
class Kind:
    """The type of a setting.

    ``parse`` takes a text and the directory of relative file names, which is None if there is none. It raises
    ``ValueError`` without the text.
    """

    type_name: str
    expected: str  # completes "must be ..."
    parse: Callable[[str, Path | None], Any]
    toml_types: tuple[type, ...] = ()  # taken as they are, besides a text
    unit: str = ""
    is_optional: bool = False  # takes ``none``
    written: Callable[[Any], Any] = lambda value: value  # a value in the unit of a file

    def of_text(self, text: str, directory: Path | None) -> Any:
        """The value of a text.

        Raises:
            ValueError: It is none; the message says what is expected.
        """
        try:
            return self.parse(text.strip(), directory)
        except ValueError as exc:
            raise ValueError(f"must be {self.expected}{_reason(exc)}") from None

    def of_toml(self, value: object, directory: Path | None) -> Any:
        """The value of a value in TOML. Raises ``ValueError`` as ``of_text``."""
        if type(value) in self.toml_types:
            if isinstance(value, int | float) and not abs(value) < _NUMBER_MAX:  # also NaN
                raise ValueError(f"must be {self.expected}")
            return value
        if (
            isinstance(value, list)
            and tuple in self.toml_types
            and all(isinstance(one, str) for one in value)
        ):
            return tuple(value)
        if isinstance(value, str):
            return self.of_text(value, directory)
        raise ValueError(f"must be {self.expected}")


def _reason(error: ValueError) -> str:
    # Only our own reasons: those of ``int`` and others quote the text.
    return f": {error}" if isinstance(error, _PlainError) else ""


class _PlainError(ValueError):
    """An error whose message quotes no value."""


def _matched(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    if (found := pattern.fullmatch(text)) is None:
        raise ValueError
    return found


def _size(text: str, _: Path | None) -> int:
    found = _matched(_SIZE, text)
    return int(found[1]) * _BYTES[found[2]]


def _text(text: str, _: Path | None) -> str:
    if not text or not text.isprintable():
        raise ValueError
    return text


def _names(text: str, _: Path | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _file(text: str, directory: Path | None) -> Path:
    if not text or not text.isprintable():
        raise ValueError
    path = Path(text)
    if directory is None and not path.is_absolute():
        raise _PlainError("it must be absolute here")
    return path if directory is None else directory / path


def _locations(text: str, directory: Path | None) -> LocationSource:
    name, _, path = text.partition(":")
    if name == "announced" and not path:
        return AnnouncedLocations()
    if name == "script":
        return ScriptLocations(path=_file(path, directory))
    if name == "table":
        return TableLocations(path=_file(path, directory))
    raise ValueError


def _no_text(text: str, _: Path | None) -> Mapping[str, str]:
    raise _PlainError("it can be set in a file only")


def choice(values: Mapping[str, Any]) -> Kind:
    """A kind with named values. Upper and lower case are the same."""
    by_lower = {name.lower(): value for name, value in values.items()}

    def parse(text: str, _: Path | None) -> Any:
        try:
            return by_lower[text.lower()]
        except KeyError:
            raise ValueError from None

    names = list(values)
    return Kind(", ".join(names[:-1]) + f" or {names[-1]}", f"one of {', '.join(names)}", parse)


def switch(true: str, false: str) -> Kind:
    """True or false, by these words for each."""
    kind = choice(dict.fromkeys(true.split(), True) | dict.fromkeys(false.split(), False))
    return attrs.evolve(kind, type_name="bool", expected="true or false", toml_types=(bool,))


TEXT = Kind("text", "a text of printable characters", _text)
BOOL = switch("true yes 1", "false no 0")
COUNT = Kind("whole number", "a whole number", lambda text, _: int(_matched(_WHOLE, text)[0]), (int,))
BYTES = Kind("size", "bytes, or a number with K, M, G or T, such as 64M", _size, (int,), "bytes")
_as_float: Callable[[str, Path | None], float] = lambda text, _: float(_matched(_NUMBER, text)[0])  # noqa: E731
SECONDS = Kind("number", "a number of seconds", _as_float, (int, float), "seconds")
MILLISECONDS = Kind("number", "a number of milliseconds", _as_float, (int, float), "milliseconds")
WHOLE_MILLISECONDS = attrs.evolve(COUNT, expected="a whole number of milliseconds", unit="milliseconds")
NUMBER = Kind("number", "a number", _as_float, (int, float))
FILE = Kind("file", "the name of a file", _file)
NAMES = Kind("names", "names, separated by commas", _names, (tuple,))
TABLE = Kind("table of texts", "a table of texts", _no_text, (dict,))
LOCATIONS = Kind("source of locations", "announced, script:FILE or table:FILE", _locations)


def whole(
    least: int = 0,
    most: int = WHOLE_MAX,
    unit: str = "",
    *,
    value: Callable[[int], Any] = int,
    written: Callable[[Any], Any] = lambda value: value,
) -> Kind:
    """A whole number within bounds, as Java takes it.

    Args:
        value: Makes the value of the number, such as seconds of milliseconds. ``written`` is the way back.
    """

    def parse(text: str, _: Path | None) -> Any:
        if not least <= (number := int(text)) <= most:
            raise ValueError
        return value(number)

    span = f"from {least} to {most}" if most < 2**31 - 1 else f"of at least {least}"
    expected = f"a whole number {span}" + (f", in {unit}" if unit else "")
    return Kind("whole number", expected, parse, (int,), unit, written=written)


def whole_choice(*values: int) -> Kind:
    """A kind with some whole numbers."""
    kind = choice({str(value): value for value in values})
    return attrs.evolve(kind, toml_types=(int,))


def optional(kind: Kind) -> Kind:
    """The kind, or ``none`` for no limit."""

    def parse(text: str, directory: Path | None) -> Any:
        return None if text.lower() == NONE else kind.parse(text, directory)

    return attrs.evolve(
        kind,
        type_name=f"{kind.type_name}, or none",
        expected=f'{kind.expected}, or "none"',
        parse=parse,
        is_optional=True,
    )


def shown(value: object) -> str | int | float | bool | list[str] | dict[str, str] | None:
    """A value in a form for people and for JSON, close to the form in a file.

    The values of a table are hidden: they are the settings of a plug-in and may be secrets.
    """
    match value:
        case None | bool() | int() | float() | str():
            return value
        case enum.Enum():
            return value.value if isinstance(value.value, str) else value.name.lower()
        case AnnouncedLocations():
            return "announced"
        case ScriptLocations():
            return f"script:{value.path}"
        case TableLocations():
            return f"table:{value.path}"
        case Path():
            return str(value)
        case tuple() | frozenset():
            return sorted(map(str, value))
        case Mapping():
            return {str(key): "***" for key in value}
        case _:
            return f"({type(value).__name__})"  # an object of the program, such as a provider of keys
