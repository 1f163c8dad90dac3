"""What every call on a namespace needs: its store, its bookies, its settings, and the checks before a call.

Inside: the state behind ``Namespace``, the checks of name, right and process. Not inside: the calls
(``administration``, ``queries``, ``namespace_handle``).
Always: a call on a closed, forked or read-only namespace is refused before anything happens; a call waits as
long for a metadata store that is out of reach as readers and writers do, and does a change once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import trio

from dlog.config import NamespaceConfig, ReaderConfig, WriterConfig
from dlog.errors import (
    LogPromotedError,
    LogUnavailableError,
    NamespaceClosedError,
    NamespaceLostError,
    PromotionError,
    ReadOnlyError,
    translated,
)
from dlog.promotion.nodes import read_source
from dlog.promotion.promoted_log import PromotedLog
from dlog.promotion.promoter import Promoter
from dlog.promotion.record import SourcePhase, SourceRecord
from dlog.promotion.sides import Side
from dlog.read.read_only_log import ReadOnlyLog
from dlog.retry_policy import RetryPolicy
from dlog.statistics_names import statistics_of
from dlog.write.opening import locked
from ledger.catalog.connection_retry import retry_lost_connection
from ledger.client import LedgerClient
from ledger.metadata_store.lock import DistributedLock
from ledger.metadata_store.store import MetadataStore, SessionState
from ledger.runtime.clock import wall_ms
from ledger.runtime.statistics import Statistics
from ledger.runtime.tasks.forks import RULE, call_in_child
from namespace.access_control.entries import Denial
from namespace.access_control.nodes import AccessControl
from namespace.log_name import check_log_name
from namespace.policies import Permissions
from namespace.policy import Right
from namespace.segments.segment import FIRST_SEGMENT_SEQNO

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])

PROMOTION_POLL_S = 1.0  # while another process finishes a hand-over; it may die without a sign

Call = ParamSpec("Call")
T = TypeVar("T")


def waits_for_store(
    question: Callable[Concatenate[Any, Call], Awaitable[T]],
) -> Callable[Concatenate[Any, Call], Coroutine[Any, Any, T]]:
    """Repeat a method of ``NamespaceBase`` that changes nothing while the metadata store is out of reach."""

    @wraps(question)
    async def repeated(self: Any, /, *args: Call.args, **kwargs: Call.kwargs) -> T:
        answer: T = await self._while_store_is_away(Right.READ, lambda: question(self, *args, **kwargs))
        return answer

    return repeated


class NamespaceBase:
    """The state of an open namespace."""

    def __init__(
        self,
        uri: str,
        store: MetadataStore,
        client: LedgerClient,
        path: str,
        config: NamespaceConfig,
        *,
        client_id: str,
        first_segment_seqno: int = FIRST_SEGMENT_SEQNO,
        wall_ms: Callable[[], int] = wall_ms,
        principal: str | None = None,
        read_only: bool = False,
        is_snapshot: bool = False,
        access_control_path: str | None = None,
        open_target: Callable[[str], Awaitable[Any]] | None = None,
    ) -> None:
        """``open_target``: opens the namespace that a log was promoted to; None: no log can be promoted."""
        self.uri = uri
        self._open_target = open_target
        self.read_only = read_only
        self.is_snapshot = is_snapshot  # read-only, and no process writes: later records do not appear
        self._permissions = Permissions(store, path, client_id if principal is None else principal)
        self._access = AccessControl(store, access_control_path)
        self.config = config
        self._store, self._client, self._path = store, client, path
        self._client_id, self._first_segment_seqno, self._wall_ms = client_id, first_segment_seqno, wall_ms
        self._is_closed = self._is_forked = False
        call_in_child(self, NamespaceBase._refuse_in_child)

    def __repr__(self) -> str:
        return f"<Namespace {self.uri}, {'closed' if self._is_closed else self._store.state.value}>"

    def statistics(self) -> Statistics:
        """What this namespace's writers, readers and ledgers have counted since it was opened.

        Histograms are there only with the setting ``statistics``. Names are in docs/observability.md. Also of
        a closed namespace. A log that was promoted counts where its ledgers are: its reads and writes at the
        target are not here.
        """
        return statistics_of(self._client.recorder)

    # For this package only.

    def close(self) -> None:
        """Refuse every later call. Open writers and readers end with the block that opened the namespace."""
        self._is_closed = True

    @property
    def _is_over(self) -> bool:
        """True if the namespace cannot be used any more."""
        return self._is_closed or self._store.state is SessionState.CLOSED

    def _refuse_in_child(self) -> None:
        """Refuse every later call: called in a forked child."""
        self._is_forked = True

    def _check_open(self, right: Right = Right.READ) -> None:
        if self._is_forked:
            raise NamespaceClosedError(f"namespace {self.uri}: {RULE}")
        if self._is_closed:
            raise NamespaceClosedError(f"namespace {self.uri} was closed; open it again")
        if self.read_only and right is not Right.READ:
            raise ReadOnlyError(f"namespace {self.uri}")

    def _checked(self, name: str, right: Right = Right.READ) -> str:
        self._check_open(right)
        return check_log_name(name)

    async def _permitted(
        self, name: str, right: Right, *operations: Denial, cursor: str | None = None
    ) -> str:
        """Check the name, the policy, and that access control entries deny none of the operations.

        Args:
            cursor: That is moved or deleted, for the right to commit.
        """
        name = self._checked(name, right)

        async def check() -> None:
            await self._permissions.check(name, right, cursor)
            await self._access.check(name, operations)

        record: SourceRecord | None = None

        async def look() -> None:
            nonlocal record
            if self._open_target is not None:
                record = await read_source(self._store, self._path, name)

        with translated(name, "reading the policy"):
            await retry_lost_connection(check, timeout_s=self._retry_timeout_s(right))
        with translated(name, "looking whether it was promoted"):
            await retry_lost_connection(look, timeout_s=self._retry_timeout_s(right))
        if record is not None and record.is_closed:
            raise LogPromotedError(name, record.target)
        return name

    def _retry_timeout_s(self, right: Right) -> float:
        """How long a call that needs the right waits while the metadata store is out of reach."""
        return self._settings(right).retry_timeout_s

    def _settings(self, right: Right) -> ReaderConfig | WriterConfig:
        """Of the readers or the writers, whichever need the right."""
        return self.config.reader if right in (Right.READ, Right.COMMIT) else self.config.writer

    async def _while_store_is_away(self, right: Right, step: Callable[[], Awaitable[T]]) -> T:
        """Run a step that may be repeated; repeat it while the metadata store is out of reach."""
        settings = self._settings(right)
        policy = RetryPolicy(timeout_s=settings.retry_timeout_s, pause_s=settings.retry_pause_s)
        return await policy.while_store_is_away(step, self._store, subject=f"namespace {self.uri}")

    async def _change(self, name: str, doing: str, step: Callable[[], Awaitable[T]]) -> T:
        """Change something of a log by a step that may be repeated; see ``_while_store_is_away``."""

        async def attempt() -> T:
            with translated(name, doing):
                return await step()

        return await self._while_store_is_away(Right.WRITE, attempt)

    async def _promotion(self, name: str, *, watch: trio.Event | None = None) -> SourceRecord | None:
        """The record of a log that is being moved from here, or was."""
        if self._open_target is None:
            return None
        with translated(name, "looking whether it was promoted"):
            return await read_source(self._store, self._path, name, watch=watch)

    async def _promoted(self, name: str) -> Any:
        """The namespace that the log was promoted to, once it takes records there.

        A hand-over whose process died is finished here.

        Raises:
            LogUnavailableError: The hand-over was not finished in time, or was undone just now.
        """
        assert self._open_target is not None  # only such a namespace promotes
        with trio.move_on_after(self.config.writer.retry_timeout_s):
            while True:
                watch = trio.Event()
                record = await self._promotion(name, watch=watch)
                if record is None or not record.is_closed:
                    raise LogUnavailableError(f"log {name!r}: its promotion was just undone; try again")
                target = await self._open_target(record.target)
                if record.phase is SourcePhase.DONE:
                    return target
                if not self.read_only:
                    try:
                        await Promoter(self._side(), target._side(), name, client_id=self._client_id).run()
                        continue
                    except PromotionError:
                        pass  # another process does it, or has just done or undone it
                with trio.move_on_after(PROMOTION_POLL_S):
                    await watch.wait()
        raise LogUnavailableError(
            f"log {name!r}: it is being handed over to another namespace, and that did not end in time; `dlog"
            f" promote {self.uri} --log {name} --resume` says why"
        )

    async def _wait_promoted(self, name: str) -> None:
        """Return when the log is handed over to another namespace."""
        while True:
            watch = trio.Event()
            try:
                record = await self._promotion(name, watch=watch)
            except NamespaceLostError:
                await trio.sleep_forever()  # the writer finds out by its lock
            except LogUnavailableError:
                await trio.sleep(PROMOTION_POLL_S)
                continue
            if record is not None and record.is_closed:
                return
            await watch.wait()

    def _side(self) -> Side:
        return Side(
            uri=self.uri,
            store=self._store,
            client=self._client,
            path=self._path,
            config=self.config,
            first_segment_seqno=self._first_segment_seqno,
            wall_ms=self._wall_ms,
        )

    def _read_only_log(self, name: str) -> ReadOnlyLog:
        if self._open_target is not None:
            open_target, name = self._open_target, self._checked(name)

            async def open_log(uri: str) -> ReadOnlyLog:
                found: ReadOnlyLog = (await open_target(uri))._read_only_log(name)
                return found

            return PromotedLog(self._store, self._client, self._path, name, self.config.password, open_log)
        return ReadOnlyLog(self._store, self._client, self._path, self._checked(name), self.config.password)

    def _locked(self, name: str, timeout_s: float) -> AbstractAsyncContextManager[DistributedLock]:
        return locked(self._store, self._path, name, self._client_id, timeout_s)


def at_target(call: F) -> F:
    """Make a call on a log that was promoted from here in the namespace that has the log now."""

    @wraps(call)
    async def made(self: NamespaceBase, *args: Any, **kwargs: Any) -> Any:
        try:
            return await call(self, *args, **kwargs)
        except LogPromotedError:
            if self._open_target is None:
                raise
            target = await self._promoted(args[0] if args else kwargs["name"])
            return await getattr(target, call.__name__)(*args, **kwargs)

    return cast(F, made)
