"""A cluster of bookies in this process, with start-up check and repair; clients reach them through pipes."""

from __future__ import annotations

import functools
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from bookie.bookie import Bookie, open_bookie
from bookie.cluster.startup_check import StartupCheck, StartupCheckConfig, begin_startup_check
from bookie.disk.real_disk import RealDisk
from bookie.healing.integrity import IntegrityConfig, IntegrityRepair
from bookie.identity.cookie import Cookie
from bookie.index.index_factory import IndexConfig
from bookie.ledger_metadata.cluster_nodes import ClusterNodes
from bookie.ledger_metadata.gone_ledgers import GoneLedgers
from bookie.ledger_metadata.live_ledgers import LiveLedgers, ServedLedgers
from bookie.storage.config import StorageConfig
from ledger.catalog.paths import Layout, available_path, cookie_path
from ledger.client import LedgerClient, open_ledger_client
from ledger.config import ClientConfig
from ledger.context import ClientSeams
from ledger.metadata_store.memory import MemoryStore, MemoryTree, open_memory_store
from ledger.transport.config import TransportConfig
from ledger.transport.dial import Address
from ledger.transport.pipe import PipeStream, stream_pair

ROOT = "/ledgers"
LAYOUT = Layout.HIERARCHICAL
CLIENT = ClientConfig(
    transport=TransportConfig(connect_timeout_s=10, request_timeout_s=5),
    unavailable_timeout_s=1,
    recovery_denial_grace_s=0.05,
)
INTEGRITY = IntegrityConfig(pause_s=0.05, pause_max_s=0.2)
STARTUP_CHECK = StartupCheckConfig()


@attrs.define(eq=False)
class RunningBookie:
    """One process of one bookie."""

    bookie: Bookie
    startup_check: StartupCheck
    limbo_count: int
    nursery: trio.Nursery
    repair: IntegrityRepair
    repaired: trio.Event


class Bookies:
    """The bookies of one cluster. Made by ``open_bookies``."""

    def __init__(
        self,
        path: Path,
        tree: MemoryTree,
        store: MemoryStore,
        nursery: trio.Nursery,
        index: IndexConfig,
    ) -> None:
        self.index = index
        self.up: dict[str, RunningBookie] = {}
        self.store = store
        self._path, self._tree, self._nursery = path, tree, nursery
        self._stops: dict[str, trio.Event] = {}
        self._gone: dict[str, trio.Event] = {}

    def directory(self, name: str) -> Path:
        return self._path / name.partition(":")[0]

    def cookie(self, name: str) -> Cookie:
        directory = self.directory(name)
        return Cookie(name, (f"{directory}/j",), (f"{directory}/l",), (), "cluster")

    def storage_config(self, name: str) -> StorageConfig:
        directory = self.directory(name)
        return StorageConfig(
            journal_directories=(directory / "j",), ledger_directories=(directory / "l",), index=self.index
        )

    async def begin(self, name: str, config: StartupCheckConfig = STARTUP_CHECK) -> StartupCheck:
        """Do only the first half of a start."""
        return await begin_startup_check(
            ClusterNodes(lambda: self.store, ROOT, LAYOUT),
            RealDisk(),
            self.cookie(name),
            self.storage_config(name),
            config=config,
        )

    async def start(
        self, name: str, *, repairs: bool = True, config: StartupCheckConfig = STARTUP_CHECK
    ) -> RunningBookie:
        """Start a bookie and wait until it serves. ``repairs=False`` leaves its ledgers in limbo."""
        self._stops[name], self._gone[name] = trio.Event(), trio.Event()
        await self._nursery.start(functools.partial(self._run, name, repairs, config))
        await self.store.create(available_path(ROOT, name), ephemeral=True, parents=True)
        return self.up[name]

    async def _run(
        self, name: str, repairs: bool, config: StartupCheckConfig, *, task_status: trio.TaskStatus[None]
    ) -> None:
        try:
            startup_check = await self.begin(name, config)
            storage_config = attrs.evolve(
                self.storage_config(name), accepts_losses=startup_check.accepts_losses
            )
            async with open_bookie(storage_config) as bookie:
                count = await startup_check.complete(bookie.storage)
                gone = GoneLedgers(
                    LiveLedgers(ClusterNodes(lambda: self.store, ROOT, LAYOUT), name, None),
                    ServedLedgers(bookie.service),
                )
                repair = IntegrityRepair(bookie.storage, name, self.open_client, gone, INTEGRITY)
                async with trio.open_nursery() as nursery:
                    self.up[name] = running = RunningBookie(
                        bookie, startup_check, count, nursery, repair, trio.Event()
                    )

                    async def run_repair() -> None:
                        await repair.run()
                        running.repaired.set()

                    if repairs:
                        nursery.start_soon(run_repair)
                    task_status.started()
                    await self._stops[name].wait()
                    nursery.cancel_scope.cancel()
            await startup_check.mark_clean_stop()
        finally:
            self.up.pop(name, None)
            self._gone[name].set()

    async def stop(self, name: str) -> None:
        self._stops[name].set()
        await self._gone[name].wait()
        await self.store.delete(available_path(ROOT, name))

    async def replace(
        self, name: str, *, repairs: bool = True, config: StartupCheckConfig = STARTUP_CHECK
    ) -> RunningBookie:
        """Delete the bookie's disks and its cookie, and start a new bookie with the same id."""
        if name in self.up:
            await self.stop(name)
        shutil.rmtree(self.directory(name))
        await self.store.delete(cookie_path(ROOT, name))
        return await self.start(name, repairs=repairs, config=config)

    @asynccontextmanager
    async def open_client(self) -> AsyncIterator[LedgerClient]:
        async with (
            open_memory_store(self._tree) as store,
            open_ledger_client(
                store, self.dial, CLIENT, root=ROOT, seams=ClientSeams(rng=random.Random(3))
            ) as client,
        ):
            yield client

    async def dial(self, address: Address) -> PipeStream:
        await trio.lowlevel.checkpoint()
        running = self.up.get(str(address))
        if running is None:
            raise OSError(f"{address} refuses connections")
        ours, theirs = stream_pair()
        running.nursery.start_soon(functools.partial(running.bookie.serve_stream, theirs))
        return ours

    async def entry_ids(self, name: str, ledger_id: int) -> list[int]:
        return await self.up[name].bookie.storage.entry_ids(ledger_id)

    def is_in_limbo(self, name: str, ledger_id: int) -> bool:
        record = self.up[name].bookie.storage.ledger(ledger_id)
        return record is not None and record.limbo

    def is_fenced(self, name: str, ledger_id: int) -> bool:
        record = self.up[name].bookie.storage.ledger(ledger_id)
        return record is not None and record.fenced


@asynccontextmanager
async def open_bookies(path: Path, *names: str, index: IndexConfig | None = None) -> AsyncIterator[Bookies]:
    """Start a cluster of these bookies. ``index``: of each of them."""
    tree = MemoryTree()
    async with open_memory_store(tree) as store, trio.open_nursery() as nursery:
        await store.create(f"{ROOT}/LAYOUT", LAYOUT.text, parents=True)
        bookies = Bookies(path, tree, store, nursery, index or IndexConfig())
        for name in names:
            await bookies.start(name)
        yield bookies
        for name in list(bookies.up):
            await bookies.stop(name)
