"""The handle of a ledger being written: what its one writer holds.

Inside: gathering entries into runs, waking those who wait, bounding what is in flight, closing.
Not inside: counting acknowledgements (``writer``), failing bookies (``repair``), bytes (``wire``).
Always: a caller learns of entries in their order; once the handle has ended, every later call raises why.

Source: LedgerHandle.java; reference sections 5.3, 5.9, 5.12, 5.13; lessons rows 22, 48, 52.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from types import TracebackType

import trio

from ledger.catalog import Versioned
from ledger.cluster import Cluster
from ledger.digest import EntryCodec
from ledger.errors import (
    BookieRefusal,
    EntryTooLargeError,
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    LedgerWriteError,
    WrongPasswordError,
)
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.metadata_update import update_metadata
from ledger.quorum import write_set
from ledger.repair import EnsembleRepair, MakeError
from ledger.wire import v2, v3
from ledger.wire.codes import Code
from ledger.wire.messages import WriteLacRequest
from ledger.writer import LedgerWriter, Outgoing
from namespace.errors import NamespaceError

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
    ) -> None:
        metadata, config = current.metadata, cluster.config
        self.ledger_id = current.ledger_id
        encoder: v2.AddEncoder | v3.AddEncoder = (
            v2.AddEncoder(current.ledger_id, codec)
            if config.transport.add_version == 2
            else v3.AddEncoder(current.ledger_id, codec)
        )
        self._writer = LedgerWriter(
            metadata.last_ensemble.bookies,
            write_quorum=metadata.write_quorum,
            ack_quorum=metadata.ack_quorum,
            pack=encoder.encode,
        )
        self._append = self._writer.append
        self._codec, self._config = codec, config
        self._transport, self._catalog, self._nursery = cluster.transport, cluster.catalog, nursery
        self._payload_bytes_max = (
            config.transport.frame_bytes_max - FRAME_OVERHEAD_BYTES_MAX - codec.overhead_bytes
        )
        self._repair = EnsembleRepair(
            self._writer,
            current,
            cluster,
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
        self._waiters: list[tuple[int, int, list[trio.lowlevel.Task]]] = []  # heap; an empty list: gone
        self._waiter_count = 0
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
        return self._writer.lac

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
        if not self._is_accepting:
            raise self._ended()
        if len(payload) > self._payload_bytes_max:
            raise EntryTooLargeError(len(payload), self._payload_bytes_max)
        entry_id = self._append(payload)
        if self._writer.unsent_count == 1:
            self._wake_pump.set()
        return entry_id

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

        If cancelled, the entry may or may not become durable later; the handle stays usable.

        Raises:
            LedgerFencedError: Somebody else recovers the ledger; whether it keeps the entry, its end tells.
            LedgerWriteError: No ack quorum could be reached; a later recovery may or may not find the entry.
            LedgerClosedError: The ledger was closed without it.
            WrongPasswordError: A bookie holds the ledger under another key.
        """
        assert entry_id <= self._writer.last_pushed
        if entry_id <= self._writer.lac:
            await trio.lowlevel.checkpoint()
            return
        if self._make_error is None:
            self._flush()
            slot = [trio.lowlevel.current_task()]
            self._waiter_count += 1
            heapq.heappush(self._waiters, (entry_id, self._waiter_count, slot))

            def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
                slot.clear()
                return trio.lowlevel.Abort.SUCCEEDED

            await trio.lowlevel.wait_task_rescheduled(abort)
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
        lac = self._writer.lac
        if lac < 0:
            await trio.lowlevel.checkpoint()
            return
        if self._make_error is not None:
            raise self._ended()
        ensemble = self._writer.ensemble
        metadata = self.metadata
        request = WriteLacRequest(
            self.ledger_id, lac, self._codec.master_key, self._codec.pack_lac(self.ledger_id, lac)
        )
        taken: list[str] = []
        problems: list[str] = []

        async def tell(bookie: str, nursery: trio.Nursery) -> None:
            try:
                reply = await self._transport.call(bookie, request)
            except LedgerError as exc:
                problems.append(str(exc))
                return
            if reply.code is not Code.OK:
                problems.append(f"{bookie}: {reply.code.name}")
                return
            taken.append(bookie)
            if len(taken) >= metadata.ack_quorum:
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for index in write_set(lac, len(ensemble), metadata.write_quorum):
                nursery.start_soon(tell, ensemble[index], nursery)
        if len(taken) < metadata.ack_quorum:
            raise LedgerWriteError(self.ledger_id, f"explicit LAC {lac} not stored: {'; '.join(problems)}")

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
                if self._writer.pending_count:
                    try:
                        await self.wait_confirmed(self._writer.last_pushed)
                    except LedgerError:
                        pass  # decided below: what is confirmed can still be closed
            error = None if self._make_error is None else self._make_error()
            if error is not None and not isinstance(error, LedgerWriteError):
                raise error
            self._repair.stop()
            await self._write_closed()
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

    # Called by the transport, on the loop.

    def adds_answered(self, bookie: str, code: Code, entry_ids: Sequence[int]) -> None:
        """The transport tells what a bookie answered."""
        if code is Code.OK:
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
            self._failed(bookie, cause, lost=False)

    def bookie_lost(self, bookie: str, cause: Exception) -> None:
        """The transport tells that a connection broke; what was unanswered there is unknown."""
        self._failed(bookie, cause, lost=True)

    # For the client.

    async def run(self) -> None:
        """The client's task for this handle: it sends what nobody waits for and watches the metadata."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._repair.follow_metadata)
            await self._pump()
            nursery.cancel_scope.cancel()

    async def _pump(self) -> None:
        while self._make_error is None:
            await self._wake_pump.wait()
            self._wake_pump = trio.Event()
            self._flush()

    def _failed(self, bookie: str, cause: Exception, *, lost: bool) -> None:
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
        waiters = self._waiters
        while waiters and waiters[0][0] <= lac:
            for task in heapq.heappop(waiters)[2]:
                trio.lowlevel.reschedule(task)
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
        waiters, self._waiters = self._waiters, []
        for _, _, slot in waiters:
            for task in slot:
                trio.lowlevel.reschedule(task)
        self._room.set()
        self._wake_pump.set()
        error = make_error()
        for callback in self._callbacks:
            callback(self._writer.lac, error)

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

    async def _write_closed(self) -> None:
        lac, length = self._writer.lac, self._writer.lac_length_bytes
        ledger_id = self.ledger_id

        def change(metadata: LedgerMetadata) -> LedgerMetadata | None:
            match metadata.state:
                case LedgerState.OPEN:
                    return metadata.closed(lac, length)
                case LedgerState.CLOSED:
                    if (metadata.last_entry_id, metadata.length_bytes) == (lac, length):
                        return None
                    raise LedgerFencedError(
                        ledger_id,
                        f"it was closed at entry {metadata.last_entry_id} with {metadata.length_bytes} bytes,"
                        f" this writer's last confirmed entry is {lac} with {length} bytes",
                    )
                case LedgerState.IN_RECOVERY:
                    # Java closes here. The recovery may have shown entries beyond our LAC to readers already
                    # (its re-written entries carry its own LAC), and closing below them would take them back.
                    raise LedgerFencedError(ledger_id, "its metadata says that it is in recovery")

        try:
            self._repair.current = await update_metadata(
                self._catalog,
                self._repair.current,
                change,
                patience_s=self._config.unavailable_patience_s,
            )
        except NamespaceError as exc:
            raise LedgerWriteError(
                ledger_id,
                f"whether it is closed at entry {lac} is unknown: {exc}; open it with recovery to decide",
            ) from exc
