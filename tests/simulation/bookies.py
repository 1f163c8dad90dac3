"""A bookie in the world: a machine that outlives its processes.

Inside: ``BookieMachine``, the real service, server, storage, cookie check, registration, garbage collection
and fullness rule over simulated disk, network and metadata store; starting, stopping, killing it.
Not inside: what is watched of its connections (``watched_session``), when to do any of it.
Always: after a kill nothing the process still does has an effect. A bookie that was not damaged starts again.

Left out of ``bookie.run``: sockets, the configuration file.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio
from crc32c import crc32c

from bookie.admission import AdmissionConfig, begin_admission
from bookie.cluster_root import prepare_cluster_root
from bookie.compaction_rules import CompactionConfig
from bookie.cookie import Cookie
from bookie.errors import (
    BookieServerError,
    CookieError,
    EntryUnreadableError,
    NoEntryError,
    NoLedgerError,
    RegistrationError,
    StartError,
    StorageFailedError,
)
from bookie.fullness import FullnessConfig, judge
from bookie.gc import GarbageCollector, GcConfig
from bookie.index_kinds import IndexConfig, IndexKind
from bookie.integrity import IntegrityConfig, IntegrityRepair
from bookie.journal_files import JournalConfig
from bookie.live_ledgers import LiveLedgers, ServedLedgers
from bookie.page_index import PageIndexConfig
from bookie.registration import Registration
from bookie.server import Server
from bookie.server_config import ServerConfig
from bookie.service import BookieService
from bookie.storage import Storage, open_storage
from bookie.storage_config import StorageConfig
from ledger.client import LedgerClient, open_ledger_client
from ledger.paths import Layout
from namespace.errors import NamespaceError
from tests.simulation.disk import ProcessDisk
from tests.simulation.history import BookieStarted, Crashed
from tests.simulation.loop import OWNER
from tests.simulation.metadata import SESSION_TIMEOUT_S, SimStore
from tests.simulation.network import Node
from tests.simulation.platter import Platter
from tests.simulation.watched_session import Promises, WatchedService, WatchedSession

if TYPE_CHECKING:
    from tests.simulation.shape import Shape
    from tests.simulation.world import World

ROOT = "/ledgers"
RESTART_S = 1.0  # a supervisor starts a bookie again that has ended by itself
FULLNESS = FullnessConfig(check_interval_s=1.5, high_priority_bytes_min=1 << 34)
JOURNALS = (Path("/journal0"), Path("/journal1"))
LEDGERS = (Path("/ledgers0"), Path("/ledgers1"))
PAGES = IndexConfig(
    kind=IndexKind.PAGES, pages=PageIndexConfig(page_bytes=512, pages_max=4, open_files_max=2)
)
ADMISSION = AdmissionConfig(raise_interval_s=2.0)
INTEGRITY = IntegrityConfig(pause_s=0.5, pause_max_s=4.0, run_bytes_max=4096)


def storage_config(shape: Shape) -> StorageConfig:
    """Small files and caches: what takes days elsewhere happens in seconds here."""
    journals: Any = JOURNALS[: shape.journals]  # mypy takes the converter's type variable literally
    ledgers: Any = LEDGERS[: shape.ledger_directories]
    return StorageConfig(
        journal_directories=journals,
        ledger_directories=ledgers,
        journal=JournalConfig(
            file_bytes_max=shape.journal_bytes,
            preallocate_bytes=16 << 10,
            group_bytes_max=8 << 10,
            spare_files_max=1,
        ),
        write_cache_bytes_max=64 << 10,
        entry_log_bytes_max=shape.entry_log_bytes,
        index=PAGES if shape.has_page_index else IndexConfig(),
        flush_interval_s=shape.flush_interval_s,
        compaction=CompactionConfig(
            minor_interval_s=shape.gc_interval_s,
            major_interval_s=2 * shape.gc_interval_s,
            slice_bytes=4096,
            reserve_bytes=0,
        ),
    )


class BookieMachine:
    """A machine with a disk and a name, and the bookie process on it, if one runs."""

    def __init__(self, world: World, name: str, platter: Platter) -> None:
        self.world, self.name, self.platter = world, name, platter
        self.promises = Promises()
        self.wall_offset_ms = 0
        self.is_damaged = False  # has lost data, or has been given up
        self.is_given_up = False  # it does not start any more, and need not
        self.unwitnessed: set[int] = set()  # of these ledgers a power cut would hide a loss
        self.ignores_cookies = False  # a known bug
        self.refusal_chance = 0.0  # of each add
        self._is_forced_read_only = False
        self._has_lost_memory = False
        self._has_room = True
        self.store: SimStore | None = None
        self.storage: Storage | None = None
        self._config = storage_config(world.shape)
        self._disk: ProcessDisk | None = None
        self._scope: trio.CancelScope | None = None
        self._service: WatchedService | None = None
        self._wanted = trio.Event()
        self._stop = trio.Event()
        self.lives = 0

    @property
    def is_running(self) -> bool:
        """A process is there; it may still be starting."""
        return self._scope is not None

    @property
    def is_serving(self) -> bool:
        return self.storage is not None

    def session_is_alive(self, session: WatchedSession) -> bool:
        return session._service is self._service and self._disk is not None and not self._disk.is_gone

    def wall_ms(self) -> int:
        """The machine's own idea of the date."""
        return self.world.wall_ms() + self.wall_offset_ms

    def lose_memory(self) -> None:
        """Another machine takes this one's name, or its disk was put back."""
        self._has_lost_memory = True

    def _named_in(self) -> set[int]:
        """The ledgers whose metadata name this bookie now."""
        return {
            ledger_id
            for ledger_id, metadata in self.world._metadata.items()
            if any(self.name in ensemble.bookies for ensemble in metadata.ensembles)
        }

    def _forget_promises(self, kept: set[int]) -> None:
        """Promises stand, but of ledgers whose metadata do not name this bookie any more: who would know?"""
        if self._has_lost_memory:
            self._has_lost_memory = False
            self.forget_promises(self.promises.ledger_ids - kept)

    def forget_promises(self, ledger_ids: Collection[int]) -> None:
        """Of these ledgers."""
        promises = self.promises
        promises.fences.difference_update(ledger_ids)
        for places in (promises.denials, promises.acknowledged):
            places.difference_update([place for place in places if place[0] in ledger_ids])

    def read_only(self, forced: bool) -> None:
        """An operator makes the bookie read-only, or lets it take writes again."""
        self._is_forced_read_only = forced
        if self._service is not None:
            self._service.rights.writable = self._has_room and not forced

    def draw_refusal(self) -> None:
        """Take the next add or refuse it: one and not the other of a run, and nobody is told beforehand."""
        service = self._service
        if service is not None and self._has_room and not self._is_forced_read_only:
            service.rights.writable = self.platter.rng.random() >= self.refusal_chance
            self.world.counts["refused adds"] += not service.rights.writable

    def accept_adds(self) -> None:
        """No more refusals."""
        self.refusal_chance = 0.0
        self.read_only(self._is_forced_read_only)

    def start(self) -> None:
        """Let a process run, now or as soon as the last one is gone."""
        if not self.is_given_up:
            self._wanted.set()

    def stop(self) -> None:
        """Ask the process to end in an orderly way."""
        if self._scope is not None:
            self.world.trace.note(self.name, "is asked to stop")
            self._wanted = trio.Event()
            self._stop.set()

    def kill(self, *, power: bool = False) -> None:
        """End the process at once; with ``power``, what was not synced is at the mercy of chance."""
        if self._wanted.is_set():
            self._wanted = trio.Event()
        if self._scope is not None:
            self.world.trace.note(self.name, "loses power" if power else "is killed")
            assert self._disk is not None
            self._disk.die()
            self.world.network.cut_off(self.world.network.nodes[self.name], silently=power)
            if self.store is not None:
                self.store.abandon()
            self.storage = None
            self._scope.cancel()
        self.platter.troubles.cut_at_step = None
        if power:
            self.platter.cut_power()
            self.world.excuse(self)

    async def live(self) -> None:
        """One process after the other, as ``start`` allows."""
        OWNER.set(self.name)
        while True:
            await self._wanted.wait()
            self._stop = trio.Event()
            ended_by: BaseException | None = None
            with trio.CancelScope() as self._scope:
                try:
                    await self._run()
                except* (
                    BookieServerError,
                    NamespaceError,
                    OSError,
                ) as group:
                    ended_by = _only_cause(group)
                except* Exception as group:
                    cause = _only_cause(group)
                    if self._disk is None or not self._disk.is_gone:
                        self.world.observe(Crashed(self.world.now(), self.name, _told(cause)))
            self._clean_up()
            if ended_by is not None and self._wanted.is_set():
                self._ended(ended_by)
                await trio.sleep(RESTART_S)

    def _clean_up(self) -> None:
        if self._disk is not None:
            self._disk.die()
        if self.store is not None:
            self.store.abandon()
        node = self.world.network.nodes[self.name]
        if node.is_up:
            self.world.network.cut_off(node, silently=False)
        self._scope = self._disk = self._service = self.storage = self.store = None

    def _ended(self, cause: BaseException) -> None:
        self.world.trace.note(self.name, f"ends: {type(cause).__name__}: {cause}")
        if isinstance(cause, StorageFailedError):
            root: BaseException | None = cause
            while root is not None and not isinstance(root, OSError):
                root = root.__cause__
            if root is None:
                self.world.observe(Crashed(self.world.now(), self.name, _told(cause)))
            elif self.is_damaged and self.world.injector.is_over:
                self._give_up()  # a block of its index that a flush needs: it fails at each start
        elif isinstance(cause, CookieError | StartError):
            if self.is_damaged:
                self._give_up()
            else:
                self.world.observe(Crashed(self.world.now(), self.name, _told(cause)))
        elif self.is_damaged and self.world.injector.is_over:
            self._give_up()  # its index cannot be read: it says so, and says it again

    def _give_up(self) -> None:
        self.world.trace.note(self.name, "is given up")
        self.world.counts["bookie that knows of its damage"] += 1
        self.is_given_up = True
        self.world.bookie_changed()
        self._wanted = trio.Event()

    async def _run(self) -> None:
        world = self.world
        self.lives += 1
        node = world.network.join(self.name)
        self._disk = disk = ProcessDisk(self.platter, lambda: node.running if node.is_paused else None)
        self.store = store = world.new_session(node)
        world.trace.note(self.name, f"starts, life {self.lives}")
        layout = await prepare_cluster_root(store, ROOT, Layout.HIERARCHICAL)
        config = self._config
        journals, ledgers = map(str, config.journal_directories), map(str, config.ledger_directories)
        cookie = Cookie(self.name, tuple(journals), tuple(ledgers))
        admission = None
        named = self._named_in()
        if not self.ignores_cookies:
            admission = await begin_admission(
                store, ROOT, layout, disk, cookie, self._config, config=ADMISSION
            )
        async with open_storage(disk, self._config, wall_ms=self.wall_ms) as storage:
            if admission is not None:
                count = await admission.complete(storage)
                if count:
                    world.trace.note(self.name, f"has {count} ledgers in limbo: {admission.doubt}")
                    world.counts["start with ledgers in limbo"] += 1
            self._service = service = WatchedService(storage, machine=self)
            server = Server(service, ServerConfig(), wall_ms=self.wall_ms)
            self._forget_promises(named & self._named_in())
            await self._tell_start(storage)
            registration = Registration(store, ROOT, self.name, b"", wait_s=SESSION_TIMEOUT_S, reopen_s=20.0)
            failure: BaseException | None = None
            async with trio.open_nursery() as nursery:

                async def watch() -> None:
                    nonlocal failure
                    failure = await storage.wait_failed()
                    nursery.cancel_scope.cancel()

                def accept(stream: trio.abc.Stream) -> None:
                    nursery.start_soon(server.serve_stream, stream)

                nursery.start_soon(watch)
                node.accept = accept
                await registration.announce(read_only=False)
                self.storage = storage
                world.bookie_changed()
                nursery.start_soon(registration.keep, lambda: world.session_of(self, node))
                nursery.start_soon(self._watch_disk, disk, service, registration)
                live = LiveLedgers(lambda: registration.store, ROOT, layout, self.name, None)
                nursery.start_soon(self._collect, service, live)
                if admission is not None:
                    nursery.start_soon(admission.keep, lambda: registration.store, lambda: storage.progress)
                nursery.start_soon(self._repair, storage, node)
                await self._stop.wait()
                with trio.move_on_after(2):
                    await registration.withdraw()
                node.accept = None
                await server.drain(timeout_s=3.0)
                self.storage = None
                nursery.cancel_scope.cancel()
            if failure is not None:
                raise StorageFailedError(f"the storage failed: {failure}") from failure
        if admission is not None:
            await admission.stopped()
        world.trace.note(self.name, "has stopped")

    async def _repair(self, storage: Storage, node: Node) -> None:
        rng = random.Random(f"repair {self.name} {self.lives} {self.world.shape.seed}")
        repair = IntegrityRepair(storage, self.name, lambda: self._open_client(node, rng), INTEGRITY)
        await repair.run()
        if repair.figures.ledgers_repaired:
            self.world.trace.note(self.name, f"has nothing in limbo any more: {repair.figures}")
            self.world.counts["limbo that ended"] += 1

    @asynccontextmanager
    async def _open_client(self, node: Node, rng: random.Random) -> AsyncIterator[LedgerClient]:
        from tests.simulation.clients import client_config

        world = self.world
        store = world.new_session(node)
        try:
            async with open_ledger_client(
                store,
                lambda address: world.network.dial(node, address),
                client_config(2),
                root=ROOT,
                rng=rng,
                wall_ms=self.wall_ms,
            ) as client:
                yield client
        finally:
            store.abandon()

    async def _tell_start(self, storage: Storage) -> None:
        fenced = frozenset(i for i in storage.ledger_ids() if storage.ledger(i).fenced)  # type: ignore[union-attr]
        wrong = [] if self.lives == 1 else [text async for text in self._wrong_entries(storage)]
        deleted = self.world.deleted
        self.world.observe(
            BookieStarted(
                self.world.now(),
                self.name,
                frozenset(self.promises.fences - deleted),
                fenced,
                tuple(wrong),
            )
        )

    async def _wrong_entries(self, storage: Storage):  # type: ignore[no-untyped-def]
        for ledger_id in storage.ledger_ids():
            try:
                entry_ids = await storage.entry_ids(ledger_id)
            except (EntryUnreadableError, OSError):
                continue  # its index cannot be read: it will say so whenever it is asked
            for entry_id in entry_ids:
                try:
                    body = await storage.read(ledger_id, entry_id)
                except (EntryUnreadableError, NoEntryError, NoLedgerError, OSError):
                    continue
                if not self.is_damaged and crc32c(body) not in self.promises.sent.get(
                    (ledger_id, entry_id), ()
                ):
                    which = f"entry {ledger_id}:{entry_id} of {len(body)} bytes"
                    yield f"{which}, {body[:60]!r}, which nobody sent"

    async def _watch_disk(
        self, disk: ProcessDisk, service: BookieService, registration: Registration
    ) -> None:
        writable = self._has_room = True
        while True:
            await trio.sleep(FULLNESS.check_interval_s)
            usages = [await disk.run(disk.usage, path) for path in self._config.ledger_directories]
            judged = judge(
                [(usage.total_bytes, usage.free_bytes) for usage in usages],
                was_writable=self._has_room,
                config=FULLNESS,
            )
            self._has_room = judged.writable
            now_writable = self._has_room and not self._is_forced_read_only
            service.rights.writable = now_writable
            service.rights.high_priority_writable = judged.high_priority_writable
            if now_writable != writable:
                try:
                    if now_writable:
                        await registration.become_writable()
                    else:
                        await registration.become_read_only()
                except (NamespaceError, RegistrationError):
                    continue  # at the next look
                writable = now_writable
                self.world.trace.note(self.name, "is writable" if writable else "is read-only")

    async def _collect(self, service: BookieService, live: LiveLedgers) -> None:
        shape = self.world.shape
        await GarbageCollector(
            ServedLedgers(service),
            live,
            config=GcConfig(interval_s=shape.gc_interval_s),
            compaction=self._config.compaction,
        ).run()


def _only_cause(group: BaseException) -> BaseException:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


def _told(error: BaseException) -> str:
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    where = "; ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames[-4:])
    return f"{type(error).__name__}: {error} [{where}]"
