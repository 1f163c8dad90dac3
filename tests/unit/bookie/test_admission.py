"""What a bookie that may have lost something must do before it serves; and that this is never forgotten."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from bookies_by_hand import LAYOUT, ROOT, Bookies, open_bookies

from bookie.admission import NEW
from bookie.cookie import encode_cookie
from bookie.disk import RealDisk
from bookie.errors import CookieError, LedgerListingError, StorageFailedError
from bookie.storage import open_storage
from ledger.catalog import LedgerCatalog
from ledger.metadata import Ensemble, LedgerMetadata
from ledger.paths import cookie_path
from namespace.errors import ConnectionLostError
from namespace.memory import MemoryStore

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
    life = await bookies.start(NAME)
    assert life.admission.doubt is None
    assert life.limbo_count == 0
    assert life.bookie.storage.ledger(1) is None


async def test_a_bookie_in_anothers_place_puts_all_that_names_it_in_limbo(bookies: Bookies) -> None:
    await record_ledger(bookies, 1)
    await record_ledger(bookies, 2, closed=True)
    away = Ensemble(0, (NAME, *OTHERS)), Ensemble(7, ("b4:1", *OTHERS))
    await record_ledger(bookies, 3, *away)
    await record_ledger(bookies, 4, Ensemble(0, ("b4:1", *OTHERS)))
    life = await bookies.replace(NAME, repairs=False)
    assert life.admission.doubt == NEW
    assert [i for i in (1, 2, 3, 4) if bookies.is_in_limbo(NAME, i)] == [1, 2, 3]
    # Nobody can have fenced an open ledger; its writer may take this bookie in again.
    assert [i for i in (1, 2, 3) if bookies.is_fenced(NAME, i)] == [1, 2]
    await record_ledger(bookies, 9)
    assert not bookies.is_in_limbo(NAME, 9), "begun after the listing: nothing of it can have been lost"


async def test_limbo_is_durable_before_the_cookie_is_there(
    bookies: Bookies, monkeypatch: pytest.MonkeyPatch
) -> None:
    await record_ledger(bookies, 1)
    seen: list[bool] = []
    create = MemoryStore.create

    async def watched(self: MemoryStore, path: str, *arguments: object, **more: object) -> str:
        if path == cookie_path(ROOT, NAME):
            copy = bookies.directory(NAME).with_name("copy")
            shutil.copytree(bookies.directory(NAME), copy)
            seen.append(True)
        return await create(self, path, *arguments, **more)  # type: ignore[arg-type]

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


async def test_a_listing_that_fails_stops_the_start_and_the_next_start_begins_anew(
    bookies: Bookies, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ledger_id in range(5):
        await record_ledger(bookies, ledger_id)
    await bookies.stop(NAME)
    shutil.rmtree(bookies.directory(NAME))
    await bookies.store.delete(cookie_path(ROOT, NAME))
    get, away = MemoryStore.get, True

    async def flaky(self: MemoryStore, path: str, **more: object) -> object:
        if away and path.endswith("L0003"):
            raise ConnectionLostError(path, "out of reach")
        return await get(self, path, **more)  # type: ignore[arg-type]

    monkeypatch.setattr("bookie.limbo.PATIENCE_S", 0.3)
    monkeypatch.setattr(MemoryStore, "get", flaky)
    admission = await bookies.begin(NAME)
    async with open_storage(RealDisk(), bookies.storage_config(NAME)) as storage:
        with pytest.raises(LedgerListingError, match=r"the metadata store failed.*Start it again"):
            await admission.complete(storage)
    assert await bookies.store.exists(cookie_path(ROOT, NAME)) is None
    away = False
    life = await bookies.start(NAME, repairs=False)
    assert life.limbo_count == 5
    assert await bookies.store.exists(cookie_path(ROOT, NAME)) is not None


async def test_metadata_that_cannot_be_read_may_name_this_bookie(bookies: Bookies) -> None:
    await record_ledger(bookies, 1)
    await bookies.store.put(LedgerCatalog(bookies.store, ROOT, LAYOUT).path(1), b"nonsense")
    await bookies.replace(NAME, repairs=False)
    assert bookies.is_in_limbo(NAME, 1)
    assert bookies.is_fenced(NAME, 1)


async def test_a_crash_after_the_cookie_and_before_the_end_does_not_lose_the_doubt(
    bookies: Bookies, monkeypatch: pytest.MonkeyPatch
) -> None:
    await record_ledger(bookies, 1)
    await bookies.stop(NAME)
    shutil.rmtree(bookies.directory(NAME))
    await bookies.store.delete(cookie_path(ROOT, NAME))
    put = MemoryStore.put

    async def fails(self: MemoryStore, path: str, *arguments: object, **more: object) -> object:
        if path == cookie_path(ROOT, NAME):
            raise ConnectionLostError(path, "out of reach")
        return await put(self, path, *arguments, **more)  # type: ignore[arg-type]

    admission = await bookies.begin(NAME)
    async with open_storage(RealDisk(), bookies.storage_config(NAME)) as storage:
        monkeypatch.setattr(MemoryStore, "put", fails)
        with pytest.raises(ConnectionLostError):
            await admission.complete(storage)
        monkeypatch.undo()
    assert (current(bookies) / "DOUBT").exists()
    life = await bookies.start(NAME, repairs=False)
    assert (life.admission.doubt, life.limbo_count) == (NEW, 1)
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
    life = await bookies.start(NAME, repairs=False)
    assert life.admission.doubt is not None
    assert "is an old copy" in life.admission.doubt
    assert bookies.is_in_limbo(NAME, 1)
    await bookies.stop(NAME)
    assert (await bookies.start(NAME)).admission.doubt is None, "told once; the limbo stays until repaired"


async def test_an_old_copy_of_one_directory_is_recognised(bookies: Bookies) -> None:
    await bookies.stop(NAME)
    number = (current(bookies, "j") / "INCARNATION").read_bytes()
    await bookies.start(NAME)
    await bookies.stop(NAME)
    (current(bookies, "j") / "INCARNATION").write_bytes(number)
    assert "is an old copy" in str((await bookies.start(NAME)).admission.doubt)


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
    life = await bookies.start(NAME, repairs=False, replace_lost_directories=True)
    assert life.admission.doubt is not None
    assert "in the place of a lost directory" in life.admission.doubt
    assert bookies.is_in_limbo(NAME, 1)


async def test_unsynced_adds_and_a_crash_put_everything_in_limbo(bookies: Bookies) -> None:
    await record_ledger(bookies, 1)
    await bookies.stop(NAME)
    assert not (current(bookies) / "DIRTY").exists()
    await bookies.start(NAME, sync_adds=False)
    dirty = (current(bookies) / "DIRTY").read_bytes()
    assert b"before they are synced" in dirty
    await bookies.stop(NAME)
    assert (await bookies.start(NAME, sync_adds=False)).admission.doubt is None, "it was stopped in order"
    await bookies.stop(NAME)
    (current(bookies) / "DIRTY").write_bytes(dirty)  # as a crash leaves it
    life = await bookies.start(NAME, repairs=False)
    assert "not synced" in str(life.admission.doubt)
    assert bookies.is_in_limbo(NAME, 1)
    assert (current(bookies) / "DIRTY").read_bytes() == b"", "Apache's: this life syncs"


async def test_a_crash_of_a_bookie_that_syncs_loses_nothing(bookies: Bookies) -> None:
    await bookies.stop(NAME)
    (current(bookies) / "DIRTY").write_bytes(b"")
    assert (await bookies.start(NAME)).admission.doubt is None


async def test_limbo_can_be_turned_off_by_name(bookies: Bookies) -> None:
    await record_ledger(bookies, 1)
    life = await bookies.replace(NAME, repairs=False, limbo=False)
    assert life.limbo_count == 0


async def test_a_disk_that_fails_while_ledgers_enter_limbo_stops_the_start(
    bookies: Bookies, monkeypatch: pytest.MonkeyPatch
) -> None:
    await record_ledger(bookies, 1)
    await bookies.stop(NAME)
    shutil.rmtree(bookies.directory(NAME))
    await bookies.store.delete(cookie_path(ROOT, NAME))
    admission = await bookies.begin(NAME)
    async with open_storage(RealDisk(), bookies.storage_config(NAME)) as storage:
        monkeypatch.setattr(storage, "flush", _fails)
        with pytest.raises(StorageFailedError):
            await admission.complete(storage)
        monkeypatch.undo()
    assert await bookies.store.exists(cookie_path(ROOT, NAME)) is None


async def _fails() -> None:
    raise StorageFailedError("no space")
