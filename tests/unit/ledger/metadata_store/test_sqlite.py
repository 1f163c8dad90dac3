"""The SQLite store beyond the contract: several processes, killed processes, files that are no store."""

# covers: ledger/metadata_store/sqlite_store/failures.py
# covers: ledger/metadata_store/sqlite_store/session.py
# covers: ledger/metadata_store/sqlite_store/store.py

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio

from ledger.metadata_store.errors import (
    ConnectionLostError,
    SessionExpiredError,
    StoreFormatError,
    StoreUnreachableError,
)
from ledger.metadata_store.sqlite_store import database
from ledger.metadata_store.sqlite_store import image as sqlite_image
from ledger.metadata_store.sqlite_store.reserve import SpaceReserve
from ledger.metadata_store.sqlite_store.store import SqliteStore, open_sqlite_store
from ledger.metadata_store.sqlite_store.tree import SqliteTree
from ledger.metadata_store.store import SessionState

# Another process: it creates an ephemeral and a persistent node, prints its session id and waits.
OTHER = """
import sys, trio
from pathlib import Path
from ledger.metadata_store.sqlite_store.store import open_sqlite_store

async def main():
    async with open_sqlite_store(Path(sys.argv[1])) as store:
        await store.create("/theirs", b"e", ephemeral=True)
        await store.create("/kept", b"k")
        print(store.session_id, flush=True)
        await trio.sleep_forever()

trio.run(main)
"""
# Another process, which forks a child after it opened its session. The child prints its pid.
FORKING = OTHER.replace(
    "print(store.session_id, flush=True)",
    "import os, time; os.fork() or print(os.getpid(), flush=True) or time.sleep(60)",
)


@asynccontextmanager
async def other_process(database: Path, program: str = OTHER) -> AsyncIterator[tuple[trio.Process, int]]:
    """A process with a session of its own, and the number that it prints."""
    process = await trio.lowlevel.open_process(
        [sys.executable, "-c", program, str(database)], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        with trio.fail_after(60):
            yield process, int(await process.stdout.receive_some())
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            if process.stdout is not None:
                await process.stdout.aclose()


@pytest.mark.slow
async def test_the_ephemeral_nodes_of_a_killed_process_are_gone_at_once(tmp_path: Path) -> None:
    database = tmp_path / "metadata.db"
    async with open_sqlite_store(database) as store, other_process(database) as (process, session_id):
        assert (await store.get("/theirs")).stat.ephemeral_owner == session_id
        process.kill()
        await process.wait()
        assert await store.exists("/theirs") is None
        assert (await store.get("/kept")).value == b"k"
        assert sorted(path.name for path in (tmp_path / "metadata.db-sessions").iterdir()) == [
            f"{store.session_id}.lock",
            "opening",
        ]


@pytest.mark.slow
async def test_a_watch_fires_when_a_process_is_killed(tmp_path: Path) -> None:
    database = tmp_path / "metadata.db"
    async with (
        open_sqlite_store(database) as store,
        open_sqlite_store(database) as marker,
        other_process(database) as (process, _),
    ):
        gone, looked = trio.Event(), trio.Event()
        await store.exists("/theirs", watch=gone)
        await store.exists("/marker", watch=looked)
        await marker.create("/marker")
        with trio.fail_after(60):
            await (
                looked.wait()
            )  # the poller has looked at the new watch; only another process can wake it now
        process.kill()
        with trio.fail_after(60):
            await gone.wait()
        assert await store.exists("/theirs") is None


@pytest.mark.slow
async def test_a_stopped_process_keeps_its_nodes(tmp_path: Path) -> None:
    database = tmp_path / "metadata.db"
    async with open_sqlite_store(database) as store, other_process(database) as (process, session_id):
        process.send_signal(signal.SIGSTOP)
        assert (await store.get("/theirs")).stat.ephemeral_owner == session_id
        async with open_sqlite_store(database) as another:
            assert await another.exists("/theirs") is not None


@pytest.mark.slow
async def test_a_forked_child_does_not_keep_the_session_of_its_parent_alive(tmp_path: Path) -> None:
    database = tmp_path / "metadata.db"
    async with (
        open_sqlite_store(database) as store,
        other_process(database, FORKING) as (process, child),
    ):
        try:
            process.kill()
            await process.wait()
            os.kill(child, 0)  # the child is alive
            assert await store.exists("/theirs") is None
        finally:
            os.kill(child, signal.SIGKILL)


async def test_nodes_survive_the_last_session(tmp_path: Path) -> None:
    async with open_sqlite_store(tmp_path / "metadata.db") as store:
        await store.create("/a/b", b"value", parents=True)
        await store.put("/a/b", b"value 2")
        first = store.session_id
    async with open_sqlite_store(tmp_path / "metadata.db") as store:
        node = await store.get("/a/b")
        assert (node.value, node.stat.version) == (b"value 2", 1)
        assert store.session_id > first


async def test_a_session_whose_lock_file_was_removed_ends_visibly(tmp_path: Path) -> None:
    database = tmp_path / "metadata.db"
    async with open_sqlite_store(database) as store, open_sqlite_store(database) as other:
        watch = trio.Event()
        await store.exists("/a", watch=watch)
        (tmp_path / "metadata.db-sessions" / f"{store.session_id}.lock").unlink()
        await other.sync("/")
        with pytest.raises(SessionExpiredError, match="lock file"):
            await store.create("/a")
        assert store.state is SessionState.EXPIRED
        assert watch.is_set()


async def test_a_session_that_ends_between_the_check_and_the_write_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = tmp_path / "metadata.db"
    locks = tmp_path / "metadata.db-sessions"
    check = SqliteTree._remove_dead_sessions
    async with (
        open_sqlite_store(database) as store,
        open_sqlite_store(database) as other,
        open_sqlite_store(database) as dead,
    ):

        def end_after_check(tree: SqliteTree, session_ids: list[int]) -> None:
            check(tree, session_ids)
            if tree is store._tree and tree.session_id in ids(other):
                (locks / f"{tree.session_id}.lock").unlink()
                check(other._tree, session_ids)

        monkeypatch.setattr(SqliteTree, "_remove_dead_sessions", end_after_check)
        (locks / f"{dead.session_id}.lock").unlink()  # so that the store checks, and ends this session
        with pytest.raises(SessionExpiredError, match="lock file"):
            await store.create("/lock", ephemeral=True)
        assert await other.exists("/lock") is None, "no session is left that would delete it"


def ids(store: SqliteStore) -> set[int]:
    return {row[0] for row in store._tree._db.execute("SELECT id FROM session")}


async def test_closing_a_store_whose_directory_was_replaced_ends_no_session_there(tmp_path: Path) -> None:
    database = tmp_path / "here" / "metadata.db"
    async with AsyncExitStack() as stack:
        former = await stack.enter_async_context(open_sqlite_store(database))
        database.parent.rename(tmp_path / "elsewhere")
        async with open_sqlite_store(database) as store, open_sqlite_store(database) as other:
            assert former.session_id == store.session_id
            await store.create("/mine", ephemeral=True)
            await stack.aclose()
            assert await other.exists("/mine") is not None


async def test_lock_files_without_a_session_are_removed(tmp_path: Path) -> None:
    database = tmp_path / "metadata.db"
    async with open_sqlite_store(database):
        stray = tmp_path / "metadata.db-sessions" / "999.lock"
        stray.touch()
        async with open_sqlite_store(database):
            assert not stray.exists()


async def test_a_file_that_is_no_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_bytes(b"not a database" * 100)
    with pytest.raises(StoreFormatError, match=r"notes\.txt: not a metadata store"):
        async with open_sqlite_store(text):
            pass
    assert text.read_bytes() == b"not a database" * 100
    foreign = tmp_path / "foreign.db"
    connection = sqlite3.connect(foreign)
    connection.execute("CREATE TABLE t (x)")
    connection.close()
    before = foreign.read_bytes()
    with pytest.raises(StoreFormatError, match="not a metadata store of this release"):
        async with open_sqlite_store(foreign):
            pass
    assert foreign.read_bytes() == before


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (database, "open_directory"),
        (database, "begin_use"),
        (SpaceReserve, "is_wanted"),
        (sqlite3, "connect"),
        (SqliteTree, "_prepare"),
        (SqliteTree, "_open_session"),
        (SqliteTree, "_data_version"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_an_opening_that_fails_at_any_step_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str
) -> None:
    path = tmp_path / "metadata.sqlite"
    SqliteTree(path).close()
    inode = os.stat(path).st_ino

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "no descriptor is left")

    descriptors = set(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as failing:
        failing.setattr(owner, name, fail)
        with pytest.raises(OSError, match="no descriptor is left"):
            SqliteTree(path)
    assert set(os.listdir("/proc/self/fd")) == descriptors
    assert inode not in {each for _, each in sqlite_image._users}
    assert list(tmp_path.glob("*-sessions/*.lock")) == [], "a session that is dead for others"


async def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    async with open_sqlite_store(tmp_path / "metadata.db"):
        pass
    connection = sqlite3.connect(tmp_path / "metadata.db")
    connection.execute("PRAGMA user_version = 2")
    connection.close()
    with pytest.raises(StoreFormatError, match="schema 2"):
        async with open_sqlite_store(tmp_path / "metadata.db"):
            pass


async def test_a_directory_that_cannot_be_made_is_an_unreachable_store(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnreachableError, match="cannot be opened"):
        async with open_sqlite_store(tmp_path / "file" / "metadata.db"):
            pass


async def test_a_database_locked_for_too_long_is_a_lost_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledger.metadata_store.sqlite_store.database.BUSY_TIMEOUT_S", 0.01)
    async with open_sqlite_store(tmp_path / "metadata.db") as store:
        await store.create("/a")
        blocker = sqlite3.connect(tmp_path / "metadata.db", isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        with pytest.raises(ConnectionLostError, match="locked"):
            await store.put("/a", b"x")
        assert (await store.get("/a")).value == b""
        blocker.execute("ROLLBACK")
        blocker.close()
        assert (await store.put("/a", b"y")).version == 1


async def test_writes_are_synced_to_disk_before_they_return(tmp_path: Path) -> None:
    async with open_sqlite_store(tmp_path / "metadata.db") as store:
        assert store._tree._pragma("synchronous") == 2
        assert store._tree._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def test_a_watch_without_a_waiter_is_dropped(tmp_path: Path) -> None:
    async with open_sqlite_store(tmp_path / "metadata.db") as store:
        for number in range(300):
            await store.exists(f"/{number}", watch=trio.Event())
        assert len(store._seen) <= 101


@pytest.mark.parametrize("processes", [4])
async def test_processes_that_open_a_new_database_together_all_succeed(
    tmp_path: Path, processes: int
) -> None:
    database = tmp_path / "metadata.db"
    sessions: set[int] = set()

    async def open_one() -> None:
        async with open_sqlite_store(database) as store:
            sessions.add(store.session_id)
            await store.create("/n", sequential=True)

    async with trio.open_nursery() as nursery:
        for _ in range(processes):
            nursery.start_soon(open_one)
    assert len(sessions) == processes
    async with open_sqlite_store(database) as store:
        assert len((await store.children("/")).names) == processes
