"""Ensemble changes that find the metadata changed by somebody else: each outcome of the compare-and-set."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import attrs
import pytest
import trio

from ledger.catalog import LedgerCatalog, Versioned, open_catalog
from ledger.config import ClientConfig
from ledger.errors import LedgerFencedError, LedgerWriteError
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.repair import EnsembleRepair
from namespace.errors import SessionExpiredError
from namespace.memory import MemoryStore, open_memory_store

Meanwhile = Callable[[Versioned], Awaitable[None]]


class Somebody:
    """Another client of the metadata store, who writes just before the writer's change arrives there."""

    def __init__(self, store: MemoryStore, catalog: LedgerCatalog) -> None:
        self.store, self.catalog = store, catalog
        self.writes: Callable[[LedgerMetadata], LedgerMetadata] | None = None
        self.does: Meanwhile | None = None
        self.changes = 0

    async def strike(self, ledger_id: int) -> None:
        found = await self.catalog.get(ledger_id)
        if self.writes is not None:
            writes, self.writes = self.writes, None
            await self.catalog.put(ledger_id, writes(found.metadata), expected=found.version)
        if self.does is not None:
            does, self.does = self.does, None
            await does(found)


@pytest.fixture
async def somebody(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Somebody]:
    """Strikes in front of an ensemble change of a writer that is not told when its metadata changes."""

    async def never_told(self: EnsembleRepair) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(EnsembleRepair, "follow_metadata", never_told)
    real = LedgerCatalog.put
    async with open_memory_store(cluster.tree) as store:
        one = Somebody(store, await open_catalog(store, "/ledgers"))

        async def put(self: LedgerCatalog, ledger_id: int, metadata: LedgerMetadata, **keywords: Any) -> Any:
            if self is not one.catalog and metadata.state is LedgerState.OPEN:
                one.changes += 1
                await one.strike(ledger_id)
            return await real(self, ledger_id, metadata, **keywords)

        monkeypatch.setattr(LedgerCatalog, "put", put)
        yield one


async def begun(cluster: Any, client: Any) -> tuple[Any, str]:
    """A writer with five confirmed entries and a bookie that is dead now; two bookies are spare."""
    for number in (4, 5):
        await cluster.start(f"b{number}:1")
    writer = await client.create()
    await writer.append_many([b"%d" % number for number in range(5)])
    await trio.testing.wait_all_tasks_blocked()
    dead = writer.metadata.last_ensemble.bookies[1]
    await cluster.stop(dead)
    return writer, dead


async def write_on(writer: Any) -> None:
    await writer.append_many([b"x"] * 5)
    await trio.sleep(1)  # the change is made, or found out to be impossible
    await writer.append(b"y")


async def holders(cluster: Any, metadata: LedgerMetadata, ledger_id: int, entry_id: int) -> int:
    await trio.testing.wait_all_tasks_blocked()
    return sum(
        entry_id in cluster.bookies[name].ledgers[ledger_id].entries
        for name in metadata.ensemble_for(entry_id).bookies
        if ledger_id in cluster.bookies[name].ledgers
    )


async def test_a_conflict_that_leaves_the_ledger_open_is_written_anew_over_what_was_found(
    cluster: Any, somebody: Somebody, autojump_clock: Any
) -> None:
    async with cluster.client() as client:
        writer, dead = await begun(cluster, client)
        somebody.writes = lambda found: attrs.evolve(found, custom={"by": b"somebody else"})
        await writer.append_many([b"x"] * 5)
        await trio.sleep(1)
        metadata = await client.metadata(writer.ledger_id)
        assert metadata.custom == {"by": b"somebody else"}
        assert dead not in metadata.last_ensemble.bookies
        assert await holders(cluster, metadata, writer.ledger_id, 9) == 3


async def test_a_writer_that_finds_a_recovery_stops_and_leaves_the_metadata_to_it(
    cluster: Any, somebody: Somebody, autojump_clock: Any
) -> None:
    async with cluster.client() as client:
        writer, dead = await begun(cluster, client)
        somebody.writes = LedgerMetadata.in_recovery
        with pytest.raises(LedgerFencedError, match="in recovery"):
            await write_on(writer)
        metadata = await client.metadata(writer.ledger_id)
        assert (metadata.state, len(metadata.ensembles)) == (LedgerState.IN_RECOVERY, 1)
        assert dead in metadata.last_ensemble.bookies


async def test_a_writer_that_finds_its_ledger_closed_is_told_where(
    cluster: Any, somebody: Somebody, autojump_clock: Any
) -> None:
    async with cluster.client() as client:
        writer, _ = await begun(cluster, client)
        somebody.writes = lambda found: found.closed(3, 4)
        with pytest.raises(LedgerFencedError, match="closed by somebody else at entry 3"):
            await write_on(writer)
        assert (await client.metadata(writer.ledger_id)).last_entry_id == 3


async def test_the_failing_bookie_may_have_been_replaced_by_somebody_else(
    cluster: Any, somebody: Somebody, autojump_clock: Any
) -> None:
    """What is stored counts: the writer sends what is pending to the bookie that it finds."""
    async with cluster.client() as client:
        writer, dead = await begun(cluster, client)
        somebody.writes = lambda found: found.with_ensemble(
            writer.lac + 1, tuple({dead: "b9:1"}.get(name, name) for name in found.last_ensemble.bookies)
        )
        await cluster.start("b9:1")
        await writer.append_many([b"x"] * 5)
        await trio.sleep(1)
        metadata = await client.metadata(writer.ledger_id)
        assert metadata.last_ensemble.bookies[1] == "b9:1"
        assert await holders(cluster, metadata, writer.ledger_id, 9) == 3
        await writer.close()
        async with await client.open(writer.ledger_id) as reader:
            assert len(await reader.read(0, 9)) == 10


async def test_a_new_bookie_that_somebody_else_took_in_is_not_taken_twice(
    cluster: Any, somebody: Somebody, autojump_clock: Any
) -> None:
    async with cluster.client() as client:
        writer, dead = await begun(cluster, client)
        await cluster.stop("b5:1")
        spare = next(
            name
            for name in ("b1:1", "b2:1", "b3:1", "b4:1")
            if name not in writer.metadata.last_ensemble.bookies
        )
        other = writer.metadata.last_ensemble.bookies[0]
        somebody.writes = lambda found: found.with_ensemble(
            writer.lac + 1, tuple({other: spare}.get(name, name) for name in found.last_ensemble.bookies)
        )
        await writer.append_many([b"x"] * 5)
        await trio.sleep(5)
        metadata = await client.metadata(writer.ledger_id)
        bookies = metadata.last_ensemble.bookies
        assert bookies[0] == spare
        assert dead not in bookies
        assert len(set(bookies)) == 3
        assert await holders(cluster, metadata, writer.ledger_id, 9) == 3


@pytest.mark.parametrize(
    ("write", "evidence"),
    [
        (lambda found: found.with_ensemble(999, found.last_ensemble.bookies), "begins at 999 already"),
        (lambda found: found.with_ensemble(5, ("b7:1", "b7:1", "b8:1")), "a bookie twice"),
    ],
)
async def test_metadata_that_no_client_writes_ends_the_writer_and_only_the_writer(
    cluster: Any, somebody: Somebody, autojump_clock: Any, write: Any, evidence: str
) -> None:
    async with cluster.client() as client:
        writer, _ = await begun(cluster, client)
        somebody.writes = write
        with pytest.raises(LedgerWriteError, match=evidence):
            await write_on(writer)
        other = await client.create()
        assert await other.append(b"the client lives") == 0


async def test_a_ledger_deleted_meanwhile_ends_the_writer(
    cluster: Any, somebody: Somebody, autojump_clock: Any
) -> None:
    async with cluster.client() as client:
        writer, _ = await begun(cluster, client)

        async def delete(found: Versioned) -> None:
            await somebody.catalog.delete(found.ledger_id)

        somebody.does = delete
        with pytest.raises(LedgerWriteError, match="not in the metadata store"):
            await write_on(writer)


async def test_metadata_that_does_not_parse_ends_the_writer_and_is_left_as_it_is(
    cluster: Any, somebody: Somebody, autojump_clock: Any
) -> None:
    async with cluster.client() as client:
        writer, _ = await begun(cluster, client)
        path = somebody.catalog.path(writer.ledger_id)

        async def garble(found: Versioned) -> None:
            await somebody.store.put(path, b"from the future", expected=found.version)

        somebody.does = garble
        with pytest.raises(LedgerWriteError, match="an ensemble change cannot be made"):
            await write_on(writer)
        assert (await somebody.store.get(path)).value == b"from the future"
        other = await client.create()
        assert await other.append(b"the client lives") == 0


@pytest.mark.parametrize("is_taken", [False, True])
async def test_a_session_that_expires_during_a_change_ends_the_writer(
    cluster: Any, somebody: Somebody, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch, is_taken: bool
) -> None:
    """Whether the change was taken is unknown: nothing may be confirmed any more, and nothing is lost."""
    real = MemoryStore.put

    async def put_and_expire(self: MemoryStore, path: str, value: bytes, *, expected: int = -1) -> Any:
        if is_taken:
            await real(self, path, value, expected=expected)
        self.expire()
        raise SessionExpiredError(path)

    async with cluster.client() as client:
        writer, dead = await begun(cluster, client)
        monkeypatch.setattr(MemoryStore, "put", put_and_expire)
        with pytest.raises(LedgerWriteError, match="outcome of an ensemble change is unknown"):
            await write_on(writer)
        confirmed = writer.lac
        await trio.sleep(30)
        assert writer.lac == confirmed
        with pytest.raises(LedgerWriteError, match="outcome of an ensemble change is unknown"):
            writer.submit(b"z")
    monkeypatch.setattr(MemoryStore, "put", real)
    stored = (await somebody.catalog.get(writer.ledger_id)).metadata.last_ensemble.bookies
    assert (dead in stored) is not is_taken
    async with cluster.client() as other, await other.open(writer.ledger_id) as reader:
        assert reader.last_confirmed >= confirmed
        assert len(await reader.read(0, confirmed)) == confirmed + 1


async def test_conflicts_are_answered_as_often_as_they_come(
    cluster: Any, somebody: Somebody, autojump_clock: Any
) -> None:
    async with cluster.client() as client:
        writer, dead = await begun(cluster, client)

        def again(found: LedgerMetadata) -> LedgerMetadata:
            if somebody.changes < 5:
                somebody.writes = again
            return attrs.evolve(found, custom={"n": b"%d" % somebody.changes})

        somebody.writes = again
        await writer.append_many([b"x"] * 5)
        await trio.sleep(1)
        metadata = await client.metadata(writer.ledger_id)
        assert dead not in metadata.last_ensemble.bookies
        assert somebody.changes == 6


async def test_unreadable_metadata_ends_a_writer_that_follows_it_and_only_the_writer(
    cluster: Any, autojump_clock: Any
) -> None:
    async with cluster.client(ClientConfig(unavailable_patience_s=3.0)) as client:
        writer = await client.create()
        await writer.append(b"0")
        async with open_memory_store(cluster.tree) as store:
            path = (await open_catalog(store, "/ledgers")).path(writer.ledger_id)
            await store.put(path, b"from the future", expected=0)
            await trio.sleep(1)
            with pytest.raises(LedgerWriteError, match="whether it is still this writer's cannot be told"):
                await writer.append(b"1")
            assert (await store.get(path)).value == b"from the future"
        other = await client.create()
        assert await other.append(b"the client lives") == 0
