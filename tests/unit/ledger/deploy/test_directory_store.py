"""The store of a directory: its session is replaced when its lock file was removed, its file never."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from ledger.deploy.embedded import open_directory_store
from ledger.metadata_store.errors import ConnectionLostError, SessionExpiredError
from ledger.metadata_store.lock import DistributedLock
from ledger.metadata_store.sessions.renewing_store import RenewingStore
from ledger.metadata_store.sqlite_store.store import open_sqlite_store
from ledger.metadata_store.store import SessionState


async def end_session(store: RenewingStore, database: Path) -> None:
    """Remove the lock file of the session, as a program that cleans up does, and let a process notice."""
    (database.with_name(f"{database.name}-sessions") / f"{store.session_id}.lock").unlink()
    async with open_sqlite_store(database) as other:
        await other.sync("/")


async def notice(store: RenewingStore) -> None:
    while True:
        try:
            await store.sync("/")
        except ConnectionLostError:
            return


@pytest.mark.slow
async def test_a_session_whose_lock_file_was_removed_is_replaced(tmp_path: Path) -> None:
    database = tmp_path / "metadata.sqlite"
    with trio.fail_after(60):
        async with open_directory_store(database) as store:
            await store.create("/a", b"1")
            await store.create("/mine", ephemeral=True)
            before, watch = store.session_id, trio.Event()
            await store.get("/a", watch=watch)
            for _ in range(2):
                await end_session(store, database)
                await watch.wait()  # nothing but the watch looks for changes
                if store.state is not SessionState.CONNECTED:
                    await store.wait_state_change(store.state)
                assert store.session_id > before
                assert (await store.get("/a")).value == b"1"
                assert await store.exists("/mine") is None
                before, watch = store.session_id, trio.Event()
                await store.get("/a", watch=watch)
        async with open_sqlite_store(database) as after:
            locks = os.listdir(tmp_path / "metadata.sqlite-sessions")
            assert sorted(locks) == [f"{after.session_id}.lock", "opening"]


async def test_a_lock_ends_with_its_session_and_can_be_acquired_in_the_next(tmp_path: Path) -> None:
    database = tmp_path / "metadata.sqlite"
    with trio.fail_after(60):
        async with open_directory_store(database) as store:
            await store.create("/lock")
            lock = DistributedLock(store, "/lock", "me")
            await lock.acquire(0)
            await end_session(store, database)
            await lock.wait_lost()
            assert not lock.held
            with pytest.raises(SessionExpiredError):
                await lock.session.create("/x")
            if store.state is not SessionState.CONNECTED:
                await store.wait_state_change(store.state)
            again = DistributedLock(store, "/lock", "me")
            await again.acquire(0)
            assert again.held


async def test_a_store_whose_file_was_removed_says_so_and_makes_none(tmp_path: Path) -> None:
    database = tmp_path / "here" / "metadata.sqlite"
    with trio.fail_after(60):
        async with open_directory_store(database) as store, open_sqlite_store(database) as other:
            database.parent.rename(tmp_path / "elsewhere")
            with pytest.raises(SessionExpiredError):
                await other.sync("/")
            with pytest.raises(SessionExpiredError, match="the file was removed while it was open"):
                await store.get("/")
            assert store.state is SessionState.EXPIRED
            with pytest.raises(SessionExpiredError):
                store.current_session()
            assert not database.parent.exists()


async def test_a_store_whose_file_was_replaced_says_so_and_writes_nothing_there(tmp_path: Path) -> None:
    database = tmp_path / "here" / "metadata.sqlite"
    with trio.fail_after(60):
        async with open_directory_store(database) as store, open_sqlite_store(database) as other:
            await store.create("/ours")
            database.parent.rename(tmp_path / "elsewhere")
            async with open_sqlite_store(database):
                pass  # the session there that has the number of ours
            async with open_sqlite_store(database) as another:
                for each in (other, store):
                    with pytest.raises(SessionExpiredError, match="another file replaced it"):
                        await each.create("/theirs")
                assert store.state is SessionState.EXPIRED
                assert (await another.children("/")).names == ()
                sessions = os.listdir(database.with_name("metadata.sqlite-sessions"))
                assert sorted(sessions) == [f"{another.session_id}.lock", "opening"]


async def test_closing_a_store_whose_file_was_removed_is_no_error(tmp_path: Path) -> None:
    database = tmp_path / "here" / "metadata.sqlite"
    async with open_directory_store(database):
        database.parent.rename(tmp_path / "elsewhere")
    assert not database.parent.exists()
