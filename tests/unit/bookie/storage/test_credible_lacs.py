"""An entry's header is a peer's word: a LAC that no writer names never raises the ledger's."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import trio
from trio.testing import memory_stream_pair

from bookie.bookie import Bookie, open_bookie
from bookie.disk.real_disk import RealDisk
from bookie.ledger_record import LedgerData, LedgerRecord, credible_data, lac_of_entry, lac_of_packet
from bookie.storage.config import StorageConfig
from bookie.storage.opening import open_storage
from ledger.codes import Code
from ledger.digest import DigestType, EntryCodec, master_key
from ledger.wire.messages import (
    AddReply,
    AddRequest,
    ReadLacReply,
    ReadLacRequest,
    ReadReply,
    ReadRequest,
    Request,
    WriteLacReply,
    WriteLacRequest,
)
from tests.unit.bookie.server.gated_bookie import Peer

KEY = master_key(b"pass")
ENTRIES = EntryCodec(DigestType.CRC32C, b"pass")
MOST, LEAST = 2**63 - 1, -(2**63)
ABSURD = [5, 6, 10**12, MOST, MOST - 1, -2, LEAST]


def config_of(path: Path) -> StorageConfig:
    return StorageConfig(journal_directories=(path / "j",), ledger_directories=(path / "l",))


def entry(entry_id: int, lac: int) -> bytes:
    return ENTRIES.pack(1, entry_id, lac, 5, b"bytes")


def packet(lac: int) -> bytes:
    return struct.pack(">qq", 1, lac) + bytes(20)


async def add(storage_path: Path, *entries: tuple[int, int], flush: bool) -> None:
    """Add entries of these ids and LACs, and end as in a crash, or after a checkpoint."""
    async with open_storage(RealDisk(), config_of(storage_path)) as storage:
        batch = storage.new_batch()
        ledger = storage.ledger(1) or storage.create_ledger(batch, 1, KEY)
        for entry_id, lac in entries:
            storage.stage_entry(batch, ledger, entry_id, lac, entry(entry_id, lac))
        await storage.submit_durably(batch)
        if flush:
            await storage.flush()
        assert ledger.lac == 3


@pytest.mark.slow
@pytest.mark.parametrize("lac", ABSURD)
@pytest.mark.parametrize("flush", [True, False])
async def test_an_absurd_lac_raises_nothing_when_it_is_added_nor_after_a_restart(
    tmp_path: Path, lac: int, flush: bool
) -> None:
    await add(tmp_path, (4, 3), (5, lac), flush=flush)
    async with open_storage(RealDisk(), config_of(tmp_path)) as storage:
        ledger = storage.ledger(1)
        assert ledger is not None
        assert ledger.lac == 3
        assert await storage.read(1, 5) == entry(5, lac), "the entry itself is stored"


async def test_a_lac_that_an_earlier_version_stored_falls_to_what_can_have_named_it() -> None:
    stored = LedgerData(KEY, False, None, 10**12, 5)
    assert credible_data(stored).lac == 4
    assert credible_data(LedgerData(KEY, False, packet(9), 10**12, 5)).lac == 9
    assert credible_data(LedgerData(KEY, False, packet(MOST), MOST, 5)).lac == 4
    assert credible_data(LedgerData(KEY, False, b"short", 10**12, -1)).lac == -1
    assert credible_data(LedgerData(KEY, False, None, LEAST, 5)).lac == -1
    for sound in (LedgerData(KEY, False, None, 4, 5), LedgerData(KEY, True, packet(9), 9, 5)):
        assert credible_data(sound) is sound


def test_short_bytes_name_no_lac() -> None:
    assert lac_of_entry(5, bytes(23)) == -1
    assert lac_of_packet(bytes(15)) == -1
    assert lac_of_packet(packet(MOST)) == lac_of_packet(packet(-2)) == -1
    assert lac_of_packet(packet(MOST - 1)) == MOST - 1


async def ask(bookie: Bookie, *requests: Request) -> list[object]:
    ours, theirs = memory_stream_pair()
    replies: list[object] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bookie.serve_stream, theirs)
        peer = Peer(ours)
        with trio.fail_after(60):
            for request in requests:
                replies.append(await peer.ask(request))
        nursery.cancel_scope.cancel()
    return replies


@pytest.mark.slow
@pytest.mark.parametrize("lac", ABSURD)
async def test_a_client_sees_the_lac_of_the_credible_entries(tmp_path: Path, lac: int) -> None:
    adds = [AddRequest(1, 4, KEY, entry(4, 3)), AddRequest(1, 5, KEY, entry(5, lac))]
    poll = ReadRequest(1, -1, previous_lac=3, timeout_ms=1, piggyback_entry=True)
    for is_restarted in (False, True):
        async with open_bookie(config_of(tmp_path)) as bookie:
            if not is_restarted:
                assert await ask(bookie, *adds) == [AddReply(Code.OK, 1, 4), AddReply(Code.OK, 1, 5)]
                await bookie.storage.flush()
            read, polled, read_lac = await ask(bookie, ReadRequest(1, 5), poll, ReadLacRequest(1))
            assert read == ReadReply(Code.OK, 1, 5, entry(5, lac), max_lac=3)
            assert isinstance(polled, ReadReply)
            assert (polled.code, polled.body, polled.max_lac) == (Code.OK, None, 3)
            assert read_lac == ReadLacReply(Code.OK, 1, None, entry(5, lac))


@pytest.mark.parametrize("lac", [MOST, -2, LEAST])
async def test_an_absurd_lac_packet_raises_nothing(tmp_path: Path, lac: int) -> None:
    async with open_bookie(config_of(tmp_path)) as bookie:
        replies = await ask(
            bookie,
            AddRequest(1, 4, KEY, entry(4, 3)),
            WriteLacRequest(1, lac, KEY, packet(lac)),
            ReadRequest(1, 4),
        )
        assert replies[1:] == [WriteLacReply(Code.OK, 1), ReadReply(Code.OK, 1, 4, entry(4, 3), max_lac=3)]
        ledger = bookie.storage.ledger(1)
        assert isinstance(ledger, LedgerRecord)
        assert ledger.lac == 3


@pytest.mark.slow
@pytest.mark.parametrize("entry_id", [MOST, MOST - 1, 2**40])
@pytest.mark.parametrize("flush", [True, False])
async def test_the_greatest_ids_are_stored_and_read_in_every_way(
    tmp_path: Path, entry_id: int, flush: bool
) -> None:
    async with open_bookie(config_of(tmp_path)) as bookie:
        assert await ask(bookie, AddRequest(1, entry_id, KEY, entry(entry_id, entry_id - 1))) == [
            AddReply(Code.OK, 1, entry_id)
        ]
        if flush:
            await bookie.storage.flush()
        replies = await ask(
            bookie,
            ReadRequest(1, entry_id),
            ReadRequest(1, -1),
            ReadRequest(1, -1, previous_lac=entry_id - 2, timeout_ms=1),
            ReadRequest(1, -1, previous_lac=entry_id - 1, timeout_ms=1, piggyback_entry=True),
            ReadRequest(1, -1, previous_lac=LEAST, timeout_ms=LEAST, piggyback_entry=True),
            ReadRequest(1, -1, previous_lac=MOST, timeout_ms=0, piggyback_entry=True),
            ReadRequest(1, MOST, previous_lac=0),
        )
        codes = [reply.code for reply in replies if isinstance(reply, ReadReply)]
        assert len(codes) == 7
        assert codes[:6] == [Code.OK] * 6
        bodies = await bookie.storage.read_batch(1, entry_id, 100, 1 << 20)
        assert list(bodies) == [entry(entry_id, entry_id - 1)]
        ledger = bookie.storage.ledger(1)
        assert ledger is not None
        await bookie.storage.place(ledger, entry_id, 100, 1 << 20)
        assert await bookie.storage.entry_ids(1) == [entry_id]


@pytest.mark.slow
async def test_a_ledger_with_a_stored_absurd_lac_is_loaded_without_it(tmp_path: Path) -> None:
    async with open_storage(RealDisk(), config_of(tmp_path)) as storage:
        batch = storage.new_batch()
        ledger = storage.create_ledger(batch, 1, KEY)
        storage.stage_entry(batch, ledger, 5, 4, entry(5, 4))
        ledger.lac = 10**12  # as an earlier version
        await storage.submit_durably(batch)
        await storage.flush()
    async with open_storage(RealDisk(), config_of(tmp_path)) as storage:
        loaded = storage.ledger(1)
        assert loaded is not None
        assert loaded.lac == 4
