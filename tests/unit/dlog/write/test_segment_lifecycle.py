"""The first segment of a writer: its ledger and its node in one transaction, where that is possible."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import attrs
import pytest

import dlog
from dlog.errors import LogFencedError, LogUnavailableError
from dlog.write.opening import take_lock
from dlog.write.segment_lifecycle import SegmentLifecycle
from ledger.handle import WriteHandle
from ledger.metadata_store.errors import ConnectionLostError
from ledger.metadata_store.memory import MemoryTree
from ledger.metadata_store.store import Operation
from namespace.log_nodes import LogNodes
from namespace.logs import open_log
from namespace.segment_nodes import list_segments, record_allocation
from tests.fakes.dict_bookies import DictCluster, open_cluster
from tests.fakes.dict_namespace import Opened, WatchedStore, open_on, read_all
from tests.fakes.log_paths import paths_of

ALLOCATION = paths_of("/ns", "log").allocation_path


@pytest.fixture
async def cluster() -> AsyncIterator[DictCluster]:
    async with open_cluster() as opened:
        yield opened


@asynccontextmanager
async def lifecycle_of(opened: Opened) -> AsyncIterator[SegmentLifecycle]:
    """The segments of a new log, whose lock is held."""
    await opened.namespace.create_log("log", exist_ok=True)
    lock = await take_lock(LogNodes(opened.store, "/ns", "log"), "test", 0)
    lifecycle = opened.namespace.context.writers_lifecycle("log", lock, opened.namespace.config.writer)
    await lifecycle.refresh()
    try:
        yield lifecycle
    finally:
        await lock.release()


async def ledgers_in_progress(opened: Opened) -> list[int]:
    listed = await list_segments(LogNodes(opened.store, "/ns", "log"))
    return [segment.ledger_id for segment in listed.segments if segment.in_progress]


def _ended(handle: WriteHandle) -> None:
    handle.abandon()


async def test_one_transaction_creates_the_ledger_and_its_segment(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened, lifecycle_of(opened) as lifecycle:
        writes: list[str] = []

        async def note(kind: str, path: str) -> None:
            if kind in ("put", "create", "commit", "delete") and "idgen" not in path:
                writes.append(kind)

        await opened.client.create()  # the inner nodes of ledgers are there
        opened.store.before = note
        begun = await lifecycle.begin(7)
        assert writes == ["commit"]
        assert begun is not None
        handle, segment = begun
        assert (segment.ledger_id, segment.first_txid) == (handle.ledger_id, 7)
        assert await ledgers_in_progress(opened) == [handle.ledger_id]
        assert lifecycle.segments == (segment,)
        node = await opened.store.get(ALLOCATION)
        assert (node.value, node.stat.version) == (b"", 1), "the ledger's stamp is older than the node"
        _ended(handle)


async def test_the_first_ledger_of_a_cluster_gets_its_inner_nodes(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened, lifecycle_of(opened) as lifecycle:
        begun = await lifecycle.begin(0)
        assert begun is not None
        assert await opened.client.ledger_ids() == [begun[0].ledger_id]
        _ended(begun[0])


async def test_a_writer_that_was_overtaken_creates_no_ledger(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened, lifecycle_of(opened) as lifecycle:
        known = await open_log(LogNodes(opened.store, "/ns", "log"))
        await record_allocation(known, 99)
        with pytest.raises(LogFencedError):
            await lifecycle.begin(0)
        assert await opened.client.ledger_ids() == []
        assert await ledgers_in_progress(opened) == []


class LosingStore(WatchedStore):
    """Loses the reply to one transaction, which is applied."""

    is_losing = False

    async def commit(self, operations: Sequence[Operation]) -> None:
        await super().commit(operations)
        if self.is_losing:
            self.is_losing = False
            raise ConnectionLostError("/", "the reply was lost")


async def test_a_segment_whose_reply_was_lost_is_recovered_before_the_next_one(
    cluster: DictCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.fakes.dict_namespace.WatchedStore", LosingStore)
    async with open_on(cluster) as opened, lifecycle_of(opened) as lifecycle:
        store = opened.store
        assert isinstance(store, LosingStore)
        store.is_losing = True
        with pytest.raises(LogUnavailableError):
            await lifecycle.begin(0)
        (lost,) = await ledgers_in_progress(opened)
        begun = await lifecycle.begin(0)
        assert begun is not None
        assert begun[0].ledger_id != lost
        assert await ledgers_in_progress(opened) == [begun[0].ledger_id]
        assert await opened.client.ledger_ids() == [begun[0].ledger_id], "the ledger without a writer is gone"
        _ended(begun[0])


async def test_ledgers_in_another_store_are_created_before_their_segment(cluster: DictCluster) -> None:
    tree = MemoryTree()
    async with open_on(cluster, tree=tree) as opened:
        async with lifecycle_of(opened) as lifecycle:
            assert await lifecycle.begin(0) is None
            assert await opened.client.ledger_ids() == []
        async with opened.namespace.open_writer("log") as writer:
            await writer.append(b"first")
        assert await read_all(opened.namespace, "log") == [b"first"]


async def test_a_session_that_was_replaced_begins_no_segment(cluster: DictCluster) -> None:
    """Else a writer that lost its lock would change segments by the next session of its client."""
    async with open_on(cluster) as opened, open_on(cluster) as other, lifecycle_of(opened) as lifecycle:
        assert opened.client.is_in_session(opened.store)
        assert not opened.client.is_in_session(other.store)
        lifecycle._nodes = attrs.evolve(lifecycle._nodes, store=other.store)
        assert await lifecycle.begin(0) is None


async def test_a_ledger_that_an_earlier_writer_left_is_deleted(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await opened.namespace.create_log("log")
        left = await opened.client.create()
        _ended(left)
        await record_allocation(await open_log(LogNodes(opened.store, "/ns", "log")), left.ledger_id)
        async with opened.namespace.open_writer("log") as writer:
            await writer.append(b"first")
        assert left.ledger_id not in await opened.client.ledger_ids()
        assert await read_all(opened.namespace, "log") == [b"first"]


@pytest.mark.slow
async def test_a_writer_that_is_cut_anywhere_leaves_no_segment_without_its_ledger(
    cluster: DictCluster, autojump_clock: object
) -> None:
    written: list[bytes] = []
    for cut in range(1, 12):
        async with open_on(cluster) as opened:
            await opened.namespace.create_log("log", exist_ok=True)
            opened.store.writes_left = cut
            config = dlog.WriterConfig(retry_timeout_s=0.01, close_timeout_s=0.01, purge=False)
            try:
                async with opened.namespace.open_writer("log", config=config) as writer:
                    await writer.append(b"%d" % cut)
                    written.append(b"%d" % cut)
            except dlog.DLogError:
                pass
        async with open_on(cluster) as after:
            assert set(await ledgers_in_progress(after)) <= set(await after.client.ledger_ids())
            async with after.namespace.open_writer("log"):
                pass  # recovers
            assert set(written) <= set(await read_all(after.namespace, "log"))
    assert written
