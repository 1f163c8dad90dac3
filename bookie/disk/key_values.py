"""The seam to an ordered map of bytes on disk: the database operations that an index needs.

Inside: the interface. Not inside: RocksDB (``rocksdb``), the meaning of the keys (``bookie.index``).
Always: one ``write`` is atomic and ordered after earlier writes. Writes before a ``sync`` that returned
survive a power cut. Without a sync, a crash leaves a prefix of the writes.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence

BATCH_OPERATIONS_MAX = 2000  # about 0.3 ms of the interpreter lock

Operation = tuple[bytes, bytes | None]  # key and value; None deletes the key


class KeyValues(abc.ABC):
    """Bytes to bytes, in the order of the keys. Any thread may read; one thread at a time writes.

    ``OSError`` if the disk fails or the stored data are damaged.
    """

    is_read_only = False

    @abc.abstractmethod
    def write(self, operations: Sequence[Operation]) -> None:
        """Apply all operations or none. Not durable until ``sync``."""

    @abc.abstractmethod
    def delete_range(self, first: bytes, stop: bytes) -> None:
        """Delete the keys of ``[first, stop)``. Not durable until ``sync``."""

    @abc.abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """The value of this key; None if it is absent."""

    @abc.abstractmethod
    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        """The greatest key less than or equal to this key, and its value; None if there is none."""

    @abc.abstractmethod
    def scan(self, first: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of ``[first, stop)`` in order, as they were when the scan began."""

    @abc.abstractmethod
    def sync(self) -> None:
        """Return when all earlier writes are on stable storage."""

    @abc.abstractmethod
    def close(self) -> None: ...
