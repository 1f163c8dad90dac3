"""Sharded logs without ``async``."""

from __future__ import annotations

from dlog.blocking.sharded_reader import ShardedReader
from dlog.blocking.sharded_writer import ShardedWriter
from dlog.shards import creation, reader, writer
from ledger.runtime.tasks.blocking_face import forwarded, opened

create_sharded_log = forwarded(creation.create_sharded_log)
shard_names = forwarded(creation.shard_names)
delete_sharded_log = forwarded(creation.delete_sharded_log)
open_sharded_writer = opened(writer.open_sharded_writer, ShardedWriter)
open_sharded_reader = opened(reader.open_sharded_reader, ShardedReader)
