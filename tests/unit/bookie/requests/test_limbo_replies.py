"""A ledger in limbo: its entries are sent, none is denied. docs/known-bugs.md 2."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from bookie.disk.real_disk import RealDisk
from bookie.errors import NoEntryError
from bookie.ledger_record import UNKNOWN_KEY
from bookie.requests.deferred import PlainReads
from bookie.storage.config import StorageConfig
from bookie.storage.opening import open_storage
from ledger.codes import Code
from ledger.wire.messages import (
    AddReply,
    BatchReadReply,
    BatchReadRequest,
    ListEntriesReply,
    ListEntriesRequest,
    ReadLacReply,
    ReadLacRequest,
    ReadReply,
    ReadRequest,
)
from tests.fakes.connection_by_hand import Connection
from tests.fakes.service_by_hand import KEY, add, entry, fence

LIMBO = Code.UNKNOWN_LEDGER_STATE


def config(directory: Path) -> StorageConfig:
    return StorageConfig(
        journal_directories=(directory / "j",), ledger_directories=(directory / "l",), flush_interval_s=60
    )


@pytest.fixture
async def peer(tmp_path: Path) -> AsyncIterator[Connection]:
    """Ledger 1 is in limbo and fenced; of its entries 0 is here."""
    async with open_storage(RealDisk(), config(tmp_path)) as storage:
        connection = Connection(storage)
        await connection.ask(add(1, 0), version=2)
        storage.enter_limbo(1, UNKNOWN_KEY, fenced=True)
        await storage.flush()
        yield connection


@pytest.mark.parametrize("version", [2, 3])
async def test_what_is_here_is_given_and_what_is_not_is_not_denied(peer: Connection, version: int) -> None:
    # A version 2 peer of Java's drops the connection when it reads 107; an I/O error is "unknown" as well.
    unknown = Code.IO_ERROR if version == 2 else LIMBO
    here, missing = await peer.ask(ReadRequest(1, 0), ReadRequest(1, 1), version=version)
    assert isinstance(here, ReadReply)
    assert (here.code, here.body) == (Code.OK, entry(1, 0))
    assert missing == ReadReply(unknown, 1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("version", [2, 3])
async def test_a_recovery_is_told_neither_the_end_nor_the_lac(peer: Connection, version: int) -> None:
    unknown = Code.IO_ERROR if version == 2 else LIMBO
    assert await peer.ask(fence(1), fence(1, 1), version=version) == [
        ReadReply(unknown, 1, -1),
        ReadReply(unknown, 1, 1),
    ]
    assert await peer.ask(ReadRequest(1, -1), version=version) == [ReadReply(unknown, 1, -1)]


async def test_batches_lists_and_lacs_are_unknown_too(peer: Connection) -> None:
    first, second = await peer.ask(
        BatchReadRequest(1, 0, 8, 9, 999), BatchReadRequest(1, 1, 9, 9, 999), version=2
    )
    assert first == BatchReadReply(Code.OK, 1, 0, 8, (entry(1, 0),))
    assert second == BatchReadReply(Code.IO_ERROR, 1, 1, 9)
    assert await peer.ask(ReadLacRequest(1)) == [ReadLacReply(LIMBO, 1)]
    assert await peer.ask(ListEntriesRequest(1)) == [ListEntriesReply(LIMBO, 1)]


@pytest.mark.slow
async def test_a_long_poll_is_told_what_is_known_and_does_not_wait_for_what_may_have_happened(
    peer: Connection,
) -> None:
    poll = ReadRequest(1, -1, previous_lac=0, timeout_ms=600_000, piggyback_entry=True)
    with trio.fail_after(60):
        assert await peer.ask(poll) == [ReadReply(LIMBO, 1, -1)]
    await peer.ask(add(1, 9, lac=8, recovery=True))
    [known] = await peer.ask(poll)
    assert known == ReadReply(Code.OK, 1, -1, None, max_lac=8)


@pytest.mark.slow
async def test_its_old_writer_is_refused_and_recovery_may_write(peer: Connection) -> None:
    refused, taken = await peer.ask(add(1, 1), add(1, 1, recovery=True))
    assert (refused, taken) == (AddReply(Code.FENCED, 1, 1), AddReply(Code.OK, 1, 1))


@pytest.mark.slow
async def test_limbo_outlives_a_restart_and_ends_for_good(tmp_path: Path) -> None:
    async with open_storage(RealDisk(), config(tmp_path)) as storage:
        storage.enter_limbo(7, KEY, fenced=True)
        storage.enter_limbo(8, UNKNOWN_KEY, fenced=False)
        await storage.flush()
    async with open_storage(RealDisk(), config(tmp_path)) as storage:
        records = [storage.ledger(ledger_id) for ledger_id in (7, 8)]
        assert [(r.limbo, r.fenced, r.master_key) for r in records if r is not None] == [
            (True, True, KEY),
            (True, False, UNKNOWN_KEY),
        ]
        assert records[0] is not None
        storage.leave_limbo(records[0])
        assert await Connection(storage).ask(ReadRequest(7, 0)) == [ReadReply(Code.NO_ENTRY, 7, 0)]
    async with open_storage(RealDisk(), config(tmp_path)) as storage:
        record = storage.ledger(7)
        assert record is not None
        assert (record.limbo, record.fenced) == (False, True)


async def test_an_entry_that_comes_while_it_is_looked_for_is_not_denied(
    peer: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limbo ends between the look into the index and the answer: the look was too early."""

    async def read(ledger_id: int, entry_id: int) -> bytes:
        ledger = peer.storage.ledger(ledger_id)
        assert ledger is not None
        peer.storage.leave_limbo(ledger)
        raise NoEntryError(ledger_id, entry_id)

    monkeypatch.setattr(peer.storage, "read", read)
    assert await peer.ask(ReadRequest(1, 1)) == [ReadReply(LIMBO, 1, 1)]


async def test_plain_reads_look_for_limbo_before_the_entry(
    peer: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read(ledger_id: int, entry_id: int) -> bytes:
        ledger = peer.storage.ledger(ledger_id)
        assert ledger is not None
        peer.storage.leave_limbo(ledger)
        raise NoEntryError(ledger_id, entry_id)

    monkeypatch.setattr(peer.storage, "read", read)
    peer.deferred.append(PlainReads.of((1, 1)))
    assert await peer.ask(version=2) == [ReadReply(Code.IO_ERROR, 1, 1)]
