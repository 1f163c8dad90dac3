"""A copy by hard links (`cp -al`, rsnapshot): the directory opens, the copy does not change it."""

# covers: ledger/deploy/links.py

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

import dlog
import dlog.blocking
from ledger.deploy import links
from ledger.deploy.directory import LOCK, METADATA
from ledger.metadata_store.sqlite_store.store import open_sqlite_store

pytestmark = pytest.mark.slow


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A directory with two records."""
    path = tmp_path / "ns"
    append(path, b"0", b"1")
    return path


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return tmp_path / "copy"


def append(path: Path, *payloads: bytes) -> None:
    with (
        dlog.blocking.open_namespace(path.as_uri()) as namespace,
        namespace.open_writer("log", create=True) as writer,
    ):
        for payload in payloads:
            writer.append(payload)


def payloads(path: Path) -> list[bytes]:
    with (
        dlog.blocking.open_namespace(path.as_uri()) as namespace,
        namespace.open_reader("log", follow=False) as reader,
    ):
        return [record.payload for record in reader]


def link_tree(path: Path, copy: Path) -> None:
    subprocess.run(["cp", "-al", str(path), str(copy)], check=True)


def shared(path: Path) -> list[str]:
    return sorted(
        str(each.relative_to(path)) for each in path.rglob("*") if each.is_file() and each.stat().st_nlink > 1
    )


def content(path: Path) -> dict[str, bytes]:
    return {str(each.relative_to(path)): each.read_bytes() for each in path.rglob("*") if each.is_file()}


def test_the_directory_gets_files_of_its_own_and_the_copy_keeps_its_bytes(path: Path, copy: Path) -> None:
    link_tree(path, copy)
    before = content(copy)
    with pytest.raises(dlog.EmbeddedStoreError, match=f"`cp -a {copy} NEW`"):
        payloads(copy)
    assert content(copy) == before
    append(path, b"2")
    assert shared(path) == []
    assert content(copy) == before
    assert payloads(path) == [b"0", b"1", b"2"]
    append(copy, b"other")
    assert payloads(copy) == [b"0", b"1", b"other"]
    assert payloads(path) == [b"0", b"1", b"2"]


def test_a_process_that_has_it_open_goes_on_and_others_can_attach(path: Path, copy: Path) -> None:
    with (
        dlog.blocking.open_namespace(path.as_uri()) as namespace,
        namespace.open_writer("log") as writer,
    ):
        link_tree(path, copy)
        writer.append(b"2")
        with pytest.raises(dlog.EmbeddedStoreError, match="hard links"):
            payloads(copy)
        assert payloads(path)[:2] == [b"0", b"1"]  # the last one may not be confirmed yet
        writer.append_many([b"3", b"4"])
    append(path, b"5")
    assert shared(path) == []
    assert payloads(path) == [b"0", b"1", b"2", b"3", b"4", b"5"]


async def test_files_stay_shared_while_a_process_has_the_metadata_open(path: Path, copy: Path) -> None:
    async with open_sqlite_store(path / METADATA):
        link_tree(path, copy)
        assert await trio.to_thread.run_sync(payloads, path) == [b"0", b"1"]
        assert METADATA in shared(path)
        with pytest.raises(dlog.EmbeddedStoreError, match="hard links"):
            await trio.to_thread.run_sync(payloads, copy)
    assert await trio.to_thread.run_sync(payloads, path) == [b"0", b"1"]
    assert shared(path) == []


@pytest.mark.parametrize("name", ["metadata.reserve", "metadata.copy", LOCK, METADATA])
def test_a_planted_hard_link_changes_no_other_file(path: Path, tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes((path / name).read_bytes())
    before = victim.read_bytes()
    (path / name).unlink()
    (path / name).hardlink_to(victim)
    append(path, b"2")
    assert victim.read_bytes() == before
    (path / links.INODE).unlink()
    (path / name).unlink()
    (path / name).hardlink_to(victim)
    with pytest.raises(dlog.EmbeddedStoreError, match="hard links"):
        append(path, b"3")
    assert victim.read_bytes() == before


def test_a_directory_that_was_moved_is_still_the_first(path: Path, copy: Path) -> None:
    link_tree(path, copy)
    moved = path.rename(path.with_name("moved"))
    assert payloads(moved) == [b"0", b"1"]
    shutil.rmtree(moved)
    assert payloads(copy) == [b"0", b"1"]


def test_a_copy_whose_first_directory_is_gone_opens(path: Path, copy: Path) -> None:
    link_tree(path, copy)
    shutil.rmtree(path)
    append(copy, b"2")
    assert payloads(copy) == [b"0", b"1", b"2"]


def test_an_old_directory_that_does_not_know_itself_is_refused_while_it_shares_files(
    path: Path, copy: Path
) -> None:
    (path / links.INODE).unlink()
    link_tree(path, copy)
    for each in (path, copy):
        with pytest.raises(dlog.EmbeddedStoreError, match="hard links"):
            payloads(each)
    own = path.with_name("own")
    subprocess.run(["cp", "-a", str(path), str(own)], check=True)
    append(own, b"2")
    assert payloads(own) == [b"0", b"1", b"2"]


def test_an_interrupted_copying_of_files_is_done_again(
    path: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link_tree(path, copy)
    before, count = content(copy), len(shared(path))
    replace: Callable[[Path], None] = links._replace
    left = 4

    def fail(file: Path) -> None:
        nonlocal left
        if not left:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(file))
        left -= 1
        replace(file)

    monkeypatch.setattr(links, "_replace", fail)
    for done in range(4, count, 4):
        left = 4
        with pytest.raises(dlog.EmbeddedStoreError, match="cannot get its own"):
            payloads(path)
        assert len(shared(path)) == count - done
        assert content(copy) == before
        with pytest.raises(dlog.EmbeddedStoreError, match="hard links"):
            payloads(copy)
    monkeypatch.undo()
    append(path, b"2")
    assert shared(path) == []
    assert content(copy) == before
    assert payloads(path) == [b"0", b"1", b"2"]


def test_a_note_that_cannot_be_written_leaves_nothing(path: Path) -> None:
    (path / links.INODE).unlink()
    (path / links.INODE).mkdir()
    assert payloads(path) == [b"0", b"1"]
    assert [each.name for each in path.iterdir() if each.name.startswith(links.INODE)] == [links.INODE]


@pytest.mark.parametrize("note", [b"", b"garbage", b"1" * 100])
def test_a_note_that_does_not_parse_is_written_again(path: Path, copy: Path, note: bytes) -> None:
    (path / links.INODE).write_bytes(note)
    assert payloads(path) == [b"0", b"1"]
    assert (path / links.INODE).read_bytes() == b"%d\n" % path.stat().st_ino
    link_tree(path, copy)
    assert payloads(path) == [b"0", b"1"]
