"""Records above the limit of an entry: cut by the writer, joined by readers, never in part."""

# covers: dlog/format/large_record.py

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import dlog
import dlog.blocking
from dlog import DLSN, PAYLOAD_BYTES_MAX
from dlog.encryption import KeyProvider
from dlog.errors import EntryFormatError
from dlog.format import large_record
from dlog.format.envelope import open_envelope
from dlog.format.large_record import LARGE_RECORD_BYTES_MAX, PartJoiner, head_of, parts_of
from dlog.write.actions import SegmentInUse
from dlog.write.segment_lifecycle import SegmentLifecycle
from dlog.write.writer_machine import WriterMachine
from ledger.errors import LedgerWriteError
from namespace.segments.segment import EMPTY_SEGMENT_TXID

LARGE = 2 * PAYLOAD_BYTES_MAX + 1000
WRITER = dlog.WriterConfig(record_bytes_max=8 * 2**20)


class OneKey(KeyProvider):
    def current(self) -> tuple[str, bytes]:
        return "2026", bytes(32)

    def key(self, key_id: str) -> bytes:
        return bytes(32)


@pytest.fixture
async def namespace(tmp_path: Path) -> AsyncIterator[dlog.Namespace]:
    async with dlog.open_namespace(f"file://{tmp_path}") as opened:
        yield opened


async def read(namespace: dlog.Namespace, **options: Any) -> list[dlog.Record]:
    async with namespace.open_reader("log", follow=False, **options) as reader:
        return [record async for record in reader]


@pytest.mark.slow
async def test_a_large_record_is_read_as_it_was_written_also_from_between_its_parts(tmp_path: Path) -> None:
    config = dlog.NamespaceConfig(
        writer=dlog.WriterConfig(record_bytes_max=8 * 2**20, encryption=OneKey(), hash_chain=True),
        reader=dlog.ReaderConfig(encryption=OneKey(), read_ahead_bytes_max=100_000),
        compression=dlog.Compression.LZ4,
    )
    payloads = [b"a", random.Random(1).randbytes(LARGE), b"b", bytes(LARGE), bytes(8 * 2**20), b"c"]
    async with dlog.open_namespace(f"file://{tmp_path}", config=config) as namespace:
        async with namespace.open_writer("log", create=True) as log:
            dlsns = [await log.append(payload, txid=txid) for txid, payload in enumerate(payloads[:2], 1)]
            dlsns += await log.append_many(payloads[2:], txids=range(3, 7))
            assert await log.append_once(payloads[3], txid=4) == dlsns[3]
            await log.flush()
            assert await namespace.last_dlsn("log") == dlsns[-1]
        records = await read(namespace)
        assert [record.payload for record in records] == payloads
        assert [record.dlsn for record in records] == dlsns
        assert [record.sequence_id for record in records] == list(range(6))
        large = dlsns[1]
        for entry_id in range(large.entry_id - 2, large.entry_id + 1):
            # The position of a large record is that of its last part, so these starts are not behind it.
            assert await read(namespace, start=DLSN(1, entry_id, 0)) == records[1:]
            assert await namespace.count_records("log", start=DLSN(1, entry_id, 0)) == 5
        async with namespace.open_reader("log", start=large, follow=False, gaps=True) as reader:
            batches = [batch async for batch in reader.batches(2, gaps=True)]
        assert [
            record for batch in batches if not isinstance(batch, dlog.Gap) for record in batch
        ] == records[1:]
        assert await read(namespace, start=large.next_slot(), end=dlsns[3]) == records[2:4]
        assert await read(namespace, start=4) == records[3:]
        assert await namespace.truncate_log("log", large) == large
        assert await read(namespace) == records[1:]
        found = await namespace.repair.verify("log")
        assert found.is_sound
        assert found.chained_records == 5
        described = await namespace.describe_log("log")
        assert (described.record_count, described.last_txid) == (6, 6)


@pytest.mark.slow
async def test_a_record_whose_ledger_fails_between_its_parts_is_written_whole_to_the_next(
    namespace: dlog.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_behind_parts(monkeypatch)
    async with namespace.open_writer("log", create=True, config=WRITER) as log:
        dlsn = await log.append(bytes(LARGE), txid=5)
        assert dlsn.segment_seqno == 2
    first, second = await namespace.segments("log")
    assert (first.record_count, first.last_txid) == (0, EMPTY_SEGMENT_TXID)
    assert (second.record_count, second.last_txid) == (1, 5)
    assert [(record.dlsn, len(record.payload)) for record in await read(namespace)] == [(dlsn, LARGE)]
    assert await read(namespace, start=DLSN(1, 1, 0)) == await read(namespace)


@pytest.mark.slow
async def test_parts_that_a_dead_writer_left_are_no_record_and_its_append_can_be_repeated(
    namespace: dlog.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        fail_behind_parts(patched)
        patched.setattr(SegmentLifecycle, "settle_own", unreachable)
        config = dlog.WriterConfig(record_bytes_max=LARGE, retry_timeout_s=0)
        async with namespace.open_writer("log", create=True, config=config) as log:
            with pytest.raises(dlog.LogWriteError) as caught:
                await log.append_once(bytes(LARGE), txid=5)
            assert caught.value.outcome is dlog.RecordOutcome.NOT_WRITTEN
    assert await read(namespace) == []
    async with namespace.open_writer("log", config=WRITER) as log:
        assert log.last_txid == -1
        assert await log.outcome(5) is None
        dlsn = await log.append_once(bytes(LARGE), txid=5)
        assert await log.append_once(bytes(LARGE), txid=5) == dlsn
    assert [record.dlsn for record in await read(namespace)] == [dlsn]


async def unreachable(*_: object) -> None:
    raise dlog.LogUnavailableError("the metadata store is away")


def fail_behind_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first ledger fail when all parts of a large record but the last are durable in it."""
    send_parts = WriterMachine._send_parts
    failed: list[SegmentInUse] = []

    def fail_once(self: WriterMachine, in_use: SegmentInUse, batch: Any) -> bool:
        if not failed:
            failed.append(in_use)
            send_parts(self, in_use, batch)
        elif in_use is not failed[0]:
            return send_parts(self, in_use, batch)
        elif in_use.writer._lac == in_use.writer.entry_count - 1:
            self.fail(in_use, LedgerWriteError(in_use.segment.ledger_id, "no ack quorum"))
        return False  # called again after each acknowledgement

    monkeypatch.setattr(WriterMachine, "_send_parts", fail_once)


@pytest.mark.slow
async def test_the_limit_is_the_writer_s_and_none_is_for_a_namespace_that_java_reads(
    namespace: dlog.Namespace,
) -> None:
    async with namespace.open_writer("log", create=True) as log:
        with pytest.raises(dlog.RecordTooLongError):
            await log.append(bytes(PAYLOAD_BYTES_MAX + 1))
    config = dlog.WriterConfig(record_bytes_max=LARGE)
    async with namespace.open_writer("log", config=config) as log:
        with pytest.raises(dlog.RecordTooLongError, match=str(LARGE)):
            await log.append(bytes(LARGE + 1))
        with pytest.raises(dlog.BatchTooLongError):
            await log.append_many([bytes(PAYLOAD_BYTES_MAX + 1)], atomic=True)
    with pytest.raises(ValueError, match="record_bytes_max"):
        dlog.WriterConfig(record_bytes_max=LARGE_RECORD_BYTES_MAX + 1)
    shared = dlog.NamespaceConfig(writer=config)
    with pytest.raises(dlog.ConfigError, match="Apache's readers cannot read a record of more than"):
        shared.for_scheme("distributedlog")
    assert not shared.for_scheme("file").shared_with_java


@pytest.mark.slow
async def test_a_writer_with_large_records_is_refused_where_java_reads(tmp_path: Path) -> None:
    shared = dlog.NamespaceConfig(shared_with_java=True)
    async with dlog.open_namespace(f"file://{tmp_path}", config=shared) as namespace:
        with pytest.raises(dlog.ConfigError, match="Apache's readers"):
            async with namespace.open_writer("log", create=True, config=WRITER):
                pass
        assert not await namespace.log_exists("log")


def test_a_joiner_refuses_what_no_writer_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_record, "PART_BYTES_MAX", 10)
    payload = bytes(range(35))
    parts, head = list(parts_of(payload)), head_of(payload)
    assert [len(part) - 9 for part in parts] == [10, 10, 10]

    def joined(*entries: tuple[int, bytes], head_at: int, head: bytes = head) -> bytes:
        joiner = PartJoiner(keeps=True)
        for entry_id, part in entries:
            joiner.add(entry_id, part)
        return joiner.join(head_at, head)

    whole = list(enumerate(parts, 7))
    assert joined(*whole, head_at=10) == payload
    assert joined((3, parts[0]), (4, parts[1]), *whole, head_at=10) == payload  # it began anew
    for wrong in (whole[:2], whole[1:], [whole[0], whole[2]], []):
        with pytest.raises(EntryFormatError, match="3 parts"):
            joined(*wrong, head_at=10)
    with pytest.raises(EntryFormatError, match="3 parts"):
        joined(*whole, head_at=11)
    with pytest.raises(EntryFormatError, match="34 bytes, not 35"):
        joined(*whole, head_at=10, head=head[:-1])
    for damaged in (b"", parts[0][:8], b"x" + parts[0][1:]):
        with pytest.raises(EntryFormatError, match="no header"):
            PartJoiner(keeps=True).add(0, damaged)
    with pytest.raises(EntryFormatError, match="no header"):
        PartJoiner(keeps=True).join(0, parts[0])
    monkeypatch.setattr(large_record, "STORED_BYTES_MAX", 25)
    with pytest.raises(EntryFormatError, match="the parts of a record have more than"):
        joined(*whole, head_at=10)


def test_the_bytes_of_parts_are_these(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_record, "PART_BYTES_MAX", 4)
    assert [part.hex() for part in parts_of(b"abcdefghi")] == [
        b"DLLP".hex() + "01" + "00000000" + b"abcd".hex(),
        b"DLLP".hex() + "01" + "00000001" + b"efgh".hex(),
    ]
    assert head_of(b"abcdefghi").hex() == b"DLLH".hex() + "01" + "00000002" + "0000000000000009" + b"i".hex()
    assert list(parts_of(b"abcd")) == []
    with pytest.raises(EntryFormatError, match="version 3"):
        open_envelope(bytes((3,)) + bytes(12))
