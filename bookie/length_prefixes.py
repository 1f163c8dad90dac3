"""The 4-byte length before each record of a journal and of an entry log, cached in packed form.

Inside: a bounded cache. Not inside: the records (``journal.format``, ``entrylog.format``).
"""

from __future__ import annotations

from struct import Struct

LENGTH = Struct(">i")
_PREFIXES_MAX = 4096


class LengthPrefixes(dict[int, bytes]):
    """Length -> its 4 bytes. A cache helps because entries of one writer mostly have one length."""

    def __missing__(self, length: int) -> bytes:
        if len(self) >= _PREFIXES_MAX:
            self.clear()
        prefix = self[length] = LENGTH.pack(length)
        return prefix
