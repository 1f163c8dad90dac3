"""The nodes of a log's cursors: named positions that readers commit.

Inside: reading, creating, moving and deleting the nodes; which position they hold. Not inside: rights, the
reader that commits (``dlog.read.cursors``).
Always: a cursor is moved only from the value that its mover has seen; while a cursor is created or moved
back, no other client marks records as truncated, and retention, which marks them, sees every cursor that
exists then (both write the layout's node conditionally).

The nodes are those of Apache's readers with a subscriber id: ``subscribers/<name>`` holds the position as
text. The position is the first record that the readers have not consumed, so Apache's reader continues there,
too. Its commits are unconditional; a reader of ours then finds that its cursor was moved.

Source: DistributedLog, ZKSubscriptionStateStore.java, ZKSubscriptionsStore.java (docs/stream-format.md 7.8).
"""

from __future__ import annotations

import attrs

from ledger.catalog.connection_retry import retry_lost_connection
from ledger.metadata_store.errors import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError
from ledger.metadata_store.store import (
    FORBIDDEN_CHARACTERS,
    Create,
    Delete,
    Node,
    Operation,
    Put,
)
from namespace.dlsn import DLSN
from namespace.errors import (
    CursorConflictError,
    InvalidCursorNameError,
    LogInUseError,
    LogMetadataError,
    LogNotFoundError,
    LogTruncatedError,
    LogUnavailableError,
)
from namespace.log_metadata import LAYOUT_VERSION
from namespace.log_nodes import LogNodes
from namespace.logs import open_log
from namespace.node_reads import read_nodes
from namespace.segment_nodes import list_segments
from namespace.segments.truncation import first_left

NAME_MAX = 255  # characters
ATTEMPTS_MAX = 20  # each is lost to another client that changed the log meanwhile


@attrs.frozen
class Cursor:
    """A named position of a log: the first record that its readers have not consumed."""

    log: str
    name: str
    position: DLSN
    version: int  # grows with each commit; the next commit is conditional on it


def check_cursor_name(name: str) -> str:
    """Return the name if a cursor may have it: 1 to 255 characters without a slash.

    Raises:
        InvalidCursorNameError: The message gives the reason.
    """
    if not isinstance(name, str):
        raise TypeError(f"a cursor name is a str, not {name!r}")
    if not 1 <= len(name) <= NAME_MAX:
        raise InvalidCursorNameError(f"cursor name {name[:40]!r}: it has 1 to {NAME_MAX} characters")
    if name in (".", "..") or "/" in name or FORBIDDEN_CHARACTERS.search(name):
        raise InvalidCursorNameError(f"cursor name {name!r}: it holds a slash or a forbidden character")
    return name


async def list_cursors(log: LogNodes) -> list[Cursor]:
    """All cursors of a log, sorted by name.

    Raises:
        LogNotFoundError, LogMetadataError
    """
    parent = log.subscribers_path
    await log.store.sync(parent)
    try:
        names = (await log.store.children(parent)).names
    except NoNodeError:
        if await log.store.exists(log.segments_path) is None:
            raise LogNotFoundError(log.name) from None
        return []
    found = {log.subscriber_path(name): name for name in names}
    nodes = await read_nodes(log.store, list(found))
    return [
        _decoded(log.name, name, path, node)
        for path, name in found.items()
        if (node := nodes[path]) is not None
    ]


async def read_cursor(log: LogNodes, name: str) -> Cursor | None:
    """A cursor as it is now; None if there is none.

    Raises:
        LogMetadataError: Its node holds no position.
    """
    path = log.subscriber_path(name)
    await log.store.sync(path)
    try:
        return _decoded(log.name, name, path, await log.store.get(path))
    except NoNodeError:
        return None


async def advance_cursor(log: LogNodes, cursor: Cursor, position: DLSN, *, retry_timeout_s: float) -> Cursor:
    """Move a cursor forward, if it is as the caller has seen it; return it.

    If cancelled, it may or may not be moved.

    Raises:
        CursorConflictError: Another client has moved or deleted it.
    """
    assert position >= cursor.position, (position, cursor)  # the caller compares them first
    path = log.subscriber_path(cursor.name)
    wanted = attrs.evolve(cursor, position=position, version=cursor.version + 1)

    async def put() -> Cursor:
        try:
            await log.store.put(path, position.to_text().encode(), expected=cursor.version)
        except (BadVersionError, NoNodeError) as exc:
            # After a lost connection the node may be the one that the first attempt wrote.
            actual = await read_cursor(log, cursor.name)
            if actual != wanted:
                raise _conflict(cursor.log, cursor.name, cursor, actual) from exc
        return wanted

    return await retry_lost_connection(put, timeout_s=retry_timeout_s)


async def place_cursor(
    log: LogNodes,
    name: str,
    position: DLSN,
    *,
    expected: Cursor | None,
    retry_timeout_s: float,
    checks_truncation: bool,
) -> Cursor:
    """Create a cursor, or move it in any direction, if it is as the caller has seen it; return it.

    If cancelled, it may or may not have happened.

    Args:
        expected: None: there is no cursor of this name yet.
        checks_truncation: Refuse a position whose records are truncated.

    Raises:
        LogNotFoundError, LogMetadataError
        LogTruncatedError: The log begins after the position.
        CursorConflictError: Another client has created, moved or deleted the cursor.
        LogUnavailableError: Other clients changed the log at every attempt.
    """
    path = log.subscriber_path(name)
    text = position.to_text().encode()
    wanted = Cursor(log.name, name, position, 0 if expected is None else expected.version + 1)
    is_repeated = False

    async def place() -> Cursor:
        nonlocal is_repeated
        for _ in range(ATTEMPTS_MAX):
            metadata = await open_log(log)
            actual = await read_cursor(log, name)
            if is_repeated and actual == wanted:
                return wanted  # the first attempt, whose reply was lost
            if actual != expected:
                raise _conflict(log.name, name, expected, actual)
            if checks_truncation:
                left = first_left((await list_segments(log)).segments)
                if left is not None and position < left:
                    raise LogTruncatedError(log.name, position, left)
            if expected is None:
                try:
                    await log.store.create(log.subscribers_path)
                except NodeExistsError:
                    pass
                except NoNodeError:
                    continue  # the log is being deleted
            change: Operation = Create(path, text) if expected is None else Put(path, text, expected.version)
            is_repeated = True
            try:
                await log.store.commit(
                    [
                        Put(log.version_path, LAYOUT_VERSION, metadata.marks_version),
                        change,
                    ]
                )
            except (BadVersionError, NodeExistsError, NoNodeError):
                is_repeated = False  # nothing was changed
                continue
            return wanted
        raise LogUnavailableError(
            f"log {log.name!r}, moving cursor {name!r}: other clients changed the log {ATTEMPTS_MAX} times"
            " meanwhile; try again"
        )

    return await retry_lost_connection(place, timeout_s=retry_timeout_s)


async def delete_cursor(log: LogNodes, name: str, *, retry_timeout_s: float = 0) -> bool:
    """Delete a cursor; False if there was none. If cancelled, it may or may not be deleted.

    The result is True if there was a cursor at the first attempt, whichever attempt deleted it.

    Raises:
        LogInUseError: A reader of Apache's library holds the lock of this subscriber, or a member of a
            consumer group does.
    """
    path = log.subscriber_path(name)
    lock = log.subscriber_read_lock_path(name)
    was_there = False

    async def delete() -> bool:
        nonlocal was_there
        was_there = was_there or await log.store.exists(path) is not None
        try:
            below = [node for node in (lock, f"{path}/members") if await log.store.exists(node) is not None]
            await log.store.commit([*(Delete(node) for node in below), Delete(path)])
        except NoNodeError:
            return was_there
        except NotEmptyError as exc:
            raise LogInUseError(
                log.name, f"a reader holds cursor {name!r} (the node {exc.path} has children)"
            ) from exc
        return True

    return await retry_lost_connection(delete, timeout_s=retry_timeout_s)


def _decoded(log: str, name: str, path: str, node: Node) -> Cursor:
    try:
        position = DLSN.from_text(node.value.decode("ascii", "replace"))
    except LogMetadataError as exc:
        raise LogMetadataError(
            f"log {log!r}, cursor {name!r}: the node {path} holds no position ({exc}); `dlog cursor delete`"
            " removes it"
        ) from None
    return Cursor(log, name, position, node.stat.version)


def _conflict(log: str, name: str, expected: Cursor | None, actual: Cursor | None) -> CursorConflictError:
    return CursorConflictError(
        log,
        name,
        None if expected is None else expected.position,
        None if actual is None else actual.position,
    )
