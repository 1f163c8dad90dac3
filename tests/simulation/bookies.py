"""A bookie of a world: a machine that outlives its processes.

Inside: ``BookieMachine``: the real service, server, storage, start-up check, registration, garbage collection
and fullness rule over a simulated disk, network and metadata store; starting, stopping and killing a process.
Not inside: watching its connections (``watched_session``), the times of starts and kills (``injector``).
Always: after a kill no action of the process has an effect. A bookie that was not damaged starts again.

Left out of ``bookie.main``: sockets and the configuration file.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from crc32c import crc32c

from bookie.cluster.cluster_root import prepare_cluster_root
from bookie.cluster.registration import Registration
from bookie.cluster.startup_check import StartupCheckConfig, begin_startup_check
from bookie.disk.fullness import FullnessConfig, evaluate_fullness
from bookie.errors import (
    BookieServerError,
    CookieError,
    EntryUnreadableError,
    NoEntryError,
    NoLedgerError,
    RegistrationError,
    StartError,
    StorageFailedError,
    StorageFileError,
)
from bookie.gc.collector import GarbageCollector, GcConfig
from bookie.gc.compaction_rules import CompactionConfig
from bookie.healing.integrity import IntegrityConfig, IntegrityRepair
from bookie.identity.cookie import Cookie
from bookie.index.index_factory import IndexConfig, IndexKind
from bookie.index.page_cache import PageIndexConfig
from bookie.journal.files import JournalConfig
from bookie.ledger_metadata.cluster_nodes import ClusterNodes
from bookie.ledger_metadata.gone_ledgers import GoneLedgers
from bookie.ledger_metadata.live_ledgers import LiveLedgers, ServedLedgers
from bookie.ledger_metadata.new_ledger_check import NewLedgerCheck
from bookie.requests.new_ledgers import NewLedgers, NewLedgersConfig
from bookie.requests.session import BookieService
from bookie.server.config import ServerConfig
from bookie.server.server import Server
from bookie.storage.config import StorageConfig
from bookie.storage.entry_reads import ReadConfig
from bookie.storage.opening import open_storage
from bookie.storage.storage import Storage
from dlog.testing.disk import ProcessDisk
from dlog.testing.platter import Platter
from ledger.catalog.paths import Layout
from ledger.causes import cause_of
from ledger.client import LedgerClient, open_ledger_client
from ledger.context import ClientSeams
from ledger.metadata_store.errors import MetadataError
from tests.simulation.history import BookieStarted, Crashed
from tests.simulation.loop import OWNER
from tests.simulation.metadata import SESSION_TIMEOUT_S, SimStore
from tests.simulation.network import Node
from tests.simulation.watched_session import Promises, WatchedService, WatchedSession

if TYPE_CHECKING:
    from tests.simulation.shape import Shape
    from tests.simulation.world import World

ROOT = "/ledgers"
RESTART_S = 1.0  # after which the supervisor restarts a bookie that ended by itself
FULLNESS = FullnessConfig(check_interval_s=1.5, high_priority_bytes_min=1 << 34)
JOURNALS = (Path("/journal0"), Path("/journal1"))
LEDGERS = (Path("/ledgers0"), Path("/ledgers1"))
PAGES = IndexConfig(
    kind=IndexKind.PAGES, pages=PageIndexConfig(page_bytes=512, pages_max=4, open_files_max=2)
)
NEW_LEDGERS = NewLedgersConfig(grace_s=1.0)
STARTUP_CHECK = StartupCheckConfig(raise_interval_s=2.0)
INTEGRITY = IntegrityConfig(pause_s=0.5, pause_max_s=4.0, batch_bytes_max=4096)


WRITE_CACHE_BYTES = 64 << 10


def storage_config(shape: Shape) -> StorageConfig:
    """Small files and caches, so that files roll and are compacted within seconds."""
    return StorageConfig(
        journal_directories=JOURNALS[: shape.journals],
        ledger_directories=LEDGERS[: shape.ledger_directories],
        journal=JournalConfig(
            file_bytes_max=shape.journal_bytes,
            preallocate_bytes=16 << 10,
            group_bytes_max=8 << 10,
            spare_files_max=1,
        ),
        write_cache_bytes_max=WRITE_CACHE_BYTES,
        entry_log_bytes_max=shape.entry_log_bytes,
        index=PAGES if shape.has_page_index else IndexConfig(),
        reads=ReadConfig(place_bytes_min=1),
        flush_interval_s=shape.flush_interval_s,
        compaction=CompactionConfig(
            minor_interval_s=shape.gc_interval_s,
            major_interval_s=2 * shape.gc_interval_s,
            slice_bytes=4096,
            reserve_bytes=0,
        ),
    )


class BookieMachine:
    """A machine with a name and a disk, and its bookie process while one runs."""

    def __init__(self, world: World, name: str, platter: Platter) -> None:
        self.world, self.name, self.platter = world, name, platter
        self.promises = Promises()
        self.wall_offset_ms = 0
        self.is_damaged = False  # has lost synced data
        self.is_given_up = False  # is not started again: it reported its damage and ended
        self.unwitnessed: set[int] = set()  # ledgers of which a power cut would hide a loss
        self.ignores_cookies = False  # set by a known bug
        self.refusal_chance = 0.0  # of each add
        self._is_forced_read_only = False
        self._has_lost_memory = False
        self._has_space = True
        self.store: SimStore | None = None
        self.storage: Storage | None = None
        self._config = storage_config(world.shape)
        self._disk: ProcessDisk | None = None
        self._scope: trio.CancelScope | None = None
        self._service: WatchedService | None = None
        self._wanted = trio.Event()
        self._stop = trio.Event()
        self.lives = 0
        self.kills = 0
        self.garbage: GarbageCollector | None = None  # of the running process

    @property
    def is_running(self) -> bool:
        """True while a process exists; it may still be starting."""
        return self._scope is not None

    @property
    def ledger_directories(self) -> tuple[Path, ...]:
        return self._config.ledger_directories

    @property
    def is_serving(self) -> bool:
        return self.storage is not None

    def session_is_alive(self, session: WatchedSession) -> bool:
        return session._service is self._service and self._disk is not None and not self._disk.is_gone

    def wall_ms(self) -> int:
        """The machine's own wall clock."""
        return self.world.wall_ms() + self.wall_offset_ms

    def lose_memory(self) -> None:
        """Record that another machine took this one's name, or that its disk was restored from a copy."""
        self._has_lost_memory = True

    def _named_in(self) -> set[int]:
        """Ids of the ledgers whose metadata name this bookie now."""
        return {
            ledger_id
            for ledger_id, metadata in self.world._metadata.items()
            if any(self.name in ensemble.bookies for ensemble in metadata.ensembles)
        }

    def _forget_promises(self, kept: set[int]) -> None:
        """After a loss of memory, keep the promises for these ledgers only.

        The start-up check learns of its ledgers from metadata. It cannot know of a promise for a ledger whose
        metadata no longer name this bookie.
        """
        if self._has_lost_memory:
            self._has_lost_memory = False
            self.forget_promises(self.promises.ledger_ids - kept)

    def forget_promises(self, ledger_ids: Collection[int]) -> None:
        """Drop all promises for these ledgers."""
        promises = self.promises
        promises.fences.difference_update(ledger_ids)
        for places in (promises.denials, promises.acknowledged):
            places.difference_update([place for place in places if place[0] in ledger_ids])

    def read_only(self, forced: bool) -> None:
        """Make the bookie read-only or writable again, as an operator does."""
        self._is_forced_read_only = forced
        if self._service is not None:
            self._service.rights.writable = self._has_space and not forced

    def draw_refusal(self) -> None:
        """Decide by chance whether the next add is refused; adds before and after it may be taken."""
        service = self._service
        if service is not None and self._has_space and not self._is_forced_read_only:
            service.rights.writable = self.platter.rng.random() >= self.refusal_chance
            self.world.counts["refused adds"] += not service.rights.writable

    def accept_adds(self) -> None:
        """Stop refusing adds by chance."""
        self.refusal_chance = 0.0
        self.read_only(self._is_forced_read_only)

    def start(self) -> None:
        """Start a process now, or as soon as the last one has ended."""
        if not self.is_given_up:
            self._wanted.set()

    def stop(self) -> None:
        """Make the process stop in an orderly way."""
        if self._scope is not None:
            self.world.trace.note(self.name, "is asked to stop")
            self._wanted = trio.Event()
            self._stop.set()

    def kill(self, *, power: bool = False) -> None:
        """End the process at once. With ``power``, unsynced writes may be lost (``Platter.cut_power``)."""
        self.kills += 1
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
        """Run one process after the other, each after a call of ``start``."""
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
                    MetadataError,
                    OSError,
                ) as group:
                    ended_by = only_cause(group)
                except* Exception as group:
                    cause = only_cause(group)
                    if self._disk is None or not self._disk.is_gone:
                        self.world.observe(Crashed(self.world.now(), self.name, describe_error(cause)))
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
                root = cause_of(root)
            if root is None:
                self.world.observe(Crashed(self.world.now(), self.name, describe_error(cause)))
            elif self.is_damaged and self.world.injector.is_over:
                self._give_up()  # each flush needs a damaged block of its index: every start would fail
        elif isinstance(cause, CookieError | StartError) and not isinstance(cause, StorageFileError):
            if self.is_damaged:
                self._give_up()
            else:
                self.world.observe(Crashed(self.world.now(), self.name, describe_error(cause)))
        elif self.is_damaged and self.world.injector.is_over:
            self._give_up()  # its index cannot be read: every start would fail

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
        startup_check = None
        named = self._named_in()
        if not self.ignores_cookies:
            startup_check = await begin_startup_check(
                ClusterNodes(lambda: store, ROOT, layout), disk, cookie, self._config, config=STARTUP_CHECK
            )
        async with open_storage(disk, self._config, wall_ms=self.wall_ms) as storage:
            if startup_check is not None:
                count = await startup_check.complete(storage)
                if count:
                    world.trace.note(self.name, f"has {count} ledgers in limbo: {startup_check.loss_reason}")
                    world.counts["start with ledgers in limbo"] += 1
            if world.files is not None:
                storage.identify_log = world.files.identify_by(self)
            self._service = service = WatchedService(storage, machine=self)
            if storage.full is not None:
                service.rights.hold(takes_records=storage.takes_records)
                world.trace.note(self.name, "was opened on a full disk")
                world.counts["start on a full disk"] += 1
            server = Server(service, ServerConfig(), wall_ms=self.wall_ms)
            self._forget_promises(named & self._named_in())
            await self._report_start(storage)
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
                live = LiveLedgers(ClusterNodes(lambda: registration.store, ROOT, layout), self.name, None)
                nursery.start_soon(self._collect, service, live)
                service.new_ledgers = NewLedgers(NEW_LEDGERS, trio.current_time)
                check = NewLedgerCheck(service.new_ledgers, live.find, ServedLedgers(service).delete_ledgers)
                nursery.start_soon(check.run)
                if startup_check is not None:
                    nursery.start_soon(
                        startup_check.keep_raising_incarnation,
                        lambda: registration.store,
                        lambda: storage.progress,
                    )
                gone = GoneLedgers(live, ServedLedgers(service))
                nursery.start_soon(self._repair, storage, gone, node)
                beside = trio.CancelScope()

                async def run_beside() -> None:
                    with beside:
                        await world.run_beside(self, node)

                nursery.start_soon(run_beside)
                await self._stop.wait()
                beside.cancel()
                with trio.move_on_after(2):
                    await registration.withdraw()
                node.accept = None
                await server.drain(timeout_s=3.0)
                self.storage = None
                nursery.cancel_scope.cancel()
            if failure is not None:
                raise StorageFailedError(f"the storage failed: {failure}") from failure
        if startup_check is not None:
            await startup_check.mark_clean_stop()
        world.trace.note(self.name, "has stopped")

    async def _repair(self, storage: Storage, gone: GoneLedgers, node: Node) -> None:
        rng = random.Random(f"repair {self.name} {self.lives} {self.world.shape.seed}")
        repair = IntegrityRepair(storage, self.name, lambda: self._open_client(node, rng), gone, INTEGRITY)
        await repair.run()
        if repair.stats.ledgers_repaired:
            self.world.trace.note(self.name, f"has no ledger in limbo any more: {repair.stats}")
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
                seams=ClientSeams(rng=rng, wall_ms=self.wall_ms),
            ) as client:
                yield client
        finally:
            store.abandon()

    async def _report_start(self, storage: Storage) -> None:
        records = [storage.ledger(ledger_id) for ledger_id in storage.ledger_ids()]
        fenced = frozenset(record.ledger_id for record in records if record is not None and record.fenced)
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

    async def _wrong_entries(self, storage: Storage) -> AsyncIterator[str]:
        for ledger_id in storage.ledger_ids():
            try:
                entry_ids = await storage.entry_ids(ledger_id)
            except (EntryUnreadableError, OSError):
                continue  # its index cannot be read: every read of the ledger will fail
            for entry_id in entry_ids:
                try:
                    body = await storage.read(ledger_id, entry_id)
                except (EntryUnreadableError, NoEntryError, NoLedgerError, OSError):
                    continue
                if not self.is_damaged and crc32c(body) not in self.promises.sent.get(
                    (ledger_id, entry_id), ()
                ):
                    which = f"entry {ledger_id}:{entry_id} of {len(body)} bytes"
                    yield f"{which}, {body[:60]!r}, which no client sent"

    async def _watch_disk(
        self, disk: ProcessDisk, service: BookieService, registration: Registration
    ) -> None:
        writable = self._has_space = True
        while True:
            await trio.sleep(FULLNESS.check_interval_s)
            usages = [await disk.run(disk.usage, path) for path in self._config.ledger_directories]
            fullness = evaluate_fullness(
                [(usage.total_bytes, usage.free_bytes) for usage in usages],
                was_writable=self._has_space,
                config=FULLNESS,
            )
            self._has_space = fullness.writable
            now_writable = self._has_space and not self._is_forced_read_only
            if (full := service.storage.full) is not None:
                if self._has_space:  # the bookie opens its storage again
                    service.storage.failure.report(full, "there is space again: opening the storage again")
                now_writable = False
            service.rights.writable = now_writable
            service.rights.high_priority_writable = (
                fullness.high_priority_writable and service.rights.takes_records
            )
            if now_writable != writable:
                try:
                    if now_writable:
                        await registration.become_writable()
                    else:
                        await registration.become_read_only()
                except (MetadataError, RegistrationError):
                    continue  # try again at the next check
                writable = now_writable
                self.world.trace.note(self.name, "is writable" if writable else "is read-only")

    async def _collect(self, service: BookieService, live: LiveLedgers) -> None:
        shape = self.world.shape
        self.garbage = GarbageCollector(
            ServedLedgers(service),
            live,
            config=GcConfig(interval_s=shape.gc_interval_s),
            compaction=self._config.compaction,
        )
        await self.garbage.run()


def only_cause(group: BaseException) -> BaseException:
    """The first leaf of nested exception groups."""
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


def describe_error(error: BaseException) -> str:
    """An error with the last four places of its traceback."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    where = "; ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames[-4:])
    return f"{type(error).__name__}: {error} [{where}]"
