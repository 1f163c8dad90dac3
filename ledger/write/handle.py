"""The handle of a ledger being written: the only shell around the machines of its one writer.

    submit      -> LedgerWriter.append         -> the frame waits for the next flush
    flush       -> LedgerWriter.take_outgoing  -> Transport.post_adds
    OK replies  -> LedgerWriter.adds_answered  -> waiting callers and callbacks, in the order of entries
    the rest    -> EnsembleRepair              -> actions for ``_perform``

Inside: taking entries, the promises of each call, sending, waking callers, the bounds of entries in flight,
closing in order. Not inside: counting replies (``writer``), failing bookies (``repair``, ``repair_steps``),
bytes (``wire``), the end in the metadata (``closing``).
Always: a caller learns of entries in their order; the first reason to end is the only one; after the end
nothing is sent or confirmed, each waiting caller gets that reason, and every later call raises it. An error
in the writer's own code ends this writer, whose next call raises it; it reaches neither the connection nor
another writer.

Source: LedgerHandle.java, PendingAddOp.java, ForceLedgerOp.java; docs/protocol.md 5.3 to 5.5, 5.9, 5.11 to
5.13; docs/known-bugs.md 1, 22, 48, 52.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from threading import get_ident
from types import TracebackType

import attrs
import trio

from ledger.catalog.catalog import Versioned
from ledger.codes import Code
from ledger.context import ClientContext
from ledger.digest import EntryCodec
from ledger.errors import (
    AccessDeniedError,
    BookieError,
    BookieRefusal,
    EntryTooLargeError,
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    LedgerWriteError,
    is_directory_full,
)
from ledger.metadata import LedgerMetadata
from ledger.payloads import as_payload
from ledger.pickling import ProcessBound
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.failure_domain import first_line, report_contained
from ledger.runtime.tasks.trio_only import check_thread
from ledger.wire import v2, v3
from ledger.write.actions import Action, Adopt, Confirm, End, MakeError, Step, Suspect, Warn
from ledger.write.closing import close_at, close_or_leave
from ledger.write.connection_trust import ConnectionTrust
from ledger.write.deferred_sync import Durable, force_bookies, force_confirmed, pack_with_durable_lac
from ledger.write.explicit_lac import write_lac, write_lac_when_idle
from ledger.write.repair import EnsembleRepair
from ledger.write.repair_steps import follow_metadata, take_step
from ledger.write.waiting import Confirmations, Confirmed, Window, wait_overdue
from ledger.write.writer import LedgerWriter, SendAdds

logger = get_logger(__name__)

FRAME_OVERHEAD_BYTES_MAX = 128  # of an add or a read reply in both versions, without digest and header
YIELD_AFTER_ENTRIES = 256  # so that sockets get the first entries while a caller still makes the next


@attrs.frozen(eq=False)
class _Sink:
    """The calls of the transport; see ``AddSink``. So an application does not see them on the handle."""

    on_add_replies: Callable[[str, Code, Sequence[int]], None]
    on_bookie_lost: Callable[[str, Exception], None]


class WriteHandle(ProcessBound):
    """Adds entries to one ledger, as its only writer.

    Leaving ``async with`` closes the ledger. Leaving it by an exception abandons it, and a recovery decides
    its end.
    """

    def __init__(
        self,
        current: Versioned,
        codec: EntryCodec,
        context: ClientContext,
        nursery: trio.Nursery,
        *,
        deferred_sync: bool = False,
        connections: Mapping[str, int | None] | None = None,
    ) -> None:
        """For the client.

        Args:
            connections: ``Transport.connection_to`` of each bookie, from before the metadata was written.
        """
        self.ledger_id, metadata, config = current.ledger_id, current.metadata, context.config
        ack_rule = context.placer.ack_rule(metadata.write_quorum)
        self._depends_on_locations = ack_rule is not None
        self._durable = durable = Durable() if deferred_sync else None
        add_version = 3 if deferred_sync else config.transport.add_version
        encoder: v2.AddEncoder | v3.AddEncoder = (v2 if add_version == 2 else v3).AddEncoder(
            current.ledger_id, codec, deferred_sync=deferred_sync
        )
        self._writer = writer = LedgerWriter(
            metadata.last_ensemble.bookies,
            write_quorum=metadata.write_quorum,
            ack_quorum=metadata.ack_quorum,
            pack=encoder.encode if durable is None else pack_with_durable_lac(encoder.encode, durable),
            ack_rule=ack_rule,
        )
        self._append = writer.append
        self._thread = get_ident()  # of the run whose handle it is
        self._codec, self._config, self._context, self._current = codec, config, context, current
        self._transport, self._nursery = context.transport, nursery
        self._payload_bytes_max = (
            config.transport.frame_bytes_max - FRAME_OVERHEAD_BYTES_MAX - codec.overhead_bytes
        )
        self._trust = trust = ConnectionTrust(
            lambda name: context.transport.connection_to(name, add_version=add_version)
        )
        trust.trust_since(connections or {})
        self._repair = EnsembleRepair(current.ledger_id, writer, trust, config, context.rng, durable=durable)
        self._sink = _Sink(self._on_add_replies, self._on_bookie_lost)
        self._confirmations = Confirmations()
        # Set by the client: tell the bookies ``lac`` at once, for a caller that appends nothing in this turn.
        self.hint_now: Callable[[], None] = lambda: None
        # Set by the client: a bookie lacks confirmed entries of this ledger, which are not sent to it again.
        self.note_missed: Callable[[int, str], None] = lambda _ledger_id, _bookie: None
        self._window = Window(
            writer, bytes_max=config.bytes_in_flight_max, entries_max=config.entries_in_flight_max
        )
        self._has_capacity = self._window.has_capacity
        self._submitted = trio.Event()  # set when entries wait to be sent; perhaps no caller waits for them
        self._make_error: MakeError | None = None  # once the handle has ended, the reason
        self._is_accepting, self._is_closed = True, False
        self._close_lock = trio.Lock()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open" if self._is_accepting else "closing"
        if self._make_error is not None and not self._is_closed:
            state = f"ended: {self._make_error()}"
        return (
            f"<WriteHandle ledger {self.ledger_id} {state}, confirmed {self.lac}, pushed {self.last_pushed},"
            f" on {', '.join(self._writer.ensemble)}>"
        )

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this writer last read or wrote it."""
        return self._current.metadata

    @property
    def lac(self) -> int:
        """The last confirmed entry: it and all before it are durable. -1 if there is none."""
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

    @property
    def bytes_in_flight_max(self) -> int:
        """``wait_capacity`` waits while more bytes than these are in flight."""
        return self._config.bytes_in_flight_max

    @property
    def capacity_waits(self) -> int:
        """How often a caller had to wait because the entries in flight were at their limit."""
        return self._window.waits

    def submit(self, payload: bytes | bytearray | memoryview, *, hold: bool = False) -> int:
        """Take an entry to be written; return its id at once.

        The entry is sent when the caller next waits for anything; with ``hold`` only once the caller calls
        ``send_now`` or ``send_soon``. Use ``wait_capacity`` to bound memory.

        Raises:
            EntryTooLargeError, TypeError (no buffer): The entry was not taken.
            LedgerClosedError, LedgerFencedError, LedgerWriteError, AccessDeniedError: The handle has ended.
        """
        if get_ident() != self._thread:
            self._raise_foreign()
        payload = payload if payload.__class__ is bytes else as_payload(payload)
        if not self._is_accepting or len(payload) > self._payload_bytes_max:
            self.check_submit(payload)
        entry_id = self._append(payload)
        if not hold:
            self.send_soon()
        return entry_id

    def check_submit(self, payload: bytes) -> None:
        """Raise the exception that ``submit`` would raise; take no entry."""
        if get_ident() != self._thread:
            self._raise_foreign()
        if not self._is_accepting:
            raise self._error()
        if len(payload) > self._payload_bytes_max:
            raise EntryTooLargeError(len(payload), self._payload_bytes_max)

    async def wait_capacity(self) -> None:
        """Return when there is capacity for more entries in flight, or when the handle has ended.

        If there is capacity already, other tasks get a turn only after every few hundred entries.
        """
        if get_ident() != self._thread:
            self._raise_foreign()
        if self._has_capacity():
            if self._writer.unsent_count >= YIELD_AFTER_ENTRIES:
                self.send_now()
                await trio.lowlevel.checkpoint()
            return
        self.send_now()
        await self._window.wait()

    async def wait_bytes_in_flight_below(self, limit_bytes: int) -> None:
        """Return when fewer bytes than this are in flight and there is capacity for more, or at the end.

        For a caller with a lower limit than ``ClientConfig.bytes_in_flight_max``.
        """
        if get_ident() != self._thread:
            self._raise_foreign()
        self.send_now()
        await self._window.wait(limit_bytes)

    async def wait_confirmed(self, entry_id: int) -> None:
        """Return once the entry, and every one before it, is durable on an ack quorum.

        With deferred sync: once an ack quorum has taken it; ``force`` makes it durable. The entry may be one
        that is submitted later. If cancelled, the entry may or may not become durable later; the handle stays
        usable.

        Raises:
            LedgerFencedError: Another client recovers the ledger; its end shows whether it keeps the entry.
            LedgerWriteError: No ack quorum could be reached; a later recovery may or may not find the entry.
            LedgerClosedError: The ledger was closed without it.
            AccessDeniedError: A bookie refuses this client, or holds the ledger under another key.
        """
        if get_ident() != self._thread:
            self._raise_foreign()
        if entry_id <= self._writer.lac:
            await trio.lowlevel.checkpoint()
            return
        if self._make_error is None:
            self.send_now()
            await self._confirmations.wait(entry_id)
        if entry_id > self._writer.lac:
            raise self._error()

    def on_confirmed(self, callback: Confirmed) -> None:
        """Have ``callback(lac, None)`` called whenever the LAC grew, and ``callback(lac, error)`` at the end.

        It runs on the loop, once for a batch of entries, before the callbacks that were there already. It
        must not block or raise.
        """
        self._confirmations.callbacks.insert(0, callback)

    async def append(self, payload: bytes | bytearray | memoryview) -> int:
        """Write one entry; return its id once an ack quorum holds it and all before it.

        If cancelled, the entry may or may not become durable later; the handle stays usable.
        Raises what ``submit`` and ``wait_confirmed`` raise.
        """
        if not self._has_capacity():
            await self.wait_capacity()
        entry_id = self.submit(payload)
        await self.wait_confirmed(entry_id)
        return entry_id

    async def append_many(self, payloads: Iterable[bytes | bytearray | memoryview]) -> range:
        """Write entries in order without waiting for each; return their ids once all are durable.

        If this is cancelled or raises, any number of them, from the first on, may become durable later.
        """
        taken = list(map(as_payload, payloads))  # all before the first one is taken
        first, last = self._writer.last_pushed + 1, self._writer.last_pushed
        for payload in taken:
            await self.wait_capacity()
            last = self.submit(payload)
        if last >= first:
            await self.wait_confirmed(last)
        return range(first, last + 1)

    async def write_explicit_lac(self) -> None:
        """Send the LAC to bookies now, instead of with the next entry, so that readers can continue.

        If cancelled, some bookies may have it. Does nothing before the first confirmation.

        Raises:
            LedgerWriteError: Fewer than an ack quorum stored it. Nothing is lost: the next entry carries it.
        """
        if get_ident() != self._thread:
            self._raise_foreign()
        await trio.lowlevel.checkpoint()
        if self.lac < 0:
            return
        if self._make_error is not None:
            raise self._make_error()
        await self._write_lac()

    async def force(self) -> None:
        """Have every bookie of the ensemble sync the entries acknowledged so far.

        With deferred sync only this makes entries durable: afterwards ``lac`` is at least the last entry
        acknowledged before the call. Otherwise entries are durable already, unless the bookies are configured
        not to sync. If cancelled, the bookies may or may not have synced; ``lac`` stays.

        Raises:
            LedgerWriteError: A bookie refused, or did not answer. With deferred sync the handle has ended,
                and entries after ``lac`` may be lost.
            LedgerClosedError, LedgerFencedError, AccessDeniedError: The handle has ended.
        """
        if get_ident() != self._thread:
            self._raise_foreign()
        if self._make_error is not None:
            raise self._make_error()
        await trio.lowlevel.checkpoint()
        writer, durable = self._writer, self._durable
        if durable is None:
            await force_confirmed(self._transport, self.ledger_id, writer)
            return
        head, length_bytes = writer.lac, writer.lac_length_bytes
        if head == durable.lac:
            return
        try:
            await force_bookies(self._transport, self.ledger_id, writer.ensemble)
        except BookieError as exc:
            self._perform(self._repair.on_unsynced_lost(exc))
        self._perform(self._repair.check_connections(self._transport.losses, trio.current_time()))
        if self._make_error is not None:
            raise self._error()
        durable.forced(head, length_bytes)
        self._confirmations.report(durable.lac, None)

    async def close(self) -> None:
        """Wait for the submitted entries, then close the ledger at the last confirmed entry.

        Afterwards the ledger ends at ``lac`` for every reader and for good. Closing a closed handle does
        nothing. A handle that ended by ``LedgerWriteError`` closes the ledger at ``lac`` too: later entries,
        whose callers got the error, are not part of it. If cancelled, the ledger may or may not be closed,
        but only at ``lac``, and nothing can be added; call ``close`` again or open with recovery.

        Raises:
            LedgerFencedError: Another client recovers the ledger or closed it at another entry. Every
                confirmed entry is in it, and perhaps pending ones.
            LedgerWriteError: Pending entries could not be confirmed, and the ledger is closed without them;
                or the metadata store could not be reached. The message says which.
            NoSuchLedgerError: The ledger was deleted meanwhile; there is nothing left to close.
            MetadataFormatError: The stored metadata do not parse. They are left as they are, and the ledger
                is not closed: repair them, then open it with recovery.
            AccessDeniedError: A bookie refuses this client, which had ended the handle.
            LedgerClosedError: The handle was abandoned, or its client has ended; a recovery decides the end.
        """
        if get_ident() != self._thread:
            self._raise_foreign()
        self._is_accepting = False
        async with self._close_lock:
            if self._is_closed:
                return
            had_ended = self._make_error is not None
            if not had_ended:
                try:
                    await self.wait_confirmed(self._writer.last_pushed)
                    if self._durable is not None:
                        await self.force()
                except LedgerError:
                    pass  # decided below: the ledger can still be closed at the last confirmed entry
            error = None if self._make_error is None else self._make_error()
            if error is not None and not isinstance(error, LedgerWriteError):
                raise error
            self._repair.stop()
            self._current = await close_at(
                self._context.catalog,
                self._current,
                self.lac,
                self._writer.lac_length_bytes if self._durable is None else self._durable.length_bytes,
                retry_timeout_s=self._config.unavailable_timeout_s,
            )
            self._is_closed = True
            self._end(lambda: LedgerClosedError(self.ledger_id, f"closed at entry {self.lac}"))
            if error is not None and not had_ended:
                raise error

    def abandon(self) -> None:
        """End the handle without closing: pending entries fail, and a recovery decides the ledger's end."""
        if not self._is_closed:
            self._end(lambda: LedgerClosedError(self.ledger_id, "the writer abandoned it"))

    def fail(self, make_error: MakeError) -> None:
        """End the handle as ``abandon`` does; its callers get this error."""
        if not self._is_closed:
            self._end(make_error)

    async def __aenter__(self) -> WriteHandle:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if exc_type is None:
            await self.close()
        else:
            self.abandon()

    def _raise_foreign(self) -> None:
        check_thread(self._thread, f"ledger {self.ledger_id}")

    async def run(self) -> None:
        """The client's task for this handle: it sends entries that no caller waits for, and watches."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._guarded, self._follow_metadata)
            if self._depends_on_locations:
                nursery.start_soon(self._guarded, self._follow_locations)
            if (timeout_s := self._config.add_quorum_timeout_s) is not None:
                nursery.start_soon(self._watch_overdue, timeout_s)
            if (interval_s := self._config.explicit_lac_interval_s) is not None:
                nursery.start_soon(write_lac_when_idle, interval_s, self, self._write_lac)
            while self._make_error is None:
                await self._submitted.wait()
                self._submitted = trio.Event()
                self.send_now()
            nursery.cancel_scope.cancel()

    # --- adds and their replies -----------------------------------------------------------------------------

    def send_soon(self) -> None:
        """Send the submitted entries in the next turn of the loop, if they are not sent before."""
        self._submitted.set()

    def send_now(self) -> None:
        """Send the submitted entries in this step, for a caller that waits for them."""
        if self._make_error is None:
            post, ledger_id, sink = self._transport.post_adds, self.ledger_id, self._sink
            for adds in self._writer.take_outgoing():
                post(adds.bookie, ledger_id, adds.frames, adds.entry_ids, sink)

    def _on_add_replies(self, bookie: str, code: Code, entry_ids: Sequence[int]) -> None:
        trust = self._trust
        try:
            if code is Code.OK:
                losses = self._transport.losses
                if losses != trust.losses or bookie not in trust.trusted:
                    now_s = trio.current_time()
                    self._perform(self._repair.check_connections(losses, now_s, bookie))
                    if self._make_error is not None:
                        return
                confirmed = self._writer.adds_answered(bookie, entry_ids)
                if confirmed:
                    self._confirm(confirmed)
                elif self._writer.held_replies:
                    self._perform(self._repair.on_replies_held())
                else:
                    self._window.released()
            elif code is Code.FENCED:
                self._end(lambda: LedgerFencedError(self.ledger_id, f"bookie {bookie} has fenced it"))
            elif code is Code.READ_ONLY and self._context.why_read_only is not None:
                self._end(self._context.why_read_only)
            elif code is Code.UNAUTHORIZED:
                self._end(lambda: AccessDeniedError(self.ledger_id, bookie, "write"))
            else:
                cause = BookieRefusal.by_code[code](bookie, self.ledger_id, entry_ids[0])
                self._on_failure(bookie, cause, len(entry_ids), lost=False)
        except Exception as exc:
            self._fail(exc, bookie)

    def _on_bookie_lost(self, bookie: str, cause: Exception) -> None:
        try:
            self._on_failure(bookie, cause)
        except Exception as exc:
            self._fail(exc, bookie)

    async def _guarded(self, function: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run a task of the writer. Its error ends the writer, not the client."""
        try:
            await function(*args)
        except Exception as exc:
            self._fail(exc, None)

    def _fail(self, error: Exception, bookie: str | None) -> None:
        report_contained("writer of a ledger", error, ledger_id=self.ledger_id, peer=bookie)
        where = "" if bookie is None else f" at a reply of bookie {bookie}"
        message = f"the writer failed{where}: {type(error).__name__}: {first_line(error)}"
        self._end(lambda: LedgerWriteError(self.ledger_id, message))

    def _on_failure(self, bookie: str, cause: Exception, count: int = 1, *, lost: bool = True) -> None:
        self._context.membership.report_errors(bookie, count, cause)
        if self._context.why_read_only is not None and is_directory_full(cause):
            self._end(self._context.why_read_only)
        if self._make_error is None:
            self._perform(self._repair.on_bookie_failed(bookie, cause, lost=lost, now_s=trio.current_time()))

    def _confirm(self, entry_ids: range) -> None:
        lac, confirmations = entry_ids.stop - 1, self._confirmations
        if confirmations.waiters:
            confirmations.confirm(lac)
        if self._durable is None:
            for callback in confirmations.callbacks:
                callback(lac, None)
        if self._window.waiting:
            self._window.released()

    # --- performing actions ---------------------------------------------------------------------------------

    def _perform(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if self._make_error is not None:
                return  # one of the actions before has ended the handle
            match action:
                case SendAdds(bookie=bookie, frames=frames, entry_ids=ids):
                    self._transport.post_adds(bookie, self.ledger_id, frames, ids, self._sink)
                case Confirm(entry_ids=entry_ids):
                    self._confirm(entry_ids)
                case Suspect(bookie=bookie):
                    self._context.membership.report_failure(bookie)
                case Warn(message=message):
                    extra = event("ledger.warning", ledger=self.ledger_id)
                    logger.warning("ledger %d: %s", self.ledger_id, message, extra=extra)
                case Adopt(current=current):
                    self._current = current
                case End(make_error=make_error):
                    self._end(make_error)
                case _:
                    self._nursery.start_soon(self._guarded, self._take_step, action)
        self._window.released()
        for bookie in self._writer.take_missed():
            self._nursery.start_soon(self._guarded, self._report_missed, bookie)

    async def _report_missed(self, bookie: str) -> None:
        # A worker copies up to the LAC that the bookies know: it must cover what this bookie missed.
        try:
            await self._write_lac()
        except LedgerError:
            pass  # the next entry carries it
        finally:  # also if the handle is closed meanwhile: nobody else remembers it
            self.note_missed(self.ledger_id, bookie)

    async def _take_step(self, step: Step) -> None:
        self._perform(await take_step(step, self._repair, self._current, self._context))

    def _end(self, make_error: MakeError) -> None:
        self._is_accepting = False
        if self._make_error is not None:
            return
        self._make_error = make_error
        self._repair.stop()
        self._transport.forget(self.ledger_id, self._sink)
        self._confirmations.wake_all()
        self._window.end()
        self._submitted.set()
        for bookie in self._writer.take_missed(is_over=True):
            self.note_missed(self.ledger_id, bookie)
        self._confirmations.report(self.lac, make_error())

    def _error(self) -> LedgerError:
        """Why the handle has ended, or is about to."""
        if self._make_error is None:
            return LedgerClosedError(self.ledger_id, "is being closed")
        return self._make_error()

    # --- tasks of the handle --------------------------------------------------------------------------------

    async def _follow_metadata(self) -> None:
        self._perform(await follow_metadata(self._repair, self.ledger_id, self._context))

    async def _follow_locations(self) -> None:
        while not self._repair.is_over:
            now_s = trio.current_time()
            self._perform(self._repair.on_locations_changed(self._transport.losses, now_s))
            await self._context.placer.wait_location_change()

    async def _watch_overdue(self, timeout_s: float) -> None:
        entry_id = await wait_overdue(self._writer, timeout_s)
        message = f"entry {entry_id} was not confirmed within {timeout_s:g} s (add_quorum_timeout_s)"
        self._end(lambda: LedgerWriteError(self.ledger_id, message))
        self._nursery.start_soon(close_or_leave, self.ledger_id, self.close)

    async def _write_lac(self) -> int:
        return await write_lac(self._transport, self.ledger_id, self.metadata, self._codec, self.lac)
