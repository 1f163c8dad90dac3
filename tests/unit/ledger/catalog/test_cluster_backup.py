"""Backup and restore of a cluster's metadata. A crash in between is noticed, and no id comes twice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import attrs
import pytest

from ledger.catalog.backup_file import ClusterBackup
from ledger.catalog.cluster_backup import (
    MINUTE_MS,
    check_restored,
    new_id_series,
    read_backup,
    release_restored,
    restore_backup,
)
from ledger.catalog.ledger_ids import LedgerIds
from ledger.catalog.paths import Layout, available_path, cookie_path, ledger_path, readonly_path
from ledger.errors import BackupFileError, BookieInUseError, ClusterNotFoundError, RestoreRefusedError
from ledger.metadata_store.errors import ConnectionLostError
from ledger.metadata_store.memory import MemoryStore, MemoryTree, open_memory_store
from ledger.metadata_store.store import Operation

ROOT, SPACE = "/a/ledgers", "/dlog/prod"
NOW_MS = 29_000_000 * MINUTE_MS
LEDGERS = (3, 5 << 32)


@pytest.fixture
async def source() -> AsyncIterator[MemoryStore]:
    async with open_memory_store(MemoryTree()) as store:
        yield store


@pytest.fixture
async def target() -> AsyncIterator[MemoryStore]:
    async with open_memory_store(MemoryTree()) as store:
        yield store


async def backup_of(store: MemoryStore, layout: Layout = Layout.HIERARCHICAL) -> ClusterBackup:
    await store.create(f"{ROOT}/available/readonly", parents=True)
    await store.create(f"{ROOT}/LAYOUT", layout.text)
    await store.create(f"{ROOT}/INSTANCEID", b"id")
    await store.create(cookie_path(ROOT, "b1:1"), b"cookie", parents=True)
    await store.create(available_path(ROOT, "b1:1"), b"e", ephemeral=True)
    for ledger_id in LEDGERS if layout is Layout.HIERARCHICAL else ():
        await store.create(ledger_path(ROOT, layout, ledger_id), b"m%d" % ledger_id, parents=True)
    await store.create(f"{ROOT}/idgen/ID-0000000003", parents=True)
    await store.create(f"{ROOT}/idgen-long/HOB-0000000006", parents=True)
    for name in ("HOB-9999999999", "HOB-000000000²", "x"):  # they stand for no ids
        await store.create(f"{ROOT}/idgen-long/{name}")
    await store.create(f"{ROOT}/underreplication/lostBookieRecoveryDelay", b"60", parents=True)
    await store.create(f"{SPACE}/log/lock", b"", parents=True)
    await store.put(SPACE, b"binding")
    return await read_backup(store, ROOT, [SPACE], now_ms=NOW_MS)


async def restore(store: MemoryStore, backup: ClusterBackup, sha256: str = "f", now_ms: int = NOW_MS) -> int:
    return await restore_backup(store, backup, sha256, now_ms=now_ms)


async def test_a_restored_cluster_has_the_nodes_of_the_backup(
    source: MemoryStore, target: MemoryStore
) -> None:
    backup = await backup_of(source)
    paths = {node.path for node in backup.nodes}
    assert {ledger_path(ROOT, Layout.HIERARCHICAL, one) for one in LEDGERS} < paths
    assert not any(
        ("b1:1" in path and "available" in path) or "ID-" in path or "HOB-" in path for path in paths
    )
    assert (backup.instance_id, backup.id_series) == ("id", 6)
    await restore(target, backup)
    again = await read_backup(target, ROOT, [SPACE], now_ms=NOW_MS)
    assert again.nodes == backup.nodes


async def test_a_restored_cluster_gives_no_ledger_id_twice(source: MemoryStore, target: MemoryStore) -> None:
    backup = await backup_of(source)
    before = await LedgerIds(source, ROOT, Layout.HIERARCHICAL).new()
    series = await restore(target, backup)
    after = await LedgerIds(target, ROOT, Layout.HIERARCHICAL).new()
    assert after >> 32 == series == 29_000_000
    assert after > max(before, *LEDGERS)


def test_a_second_restore_of_one_file_begins_other_ids() -> None:
    backup = ClusterBackup(
        ledgers_root=ROOT, namespaces=(), instance_id=None, id_series=0, created_ms=0, nodes=()
    )
    assert new_id_series(backup, NOW_MS) < new_id_series(backup, NOW_MS + MINUTE_MS)
    full = attrs.evolve(backup, id_series=30_000_000)
    assert new_id_series(full, NOW_MS) == 30_000_001
    with pytest.raises(BackupFileError):
        new_id_series(attrs.evolve(backup, id_series=2**31 - 1), NOW_MS)


@attrs.define(eq=False)
class _CutStore:
    """Fails before the n-th write."""

    store: MemoryStore
    writes_left: int

    def __getattr__(self, name: str) -> object:
        return getattr(self.store, name)

    def _count(self) -> None:
        if not self.writes_left:
            raise ConnectionLostError("cut")
        self.writes_left -= 1

    async def commit(self, operations: Sequence[Operation]) -> None:
        self._count()
        await self.store.commit(operations)

    async def create(self, path: str, value: bytes = b"", *, parents: bool = False) -> str:
        self._count()
        return await self.store.create(path, value, parents=parents)

    async def put(self, path: str, value: bytes) -> object:
        self._count()
        return await self.store.put(path, value)


async def test_a_restore_cut_at_any_write_is_noticed_and_continued(source: MemoryStore) -> None:
    backup = await backup_of(source)
    cuts = 0
    for writes in range(100):
        async with open_memory_store(MemoryTree()) as target:
            try:
                await restore(_CutStore(target, writes), backup)  # type: ignore[arg-type]
            except ConnectionLostError:
                cuts += 1
            else:
                break
            is_begun = await target.exists(f"{ROOT}/RESTORED") is not None
            for attempt in (check_restored, release_restored):
                with pytest.raises(RestoreRefusedError if is_begun else ClusterNotFoundError):
                    await attempt(target, ROOT)
            if is_begun:
                with pytest.raises(RestoreRefusedError, match="not complete"):
                    await read_backup(target, ROOT, [], now_ms=NOW_MS)
                with pytest.raises(RestoreRefusedError, match="another file"):
                    await restore(target, backup, "other")
            else:
                assert await target.exists(ROOT) is None
            # The instance id lets bookies with disks start: it comes after all that they and clients read.
            if await target.exists(f"{ROOT}/INSTANCEID") is not None:
                assert await target.exists(cookie_path(ROOT, "b1:1")) is not None
            await restore(target, backup, now_ms=NOW_MS + MINUTE_MS)
            assert (await read_backup(target, ROOT, [SPACE], now_ms=NOW_MS)).nodes == backup.nodes
            await check_restored(target, ROOT)
    assert cuts >= 4


async def test_a_place_that_is_not_empty_is_refused(source: MemoryStore, target: MemoryStore) -> None:
    backup = await backup_of(source)
    await target.create(f"{SPACE}/log", parents=True)
    with pytest.raises(RestoreRefusedError, match=SPACE):
        await restore(target, backup)
    assert await target.exists(ROOT) is None
    await target.delete(f"{SPACE}/log")
    await target.delete(SPACE)
    await restore(target, backup)
    with pytest.raises(RestoreRefusedError, match="already"):
        await restore(target, backup)


@pytest.mark.parametrize("path", [available_path(ROOT, "b2:1"), readonly_path(ROOT, "b2:1")])
async def test_a_place_with_a_registered_bookie_is_refused(
    source: MemoryStore, target: MemoryStore, path: str
) -> None:
    backup = await backup_of(source)
    await target.create(path, parents=True)
    with pytest.raises(BookieInUseError, match="b2:1"):
        await restore(target, backup)
    assert await target.exists(f"{ROOT}/RESTORED") is None


async def test_a_layout_without_long_ids_has_no_backup(source: MemoryStore) -> None:
    with pytest.raises(BackupFileError, match="FlatLedgerManagerFactory"):
        await backup_of(source, Layout.FLAT)


async def test_a_release_ends_the_restore(source: MemoryStore, target: MemoryStore) -> None:
    await restore(target, await backup_of(source))
    await release_restored(target, ROOT)
    with pytest.raises(ClusterNotFoundError):
        await release_restored(target, ROOT)
