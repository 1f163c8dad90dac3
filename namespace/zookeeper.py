"""The metadata store in a ZooKeeper: kazoo, and the one hop between its threads and trio.

Inside: one kazoo client, whose results and events reach the loop through the trio token.
Not inside: retries. A write whose answer was lost is reported as such and left to the caller.
Always: while the connection is lost nothing is sent, and every call raises at once; an expired session is
over, and kazoo is kept from opening another behind our back, with which locks would seem to be held
that are not. A cancelled wait leaves nothing behind; its result, when it comes, is dropped.

Source: kazoo 2.11, client.py and protocol/connection.py; ZooKeeper programmer's guide.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, assert_never

import attrs
import trio
from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import EventType, KazooState
from kazoo.retry import KazooRetry

from namespace.errors import (
    BadVersionError,
    ConnectionLostError,
    InvalidPathError,
    InvalidUriError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
    StoreError,
    StoreUnreachableError,
)
from namespace.session import Session, WatchKind
from namespace.store import (
    ANY_VERSION,
    Check,
    Children,
    Create,
    Delete,
    MetadataStore,
    Node,
    Operation,
    Put,
    SessionState,
    Stat,
    ancestors_of,
    check_new_path,
    check_operations,
    check_path,
    check_size,
)

# kazoo wakes its thread by one byte for each request through a socket pair, and that write blocks, on our
# loop, once some 270 bytes wait there.
CALLS_IN_FLIGHT_MAX = 128
CLOSE_TIMEOUT_S = 15.0
RECONNECT_DELAY_MAX_S = 1.0

# kazoo warns of lost connections by itself; without a handler that would land on standard error.
kazoo_log = logging.getLogger("namespace.zookeeper.kazoo")
kazoo_log.addHandler(logging.NullHandler())

_ERRORS: list[tuple[type[Exception], Callable[[str], StoreError]]] = [
    (kazoo_errors.NoNodeError, NoNodeError),
    (kazoo_errors.NodeExistsError, NodeExistsError),
    (kazoo_errors.BadVersionError, BadVersionError),
    (kazoo_errors.NotEmptyError, NotEmptyError),
    (kazoo_errors.NoChildrenForEphemeralsError, NoChildrenForEphemeralsError),
    (kazoo_errors.SessionExpiredError, SessionExpiredError),
    (kazoo_errors.ConnectionLoss, ConnectionLostError),
    (kazoo_errors.ConnectionClosedError, ConnectionLostError),
    (kazoo_errors.OperationTimeoutError, ConnectionLostError),
]


# What the operations around the one that failed a transaction are answered with.
_MARKS = (kazoo_errors.RolledBackError, kazoo_errors.RuntimeInconsistency)


class _OneSessionHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads, which stop connecting once the session is over."""

    def __init__(self) -> None:
        super().__init__()
        self.over = False
        self.last_failure: Exception | None = None

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        if self.over:
            raise ConnectionRefusedError("the session is over; no other is opened")
        try:
            return super().create_connection(*args, **kwargs)
        except Exception as exc:
            self.last_failure = exc
            raise


@attrs.frozen
class _Watcher:
    """What kazoo calls for an event; equal ones at one path are one to it."""

    kind: WatchKind
    path: str
    fire: Callable[[WatchKind, str], None]

    def __call__(self, event: Any) -> None:
        # Events without a type tell of the session; its watches are fired once it goes on or ends.
        if event.type != EventType.NONE:
            self.fire(self.kind, self.path)


class _Waiter:
    """Somebody waiting for a result of kazoo's."""

    __slots__ = ("event", "failure", "value")

    def __init__(self) -> None:
        self.event = trio.Event()
        self.value: Any = None
        self.failure: Exception | None = None

    def settle(self, value: Any, failure: Exception | None) -> None:
        if not self.event.is_set():
            self.value, self.failure = value, failure
            self.event.set()


class ZookeeperStore(MetadataStore):
    """One session with a ZooKeeper; made by ``open_zookeeper_store``."""

    def __init__(self, hosts: str, session_timeout_ms: int) -> None:
        self.hosts = hosts
        self._token = trio.lowlevel.current_trio_token()
        self._session = Session()
        self._session_id = 0
        self._in_flight = trio.CapacityLimiter(CALLS_IN_FLIGHT_MAX)
        self._waiters: set[_Waiter] = set()
        self._connected = trio.Event()
        self._closed = False
        self._stopping = False
        self._stopped = trio.Event()  # kazoo's threads have ended
        self._handler = _OneSessionHandler()
        self._client = KazooClient(
            hosts=hosts,
            timeout=session_timeout_ms / 1000,
            handler=self._handler,
            # Of connecting; requests are never repeated, since ``client.retry`` is not used.
            connection_retry=KazooRetry(
                max_tries=-1,
                delay=0.1,
                max_delay=RECONNECT_DELAY_MAX_S,
                sleep_func=self._handler.sleep_func,
            ),
            logger=kazoo_log,
        )
        self._client.add_listener(self._on_kazoo_state)

    def __repr__(self) -> str:
        return f"<ZookeeperStore {self.hosts} session {self._session_id:#x} {self.state.value}>"

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def state(self) -> SessionState:
        return self._session.state

    async def wait_state_change(self, seen: SessionState) -> SessionState:
        return await self._session.wait_state_change(seen)

    async def get(self, path: str, *, watch: trio.Event | None = None) -> Node:
        check_path(path)
        value, stat = await self._watching(WatchKind.DATA, path, watch, self._client.get_async)
        return Node(value, _stat(stat))

    async def exists(self, path: str, *, watch: trio.Event | None = None) -> Stat | None:
        check_path(path)
        stat = await self._watching(WatchKind.DATA, path, watch, self._client.exists_async)
        return None if stat is None else _stat(stat)

    async def children(self, path: str, *, watch: trio.Event | None = None) -> Children:
        check_path(path)

        def ask(path: str, watch: _Watcher | None) -> Any:
            return self._client.get_children_async(path, watch=watch, include_data=True)

        names, stat = await self._watching(WatchKind.CHILDREN, path, watch, ask)
        return Children(tuple(sorted(names)), stat.cversion)

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

        def ask() -> Any:
            return self._client.create_async(path, bytes(value), ephemeral=ephemeral, sequence=sequential)

        while True:
            try:
                created = await self._call(path, ask)
            except NoNodeError:
                if not parents:
                    raise NoNodeError(path, "its parent does not exist") from None
            else:
                assert isinstance(created, str)
                return created
            for ancestor in ancestors_of(path):
                try:
                    await self._call(ancestor, partial(self._client.create_async, ancestor, b""))
                except (NodeExistsError, NoNodeError):
                    pass  # there already; or just deleted again, and then the next round makes it

    async def put(self, path: str, value: bytes, *, expected: int = ANY_VERSION) -> Stat:
        check_size(check_path(path), len(value))
        return _stat(
            await self._call(path, lambda: self._client.set_async(path, bytes(value), version=expected))
        )

    async def delete(self, path: str, *, expected: int = ANY_VERSION) -> None:
        check_new_path(path)
        await self._call(path, lambda: self._client.delete_async(path, version=expected))

    async def commit(self, operations: Sequence[Operation]) -> None:
        check_operations(operations)

        def ask() -> Any:
            request = self._client.transaction()
            for operation in operations:
                match operation:
                    case Create(path=path, value=value):
                        request.create(path, bytes(value))
                    case Put(path=path, value=value, expected=expected):
                        request.set_data(path, bytes(value), version=expected)
                    case Delete(path=path, expected=expected):
                        request.delete(path, version=expected)
                    case Check(path=path, expected=expected):
                        request.check(path, version=expected)
                    case _:
                        assert_never(operation)
            return request.commit_async()

        results = await self._call(operations[0].path if operations else "/", ask)
        failures = [
            (operation.path, result)
            for operation, result in zip(operations, results, strict=True)
            if isinstance(result, Exception)
        ]
        if failures:
            # One failed; the others are marked as undone or never tried.
            path, failure = next((each for each in failures if not isinstance(each[1], _MARKS)), failures[0])
            raise _translated(path, failure) from failure

    async def sync(self, path: str) -> None:
        check_path(path)
        await self._call(path, lambda: self._client.sync_async(path))

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._session.change_state(SessionState.CLOSED)
        self._fail_waiters("/")
        self._begin_stop()
        with trio.move_on_after(CLOSE_TIMEOUT_S) as scope:
            scope.shield = True
            await self._stopped.wait()

    async def _connect(self, timeout_s: float) -> None:
        self._client.start_async()
        with trio.move_on_after(timeout_s):
            await self._connected.wait()
        if self._connected.is_set():
            return
        failure = self._handler.last_failure
        raise StoreUnreachableError(
            f"no ZooKeeper session at {self.hosts} within {timeout_s:g} s"
            + (f": {failure}" if failure is not None else "")
        ) from failure

    async def _watching(
        self,
        kind: WatchKind,
        path: str,
        watch: trio.Event | None,
        ask: Callable[[str, _Watcher | None], Any],
    ) -> Any:
        if watch is None:
            return await self._call(path, lambda: ask(path, None))
        watcher = _Watcher(kind, path, self._on_watch)
        # Before the answer: an event on its heels may be heard first.
        self._session.watch(kind, path, watch)
        try:
            return await self._call(path, lambda: ask(path, watcher))
        except BaseException:
            self._session.unwatch(kind, path, watch)
            raise

    async def _call(self, path: str, ask: Callable[[], Any]) -> Any:
        """Send one request; wait for its answer."""
        async with self._in_flight:
            self._session.check(path)
            # Known to kazoo a moment earlier than to us; it would keep the request for a later connection.
            if not self._client.connected:
                raise ConnectionLostError(path, "the store is out of reach; nothing was sent")
            waiter = _Waiter()
            self._waiters.add(waiter)
            try:
                ask().rawlink(lambda result: self._on_answer(waiter, result))
                await waiter.event.wait()
            finally:
                self._waiters.discard(waiter)
        if waiter.failure is not None:
            if not isinstance(waiter.failure, StoreError):
                raise _translated(path, waiter.failure) from waiter.failure
            raise waiter.failure
        return waiter.value

    # What follows runs in kazoo's threads (and one of ours), up to the calls of ``_soon``.

    def _on_kazoo_state(self, state: str) -> None:
        if state == KazooState.LOST:
            # In the thread that would connect next, so no other session can begin before this.
            self._handler.over = True
        self._soon(self._enter, state)

    def _on_watch(self, kind: WatchKind, path: str) -> None:
        self._soon(self._session.fire, kind, path)

    def _on_answer(self, waiter: _Waiter, result: Any) -> None:
        self._soon(waiter.settle, result.value, result.exception)

    def _stop_client(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except Exception as exc:
            # The session ends by itself when the server hears no more of it.
            kazoo_log.warning("client of %s not stopped in order: %r", self.hosts, exc)
        self._soon(self._stopped.set)

    def _soon(self, function: Callable[..., object], *args: object) -> None:
        try:
            self._token.run_sync_soon(function, *args)
        except trio.RunFinishedError:
            pass  # nobody is left to be told

    # What follows runs on the loop again.

    def _enter(self, state: str) -> None:
        if state == KazooState.CONNECTED and not self._handler.over:
            self._session_id = self._client.client_id[0]
            self._session.change_state(SessionState.CONNECTED)
            self._connected.set()
        elif state == KazooState.SUSPENDED:
            self._session.change_state(SessionState.SUSPENDED)
            self._fail_waiters("/")
        elif state == KazooState.LOST:
            self._session.change_state(SessionState.EXPIRED)
            self._fail_waiters("/")
            self._begin_stop()

    def _begin_stop(self) -> None:
        if not self._stopping:
            self._stopping = self._handler.over = True
            # A thread of its own: kazoo may wait longer for a dead server than anybody should.
            threading.Thread(target=self._stop_client, name="close ZooKeeper", daemon=True).start()

    def _fail_waiters(self, path: str) -> None:
        """Nobody waits for an answer from a connection that is gone."""
        for waiter in self._waiters:
            if self.state is SessionState.SUSPENDED:
                waiter.settle(None, ConnectionLostError(path))
            else:
                waiter.settle(None, SessionExpiredError(path))


@asynccontextmanager
async def open_zookeeper_store(
    hosts: str, *, session_timeout_ms: int = 10_000, connect_timeout_s: float = 10
) -> AsyncIterator[ZookeeperStore]:
    """Open a session; leaving the block ends it.

    Args:
        hosts: ``host:port`` separated by commas.
        session_timeout_ms: How long the server keeps a session it does not hear from; it may set bounds.

    Raises:
        StoreUnreachableError: No server gave us a session within ``connect_timeout_s``.
        InvalidUriError: The hosts cannot be understood.
    """
    if not math.isfinite(connect_timeout_s) or connect_timeout_s <= 0 or session_timeout_ms <= 0:
        raise ValueError("timeouts must be positive and finite")
    try:
        store = ZookeeperStore(hosts, session_timeout_ms)
    except ValueError as exc:
        raise InvalidUriError(f"ZooKeeper hosts {hosts!r}: {exc}") from exc
    try:
        await store._connect(connect_timeout_s)
        yield store
    finally:
        await store.aclose()


def _stat(stat: Any) -> Stat:
    return Stat(stat.version, stat.cversion, stat.numChildren, stat.ctime, stat.ephemeralOwner)


def _translated(path: str, failure: Exception) -> StoreError:
    for kazoo_class, ours in _ERRORS:
        if isinstance(failure, kazoo_class):
            return ours(path)
    if isinstance(failure, kazoo_errors.BadArgumentsError):
        return InvalidPathError(path, "refused by the server")
    return StoreError(path, f"the server answered with {failure!r}")
