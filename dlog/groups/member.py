"""A member of a consumer group: claims logs, reads them, commits the group's cursors.

Inside: presence, claims, handing over, the batches of all claimed logs in one stream.
Not inside: the rules (``balance``), readers, cursors, locks.
Always: a log is delivered to one member at a time, as far as sessions show; a commit succeeds only while no
other member has claimed the log since this one did; what is committed is not delivered again.

A claim is the lock of the readers of one subscriber (Apache's), whose position is the cursor. A member that
claims a log writes the cursor again without moving it. So a commit of the member before, which may not know
yet that it lost the claim, is refused.

Source: DistributedLog, BKLogReadHandler.java (lockStream), SubscriptionsStore.java. Members and balance are
ours.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from threading import get_ident

import attrs
import trio
from attrs.validators import ge, gt

from dlog.contained import contained_error
from dlog.errors import (
    CursorConflictError,
    DLogError,
    LogUnavailableError,
    NamespaceClosedError,
    translated,
)
from dlog.groups.balance import to_claim, to_give_up
from dlog.groups.errors import ClaimLostError
from dlog.namespace_handle import Namespace, check_namespace
from dlog.read.cursors import check_commit, commit_cursor
from dlog.read.gaps import Gap
from dlog.read.log_reader import LogReader
from dlog.read.positioning import EARLIEST, LATEST, Start
from dlog.read.record_batch import RecordBatch
from ledger.metadata_store.errors import (
    ConnectionLostError,
    LockError,
    LockTakenError,
    NodeExistsError,
    NoNodeError,
)
from ledger.metadata_store.lock import DistributedLock, in_order, member_owner
from ledger.pickling import ProcessBound
from ledger.runtime.tasks.failure_domain import report_contained
from ledger.runtime.tasks.service_tasks import ServiceTasks, open_service_tasks
from ledger.runtime.tasks.trio_only import check_thread
from namespace.cursor_nodes import check_cursor_name
from namespace.dlsn import DLSN
from namespace.segments.truncation import first_left

MEMBERS = "members"
CLAIM_ATTEMPTS_MAX = 5


@attrs.frozen(kw_only=True)
class GroupConfig:
    """How a member reads and shares."""

    records_max: int = attrs.field(default=1_000, validator=gt(0))
    """The records of one batch, at most."""
    check_interval_s: float = attrs.field(default=2.0, validator=gt(0))
    """How often a member looks whether logs are free or unfairly shared. It also looks when members come and
    go."""
    hand_over_timeout_s: float = attrs.field(default=10.0, validator=ge(0))
    """How long a log that goes to another member waits for the commit of its last batch."""


@attrs.frozen(eq=False)
class GroupBatch:
    """Records of one log, in order, or a gap in it. Commit it when they are processed."""

    log: str
    records: RecordBatch  # empty if the batch is a gap
    _claim: object = attrs.field(repr=False)
    gap: Gap | None = None  # records that are missing for good; only with ``join_group(gaps=True)``

    @property
    def last_dlsn(self) -> DLSN:
        """The position of the last record, or of the end of the gap."""
        return self.records.last_dlsn if self.gap is None else self.gap.last

    @property
    def position(self) -> DLSN:
        """Where reading continues after this batch; ``GroupMember.commit`` moves the cursor there."""
        return self.last_dlsn.next_slot() if self.gap is None else self.gap.resume


@attrs.define(eq=False)
class _Claim:
    """A log that this member holds."""

    log: str
    lock: DistributedLock
    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)
    reading: trio.CancelScope = attrs.Factory(trio.CancelScope)
    reader: LogReader | None = None
    delivered: DLSN | None = None  # after the last batch that the member's caller took
    committed: DLSN | None = None
    settled: trio.Event = attrs.Factory(trio.Event)  # set at each commit

    @property
    def is_settled(self) -> bool:
        return self.delivered is None or (self.committed is not None and self.committed >= self.delivered)


@attrs.frozen
class Joining:
    """How a member joins: the arguments of ``join_group``."""

    group: str
    logs: tuple[str, ...]
    name: str
    start: Start
    config: GroupConfig
    gaps: bool


class GroupMember(ProcessBound):
    """One member of a group: an asynchronous iterator of batches. Made by ``join_group``."""

    def __init__(
        self,
        namespace: Namespace,
        joining: Joining,
        tasks: ServiceTasks,
    ) -> None:
        self.group, self.name, self.all_logs = joining.group, joining.name, joining.logs
        self._start, self._config, self._gaps = joining.start, joining.config, joining.gaps
        self._namespace, self._tasks = namespace, tasks
        self._store, self._nodes = namespace.context.store, namespace.context.nodes
        self._claims: dict[str, _Claim] = {}
        self._changed = trio.Event()
        self._logs_changed = trio.Event()
        self._failure: DLogError | None = None
        self._failed = trio.Event()
        self._send, self._receive = trio.open_memory_channel[tuple[_Claim, GroupBatch]](0)
        self._fetching, self._thread = trio.Lock(), get_ident()
        self._fetched: deque[tuple[_Claim, GroupBatch]] = deque()  # and not taken yet: one at most

    def __repr__(self) -> str:
        return f"<GroupMember {self.name!r} of {self.group!r}: {', '.join(self.logs) or 'no log'}>"

    @property
    def logs(self) -> tuple[str, ...]:
        """The logs that this member holds now, sorted."""
        return tuple(sorted(self._claims))

    async def wait_change(self) -> None:
        """Return when ``logs`` has changed after this call."""
        self._check_thread()
        await self._logs_changed.wait()

    def __aiter__(self) -> GroupMember:
        return self

    async def __anext__(self) -> GroupBatch:
        """The next batch of one of the member's logs; it waits for one. A cancelled call loses no batch.

        A batch that is not committed is delivered again to the log's next holder.

        Raises:
            NamespaceClosedError: The member has left.
            The errors of ``LogReader``, for one of the logs. The member has stopped then.
        """
        self._check_thread()
        while (batch := self._take()) is None:
            await self._fetch()
        return batch

    def _check_thread(self) -> None:
        check_thread(self._thread, f"member {self.name!r} of group {self.group!r}")

    def _take(self) -> GroupBatch | None:
        """The batch that was fetched; None if there is none, or its log is given up."""
        if self._failure is not None:
            raise self._failure
        if not self._fetched:
            return None
        claim, batch = self._fetched.popleft()
        if claim.reading.cancel_called or self._claims.get(claim.log) is not claim:
            return None  # the log's next holder gets it
        claim.delivered = batch.position
        return batch

    async def _fetch(self) -> None:
        """Return when a batch is fetched, or the member has failed."""
        async with self._fetching:
            if self._fetched or self._failure is not None:
                await trio.lowlevel.checkpoint()
                return
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._cancel_on_failure, nursery.cancel_scope)
                # Stored in the same step: a cancelled call must not lose what the reader has passed.
                self._fetched.append(await self._receive.receive())
                nursery.cancel_scope.cancel()

    async def _cancel_on_failure(self, scope: trio.CancelScope) -> None:
        await self._failed.wait()
        scope.cancel()

    async def commit(self, batch: GroupBatch) -> None:
        """Move the group's cursor of the batch's log after the batch.

        If cancelled, the cursor may or may not be moved; commit again.

        Raises:
            ClaimLostError: Another member holds the log, or did in between. Nothing was committed.
            LogUnavailableError: The metadata store is out of reach; commit again.
        """
        self._check_thread()
        claim = self._claims.get(batch.log)
        if claim is None or claim is not batch._claim or claim.reader is None:
            raise ClaimLostError(self.group, batch.log, "it was given up or lost")
        try:
            await claim.reader.commit_to(batch.position)
        except CursorConflictError as exc:
            claim.scope.cancel()
            raise ClaimLostError(self.group, batch.log, str(exc)) from None
        claim.committed = max(claim.committed or batch.position, batch.position)
        claim.settled.set()
        claim.settled = trio.Event()

    # For this module only.

    async def run(self) -> None:
        """Look, claim and give up, until cancelled; for a task."""
        while True:
            self._changed = trio.Event()
            try:
                with translated(None, f"sharing the logs of group {self.group!r}"):
                    await self._look()
            except LogUnavailableError:
                pass  # the store is away: claims stay as long as the session
            except DLogError as exc:
                self._fail(exc)
                return
            except Exception as exc:  # ends this look, not the block that the member is open in
                report_contained("sharing the logs of a group", exc)
            with trio.move_on_after(self._config.check_interval_s):
                await self._changed.wait()

    async def _look(self) -> None:
        members = await self._members()
        holders = {log: await self._holder(log) for log in self.all_logs}
        for log, claim in self._claims.items():
            holders[log] = self.name if claim.lock.held else holders[log]
        for log in to_claim(self.name, holders, members):
            if log not in self._claims:
                await self._claim(log)
        given_up = to_give_up(self.name, holders, members)
        if given_up is not None and given_up in self._claims:
            await self._hand_over(self._claims[given_up])

    async def _members(self) -> list[str]:
        """Those that live. This member's node is created again after an expired session."""
        path = await self._group_path(self.all_logs[0])
        while True:
            try:
                names = (await self._store.children(f"{path}/{MEMBERS}", watch=self._changed)).names
                if self.name in names:
                    return list(names)
                await self._store.create(f"{path}/{MEMBERS}/{self.name}", ephemeral=True)
            except NoNodeError:
                await self._create_if_missing(f"{path}/{MEMBERS}")
            except NodeExistsError:
                pass

    async def leave(self) -> None:
        """Give up all claims, without waiting for commits."""
        for claim in list(self._claims.values()):
            claim.scope.cancel()
            await claim.lock.release()
        self._claims.clear()
        path = self._nodes(self.all_logs[0]).subscriber_path(self.group)
        try:
            await self._store.delete(f"{path}/{MEMBERS}/{self.name}")
        except (NoNodeError, ConnectionLostError):
            pass  # it goes with the session

    async def _holder(self, log: str) -> str | None:
        """The member that holds a log, or another client's name; None if the log is free."""
        try:
            names = in_order((await self._store.children(self._lock_path(log), watch=self._changed)).names)
        except NoNodeError:
            return None
        owner = member_owner(names[0]) if names else None
        return names[0] if names and owner is None else None if owner is None else owner[0]

    def _lock_path(self, log: str) -> str:
        return self._nodes(log).subscriber_read_lock_path(self.group)

    async def _group_path(self, log: str) -> str:
        """The node of the group's cursor in a log, which is created at the start if it is missing."""
        cursors = self._namespace.cursors(log)
        await check_commit(cursors, self.group)  # before the nodes of members and of the claim are made, too
        path = self._nodes(log).subscriber_path(self.group)
        while await cursors.get(self.group) is None:
            try:
                await commit_cursor(cursors, self.group, None, await self._first_position(log))
            except CursorConflictError:
                continue  # another member has created it
        return path

    async def _first_position(self, log: str) -> DLSN:
        read_only = self._namespace.context.log(log)
        read_only.gaps_ok = self._gaps
        segments = await read_only.segments()
        if self._start == LATEST and (last := await read_only.last_record(segments)) is not None:
            return last.dlsn.next_slot()
        return first_left(segments) or DLSN(1, 0, 0)

    async def _create_if_missing(self, path: str) -> None:
        try:
            await self._store.create(path)
        except NodeExistsError:
            pass

    async def _claim(self, log: str) -> None:
        await self._group_path(log)
        await self._create_if_missing(self._lock_path(log))
        lock = DistributedLock(self._store, self._lock_path(log), self.name)
        try:
            await lock.acquire(0)
        except (LockTakenError, LockError):
            return  # another member was faster
        claim = _Claim(log, lock)
        try:
            await self._close_out_the_holder_before(log)
        except BaseException:
            with trio.CancelScope(shield=True):
                await lock.release()
            raise
        self._claims[log] = claim
        self._pulse()
        self._tasks.start_soon(self._serve, claim)

    async def _close_out_the_holder_before(self, log: str) -> None:
        """Write the cursor where it is, so that a commit of the holder before is refused."""
        cursors = self._namespace.cursors(log)
        for attempt in range(CLAIM_ATTEMPTS_MAX):
            seen = await cursors.get(self.group)
            if seen is None:
                return  # deleted just now; the reader begins as a new one
            try:
                await commit_cursor(cursors, self.group, seen, seen.position)
            except CursorConflictError:
                if attempt == CLAIM_ATTEMPTS_MAX - 1:
                    raise
            else:
                return

    async def _serve(self, claim: _Claim) -> None:
        """Read a claimed log until the claim ends."""
        try:
            with claim.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._end_if_lost, claim)
                    await self._read(claim)
        except Exception as exc:
            self._fail(contained_error("reader of a group", claim.log, exc))
        finally:
            if self._claims.get(claim.log) is claim:
                del self._claims[claim.log]
                self._pulse()
            with trio.CancelScope(shield=True):
                await claim.lock.release()
            self._changed.set()

    async def _end_if_lost(self, claim: _Claim) -> None:
        await claim.lock.wait_lost()
        claim.scope.cancel()

    async def _read(self, claim: _Claim) -> None:
        try:
            async with self._namespace.open_reader(claim.log, cursor=self.group, gaps=self._gaps) as reader:
                claim.reader = reader
                read = reader.read_batch_or_gap if self._gaps else reader.read_batch
                with claim.reading:
                    while (found := await read(self._config.records_max)) is not None:
                        if isinstance(found, Gap):
                            batch = GroupBatch(claim.log, RecordBatch(), claim, found)
                        else:
                            batch = GroupBatch(claim.log, found, claim)
                        await self._send.send((claim, batch))
                # Given up, or the log is sealed: the reader stays for the commit of the last batch.
                await trio.sleep_forever()
        except NamespaceClosedError:
            pass
        except DLogError as exc:
            self._fail(exc)

    async def _hand_over(self, claim: _Claim) -> None:
        claim.reading.cancel()
        with trio.move_on_after(self._config.hand_over_timeout_s):
            while not claim.is_settled and self._claims.get(claim.log) is claim:
                await claim.settled.wait()
        claim.scope.cancel()

    def _pulse(self) -> None:
        self._logs_changed.set()
        self._logs_changed = trio.Event()

    def _fail(self, error: DLogError) -> None:
        if self._failure is None:
            self._failure = error
            self._failed.set()


@asynccontextmanager
async def join_group(
    namespace: Namespace,
    group: str,
    logs: Sequence[str],
    *,
    member: str | None = None,
    start: Start = EARLIEST,
    config: GroupConfig | None = None,
    gaps: bool = False,
) -> AsyncIterator[GroupMember]:
    """Join a consumer group for the duration of an ``async with``.

    Every member names the same logs. They share the logs evenly, and share again when a member comes or goes.
    Each log is read from the cursor with the group's name. A record is delivered at least once: again, if
    the member that got it did not commit it.

    Args:
        group: The group's name, and that of its cursors.
        logs: The names of existing logs, such as the shards of a sharded log.
        member: A name for people; a part that makes it unique is added. None: the namespace's client id.
        start: Where the group begins in a log in which it has no cursor: EARLIEST or LATEST.
        gaps: Deliver data of a log that are missing for good as a batch with a ``gap``; False: raise the
            error, which stops the member.

    Raises:
        ValueError: There are no logs, or one is named twice.
        InvalidCursorNameError, LogNotFoundError
        AccessDeniedError: The policy gives no right to commit the cursors of the group.
    """
    check_namespace(namespace)
    group = check_cursor_name(group)
    if isinstance(logs, str):
        raise TypeError(f"the logs of a group are several names, not {logs!r}; write [{logs!r}]")
    if not logs or len(set(logs)) != len(logs):
        raise ValueError(f"group {group!r}: name one log or more, each once, not {list(logs)}")
    if start not in (EARLIEST, LATEST):
        raise ValueError(f"group {group!r}: start is dlog.EARLIEST or dlog.LATEST, not {start!r}")
    label = (member or namespace.context.client_id).replace("_", "-").replace("/", ":")
    name = f"{label}:{uuid.uuid4().hex[:12]}"
    for log in logs:
        if not (gaps and await namespace.log_exists(log)):
            await namespace.segments(log)  # raises if there is no such log, or segments are missing
        await check_commit(namespace.cursors(log), group)
    async with open_service_tasks() as tasks:
        joining = Joining(group, tuple(sorted(logs)), name, start, config or GroupConfig(), gaps)
        joined = GroupMember(namespace, joining, tasks)
        tasks.start_soon(joined.run)
        try:
            yield joined
        finally:
            joined._fail(NamespaceClosedError(f"member {name!r} of group {group!r} has left; join again"))
            with trio.CancelScope(shield=True), trio.move_on_after(10):
                tasks.cancel()
                await joined.leave()
