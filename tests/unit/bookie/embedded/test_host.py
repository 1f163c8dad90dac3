"""A directory that is removed file by file while its bookie runs is told as gone, not as damaged."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from bookie.embedded.host import REMOVAL_S, _raise_unusable
from bookie.errors import StorageFailedError
from ledger.deploy.directory import Directory
from ledger.errors import DirectoryMovedError, DirectoryUnusableError


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    path = tmp_path / "namespace"
    path.mkdir(mode=0o700)
    opened = Directory(path)
    yield opened
    opened.close()


def failed(cause: OSError) -> StorageFailedError:
    """As the storage fails when a thread of its disk has failed."""
    error = StorageFailedError("writing lastMark failed")
    error.__cause__ = cause
    return error


async def test_a_vanished_file_is_followed_by_the_end_of_the_removal(
    directory: Directory, autojump_clock: trio.testing.MockClock
) -> None:
    async def remove() -> None:
        await trio.sleep(REMOVAL_S / 2)
        shutil.rmtree(directory.path)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(remove)
        with pytest.raises(DirectoryMovedError):
            await _raise_unusable(directory, failed(FileNotFoundError(2, "gone", "lastMark")))


async def test_a_vanished_file_in_a_directory_that_stays_is_waited_for_within_a_limit(
    directory: Directory, autojump_clock: trio.testing.MockClock
) -> None:
    with pytest.raises(DirectoryUnusableError, match="its bookie cannot run") as raised:
        await _raise_unusable(directory, failed(FileNotFoundError(2, "gone", "lastMark")))
    assert type(raised.value) is DirectoryUnusableError
    assert trio.current_time() == pytest.approx(REMOVAL_S, abs=0.1)


async def test_other_failures_are_told_at_once(
    directory: Directory, autojump_clock: trio.testing.MockClock
) -> None:
    with pytest.raises(DirectoryUnusableError, match="its bookie cannot run"):
        await _raise_unusable(directory, failed(OSError(5, "input/output error")))
    assert trio.current_time() == 0
