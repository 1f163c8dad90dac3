"""Namespaces, writers and readers for programs on asyncio.

Inside: objects that pass each call to the trio implementation, which runs as a guest in the same thread.
Not inside: any behaviour of their own. A record passes no other thread, and needs no task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlog.aio.backup import Backups as Backups
    from dlog.aio.backup import open_backups as open_backups
    from dlog.aio.blobs import BlobReader as BlobReader
    from dlog.aio.blobs import BlobWriter as BlobWriter
    from dlog.aio.cursors import LogCursors as LogCursors
    from dlog.aio.groups import GroupMember as GroupMember
    from dlog.aio.groups import join_group as join_group
    from dlog.aio.namespace import Namespace as Namespace
    from dlog.aio.namespace import open_namespace as open_namespace
    from dlog.aio.reader import LogReader as LogReader
    from dlog.aio.scan import Scan as Scan
    from dlog.aio.segment_watch import SegmentWatch as SegmentWatch
    from dlog.aio.shards import ShardedPending as ShardedPending
    from dlog.aio.shards import ShardedReader as ShardedReader
    from dlog.aio.shards import ShardedWriter as ShardedWriter
    from dlog.aio.shards import create_sharded_log as create_sharded_log
    from dlog.aio.shards import delete_sharded_log as delete_sharded_log
    from dlog.aio.shards import open_sharded_reader as open_sharded_reader
    from dlog.aio.shards import open_sharded_writer as open_sharded_writer
    from dlog.aio.shards import shard_names as shard_names
    from dlog.aio.wal import WalStandby as WalStandby
    from dlog.aio.wal import WriteAheadLog as WriteAheadLog
    from dlog.aio.wal import follow_wal as follow_wal
    from dlog.aio.wal import open_wal as open_wal
    from dlog.aio.writer import LogWriter as LogWriter
    from dlog.aio.writer import Pending as Pending

if not TYPE_CHECKING:  # else a type checker would take any name

    def __getattr__(name: str) -> object:
        from ledger.runtime.lazy_names import lazy_name

        return lazy_name(__name__, name)

    def __dir__() -> list[str]:
        return list(__getattr__("__all__"))
