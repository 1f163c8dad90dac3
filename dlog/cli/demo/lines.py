"""The input of the demo: a file of lines, or text that every Python installation carries."""

from __future__ import annotations

import sysconfig
from array import array
from collections.abc import Iterator
from pathlib import Path

import attrs

DEFAULT_LINES_MIN = 100_000


class DemoInputError(Exception):
    """The input has too few lines to kill anybody half way."""


@attrs.frozen(repr=False)
class Lines:
    """A file's lines, numbered from 1, without their ends; and what to recognise each by."""

    file: Path
    prints: array[int]  # prints[n - 1] recognises line n; good within this process only
    size_bytes: int

    def __len__(self) -> int:
        return len(self.prints)


def fingerprint(line: bytes) -> int:
    """64 bits of a line: enough to tell a changed record from its original."""
    return hash(line)


def read_lines(file: Path) -> Iterator[bytes]:
    """The lines of a file without their ends; a last one without an end is a line."""
    with file.open("rb") as source:
        for line in source:
            yield line.removesuffix(b"\n")


def survey(file: Path) -> Lines:
    """Go through a file once.

    Raises:
        DemoInputError: Fewer than two lines.
        OSError: It cannot be read.
    """
    prints, size_bytes = array("q"), 0
    for line in read_lines(file):
        prints.append(fingerprint(line))
        size_bytes += len(line)
    if len(prints) < 2:
        raise DemoInputError(
            f"{file}: {len(prints)} lines; at least 2 are needed to kill the writer between them"
        )
    return Lines(file, prints, size_bytes)


def write_default_lines(target: Path, *, lines_min: int = DEFAULT_LINES_MIN) -> None:
    """Fill a file with the source text of Python's own library, whole modules in the order of their names."""
    library = Path(sysconfig.get_path("stdlib"))
    count = 0
    with target.open("wb") as output:
        for source in sorted(library.rglob("*.py")):
            if "site-packages" in source.parts or "dist-packages" in source.parts:
                continue
            text = source.read_bytes()
            text += b"" if text.endswith(b"\n") or not text else b"\n"
            output.write(text)
            count += text.count(b"\n")
            if count >= lines_min:
                return
    raise DemoInputError(f"{library} holds only {count} lines of Python; name a FILE")
