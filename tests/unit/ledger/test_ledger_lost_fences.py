"""Bookies replaced at their addresses, and changes of ensembles that would overlap: lessons 1.1 rows 1 and 6.

The watch on the metadata is taken away here: what is shown is the last line of defence.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio

from ledger.catalog import LedgerCatalog
from ledger.errors import LedgerClosedError, LedgerFencedError
from ledger.repair import EnsembleRepair
from ledger.wire.codes import Code
from ledger.wire.messages import ReadRequest
from namespace.memory import MemoryStore


@pytest.fixture(autouse=True)
def deaf_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers that are not told when their metadata changes."""

    async def never_told(self: EnsembleRepair) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(EnsembleRepair, "follow_metadata", never_told)


async def replaced_after_recovery(cluster: Any, ledger_id: int, *, registered: bool) -> None:
    """Somebody recovers the ledger; then every bookie is another one at the same address."""
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


async def test_an_idle_writer_does_not_believe_bookies_that_were_replaced_meanwhile(
    cluster: Any, autojump_clock: Any
) -> None:
    """No answer is due when the connections break, so nobody tells the writer."""
    async with cluster.client() as client:
        writer = await client.create()
        await writer.append(b"0")
        await trio.sleep(1)
        await replaced_after_recovery(cluster, writer.ledger_id, registered=True)
        with pytest.raises((LedgerFencedError, LedgerClosedError)):
            await writer.append(b"acknowledged by bookies that know of no fence")
        assert writer.lac == 0


async def test_nor_does_one_that_never_wrote(cluster: Any, autojump_clock: Any) -> None:
    async with cluster.client() as client:
        writer = await client.create()
        await replaced_after_recovery(cluster, writer.ledger_id, registered=False)
        with pytest.raises((LedgerFencedError, LedgerClosedError)):
            await writer.append(b"the first one")
        assert writer.lac == -1


async def test_the_metadata_is_read_anew_and_not_from_a_server_that_lags(
    cluster: Any, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real_sync, real_get = MemoryStore.sync, LedgerCatalog.get

    async def sync(self: MemoryStore, path: str) -> None:
        synced.append(path)
        await real_sync(self, path)

    async with cluster.client() as client:
        writer = await client.create()
        stale = await writer._catalog.get(writer.ledger_id)

        async def get(self: LedgerCatalog, ledger_id: int, **arguments: Any) -> Any:
            if self is writer._catalog and not synced:
                return stale  # of a server that has not heard of the recovery
            return await real_get(self, ledger_id, **arguments)

        await replaced_after_recovery(cluster, writer.ledger_id, registered=False)
        monkeypatch.setattr(MemoryStore, "sync", sync)
        monkeypatch.setattr(LedgerCatalog, "get", get)
        with pytest.raises((LedgerFencedError, LedgerClosedError)):
            await writer.append(b"the first one")
        assert writer.lac == -1


async def test_a_spare_whose_connection_broke_while_it_was_taken_in_is_not_believed(
    cluster: Any, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another bookie answers in between: the loss is looked at before anybody knows of the spare."""
    await cluster.start("b4:1")
    await cluster.start("b5:1")
    real = LedgerCatalog.put

    async def slow_put(self: LedgerCatalog, *arguments: Any, **keywords: Any) -> Any:
        await trio.sleep(3)
        return await real(self, *arguments, **keywords)

    async with cluster.client() as client:
        async with await client.create(ensemble_size=5, write_quorum=5, ack_quorum=5) as another:
            await another.append(b"connects all")
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
        await trio.sleep(1)  # the change is on its way
        await cluster.stop(spare, registered=True)
        cluster.revive(spare)
        await trio.sleep(5)  # the second answers, the change is made
        assert spare in writer.metadata.last_ensemble.bookies

        def denies_fences(request: object) -> Code | None:
            return Code.IO_ERROR if isinstance(request, ReadRequest) and request.fence else None

        cluster.bookies[first].refuse = denies_fences
        cluster.bookies[second].delay_s = 0.0
        async with cluster.client() as other, await other.open(writer.ledger_id) as reader:
            assert reader.last_confirmed == 1
        cluster.wipe(spare)  # another bookie, which knows of no fence
        cluster.bookies[second].delay_s = cluster.bookies[fourth].delay_s = 1.0
        with pytest.raises(LedgerFencedError):
            await writer.append(b"2")
        assert writer.lac == 1


async def test_a_connection_that_lasts_needs_no_look_at_the_metadata(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
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


async def test_bookies_that_fail_during_a_change_are_replaced_after_it_and_hold_everything(
    cluster: Any, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two overlapping changes would name bookies that were never sent what they should hold."""
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
        await trio.sleep(0.5)  # the first change is on its way
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
