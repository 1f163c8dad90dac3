"""Ledgers from creation to deletion, with dictionary bookies."""

# covers: ledger/client.py
# covers: ledger/context.py
# covers: ledger/handle.py

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from ledger.config import ClientConfig
from ledger.digest import DigestType
from ledger.errors import (
    EntryBeyondLacError,
    LedgerClosedError,
    LedgerExistsError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    WrongPasswordError,
)
from ledger.metadata import LedgerState
from ledger.read.handle import ReadHandle
from ledger.read.lac_poll import LacPoll
from ledger.transport.transport import TransportConfig
from tests.fakes.dict_bookies import DictCluster


@pytest.mark.parametrize("version", [2, 3])
async def test_appended_entries_are_read_back_after_the_close(cluster: DictCluster, version: Any) -> None:
    config = ClientConfig(transport=TransportConfig(add_version=version))
    async with cluster.client(config) as client:
        writer = await client.create(custom={"owner": b"test"})
        assert await writer.append(b"zero") == 0
        assert await writer.append_many([b"one", b"", b"three"]) == range(1, 4)
        assert (writer.lac, writer.last_pushed, writer.length_bytes) == (3, 3, 12)
        await writer.close()
        metadata = await client.metadata(writer.ledger_id)
        assert (metadata.state, metadata.last_entry_id, metadata.length_bytes) == (LedgerState.CLOSED, 3, 12)
        assert metadata.custom == {"owner": b"test"}
        reader = await client.open(writer.ledger_id)
        assert reader.is_closed
        entries = await reader.read(0, reader.last_confirmed)
        assert [entry.payload for entry in entries] == [b"zero", b"one", b"", b"three"]
        assert [entry.length_bytes for entry in entries] == [4, 7, 7, 12]
        assert all(entry.lac < entry.entry_id for entry in entries)
        assert (await reader.read_payloads(1, 3))[0] == b"one"


@pytest.mark.slow
@pytest.mark.parametrize("digest_type", list(DigestType))
async def test_every_digest_type_works_with_striping(cluster: DictCluster, digest_type: DigestType) -> None:
    async with cluster.client() as client:
        payloads = [b"%d" % number * number for number in range(200)]
        async with await client.create(
            ensemble_size=3, write_quorum=2, ack_quorum=2, digest_type=digest_type, password=b"secret"
        ) as writer:
            await writer.append_many(payloads)
        held = [bookie.ledgers[writer.ledger_id].entries for bookie in cluster.bookies.values()]
        assert [sum(entry_id in entries for entries in held) for entry_id in range(200)] == [2] * 200
        with pytest.raises(WrongPasswordError):
            await client.open(writer.ledger_id, password=b"guess")
        async with await client.open(writer.ledger_id, password=b"secret") as reader:
            read: list[bytes] = []
            while len(read) < 200:
                read += await reader.read_payloads(len(read), 199)
            assert read == payloads


async def test_entries_submitted_without_a_wait_are_sent_too(cluster: DictCluster) -> None:
    async with cluster.client() as client:
        writer = await client.create()
        confirmed: list[tuple[int, object]] = []
        writer.on_confirmed(lambda lac, error: confirmed.append((lac, error)))
        for _ in range(10):
            writer.submit(b"x")
        await trio.testing.wait_all_tasks_blocked()
        assert writer.lac == 9
        assert confirmed[-1] == (9, None)
        assert [lac for lac, _ in confirmed] == sorted(lac for lac, _ in confirmed)


async def test_creating_a_ledger_needs_enough_bookies_and_an_unused_id(cluster: DictCluster) -> None:
    async with cluster.client() as client:
        with pytest.raises(NotEnoughBookiesError, match="4 bookies wanted, 3 writable"):
            await client.create(ensemble_size=4, write_quorum=4, ack_quorum=2)
        with pytest.raises(ValueError, match="write_quorum=3, ack_quorum=4"):
            await client.create(ack_quorum=4)
        writer = await client.create(ledger_id=7)
        with pytest.raises(LedgerExistsError):
            await client.create(ledger_id=7)
        assert writer.ledger_id == 7
        other = await client.create()
        assert await client.ledger_ids() == sorted([7, other.ledger_id])


async def test_a_closed_handle_accepts_no_entry_and_a_deleted_ledger_cannot_be_opened(
    cluster: DictCluster,
) -> None:
    async with cluster.client() as client:
        writer = await client.create()
        await writer.append(b"only")
        await writer.close()
        await writer.close()
        with pytest.raises(LedgerClosedError, match="closed at entry 0"):
            writer.submit(b"late")
        await client.delete(writer.ledger_id)
        await client.delete(writer.ledger_id)
        with pytest.raises(NoSuchLedgerError):
            await client.open(writer.ledger_id)


async def test_unconfirmed_entries_are_read_and_change_nothing_of_what_is_known(cluster: DictCluster) -> None:
    async with cluster.client() as client:
        writer = await client.create()
        await writer.append_many([b"0", b"1", b"2"])
        reader = await client.open(writer.ledger_id, recover=False)
        before = reader.last_confirmed
        assert before < 2
        assert [entry.payload for entry in await reader.read_unconfirmed(0, 2)] == [b"0", b"1", b"2"]
        with pytest.raises(EntryBeyondLacError):
            await reader.read(0, 2)
        with pytest.raises(NoSuchEntryError):
            await reader.read_unconfirmed(3, 3)
        with pytest.raises(ValueError, match="no range"):
            await reader.read_unconfirmed(2, 1)
        await reader.close()
        with pytest.raises(LedgerClosedError):
            await reader.read_unconfirmed(0, 0)
        writer.abandon()


async def test_a_reader_without_recovery_reads_confirmed_entries_and_follows_the_writer(
    cluster: DictCluster,
) -> None:
    async with cluster.client() as client:
        writer = await client.create()
        await writer.append_many([b"0", b"1", b"2"])
        reader = await client.open(writer.ledger_id, recover=False)
        assert reader.last_confirmed <= 1  # the bookies cannot know yet that entry 2 is confirmed
        with pytest.raises(EntryBeyondLacError):
            await reader.read(0, 2)
        await writer.write_explicit_lac()
        assert await reader.read_last_confirmed() == 2
        assert [entry.payload for entry in await reader.read(0, 2)] == [b"0", b"1", b"2"]
        async with trio.open_nursery() as nursery:

            async def write_later() -> None:
                await trio.testing.wait_all_tasks_blocked()
                await writer.append(b"3")
                await writer.append(b"4")

            nursery.start_soon(write_later)
            assert await reader.wait_last_confirmed_beyond(2, timeout_s=5) >= 3
        assert not reader.is_closed


async def test_a_batch_ends_at_the_last_requested_entry_if_bookies_send_more(cluster: DictCluster) -> None:
    async with cluster.client() as client:
        writer = await client.create()
        for number in range(10):
            await writer.append(b"%d" % number)
        for bookie in cluster.bookies.values():
            bookie.obeys_count_max = False
        reader = await client.open(writer.ledger_id, recover=False)
        assert await reader.read_payloads(0, 1) == [b"0", b"1"]


async def test_a_max_lac_without_a_digest_does_not_count(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    async with cluster.client() as client:
        writer = await client.create()
        await writer.append_many([b"0", b"1", b"2"])
        reader = await client.open(writer.ledger_id, recover=False)
        for bookie in cluster.bookies.values():
            bookie.ledgers[writer.ledger_id].lac = 1000  # as from a damaged entry
        assert await reader.wait_last_confirmed_beyond(2, timeout_s=30) <= 2


async def test_a_waiting_reader_notices_the_close(cluster: DictCluster) -> None:
    async with cluster.client() as client:
        writer = await client.create()
        await writer.append_many([b"0", b"1"])
        reader = await client.open(writer.ledger_id, recover=False)
        async with trio.open_nursery() as nursery:

            async def close_later() -> None:
                await trio.testing.wait_all_tasks_blocked()
                await writer.close()

            nursery.start_soon(close_later)
            assert await reader.wait_last_confirmed_beyond(1, timeout_s=60) == 1
        assert reader.is_closed
        assert "closed ledger" in repr(reader)


async def test_a_reader_notices_a_close_that_is_learnt_when_its_wait_begins(
    cluster: DictCluster, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client() as client, cluster.client() as other:
        writer = await client.create()
        await writer.append_many([b"0", b"1"])
        await writer.write_explicit_lac()
        monkeypatch.setattr(ReadHandle, "start", lambda self: None)  # it does not follow the metadata
        reader = await other.open(writer.ledger_id, recover=False)
        assert await reader.read_last_confirmed() == 1
        await writer.close()
        closed = await client._context.catalog.get(writer.ledger_id)
        real = LacPoll.run

        async def run(self: LacPoll, entry_id: int, timeout_s: float) -> None:
            reader._update(closed)  # as its other task may do just before the poll
            await real(self, entry_id, timeout_s)

        monkeypatch.setattr(LacPoll, "run", run)
        with trio.fail_after(60):
            assert await reader.wait_last_confirmed_beyond(1, timeout_s=600) == 1
        assert reader.is_closed
