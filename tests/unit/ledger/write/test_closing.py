"""Closing by the writer when the metadata are deleted, unreadable, or no longer its own to write."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from ledger.catalog.catalog import open_catalog
from ledger.codes import Code
from ledger.config import ClientConfig
from ledger.errors import (
    AccessDeniedError,
    LedgerClosedError,
    LedgerWriteError,
    MetadataFormatError,
    NoSuchLedgerError,
)
from ledger.metadata import LedgerState
from ledger.metadata_store.memory import open_memory_store
from ledger.wire.messages import AddRequest
from ledger.write.handle import WriteHandle
from tests.fakes.dict_bookies import DictCluster


@pytest.fixture(autouse=True)
def writers_without_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers that do not notice when their metadata change: only closing notices it."""

    async def follow_nothing(self: WriteHandle) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(WriteHandle, "_follow_metadata", follow_nothing)


async def test_closing_a_deleted_ledger_raises_each_time(cluster: DictCluster) -> None:
    async with cluster.client() as client:
        writer = await client.create()
        await writer.append(b"0")
        await client.delete(writer.ledger_id)
        for _ in range(2):
            with pytest.raises(NoSuchLedgerError):
                await writer.close()
        with pytest.raises(NoSuchLedgerError):
            await client.metadata(writer.ledger_id)  # the close has not created it again


async def test_metadata_that_do_not_parse_are_not_written_over_by_a_close(cluster: DictCluster) -> None:
    async with cluster.client() as client, open_memory_store(cluster.tree) as store:
        writer = await client.create()
        await writer.append(b"0")
        path = (await open_catalog(store, "/ledgers")).path(writer.ledger_id)
        await store.put(path, b"from the future", expected=0)
        with pytest.raises(MetadataFormatError):
            await writer.close()
        assert (await store.get(path)).value == b"from the future"


async def test_an_abandoned_ledger_is_left_open_by_a_close(cluster: DictCluster) -> None:
    async with cluster.client() as client:
        writer = await client.create()
        await writer.append(b"0")
        writer.abandon()
        with pytest.raises(LedgerClosedError, match="abandoned"):
            await writer.close()
        assert (await client.metadata(writer.ledger_id)).state is LedgerState.OPEN


async def test_a_writer_with_the_wrong_key_does_not_close_the_ledger(cluster: DictCluster) -> None:
    async with cluster.client() as client:
        writer = await client.create()
        await writer.append(b"0")
        for bookie in cluster.bookies.values():
            bookie.refuse = lambda request: (
                Code.UNAUTHORIZED if isinstance(request, AddRequest) and request.entry_id == 1 else None
            )
        with pytest.raises(AccessDeniedError, match=r"lacks the right to write.*dlog policy show"):
            await writer.append(b"1")
        sent = [len(bookie.requests) for bookie in cluster.bookies.values()]
        with pytest.raises(AccessDeniedError):
            writer.submit(b"2")
        with pytest.raises(AccessDeniedError):
            await writer.close()
        await trio.testing.wait_all_tasks_blocked()
        assert [len(bookie.requests) for bookie in cluster.bookies.values()] == sent
        assert (await client.metadata(writer.ledger_id)).state is LedgerState.OPEN


async def test_entries_acknowledged_after_a_failed_one_are_not_part_of_the_closed_ledger(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    """docs/known-bugs.md 22: the ledger ends at the last confirmed entry, with the length there."""
    async with cluster.client(ClientConfig(unavailable_timeout_s=3.0)) as client:
        writer = await client.create()
        await writer.append_many([b"0", b"11"])
        for name in ("b1:1", "b2:1"):
            cluster.bookies[name].refuse = lambda request: (
                Code.IO_ERROR if isinstance(request, AddRequest) and request.entry_id == 2 else None
            )
        writer.submit(b"222")
        writer.submit(b"3333")
        with pytest.raises(LedgerWriteError, match="no ack quorum for entry 2"):
            await writer.close()
        metadata = await client.metadata(writer.ledger_id)
        assert (metadata.state, metadata.last_entry_id, metadata.length_bytes) == (LedgerState.CLOSED, 1, 3)
        async with await client.open(writer.ledger_id) as reader:
            assert [entry.payload for entry in await reader.read(0, 1)] == [b"0", b"11"]
        await writer.close()  # it is closed already: no error
