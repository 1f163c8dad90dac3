"""The real disk."""

# covers: bookie/disk/real_disk.py

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import trio

from bookie.disk.disk import BLOCK_BYTES
from bookie.disk.real_disk import RealDisk
from bookie.errors import DirectoryInUseError, StorageClosedError


def test_written_bytes_are_read_back_at_any_offset(tmp_path: Path) -> None:
    file = RealDisk().open(tmp_path / "f", create=True, write=True)
    file.pwrite(b"hello", 3)
    file.pwritev([b"a" * 10] * 3000, 100)
    file.write_durably(b"world", 8)
    file.sync()
    assert file.size() == 30_100
    assert file.pread(10, 3) == b"helloworld"
    assert file.pread(100, 30_090) == b"a" * 10
    assert file.pread(5, 50_000) == b""
    assert file.pread_cached(10, 3) in (b"helloworld", None)
    file.truncate(4)
    assert file.size() == 4
    file.close()


def test_a_direct_file_accepts_aligned_buffers_or_the_file_is_not_direct(tmp_path: Path) -> None:
    disk = RealDisk()
    file = disk.open(tmp_path / "f", create=True, write=True, direct=True)
    buffer = disk.aligned_buffer(5000)
    assert len(buffer) == 2 * BLOCK_BYTES
    buffer[:3] = b"abc"
    file.write_durably(memoryview(buffer)[:BLOCK_BYTES], BLOCK_BYTES)
    file.close()
    assert disk.read_file(tmp_path / "f")[BLOCK_BYTES : BLOCK_BYTES + 3] == b"abc"


def test_creating_an_existing_file_is_an_error(tmp_path: Path) -> None:
    disk = RealDisk()
    disk.open(tmp_path / "f", create=True, write=True).close()
    with pytest.raises(FileExistsError):
        disk.open(tmp_path / "f", create=True, write=True)
    with pytest.raises(FileNotFoundError):
        disk.open(tmp_path / "g")


def test_a_file_is_replaced_even_after_an_interrupted_attempt(tmp_path: Path) -> None:
    disk = RealDisk()
    (tmp_path / "f.tmp").write_bytes(b"half of an earlier att")
    disk.replace_file(tmp_path / "f", b"one")
    disk.replace_file(tmp_path / "f", b"2")
    assert disk.read_file(tmp_path / "f") == b"2"
    assert os.listdir(tmp_path) == ["f"]


def test_directories_are_created_with_their_parents(tmp_path: Path) -> None:
    disk = RealDisk()
    disk.make_directory(tmp_path / "a/b/c")
    disk.make_directory(tmp_path / "a/b/c")
    assert disk.list_directory(tmp_path / "a/b") == ["c"]


def test_a_planted_symlink_in_place_of_the_lock_overwrites_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "LOCK").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"):
        RealDisk().lock(tmp_path / "LOCK")
    assert (tmp_path / "victim").read_text() == "precious"


def test_a_lock_has_one_holder_and_can_be_released(tmp_path: Path) -> None:
    disk = RealDisk()
    unlock = disk.lock(tmp_path / "LOCK")
    with pytest.raises(DirectoryInUseError, match=f"in use by another process .id {os.getpid()}"):
        disk.lock(tmp_path / "LOCK")
    unlock()
    disk.lock(tmp_path / "LOCK")()


async def test_a_thread_runs_jobs_in_order_and_reports_their_outcome_on_the_loop() -> None:
    thread = RealDisk().start_thread("test")
    order: list[object] = []

    def fail() -> None:
        raise OSError(5, "no")

    thread.submit(lambda: "first", lambda result, error: order.append((result, error)))
    thread.submit(fail, lambda result, error: order.append(str(error)))
    thread.submit(lambda: thread.post(order.append, "posted"), None)
    assert await thread.call(lambda: 7) == 7
    assert order == [("first", None), "[Errno 5] no", "posted"]
    with pytest.raises(OSError, match="no"):
        await thread.call(fail)
    await thread.aclose()


async def test_the_job_of_a_call_has_ended_on_return_even_if_cancelled() -> None:
    thread = RealDisk().start_thread("test")
    done = []
    with trio.CancelScope() as scope:
        scope.cancel()
        await thread.call(lambda: done.append(1))
    assert done == [1]
    await thread.aclose()


async def test_a_job_for_a_thread_that_was_closed_is_refused_and_nobody_waits_for_it() -> None:
    thread = RealDisk().start_thread("test")
    ran: list[str] = []
    begin, begun = threading.Event(), trio.Event()

    def busy() -> None:
        thread.post(begun.set)
        assert begin.wait(60)

    async def late(task_status: trio.TaskStatus[None]) -> None:
        await begun.wait()
        task_status.started()
        await thread.aclose()

    async with trio.open_nursery() as nursery:
        thread.submit(busy, None)
        await nursery.start(late)
        # It is being closed, and works; afterwards it has ended.
        with pytest.raises(StorageClosedError, match="test: the storage is closed; nothing was done"):
            await thread.call(lambda: ran.append("while it is closed"))
        begin.set()
    thread.submit(lambda: ran.append("without a result"), None)
    with pytest.raises(StorageClosedError):
        await thread.call(lambda: ran.append("later"))
    assert ran == []


async def test_the_loop_takes_the_place_of_a_thread_only_while_that_is_idle() -> None:
    thread = RealDisk().start_thread("test")
    ran: list[str] = []
    may_end = threading.Event()
    thread.submit(may_end.wait, None)
    assert not thread.run_here(lambda: ran.append("too early"))
    may_end.set()
    await thread.call(lambda: ran.append("thread"))
    assert thread.run_here(lambda: ran.append(str(threading.get_ident())))
    assert ran == ["thread", str(threading.get_ident())]
    await thread.aclose()


async def test_reads_run_in_other_threads() -> None:
    assert await RealDisk().run(threading.get_ident) != threading.get_ident()


def test_a_cached_read_has_bytes_of_its_own_at_any_size(tmp_path: Path) -> None:
    file = RealDisk().open(tmp_path / "f", create=True, write=True)
    content = os.urandom(3 << 20)
    file.pwrite(content, 0)
    spans = [(10, 3), (1 << 20, 7), ((1 << 20) + 1, 9), (2 << 20, 0), (100, (3 << 20) - 50)]
    found = [file.pread_cached(size, offset) for size, offset in spans]
    for (size, offset), data in zip(spans, found, strict=True):
        assert data in (content[offset : offset + size], None), "a later read did not change it"
    file.close()
