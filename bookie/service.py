"""What a bookie answers: rights, keys, fences, and which answer waits for the disk.

Inside: ``BookieService``, what all connections share (rights, long polls, fences on their way), and
``Session``, one connection's requests in, its answers out. Adds and reads of recent entries are answered
here; whatever must wait for something goes to the shell as ``Slow`` work (``answers``).
Not inside: sockets and their order (``server``), disks (``storage``), bytes of messages (``ledger.wire``).
Always: an add or a fence is acknowledged only after the run that holds its record is durable (but for adds
whose sender asked for less); the check of a ledger's fence and the staging of an entry happen in one step
of the event loop, so no entry slips in behind a fence; one run of the journal for each chunk received.

Source: BookKeeper, BookieRequestProcessor.java, WriteEntryProcessor.java, ReadEntryProcessor.java,
WriteLacProcessorV3.java, ForceLedgerProcessorV3.java; reference section 9, deviations of section 13.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, assert_never

import attrs

from bookie.in_progress import InProgress
from bookie.journal_format import LAC_PACKET_BYTES_MAX, RECORD_BYTES_MAX
from bookie.lac_watch import LacWatches
from bookie.ledgers import UNKNOWN_KEY, LedgerRecord
from bookie.replies import READ_HEADER, as_failed, plain_reply, refusal
from ledger.digest import ENTRY_HEADER_BYTES
from ledger.errors import UnsupportedInVersionError, WireError
from ledger.wire import v2, v3
from ledger.wire.codes import MASTER_KEY_BYTES, Code
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
    from bookie.storage import Storage

AUTH_DISABLED = "AuthDisabledPlugin"  # a client that reads this name takes itself for authenticated
TOMBS_MAX = 200_000  # fenced ledgers, deleted here, that are remembered
INLINE_READ_BYTES_MAX = 1_048_576  # of one chunk's reads; the others wait until these are sent

_BODY_IDS = Struct(">qqq")  # ledger id, entry id, LAC: how every entry begins
_LAC_IDS = Struct(">qq")  # ledger id, LAC: how every LAC packet begins
_ADD_OK = v2.add_reply(Code.OK, 0, 0)[:12]  # length, header, code; the entry's own first 16 bytes follow
_READ_REQUEST = Struct(">Iqq")


@attrs.define(eq=False)
class Rights:
    """What this bookie takes now. Changed by whoever watches its disks, read at each chunk."""

    writable: bool = True
    high_priority_writable: bool = True  # recovery's adds on a read-only bookie


@attrs.frozen
class PlainReads:
    """Version 2 reads, without flags, of entries that are not in memory; in order of arrival."""

    ids: bytes  # ledger id and entry id of each: many may wait, and take no more memory than they came in

    @classmethod
    def of(cls, *entries: tuple[int, int]) -> PlainReads:
        return cls(b"".join(itertools.starmap(_LAC_IDS.pack, entries)))

    def __len__(self) -> int:
        return len(self.ids) // _LAC_IDS.size

    def __getitem__(self, at: int) -> tuple[int, int]:
        """Ledger id, entry id."""
        ledger_id, entry_id = _LAC_IDS.unpack_from(self.ids, at * _LAC_IDS.size)
        return ledger_id, entry_id


Slow = PlainReads | IncomingRequest


@attrs.define(eq=False)
class BookieService:
    """One bookie's state behind all of its connections."""

    storage: Storage
    rights: Rights = attrs.field(factory=Rights)
    sync_adds: bool = True  # False: acknowledge adds before they are synced (``journalSyncData=false``)
    has_tls: bool = False
    watches: LacWatches = attrs.field(factory=LacWatches, init=False)
    in_progress: InProgress = attrs.field(factory=InProgress, init=False)
    _fences_on_their_way: dict[int, int] = attrs.field(factory=dict, init=False)
    _fenced_and_deleted: dict[int, None] = attrs.field(factory=dict, init=False)

    def open_session(self, send: Callable[[bytes], None], start: Callable[[Slow], None]) -> Session:
        """The machine of a new connection.

        Args:
            send: Queues whole frames for sending. Called at any time, also after the connection is gone.
            start: Begins work whose answer comes later, through ``Session.reply``.
        """
        return Session(self, send, start)

    def ledger_deleted(self, ledger_id: int, *, fenced: bool) -> None:
        """Storage no longer has the ledger: wake its long polls; if fenced, keep its old writer out.

        Without this memory a deleted ledger's writer would create it anew with its next add.
        """
        if fenced:
            self._fenced_and_deleted[ledger_id] = None
            if len(self._fenced_and_deleted) > TOMBS_MAX:
                del self._fenced_and_deleted[next(iter(self._fenced_and_deleted))]
        self.watches.ledger_changed(ledger_id)

    def was_fenced_and_deleted(self, ledger_id: int) -> bool:
        return ledger_id in self._fenced_and_deleted

    def fence_is_durable(self, ledger: LedgerRecord) -> bool:
        return ledger.fenced and ledger.ledger_id not in self._fences_on_their_way

    def fence_staged(self, ledger_id: int) -> None:
        self._fences_on_their_way[ledger_id] = self._fences_on_their_way.get(ledger_id, 0) + 1

    def fence_durable(self, ledger_id: int) -> None:
        left = self._fences_on_their_way.pop(ledger_id) - 1
        if left:
            self._fences_on_their_way[ledger_id] = left


class Session:
    """One connection: frames in, answers out through the callbacks it was made with."""

    def __init__(
        self, service: BookieService, send: Callable[[bytes], None], start: Callable[[Slow], None]
    ) -> None:
        self.may_upgrade = service.has_tls  # the shell clears it once the connection is TLS
        self.inline_bytes_max = (
            INLINE_READ_BYTES_MAX  # of one chunk; the shell lowers it when memory is short
        )
        self.has_written = False  # this peer adds entries
        self._service = service
        self._storage = service.storage
        self._rights = service.rights
        self._watches = service.watches
        self._in_progress = service.in_progress
        self._send = send
        self._start = start
        # Of the chunk in work:
        self._at_once: list[bytes] = []  # frames that need not wait for the disk
        self._acks: list[bytes] = []  # frames that wait for the staged run
        self._fenced_reads: list[IncomingRequest] = []  # they wait for it too
        self._fences: list[int] = []  # ledgers whose fence records are in the staged run
        self._grown: set[int] = set()  # ledgers that got entries or LACs
        self._misses: list[bytes] = []  # ids of plain reads to be done by storage
        self._is_staged = False  # something is in the run, or somebody waits for all that is before it
        self._needs_sync = False  # somebody in the run was promised a sync
        self._adds_count = 0
        self._inline_bytes_left = 0

    def handle(self, data: bytes, spans: Sequence[tuple[int, int]]) -> None:
        """Take the frames of one chunk, in order.

        Raises:
            WireError: A frame that is no message. What came before it is done; close the connection.
        """
        storage = self._storage
        stage_entry = storage.stage_entry
        unpack = v2.ADD_REQUEST.unpack_from
        add_bytes_min = v2.ADD_REQUEST_BYTES_MIN
        # A chunk that may hold an entry too long to be stored goes the long way, which looks at each.
        is_plain = self._rights.writable and len(data) <= RECORD_BYTES_MAX
        header_of_add = v2.ADD_HEADER if is_plain else -1
        added: list[bytes] = []  # for each acknowledged v2 add, its entry's first 16 bytes
        ledger: LedgerRecord | None = None
        current_id = -1
        master_key = b""
        self._inline_bytes_left = min(self.inline_bytes_max, INLINE_READ_BYTES_MAX)
        try:
            for start, end in spans:
                size = end - start
                if size >= add_bytes_min:
                    header, key, ledger_id, entry_id, lac = unpack(data, start)
                    if header == header_of_add:
                        if ledger_id != current_id:
                            ledger = storage.ledger(ledger_id)
                            if ledger is not None:
                                current_id = ledger_id
                                master_key = ledger.master_key
                                self._grown.add(ledger_id)
                        if ledger is not None and key == master_key and entry_id >= 0 and not ledger.fenced:
                            body_at = start + 24
                            stage_entry(ledger, entry_id, lac, data[body_at:end])
                            added.append(data[body_at : start + 40])
                            continue
                elif size == 20:
                    header, ledger_id, entry_id = _READ_REQUEST.unpack_from(data, start)
                    if header == READ_HEADER and entry_id >= 0:
                        self._plain_read(data[start + 4 : end], ledger_id, entry_id)
                        continue
                self._take(data, start, end)
        finally:
            # Also after a bad frame: what was staged belongs to this run and no other.
            if added:
                self._acks.append(_ADD_OK + _ADD_OK.join(added))
                self._adds_count += len(added)
                self._must_stage(sync=self._service.sync_adds)
            self._finish()

    def reply(self, incoming: IncomingRequest, reply: Reply) -> None:
        """Send the answer of slow work."""
        self._send(self.encode(incoming, reply))

    def encode(self, incoming: IncomingRequest, reply: Reply) -> bytes:
        """The answer's frame, in the version and with the marks of its request."""
        if incoming.version != 3:
            # Java's version 2 client cannot decode 107 and drops the connection; 101 says "unknown" as well.
            if reply.code is Code.UNKNOWN_LEDGER_STATE:
                reply = attrs.evolve(reply, code=Code.IO_ERROR)
            return v2.encode_reply(reply, version=incoming.version, operation=incoming.operation)
        return v3.encode_reply(
            reply, version=3, operation=incoming.operation, transaction_id=incoming.transaction_id
        )

    def send_plain(self, ledger_id: int, entry_id: int, code: Code, body: bytes = b"") -> None:
        """Answer one of the ``PlainReads``."""
        if code is Code.UNKNOWN_LEDGER_STATE:
            code = Code.IO_ERROR  # as ``encode`` does
        self._send(plain_reply(_LAC_IDS.pack(ledger_id, entry_id), code, body))

    # The end of a chunk

    def _must_stage(self, *, sync: bool) -> None:
        self._is_staged = True
        self._needs_sync |= sync

    def _finish(self) -> None:
        if self._is_staged:
            sync = self._needs_sync
            self.has_written = True
            adds_count = self._adds_count
            self._adds_count = 0
            self._in_progress.count_adds(adds_count)
            settle = partial(self._settle, b"".join(self._acks), self._fences, self._fenced_reads, adds_count)
            self._acks, self._fences, self._fenced_reads = [], [], []
            self._is_staged = self._needs_sync = False
            self._storage.submit(settle, sync=sync)
        if self._at_once:
            frames = b"".join(self._at_once)
            self._at_once.clear()
            self._send(frames)
        if self._misses:
            misses = b"".join(self._misses)
            self._misses.clear()
            self._start(PlainReads(misses))
        if self._grown:
            if self._watches:
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
        adds_count: int,
        error: BaseException | None,
    ) -> None:
        """The run is durable, or never will be."""
        self._in_progress.count_adds(-adds_count)
        if error is None:
            for ledger_id in fences:
                self._service.fence_durable(ledger_id)
            if acks:
                self._send(acks)
            for incoming in fenced_reads:
                self._start(incoming)
            return
        # Fences of a failed run stay "on their way": nobody may take them for durable.
        frames = [as_failed(acks)] if acks else []
        frames += [self.encode(incoming, refusal(incoming, Code.IO_ERROR)) for incoming in fenced_reads]
        self._send(b"".join(frames))

    # Requests

    def _take(self, data: bytes, start: int, end: int) -> None:
        if data[start] >= v3.FIRST_BYTE_MIN:
            try:
                incoming = v3.decode_request(data, start, end)
            except WireError:
                # Version 2's header with a version nobody knows; its own decoder may still find the ids.
                self._refuse_version_2(v2.decode_request(data, start, end))
                return
            if incoming.version != v3.VERSION:
                self._refuse(attrs.evolve(incoming, version=v3.VERSION), Code.BAD_VERSION)
                return
        else:
            if v2.ADD_BODY_OFFSET + 16 <= end - start < v2.ADD_REQUEST_BYTES_MIN and data[start + 1] == 1:
                ids = data[start + v2.ADD_BODY_OFFSET : start + v2.ADD_BODY_OFFSET + 16]
                self._at_once.append(v2.add_reply(Code.BAD_REQUEST, *_LAC_IDS.unpack(ids)))
                return
            incoming = v2.decode_request(data, start, end)
            if incoming.version > v2.VERSION:
                self._refuse_version_2(incoming)
                return
        self._dispatch(incoming)

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
                    self._start(incoming)
            case WriteLacRequest():
                self._write_lac(incoming, request)
            case ForceLedgerRequest():
                self._acks.append(self.encode(incoming, ForceLedgerReply(Code.OK, request.ledger_id)))
                self._storage.await_ledger(request.ledger_id)  # this chunk may go to other journals only
                self._must_stage(sync=True)
            case ReadLacRequest() | BookieInfoRequest() | ListEntriesRequest():
                self._start(incoming)
            case StartTlsRequest():
                if self.may_upgrade:
                    self._start(incoming)
                else:
                    self._refuse(incoming, Code.BAD_REQUEST)
            case AuthRequest():
                self._at_once.append(self.encode(incoming, AuthReply(Code.OK, AUTH_DISABLED, b"")))
            case None:
                self._refuse(incoming, Code.BAD_REQUEST)
            case _:
                assert_never(request)

    def _refuse(self, incoming: IncomingRequest, code: Code) -> None:
        self._at_once.append(self.encode(incoming, refusal(incoming, code)))

    def _refuse_version_2(self, incoming: IncomingRequest) -> None:
        try:
            reply = refusal(incoming, Code.BAD_VERSION)
            frame = v2.encode_reply(reply, version=incoming.version, operation=incoming.operation)
        except UnsupportedInVersionError as exc:
            raise WireError(f"protocol version {incoming.version}, and no way to say so: {exc}") from exc
        self._at_once.append(frame)

    def _add(self, incoming: IncomingRequest, request: AddRequest) -> None:
        """An add outside the fast loop: version 3, flags, first contact, or something to refuse."""
        body = request.body
        if not ENTRY_HEADER_BYTES <= len(body) <= RECORD_BYTES_MAX:
            return self._refuse(incoming, Code.BAD_REQUEST)
        ledger_id, entry_id, lac = _BODY_IDS.unpack_from(body)
        # The body decides; Java only echoes the ids beside it, and keeps negative entry ids, which its
        # journal then takes for keys and fences.
        if ledger_id != request.ledger_id or entry_id != request.entry_id or ledger_id < 0 or entry_id < 0:
            return self._refuse(incoming, Code.BAD_REQUEST)
        rights = self._rights
        if not rights.writable and not (incoming.high_priority and rights.high_priority_writable):
            return self._refuse(incoming, Code.READ_ONLY)
        if self._service.was_fenced_and_deleted(ledger_id):
            return self._refuse(incoming, Code.FENCED)
        ledger = self._ledger_for_writing(ledger_id, request.master_key)
        if ledger is None:
            return self._refuse(incoming, Code.UNAUTHORIZED)
        if ledger.fenced and not request.recovery:
            return self._refuse(incoming, Code.FENCED)
        self._storage.stage_entry(ledger, entry_id, lac, body)
        self._grown.add(ledger_id)
        self._acks.append(self.encode(incoming, AddReply(Code.OK, ledger_id, entry_id)))
        self._adds_count += 1
        self._must_stage(sync=self._service.sync_adds and (request.recovery or not request.deferred_sync))
        return None

    def _ledger_for_writing(self, ledger_id: int, master_key: bytes) -> LedgerRecord | None:
        """The ledger, made and bound to the key at first contact; None if bound to another key."""
        ledger = self._storage.ledger(ledger_id)
        if ledger is None or ledger.master_key == UNKNOWN_KEY:
            if len(master_key) != MASTER_KEY_BYTES:
                return None
            ledger = self._storage.create_ledger(ledger_id, master_key)
            self._is_staged = True
        return ledger if ledger.master_key == master_key else None

    def _fence(self, incoming: IncomingRequest, request: ReadRequest | BatchReadRequest) -> None:
        ledger_id = request.ledger_id
        if request.master_key is None:
            return self._refuse(incoming, Code.UNAUTHORIZED)
        if ledger_id < 0:
            return self._refuse(incoming, Code.BAD_REQUEST)
        if self._storage.ledger(ledger_id) is None and self._service.was_fenced_and_deleted(ledger_id):
            return self._refuse(incoming, Code.NO_LEDGER)
        ledger = self._ledger_for_writing(ledger_id, request.master_key)
        if ledger is None:
            return self._refuse(incoming, Code.UNAUTHORIZED)
        if self._service.fence_is_durable(ledger):
            self._start(incoming)
            return None
        if not ledger.fenced:
            self._storage.stage_fence(ledger)
            self._service.fence_staged(ledger_id)
            self._fences.append(ledger_id)
            self._watches.ledger_changed(ledger_id)
        # Somebody else's fence may be on its way: this run is synced after it. Java answers a failed read
        # without waiting; an old writer's add could then be acknowledged after a power failure.
        self._fenced_reads.append(incoming)
        self._storage.await_ledger(ledger_id)
        self._must_stage(sync=True)
        return None

    def _read(self, incoming: IncomingRequest, request: ReadRequest) -> None:
        ledger = self._storage.ledger(request.ledger_id)
        if ledger is None:
            return self._refuse(incoming, Code.NO_LEDGER)
        if ledger.limbo and request.entry_id == LAST_ENTRY:
            return self._refuse(incoming, Code.UNKNOWN_LEDGER_STATE)
        entry_id = ledger.last_entry_id if request.entry_id == LAST_ENTRY else request.entry_id
        if entry_id < 0:
            return self._refuse(incoming, Code.NO_ENTRY)
        body = self._read_inline(request.ledger_id, entry_id)
        if body is None:
            self._start(incoming)
        else:
            reply = ReadReply(Code.OK, request.ledger_id, request.entry_id, body, max_lac=ledger.lac)
            self._at_once.append(self.encode(incoming, reply))
        return None

    def _plain_read(self, ids: bytes, ledger_id: int, entry_id: int) -> None:
        if self._storage.ledger(ledger_id) is None:
            self._at_once.append(plain_reply(ids, Code.NO_LEDGER))
            return
        body = self._read_inline(ledger_id, entry_id)
        if body is None:
            self._misses.append(ids)
        else:
            self._at_once.append(plain_reply(ids, Code.OK, body))

    def _read_inline(self, ledger_id: int, entry_id: int) -> bytes | None:
        if self._inline_bytes_left <= 0:
            return None
        body = self._storage.read_cached(ledger_id, entry_id)
        if body is not None:
            self._inline_bytes_left -= len(body)
        return body

    def _write_lac(self, incoming: IncomingRequest, request: WriteLacRequest) -> None:
        if not _LAC_IDS.size <= len(request.body) <= LAC_PACKET_BYTES_MAX:
            return self._refuse(incoming, Code.BAD_REQUEST)
        ledger_id, _ = _LAC_IDS.unpack_from(request.body)
        if ledger_id != request.ledger_id or ledger_id < 0:
            return self._refuse(incoming, Code.BAD_REQUEST)
        if not self._rights.writable:
            return self._refuse(incoming, Code.READ_ONLY)
        if self._service.was_fenced_and_deleted(ledger_id):
            return self._refuse(incoming, Code.NO_LEDGER)
        ledger = self._ledger_for_writing(ledger_id, request.master_key)
        if ledger is None:
            return self._refuse(incoming, Code.UNAUTHORIZED)
        self._storage.stage_explicit_lac(ledger, request.body)
        self._grown.add(ledger_id)
        self._acks.append(self.encode(incoming, WriteLacReply(Code.OK, ledger_id)))
        self._must_stage(sync=self._service.sync_adds)
        return None
