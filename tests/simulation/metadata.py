"""The metadata store with the faults that ZooKeeper shows its clients.

Inside: ``HistoricTree``, which keeps every past state of each node; ``SimStore``, the session of one process,
with delays, lost connections, replies lost after the write was applied, stale reads, late watches.
Not inside: the times of these faults (``faults``), the contract of a store (``ledger.metadata_store.store``).
Always: ZooKeeper's guarantees hold. All writes are in one order; a session never reads an older state than it
has read or written before; ``sync`` brings it up to date. A read without ``sync`` may be stale.

Source: ZooKeeper programmer's guide, "Consistency Guarantees"; docs/metadata.md 15;
docs/known-bugs.md 34, 35, 43.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import attrs
import trio

from ledger.metadata_store.errors import ConnectionLostError, NoNodeError, StoreError
from ledger.metadata_store.memory import MemorySession, MemoryTree, _Change
from ledger.metadata_store.sessions.session import Watched, WatchKind
from ledger.metadata_store.store import (
    ANY_VERSION,
    Children,
    MetadataStore,
    Node,
    Operation,
    SessionState,
    Stat,
)
from tests.simulation.clockwork import Timeline
from tests.simulation.network import Network
from tests.simulation.network import Node as Process
from tests.simulation.trace import Trace

STORE = "store"  # the name of the metadata store's end of a link
SESSION_TIMEOUT_S = 4.0
LOST_AFTER_S = 1.5  # a client notices a dead connection within this time

T = TypeVar("T")


@attrs.define(eq=False)
class StoreTroubles:
    """The current faults of the store, for the requests of all sessions. Chances are per request."""

    lost_before: float = 0.0  # that the request is lost
    lost_after: float = 0.0  # that the reply is lost, after the request was carried out
    slow_chance: float = 0.0
    stale_lag_s: float = 0.0
    late_watch: float = 0.0


class HistoricTree(MemoryTree):
    """A tree whose past states can be read."""

    def __init__(self, timeline: Timeline, wall_ms: Callable[[], int]) -> None:
        self._timeline = timeline
        self.zxid = 0
        self.times: list[float] = [0.0]  # time of each zxid
        self.data: defaultdict[str, list[tuple[int, Node | None]]] = defaultdict(list)
        self.lists: defaultdict[str, list[tuple[int, Children | None]]] = defaultdict(list)
        self.on_change: Callable[[str, Node | None, Node | None], None] = lambda path, before, after: None
        super().__init__(wall_ms)

    def _fire(self, touched: Sequence[Watched]) -> None:
        self.zxid += 1
        self.times.append(self._timeline.now())
        changes = []
        for path in dict.fromkeys(path for _, path in touched):
            node = self._nodes.get(path)
            past = self.data[path]
            before = past[-1][1] if past else None
            after = names = None
            if node is not None:
                stat = node.stat()
                after = Node(node.value, stat)
                names = Children(tuple(sorted(node.children)), stat.child_version)
            past.append((self.zxid, after))
            self.lists[path].append((self.zxid, names))
            changes.append((path, before, after))
        super()._fire(touched)
        for path, before, after in changes:
            self.on_change(path, before, after)

    def value_now(self, path: str) -> Node | None:
        """The node's newest state, without a session."""
        node = self._nodes.get(path)
        return None if node is None else Node(node.value, node.stat())

    def remove(self, path: str) -> None:
        """Delete a node, if it exists, without a session."""
        if path in self._nodes:
            with _Change(self) as change:
                change.delete(path, ANY_VERSION)

    def zxid_at(self, when: float) -> int:
        """The zxid of the last change up to a time."""
        zxid = self.zxid
        while zxid > 0 and self.times[zxid] > when:
            zxid -= 1
        return zxid


class _Notice:
    """Stands in the tree for a client's watch and passes the notice on with a delay, or not at all."""

    def __init__(self, store: SimStore, event: trio.Event, delay_s: float | None) -> None:
        self._store, self._event, self._delay_s = store, event, delay_s

    def set(self) -> None:
        self._store._notices.pop(self, None)
        if self._delay_s is None:
            self._store.lost_watches.append(self._event)
        else:
            self._store._timeline.after(self._delay_s, self._event.set)


class _Request:
    """A request in flight and its reply.

    The request is carried out when it arrives, even if its caller was cancelled or killed after it was sent.
    """

    def __init__(self, store: SimStore, path: str, apply: Callable[[], object], *, is_write: bool) -> None:
        self._store, self._path, self._apply, self._is_write = store, path, apply, is_write
        self._task: trio.lowlevel.Task | None = trio.lowlevel.current_task()
        self._began_at = store._timeline.now()
        self._is_sent = True
        self.result: Any = None
        self.error: Exception | None = None

    def abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        if self._store._timeline.now() == self._began_at:
            self._is_sent = False  # cancelled at the moment of the call: the request was never sent
        return trio.lowlevel.Abort.SUCCEEDED

    def arrive(self) -> None:
        store = self._store
        if not self._is_sent:
            return
        if store._process.is_paused:
            store._process.held.append(self.arrive)
            return
        if store._loses_request():
            self._lose("the request was lost")
            return
        try:
            self.result = self._apply()
        except StoreError as exc:
            self.error = exc
        if self._is_write:
            store._seen = store._tree.zxid
        store._timeline.after(store._delay_s(), self.reply)

    def reply(self) -> None:
        store = self._store
        if store._process.is_paused:
            store._process.held.append(self.reply)
        elif store._loses_reply(self._is_write):
            self._lose("the reply was lost")
        else:
            self._wake()

    def _lose(self, what: str) -> None:
        store = self._store
        store._trace.note(store._process.name, f"loses its connection to the metadata store: {what}")
        self.error = ConnectionLostError(self._path, what)
        store._timeline.after(store._rng.uniform(0.05, LOST_AFTER_S), self._notice_loss)

    def _notice_loss(self) -> None:
        self._store.suspend(self._store._rng.choice([0.02, 0.2, 1.0]))
        self._wake()

    def _wake(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task._runner.reschedule(task)


class SimStore(MetadataStore):
    """The session of one process. Made by ``World.new_session``."""

    def __init__(
        self,
        tree: HistoricTree,
        process: Process,
        network: Network,
        timeline: Timeline,
        rng: random.Random,
        troubles: StoreTroubles,
        counts: Counter[str],
        trace: Trace,
    ) -> None:
        self._tree, self._process, self._network = tree, process, network
        self._timeline, self._rng, self._troubles = timeline, rng, troubles
        self._counts, self._trace = counts, trace
        self.inner = MemorySession(tree)
        self._seen = tree.zxid  # reads never return an older state than this
        self._notices: dict[_Notice, None] = {}
        self.lost_watches: list[trio.Event] = []
        self._silent_since: float | None = None

    @property
    def session_id(self) -> int:
        return self.inner.id

    @property
    def state(self) -> SessionState:
        return self.inner.state

    async def wait_state_change(self, seen: SessionState) -> SessionState:
        return await self.inner.watches.wait_state_change(seen)

    def expire(self) -> None:
        """End the session, as the server does."""
        self._trace.note(self._process.name, "session expires")
        self.inner.expire()
        self._wake_lost()

    def suspend(self, seconds: float) -> None:
        """Disconnect for some seconds; the session expires if that is longer than its timeout."""
        if self.state is not SessionState.CONNECTED:
            return
        self.inner.suspend()
        if seconds >= SESSION_TIMEOUT_S:
            self._timeline.after(SESSION_TIMEOUT_S, self._expire_if_suspended)
        else:
            self._timeline.after(seconds, self.resume)

    def resume(self) -> None:
        self.inner.resume()
        self._wake_lost()

    def _expire_if_suspended(self) -> None:
        if self.state is SessionState.SUSPENDED:
            self._counts["session expiry"] += 1
            self.expire()

    def _wake_lost(self) -> None:
        # Contract: all watches set before a suspension fire when it ends, also those whose notice was lost.
        lost, self.lost_watches = self.lost_watches, []
        for event in lost:
            event.set()

    def abandon(self) -> None:
        """Leave the session of a dead process behind: it expires after a while without heartbeats."""
        if self.state in (SessionState.CONNECTED, SessionState.SUSPENDED):
            self._timeline.after(
                self._rng.uniform(SESSION_TIMEOUT_S / 2, SESSION_TIMEOUT_S), self.inner.expire
            )

    # --- requests ---

    async def _ask(self, path: str, apply: Callable[[], T], *, write: bool = False) -> T:
        if not self._process.is_up:
            await trio.lowlevel.checkpoint()
            raise ConnectionLostError(path, "this process is dead")
        request = _Request(self, path, apply, is_write=write)
        self._timeline.after(self._delay_s(), request.arrive)
        await trio.lowlevel.wait_task_rescheduled(request.abort)
        error, request.error = request.error, None
        if error is None:
            return cast(T, request.result)  # apply() returned it
        try:
            raise error
        finally:
            del error  # its traceback holds this frame: the two would form a cycle

    def _delay_s(self) -> float:
        """Draw the time that a request or a reply is in flight."""
        delay_s = self._rng.uniform(0.001, 0.005)
        if self._troubles.slow_chance and self._rng.random() < self._troubles.slow_chance:
            self._counts["slow store request"] += 1
            delay_s += self._rng.choice([0.02, 0.1, 0.4])
        return delay_s

    def _loses_request(self) -> bool:
        if self._network.is_blocked(self._process.name, STORE):
            return True
        if self._troubles.lost_before and self._rng.random() < self._troubles.lost_before:
            self._counts["store request lost"] += 1
            return True
        return False

    def _loses_reply(self, is_write: bool) -> bool:
        if self._network.is_blocked(STORE, self._process.name):
            self._counts["store reply lost after the write"] += is_write
            return True
        if self._troubles.lost_after and self._rng.random() < self._troubles.lost_after:
            self._counts["store reply lost after the write" if is_write else "store request lost"] += 1
            return True
        return False

    def _past(self) -> int:
        """Draw the zxid of the state that this session reads now."""
        lag_s = self._troubles.stale_lag_s
        if not lag_s:
            self._seen = self._tree.zxid
        else:
            then = self._tree.zxid_at(self._timeline.now() - self._rng.uniform(0, lag_s))
            self._seen = max(self._seen, then)
        if self._seen < self._tree.zxid:
            self._counts["stale read"] += 1
        return self._seen

    def _notice(self, watch: trio.Event | None) -> trio.Event | None:
        if watch is None:
            return None
        delay_s: float | None = self._rng.uniform(0.001, 0.008)
        if self._troubles.late_watch and self._rng.random() < self._troubles.late_watch:
            self._counts["lost watch"] += 1
            delay_s = None if self._rng.random() < 0.5 else self._rng.uniform(0.1, 5)
        elif self._network.has_delays and self._rng.random() < 0.3:
            delay_s = self._rng.choice([0.03, 0.1, 0.5])
        notice = _Notice(self, watch, delay_s)
        self._notices[notice] = None
        return notice  # type: ignore[return-value]

    async def get(self, path: str, *, watch: trio.Event | None = None) -> Node:
        def apply() -> Node:
            past = self._past()
            if past == self._tree.zxid:
                return self.inner.get(path, self._notice(watch))
            self.inner.watches.check(path)
            node = _as_of(self._tree.data[path], past)
            if node is None:
                raise NoNodeError(path)
            self._watch_the_past(self._tree.data[path], past, path, watch, WatchKind.DATA)
            return node

        return await self._ask(path, apply)

    async def exists(self, path: str, *, watch: trio.Event | None = None) -> Stat | None:
        def apply() -> Stat | None:
            past = self._past()
            if past == self._tree.zxid:
                return self.inner.exists(path, self._notice(watch))
            self.inner.watches.check(path)
            node = _as_of(self._tree.data[path], past)
            self._watch_the_past(self._tree.data[path], past, path, watch, WatchKind.DATA)
            return None if node is None else node.stat

        return await self._ask(path, apply)

    async def children(self, path: str, *, watch: trio.Event | None = None) -> Children:
        def apply() -> Children:
            past = self._past()
            if past == self._tree.zxid:
                return self.inner.children(path, self._notice(watch))
            self.inner.watches.check(path)
            found = _as_of(self._tree.lists[path], past)
            if found is None:
                raise NoNodeError(path)
            self._watch_the_past(self._tree.lists[path], past, path, watch, WatchKind.CHILDREN)
            return found

        return await self._ask(path, apply)

    def _watch_the_past(
        self,
        history: list[tuple[int, T | None]],
        past: int,
        path: str,
        watch: trio.Event | None,
        kind: WatchKind,
    ) -> None:
        if watch is None:
            return
        if history and history[-1][0] > past:
            # The server of this session does not know of the change yet; it fires the watch when it does.
            self._timeline.after(self._rng.uniform(0.001, self._troubles.stale_lag_s or 0.5), watch.set)
            return
        notice = self._notice(watch)
        assert notice is not None
        self.inner.watches.watch(kind, path, notice)

    async def create(
        self,
        path: str,
        value: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        parents: bool = False,
    ) -> str:
        return await self._ask(
            path,
            lambda: self.inner.create(
                path, value, ephemeral=ephemeral, sequential=sequential, parents=parents
            ),
            write=True,
        )

    async def put(self, path: str, value: bytes, *, expected: int = ANY_VERSION) -> Stat:
        return await self._ask(path, lambda: self.inner.put(path, value, expected), write=True)

    async def delete(self, path: str, *, expected: int = ANY_VERSION) -> None:
        await self._ask(path, lambda: self.inner.delete(path, expected), write=True)

    async def commit(self, operations: Sequence[Operation]) -> None:
        path = operations[0].path if operations else "/"
        await self._ask(path, lambda: self.inner.commit(operations), write=True)

    async def sync(self, path: str) -> None:
        await self._ask(path, lambda: self.inner.sync(path), write=True)

    async def aclose(self) -> None:
        self.inner.close()
        await trio.lowlevel.checkpoint()


def _as_of(history: list[tuple[int, T | None]], zxid: int) -> T | None:
    value = None
    for at, one in history:
        if at > zxid:
            break
        value = one
    return value
