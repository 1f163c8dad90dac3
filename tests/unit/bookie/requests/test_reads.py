"""DeferredRequest answers when storage has bad news; the good news are in test_server.py."""

# covers: bookie/requests/deferred.py

from __future__ import annotations

from typing import Any

import attrs
import pytest

from bookie.errors import EntryUnreadableError, NoEntryError
from bookie.journal.group_commit import WriteBatch
from bookie.ledger_record import LedgerRecord
from bookie.requests.deferred import DeferredRequest, PlainReads, is_long_poll
from bookie.requests.reads import DeferredReplies
from bookie.requests.session import BookieService
from bookie.server.reply_queue import ReplyQueue
from bookie.server.shared_memory import SharedMemory
from bookie.storage.entry_places import EntryPlace, IdentifyLog
from ledger.codes import Code, Operation
from ledger.digest import DigestType, EntryCodec
from ledger.wire import v2, v3
from ledger.wire.messages import (
    BatchReadReply,
    BatchReadRequest,
    BookieInfoReply,
    BookieInfoRequest,
    IncomingRequest,
    LocatedReply,
    ReadLacReply,
    ReadLacRequest,
    ReadReply,
    ReadRequest,
    Reply,
)

ENTRIES = EntryCodec(DigestType.CRC32C, b"")


class BadDisk:
    """Entry 1 of ledger 1 is unreadable, entry 3 is the last, the others were never stored."""

    def __init__(self) -> None:
        self.record = LedgerRecord(1, bytes(20), last_entry_id=3)
        self.identify_log: IdentifyLog | None = None

    def ledger(self, ledger_id: int) -> LedgerRecord | None:
        return self.record if ledger_id == 1 else None

    def new_batch(self) -> WriteBatch:
        return WriteBatch()

    async def read(self, ledger_id: int, entry_id: int) -> bytes:
        if entry_id == 1:
            raise EntryUnreadableError(ledger_id, entry_id, "bad sector")
        if entry_id != 3:
            raise NoEntryError(ledger_id, entry_id)
        return ENTRIES.pack(1, 3, 2, 0, b"")

    async def read_batch(
        self, ledger_id: int, first: int, count_max: int, size_bytes_max: int
    ) -> list[bytes]:
        return [await self.read(ledger_id, first)]

    def disk_usage(self) -> None:
        raise OSError("gone")


def replies_of(disk: BadDisk, frames: list[bytes]) -> DeferredReplies:
    service = BookieService(disk)  # type: ignore[arg-type]
    session = service.open_session(frames.append, lambda work: None)
    room = ReplyQueue(1 << 20, SharedMemory(1 << 20, 1 << 16))
    return DeferredReplies(service, session, room, lambda: 5, 1 << 20)


async def answers_to(
    work: DeferredRequest, disk: BadDisk | None = None, identify: IdentifyLog | None = None
) -> list[Reply]:
    frames: list[bytes] = []
    disk = disk or BadDisk()
    disk.identify_log = identify
    await replies_of(disk, frames).reply_to(work)
    return [(v2 if frame[4] <= 2 else v3).decode_reply(frame, 4, len(frame)).reply for frame in frames]


def asked(request: object, operation: Operation, version: int = 3) -> IncomingRequest:
    return IncomingRequest(version, operation, request)  # type: ignore[arg-type]


async def test_an_entry_that_cannot_be_read_is_an_io_error_and_not_a_missing_one() -> None:
    read = asked(ReadRequest(1, 1), Operation.READ_ENTRY)
    assert await answers_to(read) == [ReadReply(Code.IO_ERROR, 1, 1)]
    batch = asked(BatchReadRequest(1, 1, 8, 10, 1000), Operation.BATCH_READ_ENTRY, version=2)
    assert await answers_to(batch) == [BatchReadReply(Code.IO_ERROR, 1, 1, 8)]


async def test_bad_news_of_one_entry_leave_the_others_answered() -> None:
    reads = PlainReads.of((1, 0), (1, 1), (1, 3), (2, 3))
    assert await answers_to(reads) == [
        ReadReply(Code.NO_ENTRY, 1, 0),
        ReadReply(Code.IO_ERROR, 1, 1),
        ReadReply(Code.OK, 1, 3, ENTRIES.pack(1, 3, 2, 0, b"")),
        ReadReply(Code.OK, 2, 3, ENTRIES.pack(1, 3, 2, 0, b"")),
    ]


async def test_a_long_poll_finds_the_lac_in_the_last_entry_if_memory_has_none() -> None:
    poll = ReadRequest(1, -1, previous_lac=1, timeout_ms=60_000, piggyback_entry=True)
    work = asked(poll, Operation.READ_ENTRY)
    assert is_long_poll(work)
    # Java would wait: it knows no LAC after a restart. Entry 2 lies elsewhere.
    assert await answers_to(work) == [ReadReply(Code.OK, 1, -1, None, max_lac=2)]


async def test_a_long_poll_whose_entry_cannot_be_read_is_an_io_error() -> None:
    poll = ReadRequest(1, -1, previous_lac=0, timeout_ms=60_000, piggyback_entry=True)
    assert await answers_to(asked(poll, Operation.READ_ENTRY)) == [ReadReply(Code.IO_ERROR, 1, -1)]


async def test_read_lac_of_a_readable_last_entry() -> None:
    reply = ReadLacReply(Code.OK, 1, None, ENTRIES.pack(1, 3, 2, 0, b""))
    assert await answers_to(asked(ReadLacRequest(1), Operation.READ_LAC)) == [reply]


@pytest.mark.parametrize(("wanted", "code"), [(True, Code.IO_ERROR), (False, Code.OK)])
async def test_bookie_info_asks_the_disk_only_if_it_must(wanted: bool, code: Code) -> None:
    request = BookieInfoRequest(total_disk_capacity=wanted, free_disk_space=False)
    assert await answers_to(asked(request, Operation.GET_BOOKIE_INFO)) == [BookieInfoReply(code)]


class LocatingDisk(BadDisk):
    def __init__(self, place: EntryPlace | None) -> None:
        super().__init__()
        self._place = place

    async def place(
        self, ledger: LedgerRecord, first: int, count_max: int, size_bytes_max: int
    ) -> EntryPlace | None:
        assert (ledger.ledger_id, count_max) == (1, 5)
        if first == 1:
            raise EntryUnreadableError(1, first, "bad sector")
        return self._place


PLACE = EntryPlace(directory=0, log_id=42, offset=1024, starts=(0, 70_000))


def gone(_: EntryPlace) -> tuple[int, int]:
    raise FileNotFoundError


@pytest.mark.parametrize(
    ("place", "identify", "is_located"),
    [
        (PLACE, lambda _: (7, 8), True),
        (PLACE, None, False),  # a bookie of a cluster
        (PLACE, gone, False),
        (None, lambda _: (7, 8), False),
    ],
)
async def test_entries_are_located_for_clients_that_can_open_the_logs(
    place: EntryPlace | None, identify: IdentifyLog | None, is_located: bool
) -> None:
    entries = BatchReadReply(Code.OK, 1, 3, 8, (ENTRIES.pack(1, 3, 2, 0, b""),))
    request = BatchReadRequest(1, 3, 8, 5, 1000, locate=True)
    for locate in (True, False):
        batch = asked(attrs.evolve(request, locate=locate), Operation.BATCH_READ_ENTRY, version=2)
        (reply,) = await answers_to(batch, LocatingDisk(place), identify)
        if locate and is_located:
            assert reply == LocatedReply(Code.OK, 1, 3, 8, 42, 7, 8, 1024, (0, 70_000))
        else:
            assert reply == entries
    damaged = asked(attrs.evolve(request, entry_id=1), Operation.BATCH_READ_ENTRY, version=2)
    assert await answers_to(damaged, LocatingDisk(place), identify) == [
        BatchReadReply(Code.IO_ERROR, 1, 1, 8)
    ]


# Long polls that go on after a reply


def lac_to_wait_beyond(record: LedgerRecord, **more: Any) -> int | None:
    disk = BadDisk()
    disk.record = record
    request = ReadRequest(1, -1, previous_lac=0, timeout_ms=1, replies_max=9)
    return replies_of(disk, []).polls.lac_to_wait_beyond(attrs.evolve(request, **more))


def test_a_long_poll_goes_on_only_where_the_lac_is_known_and_may_grow() -> None:
    known = LedgerRecord(1, bytes(20), last_entry_id=3, lac=2)
    assert lac_to_wait_beyond(known) == 2
    assert lac_to_wait_beyond(known, ledger_id=2) is None, "there is no such ledger"
    assert lac_to_wait_beyond(attrs.evolve(known, fenced=True)) is None, "a recovery decides the end"
    assert lac_to_wait_beyond(attrs.evolve(known, limbo=True)) is None
    assert lac_to_wait_beyond(LedgerRecord(1, bytes(20), last_entry_id=3)) is None, "it is on the disk"
    assert lac_to_wait_beyond(known, piggyback_entry=True) is None
    assert lac_to_wait_beyond(known, entry_id=3) is None
