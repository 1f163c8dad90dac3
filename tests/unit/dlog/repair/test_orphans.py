"""Ledgers of no log: which are found, which are deleted, and that a log never loses one."""

# covers: dlog/repair/ledger_references.py

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

import dlog
import dlog.blocking
from dlog import OrphanOrigin
from dlog.repair.ledger_references import log_references
from ledger.metadata_store.memory import MemoryStore, MemoryTree
from ledger.metadata_store.store import Create, Delete, Operation
from ledger.policy import LogMark
from namespace.log_metadata import LogMetadata
from namespace.log_nodes import LogNodes
from namespace.logs import open_log
from namespace.policy import Policy, Right, Rule
from namespace.segment_nodes import record_allocation, start_segment
from namespace.segments.segment import LogSegment, segment_name
from tests.fakes.dict_bookies import DictCluster, open_cluster
from tests.fakes.dict_namespace import Opened, open_on, read_all, write_segments
from tests.fakes.log_paths import paths_of

HANDED_OVER = b"\xff\xff\xff\xfefile:///other"  # docs/promotion.md
NOW = datetime.timedelta()
ROOT = paths_of("/ns", "log").root_path


@pytest.fixture
async def cluster() -> AsyncIterator[DictCluster]:
    async with open_cluster() as opened:
        yield opened


async def make_ledger(opened: Opened, custom: dict[str, bytes] | None = None) -> int:
    """A ledger that its creator did not put into a log before it stopped."""
    handle = await opened.client.create(custom=custom)
    handle.abandon()
    return handle.ledger_id


async def make_for_log(opened: Opened, log: str = "log") -> tuple[int, LogMetadata]:
    """As a writer of the log does it; with the metadata over which the writer would register the ledger."""
    metadata = await open_log(LogNodes(opened.store, "/ns", log))
    return await make_ledger(opened, LogMark("/ns", log).custom | metadata.allocation_stamp), metadata


async def origins(opened: Opened, older_than: datetime.timedelta = NOW) -> dict[int, OrphanOrigin]:
    found = await opened.namespace.repair.find_orphans(older_than=older_than)
    return {each.ledger_id: each.origin for each in found}


async def delete(opened: Opened, *ledger_ids: int) -> list[bool]:
    outcomes = await opened.namespace.repair.delete_orphans(ledger_ids, older_than=NOW)
    return [each.is_deleted for each in outcomes]


async def reason(opened: Opened, ledger_id: int) -> str:
    (outcome,) = await opened.namespace.repair.delete_orphans([ledger_id], older_than=NOW)
    assert not outcome.is_deleted
    return outcome.reason


async def test_a_ledger_that_no_log_names_is_found_and_deleted(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        payloads = await write_segments(opened.namespace, "log", 2)
        ledger_id, _ = await make_for_log(opened)
        assert await origins(opened) == {ledger_id: OrphanOrigin.THIS_NAMESPACE}
        (found,) = await opened.namespace.repair.find_orphans(older_than=NOW)
        assert (found.log, found.namespace, found.is_closed, found.length_bytes) == ("log", "/ns", False, 0)
        assert await delete(opened, ledger_id, ledger_id) == [True]
        assert await origins(opened) == {}
        assert "does not exist" in await reason(opened, ledger_id)
        assert await read_all(opened.namespace, "log") == payloads


async def test_a_young_ledger_is_not_found(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await opened.namespace.create_log("log")
        ledger_id, _ = await make_for_log(opened)
        assert await opened.namespace.repair.find_orphans() == []
        (outcome,) = await opened.namespace.repair.delete_orphans([ledger_id])
        assert not outcome.is_deleted
    async with open_on(cluster, days_later=2) as later:
        (found,) = await later.namespace.repair.find_orphans()
        assert found.ledger_id == ledger_id
        assert found.age_s >= 86_400


async def test_segments_of_every_state_and_the_allocation_protect_their_ledgers(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await write_segments(opened.namespace, "log", 3)
        await write_segments(opened.namespace, "shop/deep/log", 1)
        await opened.namespace.truncate_log("log", dlog.DLSN(3, 0, 0))
        async with opened.namespace.open_writer("log") as writer:
            await writer.append(b"in progress")
            ids = await opened.client.ledger_ids()
            assert len(ids) == 5
            assert await origins(opened) == {}
            assert await delete(opened, *ids) == [False] * 5
        allocated, metadata = await make_for_log(opened)
        await record_allocation(metadata, allocated)
        pooled = await make_ledger(opened)
        await opened.store.create("/ns/.allocation_pool/mine/A0000000000", b"%d" % pooled, parents=True)
        assert await origins(opened) == {}
        assert await opened.client.ledger_ids() == [*ids, allocated, pooled]


async def test_a_ledger_of_unknown_origin_is_deleted_only_by_its_id(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await opened.namespace.create_log("log")
        unmarked = await make_ledger(opened)
        half = await make_ledger(opened, {"dlog.log": b"log"})
        gone = await make_ledger(opened, LogMark("/ns", "gone").custom)
        unstamped = await make_ledger(opened, LogMark("/ns", "log").custom)
        assert await origins(opened) == {
            unmarked: OrphanOrigin.UNKNOWN,
            half: OrphanOrigin.UNKNOWN,
            gone: OrphanOrigin.UNPROVEN,
            unstamped: OrphanOrigin.UNPROVEN,
        }
        assert await delete(opened, unmarked, half, gone, unstamped) == [True] * 4
        assert await opened.client.ledger_ids() == []


async def test_a_ledger_of_another_namespace_is_never_deleted(cluster: DictCluster) -> None:
    async with open_on(cluster, "/other") as other, open_on(cluster) as opened:
        payloads = await write_segments(other.namespace, "log", 1)
        orphan = await make_ledger(other, LogMark("/other", "log").custom)
        found = await origins(opened)
        # The first namespace cannot see whether the logs of the second need a ledger.
        assert set(found.values()) == {OrphanOrigin.OTHER_NAMESPACE}
        assert orphan in found
        for ledger_id in found:
            assert "belongs to the namespace /other" in await reason(opened, ledger_id)
        assert await read_all(other.namespace, "log") == payloads


async def test_a_namespace_of_the_same_path_on_another_store_keeps_its_ledgers(cluster: DictCluster) -> None:
    elsewhere = MemoryTree(wall_ms=lambda: 1_000)
    async with open_on(cluster, tree=elsewhere) as other, open_on(cluster) as opened:
        await write_segments(other.namespace, "log", 1)
        await write_segments(opened.namespace, "log", 1)
        (theirs,) = await origins(opened)
        assert await origins(opened) == {theirs: OrphanOrigin.UNPROVEN}
        assert [each.ledger_id for each in await other.namespace.segments("log")] == [theirs]


async def test_a_log_of_a_namespace_within_the_same_binding_protects_its_ledgers(
    cluster: DictCluster,
) -> None:
    async with open_on(cluster, "/ns") as above, open_on(cluster, "/ns/shop", bound=False) as below:
        payloads = await write_segments(below.namespace, "log", 1)
        # Renamed by a program that opened the namespace above: its ledger still has the old mark.
        await move(above.store, "/ns/shop/log", "/ns/moved")
        assert await origins(below) == {}
        assert await read_all(above.namespace, "moved") == payloads


async def test_in_a_directory_a_mark_is_proof_enough(cluster: DictCluster) -> None:
    async with open_on(cluster, bound=False) as opened:
        gone = await make_ledger(opened, LogMark("/ns", "gone").custom)
        assert await origins(opened) == {gone: OrphanOrigin.THIS_NAMESPACE}


async def test_a_stalled_writer_cannot_register_a_ledger_that_was_deleted(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await opened.namespace.create_log("log")
        ledger_id, stalled = await make_for_log(opened)
        assert await delete(opened, ledger_id) == [True]
        with pytest.raises(dlog.LogFencedError):
            await record_allocation(stalled, ledger_id)
        await write_segments(opened.namespace, "log", 1)


async def test_a_ledger_that_a_live_writer_may_register_is_kept_until_the_writer_has_rolled(
    cluster: DictCluster,
) -> None:
    async with open_on(cluster) as opened:
        await opened.namespace.create_log("log")
        async with opened.namespace.open_writer("log") as writer:
            await writer.append(b"0")
            ledger_id, _ = await make_for_log(opened)
            assert "has a writer (test)" in await reason(opened, ledger_id)
        async with opened.namespace.open_writer("log") as writer:
            await writer.append(b"1")
            assert await delete(opened, ledger_id) == [True]
            await writer.append(b"2")
        assert await read_all(opened.namespace, "log") == [b"0", b"1", b"2"]


async def test_a_log_that_a_promotion_has_closed_is_not_written(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await opened.namespace.create_log("log")
        ledger_id, metadata = await make_for_log(opened)
        await opened.store.put(paths_of("/ns", "log").version_path, HANDED_OVER)
        assert "closed" in await reason(opened, ledger_id)
        stat = await opened.store.exists(f"{ROOT}/allocation")
        assert stat is not None
        assert stat.version == metadata.allocation_version


async def test_a_ledger_that_its_log_registers_during_the_deletion_is_kept(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await opened.namespace.create_log("log")
        ledger_id, metadata = await make_for_log(opened)
        done: list[str] = []

        async def register(kind: str, path: str) -> None:
            # The first write of the deletion is the member node of the lock.
            if kind == "create" and path.startswith(ROOT) and not done:
                done.append(path)
                await record_allocation(metadata, ledger_id)

        opened.store.before = register
        assert await reason(opened, ledger_id) == "its log names it now"
        assert done
        assert ledger_id in await opened.client.ledger_ids()


async def test_a_ledger_that_another_client_changes_during_the_deletion_is_kept(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await opened.namespace.create_log("log")
        ledger_id, _ = await make_for_log(opened)

        async def close(kind: str, path: str) -> None:
            if kind == "put" and path.endswith("/allocation"):
                async with await opened.client.open(ledger_id):
                    pass

        opened.store.before = close
        assert "changed its metadata" in await reason(opened, ledger_id)


async def test_a_log_that_is_renamed_during_the_search_keeps_its_ledgers(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        payloads = await write_segments(opened.namespace, "z", 2)
        await opened.namespace.create_log("a")
        moved: list[str] = []

        async def rename(kind: str, path: str) -> None:
            # The search has seen that there is no log "a/b", and has not read the segments of "z".
            if (kind, path, moved) == ("children", "/ns/a", []):
                moved.append(path)
                await move(opened.store, "/ns/z", "/ns/a/b")

        opened.store.after = rename
        assert await origins(opened) == {}
        assert moved
        assert await read_all(opened.namespace, "a/b") == payloads


async def test_a_log_that_comes_back_by_a_rename_after_the_search_keeps_its_ledgers(
    cluster: DictCluster,
) -> None:
    async with open_on(cluster) as opened:
        await write_segments(opened.namespace, "log", 1)
        (ledger_id,) = await opened.client.ledger_ids()
        # No node names the ledger during the search: its log is being moved by hand.
        saved = await take(opened.store, "/ns/log")

        async def put_back(kind: str, path: str) -> None:
            if kind == "get" and path == opened.client._context.catalog.path(ledger_id) and saved:
                operations = [Create(path, value) for path, value in saved]
                saved.clear()
                await opened.store.commit(operations)

        opened.store.before = put_back
        assert "created, deleted or renamed" in await reason(opened, ledger_id)
        assert await opened.client.ledger_ids() == [ledger_id]


async def test_the_allocation_is_read_before_the_segments(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await opened.namespace.create_log("log")
        ledger_id, metadata = await make_for_log(opened)
        metadata = await record_allocation(metadata, ledger_id)
        done: list[str] = []

        async def start(kind: str, path: str) -> None:
            if path in (f"{ROOT}/allocation", f"{ROOT}/ledgers") and not done:
                done.append(path)
                segment = LogSegment(segment_seqno=1, ledger_id=ledger_id, first_txid=0)
                await start_segment(metadata, segment)

        opened.store.after = start
        assert await log_references(opened.store, ROOT) == frozenset({ledger_id})
        assert done


async def test_a_segment_that_does_not_parse_ends_the_search(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await write_segments(opened.namespace, "log", 1)
        await opened.store.put(f"{ROOT}/ledgers/{segment_name(1, in_progress=False)}", b"?")
        orphan = await make_ledger(opened)
        with pytest.raises(dlog.LogMetadataError, match="which ledgers its log needs"):
            await opened.namespace.repair.delete_orphans([orphan], older_than=NOW)
        assert orphan in await opened.client.ledger_ids()


async def test_only_an_administrator_of_all_logs_finds_and_deletes_orphans(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        orphan = await make_ledger(opened)
        rules = (Rule("root", "*", frozenset({Right.ADMIN})), Rule("test", "a*", frozenset({Right.ADMIN})))
        await opened.namespace.policy.set(Policy(rules))
        with pytest.raises(dlog.AccessDeniedError, match="whole namespace"):
            await opened.namespace.repair.delete_orphans([orphan], older_than=NOW)
        with pytest.raises(dlog.AccessDeniedError, match="whole namespace"):
            await opened.namespace.repair.find_orphans(older_than=NOW)
        assert orphan in await opened.client.ledger_ids()


@pytest.mark.slow
async def test_a_deletion_that_is_cut_anywhere_is_finished_by_the_next(
    autojump_clock: trio.testing.MockClock, cluster: DictCluster
) -> None:
    async with open_on(cluster) as opened:
        payloads = await write_segments(opened.namespace, "log", 2)
    for cut in range(20):
        async with open_on(cluster) as opened:
            ids = [(await make_for_log(opened))[0] for _ in range(2)]
            opened.store.writes_left = cut
            try:
                assert await delete(opened, *ids) == [True, True]
            except dlog.LogUnavailableError:
                pass
            is_finished = not opened.store.is_cut
        async with open_on(cluster) as after:
            assert await read_all(after.namespace, "log") == payloads
            await delete(after, *ids)
            assert await origins(after) == {}
            payloads += await write_segments(after.namespace, "log", 1, first=len(payloads))
        if is_finished:
            return
    raise AssertionError("the deletion never ended")


@pytest.mark.slow
async def test_a_writer_that_is_cut_anywhere_loses_nothing_to_a_deletion(
    autojump_clock: trio.testing.MockClock, cluster: DictCluster
) -> None:
    written: list[bytes] = []
    orphans = 0
    async with open_on(cluster) as opened:
        await opened.namespace.create_log("log")
    for cut in range(1, 20):
        async with open_on(cluster) as opened:
            opened.store.writes_left = cut
            payload = b"%d" % cut
            config = dlog.WriterConfig(
                retry_timeout_s=0.01, close_timeout_s=0.01, purge=False, segment_bytes_max=1
            )
            try:
                async with opened.namespace.open_writer("log", config=config) as writer:
                    # The first ledger is created together with its segment, the next one before it.
                    for part in (b"a", b"b"):
                        await writer.append(payload + part)
                        written.append(payload + part)
            except dlog.DLogError:
                pass
        async with open_on(cluster) as after:
            found = await after.namespace.repair.find_orphans(older_than=NOW)
            orphans += len(found)
            assert all(await delete(after, *(each.ledger_id for each in found)))
            async with after.namespace.open_writer("log"):
                pass  # recovers
            assert set(written) <= set(await read_all(after.namespace, "log"))
    assert written
    assert orphans


async def test_the_blocking_namespace_does_the_same(tmp_path: object) -> None:
    def go() -> None:
        with dlog.blocking.open_namespace(f"file://{tmp_path}") as namespace:
            assert namespace.repair.find_orphans() == []
            assert [each.is_deleted for each in namespace.repair.delete_orphans([7])] == [False]

    await trio.to_thread.run_sync(go)


async def take(store: MemoryStore, path: str) -> list[tuple[str, bytes]]:
    """Delete a node and all below it; return them, parents first."""
    nodes = [(path, (await store.get(path)).value)]
    for parent, _ in nodes:
        for name in (await store.children(parent)).names:
            child = f"{parent}/{name}"
            nodes.append((child, (await store.get(child)).value))
    operations: list[Operation] = [Delete(each) for each, _ in reversed(nodes)]
    await store.commit(operations)
    return nodes


async def move(store: MemoryStore, old: str, new: str) -> None:
    """Rename a log as a program does: in one transaction."""
    nodes = [(old, (await MemoryStore.get(store, old)).value)]
    for parent, _ in nodes:
        for name in (await MemoryStore.children(store, parent)).names:
            child = f"{parent}/{name}"
            nodes.append((child, (await MemoryStore.get(store, child)).value))
    operations: list[Operation] = [Delete(each) for each, _ in reversed(nodes)]
    operations += [Create(new + each.removeprefix(old), value) for each, value in nodes]
    await MemoryStore.commit(store, operations)
