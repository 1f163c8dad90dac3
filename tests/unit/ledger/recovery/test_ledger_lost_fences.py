"""Bookies replaced at their addresses, and ensemble changes that would overlap: docs/known-bugs.md 1, 6.

The writers here have no watch on the metadata, so these tests show the protection that works without it.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from ledger.catalog.catalog import LedgerCatalog
from ledger.codes import Code
from ledger.errors import LedgerClosedError, LedgerFencedError
from ledger.metadata_store.memory import MemoryStore
from ledger.wire.messages import ReadRequest
from ledger.write.handle import WriteHandle
from tests.fakes.dict_bookies import DictCluster


@pytest.fixture(autouse=True)
def writers_without_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers that do not notice when their metadata changes."""

    async def follow_nothing(self: WriteHandle) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(WriteHandle, "_follow_metadata", follow_nothing)


async def recover_and_replace(cluster: DictCluster, ledger_id: int, *, registered: bool) -> None:
    """Another client recovers the ledger. Then every bookie is replaced by an empty one at its address."""
    async with cluster.client() as other:
        await other.open(ledger_id)
    for name in list(cluster.bookies):
        await cluster.stop(name, registered=registered)
        cluster.wipe(name)
        if registered:
            cluster.revive(name)
        else:
            await cluster.start(name)
    await trio.sleep(1)  # the lost connections are noticed


async def test_an_idle_writer_does_not_trust_bookies_that_were_replaced(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    """No reply is due when the connections break, so the writer is not notified."""
    async with cluster.client() as client:
        writer = await client.create()
        await writer.append(b"0")
        await trio.sleep(1)
        await recover_and_replace(cluster, writer.ledger_id, registered=True)
        with pytest.raises((LedgerFencedError, LedgerClosedError)):
            await writer.append(b"acknowledged by bookies without the fence")
        assert writer.lac == 0


async def test_a_writer_without_entries_does_not_trust_bookies_that_were_replaced(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    async with cluster.client() as client:
        writer = await client.create()
        await recover_and_replace(cluster, writer.ledger_id, registered=False)
        with pytest.raises((LedgerFencedError, LedgerClosedError)):
            await writer.append(b"the first one")
        assert writer.lac == -1


async def test_the_metadata_is_read_again_and_not_from_a_lagging_server(
    cluster: DictCluster, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real_sync, real_get = MemoryStore.sync, LedgerCatalog.get

    async def sync(self: MemoryStore, path: str) -> None:
        synced.append(path)
        await real_sync(self, path)

    async with cluster.client() as client:
        writer = await client.create()
        stale = await writer._context.catalog.get(writer.ledger_id)

        async def get(self: LedgerCatalog, ledger_id: int, **arguments: Any) -> Any:
            if self is writer._context.catalog and not synced:
                return stale  # from a server without the recovery
            return await real_get(self, ledger_id, **arguments)

        await recover_and_replace(cluster, writer.ledger_id, registered=False)
        monkeypatch.setattr(MemoryStore, "sync", sync)
        monkeypatch.setattr(LedgerCatalog, "get", get)
        with pytest.raises((LedgerFencedError, LedgerClosedError)):
            await writer.append(b"the first one")
        assert writer.lac == -1


async def test_a_replacement_whose_connection_broke_during_the_change_is_not_trusted(
    cluster: DictCluster, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reply of another bookie comes in between: losses are checked before the replacement is known."""
    await cluster.start("b4:1")
    await cluster.start("b5:1")
    real = LedgerCatalog.put

    async def slow_put(self: LedgerCatalog, *arguments: Any, **keywords: Any) -> Any:
        await trio.sleep(3)
        return await real(self, *arguments, **keywords)

    async with cluster.client() as client:
        async with await client.create(ensemble_size=5, write_quorum=5, ack_quorum=5) as another:
            await another.append(b"connects to all")
        writer = await client.create(ensemble_size=4, write_quorum=4, ack_quorum=2)
        first, second, third, fourth = writer.metadata.last_ensemble.bookies
        (spare,) = set(cluster.bookies) - {first, second, third, fourth}
        await writer.append(b"0")
        await trio.sleep(1)
        monkeypatch.setattr(LedgerCatalog, "put", slow_put)
        cluster.bookies[second].delay_s = 2.0
        cluster.bookies[third].is_silent = True
        await writer.append(b"1")
        await cluster.stop(third)
        await trio.sleep(1)  # the change is in progress
        await cluster.stop(spare, registered=True)
        cluster.revive(spare)
        await trio.sleep(5)  # the second bookie replies, and the change is written
        assert spare in writer.metadata.last_ensemble.bookies

        def fail_fences(request: object) -> Code | None:
            return Code.IO_ERROR if isinstance(request, ReadRequest) and request.fence else None

        cluster.bookies[first].refuse = fail_fences
        cluster.bookies[second].delay_s = 0.0
        async with cluster.client() as other, await other.open(writer.ledger_id) as reader:
            assert reader.last_confirmed == 1
        cluster.wipe(spare)  # another bookie, without the fence
        cluster.bookies[second].delay_s = cluster.bookies[fourth].delay_s = 1.0
        with pytest.raises(LedgerFencedError):
            await writer.append(b"2")
        assert writer.lac == 1


async def test_without_a_lost_connection_the_metadata_is_not_read_again(
    cluster: DictCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client() as client:
        await (await client.create()).append(b"connects")
        await trio.testing.wait_all_tasks_blocked()
        writer = await client.create()
        looks: list[int] = []

        async def look(self: LedgerCatalog, ledger_id: int) -> Any:
            looks.append(ledger_id)
            return await self.get(ledger_id)

        monkeypatch.setattr(LedgerCatalog, "get_newest", look)
        await writer.append_many([b"x"] * 100)
        assert looks == []


async def test_bookies_that_fail_during_a_change_are_replaced_after_it_and_hold_all_entries(
    cluster: DictCluster, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two overlapping changes would name bookies that never received their entries."""
    for number in (4, 5, 6):
        await cluster.start(f"b{number}:1")
    writing = most = 0
    real = LedgerCatalog.put

    async def slow_put(self: LedgerCatalog, *arguments: Any, **keywords: Any) -> Any:
        nonlocal writing, most
        writing += 1
        most = max(most, writing)
        await trio.sleep(1)
        try:
            return await real(self, *arguments, **keywords)
        finally:
            writing -= 1

    monkeypatch.setattr(LedgerCatalog, "put", slow_put)
    async with cluster.client() as client:
        writer = await client.create()
        await writer.append_many([b"%d" % number for number in range(5)])
        first, second, third = writer.metadata.last_ensemble.bookies
        await cluster.stop(first)
        for number in range(5, 10):
            writer.submit(b"%d" % number)
        await trio.sleep(0.5)  # the first change is in progress
        await cluster.stop(second)
        await trio.sleep(0.1)
        await cluster.stop(third)
        for number in range(10, 15):
            writer.submit(b"%d" % number)
        await writer.wait_confirmed(14)
        await trio.sleep(10)
        assert most == 1
        metadata = await client.metadata(writer.ledger_id)
        assert not {first, second, third} & set(metadata.last_ensemble.bookies)
        for entry_id in range(writer.lac + 1):
            holders = [
                name
                for name in metadata.ensemble_for(entry_id).bookies
                if entry_id in cluster.bookies[name].ledgers[writer.ledger_id].entries
            ]
            assert len(holders) >= 2, entry_id
        await writer.append(b"15")
        await trio.testing.wait_all_tasks_blocked()
        last = metadata.last_ensemble
        for name in last.bookies:
            entries = cluster.bookies[name].ledgers[writer.ledger_id].entries
            assert set(range(last.first_entry_id, 16)) <= set(entries)
        await writer.close()
        async with cluster.client() as other, await other.open(writer.ledger_id) as reader:
            assert reader.last_confirmed == 15
