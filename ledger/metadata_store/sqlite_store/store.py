"""The metadata store in a file of this machine: persistent, embedded, shared by several processes.

Inside: the session on the trio loop, its calls one after another, in the loop while they are fast and else in
a worker thread, and a thread that polls for changes by other processes while there are watches.
Not inside: the database (``tree``), which sessions are alive (``session``), when the loop makes a call
(``ledger.runtime.loop_calls``).
Always: the loop waits neither for another process nor for another thread, and for a stalled disk only once; a
call is not cancelled once it has begun, so a cancelled write either never began or is durable; a call takes
at most the busy timeout of 10 s.

The file must be on a local file system: SQLite's WAL and ``flock`` need one machine.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from ledger.metadata_store.errors import (
    MetadataError,
    SessionExpiredError,
    StoreReplacedError,
    StoreUnreachableError,
)
from ledger.metadata_store.sessions.session import Session, Watched, WatchKind
from ledger.metadata_store.sqlite_store.failures import FAILURES, is_busy, is_full, translated
from ledger.metadata_store.sqlite_store.tree import SqliteTree
from ledger.metadata_store.sqlite_store.waiting_writes import WaitingWrites, Write
from ledger.metadata_store.store import (
    ANY_VERSION,
    Children,
    MetadataStore,
    Node,
    Operation,
    SessionState,
    Stat,
    check_new_path,
    check_operations,
    check_path,
    check_size,
)
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from ledger.runtime.loop_calls import LoopCalls

POLL_S = 0.05  # between two looks for writes of other processes
SEEN_MIN = 100  # watches that are kept before the first look for those that nobody holds
LOOP_BYTES_MAX = 32 << 10  # of data that one call of the loop writes
LOOP_OPERATIONS_MAX = 32  # of one transaction in the loop

T = TypeVar("T")
log = get_logger(__name__)

# The stores of this process. A write through one makes the others poll at once.
_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()
_stores_guard = threading.Lock()


class SqliteStore(MetadataStore):
    """One session with the database; made by ``open_sqlite_store``."""

    def __init__(self, tree: SqliteTree) -> None:
        self._tree = tree
        self._session = Session()
        self._replaced: StoreReplacedError | None = None
        # One call at a time. Its watches are set or fired before the next call begins.
        self._turn = trio.Lock()
        self._waiting = WaitingWrites(self._turn, self._make)
        self._threads = trio.CapacityLimiter(1)
        # A rule each: a disk may be slow to sync and have everything in memory.
        self._reads, self._writes = LoopCalls(), LoopCalls()
        self._token = trio.lowlevel.current_trio_token()
        # Held around each use of the tree: the poller's thread uses it, too.
        self._tree_guard = threading.Lock()
        self._seen_guard = threading.Lock()
        self._seen: dict[Watched, int] = {}  # change numbers at the reads that added the watches
        self._seen_max = SEEN_MIN
        self._look = False  # a watch was added since the last poll
        self._armed = threading.Event()
        self._nudged = threading.Event()
        self._closing = False
        self._poller = threading.Thread(target=self._poll, name=f"watch {tree.path}", daemon=True)

    def __repr__(self) -> str:
        return f"<SqliteStore {self._tree.path} session {self.session_id} {self.state.value}>"

    @property
    def session_id(self) -> int:
        return self._tree.session_id

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode of the database."""
        return self._tree.identity

    @property
    def state(self) -> SessionState:
        return self._session.state

    @property
    def replaced(self) -> StoreReplacedError | None:
        return self._replaced

    async def wait_state_change(self, seen: SessionState) -> SessionState:
        return await self._session.wait_state_change(seen)

    async def get(self, path: str, *, watch: trio.Event | None = None) -> Node:
        check_path(path)
        async with self._turn:
            node, change = await self._read(path, lambda: self._tree.get(path))
            self._add_watch(WatchKind.DATA, path, watch, change)
        return node

    async def get_many(self, paths: Sequence[str]) -> dict[str, Node | None]:
        for path in paths:
            check_path(path)
        async with self._turn:
            return await self._read(paths[0] if paths else "/", lambda: self._tree.get_many(paths))

    async def read_tree(self, path: str) -> dict[str, Node] | None:
        check_path(path)
        async with self._turn:
            return await self._call(path, lambda: self._tree.read_tree(path), self._reads, in_loop=False)

    async def exists(self, path: str, *, watch: trio.Event | None = None) -> Stat | None:
        check_path(path)
        async with self._turn:
            stat, change = await self._read(path, lambda: self._tree.exists(path))
            self._add_watch(WatchKind.DATA, path, watch, change)
        return stat

    async def children(self, path: str, *, watch: trio.Event | None = None) -> Children:
        check_path(path)
        async with self._turn:
            children, change = await self._read(path, lambda: self._tree.children(path))
            self._add_watch(WatchKind.CHILDREN, path, watch, change)
        return children

    async def last_change(self) -> int:
        async with self._turn:
            return await self._read("/", self._tree.last_change)

    async def create(
        self,
        path: str,
        value: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        parents: bool = False,
    ) -> str:
        check_size(check_new_path(path), len(value))
        return await self._write(
            path,
            lambda: self._tree.create(
                path, bytes(value), ephemeral=ephemeral, sequential=sequential, parents=parents
            ),
            size_bytes=len(value),
        )

    async def put(self, path: str, value: bytes, *, expected: int = ANY_VERSION) -> Stat:
        check_size(check_path(path), len(value))
        return await self._write(
            path, lambda: self._tree.put(path, bytes(value), expected), size_bytes=len(value)
        )

    async def delete(self, path: str, *, expected: int = ANY_VERSION) -> None:
        check_new_path(path)
        await self._write(path, lambda: (None, self._tree.delete(path, expected)))

    async def commit(self, operations: Sequence[Operation]) -> None:
        size_bytes = check_operations(operations)
        path = operations[0].path if operations else "/"
        await self._write(
            path,
            lambda: (None, self._tree.commit(operations)),
            size_bytes=size_bytes,
            count=len(operations),
        )

    async def draw_sequential(self, path: str) -> str:
        check_new_path(path)
        return await self._write(path, lambda: self._tree.draw_sequential(path))

    async def skip_numbers(self, path: str, up_to: int) -> None:
        """Let sequential nodes below a node have numbers of ``up_to`` or more. The node exists."""
        await self._write(path, lambda: (None, self._tree.skip_numbers(path, up_to)))

    async def sync(self, path: str) -> None:
        check_path(path)
        async with self._turn:
            await self._read(path, self._tree.sync)

    def expire(self, replaced: StoreReplacedError | None = None) -> None:
        """The session is over: it has expired, or its file is not at its path any more. On the loop."""
        self._replaced = self._replaced or replaced
        self._session.change_state(SessionState.EXPIRED)

    async def aclose(self) -> None:
        with trio.CancelScope(shield=True):
            async with self._turn:
                with _stores_guard:
                    _stores.discard(self)
                self._closing = True
                self._armed.set()
                self._nudged.set()
                try:
                    await trio.to_thread.run_sync(self._close, limiter=self._threads)
                except RuntimeError:  # no thread can be started
                    self._close()
        self._session.change_state(SessionState.CLOSED)

    async def _read(self, path: str, work: Callable[[], T]) -> T:
        return await self._call(path, work, self._reads, in_loop=True)

    async def _write(
        self,
        path: str,
        work: Callable[[], tuple[T, list[Watched]]],
        *,
        size_bytes: int = 0,
        count: int = 1,
    ) -> T:
        return await self._waiting.make(Write(path, work, size_bytes=size_bytes, count=count))

    async def _make(self, writes: list[Write[object]]) -> None:
        """Make these writes, in one transaction if that is possible; settle each, and fire its watches."""
        if len(writes) > 1 and await self._make_together(writes):
            return
        for write in writes:
            in_loop = (
                write.size_bytes <= LOOP_BYTES_MAX
                and write.count <= LOOP_OPERATIONS_MAX
                and not self._tree.is_checkpoint_due  # the thread makes one after a call
            )
            try:
                made = await self._call(write.path, write.work, self._writes, in_loop=in_loop)
            except (MetadataError, RuntimeError) as exc:  # RuntimeError: no thread can be started
                write.settle(exc)
            else:
                self._wrote(write.settle(made))

    async def _make_together(self, writes: list[Write[object]]) -> bool:
        """False if none of the writes is made, and each alone may be, or has an error of its own."""
        works = [write.work for write in writes]
        try:
            self._session.check(writes[0].path)
            made = await self._in_thread(partial(self._tree.together, works), self._writes, count=len(works))
        except FAILURES as exc:
            if is_full(exc, self._tree.path):
                return False  # some need no space
            for write in writes:
                write.settle(translated(self._tree.path, write.path, exc))
        except (MetadataError, RuntimeError):
            return False
        else:
            for write, outcome in zip(writes, made, strict=True):
                if isinstance(outcome, OSError):
                    write.settle(translated(self._tree.path, write.path, outcome))
                else:
                    self._wrote(write.settle(outcome))
        return True

    async def _call(self, path: str, work: Callable[[], T], calls: LoopCalls, *, in_loop: bool) -> T:
        """Make a call of the tree, which is one transaction.

        Args:
            calls: The rule of such calls.
            in_loop: False for a call that may take long.
        """
        self._session.check(path)
        try:
            if (
                in_loop
                and calls.may_call
                and (calls is self._reads or not self._turn.statistics().tasks_waiting)
                and self._tree_guard.acquire(blocking=False)
            ):
                began_s = time.perf_counter()
                try:
                    return work()
                except FAILURES as exc:
                    if not (is_busy(exc) or is_full(exc, self._tree.path)):
                        raise
                    # Another process writes, or the disk is full. The transaction did nothing; the thread
                    # waits or makes space, and makes it.
                finally:
                    self._tree_guard.release()
                    calls.called(time.perf_counter() - began_s)
            return await self._in_thread(work, calls)
        except (SessionExpiredError, StoreReplacedError) as exc:
            self.expire(exc if isinstance(exc, StoreReplacedError) else None)
            raise SessionExpiredError(path, str(exc)) from None
        except FAILURES as exc:
            raise translated(self._tree.path, path, exc) from None

    async def _in_thread(self, work: Callable[[], T], calls: LoopCalls, *, count: int = 1) -> T:
        """The same in the thread. ``count``: of the calls that it is for the rule."""
        result, took_s = await trio.to_thread.run_sync(self._work, work, limiter=self._threads)
        calls.called(took_s / count)
        return result

    def _work(self, work: Callable[[], T]) -> tuple[T, float]:
        """In the thread: the result, and how long it took."""
        with self._tree_guard:
            began_s = time.perf_counter()
            result = self._tree.patiently(work)
            took_s = time.perf_counter() - began_s
            if self._tree.is_checkpoint_due:
                self._tree.checkpoint()
        return result, took_s

    def _add_watch(self, kind: WatchKind, path: str, watch: trio.Event | None, change: int) -> None:
        if watch is None:
            return
        watched = (kind, path)
        if self._seen.get(watched, change) != change:
            self._session.fire(kind, path)  # an older watch that the next poll would fire
        self._session.watch(kind, path, watch)
        with self._seen_guard:
            self._seen[watched] = change
            self._look = True
            if len(self._seen) > self._seen_max:
                alive = set(self._session.watched())
                self._seen = {key: number for key, number in self._seen.items() if key in alive}
                self._seen_max = max(
                    SEEN_MIN, 2 * len(self._seen)
                )  # so that a watch costs little, if all live
        self._armed.set()

    def _fire(self, touched: Sequence[Watched]) -> None:
        seen = self._seen
        for watched in touched:
            if watched in seen:
                with self._seen_guard:
                    del seen[watched]
                self._session.fire(*watched)

    def _wrote(self, touched: Sequence[Watched]) -> None:
        self._fire(touched)
        if len(_stores) == 1:
            return
        with _stores_guard:
            for store in _stores:
                if store is not self and store._tree.path == self._tree.path:
                    store._nudged.set()

    def _others_changed(self, changed: dict[Watched, int]) -> None:
        # A watch added after the poll was added by a read that saw the change. It waits for the next one.
        self._fire([key for key, number in changed.items() if self._seen.get(key, number) != number])

    def _poll(self) -> None:
        """In a thread: poll for changes by other processes while there are watches."""
        while True:
            self._armed.wait()
            self._nudged.wait(POLL_S)
            self._nudged.clear()
            if self._closing:
                return
            with self._seen_guard:
                seen, look, self._look = dict(self._seen), self._look, False
                if not seen:
                    self._armed.clear()
                    continue
            try:
                with self._tree_guard:
                    if self._tree.closed:
                        return
                    changed = self._tree.patiently(partial(self._tree.changed, seen, look=look))
                if changed:
                    self._token.run_sync_soon(self._others_changed, changed)
            except (SessionExpiredError, StoreReplacedError) as exc:
                replaced = exc if isinstance(exc, StoreReplacedError) else None
                with contextlib.suppress(trio.RunFinishedError):
                    self._token.run_sync_soon(self.expire, replaced)
                return
            except trio.RunFinishedError:
                return
            except FAILURES as exc:
                log.warning(
                    "%s: the check of watches failed, trying again: %s",
                    self._tree.path,
                    exc,
                    extra=event("watches.check_failed", database=str(self._tree.path), error=exc),
                )
                with self._seen_guard:
                    self._look = True

    def _close(self) -> None:
        if self._poller.ident is not None:
            self._poller.join()
        with self._tree_guard:
            try:
                self._tree.close()
            except StoreReplacedError:
                pass  # the session is in the file that was moved: the next process there removes it
            except FAILURES as exc:
                # The lock is released. So the next process that uses the database removes the session.
                log.warning(
                    "%s: session %d was not removed: %s",
                    self._tree.path,
                    self.session_id,
                    exc,
                    extra=event("session.not_removed", database=str(self._tree.path), error=exc),
                )


@asynccontextmanager
async def open_sqlite_store(
    path: Path, *, identity: tuple[int, int] | None = None, must_exist: bool = False
) -> AsyncIterator[SqliteStore]:
    """Open the database, creating it if it is missing. Leaving the block ends the session.

    Args:
        identity: That of an earlier store: open the same file again, and create none.
        must_exist: The file was a store before: one without tables has lost them.

    Raises:
        StoreUnreachableError: The file cannot be opened or created.
        StoreFullError: There is no space to open it, not even in reserve.
        StoreFormatError: The file is no metadata store.
        StoreLostError: It ``must_exist``, and does not, or has no tables.
        StoreReplacedError: The file with ``identity`` is not there any more.
    """
    try:
        tree = await trio.to_thread.run_sync(lambda: SqliteTree(path.absolute(), identity, must_exist))
    except MetadataError:
        raise
    except FAILURES as exc:
        if is_full(exc, path):
            raise translated(path, "/", exc) from None
        raise StoreUnreachableError(f"metadata store {path} cannot be opened: {exc}") from None
    store = SqliteStore(tree)
    try:
        store._poller.start()
        with _stores_guard:
            _stores.add(store)
        yield store
    finally:
        await store.aclose()
