"""Lost entries are copied back from other bookies; until then none is denied. docs/known-bugs.md 1, 2."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from bookie.healing import integrity
from bookie.healing.integrity import held_ranges, missing_ranges
from ledger.catalog.catalog import LedgerCatalog
from ledger.client import LedgerClient
from ledger.digest import EntryCodec
from ledger.errors import LedgerError, LedgerRecoveryError
from ledger.metadata import Ensemble, LedgerMetadata
from ledger.metadata_store.memory import MemoryStore
from ledger.quorum import write_set
from tests.fakes.bookies_by_hand import LAYOUT, ROOT, Bookies, open_bookies
from tests.strategies import quorum_sizes

pytestmark = pytest.mark.slow

A, B, C, D = "b1:1", "b2:1", "b3:1", "b4:1"


@pytest.fixture
async def bookies(tmp_path: Path) -> AsyncIterator[Bookies]:
    async with open_bookies(tmp_path, A, B, C) as opened:
        yield opened


async def write_ledger(
    client: LedgerClient, payloads: list[bytes], *, close: bool = True, **more: Any
) -> int:
    writer = await client.create(**more)
    await writer.append_many(payloads)
    if close:
        await writer.close()
    else:
        writer.abandon()
    return writer.ledger_id


async def test_recovery_does_not_count_the_denials_of_a_wiped_bookie(bookies: Bookies) -> None:
    """docs/known-bugs.md 2: two of three have the entries; one of these is wiped, one is down."""
    async with bookies.open_client() as client:
        writer = await client.create()
        await bookies.stop(C)
        assert await writer.append_many([b"%d" % number for number in range(5)]) == range(5)
        writer.abandon()
    await bookies.stop(B)
    running = await bookies.replace(A)
    await bookies.start(C)
    assert running.limbo_count == 1
    async with bookies.open_client() as client:
        with pytest.raises(LedgerRecoveryError):
            await client.open(writer.ledger_id)
        assert not (await client.metadata(writer.ledger_id)).is_closed
        await bookies.start(B)
        with trio.fail_after(60):
            await running.repaired.wait()
        async with await client.open(writer.ledger_id) as reader:
            assert reader.last_confirmed == 4
    assert await bookies.entry_ids(A, writer.ledger_id) == [0, 1, 2, 3, 4]
    assert not bookies.is_in_limbo(A, writer.ledger_id)
    assert bookies.is_fenced(A, writer.ledger_id)


async def test_bookies_that_were_replaced_refuse_the_writer_of_a_closed_ledger(bookies: Bookies) -> None:
    """docs/known-bugs.md 1: bookies on empty disks keep the fences of their predecessors."""
    async with bookies.open_client() as client, bookies.open_client() as other:
        writer = await client.create()
        await writer.append(b"0")
        async with await other.open(writer.ledger_id):
            pass
        for name in (A, B, C):
            await bookies.replace(name)
            assert bookies.is_fenced(name, writer.ledger_id)
        with pytest.raises(LedgerError):
            await writer.append(b"beyond the end")
        for name in (A, B, C):
            assert 1 not in await bookies.entry_ids(name, writer.ledger_id)


@pytest.mark.parametrize("write_quorum", [2, 3])
async def test_all_lost_entries_are_copied_back_byte_for_byte(bookies: Bookies, write_quorum: int) -> None:
    async with bookies.open_client() as client:
        payloads = [b"%d" % number * (number % 90) for number in range(300)]
        ids = [
            await write_ledger(client, payloads, write_quorum=write_quorum, password=password)
            for password in (b"", b"secret")
        ]
        before = {i: await bookies.entry_ids(A, i) for i in ids}
        running = await bookies.replace(A)
        with trio.fail_after(60):
            await running.repaired.wait()
        assert {i: await bookies.entry_ids(A, i) for i in ids} == before
        assert running.repair.stats.ledgers_repaired == 2
        assert running.repair.stats.entries_copied == sum(map(len, before.values()))
        storage = running.bookie.storage
        for ledger_id, password in zip(ids, (b"", b"secret"), strict=True):
            codec = EntryCodec((await client.metadata(ledger_id)).digest_type, password)
            for entry_id in before[ledger_id]:
                body = await storage.read(ledger_id, entry_id)
                assert codec.unpack(body, ledger_id, entry_id).payload == payloads[entry_id]
            record = storage.ledger(ledger_id)
            assert record is not None
            assert (record.limbo, record.master_key) == (False, codec.master_key)
        await bookies.stop(A)
        running = await bookies.start(A)
        assert {i: await bookies.entry_ids(A, i) for i in ids} == before, "and they are durable"
        assert not any(bookies.is_in_limbo(A, i) for i in ids)


async def test_an_open_ledger_is_closed_by_the_repair(bookies: Bookies) -> None:
    async with bookies.open_client() as client:
        ledger_id = await write_ledger(client, [b"x"] * 10, close=False, password=b"unknown to the bookie")
        running = await bookies.replace(A)
        with trio.fail_after(60):
            await running.repaired.wait()
        metadata = await client.metadata(ledger_id)
        assert (metadata.is_closed, metadata.last_entry_id) == (True, 9)
    assert running.repair.stats.ledgers_recovered == 1
    assert await bookies.entry_ids(A, ledger_id) == list(range(10))


async def test_a_writer_that_had_replaced_the_bookie_long_ago_is_not_disturbed(
    bookies: Bookies, tmp_path: Path
) -> None:
    await bookies.start(D)
    async with bookies.open_client() as client:
        writer = await client.create()
        await writer.append_many([b"x"] * 10)
        gone = next(name for name in writer.metadata.last_ensemble.bookies if name != D)
        await bookies.stop(gone)
        await writer.append_many([b"y"] * 10)
        with trio.fail_after(30):
            while gone in writer.metadata.last_ensemble.bookies:
                await writer.append(b"z")
        first = writer.metadata.last_ensemble.first_entry_id
        running = await bookies.replace(gone)
        assert running.limbo_count == 1
        with trio.fail_after(60):
            await running.repaired.wait()
        assert not bookies.is_fenced(gone, writer.ledger_id)
        assert await bookies.entry_ids(gone, writer.ledger_id) == list(range(first))
        assert await writer.append(b"still mine") == writer.lac
        assert running.repair.stats.ledgers_recovered == 0
        await writer.close()


async def test_a_ledger_stays_in_limbo_while_no_bookie_has_its_entries(
    bookies: Bookies, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = trio.Event()
    monkeypatch.setattr(integrity.log, "warning", lambda *arguments: tried.set())
    async with bookies.open_client() as client:
        ledger_id = await write_ledger(client, [b"x"] * 4, ensemble_size=1, write_quorum=1, ack_quorum=1)
        [only] = (await client.metadata(ledger_id)).last_ensemble.bookies
        running = await bookies.replace(only)
        with trio.fail_after(60):
            await tried.wait()
    assert bookies.is_in_limbo(only, ledger_id)
    assert not running.repaired.is_set()
    assert running.repair.stats.ledgers_in_limbo == 1
    assert "no bookie to read from" in str(running.repair.stats.last_failure)


async def test_damaged_bytes_are_not_copied(bookies: Bookies, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two replicas is damaged: the bytes of the other one are copied."""
    async with bookies.open_client() as client:
        ledger_id = await write_ledger(client, [b"x" * 100] * 4)
    storage = bookies.up[B].bookie.storage
    record = storage.ledger(ledger_id)
    assert record is not None
    batch = storage.new_batch()
    for entry_id in range(4):
        body = bytearray(await storage.read(ledger_id, entry_id))
        body[-1] ^= 1
        storage.stage_entry(batch, record, entry_id, -1, bytes(body))
    storage.submit(batch, lambda _: None)
    running = await bookies.replace(A)
    with trio.fail_after(60):
        await running.repaired.wait()
    codec = EntryCodec(
        (await LedgerCatalog(bookies.store, ROOT, LAYOUT).get(ledger_id)).metadata.digest_type, b""
    )
    for entry_id in range(4):
        codec.unpack(await running.bookie.storage.read(ledger_id, entry_id), ledger_id, entry_id)


async def test_metadata_are_read_up_to_date(bookies: Bookies, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metadata from a lagging server could lack ensembles, and limbo would end too early."""
    async with bookies.open_client() as client:
        ledger_id = await write_ledger(client, [b"x"] * 4)
        synced: list[str] = []
        sync = MemoryStore.sync

        async def watched(self: MemoryStore, path: str) -> None:
            synced.append(path)
            await sync(self, path)

        monkeypatch.setattr(MemoryStore, "sync", watched)
        await client.replica_copy(ledger_id, A)
        assert synced == [LedgerCatalog(bookies.store, ROOT, LAYOUT).path(ledger_id)]


@given(sizes=quorum_sizes(5), data=st.data())
def test_the_missing_ranges_follow_from_the_write_sets(
    sizes: tuple[int, int, int], data: st.DataObject
) -> None:
    size, quorum, _ = sizes
    names = [f"b{number}:1" for number in range(size + 2)]
    firsts = sorted({0, *data.draw(st.lists(st.integers(1, 40), max_size=3))})
    ensembles = tuple(Ensemble(first, tuple(data.draw(st.permutations(names))[:size])) for first in firsts)
    metadata = LedgerMetadata(ensemble_size=size, write_quorum=quorum, ack_quorum=1, ensembles=ensembles)
    is_closed = data.draw(st.booleans())
    last = data.draw(st.integers(firsts[-1] - 1, firsts[-1] + 20))
    if is_closed:
        metadata = metadata.in_recovery().closed(last, 0)
    have = data.draw(st.sets(st.integers(0, 60), max_size=20))
    expected = [
        entry_id
        for entry_id in range(last + 1 if is_closed else firsts[-1])
        if entry_id not in have
        and names[0]
        in [metadata.ensemble_for(entry_id).bookies[index] for index in write_set(entry_id, size, quorum)]
    ]
    found = [
        entry_id
        for first, end, own in held_ranges(metadata, names[0])
        for range_first, range_last in missing_ranges(first, end, own, size, quorum, have)
        for entry_id in range(range_first, range_last + 1)
    ]
    assert sorted(found) == expected
    assert len(set(found)) == len(found)


async def test_an_unexpected_error_of_the_client_does_not_end_the_repair(
    bookies: Bookies, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bookies.open_client() as client:
        ledger_id = await write_ledger(client, [b"x"] * 4)
    round_of, failures = integrity.IntegrityRepair._round, 2

    async def fails_twice(self: integrity.IntegrityRepair, *arguments: Any) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise ExceptionGroup("several", [OSError("one"), ValueError("another")])
        await round_of(self, *arguments)

    monkeypatch.setattr(integrity.IntegrityRepair, "_round", fails_twice)
    monkeypatch.setattr(integrity.log, "exception", lambda *arguments: None)
    running = await bookies.replace(A)
    with trio.fail_after(60):
        await running.repaired.wait()
    assert failures == 0
    assert await bookies.entry_ids(A, ledger_id) == [0, 1, 2, 3]
