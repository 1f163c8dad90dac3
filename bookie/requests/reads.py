"""Replies that come after a read from disk.

Inside: reads of entries that are no longer in memory, batch reads, explicit LACs, lists of entries, disk
space, reading the entry that an add repeats. Not inside: immediate replies and all writes (``session``);
which reply a long poll gets (``poll_replies``); how many requests of a connection may wait
(``deferred_work``).
Always: every deferred request gets exactly one reply, also if the storage fails; nothing here writes; no
entry of a ledger in limbo is denied. Whether a ledger is in limbo is checked before the read. Limbo may end
during the read, and an entry that the read did not find may be there by then.

Source: BookKeeper, ReadEntryProcessorV3.java, BatchedReadEntryProcessor.java, ReadLacProcessorV3.java,
GetBookieInfoProcessorV3.java; docs/protocol.md 9.3 to 9.7.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import attrs

from bookie.digest_checker import CHECKSUM_TYPES
from bookie.errors import EntryUnreadableError, LimboError, NoEntryError, NoLedgerError
from bookie.ledger_record import LedgerRecord
from bookie.requests.deferred import DeferredRequest, PlainReads, WokenPoll
from bookie.requests.poll_replies import GUESS_BYTES, PollReplies, ReplySpace, known_ledger
from bookie.requests.repeated_adds import Comparison, StoredEntry
from bookie.requests.replies import refusal
from bookie.requests.session import BookieService, ClientSession
from bookie.requests.turns import READ_UNITS, Turns
from ledger.codes import Code
from ledger.digest import DigestType
from ledger.wire.messages import (
    LAST_ENTRY,
    AddRequest,
    BatchReadReply,
    BatchReadRequest,
    BookieInfoReply,
    BookieInfoRequest,
    IncomingRequest,
    ListEntriesReply,
    ListEntriesRequest,
    LocatedReply,
    ReadLacReply,
    ReadLacRequest,
    ReadReply,
    ReadRequest,
    Reply,
)

T = TypeVar("T")
SLICE_READS = 64  # at most this many in one step of the loop
READ_BATCH_BYTES_MAX = 1_048_576  # read from disk at once for a series of plain reads

_BATCH_REPLY_BYTES = 36  # header, request id and prefix: where a batch read begins to count
_BATCH_ENTRY_BYTES = 4  # the length in front of each entry
_ENTRY_BYTES_MIN = 32
_LOCATED_MAX = 4096  # entries in one reply that names their place
_LOCATED_BYTES_MAX = 8 << 20  # of these entries


@attrs.frozen
class DeferredReplies:
    """Replies to the deferred requests of one connection."""

    service: BookieService
    session: ClientSession
    queue: ReplySpace
    wall_ms: Callable[[], int]
    batch_bytes_max: int  # of one batch read's reply
    turns: Turns = attrs.field(factory=Turns)
    park: Callable[[IncomingRequest, ReadRequest], None] = lambda incoming, request: None  # lets it wait
    polls: PollReplies = attrs.field(init=False)

    @polls.default
    def _of_polls(self) -> PollReplies:
        return PollReplies(self.service.storage, self.session, self.queue, self._read, self.park)

    async def reply_to(self, deferred: DeferredRequest) -> int:
        """Do what the request needs, and send its reply. A cancelled call sends no reply.

        Returns:
            How many of its reads got no entry.
        """
        if isinstance(deferred, PlainReads):
            return await self._plain_reads(deferred)
        if isinstance(deferred, IncomingRequest) and isinstance(deferred.request, AddRequest):
            await self._add_again(deferred, deferred.request)
            return 0
        await self.queue.wait_capacity()
        incoming = deferred.incoming if isinstance(deferred, WokenPoll) else deferred
        missing = self._code_of_missing(getattr(incoming.request, "ledger_id", -1))
        reply: Reply | None
        try:
            if isinstance(deferred, WokenPoll):
                reply = await self.polls.answer(deferred.request, deferred.updated_ms)
            else:
                reply = await self._reply(deferred)
        except NoEntryError:
            reply = refusal(incoming, missing)
        except LimboError:
            reply = refusal(incoming, Code.UNKNOWN_LEDGER_STATE)
        except NoLedgerError:
            reply = refusal(incoming, Code.NO_LEDGER)
        except EntryUnreadableError:
            reply = refusal(incoming, Code.IO_ERROR)
        if reply is None:
            return 0
        self.session.reply(incoming, reply)
        self._count_unknown(reply.code)
        return int(reply.code is not Code.OK)

    def _count_unknown(self, code: Code) -> None:
        if code is Code.UNKNOWN_LEDGER_STATE:
            self.service.in_progress.unknown_replies += 1

    async def _reply(self, incoming: IncomingRequest) -> Reply | None:
        request = incoming.request
        match request:
            case ReadRequest():
                if request.previous_lac is not None and not request.fence:
                    return await self.polls.reply_or_park(incoming, request)
                return await self._read(request)
            case BatchReadRequest():
                return await self._batch_read(request)
            case ReadLacRequest():
                return await self._read_lac(request)
            case ListEntriesRequest():
                if known_ledger(self.service.storage, request.ledger_id).limbo:
                    raise LimboError(request.ledger_id)
                async with self.turns.lists:  # a list of a large ledger keeps a thread busy
                    availability = await self.service.storage.availability(request.ledger_id)
                return ListEntriesReply(Code.OK, request.ledger_id, availability)
            case BookieInfoRequest():
                return self._bookie_info(request)
            case _:
                raise TypeError(f"{type(request).__name__} is not deferred")

    # Reads

    async def _plain_reads(self, reads: PlainReads) -> int:
        storage = self.service.storage
        at = failed = 0
        pieces, turn, turns = 0, 0, self.turns
        while at < len(reads):
            if pieces == SLICE_READS or (turns.is_spent and not turns.has_turn(turn)):
                pieces = 0
                # Reads that find no entry have no other wait.
                turn = await turns.wait(min(len(reads) - at, SLICE_READS) * READ_UNITS)
            pieces += 1
            turns.charge(READ_UNITS)
            ledger_id, first = reads[at]
            count = 1
            # Readers read entries in order: one look-up in the index and one pread serve many requests.
            while at + count < len(reads) and reads[at + count] == (ledger_id, first + count):
                count += 1
            missing = self._code_of_missing(ledger_id)
            await self.queue.wait_capacity()
            bodies: Sequence[bytes]
            try:
                if count == 1:
                    bodies = [await self._reserving(GUESS_BYTES, storage.read(ledger_id, first))]
                else:
                    budget = max(1, min(READ_BATCH_BYTES_MAX, self.queue.free_bytes))
                    batch_read = storage.read_batch(ledger_id, first, count, budget)
                    bodies = await self._reserving(min(budget, count * GUESS_BYTES), batch_read)
            except NoEntryError:
                self.session.send_plain(ledger_id, first, missing)
                self._count_unknown(missing)
                at, failed = at + 1, failed + 1
            except NoLedgerError:
                self.session.send_plain(ledger_id, first, Code.NO_LEDGER)
                at, failed = at + 1, failed + 1
            except EntryUnreadableError:
                self.session.send_plain(ledger_id, first, Code.IO_ERROR)
                at, failed = at + 1, failed + 1
            else:
                assert bodies  # ``read_batch`` raises ``NoEntryError`` instead
                for entry_id, body in enumerate(bodies, first):
                    self.session.send_plain(ledger_id, entry_id, Code.OK, body)
                at += len(bodies)
        return failed

    async def _reserving(self, size_bytes: int, read: Awaitable[T]) -> T:
        """Read, with queue space reserved for the reply, so that other replies do not use it."""
        queue = self.queue
        size_bytes = min(size_bytes, queue.free_bytes)
        queue.reserve(size_bytes)
        try:
            return await read
        finally:
            queue.release(size_bytes)

    async def _read(self, request: ReadRequest) -> ReadReply:
        ledger = known_ledger(self.service.storage, request.ledger_id)
        entry_id = self._resolve(ledger, request.entry_id)
        read = self.service.storage.read(request.ledger_id, entry_id)
        body = await self._reserving(GUESS_BYTES, read)
        max_lac = None if request.fence else ledger.lac
        return ReadReply(Code.OK, request.ledger_id, request.entry_id, body, max_lac=max_lac)

    async def _batch_read(self, request: BatchReadRequest) -> BatchReadReply | LocatedReply:
        ledger = known_ledger(self.service.storage, request.ledger_id)
        first = self._resolve(ledger, request.entry_id)
        # A peer that does not read its replies gets shorter batches, down to one entry.
        budget = min(request.size_bytes_max, self.batch_bytes_max, max(self.queue.free_bytes, GUESS_BYTES))
        count_max = max(1, budget // (_ENTRY_BYTES_MIN + _BATCH_ENTRY_BYTES))
        if request.entry_id == LAST_ENTRY:
            count_max = 1
        elif request.count_max > 0:
            count_max = min(count_max, request.count_max)
        if request.locate and count_max > 1 and (located := await self._located(request, ledger)) is not None:
            return located
        bodies: Sequence[bytes]
        if count_max == 1:
            bodies = [await self._reserving(GUESS_BYTES, self.service.storage.read(request.ledger_id, first))]
        else:
            size_bytes_max = max(budget - _BATCH_REPLY_BYTES, 1)
            batch_read = self.service.storage.read_batch(request.ledger_id, first, count_max, size_bytes_max)
            bodies = await self._reserving(budget, batch_read)
        return BatchReadReply(Code.OK, request.ledger_id, request.entry_id, request.request_id, bodies)

    async def _located(self, request: BatchReadRequest, ledger: LedgerRecord) -> LocatedReply | None:
        """Where the entries lie, if the client can open the bookie's files; None: send the entries."""
        storage, first = self.service.storage, request.entry_id
        identify = storage.identify_log
        if identify is None:
            return None
        count_max = min(request.count_max, _LOCATED_MAX) if request.count_max > 0 else _LOCATED_MAX
        try:
            place = await storage.place(ledger, first, count_max, _LOCATED_BYTES_MAX)
            if place is None:
                return None
            device, inode = identify(place)
        except (EntryUnreadableError, OSError):
            return None  # moved meanwhile, or damaged: reading it tells
        return LocatedReply(
            Code.OK,
            request.ledger_id,
            request.entry_id,
            request.request_id,
            place.log_id,
            device,
            inode,
            place.offset,
            place.starts,
        )

    async def _read_lac(self, request: ReadLacRequest) -> ReadLacReply:
        ledger = self.service.storage.ledger(request.ledger_id)
        if ledger is not None and ledger.limbo:
            raise LimboError(request.ledger_id)
        lac_body = None if ledger is None else ledger.explicit_lac
        last_entry_body = None
        code = Code.OK
        if ledger is None or ledger.last_entry_id < 0:
            code = Code.IO_ERROR  # as Java replies if there is a LAC packet and no entry
        else:
            try:
                last_entry_body = await self.service.storage.read(request.ledger_id, ledger.last_entry_id)
            except (NoEntryError, NoLedgerError, EntryUnreadableError):
                code = Code.IO_ERROR
        if lac_body is None and last_entry_body is None:
            code = Code.NO_ENTRY
        return ReadLacReply(code, request.ledger_id, lac_body, last_entry_body)

    def _bookie_info(self, request: BookieInfoRequest) -> BookieInfoReply:
        hints = request.features
        if not request.total_disk_capacity and not request.free_disk_space:
            return BookieInfoReply(Code.OK, takes_lac_hints=hints)
        try:
            usage = self.service.storage.disk_usage()
        except OSError:
            return BookieInfoReply(Code.IO_ERROR)
        return BookieInfoReply(
            Code.OK,
            usage.total_bytes if request.total_disk_capacity else None,
            usage.free_bytes if request.free_disk_space else None,
            hints,
        )

    # Adds

    async def _add_again(self, incoming: IncomingRequest, request: AddRequest) -> None:
        """Read the entry that the bookie holds under the ids of an add, and let the session decide."""
        service = self.service
        ledger = service.storage.ledger(request.ledger_id)
        stored: StoredEntry | None = None
        if ledger is not None:
            try:
                stored = await self._stored(ledger, request.entry_id)
                if stored.compare(request.body) is Comparison.MAY_BE_DAMAGED and service.digest_type_of:
                    digest_type = await service.digest_type_of(request.ledger_id)
                    stored = await self._stored(ledger, request.entry_id, digest_type)
            except EntryUnreadableError:
                self.session.reply(incoming, refusal(incoming, Code.IO_ERROR))
                return
        self.session.add_again(incoming, stored)

    async def _stored(
        self, ledger: LedgerRecord, entry_id: int, digest_type: DigestType | None = None
    ) -> StoredEntry:
        body = await self.service.storage.read_stored(ledger, entry_id)
        has_checksums = None if digest_type is None else digest_type in CHECKSUM_TYPES
        return StoredEntry(ledger, body, has_checksums)

    # Ledgers

    def _code_of_missing(self, ledger_id: int) -> Code:
        """The code of the reply if the entry turns out to be missing."""
        ledger = self.service.storage.ledger(ledger_id)
        return Code.UNKNOWN_LEDGER_STATE if ledger is not None and ledger.limbo else Code.NO_ENTRY

    def _resolve(self, ledger: LedgerRecord, entry_id: int) -> int:
        if entry_id == LAST_ENTRY:
            if ledger.limbo:
                raise LimboError(ledger.ledger_id)
            entry_id = ledger.last_entry_id
        if entry_id < 0:
            raise NoEntryError(ledger.ledger_id, entry_id)
        return entry_id
