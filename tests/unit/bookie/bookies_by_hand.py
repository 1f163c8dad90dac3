"""Bookies that are admitted, repair themselves, can be stopped, wiped, put back; reached through pipes."""

from __future__ import annotations

import functools
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from bookie.admission import Admission, AdmissionConfig, begin_admission
from bookie.cookie import Cookie
from bookie.disk import Disk, RealDisk
from bookie.integrity import IntegrityConfig, IntegrityRepair
from bookie.run import Bookie, open_bookie
from bookie.storage_config import StorageConfig
from ledger.client import LedgerClient, open_ledger_client
from ledger.config import ClientConfig
from ledger.dial import Address
from ledger.paths import Layout, available_path, cookie_path
from ledger.pipe import PipeStream, stream_pair
from ledger.transport_config import TransportConfig
from namespace.memory import MemoryStore, MemoryTree, open_memory_store

ROOT = "/ledgers"
LAYOUT = Layout.HIERARCHICAL
CLIENT = ClientConfig(
    transport=TransportConfig(connect_timeout_s=2, request_timeout_s=5),
    unavailable_patience_s=1,
    recovery_denial_grace_s=0.05,
)
INTEGRITY = IntegrityConfig(pause_s=0.05, pause_max_s=0.2)


@attrs.define(eq=False)
class Life:
    """One process of one bookie."""

    bookie: Bookie
    admission: Admission
    limbo_count: int
    nursery: trio.Nursery
    repair: IntegrityRepair
    repaired: trio.Event


class Bookies:
    """Made by ``open_bookies``."""

    def __init__(self, path: Path, tree: MemoryTree, store: MemoryStore, nursery: trio.Nursery) -> None:
        self.up: dict[str, Life] = {}
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
        return StorageConfig(journal_directories=(directory / "j",), ledger_directories=(directory / "l",))

    async def begin(self, name: str, disk: Disk | None = None, **more: object) -> Admission:
        """Only the first half of a start."""
        return await begin_admission(
            self.store,
            ROOT,
            LAYOUT,
            disk or RealDisk(),
            self.cookie(name),
            self.storage_config(name),
            config=AdmissionConfig(**more),  # type: ignore[arg-type]
        )

    async def start(self, name: str, *, repairs: bool = True, **more: object) -> Life:
        """Until it serves; ``repairs=False``: what is in limbo stays so."""
        self._stops[name], self._gone[name] = trio.Event(), trio.Event()
        await self._nursery.start(functools.partial(self._run, name, repairs, more))
        await self.store.create(available_path(ROOT, name), ephemeral=True, parents=True)
        return self.up[name]

    async def _run(
        self, name: str, repairs: bool, more: dict[str, object], *, task_status: trio.TaskStatus[None]
    ) -> None:
        try:
            admission = await self.begin(name, **more)
            storage_config = attrs.evolve(self.storage_config(name), accepts_losses=admission.accepts_losses)
            async with open_bookie(storage_config) as bookie:
                count = await admission.complete(bookie.storage)
                repair = IntegrityRepair(bookie.storage, name, self.open_client, INTEGRITY)
                async with trio.open_nursery() as nursery:
                    self.up[name] = life = Life(bookie, admission, count, nursery, repair, trio.Event())

                    async def run_repair() -> None:
                        await repair.run()
                        life.repaired.set()

                    if repairs:
                        nursery.start_soon(run_repair)
                    task_status.started()
                    await self._stops[name].wait()
                    nursery.cancel_scope.cancel()
            await admission.stopped()
        finally:
            self.up.pop(name, None)
            self._gone[name].set()

    async def stop(self, name: str) -> None:
        self._stops[name].set()
        await self._gone[name].wait()
        await self.store.delete(available_path(ROOT, name))

    async def replace(self, name: str, **more: object) -> Life:
        """Stop it if it runs; an operator forgets its cookie and starts an empty one of this name."""
        if name in self.up:
            await self.stop(name)
        shutil.rmtree(self.directory(name))
        await self.store.delete(cookie_path(ROOT, name))
        return await self.start(name, **more)

    @asynccontextmanager
    async def open_client(self) -> AsyncIterator[LedgerClient]:
        async with (
            open_memory_store(self._tree) as store,
            open_ledger_client(store, self.dial, CLIENT, root=ROOT, rng=random.Random(3)) as client,
        ):
            yield client

    async def dial(self, address: Address) -> PipeStream:
        await trio.lowlevel.checkpoint()
        life = self.up.get(str(address))
        if life is None:
            raise OSError(f"{address} refuses connections")
        ours, theirs = stream_pair()
        life.nursery.start_soon(functools.partial(life.bookie.serve_stream, theirs))
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
async def open_bookies(path: Path, *names: str) -> AsyncIterator[Bookies]:
    """A cluster of these bookies; started."""
    tree = MemoryTree()
    async with open_memory_store(tree) as store, trio.open_nursery() as nursery:
        await store.create(f"{ROOT}/LAYOUT", LAYOUT.text, parents=True)
        bookies = Bookies(path, tree, store, nursery)
        for name in names:
            await bookies.start(name)
        yield bookies
        for name in list(bookies.up):
            await bookies.stop(name)
