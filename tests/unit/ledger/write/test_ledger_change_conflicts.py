"""Ensemble changes that conflict with another client: each outcome of the compare-and-set."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from ledger.catalog.catalog import LedgerCatalog, Versioned, open_catalog
from ledger.catalog.metadata_codec import encode_metadata
from ledger.config import ClientConfig
from ledger.errors import LedgerFencedError, LedgerWriteError
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.metadata_store.errors import SessionExpiredError
from ledger.metadata_store.memory import MemoryStore, open_memory_store
from ledger.write.handle import WriteHandle
from tests.fakes.dict_bookies import DictCluster

Meanwhile = Callable[[Versioned], Awaitable[None]]


class OtherClient:
    """Writes to the metadata store just before the writer's change arrives there."""

    def __init__(self, store: MemoryStore, catalog: LedgerCatalog) -> None:
        self.store, self.catalog = store, catalog
        self.write: Callable[[LedgerMetadata], LedgerMetadata] | None = None
        self.act: Meanwhile | None = None
        self.changes = 0

    async def interfere(self, ledger_id: int) -> None:
        found = await self.catalog.get(ledger_id)
        if self.write is not None:
            write, self.write = self.write, None
            stored = encode_metadata(write(found.metadata))
            await self.store.put(self.catalog.path(ledger_id), stored, expected=found.version)
        if self.act is not None:
            act, self.act = self.act, None
            await act(found)


@pytest.fixture
async def other_client(cluster: DictCluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OtherClient]:
    """Writes just before an ensemble change of a writer that does not notice changes of its metadata."""

    async def follow_nothing(self: WriteHandle) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(WriteHandle, "_follow_metadata", follow_nothing)
    real = LedgerCatalog.put
    async with open_memory_store(cluster.tree) as store:
        one = OtherClient(store, await open_catalog(store, "/ledgers"))

        async def put(self: LedgerCatalog, ledger_id: int, metadata: LedgerMetadata, **keywords: Any) -> Any:
            if self is not one.catalog and metadata.state is LedgerState.OPEN:
                one.changes += 1
                await one.interfere(ledger_id)
            return await real(self, ledger_id, metadata, **keywords)

        monkeypatch.setattr(LedgerCatalog, "put", put)
        yield one


async def begun(cluster: DictCluster, client: Any) -> tuple[Any, str]:
    """A writer with five confirmed entries, and its dead bookie; two bookies are spare."""
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
    await trio.sleep(1)  # by now the change is made, or the writer has ended
    await writer.append(b"y")


async def holders(cluster: DictCluster, metadata: LedgerMetadata, ledger_id: int, entry_id: int) -> int:
    await trio.testing.wait_all_tasks_blocked()
    return sum(
        entry_id in cluster.bookies[name].ledgers[ledger_id].entries
        for name in metadata.ensemble_for(entry_id).bookies
        if ledger_id in cluster.bookies[name].ledgers
    )


async def test_after_a_conflict_on_an_open_ledger_the_change_is_applied_to_the_stored_metadata(
    cluster: DictCluster, other_client: OtherClient, autojump_clock: MockClock
) -> None:
    async with cluster.client() as client:
        writer, dead = await begun(cluster, client)
        other_client.write = lambda found: attrs.evolve(found, custom={"by": b"another client"})
        await writer.append_many([b"x"] * 5)
        await trio.sleep(1)
        metadata = await client.metadata(writer.ledger_id)
        assert metadata.custom == {"by": b"another client"}
        assert dead not in metadata.last_ensemble.bookies
        assert await holders(cluster, metadata, writer.ledger_id, 9) == 3


async def test_a_writer_that_finds_a_recovery_stops_and_leaves_the_metadata_to_it(
    cluster: DictCluster, other_client: OtherClient, autojump_clock: MockClock
) -> None:
    async with cluster.client() as client:
        writer, dead = await begun(cluster, client)
        other_client.write = LedgerMetadata.in_recovery
        with pytest.raises(LedgerFencedError, match="in recovery"):
            await write_on(writer)
        metadata = await client.metadata(writer.ledger_id)
        assert (metadata.state, len(metadata.ensembles)) == (LedgerState.IN_RECOVERY, 1)
        assert dead in metadata.last_ensemble.bookies


async def test_a_writer_that_finds_its_ledger_closed_raises_with_the_end(
    cluster: DictCluster, other_client: OtherClient, autojump_clock: MockClock
) -> None:
    async with cluster.client() as client:
        writer, _ = await begun(cluster, client)
        other_client.write = lambda found: found.closed(3, 4)
        with pytest.raises(LedgerFencedError, match="another client closed it at entry 3"):
            await write_on(writer)
        assert (await client.metadata(writer.ledger_id)).last_entry_id == 3


async def test_another_client_may_have_replaced_the_failing_bookie(
    cluster: DictCluster, other_client: OtherClient, autojump_clock: MockClock
) -> None:
    """The stored ensemble counts: the writer sends the pending entries to the bookie that it finds there."""
    async with cluster.client() as client:
        writer, dead = await begun(cluster, client)
        other_client.write = lambda found: found.with_ensemble(
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


async def test_a_bookie_that_another_client_added_is_not_added_twice(
    cluster: DictCluster, other_client: OtherClient, autojump_clock: MockClock
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
        other_client.write = lambda found: found.with_ensemble(
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


def with_a_bookie_twice(found: LedgerMetadata) -> LedgerMetadata:
    """Metadata that this program refuses to build, and another program may store."""
    double = found.with_ensemble(5, ("b7:1", "b6:1", "b8:1"))
    object.__setattr__(double.last_ensemble, "bookies", ("b7:1", "b7:1", "b8:1"))
    return double


@pytest.mark.parametrize(
    ("write", "evidence"),
    [
        (lambda found: found.with_ensemble(999, found.last_ensemble.bookies), "begins at 999 already"),
        (with_a_bookie_twice, "'b7:1' 2 times"),
    ],
)
async def test_metadata_that_no_client_writes_end_the_writer_but_not_its_client(
    cluster: DictCluster, other_client: OtherClient, autojump_clock: MockClock, write: Any, evidence: str
) -> None:
    async with cluster.client() as client:
        writer, _ = await begun(cluster, client)
        other_client.write = write
        with pytest.raises(LedgerWriteError, match=evidence):
            await write_on(writer)
        other = await client.create()
        assert await other.append(b"the client lives") == 0


async def test_a_deleted_ledger_ends_the_writer(
    cluster: DictCluster, other_client: OtherClient, autojump_clock: MockClock
) -> None:
    async with cluster.client() as client:
        writer, _ = await begun(cluster, client)

        async def delete(found: Versioned) -> None:
            await other_client.catalog.delete(found.ledger_id)

        other_client.act = delete
        with pytest.raises(LedgerWriteError, match="not in the metadata store"):
            await write_on(writer)


async def test_metadata_that_do_not_parse_end_the_writer_and_are_left_as_they_are(
    cluster: DictCluster, other_client: OtherClient, autojump_clock: MockClock
) -> None:
    async with cluster.client() as client:
        writer, _ = await begun(cluster, client)
        path = other_client.catalog.path(writer.ledger_id)

        async def garble(found: Versioned) -> None:
            await other_client.store.put(path, b"from the future", expected=found.version)

        other_client.act = garble
        with pytest.raises(LedgerWriteError, match="an ensemble change cannot be made"):
            await write_on(writer)
        assert (await other_client.store.get(path)).value == b"from the future"
        other = await client.create()
        assert await other.append(b"the client lives") == 0


@pytest.mark.parametrize("is_stored", [False, True])
async def test_a_session_that_expires_during_a_change_ends_the_writer(
    cluster: DictCluster,
    other_client: OtherClient,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    is_stored: bool,
) -> None:
    """Whether the change was stored is unknown: nothing may be confirmed any more, and nothing is lost."""
    real = MemoryStore.put

    async def put_and_expire(self: MemoryStore, path: str, value: bytes, *, expected: int = -1) -> Any:
        if is_stored:
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
    stored = (await other_client.catalog.get(writer.ledger_id)).metadata.last_ensemble.bookies
    assert (dead in stored) is not is_stored
    async with cluster.client() as other, await other.open(writer.ledger_id) as reader:
        assert reader.last_confirmed >= confirmed
        assert len(await reader.read(0, confirmed)) == confirmed + 1


async def test_a_change_is_tried_again_after_each_conflict(
    cluster: DictCluster, other_client: OtherClient, autojump_clock: MockClock
) -> None:
    async with cluster.client() as client:
        writer, dead = await begun(cluster, client)

        def again(found: LedgerMetadata) -> LedgerMetadata:
            if other_client.changes < 5:
                other_client.write = again
            return attrs.evolve(found, custom={"n": b"%d" % other_client.changes})

        other_client.write = again
        await writer.append_many([b"x"] * 5)
        await trio.sleep(1)
        metadata = await client.metadata(writer.ledger_id)
        assert dead not in metadata.last_ensemble.bookies
        assert other_client.changes == 6


async def test_unreadable_metadata_end_a_writer_that_follows_them_but_not_its_client(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    async with cluster.client(ClientConfig(unavailable_timeout_s=3.0)) as client:
        writer = await client.create()
        await writer.append(b"0")
        async with open_memory_store(cluster.tree) as store:
            path = (await open_catalog(store, "/ledgers")).path(writer.ledger_id)
            await store.put(path, b"from the future", expected=0)
            await trio.sleep(1)
            with pytest.raises(LedgerWriteError, match="so it may have been taken over"):
                await writer.append(b"1")
            assert (await store.get(path)).value == b"from the future"
        other = await client.create()
        assert await other.append(b"the client lives") == 0
