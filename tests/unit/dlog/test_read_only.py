"""Namespaces opened with ``read_only=True``: what is seen, what is refused, and that no byte is written."""

# covers: bookie/embedded/snapshot.py

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

import dlog
import dlog.blocking
from bookie.embedded import host
from bookie.embedded.snapshot import Snapshot, take_snapshot
from bookie.journal.format import journal_id_of
from ledger.deploy import read_only as read_only_module
from ledger.deploy.directory import BOOKIE, METADATA, Directory
from tests.unit.dlog.test_embedded_processes import line_of, running

pytestmark = pytest.mark.slow

APPEND_AND_WAIT = """
import sys, trio, dlog
async def main():
    async with dlog.open_namespace(sys.argv[1]) as namespace:
        async with namespace.open_writer("log", create=True) as writer:
            await writer.append_many([b"%d" % n for n in range(100)])
            await writer.flush()
            await writer.append(b"100")
            print("acknowledged", flush=True)
            await trio.sleep_forever()
trio.run(main)
"""


def everything_below(directory: Path) -> dict[str, tuple[bytes, int, int]]:
    """Bytes, modification time and mode of all files and directories."""
    found = {}
    for path in (directory, *directory.rglob("*")):
        status = os.lstat(path)
        data = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (data, status.st_mtime_ns, status.st_mode)
    return found


async def records_in(namespace: dlog.Namespace, log: str = "log") -> list[dlog.Record]:
    async with namespace.open_reader(log, follow=False) as reader:
        return [record async for record in reader]


async def read_only_records(directory: Path) -> list[dlog.Record]:
    """The records of the directory, read with the promise that nothing in it changes."""
    before = everything_below(directory)
    async with dlog.open_namespace(f"file://{directory}", read_only=True) as namespace:
        records = await records_in(namespace)
    assert everything_below(directory) == before
    return records


async def write_log(directory: Path, count: int) -> None:
    """A complete log with the records ``0``, ``1``, ..."""
    async with (
        dlog.open_namespace(f"file://{directory}") as namespace,
        namespace.open_writer("log", create=True) as writer,
    ):
        await writer.append_many([b"%d" % number for number in range(count)])


def set_modes(directory: Path, of_directories: int, of_files: int) -> None:
    for path in (directory, *directory.rglob("*")):
        path.chmod(of_directories if path.is_dir() else of_files)


def _payloads() -> list[bytes]:
    """The payloads of ``crashed``, in order."""
    return [*(b"%d" % number for number in range(300)), *(b"%d" % number * 20 for number in range(300, 400))]


async def crashed(directory: Path, work: Path, *, flushed: bool = True) -> None:
    """The files of a process that was killed, with some logs: ``log`` has two segments and a journal."""
    await write_log(work, 300)
    async with (
        dlog.open_namespace(f"file://{work}") as namespace,
        namespace.open_writer("log") as writer,
    ):
        await writer.append_many([b"%d" % number * 20 for number in range(300, 400)])
        if flushed:
            await writer.flush()
        shutil.copytree(work, directory, ignore=shutil.ignore_patterns("bookie.sock"))


@pytest.mark.cluster
async def test_the_records_of_a_killed_writer_are_read_and_no_byte_is_written(tmp_path: Path) -> None:
    with running(APPEND_AND_WAIT, f"file://{tmp_path}") as process:
        assert await line_of(process) == "acknowledged"
        process.send_signal(signal.SIGKILL)
        process.wait()
    set_modes(tmp_path, 0o500, 0o400)
    try:
        records = await read_only_records(tmp_path)
    finally:
        set_modes(tmp_path, 0o700, 0o600)
    assert [int(record.payload) for record in records][:100] == list(range(100))
    async with dlog.open_namespace(f"file://{tmp_path}") as namespace:
        assert await records_in(namespace) == records, "the next ordinary start serves the same"


@pytest.mark.parametrize("flushed", [True, False])
async def test_a_crash_image_has_the_records_of_the_next_ordinary_start(
    tmp_path: Path, flushed: bool
) -> None:
    image = tmp_path / "image"
    await crashed(image, tmp_path / "work", flushed=flushed)
    records = await read_only_records(image)
    assert len(records) >= (400 if flushed else 300)
    async with dlog.open_namespace(f"file://{image}") as namespace:
        assert await records_in(namespace) == records


@pytest.mark.parametrize("seed", range(6))
async def test_a_torn_journal_ends_where_an_ordinary_start_ends_it(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    image = tmp_path / "image"
    await crashed(image, tmp_path / "work")
    current = image / BOOKIE / "current"
    journal = max((path for path in current.iterdir() if journal_id_of(path.name) is not None), key=str)
    data = bytearray(journal.read_bytes())
    used = len(bytes(data).rstrip(b"\0"))
    if rng.random() < 0.5:
        del data[rng.randrange(used) :]
    else:
        at = max(0, used - rng.randrange(4096))
        data[at:used] = bytes(used - at)
    journal.write_bytes(data)
    found = await read_only_records(image)
    try:
        ordinary = await _ordinary_records(image)
    except dlog.EmbeddedStoreError:  # the journal was durable further: reading gives what is sound
        ordinary = found
        assert [record.payload for record in found] == _payloads()[: len(found)]
        assert len(found) >= 300, "the journal of the first writer is not needed"
    assert ordinary == found


async def _ordinary_records(directory: Path) -> list[dlog.Record]:
    async with dlog.open_namespace(f"file://{directory}") as namespace:
        return await records_in(namespace)


async def test_a_closed_namespace_is_described_and_verified_read_only(tmp_path: Path) -> None:
    async with dlog.open_namespace(f"file://{tmp_path}") as namespace:
        async with namespace.open_writer("a/log", create=True) as writer:
            await writer.append_many([b"%d" % number for number in range(10)])
        await namespace.create_log("empty")
        expected = await namespace.describe_log("a/log")
        verified = await namespace.repair.verify("a/log")
    before = everything_below(tmp_path)
    with dlog.blocking.open_namespace(f"file://{tmp_path}", read_only=True) as opened:
        assert opened.list_logs() == ["a/log", "empty"]
        assert opened.describe_log("a/log") == expected
        assert opened.repair.verify("a/log") == verified
        assert opened.last_dlsn("empty") is None
        assert opened.purge_log("a/log", dry_run=True) == []
        assert opened.policy.get() is None
        assert opened.log_exists("empty")
    assert everything_below(tmp_path) == before


CHANGES: list[Callable[[dlog.Namespace], Awaitable[object]]] = [
    lambda namespace: namespace.create_log("new"),
    lambda namespace: namespace.create_log("log", exist_ok=True),
    lambda namespace: namespace.delete_log("log"),
    lambda namespace: namespace.rename_log("log", "new"),
    lambda namespace: namespace.truncate_log("log", dlog.DLSN(1, 0, 0)),
    lambda namespace: namespace.purge_log("log"),
    lambda namespace: namespace.policy.set(None),
    lambda namespace: namespace.retention.set("log", None),
    lambda namespace: namespace.retention.apply("log"),
    lambda namespace: namespace.cursors("log").set("reader", dlog.DLSN(1, 0, 0)),
    lambda namespace: namespace.cursors("log").delete("reader"),
    lambda namespace: namespace.open_writer("log").__aenter__(),
    lambda namespace: namespace.open_writer("new", create=True).__aenter__(),
]


@pytest.mark.parametrize("is_hosted", [False, True])
@pytest.mark.parametrize("change", CHANGES)
async def test_each_change_is_refused_before_anything_happens(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[dlog.Namespace], Awaitable[object]],
    is_hosted: bool,
) -> None:
    home, uri = tmp_path / "home", f"file://{tmp_path}/home"
    audit = tmp_path / "audit.log"
    async with dlog.open_namespace(uri) as namespace:
        await namespace.create_log("log")
        if not is_hosted:
            monkeypatch.setenv("DLOG_AUDIT_LOG", str(audit))
    if is_hosted:
        async with dlog.open_namespace(uri), dlog.open_namespace(uri, read_only=True) as opened:
            monkeypatch.setenv("DLOG_AUDIT_LOG", str(audit))
            with pytest.raises(dlog.ReadOnlyError, match="read_only=True"):
                await change(opened)
            assert await opened.list_logs() == ["log"]
    else:
        before = everything_below(home)
        async with dlog.open_namespace(uri, read_only=True) as opened:
            with pytest.raises(dlog.ReadOnlyError, match="read_only=True"):
                await change(opened)
        assert everything_below(home) == before
    assert not audit.exists()


async def test_a_cursor_is_read_and_its_commit_is_refused(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}"
    await write_log(tmp_path, 10)
    async with (
        dlog.open_namespace(uri) as namespace,
        namespace.open_reader("log", follow=False, cursor="reader") as reader,
    ):
        await reader.read_batch(4)
        committed = await reader.commit()
    before = everything_below(tmp_path)
    async with dlog.open_namespace(uri, read_only=True) as opened:
        assert await opened.cursors("log").list() == [committed]
        async with opened.open_reader("log", follow=False, cursor="reader") as reader:
            records = await reader.read_batch(10)
            assert records is not None
            assert [int(record.payload) for record in records] == [4, 5, 6, 7, 8, 9]
            with pytest.raises(dlog.ReadOnlyError):
                await reader.commit()
    assert everything_below(tmp_path) == before


async def test_a_reader_follows_the_process_that_hosts_the_directory(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}"
    async with dlog.open_namespace(uri) as namespace, namespace.open_writer("log", create=True) as writer:
        await writer.append(b"0")
        await writer.flush()
        sessions = sorted(os.listdir(tmp_path / "metadata.sqlite-sessions"))
        async with dlog.open_namespace(uri, read_only=True) as opened, opened.open_reader("log") as reader:
            assert (await anext(reader)).payload == b"0"
            assert (await opened.describe_log("log")).writer == (await namespace.describe_log("log")).writer
            with trio.fail_after(60):
                for number in range(1, 50):
                    await writer.append(b"%d" % number)
                    assert (await anext(reader)).payload == b"%d" % number
            await namespace.create_log("new")
            assert await opened.list_logs() == ["log", "new"]
            assert sorted(os.listdir(tmp_path / "metadata.sqlite-sessions")) == sessions
        await writer.append(b"50")
    assert [int(record.payload) for record in await read_only_records(tmp_path)] == list(range(51))


async def test_a_snapshot_stays_as_it_is_while_another_process_writes(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}"
    await write_log(tmp_path, 10)
    async with dlog.open_namespace(uri, read_only=True) as opened:
        async with dlog.open_namespace(uri) as namespace, namespace.open_writer("log") as writer:
            await writer.append(b"10")
            await namespace.create_log("new")
        assert await opened.list_logs() == ["log"]
        assert len(await records_in(opened)) == 10


def delete_entry_logs(directory: Path) -> None:
    """As a compaction does."""
    for log in (directory / BOOKIE / "current").glob("*.log"):
        log.unlink()


async def test_a_reader_whose_files_are_gone_is_told_to_open_again(tmp_path: Path) -> None:
    await write_log(tmp_path, 10)

    async def read_what_is_gone() -> None:
        async with dlog.open_namespace(f"file://{tmp_path}", read_only=True) as opened:
            delete_entry_logs(tmp_path)
            await records_in(opened)

    with trio.fail_after(60), pytest.raises(dlog.EmbeddedStoreError, match="open it again"):
        await read_what_is_gone()


@pytest.mark.parametrize("times", [1, 99])
async def test_files_that_change_while_they_are_opened_are_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    uri = f"file://{tmp_path}"
    async with dlog.open_namespace(uri) as namespace:
        await namespace.create_log("log")
    taken = 0

    async def take_and_change(path: Path) -> Snapshot:
        nonlocal taken
        taken += 1
        snapshot = await take_snapshot(path)
        if taken <= times:
            (path / BOOKIE / "current" / f"{taken}.new").touch()
        return snapshot

    monkeypatch.setattr("bookie.embedded.take_snapshot", take_and_change)
    if times == 1:
        async with dlog.open_namespace(uri, read_only=True) as opened:
            assert await opened.list_logs() == ["log"]
        assert taken == 2
    else:
        with pytest.raises(dlog.EmbeddedStoreError, match=r"changed its files.*open it again"):
            async with dlog.open_namespace(uri, read_only=True):
                pass
        assert taken == read_only_module.ATTEMPTS


async def test_a_host_that_starts_between_is_noticed_by_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"file://{tmp_path}"
    async with dlog.open_namespace(uri) as namespace:
        await namespace.create_log("log")
    looks = iter([False, True, False])
    monkeypatch.setattr(Directory, "is_locked", lambda _: next(looks, False))
    taken: list[Snapshot] = []

    async def take(path: Path) -> Snapshot:
        taken.append(await take_snapshot(path))
        return taken[-1]

    monkeypatch.setattr("bookie.embedded.take_snapshot", take)
    async with dlog.open_namespace(uri, read_only=True) as opened:
        assert await opened.list_logs() == ["log"]
    assert len(taken) == 2


async def test_a_process_that_holds_the_lock_without_serving_is_named(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}"
    async with dlog.open_namespace(uri):
        pass
    directory = Directory(tmp_path)
    lock = directory.try_lock()
    assert lock is not None
    config = dlog.NamespaceConfig(host_lock_timeout_s=0.05)
    with pytest.raises(dlog.EmbeddedStoreError, match=r"has held host.lock for 0.05 s"):
        async with dlog.open_namespace(uri, config=config, read_only=True):
            pass
    directory.unlock(lock)
    directory.close()


async def test_nothing_to_read_is_an_error_and_creates_nothing(tmp_path: Path) -> None:
    async def fails(path: Path, match: str) -> None:
        with pytest.raises(dlog.DLogError, match=match):
            async with dlog.open_namespace(f"file://{path}", read_only=True):
                pass

    await fails(tmp_path / "missing", "No such file")
    assert not (tmp_path / "missing").exists()
    (tmp_path / "empty").mkdir(mode=0o700)
    await fails(tmp_path / "empty", "metadata.sqlite is missing")
    assert os.listdir(tmp_path / "empty") == []
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o770)
    await fails(tmp_path / "shared", "chmod go-w")
    async with dlog.open_namespace(f"file://{tmp_path}/others"):
        pass
    (tmp_path / "others").chmod(0o555)
    async with dlog.open_namespace(f"file://{tmp_path}/others", read_only=True) as opened:
        assert await opened.list_logs() == []
    (tmp_path / "others").chmod(0o700)
    (tmp_path / "others" / METADATA).write_bytes(b"")
    for suffix in ("-wal", "-shm"):
        (tmp_path / "others" / f"{METADATA}{suffix}").unlink(missing_ok=True)
    await fails(tmp_path / "others", "is empty")


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), OSError(30, "Read-only file system")]
)
@pytest.mark.parametrize("where", ["metadata", "bookie"])
async def test_a_directory_that_cannot_be_written_names_the_way_to_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, where: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    async with dlog.open_namespace(f"file://{tmp_path}"):
        pass
    if where == "metadata":
        monkeypatch.setattr("ledger.metadata_store.sqlite_store.store.SqliteTree", refuse)
    else:
        monkeypatch.setattr(host, "open_bookie", refuse)
    with pytest.raises(dlog.EmbeddedStoreError, match=r"read_only=True, or --read-only"):
        async with dlog.open_namespace(f"file://{tmp_path}"):
            pass
