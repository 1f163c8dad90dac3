"""A namespace in memory, on a disk that a test can cut, slow, fill and damage.

Inside: the machine of one namespace (``World``): its disk, its metadata, its bookie while a program uses it,
the history of its logs. Not inside: the disk (``disk``, ``platter``), checking (``history``).
Always: the bookie is the one of a directory, with its journal, index and entry logs; only the files are
simulated. Metadata are durable at once. After a power cut nothing that the dead process does has an effect.

Source: SQLite's tests of power cuts; FoundationDB's simulator.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import trio
import trio.testing

from bookie.bookie import Bookie, open_bookie
from bookie.damage.scrubber import ScrubConfig
from bookie.disk.disk import no_space
from bookie.errors import BookieServerError
from bookie.journal.files import JournalConfig
from bookie.storage.config import StorageConfig
from dlog.config import NamespaceConfig
from dlog.connect import Parts, client_config, in_memory, open_namespace, prepare_embedded_namespace
from dlog.errors import DLogError, EmbeddedStoreError
from dlog.format.record import Record
from dlog.forwarding.meeting import Door, MemoryMeeting
from dlog.namespace_handle import Namespace
from dlog.testing.clock import NoTrace, TaskTimeline
from dlog.testing.disk import ProcessDisk
from dlog.testing.history import History, Rule
from dlog.testing.platter import Platter
from dlog.testing.recording import RecordedStore, recording
from ledger.catalog.catalog import open_catalog
from ledger.catalog.paths import READONLY, available_path
from ledger.client import open_ledger_client
from ledger.context import ClientSeams
from ledger.errors import DirectoryFullError
from ledger.metadata_store.errors import NodeExistsError
from ledger.metadata_store.memory import MemoryTree
from ledger.metadata_store.read_only import ReadOnlyStore
from ledger.metadata_store.sessions.session import Watched
from ledger.pickling import ProcessBound
from ledger.runtime.tasks.service_tasks import open_service_tasks
from ledger.transport.dial import Address
from ledger.transport.pipe import stream_pair
from namespace.log_nodes import UNPARTITIONED

T = TypeVar("T")
BOOKIE_ID = "embedded:1"
LEDGERS_ROOT = "/ledgers"
DIRECTORY = Path("/bookie")
FULL_PAUSE_S = 0.5  # between two looks at a full disk
_numbers = itertools.count(1)


class WorldHistory(History):
    """The history of a world's logs. ``check`` reads every log to its end first."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def check(self) -> None:
        """Read every log, check it, and raise HistoryViolationError if a rule did not hold.

        It switches the power on. Inside a running trio loop, await ``World.judge`` instead.
        """
        self._world.run(self._world.judge)


class _Tree(MemoryTree):
    def __init__(self, history: History) -> None:
        super().__init__()
        self._history = history

    def _fire(self, touched: Sequence[Watched]) -> None:
        super()._fire(touched)
        for _, path in touched:
            log, _, root = path.removeprefix("/dlog/").rpartition("/")
            if root == UNPARTITIONED and path not in self._nodes:
                self._history.deleted(log)


class World(ProcessBound):
    """One machine with a namespace. Made by ``open_world``, or by the fixture ``dlog_world`` of pytest.

    Open ``uri`` with any API of the library, and close it before the end of the world. One event loop at a
    time may use it.
    """

    def __init__(self, seed: int) -> None:
        number = next(_numbers)
        self.uri = f"file:///dlog-testing/{number}"
        self.history = WorldHistory(self)
        self.is_off = False
        self._tree = _Tree(self.history)
        self._timeline = TaskTimeline()
        self.counts: Counter[str] = Counter()
        self._platter = Platter(
            f"world {number}", self._timeline, random.Random(seed), NoTrace(), self.counts
        )
        self._platter.latency_s = (0.0, 0.0)
        self._rng = random.Random(f"damage {seed}")
        self._disk: ProcessDisk | None = None
        self._bookie: Bookie | None = None
        self._streams: trio.Nursery | None = None
        self._stores: list[RecordedStore] = []
        self._scopes: list[trio.CancelScope] = []
        self._doors: dict[str, Door] = {}  # of owners of shared logs
        self._starting = trio.Lock()

    def __repr__(self) -> str:
        return f"<World {self.uri}{', off' if self.is_off else ''}>"

    # Running.

    def run(self, main: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Run an async function in virtual time: it passes at once while every task waits."""
        return trio.run(main, *arguments, clock=trio.testing.MockClock(autojump_threshold=0))

    async def judge(self) -> None:
        """See ``WorldHistory.check``; for a running loop."""
        self.is_off = False
        async with open_namespace(self.uri) as namespace:
            for name in list(self.history.logs):
                life = self.history.log(name)
                if not await namespace.log_exists(name):
                    life.judge(None)
                    continue
                try:
                    await self._judge(namespace, name)
                except DLogError as exc:
                    life.complain(Rule.NO_LOSS, f"it cannot be read to its end: {exc}")
        self.history.check_rules()

    async def _judge(self, namespace: Namespace, name: str) -> None:
        records = await _recovered(namespace, name)
        first_left = (await namespace.describe_log(name)).first_dlsn
        self.history.log(name).judge(records, first_left)

    def records(self, log: str) -> list[Record]:
        """All records of a log, as a program finds them that starts now. No program may have the log open.

        It switches the power on. Inside a running trio loop, await ``read_records`` instead.

        Raises:
            LogNotFoundError: There is no such log.
        """
        return self.run(self.read_records, log)

    async def read_records(self, log: str) -> list[Record]:
        """See ``records``; for a running loop."""
        self.is_off = False
        async with open_namespace(self.uri) as namespace:
            return await _recovered(namespace, log)

    def acknowledge(self, log: str, payload: bytes, *, txid: int | None = None) -> None:
        """Note that your service has answered its own caller that this record is stored.

        Call it where the service answers. If no writer had acknowledged the record by then, the check of the
        history reports it: a crash at that moment would have lost an answered record.
        """
        self.history.log(log).acknowledged(payload, txid)

    # Faults.

    @property
    def disk_steps(self) -> int:
        """The number of writes, syncs and other changes of the disk so far: the range for a loop of cuts."""
        return self._platter.steps

    def power_cut_after(self, steps: int) -> PowerCut:
        """A block in which the power is cut before the n-th step of the disk from now.

        Unsynced writes are lost, wholly, in part or out of order. The block's program dies: its trio tasks
        are cancelled, and calls of the other APIs raise. The block ends without an error, and the power is on
        again after it. ``was_cut`` of the value is False if the program ended before the step.
        """
        return PowerCut(self, steps)

    def cut_power(self) -> None:
        """Cut the power now. ``power_on`` ends it."""
        if self._disk is not None:
            self._disk.die()
        self.is_off = True
        self._platter.cut_power()
        for store in self._stores:
            store.expire()
        if self._streams is not None:
            self._streams.cancel_scope.cancel()
        for scope in self._scopes:
            scope.cancel()

    def power_on(self) -> None:
        """Let programs open the namespace again."""
        self.is_off = False

    @contextmanager
    def slow_disk(self, seconds: float) -> Iterator[None]:
        """A block in which each operation of a disk thread takes up to this long; use ``run``."""
        before, self._platter.latency_s = self._platter.latency_s, (0.0, seconds)
        try:
            yield
        finally:
            self._platter.latency_s = before

    @contextmanager
    def full_disk(self, *, after_writes: int = 0) -> Iterator[None]:
        """A block in which the disk takes no new bytes.

        Acknowledged records are read as before. Appends raise ``DiskFullError``; a moment after the block
        the same namespace takes them again.

        Args:
            after_writes: The number of writes that still find room.
        """
        troubles = self._platter.troubles
        troubles.is_full, troubles.growths_left = True, after_writes
        try:
            yield
        finally:
            troubles.is_full, troubles.growths_left = False, 0

    @contextmanager
    def disk_errors(self, *, read: float = 0.0, write: float = 0.0, sync: float = 0.0) -> Iterator[None]:
        """A block in which operations of the disk fail with these chances, from 0 to 1."""
        troubles = self._platter.troubles
        troubles.read_error, troubles.write_error, troubles.sync_error = read, write, sync
        try:
            yield
        finally:
            troubles.read_error = troubles.write_error = troubles.sync_error = 0.0

    def damage(self, pattern: str = "*.log") -> str | None:
        """Flip one bit in a file whose name matches; return the place, None if there is no such file.

        ``*.log`` are entry logs, ``*.txn`` journals. There is one copy of each record, so one may be lost for
        good.
        """
        flipped = self._platter.flip_bit(lambda path: path.match(pattern), self._rng)
        return None if flipped is None else f"{flipped[0].name}, byte {flipped[1]}"

    # For ``dlog.connect``.

    @asynccontextmanager
    async def open_parts(self, config: NamespaceConfig, read_only: bool) -> AsyncIterator[Parts]:
        """The parts of the namespace; the first program that opens it starts the bookie."""
        if self.is_off:
            raise EmbeddedStoreError(f"{self!r}: the power is off; call power_on()")
        async with open_service_tasks() as tasks:
            stop, stopped = trio.Event(), trio.Event()
            async with self._starting:
                if self._bookie is None:
                    await tasks.start(self._host, stop, stopped)
                else:
                    stopped.set()
            store = RecordedStore(self._tree, self.history)
            self._stores.append(store)
            scope = trio.CancelScope()
            self._scopes.append(scope)
            try:
                await self._prepare(store)
                seen = ReadOnlyStore(store) if read_only else store
                with scope:  # a power cut closes the client, so that nothing waits for the dead bookie
                    async with open_ledger_client(
                        seen,
                        self._dial,
                        client_config(config),
                        root=LEDGERS_ROOT,
                        read_only=read_only,
                        seams=ClientSeams(why_read_only=self._full),
                    ) as client:
                        path = await prepare_embedded_namespace(store)
                        yield Parts(seen, client, path, meet=partial(MemoryMeeting, self._doors))
            finally:
                self._scopes.remove(scope)
                self._stores.remove(store)
                with trio.CancelScope(shield=True):
                    await store.aclose()
                    stop.set()
                    await stopped.wait()

    async def _prepare(self, store: RecordedStore) -> None:
        await open_catalog(store, LEDGERS_ROOT)
        for node in (f"{LEDGERS_ROOT}/{READONLY}", available_path(LEDGERS_ROOT, BOOKIE_ID)):
            try:
                await store.create(node, b"", parents=True)
            except NodeExistsError:
                pass

    async def _host(
        self, stop: trio.Event, stopped: trio.Event, *, task_status: trio.TaskStatus[None]
    ) -> None:
        """Run the bookie until ``stop``, or until the power is cut."""
        directories: Any = (DIRECTORY,)
        config = StorageConfig(
            journal_directories=directories,
            ledger_directories=directories,
            journal=JournalConfig(preallocate_bytes=64 << 10, file_bytes_max=1 << 20),
            entry_log_bytes_max=1 << 20,
            scrub=ScrubConfig(interval_s=0),
        )
        self._disk = disk = ProcessDisk(self._platter, lambda: None)
        is_started = False
        try:
            while not (is_started and stop.is_set()):
                failed: BaseException | None = None
                try:
                    async with self._open(config, disk) as bookie:
                        if not is_started:
                            task_status.started()
                        is_started = True
                        await self._serve(bookie, stop)
                except* (BookieServerError, OSError) as group:
                    failed = group.exceptions[0]
                if failed is None:
                    continue  # there is space again
                if disk.is_gone:  # the process is dead, and nobody sees its errors
                    break
                if not is_started or no_space(failed) is None:
                    raise EmbeddedStoreError(f"{self!r}: its bookie failed: {failed}") from failed
                with trio.move_on_after(FULL_PAUSE_S):
                    await stop.wait()
            if not is_started:
                raise EmbeddedStoreError(f"{self!r}: the power was cut") from None
        finally:
            stopped.set()

    @asynccontextmanager
    async def _open(self, config: StorageConfig, disk: ProcessDisk) -> AsyncIterator[Bookie]:
        async with trio.open_nursery() as jobs:
            self._timeline.nursery = jobs
            try:
                async with open_bookie(config, disk=disk) as bookie, trio.open_nursery() as streams:
                    self._bookie, self._streams = bookie, streams
                    yield bookie
                    self._bookie = None
                    await bookie.drain()
                    streams.cancel_scope.cancel()
            finally:
                self._bookie = self._streams = None
                jobs.cancel_scope.cancel()
                self._timeline.nursery = None

    async def _serve(self, bookie: Bookie, stop: trio.Event) -> None:
        """Until ``stop``, or until a bookie that was opened on a full disk can be opened again."""
        troubles, rights = self._platter.troubles, bookie.service.rights
        rights.writable = bookie.storage.full is None and not (troubles.is_full and not troubles.growths_left)
        while not (rights.writable or stop.is_set()):
            with trio.move_on_after(FULL_PAUSE_S):
                await stop.wait()
            if not troubles.is_full:
                if bookie.storage.full is not None:
                    return
                rights.writable = True
        await stop.wait()

    def _full(self) -> DirectoryFullError:
        full = DirectoryFullError(f"{self!r}: its disk is full. Acknowledged records are kept")
        full.__cause__ = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return full

    async def _dial(self, _address: Address) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        if self._bookie is None or self._streams is None:
            raise ConnectionRefusedError(f"{self!r}: its bookie is gone")
        ours, theirs = stream_pair()
        self._streams.start_soon(self._bookie.serve_stream, theirs)
        return ours


async def _recovered(namespace: Namespace, log: str) -> list[Record]:
    async with namespace.open_writer(log):
        pass  # recovers the records of a writer that was killed
    async with namespace.open_reader(log, follow=False) as reader:
        return [record async for record in reader]


class PowerCut(ProcessBound):
    """The block of ``World.power_cut_after``."""

    def __init__(self, world: World, steps: int) -> None:
        if steps < 1:
            raise ValueError(f"power_cut_after({steps}): the first step is 1")
        self._world, self._steps = world, steps
        self.was_cut = False
        self._scope: trio.CancelScope | None = None
        self._thread = threading.get_ident()

    def __enter__(self) -> PowerCut:
        troubles = self._world._platter.troubles
        troubles.cut_at, troubles.cut_at_step, troubles.on_cut = "", self._steps, self._cut
        try:
            trio.lowlevel.current_task()
        except RuntimeError:
            return self
        self._scope = trio.CancelScope()
        self._scope.__enter__()
        return self

    def _cut(self) -> None:
        self.was_cut = True
        self._world.cut_power()
        if self._scope is not None:
            self._scope.cancel()
        elif threading.get_ident() == self._thread:
            # The program runs a loop of its own inside the block: cancel its main task.
            root = trio.lowlevel.current_root_task()
            assert root is not None  # the program's loop runs in this thread
            root.child_nurseries[-1].cancel_scope.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._world._platter.troubles.cut_at_step = None
        is_silenced = self._scope is not None and bool(self._scope.__exit__(kind, error, trace))
        if not self.was_cut:
            return is_silenced
        self._world.power_on()
        # The program is dead. An assertion belongs to the test.
        return is_silenced or not isinstance(error, AssertionError | KeyboardInterrupt | SystemExit)


@contextmanager
def open_world(seed: int = 0) -> Iterator[World]:
    """A world for the duration of a ``with`` block. Equal seeds lose the same writes in a power cut."""
    world = World(seed)
    path = world.uri.removeprefix("file://")
    in_memory[path] = world.open_parts
    try:
        with recording():
            yield world
    finally:
        del in_memory[path]
