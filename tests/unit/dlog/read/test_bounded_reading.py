"""A reader beside a hostile writer: what a fetched read may expand to, and the error that names the entry."""

from __future__ import annotations

import tracemalloc

import pytest

import dlog
from dlog.format.compression import Compression
from dlog.format.envelope import ENVELOPE_HEADER, seal_envelope
from dlog.format.record import FLAG_RECORD_SET, encode_record, encode_records
from tests.fakes.log_by_hand import open_log
from tests.fakes.record_sets import encode_record_set

MIB = 1024 * 1024


async def test_a_read_of_compressed_entries_expands_bit_by_bit(autojump_clock: object) -> None:
    """64 entries of 4 KiB arrive in one read and expand to 64 MiB. The reader holds a few at a time."""
    payload = bytes(1_000_000)
    entries = [
        seal_envelope(encode_records([payload], [index], index + 1), Compression.LZ4) for index in range(64)
    ]
    async with open_log() as log:
        segment = await log.begin(1, 10, entries, lac=63)
        log.ledgers[10].entries_at_once = 64
        await log.complete(segment, 64)
        async with log.reader(follow=False) as reader:
            tracemalloc.start()
            try:
                count = 0
                while batch := await reader.read_batch(1000):
                    assert all(record.payload == payload for record in batch)
                    count += len(batch)
                    del batch
                used = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
    assert count == 64
    assert used < 12 * MIB


async def test_the_error_names_the_entry_and_the_limit(autojump_clock: object) -> None:
    packed = encode_record_set([b"\0" * 1_000_000], Compression.LZ4)
    bomb = seal_envelope(
        b"".join(encode_record(FLAG_RECORD_SET, index + 2, 1, packed) for index in range(100)),
        Compression.LZ4,
    )
    assert len(bomb) < 60_000
    entries = [seal_envelope(encode_records([b"good"], [1], 1)), bomb]
    async with open_log() as log:
        await log.begin(1, 10, entries, lac=1)
        async with log.reader(follow=False) as reader:
            assert (await anext(reader)).payload == b"good"
            for _ in range(2):
                with pytest.raises(dlog.CorruptLogError, match=r"slot 16: .* limit of 16711680") as caught:
                    await anext(reader)
                assert caught.value.position == dlog.DLSN(1, 1, 0)


async def test_an_envelope_that_lies_is_corrupt(autojump_clock: object) -> None:
    lie = ENVELOPE_HEADER.pack(1, 1, 64 * MIB, 300_000) + bytes(300_000)
    async with open_log() as log:
        await log.begin(1, 10, [lie], lac=0)
        async with log.reader(follow=False) as reader:
            with pytest.raises(dlog.CorruptLogError, match="67108864 bytes, more than the limit of 1044480"):
                await anext(reader)
