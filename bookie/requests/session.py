"""The requests of a bookie's clients: rights, keys, fences, and which reply waits for the disk.

Inside: ``BookieService``, the state that all connections share (rights, long polls, pending fences), and
``ClientSession``, one connection's requests in and replies out. A session replies to adds and to reads of
recent entries. It hands requests that must wait to the server as ``DeferredRequest`` (``reads``). A frame
whose sender can be answered is answered; any other frame is a ``WireError``.
Not inside: sockets and the order of frames (``connection``), disks (``storage``), bytes of messages
(``ledger.wire``).
Always: an add or a fence is acknowledged only after the batch that holds its record is durable (an add with
deferred sync: written); a ledger's fence is checked and its entry staged in one step of the event loop, so no
entry is stored after a fence; one ``WriteBatch`` for each chunk received. A hint of a LAC creates no ledger,
needs the ledger's key, and changes neither a fenced ledger nor one in limbo; it only raises the LAC.

Source: BookKeeper, BookieRequestProcessor.java, WriteEntryProcessor.java, ReadEntryProcessor.java,
WriteLacProcessorV3.java, ForceLedgerProcessorV3.java; docs/protocol.md 5.12, 9 and 13.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, assert_never

import attrs

from bookie.digest_checker import DigestTypeOf
from bookie.errors import raise_error
from bookie.journal.format import LAC_PACKET_BYTES_MAX
from bookie.ledger_record import UNKNOWN_KEY, LedgerRecord
from bookie.limits import RECORD_BYTES_MAX
from bookie.requests.deferred import DeferredRequest, PlainReads
from bookie.requests.fences import DeletedFences, PendingFences
from bookie.requests.in_progress import BatchBegun, InProgress
from bookie.requests.lac_watch import LacWatches
from bookie.requests.new_ledgers import NewLedgers
from bookie.requests.permissions import Permissions, SessionAccess
from bookie.requests.repeated_adds import Comparison, RefusedAdds, StoredEntry, compare
from bookie.requests.replies import READ_HEADER, as_failed, in_two_parts, plain_reply, refusal
from ledger.auth.authentication import PeerIdentity
from ledger.codes import MASTER_KEY_BYTES, Code
from ledger.digest import ENTRY_HEADER_BYTES
from ledger.errors import UnsupportedInVersionError, WireError
from ledger.wire import v2, v3
from ledger.wire.messages import (
    LAST_ENTRY,
    AddReply,
    AddRequest,
    AuthReply,
    AuthRequest,
    BatchReadRequest,
    BookieInfoRequest,
    ForceLedgerReply,
    ForceLedgerRequest,
    IncomingRequest,
    ListEntriesRequest,
    ReadLacRequest,
    ReadReply,
    ReadRequest,
    Reply,
    StartTlsRequest,
    WriteLacReply,
    WriteLacRequest,
)

if TYPE_CHECKING:
    from bookie.storage.storage import Storage

AUTH_DISABLED = "AuthDisabledPlugin"  # this name tells a client that it is authenticated
SLOW_FRAMES_MAX = 256  # of one call of ``handle``; plain adds and plain reads do not count
INLINE_READ_BYTES_MAX = 1_048_576  # of the immediate reads of one chunk; further reads are deferred

_BODY_IDS = Struct(">qqq")  # the start of each entry: ledger id, entry id, LAC
_IDS = Struct(">qq")  # the start of each LAC packet: ledger id, LAC; also ledger id, entry id
_ADD_OK = v2.add_reply(Code.OK, 0, 0)[:12]  # length, header, code; the entry's own first 16 bytes follow
_READ_REQUEST = Struct(">Iqq")


@attrs.define(eq=False)
class Rights:
    """Which adds a bookie accepts now: changed by ``DiskWatch``, read by sessions for each chunk."""

    writable: bool = True
    takes_records: bool = True  # False: not even a fence has space in the journal
    high_priority_writable: bool = True  # accept adds of recoveries while the bookie is read-only

    def hold(self, *, takes_records: bool) -> None:
        """For a storage that was opened on a full disk; ``takes_records``: its journal has some space."""
        self.writable = False
        self.takes_records = self.high_priority_writable = takes_records


@attrs.define(eq=False)
class BookieService:
    """One bookie's state behind all of its connections."""

    storage: Storage
    rights: Rights = attrs.field(factory=Rights)
    sync_adds: bool = True  # False: acknowledge adds before they are synced (``journalSyncData=false``)
    has_tls: bool = False
    digest_type_of: DigestTypeOf | None = None  # from the metadata; None: there are none
    new_ledgers: NewLedgers | None = None  # the budget of new ledgers; None: no metadata to confirm them
    permissions: Permissions | None = None  # None: peers that may connect may do everything
    may_exist: Callable[[int], bool] = lambda ledger_id: True  # False: the metadata cannot hold this id
    watches: LacWatches = attrs.field(factory=LacWatches, init=False)
    refused_adds: RefusedAdds = attrs.field(factory=RefusedAdds, init=False)
    in_progress: InProgress = attrs.field(factory=InProgress, init=False)
    deleted_fences: DeletedFences = attrs.field(factory=DeletedFences, init=False)
    fences: PendingFences = attrs.field(factory=PendingFences, init=False)

    def open_session(
        self, send: Callable[[bytes], None], defer: Callable[[DeferredRequest], None]
    ) -> ClientSession:
        """The session of a new connection.

        Args:
            send: Queues whole frames for sending. Called at any time, also after the connection is closed.
            defer: Begins work whose reply comes later, through ``ClientSession.reply``.
        """
        return ClientSession(self, send, defer)

    def ledger_deleted(self, ledger_id: int, *, fenced: bool) -> None:
        """The storage no longer has the ledger: wake its long polls, and remember it if it was fenced.

        Without this memory the next add of the ledger's old writer would create the ledger again.
        """
        if fenced:
            self.deleted_fences.add(ledger_id, is_confirmed=self.is_confirmed(ledger_id))
        if self.new_ledgers is not None:
            self.new_ledgers.forget([ledger_id])
        if self.permissions is not None:
            self.permissions.forget(ledger_id)
        self.watches.ledger_changed(ledger_id)

    def is_confirmed(self, ledger_id: int) -> bool:
        """False if the ledger began here, and the metadata have not confirmed it since then."""
        return self.new_ledgers is None or self.new_ledgers.created_s(ledger_id) is None

    def was_fenced_and_deleted(self, ledger_id: int) -> bool:
        return ledger_id in self.deleted_fences


class ClientSession:
    """One connection: frames in through ``handle``, replies out through the callbacks."""

    def __init__(
        self, service: BookieService, send: Callable[[bytes], None], defer: Callable[[DeferredRequest], None]
    ) -> None:
        self.may_upgrade = service.has_tls  # the server clears it when the connection uses TLS
        self.is_upgrading = False  # START_TLS has come: the server sets it back when TLS has begun
        # Set by the server: how many bytes of replies may be queued now; less while memory is short.
        self.free_bytes: Callable[[], int] = lambda: INLINE_READ_BYTES_MAX
        self.slow_count = 0  # frames that take long; the server sets it back
        self.has_written = False  # this peer adds entries
        self.identity: PeerIdentity | None = None  # the authenticated peer
        self.wait_decision: Callable[[], Awaitable[None]] | None = None  # set by ``handle``; see there
        self.access = None if service.permissions is None else SessionAccess(service.permissions)
        self._service, self._storage, self._rights = service, service.storage, service.rights
        self._watches = service.watches
        self._in_progress = service.in_progress
        self._send, self._defer = send, defer
        self.send_large: Callable[[bytes, memoryview], None] | None = None  # set by the server: see ``reply``
        self.on_fault: Callable[[Exception], None] = raise_error  # set by the server: ends the connection
        # Of the current chunk:
        self._immediate: list[bytes] = []  # frames that do not wait for the disk
        self._batch = service.storage.new_batch()
        self._acks: list[bytes] = []  # frames that wait for the batch
        self._fenced_reads: list[IncomingRequest] = []  # reads that wait for the batch
        self._fences: list[int] = []  # ledgers whose fence records are in the batch
        self._grown: set[int] = set()  # ledgers that got entries or LACs
        self._misses: list[bytes] = []  # ids of the plain reads of entries that are not in memory
        self._needs_sync = False  # a request in the batch was promised a sync
        self._adds_count = 0
        self._inline_bytes_left: int | None = 0  # None: not asked for yet

    def handle(self, data: bytes, spans: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
        """Handle the frames of one chunk, in order.

        Returns:
            The spans still to be handled: after ``SLOW_FRAMES_MAX`` frames that take long, or from one that
            waits for a decision about its peer. Let the loop run other tasks, or await ``wait_decision`` if
            it is set, and call again. Those after START_TLS, with ``is_upgrading``, are never handled.

        Raises:
            WireError: A frame is no message. The frames before it were handled. Close the connection.
        """
        storage, access = self._storage, self.access
        if access is not None:
            self.wait_decision = None
            access.begin(self.identity)
        stage_entry, batch = storage.stage_entry, self._batch
        unpack, add_bytes_min = v2.ADD_REQUEST.unpack_from, v2.ADD_REQUEST_BYTES_MIN
        # If the chunk may hold an entry too long to be stored, ``_add`` checks the length of each entry.
        is_plain = self._rights.writable and len(data) <= RECORD_BYTES_MAX
        header_of_add = v2.ADD_HEADER if is_plain else -1
        added: list[bytes] = []  # for each acknowledged v2 add, its entry's first 16 bytes
        ledger: LedgerRecord | None = None
        current_id, master_key, slow_count = -1, b"", 0
        self._inline_bytes_left = None
        try:
            for start, end in spans:
                size = end - start
                if size >= add_bytes_min:
                    header, key, ledger_id, entry_id, lac = unpack(data, start)
                    if header == header_of_add:
                        if ledger_id != current_id:
                            ledger, current_id = storage.ledger(ledger_id), -1
                            if access is not None and not access.may_write(ledger_id):
                                ledger = None  # ``_handle_frame`` refuses it, or lets it wait
                            if ledger is not None:
                                current_id = ledger_id
                                master_key = ledger.master_key
                                self._grown.add(ledger_id)
                        # An entry above the last one is not held, so there is nothing to compare it with.
                        if (
                            ledger is not None
                            and key == master_key
                            and entry_id > ledger.last_entry_id
                            and not ledger.fenced
                        ):
                            body_at = start + 24
                            stage_entry(batch, ledger, entry_id, lac, data[body_at:end])
                            added.append(data[body_at : start + 40])
                            continue
                elif size == 20:
                    header, ledger_id, entry_id = _READ_REQUEST.unpack_from(data, start)
                    is_plain_read = header == READ_HEADER and entry_id >= 0
                    if is_plain_read and (access is None or access.may_read(ledger_id)):
                        self._plain_read(data[start + 4 : end], ledger_id, entry_id)
                        continue
                if not self._handle_frame(data, start, end):
                    return self._waiting(data, spans[spans.index((start, end)) :])
                slow_count += 1
                if slow_count == SLOW_FRAMES_MAX or self.is_upgrading:
                    return spans[spans.index((start, end)) + 1 :]
            if access is not None:
                access.end()
            return ()
        finally:
            # Also after a bad frame: a batch is filled and submitted in the same step of the loop.
            self.slow_count += slow_count
            if added:
                self._acknowledge(added)
            self._finish()

    def _acknowledge(self, added: list[bytes]) -> None:
        self._acks.append(_ADD_OK + _ADD_OK.join(added))
        self._adds_count += len(added)
        self._needs_sync |= self._service.sync_adds

    def reply(self, incoming: IncomingRequest, reply: Reply) -> None:
        """Send the reply to a deferred request; a large one in two parts, to save a copy of its entries."""
        if self.send_large is not None and (parts := in_two_parts(incoming, reply)) is not None:
            self.send_large(*parts)
        else:
            self._send(self.encode(incoming, reply))

    def add_again(self, incoming: IncomingRequest, stored: StoredEntry | None) -> None:
        """Handle a deferred add. ``stored``: its entry, read from the disk in this step of the loop."""
        assert isinstance(incoming.request, AddRequest)  # ``reply_to`` calls for adds only
        self._add(incoming, incoming.request, stored)
        self._finish()

    def encode(self, incoming: IncomingRequest, reply: Reply) -> bytes:
        """The frame of a reply, in the version and with the ids of its request."""
        if incoming.version != 3:
            # Java's version 2 client cannot decode code 107 and drops the connection. Code 101 does not deny
            # the entry either.
            if reply.code is Code.UNKNOWN_LEDGER_STATE:
                reply = attrs.evolve(reply, code=Code.IO_ERROR)
            return v2.encode_reply(reply, version=incoming.version, operation=incoming.operation)
        return v3.encode_reply(
            reply, version=3, operation=incoming.operation, transaction_id=incoming.transaction_id
        )

    def send_plain(self, ledger_id: int, entry_id: int, code: Code, body: bytes = b"") -> None:
        """Reply to one of the ``PlainReads``."""
        if code is Code.UNKNOWN_LEDGER_STATE:
            code = Code.IO_ERROR  # see ``encode``
        self._send(plain_reply(_IDS.pack(ledger_id, entry_id), code, body))

    # The end of a chunk

    def _finish(self) -> None:
        if not self._batch.is_empty:
            try:
                sync = self._needs_sync
                self.has_written = True
                begun = self._in_progress.begin_batch(self._adds_count, len(self._fenced_reads))
                self._adds_count = 0
                settle = partial(self._settle, b"".join(self._acks), self._fences, self._fenced_reads, begun)
                self._acks, self._fences, self._fenced_reads = [], [], []
                self._needs_sync = False
                batch, self._batch = self._batch, self._storage.new_batch()
                self._storage.submit(batch, settle, sync=sync)
            except Exception as exc:
                # Its entries are in the cache. They would be acknowledged when they are sent again.
                raise self._storage.failure.half_made(exc, "submitting a chunk") from exc
        if self._immediate:
            frames = b"".join(self._immediate)
            self._immediate.clear()
            self._send(frames)
        if self._misses:
            misses = b"".join(self._misses)
            self._misses.clear()
            self._defer(PlainReads(misses))
        if self._grown:
            if self._watches.watchers:
                for ledger_id in self._grown:
                    ledger = self._storage.ledger(ledger_id)
                    if ledger is not None:
                        self._watches.lac_is(ledger_id, ledger.lac)
            self._grown.clear()

    def _settle(
        self,
        acks: bytes,
        fences: list[int],
        fenced_reads: list[IncomingRequest],
        begun: BatchBegun,
        error: BaseException | None,
    ) -> None:
        """The batch is durable, or has failed."""
        self._in_progress.end_batch(begun, error)
        if error is None:
            for ledger_id in fences:
                self._service.fences.durable(ledger_id)
        try:
            if error is None:
                if acks:
                    self._send(acks)
                for incoming in fenced_reads:
                    self._defer(incoming)
                return
            # Fences of a failed batch stay pending, so that no request counts them as durable.
            frames = [as_failed(acks)] if acks else []
            frames += [self.encode(incoming, refusal(incoming, Code.IO_ERROR)) for incoming in fenced_reads]
            self._send(b"".join(frames))
        except Exception as exc:  # of this connection; the journal's other batches are acknowledged
            self.on_fault(exc)

    # Requests

    def _handle_frame(self, data: bytes, start: int, end: int) -> bool:
        """False: the frame waits for a decision about its peer."""
        incoming = decode_request(data, start, end)
        if isinstance(incoming, bytes):
            self._immediate.append(incoming)
            return True
        if self.access is not None:
            granted = self.access.check(incoming)
            if granted is None:
                return False
            if isinstance(granted, Code):
                self._refuse(incoming, granted)
                return True
            incoming = granted
        self._dispatch(incoming)
        return True

    def _waiting(self, data: bytes, spans: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
        """The first of these frames waits for a decision about its peer, and the others after it."""
        assert self.access is not None  # without it ``_handle_frame`` lets no frame wait
        self.access.want_others(data, spans[1:])
        self.wait_decision = self.access.decide
        return spans

    def _dispatch(self, incoming: IncomingRequest) -> None:
        request = incoming.request
        match request:
            case AddRequest():
                self._add(incoming, request)
            case ReadRequest() | BatchReadRequest():
                if request.fence:
                    self._fence(incoming, request)
                elif isinstance(request, ReadRequest) and request.previous_lac is None:
                    self._read(incoming, request)
                else:
                    self._defer(incoming)
            case WriteLacRequest():
                self._write_lac(incoming, request)
            case ForceLedgerRequest():
                self._acks.append(self.encode(incoming, ForceLedgerReply(Code.OK, request.ledger_id)))
                self._batch.await_ledger(request.ledger_id)  # this chunk may go to other journals only
                self._needs_sync = True
            case ReadLacRequest() | BookieInfoRequest() | ListEntriesRequest():
                self._defer(incoming)
            case StartTlsRequest():
                if self.may_upgrade:
                    self.is_upgrading = True
                    self._defer(incoming)
                else:
                    self._refuse(incoming, Code.BAD_REQUEST)
            case AuthRequest():
                self._immediate.append(self.encode(incoming, AuthReply(Code.OK, AUTH_DISABLED, b"")))
            case None:
                self._refuse(incoming, Code.BAD_REQUEST)
            case _:
                assert_never(request)

    def _refuse(self, incoming: IncomingRequest, code: Code) -> None:
        self._immediate.append(self.encode(incoming, refusal(incoming, code)))

    def _add(self, incoming: IncomingRequest, request: AddRequest, stored: StoredEntry | None = None) -> None:
        """An add outside the fast loop: version 3, with flags, the first of a ledger, or one to refuse.

        Also one that is not above the last entry: the bookie may hold the entry.
        """
        body = request.body
        if not ENTRY_HEADER_BYTES <= len(body) <= RECORD_BYTES_MAX:
            return self._refuse(incoming, Code.BAD_REQUEST)
        ledger_id, entry_id, lac = _BODY_IDS.unpack_from(body)
        # The ids in the body count. Java only echoes the ids beside it, and stores negative entry ids, which
        # its journal then reads as keys and fences.
        if ledger_id != request.ledger_id or entry_id != request.entry_id or ledger_id < 0 or entry_id < 0:
            return self._refuse(incoming, Code.BAD_REQUEST)
        rights = self._rights
        if not rights.writable and not (incoming.high_priority and rights.high_priority_writable):
            return self._refuse(incoming, Code.READ_ONLY)
        if self._service.was_fenced_and_deleted(ledger_id):
            return self._refuse(incoming, Code.FENCED)
        ledger = self._ledger_for_writing(ledger_id, request.master_key)
        if isinstance(ledger, Code):
            return self._refuse(incoming, ledger)
        if ledger.fenced and not request.recovery:
            return self._refuse(incoming, Code.FENCED)
        found: Comparison | None = None
        if entry_id <= ledger.last_entry_id:
            held = self._storage.find_entry(ledger, entry_id)
            if isinstance(held, bytes):
                found = compare(held, body)
            elif held:
                if stored is None:
                    return self._defer(incoming)  # ``add_again`` follows
                if stored.ledger is not ledger:  # it was deleted and created again during the read
                    return self._refuse(incoming, Code.IO_ERROR)
                found = stored.compare(body)
        if found is None:
            self._storage.stage_entry(self._batch, ledger, entry_id, lac, body)
            self._grown.add(ledger_id)
        elif found is Comparison.SAME:
            self._batch.await_ledger(ledger_id)  # the held entry may not be durable yet
        else:
            self._service.refused_adds.note(ledger_id, entry_id)
            return self._refuse(incoming, Code.BAD_REQUEST)
        self._acks.append(self.encode(incoming, AddReply(Code.OK, ledger_id, entry_id)))
        self._adds_count += 1
        self._needs_sync |= self._service.sync_adds and (request.recovery or not request.deferred_sync)
        return None

    def _ledger_for_writing(self, ledger_id: int, master_key: bytes) -> LedgerRecord | Code:
        """The ledger, created with this key if it is new; the code of the refusal if that must not be."""
        ledger = self._storage.ledger(ledger_id)
        if ledger is None or ledger.master_key == UNKNOWN_KEY:
            if len(master_key) != MASTER_KEY_BYTES:
                return Code.UNAUTHORIZED
            if ledger is None and not self._service.may_exist(ledger_id):
                return Code.BAD_REQUEST
            new_ledgers = self._service.new_ledgers
            if ledger is None and new_ledgers is not None and not new_ledgers.admit(ledger_id):
                return Code.TOO_MANY_REQUESTS
            ledger = self._storage.create_ledger(self._batch, ledger_id, master_key)
        return ledger if ledger.master_key == master_key else Code.UNAUTHORIZED

    def _fence(self, incoming: IncomingRequest, request: ReadRequest | BatchReadRequest) -> None:
        ledger_id = request.ledger_id
        if request.master_key is None:
            return self._refuse(incoming, Code.UNAUTHORIZED)
        if ledger_id < 0:
            return self._refuse(incoming, Code.BAD_REQUEST)
        if self._storage.ledger(ledger_id) is None and self._service.was_fenced_and_deleted(ledger_id):
            return self._refuse(incoming, Code.NO_LEDGER)
        if not self._rights.takes_records:
            return self._refuse(incoming, Code.READ_ONLY)
        ledger = self._ledger_for_writing(ledger_id, request.master_key)
        if isinstance(ledger, Code):
            return self._refuse(incoming, ledger)
        if self._service.fences.is_durable(ledger):
            self._defer(incoming)
            return None
        if not ledger.fenced:
            self._service.fences.staged(ledger_id)  # first: a fence that is staged never counts as durable
            self._storage.stage_fence(self._batch, ledger)
            self._fences.append(ledger_id)
            self._watches.ledger_changed(ledger_id)
        # Another client's fence may be pending: this batch becomes durable after it. Java replies to a failed
        # read without waiting. After a power failure it could then acknowledge an add of the old writer.
        self._fenced_reads.append(incoming)
        self._batch.await_ledger(ledger_id)
        self._needs_sync = True
        return None

    def _read(self, incoming: IncomingRequest, request: ReadRequest) -> None:
        ledger = self._storage.ledger(request.ledger_id)
        if ledger is None:
            return self._refuse(incoming, Code.NO_LEDGER)
        if ledger.limbo and request.entry_id == LAST_ENTRY:
            return self._defer(incoming)  # it is refused and counted there
        entry_id = ledger.last_entry_id if request.entry_id == LAST_ENTRY else request.entry_id
        if entry_id < 0:
            return self._refuse(incoming, Code.NO_ENTRY)
        body = self._read_inline(request.ledger_id, entry_id)
        if body is None:
            self._defer(incoming)
        else:
            reply = ReadReply(Code.OK, request.ledger_id, request.entry_id, body, max_lac=ledger.lac)
            self._immediate.append(self.encode(incoming, reply))
        return None

    def _plain_read(self, ids: bytes, ledger_id: int, entry_id: int) -> None:
        if self._storage.ledger(ledger_id) is None:
            self._immediate.append(plain_reply(ids, Code.NO_LEDGER))
            return
        body = self._read_inline(ledger_id, entry_id)
        if body is None:
            self._misses.append(ids)
        else:
            self._immediate.append(plain_reply(ids, Code.OK, body))

    def _read_inline(self, ledger_id: int, entry_id: int) -> bytes | None:
        if self._inline_bytes_left is None:
            self._inline_bytes_left = min(self.free_bytes(), INLINE_READ_BYTES_MAX)
        if self._inline_bytes_left <= 0:
            return None
        body = self._storage.read_cached(ledger_id, entry_id)
        if body is not None:
            self._inline_bytes_left -= len(body)
        return body

    def _write_lac(self, incoming: IncomingRequest, request: WriteLacRequest) -> None:
        ledger_id = request.ledger_id
        if not _is_well_formed(request):
            return self._refuse(incoming, Code.BAD_REQUEST)
        if request.hint:
            if _take_hint(self._storage, request):
                self._grown.add(ledger_id)
            return None
        if not self._rights.writable:
            return self._refuse(incoming, Code.READ_ONLY)
        if self._service.was_fenced_and_deleted(ledger_id):
            return self._refuse(incoming, Code.NO_LEDGER)
        ledger = self._ledger_for_writing(ledger_id, request.master_key)
        if isinstance(ledger, Code):
            return self._refuse(incoming, ledger)
        self._storage.stage_explicit_lac(self._batch, ledger, request.body)
        self._grown.add(ledger_id)
        self._acks.append(self.encode(incoming, WriteLacReply(Code.OK, ledger_id)))
        self._needs_sync |= self._service.sync_adds
        return None


def decode_request(data: bytes, start: int, end: int) -> IncomingRequest | bytes:
    """The request in ``data[start:end]``, or the frame of the reply that refuses it.

    Raises:
        WireError: It is no message.
    """
    if data[start] >= v3.FIRST_BYTE_MIN:
        try:
            incoming = v3.decode_request(data, start, end)
        except WireError:
            # A version 2 header with an unknown version: the version 2 decoder may still find the ids.
            return _refused_version_2(v2.decode_request(data, start, end))
        if incoming.version == v3.VERSION:
            return incoming
        reply = refusal(incoming, Code.BAD_VERSION)
        return v3.encode_reply(
            reply, version=v3.VERSION, operation=incoming.operation, transaction_id=incoming.transaction_id
        )
    if v2.ADD_BODY_OFFSET + _IDS.size <= end - start < v2.ADD_REQUEST_BYTES_MIN and data[start + 1] == 1:
        return v2.add_reply(Code.BAD_REQUEST, *_IDS.unpack_from(data, start + v2.ADD_BODY_OFFSET))
    incoming = v2.decode_request(data, start, end)
    return _refused_version_2(incoming) if incoming.version > v2.VERSION else incoming


def _refused_version_2(incoming: IncomingRequest) -> bytes:
    try:
        reply = refusal(incoming, Code.BAD_VERSION)
        return v2.encode_reply(reply, version=incoming.version, operation=incoming.operation)
    except UnsupportedInVersionError as exc:
        raise WireError(f"protocol version {incoming.version}, which no reply can refuse: {exc}") from exc


def _is_well_formed(request: WriteLacRequest) -> bool:
    """True if the packet has the size of one and is of the ledger that the request names."""
    if not _IDS.size <= len(request.body) <= LAC_PACKET_BYTES_MAX:
        return False
    ledger_id, _ = _IDS.unpack_from(request.body)
    return bool(ledger_id == request.ledger_id and ledger_id >= 0)


def _take_hint(storage: Storage, request: WriteLacRequest) -> bool:
    """Raise the LAC of the ledger by a well-formed hint; False if nothing changed.

    A writer whose last entries are confirmed tells the bookies so by a hint. Readers then need not wait for
    the next entry. A hint costs no journal write and gets no reply. It stays true for good, since only a
    confirmed entry is hinted; a bookie that forgets it learns the LAC from the next entry.
    """
    ledger = storage.ledger(request.ledger_id)
    if ledger is None or ledger.master_key != request.master_key or ledger.fenced or ledger.limbo:
        return False
    return storage.hint_lac(ledger, request.body)
