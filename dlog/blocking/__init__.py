"""Namespaces, writers and readers without ``async``: for scripts, notebooks, Spark workers, asyncio.

Inside: objects that pass each call to the asynchronous implementation, in a trio loop in a thread of its own;
the promise of each call is that of the asynchronous call of the same name.
Not inside: the loop (``ledger.runtime.tasks.loop_thread``), any behaviour of their own.
Always: calls may come from any thread; a KeyboardInterrupt cancels the waiting call, as a cancellation does:
a reader loses no record, an interrupted ``append`` may have written its record; one thread's order stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlog.blocking.backup import Backups as Backups
    from dlog.blocking.backup import open_backups as open_backups
    from dlog.blocking.blobs import BlobReader as BlobReader
    from dlog.blocking.blobs import BlobWriter as BlobWriter
    from dlog.blocking.cursors import LogCursors as LogCursors
    from dlog.blocking.groups import GroupMember as GroupMember
    from dlog.blocking.groups import join_group as join_group
    from dlog.blocking.namespace import Namespace as Namespace
    from dlog.blocking.namespace import open_namespace as open_namespace
    from dlog.blocking.reader import LogReader as LogReader
    from dlog.blocking.scan import Scan as Scan
    from dlog.blocking.segment_watch import SegmentWatch as SegmentWatch
    from dlog.blocking.sharded_reader import ShardedReader as ShardedReader
    from dlog.blocking.sharded_writer import ShardedWriter as ShardedWriter
    from dlog.blocking.shards import create_sharded_log as create_sharded_log
    from dlog.blocking.shards import delete_sharded_log as delete_sharded_log
    from dlog.blocking.shards import open_sharded_reader as open_sharded_reader
    from dlog.blocking.shards import open_sharded_writer as open_sharded_writer
    from dlog.blocking.shards import shard_names as shard_names
    from dlog.blocking.wal import WalStandby as WalStandby
    from dlog.blocking.wal import WriteAheadLog as WriteAheadLog
    from dlog.blocking.wal import follow_wal as follow_wal
    from dlog.blocking.wal import open_wal as open_wal
    from dlog.blocking.writer import LogWriter as LogWriter

if not TYPE_CHECKING:  # else a type checker would take any name

    def __getattr__(name: str) -> object:
        from ledger.runtime.lazy_names import lazy_name

        return lazy_name(__name__, name)

    def __dir__() -> list[str]:
        return list(__getattr__("__all__"))
