"""A start on a directory in which something else has the place of a file of the bookie."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from bookie.disk.real_disk import RealDisk
from bookie.endings import BookieExit, exit_code_of
from bookie.errors import StorageFileError
from bookie.index.index_factory import IndexConfig, IndexKind
from bookie.storage.config import StorageConfig
from bookie.storage.opening import open_storage
from ledger.runtime.held_directories import DirectoryLostError


def config_of(home: Path, kind: IndexKind = IndexKind.CHUNKS) -> StorageConfig:
    return StorageConfig(
        journal_directories=[home / "journal"],
        ledger_directories=[home / "one", home / "two"],
        index=IndexConfig(kind=kind),
    )


async def write(config: StorageConfig) -> None:
    async with open_storage(RealDisk(), config) as storage:
        batch = storage.new_batch()
        for ledger_id in range(4):
            storage.create_ledger(batch, ledger_id, b"k" * 20)
        await storage.submit_durably(batch)


async def ledgers(config: StorageConfig) -> list[int]:
    async with open_storage(RealDisk(), config) as storage:
        return sorted(storage.ledger_ids())


def put_directory(path: Path) -> None:
    path.mkdir()


def put_dangling_link(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


def put_loop(path: Path) -> None:
    path.symlink_to(path)


def put_back(kept: Path, path: Path) -> None:
    path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    kept.rename(path)


def set_aside(home: Path, pattern: str) -> tuple[Path, Path]:
    """Move the last such file away; its place, and where it is now."""
    path = sorted(home.glob(pattern))[-1]
    return path, path.rename(home / "kept")


@pytest.mark.slow
@pytest.mark.parametrize("put", [put_directory, put_dangling_link, put_loop])
@pytest.mark.parametrize(
    "file",
    ["journal/current/LOCK", "journal/current/lastSynced", "journal/current/*.txn", "one/current/LOCK"],
)
async def test_its_name_the_reason_and_the_remedy_are_told_and_the_file_from_a_copy_helps(
    file: str, put: Callable[[Path], None], tmp_path: Path
) -> None:
    config = config_of(tmp_path)
    await write(config)
    path, kept = set_aside(tmp_path, file)
    put(path)
    with pytest.raises(StorageFileError, match=r"Move that away and put the file back") as caught:
        await ledgers(config)
    assert str(path) in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)
    assert exit_code_of(caught.value) is BookieExit.DISKS
    put_back(kept, path)
    assert await ledgers(config) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free space"),
        (errno.EROFS, "mount it for writing"),
        (errno.EACCES, "the right to use it"),
        (errno.EIO, "replace it"),
        (errno.EMFILE, "limit of open files"),
        (errno.EISDIR, "put the file back from a copy"),
    ],
)
async def test_a_call_that_fails_at_the_start_is_an_error_of_ours_and_keeps_its_number(
    number: int, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, "no luck", "/d/file")

    monkeypatch.setattr(RealDisk, "make_directory", fail)
    with pytest.raises(StorageFileError, match=f"^/d/file cannot be used: no luck. .*{remedy}") as caught:
        await ledgers(config_of(tmp_path))
    assert (caught.value.errno, caught.value.filename) == (number, "/d/file")


async def test_a_directory_that_was_replaced_keeps_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(_: RealDisk) -> None:
        raise DirectoryLostError(errno.ESTALE, "it was replaced", "/d")

    monkeypatch.setattr(RealDisk, "check_in_place", lost)
    with pytest.raises(DirectoryLostError):
        await ledgers(config_of(tmp_path))
