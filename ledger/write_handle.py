"""The handle of a ledger being written: what its one writer holds.

Inside: gathering entries into runs, waking those who wait, bounding what is in flight, what ends a handle.
Not inside: counting acknowledgements (``writer``), failing bookies (``repair``), bytes (``wire``), the end in
the metadata (``closing``).
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
from ledger.confirmations import Confirmations
from ledger.continuity import Continuity
from ledger.deferred_sync import Durable, force_bookies, pack_with_durable_lac
from ledger.digest import EntryCodec
from ledger.errors import (
    BookieError,
    BookieRefusal,
    BookieUnavailableError,
    EntryTooLargeError,
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    LedgerWriteError,
    WrongPasswordError,
)
from ledger.explicit_lac import tell_lac, tell_when_idle
from ledger.metadata import LedgerMetadata
from ledger.overdue import TICKS, Overdue
from ledger.repair import EnsembleRepair, MakeError
from ledger.wire import v2, v3
from ledger.wire.codes import Code
from ledger.writer import LedgerWriter, Outgoing

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
            spans=cluster.placer.spans(metadata.write_quorum),
        )
        self._continuity = Continuity(
            lambda bookie: cluster.transport.connection_to(bookie, add_version=add_version)
        )
        self._continuity.begin(connections or {})
        self._append = self._writer.append
        self._codec, self._config = codec, config
        self._transport, self._catalog, self._nursery = cluster.transport, cluster.catalog, nursery
        self._membership = cluster.membership
        self._payload_bytes_max = (
            config.transport.frame_bytes_max - FRAME_OVERHEAD_BYTES_MAX - codec.overhead_bytes
        )
        self._repair = EnsembleRepair(
            self._writer,
            current,
            cluster,
            self._continuity,
            send=self._send,
            progressed=self._confirmed,
            end=self._end,
        )
        self._make_error: MakeError | None = None
        self._is_accepting = True
        self._is_closed = False
        self._close_lock = trio.Lock()
        self._wake_pump = trio.Event()
        self._room = trio.Event()
        self._confirmations = Confirmations()
        self._callbacks: list[Callable[[int, BaseException | None], None]] = []

    def __repr__(self) -> str:
        if self._is_closed:
            state = "closed"
        elif self._make_error is not None:
            state = f"ended: {self._make_error()}"
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
        return self._writer.lac if self._durable is None else self._durable.lac

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
            self._wake_pump.set()
        return entry_id

    def check_submit(self, payload: bytes) -> None:
        """Raise what ``submit`` would raise, and take nothing."""
        if not self._is_accepting:
            raise self._ended()
        if len(payload) > self._payload_bytes_max:
            raise EntryTooLargeError(len(payload), self._payload_bytes_max)

    async def wait_room(self) -> None:
        """Return when the entries in flight leave room for more.

        With room it returns without giving way to other tasks, except every few hundred entries.
        """
        if self._has_room():
            if self._writer.unsent_count >= YIELD_AFTER_ENTRIES:
                self._flush()
                await trio.lowlevel.checkpoint()
            return
        self._flush()
        while not self._has_room() and self._make_error is None:
            await self._room.wait()

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
        if self._make_error is None:
            self._flush()
            await self._confirmations.wait(entry_id)
        if entry_id > self._writer.lac:
            raise self._ended()

    def on_confirmed(self, callback: Callable[[int, BaseException | None], None]) -> None:
        """Have ``callback(lac, None)`` called whenever the LAC grew, and ``callback(lac, error)`` at the end.

        It runs on the loop, must not block or raise, and is called once for a run of entries.
        """
        self._callbacks.append(callback)

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
        if self._make_error is not None:
            raise self._ended()
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
        if self._make_error is not None:
            raise self._ended()
        await trio.lowlevel.checkpoint()
        writer, durable = self._writer, self._durable
        while writer.lac > (-1 if durable is None else durable.lac):
            head, length_bytes, ensemble = writer.lac, writer.lac_length_bytes, writer.ensemble
            try:
                await force_bookies(self._transport, self.ledger_id, ensemble)
            except BookieError as exc:
                if durable is None:
                    raise LedgerWriteError(self.ledger_id, f"not every bookie has synced it: {exc}") from exc
                self._lose_unsynced(exc)
            if durable is not None:
                self._look_at_connections()
                if self._make_error is not None:
                    raise self._ended()
                durable.forced(head, length_bytes)
                for callback in self._callbacks:
                    callback(durable.lac, None)
            if durable is not None or writer.ensemble == ensemble:
                return

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
        """
        self._is_accepting = False
        async with self._close_lock:
            if self._is_closed:
                return
            had_ended = self._make_error is not None
            if not had_ended:
                self._flush()
                try:
                    await self.wait_confirmed(self._writer.last_pushed)
                    if self._durable is not None:
                        await self.force()
                except LedgerError:
                    pass  # decided below: what is confirmed can still be closed
            error = None if self._make_error is None else self._make_error()
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
            self._end(lambda: LedgerClosedError(self.ledger_id, f"closed at entry {self.lac}"))
            if error is not None and not had_ended:
                raise error

    def abandon(self) -> None:
        """Stop without closing: pending entries fail, and a recovery will decide the ledger's end."""
        if not self._is_closed:
            self._end(lambda: LedgerClosedError(self.ledger_id, "the writer abandoned it"))

    async def __aenter__(self) -> WriteHandle:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if exc_type is None:
            await self.close()
        else:
            self.abandon()

    def adds_answered(self, bookie: str, code: Code, entry_ids: Sequence[int]) -> None:
        """The transport tells, on the loop, what a bookie answered."""
        if code is Code.OK:
            if not self._continuity.is_settled(bookie, self._transport.losses):
                self._look_at_connections(bookie)
                if self._make_error is not None:
                    return
            if self._writer.answered(bookie, entry_ids):
                self._confirmed()
            elif self._writer.doubtful and not self._repair.is_verifying:
                self._repair.is_verifying = True
                self._nursery.start_soon(self._repair.verify)
            self._give_room()
        elif code is Code.FENCED:
            self._end(lambda: LedgerFencedError(self.ledger_id, f"bookie {bookie} has fenced it"))
        elif code is Code.UNAUTHORIZED:
            self._end(lambda: WrongPasswordError(self.ledger_id))
        else:
            cause = BookieRefusal.by_code[code](bookie, self.ledger_id, entry_ids[0])
            self._membership.count_errors(bookie, len(entry_ids), cause)
            self._failed(bookie, cause, lost=False)

    def bookie_lost(self, bookie: str, cause: Exception) -> None:
        """The transport tells that a connection broke; what was unanswered there is unknown."""
        self._membership.count_errors(bookie, 1, cause)
        self._failed(bookie, cause, lost=True)

    async def run(self) -> None:
        """The client's task for this handle: it sends what nobody waits for and watches the metadata."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._repair.follow_metadata)
            if self._config.add_quorum_timeout_s is not None:
                nursery.start_soon(self._watch_overdue, self._config.add_quorum_timeout_s)
            if self._config.explicit_lac_interval_s is not None:
                interval_s = self._config.explicit_lac_interval_s
                nursery.start_soon(tell_when_idle, interval_s, self._position, self._tell_lac)
            await self._pump()
            nursery.cancel_scope.cancel()

    async def _pump(self) -> None:
        while self._make_error is None:
            await self._wake_pump.wait()
            self._wake_pump = trio.Event()
            self._flush()

    async def _watch_overdue(self, timeout_s: float) -> None:
        overdue, entry_id = Overdue(), None
        while entry_id is None:
            await trio.sleep(timeout_s / TICKS)
            entry_id = overdue.tick(self._writer.lac, self._writer.last_pushed)
        message = f"entry {entry_id} was not confirmed within {timeout_s:g} s (add_quorum_timeout_s)"
        self._end(lambda: LedgerWriteError(self.ledger_id, message))
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

    def _look_at_connections(self, bookie: str | None = None) -> None:
        """Notice lost connections, and that ``bookie`` answers over a new one."""
        doubted = self._continuity.gone(self._transport.losses)
        if doubted and self._durable is not None and self._writer.last_pushed > self._durable.lac:
            self._lose_unsynced(BookieUnavailableError(doubted[0], "the connection was lost"))
            return
        if bookie is not None and self._continuity.is_new(bookie):
            doubted.append(bookie)
        for one in doubted:
            run = self._writer.reconnected(one)
            if run is not None:
                self._send([run])

    def _lose_unsynced(self, cause: Exception) -> None:
        assert self._durable is not None
        message = f"entries after {self._durable.lac} are not synced and may be lost: {cause}"
        self._end(lambda: LedgerWriteError(self.ledger_id, message))

    def _failed(self, bookie: str, cause: Exception, *, lost: bool) -> None:
        if self._durable is not None:
            # Another bookie could take what is pending, but not what this one acknowledged.
            self._lose_unsynced(cause)
            return
        if self._make_error is not None or not self._writer.failed(bookie, cause, lost=lost):
            return
        self._repair.noticed(bookie, cause)
        self._give_room()
        if not self._repair.is_running:
            self._repair.is_running = True
            self._nursery.start_soon(self._repair.run)

    def _flush(self) -> None:
        if self._writer.unsent_count and self._make_error is None:
            self._send(self._writer.take_outgoing())

    def _send(self, outgoing: list[Outgoing]) -> None:
        for run in outgoing:
            self._transport.post_adds(run.bookie, self.ledger_id, run.frames, run.entry_ids, self)

    def _confirmed(self) -> None:
        lac = self._writer.lac
        self._repair.unblocked()
        self._confirmations.confirm(lac)
        if self._durable is None:
            for callback in self._callbacks:
                callback(lac, None)

    def _end(self, make_error: MakeError) -> None:
        """Nothing more is sent or confirmed; everyone who waits learns why. Only the first reason counts."""
        self._is_accepting = False
        if self._make_error is not None:
            return
        self._make_error = make_error
        self._repair.stop()
        self._transport.forget(self.ledger_id, self)
        self._confirmations.wake_all()
        self._room.set()
        self._wake_pump.set()
        error = make_error()
        for callback in self._callbacks:
            callback(self.lac, error)

    def _ended(self) -> LedgerError:
        # A new exception for each who asks: one object raised in several tasks would mix their tracebacks.
        if self._make_error is None:
            return LedgerClosedError(self.ledger_id, "is being closed")
        return self._make_error()

    def _has_room(self) -> bool:
        writer, config = self._writer, self._config
        return (
            writer.bytes_in_flight < config.bytes_in_flight_max
            and writer.entries_in_flight < config.entries_in_flight_max
        )

    def _give_room(self) -> None:
        if self._room.statistics().tasks_waiting and self._has_room():
            self._room.set()
            self._room = trio.Event()
