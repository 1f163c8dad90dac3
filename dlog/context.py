"""What every call on a namespace needs: its store, its bookies, its settings, and the checks before a call.

Inside: one frozen value, of which the objects of a namespace are made; the place of a log, and the only place
that logs of a cluster have. Not inside: the calls (``operations``, ``namespace_handle``), places that change
(those who open a namespace pass ``locate``).
Always: a call on a closed, forked or read-only namespace is refused before anything happens; a call waits as
long for a metadata store that is out of reach as readers and writers do, and does a change once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from threading import get_ident
from typing import TYPE_CHECKING, Protocol, TypeVar

import attrs
import trio

from dlog.config import NamespaceConfig, ReaderConfig, WriterConfig
from dlog.errors import LogMovedError, NamespaceClosedError, ReadOnlyError, translated
from dlog.read.read_only_log import ReadOnlyLog
from dlog.retry_policy import RetryPolicy
from dlog.write.log_writer import LogWriter
from dlog.write.opening import locked, take_lock
from dlog.write.segment_lifecycle import SegmentLifecycle
from ledger.catalog.connection_retry import retry_lost_connection
from ledger.client import LedgerClient
from ledger.metadata_store.lock import DistributedLock
from ledger.metadata_store.store import MetadataStore, SessionState
from ledger.runtime.clock import wall_ms
from ledger.runtime.tasks.forks import RULE, call_in_child
from ledger.runtime.tasks.trio_only import check_thread
from namespace import logs
from namespace.access_control.entries import Denial
from namespace.access_control.nodes import AccessControl
from namespace.access_control.policies import Permissions
from namespace.log_name import check_log_name
from namespace.log_nodes import LogNodes
from namespace.policy import Right
from namespace.segments.segment import FIRST_SEGMENT_SEQNO

if TYPE_CHECKING:
    from dlog.forwarding.shared_shell import Meeting

T = TypeVar("T")
EMBEDDED_NAMESPACE_PATH = "/dlog"  # of the one namespace in a directory


class LogLocation(Protocol):
    """The place of one log: the namespace that was asked, or another one that the log was moved to."""

    @property
    def can_move(self) -> bool:
        """False if the log is in the namespace that was asked, and stays there."""

    async def check_here(self) -> None:
        """Return if the log takes records in the namespace that was asked.

        Raises:
            LogMovedError: It does not, or not any more.
        """

    async def check_stays(self, refused: str) -> None:
        """Return if the log is not being moved.

        Args:
            refused: What cannot be done otherwise, for the error: "not deleted".

        Raises:
            LogMovingError: It is being moved, or was.
        """

    async def moved_to(self) -> str | None:
        """The URI of the namespace that the log was moved to; None if it was not."""

    async def current(self) -> NamespaceContext:
        """The namespace where the log takes records now."""

    async def successor(self) -> NamespaceContext:
        """The namespace that the log was moved to, once it takes records there.

        Raises:
            LogUnavailableError: The move was not finished in time, or was undone just now.
        """

    async def for_reader(self) -> NamespaceContext:
        """The namespace that a reader opens: the old one until the new one takes records."""

    async def follow(
        self, timeout_s: float, config: WriterConfig
    ) -> tuple[NamespaceContext, SegmentLifecycle, DistributedLock] | None:
        """The log where it was moved to, for a writer that another program has stopped; else None.

        Raises:
            LogMovedError: Another writer has it there.
            LogUnavailableError: It is not there yet, or cannot be reached.
        """

    async def wait_moved(self) -> None:
        """Return when the log takes no more records in the namespace that was asked."""

    def log(self) -> ReadOnlyLog:
        """The log for readers, wherever its segments are."""


class FixedLocation:
    """The place of a log that stays where it is."""

    can_move = False

    def __init__(self, context: NamespaceContext, name: str) -> None:
        self._context, self._name = context, name

    async def check_here(self) -> None:
        """It is."""

    async def check_stays(self, refused: str) -> None:
        """It does."""

    async def moved_to(self) -> str | None:
        """Nowhere."""
        return None

    async def current(self) -> NamespaceContext:
        """The namespace that was asked."""
        return self._context

    async def successor(self) -> NamespaceContext:
        """The namespace that was asked."""
        return self._context

    async def for_reader(self) -> NamespaceContext:
        """The namespace that was asked."""
        return self._context

    async def follow(
        self, timeout_s: float, config: WriterConfig
    ) -> tuple[NamespaceContext, SegmentLifecycle, DistributedLock] | None:
        """There is nothing to follow."""
        return None

    async def wait_moved(self) -> None:
        """Wait until it is cancelled."""
        await trio.sleep_forever()

    def log(self) -> ReadOnlyLog:
        """The log for readers."""
        return self._context.log_here(self._name)


@attrs.define(eq=False)
class _Openness:
    """Whether calls on a namespace are accepted."""

    is_closed: bool = False
    is_forked: bool = False
    thread: int = attrs.field(factory=get_ident)  # of the run that has opened it

    def refuse_in_child(self) -> None:
        """Refuse every later call: called in a forked child."""
        self.is_forked = True


@attrs.frozen(eq=False)
class NamespaceContext:
    """An open namespace, for the objects that are made of it.

    Args:
        uri: As passed to ``open_namespace``.
        path: Of the namespace's node in the store.
        principal: The name of this program for the policy; None: ``client_id``.
        is_backup: It is a backup that is read in place.
        is_snapshot: It is read-only, and no process writes: later records do not appear.
        access_control_path: The node with the default access control entry, if there is one.
        meet: Where the programs that share the writer of a log meet; None: they cannot.
        locate: Gives the place of a log. Without it logs stay where they are.
    """

    uri: str
    store: MetadataStore
    client: LedgerClient
    path: str
    config: NamespaceConfig
    client_id: str = attrs.field(kw_only=True)
    first_segment_seqno: int = attrs.field(default=FIRST_SEGMENT_SEQNO, kw_only=True)
    wall_ms: Callable[[], int] = attrs.field(default=wall_ms, kw_only=True)
    principal: str | None = attrs.field(default=None, kw_only=True)
    read_only: bool = attrs.field(default=False, kw_only=True)
    is_backup: bool = attrs.field(default=False, kw_only=True)
    is_snapshot: bool = attrs.field(default=False, kw_only=True)
    access_control_path: str | None = attrs.field(default=None, kw_only=True)
    meet: Callable[[LogNodes], Meeting] | None = attrs.field(default=None, kw_only=True)
    locate: Callable[[NamespaceContext, str], LogLocation] = attrs.field(default=FixedLocation, kw_only=True)
    permissions: Permissions = attrs.field(init=False)
    access: AccessControl = attrs.field(init=False)
    writers: list[LogWriter] = attrs.field(factory=list, init=False)
    """Those that were opened by this namespace and are open."""
    _openness: _Openness = attrs.field(factory=_Openness, init=False)

    @permissions.default
    def _of_principal(self) -> Permissions:
        return Permissions(
            self.store, self.path, self.client_id if self.principal is None else self.principal
        )

    @access.default
    def _of_path(self) -> AccessControl:
        return AccessControl(self.store, self.access_control_path)

    def __attrs_post_init__(self) -> None:
        call_in_child(self._openness, _Openness.refuse_in_child)

    def __repr__(self) -> str:
        state = "closed" if self._openness.is_closed else self.store.state.value
        return f"<Namespace {self.uri}, {state}>"

    # Open and closed.

    def close(self) -> None:
        """Refuse every later call. Open writers and readers end with the block that opened the namespace."""
        self._openness.is_closed = True

    @property
    def is_over(self) -> bool:
        """True if the namespace cannot be used any more."""
        return self._openness.is_closed or self.store.state is SessionState.CLOSED

    def check_open(self, right: Right = Right.READ) -> None:
        """Raise if no call that needs this right can be made.

        Raises:
            NamespaceClosedError, ReadOnlyError
        """
        if self._openness.is_forked:
            raise NamespaceClosedError(f"namespace {self.uri}: {RULE}")
        if self._openness.is_closed:
            raise NamespaceClosedError(f"namespace {self.uri} was closed; open it again")
        if self.read_only and right is not Right.READ:
            raise ReadOnlyError(
                f"namespace {self.uri}",
                "it is a backup. Nothing was changed. Restore it and write there: `dlog restore DEST DIR`"
                if self.is_backup
                else None,
            )

    def _check_thread(self) -> None:
        """Raise RuntimeError in another thread than that of the run that has opened the namespace.

        For calls that wait. What gives an object that is not open yet may be called in any thread.
        """
        check_thread(self._openness.thread, f"namespace {self.uri}")

    # Checks before a call.

    def checked(self, name: str, right: Right = Right.READ) -> str:
        """The name, if it can be that of a log and the namespace is open."""
        self.check_open(right)
        return check_log_name(name)

    async def permitted(self, name: str, right: Right, *operations: Denial, cursor: str | None = None) -> str:
        """Check the name, the policy, that access control entries deny no operation, and the log's place.

        Args:
            cursor: That is moved or deleted, for the right to commit.

        Raises:
            AccessDeniedError, InvalidLogNameError, LogUnavailableError, LogMetadataError
            LogMovedError: It is in another namespace now.
        """
        name = self.checked(name, right)
        self._check_thread()

        async def check() -> None:
            await self.permissions.check(name, right, cursor)
            await self.access.check(name, operations)

        timeout_s = self.retry_timeout_s(right)
        with translated(name, "reading the policy"):
            await retry_lost_connection(check, timeout_s=timeout_s)
        with translated(name, "looking whether it was moved"):
            await retry_lost_connection(self.location(name).check_here, timeout_s=timeout_s)
        return name

    async def may(self, name: str, right: Right, *operations: Denial) -> None:
        """As ``permitted``, in the namespace that has the log now."""
        await self.where_it_is(name, lambda there: there.permitted(name, right, *operations))

    async def may_read(self, name: str) -> str:
        """Check the name and the policy, of a log that may be elsewhere by now."""
        name = self.checked(name)
        self._check_thread()
        with translated(name, "reading the policy"):
            await self.permissions.check(name, Right.READ)
        return name

    async def readable_logs(self, prefix: str = "") -> list[str]:
        """The names of the logs, sorted, that this program may read; see ``Namespace.list_logs``."""
        self.check_open()

        async def look() -> list[str]:
            with translated(None, "listing logs"):
                return await self.permissions.readable(await logs.list_logs(self.store, self.path, prefix))

        return await self.while_store_is_away(Right.READ, look)

    # Where a log is.

    def nodes(self, name: str, session: MetadataStore | None = None) -> LogNodes:
        """The nodes of a log in this namespace; for changes in a session, such as that of the log's lock."""
        return LogNodes(self.store if session is None else session, self.path, name)

    def location(self, name: str) -> LogLocation:
        """The place of a log."""
        return self.locate(self, name)

    async def where_it_is(self, name: str, call: Callable[[NamespaceContext], Awaitable[T]]) -> T:
        """Make a call on a log in the namespace that has the log now."""
        try:
            return await call(self)
        except LogMovedError:
            location = self.location(name)
            if not location.can_move:
                raise
        return await (await location.successor()).where_it_is(name, call)

    def log(self, name: str) -> ReadOnlyLog:
        """The log for readers, wherever its segments are."""
        return self.location(self.checked(name)).log()

    def log_here(self, name: str) -> ReadOnlyLog:
        """The log as it is in this namespace."""
        return ReadOnlyLog(self.nodes(name), self.client, self.config.password)

    # Changes.

    def _settings(self, right: Right) -> ReaderConfig | WriterConfig:
        """Of the readers or the writers, whichever need the right."""
        return self.config.reader if right in (Right.READ, Right.COMMIT) else self.config.writer

    def retry_timeout_s(self, right: Right) -> float:
        """How long a call that needs the right waits while the metadata store is out of reach."""
        return self._settings(right).retry_timeout_s

    async def while_store_is_away(self, right: Right, step: Callable[[], Awaitable[T]]) -> T:
        """Run a step that may be repeated; repeat it while the metadata store is out of reach."""
        self._check_thread()
        settings = self._settings(right)
        policy = RetryPolicy(timeout_s=settings.retry_timeout_s, pause_s=settings.retry_pause_s)
        return await policy.while_store_is_away(step, self.store, subject=f"namespace {self.uri}")

    async def change(self, name: str, doing: str, step: Callable[[], Awaitable[T]]) -> T:
        """Change something of a log by a step that may be repeated; see ``while_store_is_away``."""

        async def attempt() -> T:
            with translated(name, doing):
                return await step()

        return await self.while_store_is_away(Right.WRITE, attempt)

    def locked(self, name: str, timeout_s: float) -> AbstractAsyncContextManager[DistributedLock]:
        """Hold the log's lock for the duration of the block; see ``write.opening.locked``."""
        return locked(self.nodes(name), self.client_id, timeout_s, self._session_timeout_s)

    @property
    def _session_timeout_s(self) -> float | None:
        return None if self.uri.startswith("file:") else self.config.session_timeout_ms / 1000

    async def take_lock(self, name: str, timeout_s: float) -> DistributedLock:
        """Acquire the log's lock; see ``write.opening.take_lock``."""
        return await take_lock(self.nodes(name), self.client_id, timeout_s, self._session_timeout_s)

    def lifecycle(self, name: str, session: MetadataStore) -> SegmentLifecycle:
        """The segments of a log, changed in a session, such as that of its lock."""
        return SegmentLifecycle(
            self.nodes(name, session),
            self.client,
            self.config,
            first_segment_seqno=self.first_segment_seqno,
            wall_ms=self.wall_ms,
        )

    def writers_lifecycle(self, name: str, lock: DistributedLock, config: WriterConfig) -> SegmentLifecycle:
        """The segments of a log for its writer; one that has lost its lock changes no segment."""

        async def may_retain() -> bool:
            return Denial.TRUNCATE not in (await self.access.entry_of(name)).denied

        return SegmentLifecycle(
            self.nodes(name, lock.session),
            self.client,
            self.config,
            first_segment_seqno=self.first_segment_seqno,
            wall_ms=self.wall_ms,
            may_retain=may_retain,
            degraded_ensemble=config.degraded_ensemble,
        )
