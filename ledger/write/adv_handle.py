"""The handle of a ledger whose caller chooses the ids of its entries.

Inside: ids, gaps, the bound of entries that wait after a gap. Not inside: the order (``entry_sequence``),
writing (``write.handle``).
Always: an entry is confirmed only when it and all before it are durable; each id is accepted once.

Source: LedgerHandleAdv.java; docs/protocol.md 5.10.
"""

from __future__ import annotations

import operator
from types import TracebackType

import trio

from ledger.errors import DuplicateEntryIdError, LedgerError
from ledger.metadata import LedgerMetadata
from ledger.payloads import as_payload
from ledger.pickling import ProcessBound
from ledger.write.entry_sequence import EntrySequence
from ledger.write.handle import WriteHandle


class AdvWriteHandle(ProcessBound):
    """Adds entries to one ledger by their ids, which begin at 0 and may come in any order.

    Leaving ``async with`` closes the ledger before the first gap. Leaving it by an exception abandons it.
    """

    def __init__(self, handle: WriteHandle, *, bytes_waiting_max: int) -> None:
        """For the client: ``handle`` must be unused, and used only here."""
        self._handle = handle
        self._bytes_waiting_max = bytes_waiting_max
        self._sequence = EntrySequence()
        self._gap_filled = trio.Event()  # set, and replaced, when a gap is filled, and at the end
        handle.on_confirmed(self._on_confirmed)

    def __repr__(self) -> str:
        sequence = self._sequence
        waiting = f", {sequence.waiting_count} waiting for entry {sequence.next_id}"
        return f"<AdvWriteHandle {self._handle!r}{waiting if sequence.waiting_count else ''}>"

    @property
    def ledger_id(self) -> int:
        """The ledger's id."""
        return self._handle.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this writer last read or wrote it."""
        return self._handle.metadata

    @property
    def lac(self) -> int:
        """The last confirmed entry: it and all before it are durable. -1 if there is none."""
        return self._handle.lac

    @property
    def next_id(self) -> int:
        """The oldest entry that was not submitted yet; later ones wait for it."""
        return self._sequence.next_id

    def submit(self, entry_id: int, payload: bytes) -> None:
        """Take an entry. It is sent once all entries before it were submitted.

        Raises:
            ValueError: The id is negative.
            TypeError: The id is no integer, or the payload no buffer.
            DuplicateEntryIdError: An entry with this id was submitted before.
            EntryTooLargeError: The entry was not taken.
            LedgerClosedError, LedgerFencedError, LedgerWriteError, AccessDeniedError: The handle has ended.
        """
        entry_id, payload = operator.index(entry_id), as_payload(payload)
        if entry_id < 0:
            raise ValueError(f"entry {entry_id}: ids begin at 0")
        if self._sequence.is_taken(entry_id):
            raise DuplicateEntryIdError(self.ledger_id, entry_id)
        self._handle.check_submit(payload)
        for ready in self._sequence.take(entry_id, payload):
            self._handle.submit(ready)
        if not self._sequence.waiting_count or self._sequence.next_id > entry_id:
            self._wake()

    async def wait_capacity(self, entry_id: int) -> None:
        """Return when there is capacity for this entry, or when the handle has ended.

        Entries after a gap use capacity until it is filled, so the entry that fills it never waits for them.
        """
        while True:
            await self._handle.wait_capacity()
            if entry_id <= self._sequence.next_id or self._sequence.waiting_bytes < self._bytes_waiting_max:
                return
            try:
                self._handle.check_submit(b"")
            except LedgerError:
                return  # ``submit`` raises it
            await self._gap_filled.wait()

    async def wait_confirmed(self, entry_id: int) -> None:
        """Return once the entry, and every one before it, is durable on an ack quorum.

        An entry after a gap waits until the gap is filled. If cancelled, the entry may or may not become
        durable later; the handle stays usable. Raises what ``WriteHandle.wait_confirmed`` raises.
        """
        await self._handle.wait_confirmed(entry_id)

    async def append(self, entry_id: int, payload: bytes) -> None:
        """Write an entry; return once it and all before it are durable on an ack quorum.

        If cancelled, the entry may or may not be taken, and may become durable later. Raises what ``submit``
        and ``wait_confirmed`` raise.
        """
        await self.wait_capacity(entry_id)
        self.submit(entry_id, payload)
        await self.wait_confirmed(entry_id)

    async def force(self) -> None:
        """Have all bookies sync the acknowledged entries; see ``WriteHandle.force``."""
        await self._handle.force()

    async def write_explicit_lac(self) -> None:
        """Send the LAC to bookies now; see ``WriteHandle.write_explicit_lac``."""
        await self._handle.write_explicit_lac()

    async def close(self) -> None:
        """Wait for the sent entries, then close the ledger at the last confirmed entry.

        Entries after a gap are not part of the ledger; a caller that waits for one gets
        ``LedgerClosedError``. Otherwise as ``WriteHandle.close``.
        """
        await self._handle.close()

    def abandon(self) -> None:
        """End the handle without closing: pending entries fail, and a recovery decides the ledger's end."""
        self._handle.abandon()

    async def __aenter__(self) -> AdvWriteHandle:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if exc_type is None:
            await self.close()
        else:
            self.abandon()

    def _on_confirmed(self, lac: int, error: BaseException | None) -> None:
        if error is not None:
            self._wake()

    def _wake(self) -> None:
        self._gap_filled.set()
        self._gap_filled = trio.Event()
