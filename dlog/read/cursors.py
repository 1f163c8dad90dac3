"""The cursors of one log, and the one that a reader commits.

Inside: looking at cursors, moving and deleting them by hand, a reader's commits. Not inside: the nodes
(``namespace.cursor_nodes``), reading records (``log_reader``).
Always: a reader commits only what it has returned, forward, and only while no other reader has moved the
cursor; a commit whose reply was lost is settled before the call returns.

Source: DistributedLog, SubscriptionsStore.java (docs/stream-format.md 7.8). Apache's commits are
unconditional, so a reader that was thought dead could move a position back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import attrs

from dlog.errors import CursorConflictError, LogMovedError, translated
from dlog.format.arguments import as_dlsn
from dlog.read.read_only_log import ReadOnlyLog
from dlog.retry_policy import RetryPolicy
from ledger.catalog.connection_retry import RETRY_PAUSE_S, retry_lost_connection
from ledger.pickling import ProcessBound
from namespace import cursor_nodes
from namespace.cursor_nodes import Cursor, check_cursor_name
from namespace.dlsn import DLSN
from namespace.policy import Right

T = TypeVar("T")


class Permit(Protocol):
    """Returns if the program has the right on the log; to commit, on the cursor."""

    def __call__(self, right: Right, *, cursor: str | None = None) -> Awaitable[object]:
        """Raises ``AccessDeniedError`` or ``LogMovedError``."""


class LogCursors(ProcessBound):
    """The cursors of one log. Made by ``Namespace.cursors``.

    Every call raises as those of ``Namespace``, and ``InvalidCursorNameError`` for a name that no cursor can
    have.
    """

    def __init__(
        self,
        log: ReadOnlyLog,
        permit: Permit,
        *,
        retry_timeout_s: float,
        elsewhere: Callable[[], Awaitable[LogCursors]] | None = None,
    ) -> None:
        """``elsewhere``: the cursors where the log was moved to; called if ``permit`` says that it was."""
        self._elsewhere = elsewhere
        self.log = log.name
        self._nodes, self._read_only_log = log.nodes, log
        self._permit, self._retry_timeout_s = permit, retry_timeout_s

    def __repr__(self) -> str:
        return f"<LogCursors of {self.log!r}>"

    async def list(self) -> list[Cursor]:
        """All cursors, sorted by name.

        Raises:
            LogNotFoundError, LogMetadataError
        """
        if (elsewhere := await self._moved(Right.READ)) is not None:
            return await elsewhere.list()
        with translated(self.log, "listing its cursors"):
            return await self._patiently(lambda: cursor_nodes.list_cursors(self._nodes))

    async def get(self, name: str) -> Cursor | None:
        """A cursor as it is now; None if there is none.

        Raises:
            LogMetadataError: Its node holds no position.
        """
        name = check_cursor_name(name)
        if (elsewhere := await self._moved(Right.READ)) is not None:
            return await elsewhere.get(name)
        with translated(self.log, f"reading cursor {name!r}"):
            return await self._read(name)

    async def set(self, name: str, position: DLSN) -> Cursor:
        """Create a cursor, or move it to any position that is left. Its readers then get a conflict.

        If cancelled, it may or may not be moved. It needs the right to commit the cursor.

        Args:
            position: The first record that the cursor's readers shall get.

        Raises:
            LogNotFoundError, LogMetadataError
            LogTruncatedError: The log begins after the position.
            CursorConflictError: Another client has moved the cursor just now.
        """
        name, position = check_cursor_name(name), as_dlsn(position)
        if (elsewhere := await self._moved(Right.COMMIT, name)) is not None:
            return await elsewhere.set(name, position)
        with translated(self.log, f"moving cursor {name!r}"):
            return await cursor_nodes.place_cursor(
                self._nodes,
                name,
                position,
                expected=await self._read(name),
                retry_timeout_s=self._retry_timeout_s,
                checks_truncation=True,
            )

    async def delete(self, name: str) -> bool:
        """Delete a cursor; False if there was none. If cancelled, it may or may not be deleted.

        It needs the right to commit the cursor. A reader with this cursor gets a conflict at its next commit.

        Raises:
            LogInUseError: A reader of Apache's library holds the lock of this subscriber.
        """
        name = check_cursor_name(name)
        if (elsewhere := await self._moved(Right.COMMIT, name)) is not None:
            return await elsewhere.delete(name)
        with translated(self.log, f"deleting cursor {name!r}"):
            return await cursor_nodes.delete_cursor(self._nodes, name, retry_timeout_s=self._retry_timeout_s)

    async def lag(self, cursor: Cursor) -> int:
        """The number of records visible now that the cursor's readers have not consumed.

        Truncated records count until their segments are deleted.

        Raises:
            LogNotFoundError, LogMetadataError, CorruptLogError
        """
        if (elsewhere := await self._moved(Right.READ)) is not None:
            return await elsewhere.lag(cursor)
        log = self._read_only_log
        policy = RetryPolicy(timeout_s=self._retry_timeout_s, pause_s=RETRY_PAUSE_S)

        async def count() -> int:
            return await log.count_from(await log.segments(), cursor.position)

        return await policy.while_store_is_away(count, self._nodes.store, subject=f"log {self.log}: lag")

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        return await retry_lost_connection(call, timeout_s=self._retry_timeout_s)

    async def _read(self, name: str) -> Cursor | None:
        return await self._patiently(lambda: cursor_nodes.read_cursor(self._nodes, name))

    async def _moved(self, right: Right, cursor: str | None = None) -> LogCursors | None:
        """The cursors where the log was moved to; None if they are here."""
        try:
            await self._permit(right, cursor=cursor)
        except LogMovedError:
            if self._elsewhere is None:
                raise
            return await self._elsewhere()
        return None

    async def _commit_here(self, name: str, seen: Cursor | None, position: DLSN) -> Cursor:
        with translated(self.log, f"committing cursor {name!r}"):
            if seen is None:
                return await cursor_nodes.place_cursor(
                    self._nodes,
                    name,
                    position,
                    expected=None,
                    retry_timeout_s=self._retry_timeout_s,
                    checks_truncation=False,
                )
            return await cursor_nodes.advance_cursor(
                self._nodes, seen, position, retry_timeout_s=self._retry_timeout_s
            )


@attrs.define(eq=False)
class ReaderCursor:
    """The cursor of one reader: as it was when the reader last read or wrote it."""

    cursors: LogCursors
    name: str
    seen: Cursor | None  # None: there is none yet
    conflict: CursorConflictError | None = None

    async def commit(self, position: DLSN) -> Cursor:
        """Move the cursor forward to a position; see ``LogReader.commit``."""
        if self.conflict is not None:
            raise self.conflict
        if self.seen is not None and position <= self.seen.position:
            return self.seen
        try:
            self.seen = await commit_cursor(self.cursors, self.name, self.seen, position)
        except CursorConflictError as exc:
            self.conflict = exc
            raise
        return self.seen


async def commit_cursor(cursors: LogCursors, name: str, seen: Cursor | None, position: DLSN) -> Cursor:
    """Move a cursor forward from what its reader has seen, or create it; for readers and groups.

    If cancelled, it may or may not be moved.

    Args:
        position: That of ``seen``, or a later one.

    Raises:
        CursorConflictError: Another client has moved, created or deleted it.
        AccessDeniedError
    """
    if (elsewhere := await cursors._moved(Right.COMMIT, name)) is None:
        try:
            return await cursors._commit_here(name, seen, position)
        except (CursorConflictError, LogMovedError):
            # The hand-over takes the cursors away, so it looks like a conflict.
            if (elsewhere := await cursors._moved(Right.COMMIT, name)) is None:
                raise
    there = await elsewhere.get(name)
    before, after = (None if each is None else each.position for each in (seen, there))
    if before != after:
        raise CursorConflictError(cursors.log, name, before, after)
    return await commit_cursor(elsewhere, name, there, position)


async def check_commit(cursors: LogCursors, name: str) -> None:
    """Raise ``AccessDeniedError`` if the program may not move the cursor. Changes nothing."""
    if (elsewhere := await cursors._moved(Right.COMMIT, name)) is not None:
        await check_commit(elsewhere, name)


async def attach_cursor(cursors: LogCursors, name: str) -> ReaderCursor:
    """A cursor for a reader."""
    return ReaderCursor(cursors, name, await cursors.get(name))
