"""Namespaces, writers and readers without ``async``: for scripts, notebooks, Spark workers, asyncio.

Inside: objects that pass each call to the asynchronous implementation, in a trio loop in a thread of its own;
the promise of each call is that of the asynchronous call of the same name.
Not inside: the loop (``ledger.runtime.tasks.loop_thread``), any behaviour of their own.
Always: calls may come from any thread; a KeyboardInterrupt cancels the waiting call, as a cancellation does:
a reader loses no record, an interrupted ``append`` may have written its record; one thread's order stays.
"""

from dlog.blocking.cursors import LogCursors
from dlog.blocking.groups import GroupMember, join_group
from dlog.blocking.namespace import Namespace, open_namespace
from dlog.blocking.reader import LogReader
from dlog.blocking.sharded_reader import ShardedReader
from dlog.blocking.sharded_writer import ShardedWriter
from dlog.blocking.shards import (
    create_sharded_log,
    delete_sharded_log,
    open_sharded_reader,
    open_sharded_writer,
    shard_names,
)
from dlog.blocking.wal import WriteAheadLog, open_wal
from dlog.blocking.writer import LogWriter

__all__ = [
    "GroupMember",
    "LogCursors",
    "LogReader",
    "LogWriter",
    "Namespace",
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
