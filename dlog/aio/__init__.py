"""Namespaces, writers and readers for programs on asyncio.

Inside: objects that pass each call to the trio implementation, which runs as a guest in the same thread.
Not inside: any behaviour of their own. A record passes no other thread, and needs no task.
"""

from dlog.aio.groups import GroupMember, join_group
from dlog.aio.namespace import LogCursors, Namespace, open_namespace
from dlog.aio.reader import LogReader
from dlog.aio.shards import (
    ShardedPending,
    ShardedReader,
    ShardedWriter,
    create_sharded_log,
    delete_sharded_log,
    open_sharded_reader,
    open_sharded_writer,
    shard_names,
)
from dlog.aio.wal import WriteAheadLog, open_wal
from dlog.aio.writer import LogWriter, Pending

__all__ = [
    "GroupMember",
    "LogCursors",
    "LogReader",
    "LogWriter",
    "Namespace",
    "Pending",
    "ShardedPending",
    "ShardedReader",
    "ShardedWriter",
    "WriteAheadLog",
    "create_sharded_log",
    "delete_sharded_log",
    "join_group",
    "open_namespace",
    "open_sharded_reader",
    "open_sharded_writer",
    "open_wal",
    "shard_names",
]
