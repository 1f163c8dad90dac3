"""The handle of a ledger being written: what its one writer holds.

Inside: taking entries, what each call promises, when an idle or late writer acts by itself, closing in order.
Not inside: what becomes of entries on their way (``pending_adds``), counting acknowledgements (``writer``),
failing bookies (``repair``), bytes (``wire``), the end in the metadata (``closing``).
Always: a caller learns of entries in their order; once the handle has ended, every later call raises why.

Source: LedgerHandle.java; reference sections 5.3, 5.5, 5.9, 5.11 to 5.13; lessons rows 1, 22, 48, 52.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

import trio

from ledger.catalog import Versioned
from ledger.closing import close_at
from ledger.cluster import Cluster
from ledger.deferred_sync import Durable, pack_with_durable_lac
from ledger.digest import EntryCodec
from ledger.errors import (
    EntryTooLargeError,
    LedgerClosedError,
    LedgerError,
    LedgerWriteError,
)
from ledger.explicit_lac import tell_lac, tell_when_idle
from ledger.metadata import LedgerMetadata
from ledger.overdue import TICKS, Overdue
from ledger.pending_adds import PendingAdds
from ledger.wire import v2, v3
from ledger.writer import LedgerWriter

logger = logging.getLogger(__name__)

FRAME_OVERHEAD_BYTES_MAX = 128  # of an add or a read answer, whichever version, without digest and header
YIELD_AFTER_ENTRIES = 256  # so that sockets see the first entries while a caller still makes the next


class WriteHandle:
    """Adds entries to one ledger; the only one that may.

    Leaving ``async with`` closes the ledger; leaving it by an exception only abandons it, for a recovery to
    decide its end.
    """

    def __init__(
        self,
        current: Versioned,
        codec: EntryCodec,
        cluster: Cluster,
        nursery: trio.Nursery,
        *,
        deferred_sync: bool = False,
        connections: Mapping[str, int | None] | None = None,
    ) -> None:
        """For the client.

        Args:
            connections: What ``Transport.connection_to`` told of the bookies before the metadata was written.
        """
        metadata, config = current.metadata, cluster.config
        self.ledger_id = current.ledger_id
        spans = cluster.placer.spans(metadata.write_quorum)
        self._depends_on_places = spans is not None
        self._durable = durable = Durable() if deferred_sync else None
        add_version = 3 if deferred_sync else config.transport.add_version
        encoder: v2.AddEncoder | v3.AddEncoder = (
            v2.AddEncoder(current.ledger_id, codec)
            if add_version == 2
            else v3.AddEncoder(current.ledger_id, codec, deferred_sync=deferred_sync)
        )
        self._writer = LedgerWriter(
            metadata.last_ensemble.bookies,
            write_quorum=metadata.write_quorum,
            ack_quorum=metadata.ack_quorum,
            pack=encoder.encode if durable is None else pack_with_durable_lac(encoder.encode, durable),
            spans=spans,
        )
        self._append = self._writer.append
        self._codec, self._config = codec, config
        self._transport, self._catalog, self._nursery = cluster.transport, cluster.catalog, nursery
        self._payload_bytes_max = (
            config.transport.frame_bytes_max - FRAME_OVERHEAD_BYTES_MAX - codec.overhead_bytes
        )
        self._adds = PendingAdds(
            self._writer,
            current,
            cluster,
            nursery,
            add_version=add_version,
            durable=durable,
            connections=connections or {},
            ended=self._stop_accepting,
        )
        self._has_room = self._adds.has_room
        self._repair = self._adds.repair
        self._is_accepting = True
        self._is_closed = False
        self._close_lock = trio.Lock()

    def __repr__(self) -> str:
        if self._is_closed:
            state = "closed"
        elif self._adds.make_error is not None:
            state = f"ended: {self._adds.error()}"
        else:
            state = "open" if self._is_accepting else "closing"
        return (
            f"<WriteHandle ledger {self.ledger_id} {state}, confirmed {self.lac}, pushed {self.last_pushed},"
            f" on {', '.join(self._writer.ensemble)}>"
        )

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this writer last read or wrote it."""
        return self._repair.current.metadata

    @property
    def lac(self) -> int:
        """The last entry confirmed: it and all before it are durable. -1 if there is none."""
        return self._adds.lac

    @property
    def last_pushed(self) -> int:
        """The last entry submitted; those after ``lac`` are pending."""
        return self._writer.last_pushed

    @property
    def length_bytes(self) -> int:
        """Payload bytes submitted so far."""
        return self._writer.length_bytes

    @property
    def bytes_in_flight(self) -> int:
        """Encoded bytes of entries that some replica has not answered yet."""
        return self._writer.bytes_in_flight

    def submit(self, payload: bytes) -> int:
        """Take an entry to be written; return its id at once.

        It is sent when the caller next waits for anything. Use ``wait_room`` to keep memory bounded.

        Raises:
            EntryTooLargeError: Nothing was taken.
            LedgerClosedError, LedgerFencedError, LedgerWriteError, WrongPasswordError: The handle has ended.
        """
        if not self._is_accepting or len(payload) > self._payload_bytes_max:
            self.check_submit(payload)
        entry_id = self._append(payload)
        if self._writer.unsent_count == 1:
            self._adds.submitted.set()
        return entry_id

    def check_submit(self, payload: bytes) -> None:
        """Raise what ``submit`` would raise, and take nothing."""
        if not self._is_accepting:
            raise self._adds.error()
        if len(payload) > self._payload_bytes_max:
            raise EntryTooLargeError(len(payload), self._payload_bytes_max)

    async def wait_room(self) -> None:
        """Return when the entries in flight leave room for more.

        With room it returns without giving way to other tasks, except every few hundred entries.
        """
        if self._has_room():
            if self._writer.unsent_count >= YIELD_AFTER_ENTRIES:
                self._adds.flush()
                await trio.lowlevel.checkpoint()
            return
        await self._adds.wait_room()

    async def wait_confirmed(self, entry_id: int) -> None:
        """Return once the entry, and every one before it, is durable on an ack quorum.

        With deferred sync: once an ack quorum has taken it; ``force`` makes it durable. An entry that was not
        submitted yet is waited for too. If cancelled, the entry may or may not become durable later; the
        handle stays usable.

        Raises:
            LedgerFencedError: Somebody else recovers the ledger; whether it keeps the entry, its end tells.
            LedgerWriteError: No ack quorum could be reached; a later recovery may or may not find the entry.
            LedgerClosedError: The ledger was closed without it.
            WrongPasswordError: A bookie holds the ledger under another key.
        """
        if entry_id <= self._writer.lac:
            await trio.lowlevel.checkpoint()
            return
        await self._adds.wait(entry_id)
        if entry_id > self._writer.lac:
            raise self._adds.error()

    def on_confirmed(self, callback: Callable[[int, BaseException | None], None]) -> None:
        """Have ``callback(lac, None)`` called whenever the LAC grew, and ``callback(lac, error)`` at the end.

        It runs on the loop, must not block or raise, and is called once for a run of entries.
        """
        self._adds.callbacks.append(callback)

    async def append(self, payload: bytes) -> int:
        """Write one entry; return its id once an ack quorum holds it and all before it.

        If cancelled, the entry may or may not become durable later; the handle stays usable.
        Raises what ``submit`` and ``wait_confirmed`` raise.
        """
        if not self._has_room():
            await self.wait_room()
        entry_id = self.submit(payload)
        await self.wait_confirmed(entry_id)
        return entry_id

    async def append_many(self, payloads: Sequence[bytes]) -> range:
        """Write entries one after the other, pipelined; return their ids once all are durable.

        If cancelled or failed, any number of them, from the first on, may become durable later.
        """
        first = self._writer.last_pushed + 1
        last = first - 1
        for payload in payloads:
            await self.wait_room()
            last = self.submit(payload)
        if last >= first:
            await self.wait_confirmed(last)
        return range(first, last + 1)

    async def write_explicit_lac(self) -> None:
        """Tell the bookies the LAC now, instead of with the next entry, so that readers may go on.

        If cancelled, some bookies may know it. Does nothing while nothing is confirmed.

        Raises:
            LedgerWriteError: Fewer than an ack quorum took it. Nothing is lost: the next entry carries it.
        """
        await trio.lowlevel.checkpoint()
        if self.lac < 0:
            return
        if self._adds.make_error is not None:
            raise self._adds.error()
        await self._tell_lac()

    async def force(self) -> None:
        """Have every bookie of the ensemble sync what was acknowledged so far.

        With deferred sync this is what makes entries durable: afterwards ``lac`` is at least the last entry
        acknowledged before the call. Otherwise entries are durable already, unless bookies were told not to
        sync. If cancelled, the bookies may or may not have synced; ``lac`` stays.

        Raises:
            LedgerWriteError: A bookie refused, or did not answer. With deferred sync the handle has ended:
                what is after ``lac`` may be lost.
            LedgerClosedError, LedgerFencedError, WrongPasswordError: The handle has ended.
        """
        if self._adds.make_error is not None:
            raise self._adds.error()
        await trio.lowlevel.checkpoint()
        await self._adds.force()

    async def close(self) -> None:
        """Wait for what was submitted, then close the ledger at the last confirmed entry.

        After it returned, the ledger's end is ``lac`` for everyone and for good. Closing a closed handle
        does nothing. On a handle that ended by ``LedgerWriteError`` it closes at ``lac``: entries after that,
        whose callers got the error, are not part of the ledger. If cancelled, the ledger may or may not be
        closed, but only at ``lac``; nothing can be added; call it again or open with recovery.

        Raises:
            LedgerFencedError: Somebody else recovers the ledger or closed it elsewhere; every confirmed
                entry is in it, perhaps pending ones too.
            LedgerWriteError: Pending entries could not be confirmed, and the ledger is closed without them;
                or the metadata store could not be reached (the message says which).
            NoSuchLedgerError: The ledger was deleted meanwhile; there is nothing left to close.
            MetadataFormatError: Somebody wrote metadata that do not parse. They are left as they are, and the
                ledger is not closed: mend them, then open it with recovery.
            WrongPasswordError: A bookie holds the ledger under another key, which had ended the handle.
            LedgerClosedError: The handle was abandoned, or its client has ended; a recovery decides the end.
        """
        self._is_accepting = False
        async with self._close_lock:
            if self._is_closed:
                return
            had_ended = self._adds.make_error is not None
            if not had_ended:
                try:
                    await self.wait_confirmed(self._writer.last_pushed)
                    if self._durable is not None:
                        await self.force()
                except LedgerError:
                    pass  # decided below: what is confirmed can still be closed
            error = None if self._adds.make_error is None else self._adds.error()
            if error is not None and not isinstance(error, LedgerWriteError):
                raise error
            self._repair.stop()
            self._repair.current = await close_at(
                self._catalog,
                self._repair.current,
                self.lac,
                self._writer.lac_length_bytes if self._durable is None else self._durable.length_bytes,
                patience_s=self._config.unavailable_patience_s,
            )
            self._is_closed = True
            self._adds.end(lambda: LedgerClosedError(self.ledger_id, f"closed at entry {self.lac}"))
            if error is not None and not had_ended:
                raise error

    def abandon(self) -> None:
        """Stop without closing: pending entries fail, and a recovery will decide the ledger's end."""
        if not self._is_closed:
            self._adds.end(lambda: LedgerClosedError(self.ledger_id, "the writer abandoned it"))

    async def __aenter__(self) -> WriteHandle:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if exc_type is None:
            await self.close()
        else:
            self.abandon()

    async def run(self) -> None:
        """The client's task for this handle: it sends what nobody waits for and watches the metadata."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._repair.follow_metadata)
            if self._depends_on_places:
                nursery.start_soon(self._repair.follow_places)
            if self._config.add_quorum_timeout_s is not None:
                nursery.start_soon(self._watch_overdue, self._config.add_quorum_timeout_s)
            if self._config.explicit_lac_interval_s is not None:
                interval_s = self._config.explicit_lac_interval_s
                nursery.start_soon(tell_when_idle, interval_s, self._position, self._tell_lac)
            await self._adds.run()
            nursery.cancel_scope.cancel()

    async def _watch_overdue(self, timeout_s: float) -> None:
        overdue, entry_id = Overdue(), None
        while entry_id is None:
            await trio.sleep(timeout_s / TICKS)
            entry_id = overdue.tick(self._writer.lac, self._writer.last_pushed)
        message = f"entry {entry_id} was not confirmed within {timeout_s:g} s (add_quorum_timeout_s)"
        self._adds.end(lambda: LedgerWriteError(self.ledger_id, message))
        self._nursery.start_soon(self._close_after_failure)

    async def _close_after_failure(self) -> None:
        try:
            await self.close()
        except LedgerError as exc:
            logger.warning("ledger %d is left to a recovery: %s", self.ledger_id, exc)

    def _position(self) -> tuple[int, int]:
        return self.lac, self._writer.last_pushed

    async def _tell_lac(self) -> int:
        return await tell_lac(self._transport, self.ledger_id, self.metadata, self._codec, self.lac)

    def _stop_accepting(self) -> None:
        self._is_accepting = False
