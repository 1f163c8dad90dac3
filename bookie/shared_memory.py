"""How many bytes the connections of a bookie may hold, each and all together.

Inside: the count, and the share that falls to each connection. Not inside: who waits for what (``outbox``,
``server``).
Always: the less is left, the smaller the share; a connection that holds less than ``share_bytes_min`` is
never kept waiting by the others: peers that do not read their answers can slow everybody, but stop nobody.

A share is half of what is left: of n connections that take all they may get, each has T / (n + 2), and two
shares stay free. All together hold at most T, and ``share_bytes_min`` for each connection.

Source: Choudhury and Hahne, dynamic queue length thresholds for shared-memory packet switches.
"""

from __future__ import annotations

from collections.abc import Callable

_TIGHT = 7 / 8  # of the whole


class SharedMemory:
    """What all connections hold together. On the loop."""

    def __init__(
        self,
        bytes_max: int,
        share_bytes_min: int,
        *,
        on_room: Callable[[], None] = lambda: None,
        on_tight: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_room`` is called when they no longer hold more than ``bytes_max``; ``on_tight``, when it has
        become tight.
        """
        assert 0 < share_bytes_min <= bytes_max
        self.bytes_max = bytes_max
        self.share_bytes_min = share_bytes_min
        self.used_bytes = 0
        self.used_bytes_peak = 0
        self._tight_bytes = int(bytes_max * _TIGHT)
        self._on_room = on_room
        self._on_tight = on_tight

    def __repr__(self) -> str:
        return f"<SharedMemory, {self.used_bytes} of {self.bytes_max} bytes used>"

    def take(self, size_bytes: int) -> None:
        """Count bytes. What may not be taken is the caller's to know (``share_bytes``)."""
        self.used_bytes = used_bytes = self.used_bytes + size_bytes
        if used_bytes > self.used_bytes_peak:
            self.used_bytes_peak = used_bytes
        if used_bytes > self._tight_bytes >= used_bytes - size_bytes:
            self._on_tight()

    def give_back(self, size_bytes: int) -> None:
        assert size_bytes <= self.used_bytes, f"{size_bytes} given back of {self.used_bytes}"
        self.used_bytes = used_bytes = self.used_bytes - size_bytes
        if used_bytes <= self.bytes_max < used_bytes + size_bytes:
            self._on_room()

    @property
    def share_bytes(self) -> int:
        """What one connection may hold now."""
        half_bytes = (self.bytes_max - self.used_bytes) // 2
        return half_bytes if half_bytes > self.share_bytes_min else self.share_bytes_min

    @property
    def is_tight(self) -> bool:
        """Who holds much and moves nothing is in the way of the others."""
        return self.used_bytes > self._tight_bytes

    @property
    def is_exhausted(self) -> bool:
        return self.used_bytes > self.bytes_max
