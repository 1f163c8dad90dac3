"""Which shard a key belongs to, which log a shard is, and the layout as the properties of shard 0.

Inside: the hash, names, the properties and their meaning. Not inside: storing them (``creation``).
Always: the shard of a key depends on the key and the number of shards only, in every release; a layout of
another hash is refused.

The properties of the log ``NAME/shard-00000``::

    dlog.shards        8
    dlog.shards.hash   crc32-modulo
    dlog.shards.state  creating | complete

Source: our own; docs/shards.md. CRC-32 is that of ISO 3309, zlib and java.util.zip.CRC32.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping

import attrs

from dlog.errors import LogMetadataError
from namespace.dlsn import DLSN

SHARDS_MAX = 1_000  # a writer opens a log for each
HASH = "crc32-modulo"
COUNT_KEY, HASH_KEY, STATE_KEY = "dlog.shards", "dlog.shards.hash", "dlog.shards.state"
CREATING, COMPLETE = "creating", "complete"
_COUNT = re.compile("[0-9]{1,19}")


def shard_of(key: bytes | bytearray | memoryview, shards: int) -> int:
    """The shard of a key: its CRC-32, modulo the number of shards. It is the same in every release."""
    return zlib.crc32(key) % shards


def shard_log(name: str, shard: int) -> str:
    """The name of the log that is a shard."""
    return f"{name}/shard-{shard:05d}"


def check_count(shards: int) -> int:
    """Return the number of shards if it is allowed.

    Raises:
        ValueError: It is not from 1 to ``SHARDS_MAX``.
        TypeError: It is no integer.
    """
    if type(shards) is not int:
        raise TypeError(f"the number of shards is an int, not {shards!r}")
    if not 1 <= shards <= SHARDS_MAX:
        raise ValueError(f"shards={shards}: from 1 to {SHARDS_MAX}")
    return shards


@attrs.frozen
class ShardedPosition:
    """The place of a record in a sharded log. Positions in different shards have no order."""

    shard: int
    dlsn: DLSN


@attrs.frozen
class ShardLayout:
    """The number of shards, and whether all of them were created."""

    count: int
    is_complete: bool

    def properties(self) -> dict[str, str]:
        """The properties of shard 0."""
        state = COMPLETE if self.is_complete else CREATING
        return {COUNT_KEY: str(self.count), HASH_KEY: HASH, STATE_KEY: state}


def layout_in(name: str, properties: Mapping[str, str]) -> ShardLayout | None:
    """The layout in the properties of shard 0; None if they have none.

    Raises:
        LogMetadataError: It is incomplete, or of a version that this release does not know.
    """
    keys = (COUNT_KEY, HASH_KEY, STATE_KEY)
    found = {key: properties[key] for key in keys if key in properties}
    if not found:
        return None
    count = found.get(COUNT_KEY, "")
    if (
        not (_COUNT.fullmatch(count) and 1 <= int(count) <= SHARDS_MAX)
        or found.get(HASH_KEY) != HASH
        or found.get(STATE_KEY) not in (CREATING, COMPLETE)
    ):
        shown = ", ".join(f"{key}={value}" for key, value in found.items())
        raise LogMetadataError(
            f"sharded log {name!r}: the properties of {shard_log(name, 0)} are no layout that this release"
            f" knows: {shown}; nothing was changed (see dlog log properties {shard_log(name, 0)})"
        )
    return ShardLayout(int(count), found[STATE_KEY] == COMPLETE)
