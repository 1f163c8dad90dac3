"""How many bytes the connections of a bookie may hold, each and all together.

Inside: the count, and the share of each connection. Not inside: the waits (``reply_queue``, ``connection``).
Always: the less memory is left, the smaller the share; a connection that holds less than ``share_bytes_min``
never waits for the others. Peers that do not read their replies can slow all connections, but stop none.

A share is half of the bytes that are left. If n connections take all they may, each has T / (n + 2), and two
shares stay free. All together hold at most T, and ``share_bytes_min`` for each connection.

Source: Choudhury and Hahne, dynamic queue length thresholds for shared-memory packet switches.
"""

from __future__ import annotations

from collections.abc import Callable

from bookie.errors import AccountingError

_TIGHT = 7 / 8  # of the whole
_CHUNKS = 1 / 4  # of the whole, if every connection has received a chunk and waits for its turn
_CHUNK_BYTES_MAX = 131_072


class SharedMemory:
    """The bytes that all connections hold together. On the loop."""

    def __init__(
        self,
        bytes_max: int,
        share_bytes_min: int,
        *,
        on_available: Callable[[], None] = lambda: None,
        on_tight: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            on_available: Called when the used bytes fall to ``bytes_max`` or below.
            on_tight: Called when the memory becomes tight.
        """
        assert 0 < share_bytes_min <= bytes_max  # by ``ServerConfig``'s validators
        self.bytes_max = bytes_max
        self.share_bytes_min = share_bytes_min
        self.used_bytes = 0
        self.used_bytes_peak = 0
        self.chunk_bytes_max = _CHUNK_BYTES_MAX
        self._tight_bytes = int(bytes_max * _TIGHT)
        self._on_available = on_available
        self._on_tight = on_tight

    def __repr__(self) -> str:
        return f"<SharedMemory, {self.used_bytes} of {self.bytes_max} bytes used>"

    def count_connections(self, count: int) -> None:
        """Set how many connections there are: of many, each receives less at once."""
        is_little = count * _CHUNK_BYTES_MAX <= self.bytes_max * _CHUNKS
        self.chunk_bytes_max = _CHUNK_BYTES_MAX if is_little else min(self.share_bytes_min, _CHUNK_BYTES_MAX)

    def take(self, size_bytes: int) -> None:
        """Count bytes. The caller checks the limit (``share_bytes``)."""
        self.used_bytes = used_bytes = self.used_bytes + size_bytes
        if used_bytes > self.used_bytes_peak:
            self.used_bytes_peak = used_bytes
        if used_bytes > self._tight_bytes >= used_bytes - size_bytes:
            self._on_tight()

    def give_back(self, size_bytes: int) -> None:
        if size_bytes > self.used_bytes:
            raise AccountingError(f"{size_bytes} bytes of replies given back of {self.used_bytes}")
        self.used_bytes = used_bytes = self.used_bytes - size_bytes
        if used_bytes <= self.bytes_max < used_bytes + size_bytes:
            self._on_available()

    @property
    def share_bytes(self) -> int:
        """How many bytes one connection may hold now."""
        half_bytes = (self.bytes_max - self.used_bytes) // 2
        return half_bytes if half_bytes > self.share_bytes_min else self.share_bytes_min

    @property
    def is_tight(self) -> bool:
        """True if a connection that holds much and makes no progress is in the way of the others."""
        return self.used_bytes > self._tight_bytes

    @property
    def is_exhausted(self) -> bool:
        return self.used_bytes > self.bytes_max
