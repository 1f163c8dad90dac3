"""Atomic batches: all records in one entry, or none; and what the error of a failed call knows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import dlog
import dlog.blocking
from dlog import DLSN
from dlog.encryption import KeyProvider
from dlog.format.envelope import ENTRY_BODY_BYTES_MAX
from dlog.format.record import RECORD_HEADER_BYTES
from dlog.write.batcher import Batcher

LARGE = 300_000


class OneKey(KeyProvider):
    def current(self) -> tuple[str, bytes]:
        return "2026", bytes(32)

    def key(self, key_id: str) -> bytes:
        return bytes(32)


@pytest.fixture
async def namespace(tmp_path: Path) -> AsyncIterator[dlog.Namespace]:
    config = dlog.NamespaceConfig(
        writer=dlog.WriterConfig(entry_bytes_target=1000, encryption=OneKey(), hash_chain=True),
        reader=dlog.ReaderConfig(encryption=OneKey()),
        compression=dlog.Compression.LZ4,
    )
    async with dlog.open_namespace(f"file://{tmp_path}", config=config) as opened:
        yield opened


def entries(positions: list[DLSN]) -> set[tuple[int, int]]:
    return {(position.segment_seqno, position.entry_id) for position in positions}


@pytest.mark.slow
async def test_an_atomic_batch_is_one_entry_also_beyond_the_usual_size_of_one(
    namespace: dlog.Namespace,
) -> None:
    payloads = [b"%d" % number * 100 for number in range(50)]
    async with namespace.open_writer("log", create=True) as log:
        one_by_one = await log.append_many(payloads)
        together = await log.append_many(payloads, txids=range(2**41, 2**41 + 50), atomic=True)
        assert len(entries(one_by_one)) > 1
        assert len(entries(together)) == 1
        assert together == sorted(together)
        assert await log.append_many([], atomic=True) == []
    async with namespace.open_reader("log", follow=False) as reader:
        records = [record async for record in reader]
    assert [record.payload for record in records] == payloads * 2
    assert [record.dlsn for record in records] == one_by_one + together
    assert (await namespace.repair.verify("log")).is_sound


@pytest.mark.slow
async def test_a_batch_that_does_not_fit_in_one_entry_is_refused_whole(namespace: dlog.Namespace) -> None:
    async with namespace.open_writer("log", create=True) as log:
        with pytest.raises(
            dlog.BatchTooLongError, match=r"4 records has 1\d{6} bytes.* at most 10\d{5}"
        ) as caught:
            await log.append_many([bytes(LARGE)] * 4, txids=[8, 8, 8, 8], atomic=True)
        assert caught.value.outcome is dlog.RecordOutcome.NOT_WRITTEN
        assert caught.value.durable == ()
        assert caught.value.size_bytes > caught.value.limit_bytes > 3 * LARGE
        assert log.last_txid == -1
        assert await log.append_many_after([bytes(LARGE)] * 3, None)
        with pytest.raises(dlog.RecordTooLongError):
            await log.append_many([b"", bytes(2**20)], atomic=True)
    assert await namespace.count_records("log") == 3


def test_the_largest_atomic_batch_fills_an_entry() -> None:
    batcher = Batcher(entry_bytes_target=1000)
    batcher.add(b"before", 1)
    half = bytes(ENTRY_BODY_BYTES_MAX // 2 - RECORD_HEADER_BYTES)
    batch, slot, count = batcher.add_together([half, half + b"x"], [2, 2])
    assert (slot, count, batch.size_bytes) == (0, 2, ENTRY_BODY_BYTES_MAX)
    before = batcher.take(idle=False)
    assert before is not None
    assert before.payloads == [b"before"]
    assert batcher.take(idle=False) is batch


@pytest.mark.slow
async def test_a_batch_is_written_only_behind_the_expected_record(namespace: dlog.Namespace) -> None:
    async with namespace.open_writer("log", create=True) as log:
        first = await log.append_many_after([b"1", b"2"], None, txids=[1, 2])
        with pytest.raises(dlog.PositionConflictError) as caught:
            await log.append_many_after([b"x"], first[0])
        assert (caught.value.expected, caught.value.actual) == (first[0], first[1])
        second = await log.append_many_after([b"3", b"4"], first[1], txids=[3, 4])
        assert len(entries(second)) == 1
        assert await log.append_many_after([], second[1]) == []
        await log.append_after(b"5", second[1])
    assert await namespace.count_records("log") == 5


@pytest.mark.slow
def test_a_blocking_writer_offers_the_same(tmp_path: Path) -> None:
    with (
        dlog.blocking.open_namespace(f"file://{tmp_path}") as namespace,
        namespace.open_writer("log", create=True) as log,
    ):
        first = log.append_many([b"a", b"b"], atomic=True)
        assert len(entries(first)) == 1
        assert log.append_many_after([b"c"], first[-1], txids=[2**60]) > first
