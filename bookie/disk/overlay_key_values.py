"""An ordered map whose changes stay in memory, above a stored one that is only read.

Inside: joining both. Not inside: the stored map (``rocksdb``), files (``overlay``).
Always: a key that was changed or deleted here is never looked up in the stored map.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from bookie.disk.key_values import KeyValues, Operation

T = TypeVar("T")
_KEY_BYTES_MAX = 64  # longer than the keys of every index


class OverlayKeyValues(KeyValues):
    """Changes above a stored map; None: above an empty one."""

    def __init__(self, stored: KeyValues | None, on_failed: Callable[[], None]) -> None:
        """``on_failed`` is called when the stored map cannot be read; in any thread."""
        self._stored, self._on_failed = stored, on_failed
        self._changes: dict[bytes, bytes | None] = {}  # None: deleted
        self._keys: list[bytes] = []  # of ``_changes``, sorted
        self._guard = threading.Lock()

    def write(self, operations: Sequence[Operation]) -> None:
        with self._guard:
            for key, value in operations:
                if key not in self._changes:
                    insort(self._keys, key)
                self._changes[key] = value

    def delete_range(self, first: bytes, stop: bytes) -> None:
        self.write([(key, None) for key, _ in self.scan(first, stop)])

    def get(self, key: bytes) -> bytes | None:
        with self._guard:
            if key in self._changes:
                return self._changes[key]
        return None if self._stored is None else self._read(self._stored.get, key)

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        with self._guard:
            changed = None
            for at in range(bisect_right(self._keys, key) - 1, -1, -1):
                value = self._changes[self._keys[at]]
                if value is not None:
                    changed = self._keys[at], value
                    break
        stored = self._stored_floor(key)
        return max((one for one in (changed, stored) if one is not None), default=None)

    def _stored_floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        bound: bytes | None = key
        while bound is not None and self._stored is not None:
            found = self._read(self._stored.floor, bound)
            if found is None or found[0] not in self._changes:
                return found
            bound = _before(found[0])
        return None

    def scan(self, first: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._guard:
            keys = self._keys[bisect_left(self._keys, first) : bisect_left(self._keys, stop)]
            changes = {key: self._changes[key] for key in keys}
        return self._joined(keys, changes, first, stop)

    def _joined(
        self, keys: list[bytes], changes: dict[bytes, bytes | None], first: bytes, stop: bytes
    ) -> Iterator[tuple[bytes, bytes]]:
        at = 0
        for key, value in () if self._stored is None else self._scan_stored(self._stored, first, stop):
            while at < len(keys) and keys[at] < key:
                if (changed := changes[keys[at]]) is not None:
                    yield keys[at], changed
                at += 1
            if key not in changes:
                yield key, value
        for key in keys[at:]:
            if (changed := changes[key]) is not None:
                yield key, changed

    def sync(self) -> None:
        pass

    def close(self) -> None:
        if self._stored is not None:
            self._stored.close()

    def _read(self, read: Callable[[bytes], T], key: bytes) -> T:
        try:
            return read(key)
        except OSError:
            self._on_failed()
            raise

    def _scan_stored(self, stored: KeyValues, first: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        try:
            yield from stored.scan(first, stop)
        except OSError:
            self._on_failed()
            raise


def _before(key: bytes) -> bytes | None:
    """A key above all keys below this one, as long as they are no longer than ``_KEY_BYTES_MAX`` bytes."""
    if not key:
        return None
    if key[-1] == 0:
        return key[:-1]
    return key[:-1] + bytes((key[-1] - 1,)) + b"\xff" * (_KEY_BYTES_MAX - len(key))
