"""The work of a bookie that may have lost entries, before it serves; after a crash it is repeated."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bookie.cluster.startup_check import NEW, StartupCheckConfig
from bookie.disk.real_disk import RealDisk
from bookie.errors import CookieError, LedgerListingError, StorageFailedError
from bookie.identity.cookie import encode_cookie
from bookie.storage.opening import open_storage
from ledger.catalog.catalog import LedgerCatalog
from ledger.catalog.paths import cookie_path
from ledger.metadata import Ensemble, LedgerMetadata
from ledger.metadata_store.errors import ConnectionLostError, SessionExpiredError
from ledger.metadata_store.memory import MemoryStore
from ledger.metadata_store.store import Node, Stat
from tests.fakes.bookies_by_hand import LAYOUT, ROOT, Bookies, open_bookies

pytestmark = pytest.mark.slow

NAME = "b1:1"
OTHERS = ("b2:1", "b3:1")


@pytest.fixture
async def bookies(tmp_path: Path) -> AsyncIterator[Bookies]:
    async with open_bookies(tmp_path, NAME) as opened:
        yield opened


async def record_ledger(bookies: Bookies, ledger_id: int, *ensembles: Ensemble, closed: bool = False) -> None:
    metadata = LedgerMetadata(
        ensemble_size=3, write_quorum=3, ack_quorum=2, ensembles=ensembles or (Ensemble(0, (NAME, *OTHERS)),)
    )
    if closed:
        metadata = metadata.in_recovery().closed(4, 10)
    await LedgerCatalog(bookies.store, ROOT, LAYOUT).create(metadata, ledger_id)


def current(bookies: Bookies, which: str = "l") -> Path:
    return bookies.directory(NAME) / which / "current"


async def test_an_ordinary_restart_puts_nothing_in_limbo(bookies: Bookies) -> None:
    await record_ledger(bookies, 1)
    await bookies.stop(NAME)
    running = await bookies.start(NAME)
    assert running.startup_check.loss_reason is None
    assert running.limbo_count == 0
    assert running.bookie.storage.ledger(1) is None


async def test_a_new_bookie_puts_all_ledgers_that_name_it_in_limbo(bookies: Bookies) -> None:
    await record_ledger(bookies, 1)
    await record_ledger(bookies, 2, closed=True)
    away = Ensemble(0, (NAME, *OTHERS)), Ensemble(7, ("b4:1", *OTHERS))
    await record_ledger(bookies, 3, *away)
    await record_ledger(bookies, 4, Ensemble(0, ("b4:1", *OTHERS)))
    running = await bookies.replace(NAME, repairs=False)
    assert running.startup_check.loss_reason == NEW
    assert [i for i in (1, 2, 3, 4) if bookies.is_in_limbo(NAME, i)] == [1, 2, 3]
    # An open ledger was never fenced; its writer may choose this bookie again.
    assert [i for i in (1, 2, 3) if bookies.is_fenced(NAME, i)] == [1, 2]
    await record_ledger(bookies, 9)
    assert not bookies.is_in_limbo(NAME, 9), (
        "created after the listing: none of its entries can have been lost"
    )


async def test_limbo_is_durable_before_the_cookie_is_created(
    bookies: Bookies, monkeypatch: pytest.MonkeyPatch
) -> None:
    await record_ledger(bookies, 1)
    seen: list[bool] = []
    create = MemoryStore.create

    async def watched(self: MemoryStore, path: str, *arguments: Any, **more: Any) -> str:
        if path == cookie_path(ROOT, NAME):
            copy = bookies.directory(NAME).with_name("copy")
            shutil.copytree(bookies.directory(NAME), copy)
            seen.append(True)
        return await create(self, path, *arguments, **more)

    monkeypatch.setattr(MemoryStore, "create", watched)
    await bookies.replace(NAME, repairs=False)
    await bookies.stop(NAME)
    assert seen == [True]
    shutil.rmtree(bookies.directory(NAME))
    bookies.directory(NAME).with_name("copy").rename(bookies.directory(NAME))
    async with open_storage(RealDisk(), bookies.storage_config(NAME)) as storage:
        record = storage.ledger(1)
        assert record is not None
        assert (record.limbo, record.fenced) == (True, True)


async def test_a_listing_that_fails_stops_the_start_and_the_next_start_repeats_it(
    bookies: Bookies, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ledger_id in range(5):
        await record_ledger(bookies, ledger_id)
    await bookies.stop(NAME)
    shutil.rmtree(bookies.directory(NAME))
    await bookies.store.delete(cookie_path(ROOT, NAME))
    get, away = MemoryStore.get, True

    async def flaky(self: MemoryStore, path: str, **more: Any) -> Node:
        if away and path.endswith("L0003"):
            raise ConnectionLostError(path, "unreachable")
        return await get(self, path, **more)

    monkeypatch.setattr("bookie.healing.limbo.RETRY_TIMEOUT_S", 0.3)
    monkeypatch.setattr(MemoryStore, "get", flaky)
    startup_check = await bookies.begin(NAME)
    async with open_storage(RealDisk(), bookies.storage_config(NAME)) as storage:
        with pytest.raises(LedgerListingError, match=r"the metadata store failed.*Start it again"):
            await startup_check.complete(storage)
    assert await bookies.store.exists(cookie_path(ROOT, NAME)) is None
    away = False
    running = await bookies.start(NAME, repairs=False)
    assert running.limbo_count == 5
    assert await bookies.store.exists(cookie_path(ROOT, NAME)) is not None


async def test_metadata_that_cannot_be_read_may_name_this_bookie(bookies: Bookies) -> None:
    await record_ledger(bookies, 1)
    await bookies.store.put(LedgerCatalog(bookies.store, ROOT, LAYOUT).path(1), b"nonsense")
    await bookies.replace(NAME, repairs=False)
    assert bookies.is_in_limbo(NAME, 1)
    assert bookies.is_fenced(NAME, 1)


async def test_a_crash_after_the_cookie_and_before_the_end_keeps_the_loss_mark(
    bookies: Bookies, monkeypatch: pytest.MonkeyPatch
) -> None:
    await record_ledger(bookies, 1)
    await bookies.stop(NAME)
    shutil.rmtree(bookies.directory(NAME))
    await bookies.store.delete(cookie_path(ROOT, NAME))
    put = MemoryStore.put

    async def fails(self: MemoryStore, path: str, *arguments: Any, **more: Any) -> Stat:
        if path == cookie_path(ROOT, NAME):
            raise SessionExpiredError(path)
        return await put(self, path, *arguments, **more)

    startup_check = await bookies.begin(NAME)
    async with open_storage(RealDisk(), bookies.storage_config(NAME)) as storage:
        monkeypatch.setattr(MemoryStore, "put", fails)
        with pytest.raises(SessionExpiredError):
            await startup_check.complete(storage)
        monkeypatch.undo()
    assert (current(bookies) / "DOUBT").exists()
    running = await bookies.start(NAME, repairs=False)
    assert (running.startup_check.loss_reason, running.limbo_count) == (NEW, 1)
    assert not (current(bookies) / "DOUBT").exists()
    assert not (current(bookies, "j") / "DOUBT").exists()


async def test_an_old_copy_of_the_disks_is_recognised(bookies: Bookies) -> None:
    await record_ledger(bookies, 1)
    await bookies.stop(NAME)
    copy = bookies.directory(NAME).with_name("copy")
    shutil.copytree(bookies.directory(NAME), copy)
    await bookies.start(NAME)
    await bookies.stop(NAME)
    shutil.rmtree(bookies.directory(NAME))
    copy.rename(bookies.directory(NAME))
    running = await bookies.start(NAME, repairs=False)
    assert running.startup_check.loss_reason is not None
    assert "is an old copy" in running.startup_check.loss_reason
    assert bookies.is_in_limbo(NAME, 1)
    await bookies.stop(NAME)
    assert (await bookies.start(NAME)).startup_check.loss_reason is None, (
        "reported once; the ledgers stay in limbo until repaired"
    )


async def test_an_old_copy_of_one_directory_is_recognised(bookies: Bookies) -> None:
    await bookies.stop(NAME)
    number = (current(bookies, "j") / "INCARNATION").read_bytes()
    await bookies.start(NAME)
    await bookies.stop(NAME)
    (current(bookies, "j") / "INCARNATION").write_bytes(number)
    assert "is an old copy" in str((await bookies.start(NAME)).startup_check.loss_reason)


@pytest.mark.parametrize("lost", ["j", "l", "jl"])
async def test_a_lost_directory_is_replaced_only_if_that_is_allowed(bookies: Bookies, lost: str) -> None:
    await record_ledger(bookies, 1)
    await bookies.stop(NAME)
    for which in lost:
        shutil.rmtree(current(bookies, which))
    with pytest.raises(CookieError, match="dataIntegrityStampMissingCookies=true") as refused:
        await bookies.begin(NAME)
    assert "configured" in str(refused.value)
    assert encode_cookie(bookies.cookie(NAME)).decode().splitlines()[1] in str(refused.value)
    running = await bookies.start(
        NAME, repairs=False, config=StartupCheckConfig(replace_lost_directories=True)
    )
    assert running.startup_check.loss_reason is not None
    assert "replacing a lost directory" in running.startup_check.loss_reason
    assert bookies.is_in_limbo(NAME, 1)


async def test_unsynced_adds_and_a_crash_put_everything_in_limbo(bookies: Bookies) -> None:
    await record_ledger(bookies, 1)
    await bookies.stop(NAME)
    assert not (current(bookies) / "DIRTY").exists()
    unsynced = StartupCheckConfig(sync_adds=False)
    await bookies.start(NAME, config=unsynced)
    dirty = (current(bookies) / "DIRTY").read_bytes()
    assert b"before they are synced" in dirty
    await bookies.stop(NAME)
    assert (await bookies.start(NAME, config=unsynced)).startup_check.loss_reason is None, (
        "it was stopped cleanly"
    )
    await bookies.stop(NAME)
    (current(bookies) / "DIRTY").write_bytes(dirty)  # as a crash leaves it
    running = await bookies.start(NAME, repairs=False)
    assert "not synced" in str(running.startup_check.loss_reason)
    assert bookies.is_in_limbo(NAME, 1)
    assert (current(bookies) / "DIRTY").read_bytes() == b"", "as Apache's: this process syncs"


async def test_a_crash_of_a_bookie_that_syncs_loses_nothing(bookies: Bookies) -> None:
    await bookies.stop(NAME)
    (current(bookies) / "DIRTY").write_bytes(b"")
    assert (await bookies.start(NAME)).startup_check.loss_reason is None


async def test_limbo_can_be_turned_off(bookies: Bookies) -> None:
    await record_ledger(bookies, 1)
    running = await bookies.replace(NAME, repairs=False, config=StartupCheckConfig(limbo=False))
    assert running.limbo_count == 0


async def test_a_disk_that_fails_while_ledgers_enter_limbo_stops_the_start(
    bookies: Bookies, monkeypatch: pytest.MonkeyPatch
) -> None:
    await record_ledger(bookies, 1)
    await bookies.stop(NAME)
    shutil.rmtree(bookies.directory(NAME))
    await bookies.store.delete(cookie_path(ROOT, NAME))
    startup_check = await bookies.begin(NAME)
    async with open_storage(RealDisk(), bookies.storage_config(NAME)) as storage:
        monkeypatch.setattr(storage, "flush", _fails)
        with pytest.raises(StorageFailedError):
            await startup_check.complete(storage)
        monkeypatch.undo()
    assert await bookies.store.exists(cookie_path(ROOT, NAME)) is None


async def _fails() -> None:
    raise StorageFailedError("no space")
