"""A new owner's window: what it reads of the log's end, over segments, with truncation and encryption."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from zlib import crc32

import pytest

import dlog
from dlog.encryption import PayloadOpener
from dlog.format.attributes import encode_attributes, with_producer
from dlog.forwarding.window_reading import read_window
from dlog.write.log_writer import take_stamped
from dlog.write.pending import settled_positions
from dlog.write.repeats import repeat_checksum
from namespace.dlsn import DLSN, INVALID_DLSN


class Keys:
    """A provider with one key."""

    def key(self, key_id: str) -> bytes:
        return b"k" * 32

    def current(self) -> tuple[str, bytes]:
        return "k1", b"k" * 32


@pytest.fixture
async def namespace(tmp_path: Path) -> AsyncIterator[dlog.Namespace]:
    async with dlog.open_namespace(f"file://{tmp_path}") as opened:
        yield opened


KEYED = encode_attributes(b"key", None)


async def write(namespace: dlog.Namespace, numbers: range, producer: bytes = b"p") -> list[DLSN]:
    """One segment with records of a producer, one an entry."""
    dlsns: list[DLSN] = []
    async with namespace.open_writer("log", create=True) as writer:
        for number in numbers:
            stamped = with_producer(KEYED, producer, number)
            taken = take_stamped(writer, [b"%d" % number], None, [stamped], atomic=False)
            dlsns += await settled_positions(taken)
    return dlsns


async def test_a_log_without_records_is_covered_as_a_whole(namespace: dlog.Namespace) -> None:
    await namespace.create_log("log")
    window = await read_window(namespace.context.log("log"), None)
    assert (len(window), window.covers) == (0, INVALID_DLSN)


async def test_a_new_owner_knows_keys_and_headers_and_no_trace(namespace: dlog.Namespace) -> None:
    given = [
        encode_attributes(key, headers)
        for key in (None, b"", b"key")
        for headers in ({}, {"colour": b"red"}, {"colour": b"", "traceparent": b"00-1"}, {"tracestate": b"a"})
    ]
    async with namespace.open_writer("log", create=True) as writer:
        stamped = [with_producer(each, b"p", number) for number, each in enumerate(given)]
        await settled_positions(take_stamped(writer, [b"a"] * len(given), None, stamped, atomic=False))
    window = await read_window(namespace.context.log("log"), None)
    found = [window.find("p", number) for number in range(len(given))]
    assert [None if each is None else each[1] for each in found] == [
        repeat_checksum(b"a", each) for each in given
    ]
    assert len({repeat_checksum(b"a", each) for each in given}) == 9  # two of each four differ by a trace


async def test_a_short_log_is_covered_as_a_whole(namespace: dlog.Namespace) -> None:
    dlsns = await write(namespace, range(3))
    dlsns += await write(namespace, range(3, 5))
    window = await read_window(namespace.context.log("log"), None)
    assert [window.find("p", number) for number in range(5)] == [
        (dlsn, repeat_checksum(b"%d" % number, KEYED)) for number, dlsn in enumerate(dlsns)
    ]
    assert window.covers == INVALID_DLSN


@pytest.mark.slow
@pytest.mark.parametrize("records_max", [1, 2, 5, 6, 7, 11, 12])
async def test_a_longer_log_is_covered_from_where_its_last_records_begin(
    namespace: dlog.Namespace, records_max: int
) -> None:
    dlsns = [*await write(namespace, range(6)), *await write(namespace, range(6, 12))]
    window = await read_window(namespace.context.log("log"), None, records_max=records_max)
    kept = [number for number in range(12) if window.find("p", number) is not None]
    assert kept == list(range(12 - records_max, 12))
    assert all(window.covers <= dlsns[number] for number in kept)
    assert all(window.covers > dlsn for dlsn in dlsns[: 12 - records_max])


@pytest.mark.slow
async def test_the_bytes_that_are_read_are_limited_too(namespace: dlog.Namespace) -> None:
    await write(namespace, range(20))
    whole = await read_window(namespace.context.log("log"), None)
    part = await read_window(namespace.context.log("log"), None, bytes_max=500)
    assert 0 < len(part) < len(whole) == 20
    assert part.bounds("p")[1] == 19


@pytest.mark.slow
async def test_a_truncated_log_is_covered_from_its_first_record_left(namespace: dlog.Namespace) -> None:
    await write(namespace, range(3))
    (first, *_) = await write(namespace, range(3, 6))
    await write(namespace, range(6, 7))
    await namespace.truncate_log("log", first)
    window = await read_window(namespace.context.log("log"), None)
    assert window.bounds("p") == (3, 6)
    assert window.covers == first


@pytest.mark.slow
async def test_records_of_other_writers_are_passed_over(namespace: dlog.Namespace) -> None:
    async with namespace.open_writer("log", create=True) as writer:
        await writer.append(b"plain")
        await writer.append(b"keyed", key=b"k")
    await write(namespace, range(2))
    window = await read_window(namespace.context.log("log"), None)
    assert len(window) == 2


@pytest.mark.slow
async def test_producers_of_encrypted_records_are_read(tmp_path: Path) -> None:
    keys = Keys()
    config = dlog.WriterConfig(encryption=keys)
    async with dlog.open_namespace(f"file://{tmp_path / 'ns'}") as namespace:
        async with namespace.open_writer("log", create=True, config=config) as writer:
            stamped = with_producer(None, b"p", 7)
            await settled_positions(take_stamped(writer, [b"secret"], None, [stamped], atomic=False))
        log = namespace.context.log("log")
        window = await read_window(log, PayloadOpener("log", keys, origin=await log.origin()))
        found = window.find("p", 7)
        assert found is not None
        assert found[1] == crc32(b"secret")
        assert len(await read_window(log, None)) == 0
