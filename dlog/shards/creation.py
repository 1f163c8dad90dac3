"""Creating, finding and deleting the shards of a sharded log.

Inside: the order of the steps, and what a step that was interrupted leaves. Not inside: the layout
(``layout``), the steps themselves (``Namespace``).
Always: the layout is stored before shard 1 exists, and is complete only after the last shard exists; a
stored number of shards is never changed.
"""

from __future__ import annotations

import re

import attrs

from dlog.errors import LogExistsError, LogMetadataError, LogNotFoundError
from dlog.namespace_handle import Namespace, check_namespace
from dlog.shards.errors import NotShardedError, ShardCountError, ShardsMissingError
from dlog.shards.layout import ShardLayout, check_count, layout_in, shard_log
from namespace.log_name import check_log_name
from namespace.policy import Right
from namespace.properties import PropertiesConflictError

_NUMBER = re.compile("[0-9]{1,19}")


async def create_sharded_log(
    namespace: Namespace, name: str, shards: int = 8, *, exist_ok: bool = False
) -> None:
    """Create a sharded log: the logs ``NAME/shard-00000`` and so on. It needs the right to administer them.

    If the call is cancelled or fails, some shards may exist; nothing opens them as a sharded log. Call it
    again with the same number to continue. Of two calls at once with the same number, both may succeed.

    Args:
        shards: From 1 to ``SHARDS_MAX``. It never changes.

    Raises:
        ValueError: The number of shards is not allowed.
        LogExistsError: It exists already; unless ``exist_ok``.
        ShardCountError: It exists with another number of shards, or its creation began with another one.
        ShardsMissingError: It exists, and shards of it were deleted.
        LogMetadataError: There are logs with the names of shards, and none of them has the layout.
        The errors of ``Namespace.create_log`` and ``Namespace.properties.change``.
    """
    check_namespace(namespace)
    name, shards = check_log_name(name), check_count(shards)
    layout = await _claim(namespace, name, shards)
    if layout.is_complete:
        if not exist_ok:
            raise LogExistsError(name)
        await shard_names(namespace, name)
        return
    await _check_administrator(namespace, name, shards)
    for shard in range(1, shards):
        await namespace.create_log(shard_log(name, shard), exist_ok=True)
    complete = attrs.evolve(layout, is_complete=True)
    await namespace.properties.change(shard_log(name, 0), complete.properties())


async def shard_names(namespace: Namespace, name: str) -> list[str]:
    """The names of the logs that are the shards of a sharded log, in their order.

    Raises:
        NotShardedError: There is no sharded log with this name.
        ShardsMissingError: Its creation was interrupted, or shards of it were deleted.
        LogMetadataError, LogUnavailableError, AccessDeniedError
    """
    check_namespace(namespace)
    name = check_log_name(name)
    existing = set(await namespace.list_logs(name))  # also makes the next read see what is stored now
    layout = await _layout(namespace, name)
    names = [shard_log(name, shard) for shard in range(layout.count)]
    missing = [each for each in names if each not in existing]
    for each in missing:
        await namespace.log_exists(each)  # raises if it is not listed because this program has no right on it
    if missing or not layout.is_complete:
        raise ShardsMissingError(name, missing, is_complete=layout.is_complete, count=layout.count)
    return names


async def delete_sharded_log(namespace: Namespace, name: str, *, lock_timeout_s: float = 0) -> None:
    """Delete a sharded log with all of its records. Its readers fail.

    If the call is cancelled or fails, part of it may be deleted; call it again.

    Raises:
        NotShardedError
        The errors of ``Namespace.delete_log``.
    """
    check_namespace(namespace)
    name = check_log_name(name)
    layout = await _layout(namespace, name)
    await _check_administrator(namespace, name, layout.count)
    for shard in reversed(range(layout.count)):  # shard 0 has the layout, so it is the last
        try:
            await namespace.delete_log(shard_log(name, shard), lock_timeout_s=lock_timeout_s)
        except LogNotFoundError:
            pass  # an earlier call deleted it


async def _claim(namespace: Namespace, name: str, shards: int) -> ShardLayout:
    """Store the layout in shard 0, unless it has one; return that which it has."""
    first = shard_log(name, 0)
    while True:
        # Listed before the layout is read: a shard that is listed was created after its layout was stored.
        others = [each for each in await namespace.list_logs(name) if _is_later_shard(name, each)]
        try:
            found = await namespace.properties.get(first)
        except LogNotFoundError:
            if others:
                raise _stray(name, f"{others[0]} exists, but not {first}, which has the layout") from None
            await _check_administrator(namespace, name, shards)
            await namespace.create_log(first, exist_ok=True)
            continue
        layout = layout_in(name, found.values)
        if layout is not None:
            if layout.count != shards:
                raise ShardCountError(name, layout.count, shards)
            return layout
        if others:
            raise _stray(name, f"{first} has no layout, but {others[0]} exists")
        if await namespace.segments(first):
            raise _stray(name, f"{first} was written, and has no layout")
        layout = ShardLayout(shards, is_complete=False)
        try:
            await namespace.properties.change(first, layout.properties(), expected=found)
        except PropertiesConflictError:
            continue  # another client was faster
        return layout


async def _check_administrator(namespace: Namespace, name: str, shards: int) -> None:
    """Raise ``AccessDeniedError`` before anything is changed, and not between two shards."""
    for shard in range(shards):
        await namespace.context.may(shard_log(name, shard), Right.ADMIN)


async def _layout(namespace: Namespace, name: str) -> ShardLayout:
    first = shard_log(name, 0)
    try:
        layout = layout_in(name, (await namespace.properties.get(first)).values)
    except LogNotFoundError:
        raise NotShardedError(name, f"there is no log {first}") from None
    if layout is None:
        raise NotShardedError(name, f"log {first} has no property dlog.shards")
    return layout


def _is_later_shard(name: str, log: str) -> bool:
    number = log.removeprefix(f"{name}/shard-")
    return number != log and _NUMBER.fullmatch(number) is not None and int(number) > 0


def _stray(name: str, evidence: str) -> LogMetadataError:
    return LogMetadataError(
        f"sharded log {name!r}: not created, because of logs with the names of its shards: {evidence}; choose"
        f" another name, or look at them (dlog log list {name}) and delete them (dlog log delete)"
    )
