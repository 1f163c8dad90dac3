"""A metadata store on a full disk: it opens, and takes some changes, out of what was kept for that."""

# covers: ledger/metadata_store/sqlite_store/reserve.py

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.causes import cause_of
from ledger.metadata_store.errors import StoreFullError
from ledger.metadata_store.sqlite_store import open_sqlite_store
from ledger.metadata_store.sqlite_store.reserve import KEPT_BYTES, LOAN_BYTES, RESERVE_BYTES, SpaceReserve
from ledger.metadata_store.store import MetadataStore
from tests.fakes.small_disk import SmallDirectory, small_directory

pytestmark = pytest.mark.mounts
MIB = 1 << 20


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallDirectory]:
    with small_directory(tmp_path / "disk", 32 * MIB) as made:
        yield made


@pytest.mark.slow
async def test_a_store_opens_with_nothing_free_and_deletes(small: SmallDirectory) -> None:
    database = small.path / "metadata.sqlite"
    async with open_sqlite_store(database) as store:
        for number in range(40):
            await store.create(f"/n{number}", bytes(1000))
    assert (small.path / "metadata.reserve").stat().st_size == RESERVE_BYTES
    small.fill()
    for number in range(20):
        async with open_sqlite_store(database) as store:
            await store.delete(f"/n{number}")
        assert small.free_bytes() == 0, "it keeps what is free for the next opening"
    async with open_sqlite_store(database) as store:
        names = (await store.children("/")).names
        assert sorted(names) == sorted(f"n{number}" for number in range(20, 40))


async def test_a_change_without_space_says_so_and_the_store_goes_on(small: SmallDirectory) -> None:
    async with open_sqlite_store(small.path / "metadata.sqlite") as store:
        await store.create("/kept", b"kept")
        small.fill()
        with pytest.raises(StoreFullError) as caught:
            await create_many(store)
        cause = cause_of(caught.value)
        while cause is not None and type(cause) is not OSError:
            cause = cause_of(cause)
        assert isinstance(cause, OSError)
        assert cause.errno == errno.ENOSPC
        assert (await store.get("/kept")).value == b"kept"
        small.free()
        await store.create("/later", b"")


async def create_many(store: MetadataStore) -> None:
    for number in range(1000):
        await store.create(f"/n{number}", bytes(100_000))


def test_the_reserve_is_made_given_and_filled_again(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        reserve = SpaceReserve(fd, "reserve")
        reserve.fill(makes=False)
        assert not (tmp_path / "reserve").exists()
        assert not reserve.release()
        reserve.fill()
        assert (tmp_path / "reserve").stat().st_size == RESERVE_BYTES
        assert reserve.missing_bytes() == 0
        assert reserve.release()
        assert not reserve.release(), "there is nothing left to give"
        assert reserve.missing_bytes() == RESERVE_BYTES
        reserve.fill(makes=False)
        assert reserve.missing_bytes() == 0
    finally:
        os.close(fd)


def test_a_reserve_lends_until_it_has_only_what_its_store_needs(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        reserve = SpaceReserve(fd, "reserve")
        assert not reserve.lend(), "it was never made"
        reserve.fill()
        assert reserve.lend()
        assert reserve.missing_bytes() == LOAN_BYTES, "a loan is not free for clients"
        while reserve.lend():
            pass
        assert KEPT_BYTES <= (tmp_path / "reserve").stat().st_size < KEPT_BYTES + LOAN_BYTES
        reserve.fill()
        assert reserve.missing_bytes() == 0
    finally:
        os.close(fd)
