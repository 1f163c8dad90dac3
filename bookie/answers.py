"""The answers that have to wait: for a disk, for the LAC to move.

Inside: reads of entries that are no longer in memory, batch reads, long polls, explicit LACs, lists of
entries, disk space. Not inside: what may be answered at once, and all writes (``service``); the order of
frames and how much may be queued for a slow peer (``server``).
Always: every request that got here is answered exactly once, whatever storage says; nothing here writes; of a
ledger in limbo nothing is denied, and whether it is in limbo is looked at before it is read: it may be left
at any time, and what was not there before that may be there afterwards.

Source: BookKeeper, ReadEntryProcessorV3.java, LongPollReadEntryProcessorV3.java,
BatchedReadEntryProcessor.java, ReadLacProcessorV3.java, GetBookieInfoProcessorV3.java; reference 9.3-9.7.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from struct import Struct
from typing import Protocol, TypeVar

import attrs
import trio

from bookie.errors import EntryUnreadableError, LimboError, NoEntryError, NoLedgerError
from bookie.ledgers import LedgerRecord
from bookie.replies import refusal
from bookie.service import BookieService, PlainReads, Session, Slow
from ledger.availability import encode_availability
from ledger.wire.codes import Code
from ledger.wire.messages import (
    LAST_ENTRY,
    BatchReadReply,
    BatchReadRequest,
    BookieInfoReply,
    BookieInfoRequest,
    IncomingRequest,
    ListEntriesReply,
    ListEntriesRequest,
    ReadLacReply,
    ReadLacRequest,
    ReadReply,
    ReadRequest,
    Reply,
)

T = TypeVar("T")
READ_RUN_BYTES_MAX = 1_048_576  # read ahead of what the peer has taken
LONG_POLL_MS_MAX = 3_600_000

_BATCH_REPLY_BYTES = 36  # header, request id and prefix: where a batch read begins to count
_BATCH_ENTRY_BYTES = 4  # the length in front of each entry
_ENTRY_BYTES_MIN = 32
_GUESS_BYTES = 65_536  # of an answer whose size nobody knows yet
_LAC_AT = 16
_LAC = Struct(">q")
_IDS = Struct(">qq")


def is_long_poll(work: Slow) -> bool:
    """Whether the work may take as long as its sender likes."""
    return (
        isinstance(work, IncomingRequest)
        and isinstance(work.request, ReadRequest)
        and not work.request.fence
        and work.request.timeout_ms is not None
    )


class Room(Protocol):
    """What an answer needs before it is made; ``outbox.Outbox`` is one."""

    @property
    def room_bytes(self) -> int: ...
    async def wait_room(self) -> None: ...
    def reserve(self, size_bytes: int) -> None: ...
    def release(self, size_bytes: int) -> None: ...


@attrs.frozen
class SlowAnswers:
    """Does the slow work of one connection."""

    service: BookieService
    session: Session
    room: Room  # for answers that the peer has not taken yet
    wall_ms: Callable[[], int]
    batch_bytes_max: int  # of one batch read's reply

    async def answer(self, work: Slow) -> None:
        """Do it and send its answer. If cancelled, nothing is sent and nothing was changed."""
        if isinstance(work, PlainReads):
            await self._plain_reads(work)
            return
        await self.room.wait_room()
        missing = self._code_of_missing(getattr(work.request, "ledger_id", -1))
        try:
            reply = await self._reply(work)
        except NoEntryError:
            reply = refusal(work, missing)
        except LimboError:
            reply = refusal(work, Code.UNKNOWN_LEDGER_STATE)
        except NoLedgerError:
            reply = refusal(work, Code.NO_LEDGER)
        except EntryUnreadableError:
            reply = refusal(work, Code.IO_ERROR)
        self.session.reply(work, reply)

    async def _reply(self, incoming: IncomingRequest) -> Reply:
        request = incoming.request
        match request:
            case ReadRequest():
                if request.previous_lac is not None and not request.fence:
                    return await self._long_poll(incoming, request)
                return await self._read(request)
            case BatchReadRequest():
                return await self._batch_read(request)
            case ReadLacRequest():
                return await self._read_lac(request)
            case ListEntriesRequest():
                if self._ledger(request.ledger_id).limbo:
                    raise LimboError(request.ledger_id)
                entry_ids = await self.service.storage.entry_ids(request.ledger_id)
                return ListEntriesReply(Code.OK, request.ledger_id, encode_availability(sorted(entry_ids)))
            case BookieInfoRequest():
                return self._bookie_info(request)
            case _:
                raise AssertionError(f"{request!r} is no slow work")

    # Reads

    async def _plain_reads(self, reads: PlainReads) -> None:
        storage = self.service.storage
        at = 0
        while at < len(reads):
            ledger_id, first = reads[at]
            count = 1
            # A reader asks for entries in order: one look into the index and one pread serve many.
            while at + count < len(reads) and reads[at + count] == (ledger_id, first + count):
                count += 1
            missing = self._code_of_missing(ledger_id)
            await self.room.wait_room()
            try:
                if count == 1:
                    bodies = [await self._reserving(_GUESS_BYTES, storage.read(ledger_id, first))]
                else:
                    budget = max(1, min(READ_RUN_BYTES_MAX, self.room.room_bytes))
                    run = storage.read_run(ledger_id, first, count, budget)
                    bodies = await self._reserving(min(budget, count * _GUESS_BYTES), run)
            except NoEntryError:
                self.session.send_plain(ledger_id, first, missing)
                at += 1
            except NoLedgerError:
                self.session.send_plain(ledger_id, first, Code.NO_LEDGER)
                at += 1
            except EntryUnreadableError:
                self.session.send_plain(ledger_id, first, Code.IO_ERROR)
                at += 1
            else:
                assert bodies
                for entry_id, body in enumerate(bodies, first):
                    self.session.send_plain(ledger_id, entry_id, Code.OK, body)
                at += len(bodies)

    async def _reserving(self, size_bytes: int, read: Awaitable[T]) -> T:
        """Do the read with room reserved for what it brings, so that other answers do not count on it."""
        room = self.room
        size_bytes = min(size_bytes, room.room_bytes)
        room.reserve(size_bytes)
        try:
            return await read
        finally:
            room.release(size_bytes)

    async def _read(self, request: ReadRequest) -> ReadReply:
        ledger = self._ledger(request.ledger_id)
        entry_id = self._resolve(ledger, request.entry_id)
        read = self.service.storage.read(request.ledger_id, entry_id)
        body = await self._reserving(_GUESS_BYTES, read)
        max_lac = None if request.fence else ledger.lac
        return ReadReply(Code.OK, request.ledger_id, request.entry_id, body, max_lac=max_lac)

    async def _batch_read(self, request: BatchReadRequest) -> BatchReadReply:
        ledger = self._ledger(request.ledger_id)
        first = self._resolve(ledger, request.entry_id)
        # A peer that does not take what it was sent gets shorter batches, down to one entry.
        budget = min(request.size_bytes_max, self.batch_bytes_max, max(self.room.room_bytes, _GUESS_BYTES))
        count_max = max(1, budget // (_ENTRY_BYTES_MIN + _BATCH_ENTRY_BYTES))
        if request.entry_id == LAST_ENTRY:
            count_max = 1
        elif request.count_max > 0:
            count_max = min(count_max, request.count_max)
        if count_max == 1:
            found = [await self._reserving(_GUESS_BYTES, self.service.storage.read(request.ledger_id, first))]
        else:
            run = self.service.storage.read_run(request.ledger_id, first, count_max, max(budget, 1))
            found = await self._reserving(budget, run)
        bodies = found[:1]
        size = _BATCH_REPLY_BYTES + len(found[0]) + _BATCH_ENTRY_BYTES
        for body in found[1:count_max]:
            size += len(body) + _BATCH_ENTRY_BYTES
            if size > budget:
                break
            bodies.append(body)
        return BatchReadReply(Code.OK, request.ledger_id, request.entry_id, request.request_id, tuple(bodies))

    async def _long_poll(self, incoming: IncomingRequest, request: ReadRequest) -> Reply:
        if request.piggyback_entry and request.entry_id != LAST_ENTRY:
            return refusal(incoming, Code.BAD_REQUEST)
        assert request.previous_lac is not None
        ledger = self._ledger(request.ledger_id)
        if ledger.limbo and await self._lac(ledger) <= request.previous_lac:
            raise LimboError(ledger.ledger_id)  # it may have moved long ago
        updated_ms = None
        if request.timeout_ms is not None and await self._lac(ledger) <= request.previous_lac:
            watches = self.service.watches
            if watches.is_full:
                return refusal(incoming, Code.TOO_MANY_REQUESTS)
            moved = trio.Event()
            token = watches.watch(request.ledger_id, request.previous_lac, moved.set)
            try:
                with trio.move_on_after(min(max(request.timeout_ms, 0), LONG_POLL_MS_MAX) / 1000):
                    await moved.wait()
            finally:
                watches.forget(request.ledger_id, token)
            if moved.is_set():
                updated_ms = self.wall_ms()
            ledger = self._ledger(request.ledger_id)
        if not request.piggyback_entry:
            return attrs.evolve(await self._read(request), lac_update_ms=updated_ms)
        lac = await self._lac(ledger)
        if ledger.last_entry_id < 0 and ledger.explicit_lac is None:
            raise NoEntryError(ledger.ledger_id, LAST_ENTRY)
        if lac > request.previous_lac:
            try:
                body = await self.service.storage.read(request.ledger_id, request.previous_lac + 1)
            except NoEntryError:
                pass  # it lies on other bookies: the LAC alone is an answer
            else:
                return ReadReply(
                    Code.OK,
                    request.ledger_id,
                    request.previous_lac + 1,
                    body,
                    max_lac=lac,
                    lac_update_ms=updated_ms,
                )
        return ReadReply(Code.OK, request.ledger_id, LAST_ENTRY, None, max_lac=lac, lac_update_ms=updated_ms)

    async def _read_lac(self, request: ReadLacRequest) -> ReadLacReply:
        ledger = self.service.storage.ledger(request.ledger_id)
        if ledger is not None and ledger.limbo:
            raise LimboError(request.ledger_id)
        lac_body = None if ledger is None else ledger.explicit_lac
        last_entry_body = None
        code = Code.OK
        if ledger is None or ledger.last_entry_id < 0:
            code = Code.IO_ERROR  # what Java answers when a packet is there but no entry
        else:
            try:
                last_entry_body = await self.service.storage.read(request.ledger_id, ledger.last_entry_id)
            except (NoEntryError, NoLedgerError, EntryUnreadableError):
                code = Code.IO_ERROR
        if lac_body is None and last_entry_body is None:
            code = Code.NO_ENTRY
        return ReadLacReply(code, request.ledger_id, lac_body, last_entry_body)

    def _bookie_info(self, request: BookieInfoRequest) -> BookieInfoReply:
        if not request.total_disk_capacity and not request.free_disk_space:
            return BookieInfoReply(Code.OK)
        try:
            usage = self.service.storage.disk_usage()
        except OSError:
            return BookieInfoReply(Code.IO_ERROR)
        return BookieInfoReply(
            Code.OK,
            usage.total_bytes if request.total_disk_capacity else None,
            usage.free_bytes if request.free_disk_space else None,
        )

    # Ledgers

    def _ledger(self, ledger_id: int) -> LedgerRecord:
        ledger = self.service.storage.ledger(ledger_id)
        if ledger is None:
            raise NoLedgerError(ledger_id)
        return ledger

    def _code_of_missing(self, ledger_id: int) -> Code:
        """What to say of an entry that is not here, if it turns out not to be."""
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

    async def _lac(self, ledger: LedgerRecord) -> int:
        """The highest LAC that was stored, also when storage has not seen it since it was started.

        Java then waits although the stored LAC is higher.
        """
        if ledger.lac >= 0 or ledger.last_entry_id < 0:
            return ledger.lac
        lac = ledger.lac
        try:
            body = await self.service.storage.read(ledger.ledger_id, ledger.last_entry_id)
        except (NoEntryError, EntryUnreadableError):
            pass  # then what is in memory must do
        else:
            (lac,) = _LAC.unpack_from(body, _LAC_AT)
        if ledger.explicit_lac is not None:
            lac = max(lac, _IDS.unpack_from(ledger.explicit_lac)[1])
        return max(lac, ledger.lac)
