"""Which records of which producer the end of a log holds, so that a repeated record is stored once.

Inside: the window. Not inside: filling it from the log (``window_reading``), the answer to a repeated record
(``owner``).
Always: every record of a producer at or after ``covers`` is in the window, and none that the log will not
have. A batch that fails ends the owner, and its window with it.

Source: our own; docs/shared.md, "Once".
"""

from __future__ import annotations

from collections import deque

from dlog.write.batcher import Batch
from namespace.dlsn import DLSN

Place = DLSN | tuple[Batch, int]
"""Where a record is: its position, or its batch with its slot there, as long as that is in flight."""
Entry = tuple[Place, int]
"""A record's place, and its ``repeat_checksum``."""

RECORDS_MAX = 20_000  # that a window holds


class ProducerWindow:
    """The records of producers at the end of a log, in its order."""

    def __init__(self, covers: DLSN, records_max: int = RECORDS_MAX) -> None:
        """``covers``: no record of a producer at or after it is missing here."""
        self.covers, self._records_max = covers, records_max
        self._entries: dict[str, dict[int, Entry]] = {}  # by producer and sequence number, in order
        self._order: deque[tuple[str, int]] = deque()

    def __repr__(self) -> str:
        what = f"{len(self._order)} records of {len(self._entries)} producers"
        return f"<ProducerWindow of {what} from {self.covers}>"

    def __len__(self) -> int:
        return len(self._order)

    def find(self, producer: str, sequence: int) -> Entry | None:
        """Where this record is; None if it is not in the window."""
        entries = self._entries.get(producer)
        return None if entries is None else entries.get(sequence)

    def bounds(self, producer: str) -> tuple[int, int]:
        """The first and the last sequence number of a producer in the window; -1 without one."""
        entries = self._entries.get(producer)
        return (-1, -1) if entries is None else (next(iter(entries)), next(reversed(entries)))

    def add(self, producer: str, sequence: int, place: Place, checksum: int) -> None:
        """Add the record that follows all others in the log."""
        entries = self._entries.setdefault(producer, {})
        if sequence in entries:
            return  # the first one counts
        entries[sequence] = place, checksum
        self._order.append((producer, sequence))
        while len(self._order) > self._records_max and self._forget_oldest():
            pass

    def _forget_oldest(self) -> bool:
        """False if the oldest record is in flight: it must be found if it is repeated."""
        producer, sequence = self._order[0]
        entries = self._entries[producer]
        place, _ = entries[sequence]
        if not isinstance(place, DLSN):
            batch, slot = place
            if batch.error is not None or not batch.is_settled:
                return False
            place = batch.dlsn(slot)
        self._order.popleft()
        del entries[sequence]
        if not entries:
            del self._entries[producer]
        self.covers = max(self.covers, place.next_slot())
        return True
