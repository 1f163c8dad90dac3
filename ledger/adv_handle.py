"""The handle of a ledger whose entries come with ids that the caller chooses.

Inside: ids, gaps, room for what waits behind a gap. Not inside: the order (``entry_sequence``), writing
(``write_handle``).
Always: an entry is confirmed only when it and all before it are durable; an id is taken once.

Source: LedgerHandleAdv.java; reference section 5.10.
"""

from __future__ import annotations

from types import TracebackType

import trio

from ledger.entry_sequence import EntrySequence
from ledger.errors import DuplicateEntryIdError, LedgerError
from ledger.metadata import LedgerMetadata
from ledger.write_handle import WriteHandle


class AdvWriteHandle:
    """Adds entries to one ledger by their ids, which begin at 0 and may come in any order.

    Leaving ``async with`` closes the ledger in front of the first gap; leaving it by an exception only
    abandons it.
    """

    def __init__(self, handle: WriteHandle, *, bytes_waiting_max: int) -> None:
        """For the client: ``handle`` must be unused, and is used by nobody else."""
        self._handle = handle
        self._bytes_waiting_max = bytes_waiting_max
        self._sequence = EntrySequence()
        self._moved = trio.Event()
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
        """The last entry confirmed: it and all before it are durable. -1 if there is none."""
        return self._handle.lac

    @property
    def next_id(self) -> int:
        """The oldest entry that has not come yet; those after it wait."""
        return self._sequence.next_id

    def submit(self, entry_id: int, payload: bytes) -> None:
        """Take an entry. It is sent once all before it have come.

        Raises:
            ValueError: A negative id.
            DuplicateEntryIdError: An entry with this id was taken before.
            EntryTooLargeError: It was not taken.
            LedgerClosedError, LedgerFencedError, LedgerWriteError, WrongPasswordError: The handle has ended.
        """
        if entry_id < 0:
            raise ValueError(f"entry {entry_id}: ids begin at 0")
        if self._sequence.is_taken(entry_id):
            raise DuplicateEntryIdError(self.ledger_id, entry_id)
        self._handle.check_submit(payload)
        for ready in self._sequence.take(entry_id, payload):
            self._handle.submit(ready)
        if not self._sequence.waiting_count or self._sequence.next_id > entry_id:
            self._wake()

    async def wait_room(self, entry_id: int) -> None:
        """Return when there is room for this entry.

        Entries behind a gap take room until it is filled, so the entry that fills it never waits for them.
        """
        while True:
            await self._handle.wait_room()
            if entry_id <= self._sequence.next_id or self._sequence.waiting_bytes < self._bytes_waiting_max:
                return
            try:
                self._handle.check_submit(b"")
            except LedgerError:
                return  # ``submit`` tells why
            await self._moved.wait()

    async def wait_confirmed(self, entry_id: int) -> None:
        """Return once the entry, and every one before it, is durable on an ack quorum.

        An entry behind a gap waits for the gap to be filled. If cancelled, the entry may or may not become
        durable later; the handle stays usable. Raises what ``WriteHandle.wait_confirmed`` raises.
        """
        await self._handle.wait_confirmed(entry_id)

    async def append(self, entry_id: int, payload: bytes) -> None:
        """Write an entry; return once it and all before it are durable on an ack quorum.

        If cancelled, it may or may not be taken, and durable later. Raises what ``submit`` and
        ``wait_confirmed`` raise.
        """
        await self.wait_room(entry_id)
        self.submit(entry_id, payload)
        await self.wait_confirmed(entry_id)

    async def force(self) -> None:
        """Have all bookies sync what was acknowledged; see ``WriteHandle.force``."""
        await self._handle.force()

    async def write_explicit_lac(self) -> None:
        """Tell the bookies the LAC now; see ``WriteHandle.write_explicit_lac``."""
        await self._handle.write_explicit_lac()

    async def close(self) -> None:
        """Wait for what was sent, then close the ledger at the last confirmed entry.

        Entries behind a gap are not part of the ledger, and whoever waits for them is told so. Otherwise as
        ``WriteHandle.close``.
        """
        await self._handle.close()

    def abandon(self) -> None:
        """Stop without closing: pending entries fail, and a recovery will decide the ledger's end."""
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
        self._moved.set()
        self._moved = trio.Event()
