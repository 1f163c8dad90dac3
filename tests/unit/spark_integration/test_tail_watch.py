"""Waiting at the end of an embedded log, and small micro-batches that travel with their partition."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

import dlog.blocking
from spark_integration import client, tail_watch
from spark_integration.client import NamedLog, NamedStreams, namespace
from spark_integration.offsets import Position
from spark_integration.options import Selection, parse_options
from spark_integration.planning import Range
from spark_integration.ranges import RangePartition
from spark_integration.stream import DlogStreamReader
from spark_integration.tail_watch import TailWatch
from tests.fakes.list_streams import stream_reader

pytestmark = pytest.mark.slow
ALL = ReadMaxRows(2**63 - 1)
ENOUGH_S = 30.0
_readers: list[DlogStreamReader] = []  # that a test has made; stopped at its end


@pytest.fixture
def uri(tmp_path: Path) -> Iterator[str]:
    yield f"file://{tmp_path}"
    while _readers:
        _readers.pop().stop()
    while client._opened:
        client._opened.popitem()[1].close()


@pytest.fixture
def writer(uri: str) -> Iterator[dlog.blocking.LogWriter]:
    with namespace(uri).open_writer("log", create=True) as writer:
        writer.append(b"0")
        writer.flush()  # without it the record may not be visible yet, and the log has no end to wait at
        yield writer


@attrs.define
class CountedLog:
    """A log that counts its readers."""

    log: NamedLog
    followed: int = 0

    def tail(self) -> Position:
        return self.log.tail()

    def follow(self, position: Position) -> dlog.blocking.LogReader:
        self.followed += 1
        return self.log.follow(position)


@pytest.fixture
def log(uri: str, writer: dlog.blocking.LogWriter) -> CountedLog:
    return CountedLog(NamedLog(uri, "log", 2000))


def test_each_wait_returns_the_end_of_what_has_arrived_and_one_reader_serves_them_all(
    log: CountedLog, writer: dlog.blocking.LogWriter
) -> None:
    watch, end = TailWatch(log), log.tail()
    assert watch.wait(end, 0.0) is None
    for number in range(3):
        writer.append(b"%d" % number)
        arrived = watch.wait(end, ENOUGH_S)
        assert arrived == log.tail() > end
        assert watch.is_at(arrived)
        end = arrived
    assert log.followed == 1
    watch.close()


def test_a_wait_behind_another_record_opens_another_reader(
    log: CountedLog, writer: dlog.blocking.LogWriter
) -> None:
    watch, first = TailWatch(log), log.tail()
    writer.append(b"1")
    last = watch.wait(first, ENOUGH_S)
    assert watch.wait(first, ENOUGH_S) == last == log.tail()
    assert log.followed == 2
    watch.close()


def test_only_the_range_of_the_last_wait_has_arrived(
    log: CountedLog, writer: dlog.blocking.LogWriter
) -> None:
    watch, first = TailWatch(log), log.tail()
    writer.append_many([b"1", b"2"])
    last = watch.wait(first, ENOUGH_S)
    assert last is not None
    records = watch.arrived(Range(first, last))
    assert records is not None
    assert [bytes(each) for each in records.payloads()] == [b"1", b"2"]
    cut = Position(last.segment, last.entry, last.slot - 1)
    assert watch.arrived(Range(first, cut)) is None
    assert watch.arrived(Range(cut, last)) is None
    watch.close()


@attrs.define
class EntryByEntry:
    """A log whose reader returns what was appended one by one in as many batches, as at a tail."""

    batches: list[dlog.RecordBatch] = attrs.Factory(list)
    followed: int = 0
    is_closed: bool = False
    end: int = 0

    def append(self, count: int) -> None:
        for _ in range(count):
            self.end += 1
            self.batches.append(
                dlog.RecordBatch.of([dlog.Record(dlog.DLSN(1, self.end, 0), 1, b"x", self.end)])
            )

    def tail(self) -> Position:
        return Position(1, self.end, 0)

    def follow(self, position: Position) -> Any:
        self.followed += 1
        return self

    def read_batch(self, records_max: int, *, wait_s: float) -> dlog.RecordBatch:
        return self.batches.pop(0) if self.batches else dlog.RecordBatch()

    def close(self) -> None:
        self.is_closed = True


def test_one_micro_batch_takes_all_entries_that_arrived_during_the_last_one() -> None:
    log = EntryByEntry()
    watch, end = TailWatch(log), log.tail()
    for _ in range(3):
        log.append(20)
        last = watch.wait(end, 0.0)
        assert last == log.tail()
        records = watch.arrived(Range(end, last))
        assert records is not None
        assert list(records.entry_ids) == list(range(end.entry + 1, last.entry + 1))
        end = last
    assert log.followed == 1


def test_a_tail_that_brings_more_entries_than_the_driver_reads_is_left_to_the_tasks() -> None:
    log = EntryByEntry()
    watch, end = TailWatch(log), log.tail()
    log.append(tail_watch.READS_MAX + 1)
    assert watch.wait(end, 0.0) == log.tail()
    assert watch.arrived(Range(end, log.tail())) is None
    assert log.is_closed


@pytest.mark.parametrize("limit", ["RECORDS_MAX", "BYTES_MAX"])
def test_a_backlog_is_left_to_the_tasks(
    log: CountedLog, writer: dlog.blocking.LogWriter, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_watch, limit, 2)
    watch, end = TailWatch(log), log.tail()
    writer.append_many([b"1", b"2", b"3"])
    assert watch.wait(end, ENOUGH_S) == log.tail()
    assert not watch.is_at(log.tail())


def test_nothing_is_waited_for_behind_the_end_of_a_sealed_log(
    uri: str, log: CountedLog, writer: dlog.blocking.LogWriter
) -> None:
    watch, end = TailWatch(log), log.tail()
    writer.seal()
    assert watch.wait(end, ENOUGH_S) is None
    assert watch.wait(end, ENOUGH_S) is None
    assert log.followed == 1


def test_an_error_ends_the_reader_and_the_next_wait_opens_another(
    log: CountedLog, writer: dlog.blocking.LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, end = TailWatch(log), log.tail()
    assert watch.wait(end, 0.0) is None
    assert watch._reader is not None
    watch._reader.close()
    with pytest.raises(dlog.DLogError):
        watch.wait(end, ENOUGH_S)
    writer.append(b"1")
    assert watch.wait(end, ENOUGH_S) == log.tail()
    assert log.followed == 2
    watch.close()


def test_a_watch_arrives_in_another_process_without_its_reader(log: CountedLog) -> None:
    watch, end = TailWatch(log.log), log.tail()
    watch.wait(end, 0.0)
    assert not pickle.loads(pickle.dumps(watch)).is_at(end)
    watch.close()


def reader_of(uri: str, **options: str) -> DlogStreamReader:
    given = {"uri": uri, "stream": "log", "startingOffsets": "earliest", **options}
    parsed = parse_options(given, streaming=True)
    _readers.append(stream_reader(NamedStreams(uri, parsed.selection, 2000, parsed.client), given))
    return _readers[-1]


def arrived(
    reader: DlogStreamReader, writer: dlog.blocking.LogWriter, *, travels: bool = True
) -> tuple[Any, Any, list[RangePartition]]:
    """Start and end of a micro-batch of a record that came while the query waited, and its partitions."""
    start = json.loads(json.dumps(reader.latestOffset(reader.initialOffset(), ALL)))
    reader.partitions(start, start)
    start = json.loads(json.dumps(reader.latestOffset(start, ALL)))  # what was there before
    reader.partitions(start, start)
    for _ in range(100):  # on a busy machine a record may come after the wait
        assert reader.latestOffset(start, ALL) == start  # waits, and nothing comes
        writer.append(b'{"a": 1}')
        end = json.loads(json.dumps(reader.latestOffset(start, ALL)))
        partitions = reader.partitions(start, end)
        if partitions and (partitions[0].records is not None or not travels):
            return start, end, partitions
        while end == start:
            end = json.loads(json.dumps(reader.latestOffset(start, ALL)))
        start = end
        reader.partitions(start, start)
    raise AssertionError("no record came while the query waited")


def rows(reader: DlogStreamReader, partitions: list[RangePartition]) -> pa.Table:
    batches = [batch for each in partitions for batch in reader.read(pickle.loads(pickle.dumps(each)))]
    return pa.Table.from_batches(batches, reader._ranges._rows.schema)


def test_records_that_arrive_travel_with_their_partition_and_a_restart_reads_the_same(
    uri: str, writer: dlog.blocking.LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {"includeTimestamp": "true", "includeSequence": "true"}
    reader = reader_of(uri, pollTimeoutMs="50", **columns)
    start, end, (partition,) = arrived(reader, writer)
    assert partition.records is not None
    again = reader_of(uri, **columns)
    (planned,) = again.partitions(start, end)
    assert planned.records is None
    assert planned.parts == partition.parts
    expected = rows(again, [planned])
    assert expected.column("payload").to_pylist() == [b'{"a": 1}']
    monkeypatch.setattr(client, "_call", None)  # the task needs no client
    assert rows(reader, [partition]) == expected


def test_records_in_a_partition_are_in_no_text_of_it(uri: str, writer: dlog.blocking.LogWriter) -> None:
    _, _, (partition,) = arrived(reader_of(uri, pollTimeoutMs="50"), writer)
    assert partition.records is not None
    assert b'{"a": 1}' in partition.records
    assert '"a"' not in f"{partition} {partition!r}"


@pytest.mark.parametrize("most", ["0", "20"])
def test_records_above_the_limit_are_read_by_the_task(
    uri: str, writer: dlog.blocking.LogWriter, most: str
) -> None:
    reader = reader_of(uri, pollTimeoutMs="50", inlineBytesMax=most)
    _, _, (partition,) = arrived(reader, writer, travels=False)
    assert partition.records is None
    assert rows(reader, [partition]).column("payload").to_pylist() == [b'{"a": 1}']


@pytest.mark.parametrize("setting", ["key_file", "bookie_security"])
def test_records_of_a_secured_stream_do_not_travel_through_spark_unless_it_is_asked_for(
    tmp_path: Path, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = NamedStreams("distributedlog://127.0.0.1:1/dlog", Selection(names=("log",)), 2000)
    assert not streams.is_confidential
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv(f"DLOG_{setting.upper()}", str(file))
    assert streams.is_confidential


def test_a_confidential_micro_batch_is_planned_without_its_records(
    uri: str, writer: dlog.blocking.LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NamedStreams, "is_confidential", True)
    _, _, (partition,) = arrived(reader_of(uri, pollTimeoutMs="50"), writer, travels=False)
    assert partition.records is None
    _, _, (asked,) = arrived(reader_of(uri, pollTimeoutMs="50", inlineBytesMax="64K"), writer)
    assert asked.records is not None


def test_several_entries_are_split_if_partitions_are_asked_for(
    uri: str, writer: dlog.blocking.LogWriter
) -> None:
    reader = reader_of(uri, pollTimeoutMs="50", minPartitions="2")
    _, end, (one,) = arrived(reader, writer)
    assert one.records is not None
    writer.append(b"1")
    writer.append(b"2")
    last = json.loads(json.dumps(reader.latestOffset(end, ALL)))
    while rows(reader, parts := reader.partitions(end, last)).num_rows < 2:
        last = json.loads(json.dumps(reader.latestOffset(last, ALL)))
    assert len(parts) == 2
    assert rows(reader, parts).column("payload").to_pylist() == [b"1", b"2"]


def test_each_record_is_in_one_micro_batch_whether_it_was_waited_for_or_not(
    uri: str, writer: dlog.blocking.LogWriter
) -> None:
    reader = reader_of(uri, pollTimeoutMs="20", maxEntriesPerTrigger="1")
    end = json.loads(json.dumps(reader.initialOffset()))
    seen: list[bytes] = []
    for number in range(1, 31):
        if number % 3 == 0:  # the others wait in vain, or find what a limit has left
            writer.append(b"%d" % (2 * number))
            writer.append(b"%d" % (2 * number + 1))
        start, end = end, json.loads(json.dumps(reader.latestOffset(end, ALL)))
        seen += rows(reader, reader.partitions(start, end)).column("payload").to_pylist()
    tail = reader_of(uri, pollTimeoutMs="20")
    seen += rows(tail, tail.partitions(end, tail.latestOffset(end, ALL))).column("payload").to_pylist()
    assert seen == [b"0", *[b"%d" % (2 * n + more) for n in range(3, 31, 3) for more in (0, 1)]]
