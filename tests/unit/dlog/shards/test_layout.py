"""Which shard a key belongs to, and the layout in the properties of shard 0."""

from __future__ import annotations

import pytest

from dlog.errors import LogMetadataError
from dlog.shards.layout import ShardLayout, layout_in, shard_log, shard_of


@pytest.mark.parametrize(
    ("key", "in_5", "in_8", "in_1000"),
    # The table of docs/shards.md. A change here would move the records of keys to other shards.
    [
        (b"", 0, 0, 0),
        (b"a", 2, 3, 907),
        (b"123456789", 2, 6, 262),
        (b"customer-1", 4, 5, 309),
        (b"customer-2", 4, 7, 199),
        ("Zürich".encode(), 3, 6, 798),
    ],
)
def test_the_shard_of_a_key_never_changes(key: bytes, in_5: int, in_8: int, in_1000: int) -> None:
    assert shard_of(key, 1) == 0
    assert (shard_of(key, 5), shard_of(key, 8), shard_of(key, 1000)) == (in_5, in_8, in_1000)
    assert shard_of(memoryview(key), 8) == shard_of(bytearray(key), 8) == in_8


def test_keys_spread_over_all_shards() -> None:
    counts = [0] * 8
    for number in range(8000):
        counts[shard_of(b"customer-%d" % number, 8)] += 1
    assert min(counts) > 900
    assert max(counts) < 1100


def test_a_layout_is_read_as_it_was_stored() -> None:
    for layout in (ShardLayout(1, is_complete=False), ShardLayout(1000, is_complete=True)):
        assert layout_in("s", {"owner": "shop", **layout.properties()}) == layout
    assert layout_in("s", {"owner": "shop"}) is None
    assert shard_log("shop/s", 7) == "shop/s/shard-00007"


@pytest.mark.parametrize(
    "wrong",
    [
        {"dlog.shards": "0"},
        {"dlog.shards": "-8"},
        {"dlog.shards": "1001"},
        {"dlog.shards": "²"},
        {"dlog.shards": None},
        {"dlog.shards.hash": "murmur"},
        {"dlog.shards.hash": None},
        {"dlog.shards.state": "deleting"},
        {"dlog.shards.state": None},
    ],
)
def test_an_unknown_or_incomplete_layout_is_refused(wrong: dict[str, str | None]) -> None:
    properties = {**ShardLayout(8, is_complete=True).properties(), **wrong}
    with pytest.raises(LogMetadataError, match="no layout that this release knows"):
        layout_in("s", {key: value for key, value in properties.items() if value is not None})
