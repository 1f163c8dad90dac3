"""What happened, as lines to read and as one hash.

Inside: ``Trace``. Not inside: what the lines mean.
Always: the hash covers every line and every mark, kept or not; equal hashes mean equal runs, to the byte of
every message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from struct import Struct

LINES_MAX = 200_000
_MARK = Struct("<4sdQI")


class Trace:
    """Grows while the world plays."""

    def __init__(self, now: Callable[[], float], *, keep: bool) -> None:
        """``keep``: lines and details are wanted for reading, not only their hash."""
        self.keep = keep
        self.lines: list[str] = []
        self._now = now
        self._hash = hashlib.blake2b(digest_size=16)

    def note(self, who: str, what: str) -> None:
        """Something worth a line."""
        line = f"{self._now():11.4f}  {who:<12} {what}"
        self._hash.update(line.encode())
        if self.keep and len(self.lines) < LINES_MAX:
            self.lines.append(line)

    def mark(self, kind: bytes, number: int, checksum: int) -> None:
        """One of very many things: only for the hash."""
        self._hash.update(_MARK.pack(kind, self._now(), number, checksum))

    def detail(self, who: str, what: str) -> None:
        """A line for a reader: to be made only if ``keep``. It is no part of the hash."""
        if self.keep and len(self.lines) < LINES_MAX:
            self.lines.append(f"{self._now():11.4f}  {who:<12}   {what}")

    @property
    def digest(self) -> str:
        """The hash so far."""
        return self._hash.hexdigest()
