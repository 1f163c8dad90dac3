r"""Java's properties files, as Apache's configuration reader parses them.

```
# comment          ! comment
key = value        key: value        key value
list = one, two\, still two, three
long = begins here, \
       goes on here
path = ${home}/data          ${env:HOME} is taken from the environment
odd\ key = tab \t, accent \u00e9
```

Inside: parsing lines to keys with their values and line numbers. Not inside: the known keys and their meaning
(``config.keys``, ``config``).
Always: a key that is set twice keeps all of its values, in order; as a single value, the first one counts. No
error quotes a value of the environment, which may be a secret.

Source: java.util.Properties.load; Commons Configuration, PropertiesConfiguration (lists, interpolation).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import attrs

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_KEY_END = re.compile(r"(?<!\\)(?:\\\\)*([=:\s])")
_REFERENCE = re.compile(r"\$\{([^${}]*)\}")
_REFERENCES_MAX = 100  # in one value; more than that must be a circle


class PropertiesError(ValueError):
    """A line does not parse; the message names it."""


@attrs.frozen
class FileSetting:
    """The values of one key."""

    values: tuple[str, ...] = attrs.field(repr=False)  # may be a password
    line: int  # 1-based; the first line that sets it
    set_count: int = 1
    # As in the file, if a value is taken from the environment.
    written: tuple[str, ...] | None = attrs.field(default=None, repr=False)

    @property
    def first(self) -> str:
        return self.values[0] if self.values else ""


def parse_properties(text: str, environment: Mapping[str, str] | None = None) -> dict[str, FileSetting]:
    """Parse a file; the keys are in the order of the file.

    Args:
        environment: The values for ``${env:NAME}``.

    Raises:
        PropertiesError: An escape does not parse, or a reference names no value.
    """
    raw: dict[str, list[tuple[int, str]]] = {}
    for line, content in _logical_lines(text):
        found = _KEY_END.search(content)
        if found is None:
            key, value = content, ""
        else:
            key, value = content[: found.start(1)], content[found.start(1) :].lstrip()
            if value[:1] in ("=", ":"):
                value = value[1:].lstrip()
        raw.setdefault(_unescape(key, line), []).append((line, value))
    settings = {}
    for key, assignments in raw.items():
        values: list[str] = []
        written: list[str] = []
        is_from_environment = False
        for line, value in assignments:
            for part in _split(value):
                resolved, uses_environment = _resolve(part, line, raw, environment or {})
                values.append(_unescape(resolved, line))
                written.append(part)
                is_from_environment |= uses_environment
        settings[key] = FileSetting(
            tuple(values),
            assignments[0][0],
            len(assignments),
            tuple(written) if is_from_environment else None,
        )
    return settings


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines with their numbers, continuations joined, comments left out."""
    begun: list[str] = []
    first = 0
    for number, line in enumerate(text.splitlines(), 1):
        content = line.strip()
        if not begun:
            if not content or content[0] in "#!":
                continue
            first = number
        backslashes = len(content) - len(content.rstrip("\\"))
        if backslashes % 2:
            begun.append(content[:-1])
            continue
        yield first, "".join((*begun, content))
        begun.clear()
    if begun:
        yield first, "".join(begun)


def _split(value: str) -> list[str]:
    """The parts of a comma list without the blank ones; a comma after a backslash does not separate."""
    parts = [""]
    position = 0
    while position < len(value):
        if value[position] == "\\" and position + 1 < len(value):
            parts[-1] += value[position : position + 2]
            position += 2
            continue
        if value[position] == ",":
            parts.append("")
        else:
            parts[-1] += value[position]
        position += 1
    return [part.strip() for part in parts if part.strip()]


def _resolve(
    value: str, line: int, raw: dict[str, list[tuple[int, str]]], environment: Mapping[str, str]
) -> tuple[str, bool]:
    """The value, and whether a part of it is taken from the environment."""
    written, uses_environment = value, False
    for _ in range(_REFERENCES_MAX):
        found = _REFERENCE.search(value)
        if found is None:
            return value, uses_environment
        name = found[1]
        if name.startswith("env:"):
            uses_environment = True
            replacement = environment.get(name[4:])
            if replacement is not None:
                replacement = replacement.replace("\\", "\\\\")
        else:
            replacement = raw[name][0][1] if name in raw else None
        if replacement is None:
            raise PropertiesError(f"line {line}: ${{{name}}} refers to a key that is not set")
        value = value[: found.start()] + replacement + value[found.end() :]
    raise PropertiesError(f"line {line}: references go in a circle: {written[:100]}")


def _unescape(text: str, line: int) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\" or position == len(text):
            out.append(character)
            continue
        escaped = text[position]
        position += 1
        if escaped == "u":
            digits = text[position : position + 4]
            if not re.fullmatch("[0-9a-fA-F]{4}", digits):
                raise PropertiesError(f"line {line}: \\u must be followed by four hexadecimal digits")
            out.append(chr(int(digits, 16)))
            position += 4
        else:
            out.append(_ESCAPES.get(escaped, escaped))
    # Java writes characters beyond 16 bits as two escapes.
    return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
