"""Sharded logs without ``async``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dlog.blocking.namespace import Namespace
from dlog.blocking.sharded_reader import ShardedReader
from dlog.blocking.sharded_writer import ShardedWriter
from dlog.config import WriterConfig
from dlog.read.positioning import EARLIEST, Where
from dlog.shards import creation, reader, writer


def create_sharded_log(namespace: Namespace, name: str, shards: int = 8, *, exist_ok: bool = False) -> None:
    """See ``dlog.shards.create_sharded_log``."""
    namespace._loop.run(creation.create_sharded_log, namespace._namespace, name, shards, exist_ok=exist_ok)


def shard_names(namespace: Namespace, name: str) -> list[str]:
    """See ``dlog.shards.shard_names``."""
    return namespace._loop.run(creation.shard_names, namespace._namespace, name)


def delete_sharded_log(namespace: Namespace, name: str, *, lock_timeout_s: float = 0) -> None:
    """See ``dlog.shards.delete_sharded_log``."""
    namespace._loop.run(
        creation.delete_sharded_log, namespace._namespace, name, lock_timeout_s=lock_timeout_s
    )


def open_sharded_writer(
    namespace: Namespace,
    name: str,
    *,
    lock_timeout_s: float | None = None,
    config: WriterConfig | None = None,
) -> ShardedWriter:
    """See ``dlog.shards.open_sharded_writer``. Close the result, or use it in a ``with`` statement."""
    manager = writer.open_sharded_writer(
        namespace._namespace, name, lock_timeout_s=lock_timeout_s, config=config
    )
    opened = ShardedWriter(namespace._loop, manager)
    namespace._open.add(opened)
    return opened


def open_sharded_reader(
    namespace: Namespace,
    name: str,
    *,
    start: Where | Mapping[int, Where] = EARLIEST,
    end: Where | Mapping[int, Where] | None = None,
    follow: bool = True,
    cursor: str | None = None,
    shards: Iterable[int] | None = None,
    gaps: bool = False,
) -> ShardedReader:
    """See ``dlog.shards.open_sharded_reader``. Close the result, or use it in a ``with`` statement."""
    manager = reader.open_sharded_reader(
        namespace._namespace,
        name,
        start=start,
        end=end,
        follow=follow,
        cursor=cursor,
        shards=shards,
        gaps=gaps,
    )
    opened = ShardedReader(namespace._loop, manager)
    namespace._open.add(opened)
    return opened
