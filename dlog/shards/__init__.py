"""A sharded log: a name, N logs that are its shards, and a key of each record that chooses the shard.

Inside: the layout and its creation, routing, one writer and one reader over all shards. Not inside: the
shards themselves, which are logs as any other. Entry point: ``create_sharded_log``.
"""

from dlog.shards.creation import create_sharded_log, delete_sharded_log, shard_names
from dlog.shards.errors import NotShardedError, ShardCountError, ShardsMissingError
from dlog.shards.layout import SHARDS_MAX, ShardedPosition, shard_of
from dlog.shards.reader import NO_SHARD, ShardedReader, open_sharded_reader
from dlog.shards.writer import ShardedPending, ShardedWriter, open_sharded_writer

__all__ = [
    "NO_SHARD",
    "SHARDS_MAX",
    "NotShardedError",
    "ShardCountError",
    "ShardedPending",
    "ShardedPosition",
    "ShardedReader",
    "ShardedWriter",
    "ShardsMissingError",
    "create_sharded_log",
    "delete_sharded_log",
    "open_sharded_reader",
    "open_sharded_writer",
    "shard_names",
    "shard_of",
]
