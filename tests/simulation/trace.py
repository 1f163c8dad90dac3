"""The course of a world as lines of text and as one hash.

Inside: ``Trace``. Not inside: the content of the lines.
Always: the hash covers every line and every mark, also those that are not kept. Equal hashes mean equal runs,
down to the bytes of every message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from struct import Struct

LINES_MAX = 200_000
_MARK = Struct("<4sdQI")


class Trace:
    """Collects lines and marks while a world runs."""

    def __init__(self, now: Callable[[], float], *, keep: bool) -> None:
        """``keep``: keep lines and details for reading; otherwise only the hash is made."""
        self.keep = keep
        self.lines: list[str] = []
        self._now = now
        self._hash = hashlib.blake2b(digest_size=16)

    def note(self, source: str, text: str) -> None:
        """Add a line: the part of the world that it comes from, and the text."""
        line = f"{self._now():11.4f}  {source:<12} {text}"
        self._hash.update(line.encode())
        if self.keep and len(self.lines) < LINES_MAX:
            self.lines.append(line)

    def mark(self, kind: bytes, number: int, checksum: int) -> None:
        """Add something frequent, such as a message, to the hash; it has no line."""
        self._hash.update(_MARK.pack(kind, self._now(), number, checksum))

    def detail(self, source: str, text: str) -> None:
        """Add a line for reading that is not in the hash. Callers make its text only if ``keep``."""
        if self.keep and len(self.lines) < LINES_MAX:
            self.lines.append(f"{self._now():11.4f}  {source:<12}   {text}")

    @property
    def digest(self) -> str:
        """The hash so far."""
        return self._hash.hexdigest()
