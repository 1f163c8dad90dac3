"""A bookie whose disk was lost gets its entries back on an empty one, or nothing is changed."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from bookie.config.classes import BookieConfig
from bookie.disk_replacement import Copying, DiskReplacement
from bookie.errors import BookieConfigError, CookieError
from bookie.main import run_bookie
from ledger.catalog.paths import cookie_path
from ledger.client import LedgerClient, open_ledger_client
from ledger.errors import BookieInUseError
from ledger.metadata_store.memory import MemoryTree, open_memory_store
from ledger.transport.dial import dial_tcp
from tests.unit.bookie.test_main_disks import MACHINE, config_for

pytestmark = pytest.mark.slow
PAYLOADS = [b"%d" % number * 40 for number in range(30)]
LOST, OTHER = "lost", "other"


def config_of(home: Path, name: str, more: str = "") -> BookieConfig:
    config = config_for(home / name, journals=1, ledgers=2, more=more)
    return attrs.evolve(config, address=attrs.evolve(config.address, bookie_id=name))


async def start(
    config: BookieConfig,
    tree: MemoryTree,
    stop: trio.Event | None = None,
    *,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    await run_bookie(
        config,
        open_store=lambda: open_memory_store(tree),
        stop=stop,
        machine=MACHINE,
        task_status=task_status,
    )


@asynccontextmanager
async def running(config: BookieConfig, tree: MemoryTree) -> AsyncIterator[None]:
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        await nursery.start(start, config, tree, stop)
        yield
        stop.set()


@asynccontextmanager
async def client_of(tree: MemoryTree) -> AsyncIterator[LedgerClient]:
    async with open_memory_store(tree) as store, open_ledger_client(store, dial_tcp) as client:
        yield client


async def written(tree: MemoryTree, home: Path, *, copies: int, is_open: bool = False) -> int:
    """A ledger on both bookies, or on ``LOST`` alone; both are stopped then."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running(config_of(home, LOST), tree))
        if copies == 2:
            await stack.enter_async_context(running(config_of(home, OTHER), tree))
        async with client_of(tree) as client:
            writer = await client.create(ensemble_size=copies, write_quorum=copies, ack_quorum=copies)
            await writer.append_many(PAYLOADS)
            if is_open:
                writer.abandon()
            else:
                await writer.close()
    return writer.ledger_id


def lose_disk(home: Path, *names: str) -> None:
    for name in names or ("journal-0", "ledgers-0", "ledgers-1", "index-0", "index-1"):
        shutil.rmtree(home / LOST / name)


def replacement(tree: MemoryTree, config: BookieConfig, seen: list[Copying] | None = None) -> DiskReplacement:
    seen = [] if seen is None else seen
    return DiskReplacement(
        config, open_store=lambda: open_memory_store(tree), machine=MACHINE, on_progress=seen.append
    )


async def check_alone(tree: MemoryTree, home: Path, ledger_id: int) -> None:
    """Check that the bookie starts as usual, and returns the entries without the other one."""
    async with (
        running(config_of(home, LOST), tree),
        client_of(tree) as client,
        await client.open(ledger_id, recover=False) as reader,
    ):
        entries = await reader.read(0, len(PAYLOADS) - 1)
        assert [entry.payload for entry in entries] == PAYLOADS


@pytest.mark.parametrize("is_open", [False, True])
async def test_an_emptied_bookie_has_all_entries_again_and_is_stopped(tmp_path: Path, is_open: bool) -> None:
    tree, seen = MemoryTree(), list[Copying]()
    with trio.fail_after(60):
        ledger_id = await written(tree, tmp_path, copies=2, is_open=is_open)
        lose_disk(tmp_path)
        async with running(config_of(tmp_path, OTHER), tree):
            done = await replacement(tree, config_of(tmp_path, LOST), seen).run()
        assert (done.is_done, done.bookie_id, done.ledgers) == (True, LOST, 1)
        assert seen[0] == Copying("checking the other bookies", 1, 1)
        assert seen[-1] == Copying("copying", 1, 1)
        await check_alone(tree, tmp_path, ledger_id)


async def test_one_lost_disk_of_several_is_replaced(tmp_path: Path) -> None:
    tree = MemoryTree()
    with trio.fail_after(60):
        ledger_id = await written(tree, tmp_path, copies=2)
        lose_disk(tmp_path, "ledgers-0", "index-0")
        async with running(config_of(tmp_path, OTHER), tree):
            with pytest.raises(CookieError, match="dlog bookie replace-disk --config FILE"):
                await start(config_of(tmp_path, LOST), tree)
            assert (await replacement(tree, config_of(tmp_path, LOST)).run()).is_done
        await check_alone(tree, tmp_path, ledger_id)


async def test_without_other_copies_it_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    tree = MemoryTree()
    with trio.fail_after(60):
        ledger_id = await written(tree, tmp_path, copies=1)
        lose_disk(tmp_path)
        async with running(config_of(tmp_path, OTHER), tree):
            done = await replacement(tree, config_of(tmp_path, LOST)).run()
            assert [one.ledger_id for one in done.refused] == [ledger_id]
            assert not done.is_done
            assert [path for path in (tmp_path / LOST).rglob("*") if path.is_file()] == []
            with pytest.raises(CookieError, match="a disk was lost"):
                await start(config_of(tmp_path, LOST), tree)


async def test_an_interrupted_replacement_continues(tmp_path: Path) -> None:
    tree = MemoryTree()
    with trio.fail_after(60):
        ledger_id = await written(tree, tmp_path, copies=2)
        lose_disk(tmp_path)
        async with running(config_of(tmp_path, OTHER), tree):
            with trio.CancelScope() as scope:

                def stop_copying(now: Copying) -> None:
                    if now.step == "copying":
                        scope.cancel()

                await DiskReplacement(
                    config_of(tmp_path, LOST),
                    open_store=lambda: open_memory_store(tree),
                    machine=MACHINE,
                    on_progress=stop_copying,
                ).run()
            assert scope.cancelled_caught
            assert (await replacement(tree, config_of(tmp_path, LOST)).run()).is_done
        await check_alone(tree, tmp_path, ledger_id)


async def test_a_running_bookie_and_one_without_a_cookie_are_left_alone(tmp_path: Path) -> None:
    tree = MemoryTree()
    with trio.fail_after(60):
        async with running(config_of(tmp_path, LOST), tree):
            with pytest.raises(BookieInUseError, match="registered"):
                await replacement(tree, config_of(tmp_path, LOST)).run()
        async with open_memory_store(tree) as store:
            await store.delete(cookie_path("/ledgers", LOST))
        with pytest.raises(CookieError, match="has no cookie"):
            await replacement(tree, config_of(tmp_path, LOST)).run()


def test_a_bookie_without_limbo_is_refused(tmp_path: Path) -> None:
    config = config_of(tmp_path, LOST, "dataIntegrityChecking=false\n")
    with pytest.raises(BookieConfigError, match="dataIntegrityChecking"):
        replacement(MemoryTree(), config)
