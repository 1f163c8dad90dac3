"""A map whose changes stay in memory, above a stored one. The twin is a dictionary."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bookie.disk.key_values import Operation
from bookie.disk.overlay_key_values import OverlayKeyValues
from bookie.disk.rocksdb import RocksKeyValues


def random_key(rng: random.Random) -> bytes:
    return bytes(rng.choice((0, 1, 65, 254, 255)) for _ in range(rng.randrange(1, 4)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_it_behaves_as_one_map(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    twin = {random_key(rng): b"%d" % number for number in range(40)}
    stored = RocksKeyValues(tmp_path / "index")
    stored.write(list(twin.items()))
    stored.sync()
    stored.close()
    database = OverlayKeyValues(RocksKeyValues(tmp_path / "index", read_only=True), lambda: None)
    for number in range(60):
        first, stop = sorted((random_key(rng), random_key(rng)))
        running = database.scan(first, stop)
        expected = sorted((key, value) for key, value in twin.items() if first <= key < stop)
        if rng.random() < 0.1:
            database.delete_range(first, stop)
            twin = {key: value for key, value in twin.items() if not first <= key < stop}
        else:
            operations: list[Operation] = []
            for _ in range(3):
                key = random_key(rng)
                operations.append((key, None if rng.random() < 0.6 else b"new %d" % number))
            database.write(operations)
            for key, value in operations:
                twin.pop(key, None)
                if value is not None:
                    twin[key] = value
        assert list(running) == expected, "as it was when the scan began"
        assert list(database.scan(b"", b"\xff" * 9)) == sorted(twin.items())
        for _ in range(10):
            key = random_key(rng)
            assert database.get(key) == twin.get(key)
            assert database.floor(key) == max(
                ((one, value) for one, value in twin.items() if one <= key), default=None
            )
    database.sync()
    database.close()


def test_without_a_stored_map_it_begins_empty() -> None:
    database = OverlayKeyValues(None, lambda: None)
    assert (database.get(b"a"), database.floor(b"a"), list(database.scan(b"", b"b"))) == (None, None, [])
    database.write([(b"a", b"1")])
    assert (database.get(b"a"), database.floor(b"b")) == (b"1", (b"a", b"1"))
    database.close()


class Broken(OverlayKeyValues):
    """Every read fails, as those of a table that is gone."""

    def get(self, key: bytes) -> bytes | None:
        raise OSError(errno.EIO, "gone")

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        raise OSError(errno.EIO, "gone")

    def scan(self, first: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        raise OSError(errno.EIO, "gone")


def test_a_stored_map_that_cannot_be_read_is_reported() -> None:
    failed: list[bool] = []
    database = OverlayKeyValues(Broken(None, lambda: None), lambda: failed.append(True))
    reads: list[Callable[[], object]] = [
        lambda: database.get(b"a"),
        lambda: database.floor(b"a"),
        lambda: list(database.scan(b"a", b"b")),
    ]
    for number, read in enumerate(reads):
        with pytest.raises(OSError, match="gone"):
            read()
        assert len(failed) == number + 1
