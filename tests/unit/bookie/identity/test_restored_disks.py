"""An operator vouches for disks after a restore: only before the first start, and only if they agree."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie.disk.real_disk import RealDisk
from bookie.errors import CookieError
from bookie.identity.incarnation import INCARNATION, IncarnationNumber, encode_incarnation
from bookie.identity.restored_disks import accept_restored_disks
from ledger.catalog.paths import cookie_path
from ledger.errors import ClusterNotFoundError, RestoreRefusedError
from tests.fakes.bookies_by_hand import ROOT, Bookies, open_bookies

NAME = "b1:1"
MARKER = f"{ROOT}/RESTORED"


@pytest.fixture
async def bookies(tmp_path: Path) -> AsyncIterator[Bookies]:
    """A stopped bookie whose cookie was created again, as a restore does."""
    async with open_bookies(tmp_path, NAME) as opened:
        await opened.stop(NAME)
        path = cookie_path(ROOT, NAME)
        cookie = (await opened.store.get(path)).value
        await opened.store.delete(path)
        await opened.store.create(path, cookie)
        # A node of the fake may be created within the same millisecond.
        for number in incarnations(opened):
            number.write_bytes(encode_incarnation(IncarnationNumber(1, 7)))
        await opened.store.create(MARKER, b'{"file_sha256": "f", "state": "held", "id_series": 1}')
        yield opened


def incarnations(bookies: Bookies) -> list[Path]:
    return [bookies.directory(NAME) / one / "current" / INCARNATION for one in ("j", "l")]


async def accept(bookies: Bookies) -> None:
    await accept_restored_disks(bookies.store, ROOT, RealDisk(), bookies.cookie(NAME), [NAME])


async def test_accepted_disks_are_not_taken_for_old_copies(bookies: Bookies) -> None:
    assert (await bookies.begin(NAME)).loss_reason is not None
    for mark in bookies.directory(NAME).rglob("DOUBT"):
        mark.unlink()
    await accept(bookies)
    await accept(bookies)
    assert (await bookies.begin(NAME)).loss_reason is None


async def test_disks_are_accepted_only_in_a_restored_cluster(bookies: Bookies) -> None:
    await bookies.store.put(MARKER, b'{"file_sha256": "f", "state": "writing", "id_series": 1}')
    with pytest.raises(RestoreRefusedError):
        await accept(bookies)
    await bookies.store.delete(MARKER)
    with pytest.raises(ClusterNotFoundError):
        await accept(bookies)


@pytest.mark.parametrize("other", [IncarnationNumber(1, 5), IncarnationNumber(2, 7), None])
async def test_directories_of_different_times_are_not_accepted(
    bookies: Bookies, other: IncarnationNumber | None
) -> None:
    journal = incarnations(bookies)[0]
    if other is None:
        journal.unlink()
    else:
        journal.write_bytes(encode_incarnation(other))
    with pytest.raises(CookieError, match="different times"):
        await accept(bookies)


async def test_disks_are_not_accepted_after_a_start(bookies: Bookies) -> None:
    cookie = bookies.store
    await cookie.put(cookie_path(ROOT, NAME), (await cookie.get(cookie_path(ROOT, NAME))).value)
    with pytest.raises(CookieError, match="has started since"):
        await accept(bookies)


async def test_an_empty_directory_is_not_accepted(bookies: Bookies) -> None:
    shutil.rmtree(bookies.directory(NAME) / "l")
    with pytest.raises(CookieError):
        await accept(bookies)


async def test_a_start_that_found_a_loss_is_not_overruled(bookies: Bookies) -> None:
    assert (await bookies.begin(NAME)).loss_reason is not None
    with pytest.raises(CookieError, match="may lack entries already"):
        await accept(bookies)
