"""A bookie whose metadata store loses its connection during the start."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from bookie.cluster import startup_check
from bookie.main import run_bookie
from ledger.catalog import connection_retry
from ledger.codes import Code
from ledger.metadata_store.errors import ConnectionLostError
from ledger.metadata_store.memory import MemoryStore, MemoryTree, open_memory_store
from ledger.wire.messages import AddReply
from tests.unit.bookie.test_main import MACHINE, add_one, config_for

CALLS = ("exists", "get", "create", "put", "sync")


class Losing(MemoryStore):
    """The first call of each kind for each node loses its connection, before or after it is applied."""

    def __init__(self, tree: MemoryTree, *, applies: bool) -> None:
        super().__init__(tree)
        self._applies = applies
        self.lost: set[tuple[str, str]] = set()

    async def lose(self, call: str, path: str, *arguments: Any, **more: Any) -> Any:
        is_first = (call, path) not in self.lost
        self.lost.add((call, path))
        if is_first and not self._applies:
            raise ConnectionLostError(path, "before it was applied")
        result = await getattr(MemoryStore, call)(self, path, *arguments, **more)
        if is_first:
            raise ConnectionLostError(path, "the reply was lost")
        return result

    def __getattribute__(self, name: str) -> Any:
        return partial(self.lose, name) if name in CALLS else super().__getattribute__(name)


async def start_and_add(directory: Path, tree: MemoryTree, *, applies: bool) -> set[tuple[str, str]]:
    lost: set[tuple[str, str]] = set()

    @asynccontextmanager
    async def open_losing() -> AsyncIterator[MemoryStore]:
        losing = Losing(tree, applies=applies)
        yield losing
        lost.update(losing.lost)
        await losing.aclose()

    stop = trio.Event()
    run = partial(
        run_bookie,
        config_for(directory, "bookieId=mine\n"),
        open_store=open_losing,
        stop=stop,
        machine=MACHINE,
    )
    async with trio.open_nursery() as nursery:
        port: int = await nursery.start(lambda *, task_status: run(task_status=task_status))
        async with open_memory_store(tree) as store:
            assert await store.exists("/ledgers/available/mine") is not None
        assert await add_one(port) == AddReply(Code.OK, 1, 0)
        stop.set()
    return lost


@pytest.mark.slow
@pytest.mark.parametrize("applies", [True, False])
async def test_a_lost_connection_does_not_end_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, applies: bool
) -> None:
    monkeypatch.setattr(connection_retry, "RETRY_PAUSE_S", 0)
    tree = MemoryTree()
    for _ in ("first start", "later start"):
        lost = await start_and_add(tmp_path, tree, applies=applies)
        cookie = "/ledgers/cookies/mine"
        assert {("get", cookie), ("put", cookie), ("create", "/ledgers/available/mine")} <= lost
        assert {("get", "/ledgers/LAYOUT"), ("get", "/ledgers/INSTANCEID"), ("sync", "/ledgers")} <= lost


async def test_a_start_ends_if_the_store_stays_out_of_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup_check, "START_RETRY_S", 0)

    class Unreachable(MemoryStore):
        async def get(self, path: str, *, watch: trio.Event | None = None) -> Any:
            if path.startswith("/ledgers/cookies"):
                raise ConnectionLostError(path, "out of reach")
            return await super().get(path, watch=watch)

    @asynccontextmanager
    async def open_unreachable() -> AsyncIterator[MemoryStore]:
        yield Unreachable(MemoryTree())

    with pytest.raises(ConnectionLostError):
        await run_bookie(config_for(tmp_path), open_store=open_unreachable, machine=MACHINE)
