"""A batch of records: a sequence, columns, payload views, Arrow, and a reader that returns batches."""

# covers: dlog/read/arrow_columns.py

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dlog
from dlog import DLSN, Record
from dlog.format.envelope import seal_envelope
from dlog.format.record import RecordWithAttributes, encode_records
from dlog.read.record_batch import RecordBatch, Untaken
from tests.fakes.log_by_hand import Log, open_log

SIZES = [3, 3, 3, 3, 3, 0, 9, 1, 4, 4]  # of the payloads of an entry


@asynccontextmanager
async def log_of_entries(count: int) -> AsyncIterator[Log]:
    """Entries with one record for each of SIZES; an entry in three has payloads of one size."""
    async with open_log() as log:
        entries = []
        for index in range(count):
            sizes = [5] * len(SIZES) if index % 3 == 2 else SIZES
            payloads = [bytes([index, at] * 9)[:size] for at, size in enumerate(sizes)]
            first = index * len(SIZES)
            entries.append(
                seal_envelope(encode_records(payloads, range(first, first + len(SIZES)), first + 1))
            )
        segment = await log.begin(1, 10, entries, lac=count - 1)
        log.ledgers[10].entries_at_once = 4
        await log.complete(segment, count * len(SIZES))
        yield log


async def read_all(log: Log) -> tuple[list[dlog.Record], list[RecordBatch]]:
    async with log.reader(follow=False) as reader:
        records = [record async for record in reader]
    async with log.reader(follow=False) as reader:
        return records, [batch async for batch in reader.batches()]


async def test_a_batch_is_a_sequence_of_the_records_that_iteration_gives(autojump_clock: object) -> None:
    async with log_of_entries(10) as log:
        records, batches = await read_all(log)
        assert [len(batch) for batch in batches] == [40, 40, 20]
        assert [record for batch in batches for record in batch] == records
        whole = RecordBatch.joined(batches)
        assert whole == records
        assert whole != records[:-1]
        assert [whole[at] for at in range(100)] == records
        assert [whole[at - 100] for at in range(100)] == records
        for first, stop in [(0, 100), (0, 0), (7, 3), (3, 12), (9, 10), (38, 62), (95, 200), (-4, 100)]:
            assert whole[first:stop] == records[first:stop]
            assert whole[first:stop][1:] == records[first:stop][1:]
        with pytest.raises(IndexError):
            whole[100]
        with pytest.raises(ValueError, match="no step"):
            whole[::2]
        assert not RecordBatch()
        with pytest.raises(IndexError):
            _ = RecordBatch().last_dlsn


async def test_columns_have_one_element_for_each_record(autojump_clock: object) -> None:
    async with log_of_entries(7) as log:
        records, batches = await read_all(log)
        whole = RecordBatch.joined(batches)
        for batch, expected in [(whole, records), (whole[13:41], records[13:41]), (RecordBatch(), [])]:
            assert list(batch.segment_seqnos) == [each.dlsn.segment_seqno for each in expected]
            assert list(batch.entry_ids) == [each.dlsn.entry_id for each in expected]
            assert list(batch.slot_ids) == [each.dlsn.slot_id for each in expected]
            assert list(batch.txids) == [each.txid for each in expected]
            assert list(batch.sequence_ids) == [each.sequence_id for each in expected]
            assert [bytes(view) for view in batch.payloads()] == [each.payload for each in expected]
            assert [bytes(batch.payload(at)) for at in range(len(batch))] == [r.payload for r in expected]
            assert batch.payload_bytes == sum(len(each.payload) for each in expected)
        assert (whole.first_dlsn, whole.last_dlsn) == (records[0].dlsn, records[-1].dlsn)
        assert repr(whole) == "<RecordBatch, 70 records from 1:0:0 to 1:6:9>"


RECORDS = [
    RecordWithAttributes(DLSN(1, at // 7, at % 7), at, b"%d" % at, at, b"k", ())
    if at // 7 == 2
    else Record(DLSN(1, at // 7, at % 7), at, b"%d" % at, at)
    for at in range(40)
]


@given(
    as_columns=st.booleans(),
    takes=st.lists(st.one_of(st.none(), st.just(0), st.integers(1, 15)), max_size=60),
)
def test_records_are_taken_once_whether_one_by_one_or_together(
    as_columns: bool, takes: list[int | None]
) -> None:
    untaken = Untaken(RecordBatch.of(RECORDS) if as_columns else RECORDS)
    taken: list[Record] = []
    for count in takes:
        if count is None:
            taken += islice(untaken.begin(), 1)
        else:
            taken += untaken.take(count)
        assert taken == RECORDS[: len(taken)]
        assert len(untaken) == len(RECORDS) - len(taken)
        assert list(untaken.rest()) == RECORDS[len(taken) :]
        assert untaken.last_taken == (taken[-1].dlsn if taken else None)
        assert untaken.first == (RECORDS[len(taken)].dlsn if len(taken) < len(RECORDS) else None)


class ShortOfMemory(bytes):
    """The bytes of an entry. A slice of them fails once."""

    fails_left = 0

    def __getitem__(self, index: Any) -> Any:
        if ShortOfMemory.fails_left:
            ShortOfMemory.fails_left -= 1
            raise MemoryError
        return super().__getitem__(index)


def test_a_record_that_did_not_fit_into_memory_is_the_first_of_the_rest() -> None:
    records = [record for record in RECORDS if type(record) is Record]
    for fails_at in range(len(records)):
        batch = RecordBatch.of(records)
        for run in batch._runs:
            run.body = ShortOfMemory(run.body)
        untaken = Untaken(batch)
        iterator = untaken.begin()
        assert list(islice(iterator, fails_at)) == records[:fails_at]
        ShortOfMemory.fails_left = 1
        with pytest.raises(MemoryError):
            next(iterator)
        assert list(untaken.rest(again=True)) == records[fails_at:]


async def test_payload_views_are_ranges_of_the_entries(autojump_clock: object) -> None:
    async with log_of_entries(2) as log:
        _, (batch,) = await read_all(log)
        (first, second) = batch[15:17].payloads()
        assert first.obj is second.obj is log.ledgers[10].entries[1]


async def test_a_batch_becomes_an_arrow_batch_with_its_columns(autojump_clock: object) -> None:
    import pyarrow as pa

    async with log_of_entries(7) as log:
        records, batches = await read_all(log)
        whole = RecordBatch.joined(batches)
        for batch, expected in [(whole, records), (whole[5:33], records[5:33]), (RecordBatch(), [])]:
            arrow = batch.to_arrow()
            arrow.validate(full=True)
            assert arrow.to_pylist() == [
                {
                    "segment": each.dlsn.segment_seqno,
                    "entry": each.dlsn.entry_id,
                    "slot": each.dlsn.slot_id,
                    "txid": each.txid,
                    "sequence_id": each.sequence_id,
                    "payload": each.payload,
                }
                for each in expected
            ]
            assert arrow.schema.types == [pa.int64()] * 5 + [pa.binary()]


def test_keys_and_headers_are_columns_of_arrow_on_request() -> None:
    records = [
        RecordWithAttributes(DLSN(1, 0, 0), 1, b"x", 0, b"k", (("a", b"1"), ("b", b""))),
        Record(DLSN(1, 0, 1), 2, b"y", 1),
    ]
    for batch, expected in [(RecordBatch.of(records), records), (RecordBatch(), [])]:
        arrow = batch.to_arrow(attributes=True)
        arrow.validate(full=True)
        assert arrow.schema.names == [*batch.to_arrow().schema.names, "key", "headers"]
        assert arrow["key"].to_pylist() == [each.key for each in expected]
        assert arrow["headers"].to_pylist() == [
            [{"key": name, "value": value} for name, value in each.headers.items()] for each in expected
        ]


def test_the_columns_of_arrow_can_be_named() -> None:
    batch = RecordBatch.of([Record(DLSN(1, 20, 3), 4, b"x", 5), Record(DLSN(1, 20, 4), 6, b"", 6)])
    arrow = batch.to_arrow(columns=["txid", "dlsn"])
    arrow.validate(full=True)
    assert arrow.to_pylist() == [{"txid": 4, "dlsn": "1:20:3"}, {"txid": 6, "dlsn": "1:20:4"}]
    assert batch.to_arrow(columns=[]).num_columns == 0
    with pytest.raises(ValueError, match="there is no column 'offset'; there are segment, entry"):
        batch.to_arrow(columns=["offset"])


async def test_arrow_without_pyarrow_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "dlog.read.arrow_columns", raising=False)
    with pytest.raises(dlog.ConfigError, match=r"pip install '\.\[arrow\]'"):
        RecordBatch().to_arrow()


@pytest.mark.parametrize(
    "bounds",
    [
        {"start": 17, "end": 38},
        {"start": dlog.DLSN(1, 1, 7), "end": dlog.DLSN(1, 3, 8)},
        {"start": 0, "end": 0},
        {"end": dlog.DLSN(1, 2, 99)},
    ],
)
async def test_batches_iteration_and_single_records_may_be_mixed(
    autojump_clock: object, bounds: dict[str, Any]
) -> None:
    async with log_of_entries(9) as log:
        async with log.reader(follow=False, **bounds) as reader:
            expected = [record async for record in reader]
        async with log.reader(follow=False, **bounds) as reader:
            got: list[dlog.Record] = []
            while batch := await reader.read_batch(4):
                got += batch
                assert reader.position == batch.last_dlsn.next_slot()
                async for record in reader:
                    got.append(record)
                    assert reader.position == record.dlsn.next_slot()
                    if len(got) % 3 == 0:
                        break
        assert got == expected


async def test_damage_is_raised_behind_the_batch_of_the_records_before_it(autojump_clock: object) -> None:
    async with log_of_entries(4) as log:
        log.ledgers[10].entries[2] = b"\x02" + log.ledgers[10].entries[2][1:]
        async with log.reader(follow=False) as reader:
            assert len(await reader.read_batch(99) or ()) == 20
            for _ in range(2):
                with pytest.raises(dlog.CorruptLogError) as caught:
                    await reader.read_batch(99)
                assert caught.value.position == dlog.DLSN(1, 2, 0)
