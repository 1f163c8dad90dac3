"""The metadata store in a ZooKeeper: kazoo, and the hop between its threads and trio.

Inside: one kazoo client. Its results and events reach the loop through the trio token.
Not inside: retries. The caller decides about a write whose reply was lost.
Always: while the connection is lost, nothing is sent and every call raises at once; kazoo never opens another
session after an expired one, since locks of the old session would seem to be held; the late result of a
cancelled call is dropped.

Source: kazoo 2.11, client.py and protocol/connection.py; ZooKeeper programmer's guide.
"""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, assert_never

import attrs
import trio
from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient
from kazoo.protocol.states import EventType, KazooState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from ledger.metadata_store.errors import (
    AccessDeniedError,
    BadVersionError,
    ConnectionLostError,
    InvalidPathError,
    InvalidStoreAddressError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
    StoreError,
    StoreSecurityError,
    StoreUnreachableError,
)
from ledger.metadata_store.service_uri import without_user_info
from ledger.metadata_store.sessions.session import Session, WatchKind
from ledger.metadata_store.store import (
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
from ledger.metadata_store.zookeeper_security import ZooKeeperSecurity, security_of_environment
from ledger.metadata_store.zookeeper_threads import OneSessionHandler, kazoo_log
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tls_refusal import refusal_text

logger = get_logger(__name__)

# kazoo wakes its thread with one byte for each request, through a socket pair. That write runs on our loop,
# and it blocks once about 270 bytes wait.
CALLS_IN_FLIGHT_MAX = 128
CLOSE_TIMEOUT_S = 15.0
RECONNECT_DELAY_MAX_S = 1.0

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
    (kazoo_errors.NoAuthError, AccessDeniedError),
    (kazoo_errors.InvalidACLError, AccessDeniedError),
    (kazoo_errors.AuthFailedError, AccessDeniedError),
]


# The results of the other operations in a failed transaction.
_ROLLED_BACK = (kazoo_errors.RolledBackError, kazoo_errors.RuntimeInconsistency)


@attrs.frozen
class _Watcher:
    """kazoo calls this for an event. It keeps one of several equal watchers at one path."""

    kind: WatchKind
    path: str
    fire: Callable[[WatchKind, str], None]

    def __call__(self, event: Any) -> None:
        # An event of type NONE is about the session. Watches fire when the session continues or ends.
        if event.type != EventType.NONE:
            self.fire(self.kind, self.path)


class _Waiter:
    """A task that waits for a result of kazoo's."""

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

    def __init__(self, hosts: str, session_timeout_ms: int, security: ZooKeeperSecurity) -> None:
        self.hosts, self.security = hosts, security
        self._token = trio.lowlevel.current_trio_token()
        self._session = Session()
        self._session_id = 0
        self._in_flight = trio.CapacityLimiter(CALLS_IN_FLIGHT_MAX)
        self._waiters: set[_Waiter] = set()
        self._decided = trio.Event()  # the first session has begun, or ended at once
        self._closed = False
        self._stopping = False
        self._stopped = trio.Event()  # kazoo's threads have ended
        self._handler = OneSessionHandler(security, hosts.count(",") + 1)
        self._client = KazooClient(
            hosts=hosts,
            timeout=session_timeout_ms / 1000,
            handler=self._handler,
            # For connecting only. Requests are never repeated: ``client.retry`` is not used.
            connection_retry=KazooRetry(
                max_tries=-1,
                delay=0.1,
                max_delay=RECONNECT_DELAY_MAX_S,
                sleep_func=self._handler.sleep_func,
            ),
            logger=kazoo_log,
            **_credentials(security),
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

        def request(path: str, watch: _Watcher | None) -> Any:
            return self._client.get_children_async(path, watch=watch, include_data=True)

        names, stat = await self._watching(WatchKind.CHILDREN, path, watch, request)
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

        def request() -> Any:
            return self._client.create_async(
                path, bytes(value), self._acl_of(path), ephemeral=ephemeral, sequence=sequential
            )

        while True:
            try:
                created = await self._call(path, request)
            except NoNodeError:
                if not parents:
                    raise NoNodeError(path, "its parent does not exist") from None
            else:
                assert isinstance(created, str)  # kazoo returns the path without include_data
                return created
            for ancestor in ancestors_of(path):
                try:
                    acl = self._acl_of(ancestor)
                    await self._call(ancestor, partial(self._client.create_async, ancestor, b"", acl))
                except (NodeExistsError, NoNodeError):
                    pass  # exists; or its parent was just deleted, and the next round creates it

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

        def request() -> Any:
            transaction = self._client.transaction()
            for operation in operations:
                match operation:
                    case Create(path=path, value=value):
                        transaction.create(path, bytes(value), self._acl_of(path))
                    case Put(path=path, value=value, expected=expected):
                        transaction.set_data(path, bytes(value), version=expected)
                    case Delete(path=path, expected=expected):
                        transaction.delete(path, version=expected)
                    case Check(path=path, expected=expected):
                        transaction.check(path, version=expected)
                    case _:
                        assert_never(operation)
            return transaction.commit_async()

        results = await self._call(operations[0].path if operations else "/", request)
        failures = [
            (operation.path, result)
            for operation, result in zip(operations, results, strict=True)
            if isinstance(result, Exception)
        ]
        if failures:
            # One operation failed; the results of the others say that they were rolled back or not tried.
            path, failure = next(
                (each for each in failures if not isinstance(each[1], _ROLLED_BACK)), failures[0]
            )
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
            await self._decided.wait()
            await self._check_identity()
            if self.state is not SessionState.EXPIRED:
                return
        failure = self._handler.last_failure or await trio.to_thread.run_sync(
            _unresolved, self._client.hosts, abandon_on_cancel=True
        )
        if isinstance(failure, StoreSecurityError):
            raise StoreSecurityError(f"ZooKeeper at {self.hosts}: {failure}") from failure
        raise StoreUnreachableError(
            f"no ZooKeeper session at {self.hosts} within {timeout_s:g} s"
            + (f": {refusal_text(failure)}" if failure is not None else "")
        ) from failure

    async def _check_identity(self) -> None:
        """Wait until the server has taken the identity: kazoo reports a session before it sends one."""
        while self.security.scheme is not None:
            seen = self.state
            try:
                await self._call("/", partial(self._client.exists_async, "/"))
                return
            except ConnectionLostError:
                await self.wait_state_change(seen)
            except (SessionExpiredError, AccessDeniedError) as exc:
                raise StoreSecurityError(
                    f"ZooKeeper at {self.hosts} refused the user {self.security.username!r} with scheme"
                    f" {self.security.scheme!r}; check the password, and that the server knows the user"
                ) from exc

    def _acl_of(self, path: str) -> Any:
        """The access list of a new node. No list is ever changed, so a node created open stays open."""
        return CREATOR_ALL_ACL if self.security.protects(path) else OPEN_ACL_UNSAFE

    async def _watching(
        self,
        kind: WatchKind,
        path: str,
        watch: trio.Event | None,
        request: Callable[[str, _Watcher | None], Any],
    ) -> Any:
        if watch is None:
            return await self._call(path, lambda: request(path, None))
        watcher = _Watcher(kind, path, self._on_watch)
        # Before the reply: an event right after the reply may reach the loop first.
        self._session.watch(kind, path, watch)
        try:
            return await self._call(path, lambda: request(path, watcher))
        except BaseException:
            self._session.unwatch(kind, path, watch)
            raise

    async def _call(self, path: str, request: Callable[[], Any]) -> Any:
        """Send one request; wait for its reply."""
        async with self._in_flight:
            self._session.check(path)
            # kazoo knows of a lost connection before this session does, and would keep the request for the
            # next connection.
            if not self._client.connected:
                raise ConnectionLostError(path, "the store is out of reach; the request was not sent")
            waiter = _Waiter()
            self._waiters.add(waiter)
            try:
                request().rawlink(lambda result: self._on_reply(waiter, result))
                await waiter.event.wait()
            finally:
                self._waiters.discard(waiter)
        if waiter.failure is not None:
            if not isinstance(waiter.failure, StoreError):
                raise _translated(path, waiter.failure) from waiter.failure
            raise waiter.failure
        return waiter.value

    # The next methods run in kazoo's threads and in one of ours. They reach the loop by ``_soon``.

    def _on_kazoo_state(self, state: str) -> None:
        if state == KazooState.LOST:
            # This is the thread that would connect next. So no other session can begin first.
            self._handler.over = True
        self._soon(self._enter, state)

    def _on_watch(self, kind: WatchKind, path: str) -> None:
        self._soon(self._session.fire, kind, path)

    def _on_reply(self, waiter: _Waiter, result: Any) -> None:
        self._soon(waiter.settle, result.value, result.exception)

    def _stop_client(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except Exception as exc:
            # The server ends the session after the session timeout.
            extra = event("zookeeper.not_stopped", hosts=self.hosts, error=exc)
            logger.warning("ZooKeeper at %s: client not stopped cleanly: %r", self.hosts, exc, extra=extra)
        self._soon(self._stopped.set)

    def _soon(self, function: Callable[..., object], *args: object) -> None:
        try:
            self._token.run_sync_soon(function, *args)
        except trio.RunFinishedError:
            pass  # the loop has ended

    # The next methods run on the loop again.

    def _enter(self, state: str) -> None:
        if state == KazooState.CONNECTED and not self._handler.over:
            self._session_id = self._client.client_id[0]
            if self.state is SessionState.SUSPENDED:
                extra = event("zookeeper.connected", hosts=self.hosts)
                logger.warning("ZooKeeper at %s: connected again", self.hosts, extra=extra)
            self._session.change_state(SessionState.CONNECTED)
            self._decided.set()
        elif state == KazooState.SUSPENDED:
            if self.state is SessionState.CONNECTED:
                extra = event("zookeeper.lost", hosts=self.hosts)
                logger.warning(
                    "ZooKeeper at %s: the connection is lost; trying again", self.hosts, extra=extra
                )
            self._session.change_state(SessionState.SUSPENDED)
            self._fail_waiters("/")
        elif state == KazooState.LOST:
            self._session.change_state(SessionState.EXPIRED)
            self._decided.set()
            self._fail_waiters("/")
            self._begin_stop()

    def _begin_stop(self) -> None:
        if not self._stopping:
            self._stopping = self._handler.over = True
            # In a thread of its own: kazoo may wait long for a dead server.
            threading.Thread(target=self._stop_client, name="close ZooKeeper", daemon=True).start()

    def _fail_waiters(self, path: str) -> None:
        """Fail the calls whose replies would come over the lost connection."""
        for waiter in self._waiters:
            if self.state is SessionState.SUSPENDED:
                waiter.settle(None, ConnectionLostError(path))
            else:
                waiter.settle(None, SessionExpiredError(path))


@asynccontextmanager
async def open_zookeeper_store(
    hosts: str,
    *,
    session_timeout_ms: int = 10_000,
    connect_timeout_s: float = 10,
    security: ZooKeeperSecurity | None = None,
) -> AsyncIterator[ZookeeperStore]:
    """Open a session. Leaving the block ends it.

    Args:
        hosts: ``host:port`` separated by commas.
        session_timeout_ms: The server ends a silent session after this time; it may enforce limits.
        security: Identity, access lists of new nodes, and TLS. None: the settings in the file that the
            environment variable DLOG_ZK_SECURITY names, if it is set.

    Raises:
        StoreSecurityError: The settings are wrong, or the server refused the identity.
        StoreUnreachableError: No server opened a session within ``connect_timeout_s``.
        InvalidStoreAddressError: The hosts cannot be parsed.
    """
    if not math.isfinite(connect_timeout_s) or connect_timeout_s <= 0 or session_timeout_ms <= 0:
        raise ValueError("timeouts must be positive and finite")
    if "@" in hosts:
        raise InvalidStoreAddressError(
            f"ZooKeeper hosts {without_user_info(hosts)!r}: a user name or a password; name a file with the"
            " identity in DLOG_ZK_SECURITY (docs/security.md)"
        )
    security = security_of_environment() if security is None else security
    await trio.to_thread.run_sync(security.check_usable)
    try:
        store = ZookeeperStore(hosts, session_timeout_ms, security)
    except ValueError as exc:
        raise InvalidStoreAddressError(f"ZooKeeper hosts {hosts!r}: {exc}") from None
    try:
        await store._connect(connect_timeout_s)
        yield store
    finally:
        await store.aclose()


def _unresolved(hosts: Sequence[tuple[str, int]]) -> Exception | None:
    """The error of the first host whose name has no address. kazoo only logs it."""
    for host, port in hosts:
        try:
            socket.getaddrinfo(host, port)
        except OSError as exc:
            return OSError(f"host {host}: {exc.strerror}")
    return None


def _credentials(security: ZooKeeperSecurity) -> dict[str, Any]:
    """kazoo's arguments for an identity; the password is read now, so each session has the newest."""
    match security.scheme:
        case "sasl":
            name, password = security.username, security.read_password()
            return {"sasl_options": {"mechanism": "DIGEST-MD5", "username": name, "password": password}}
        case "digest":
            return {"auth_data": [("digest", f"{security.username}:{security.read_password()}")]}
        case None:
            return {}


def _stat(stat: Any) -> Stat:
    return Stat(stat.version, stat.cversion, stat.numChildren, stat.ctime, stat.ephemeralOwner)


def _translated(path: str, failure: Exception) -> StoreError:
    for kazoo_class, ours in _ERRORS:
        if isinstance(failure, kazoo_class):
            return ours(path)
    if isinstance(failure, kazoo_errors.BadArgumentsError):
        return InvalidPathError(path, "refused by the server")
    return StoreError(path, f"the server replied with {failure!r}")
