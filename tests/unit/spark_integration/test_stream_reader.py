"""The streaming reader with Spark's order of calls, on a log that is a list."""

# covers: spark_integration/stream.py

from __future__ import annotations

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import BinaryType

from spark_integration.arrow import ArrowRows
from spark_integration.errors import DataLossError
from spark_integration.options import Columns
from spark_integration.source import DlogBatchReader
from spark_integration.stream import DlogStreamReader
from tests.fakes.list_streams import ListLog, ListStreams, batch_reader, stream_reader

ALL = ReadMaxRows(2**63 - 1)
BATCH = {"uri": "file:///x", "stream": "s"}


@pytest.fixture
def log() -> ListLog:
    return ListLog()


def reader_of(log: ListLog, **options: str) -> DlogStreamReader:
    given = {**BATCH, "pollTimeoutMs": "1", **options}
    return stream_reader(ListStreams({"s": log}), given)


def batch_reader_of(log: ListLog, **options: str) -> DlogBatchReader:
    return batch_reader(ListStreams({"s": log}), {**BATCH, **options})


def rows(reader: Any, partitions: list[Any]) -> list[int]:
    return [
        int(payload)
        for partition in partitions
        for batch in reader.read(pickle.loads(pickle.dumps(partition)))
        for payload in batch.column("payload").to_pylist()
    ]


def through_json(offset: dict[str, Any]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(json.dumps(offset))
    return value


def run_trigger(
    reader: DlogStreamReader, start: dict[str, Any], limit: ReadLimit = ALL
) -> tuple[dict[str, Any], list[int]]:
    end = through_json(reader.latestOffset(start, limit))
    return end, rows(reader, reader.partitions(start, end))


def pinned_start(reader: DlogStreamReader) -> dict[str, Any]:
    """Run the empty batch that pins the start; return the start of the first batch with records."""
    start, seen = run_trigger(reader, through_json(reader.initialOffset()))
    assert seen == []
    return start


def test_consecutive_batches_are_the_stream(log: ListLog) -> None:
    reader = reader_of(log, startingOffsets="earliest")
    log.grow(11)
    first_end, first = run_trigger(reader, pinned_start(reader))
    log.grow(20)
    _, second = run_trigger(reader, first_end)
    assert first + second == list(range(31))


def test_a_range_read_again_by_another_reader_gives_the_same_rows(log: ListLog) -> None:
    reader = reader_of(log, startingOffsets="earliest")
    log.grow(25)
    start = pinned_start(reader)
    end, seen = run_trigger(reader, start)
    log.grow(25)
    again = reader_of(log, minPartitions="5")
    assert rows(again, again.partitions(start, end)) == seen


def replaced(log: ListLog) -> ListLog:
    """Another log of the same name, which has grown beyond the position of the query."""
    other = ListLog(identity="b")
    other.grow(len(log.records) + 20)
    return other


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("has_id", [False, True])
def test_another_log_of_the_same_name_is_an_error(restarts: bool, has_id: bool, log: ListLog) -> None:
    log.identity = "a"
    log.grow(10)
    streams = ListStreams({"s": log})
    given = {**BATCH, "pollTimeoutMs": "1", "startingOffsets": "earliest"}
    reader = stream_reader(streams, given)
    start, seen = run_trigger(reader, pinned_start(reader))
    assert seen == list(range(10))
    assert start["logs"] == {"s": "a"}
    streams.logs["s"] = other = replaced(log)
    other.identity = "b" if has_id else None
    if restarts:
        reader = stream_reader(streams, given)
    with pytest.raises(DataLossError, match="another log has its name now"):
        reader.latestOffset(start, ALL)


@pytest.mark.parametrize("limit", [ALL, ReadAllAvailable()])
def test_a_query_that_may_lose_data_reads_the_other_log_from_its_beginning(
    limit: ReadLimit, log: ListLog
) -> None:
    log.identity = "a"
    log.grow(10)
    streams = ListStreams({"s": log})
    given = {**BATCH, "pollTimeoutMs": "1", "startingOffsets": "earliest", "failOnDataLoss": "false"}
    reader = stream_reader(streams, given)
    start, _ = run_trigger(reader, pinned_start(reader))
    streams.logs["s"] = other = replaced(log)
    moved, seen = run_trigger(reader, start, limit)
    assert seen == []
    assert moved["logs"] == {"s": "b"}
    _, seen = run_trigger(stream_reader(streams, given), moved)
    assert seen == list(range(len(other.records)))


def test_a_batch_that_was_planned_of_another_log_is_not_read(log: ListLog) -> None:
    log.identity = "a"
    log.grow(10)
    streams = ListStreams({"s": log})
    given = {**BATCH, "pollTimeoutMs": "1", "startingOffsets": "earliest"}
    reader = stream_reader(streams, given)
    start = pinned_start(reader)
    end = through_json(reader.latestOffset(start, ALL))
    streams.logs["s"] = replaced(log)
    with pytest.raises(DataLossError, match="another log has its name now"):
        stream_reader(streams, given).partitions(start, end)
    reader = stream_reader(streams, given | {"failOnDataLoss": "false"})
    assert reader.partitions(start, end) == []


def test_a_checkpoint_of_an_older_release_takes_the_log_as_its_own(log: ListLog) -> None:
    log.grow(10)
    reader = reader_of(log, startingOffsets="earliest")
    start, _ = run_trigger(reader, pinned_start(reader))
    assert "logs" not in start
    log.identity = "a"
    assert reader_of(log).latestOffset(start, ALL) is start
    log.grow(4)
    end, seen = run_trigger(reader_of(log), start)
    assert seen == list(range(10, 14))
    assert end["logs"] == {"s": "a"}


def test_without_new_records_the_end_is_the_start_object(log: ListLog) -> None:
    reader = reader_of(log, startingOffsets="earliest")
    log.grow(5)
    end, _ = run_trigger(reader, pinned_start(reader))
    assert reader.latestOffset(end, ALL) is end
    whole_entry = {"v": 1, "streams": {"s": [1, 2, -1]}}  # another spelling of the same tail
    assert reader.latestOffset(whole_entry, ALL) is whole_entry


def test_a_query_from_latest_pins_its_start_with_an_empty_batch(log: ListLog) -> None:
    """Spark calls initialOffset twice and keeps only the end of batch 0; a crash must not lose records."""
    log.grow(10)
    reader = reader_of(log)
    start = through_json(reader.initialOffset())
    log.grow(15)
    end = through_json(reader.latestOffset(start, ALL))
    assert through_json(reader.initialOffset()) == start == end
    assert reader.partitions(start, end) == []
    restarted = reader_of(log)  # a restart has only the checkpoint
    assert run_trigger(restarted, end)[1] == list(range(10, 25))


def test_a_query_from_earliest_pins_its_start_and_a_truncation_shows(log: ListLog) -> None:
    """After a restart, Spark plans batch 0 again, from the first record that is left then."""
    log.grow(20)
    log.truncate(3)
    reader = reader_of(log, startingOffsets="earliest")
    pinned = pinned_start(reader)
    assert pinned["streams"]["s"] == [1, 1, 0]
    log.truncate(11)
    restarted = reader_of(log, startingOffsets="earliest")
    assert restarted.partitions(through_json(restarted.initialOffset()), pinned) == []
    with pytest.raises(DataLossError, match="failOnDataLoss=false"):
        run_trigger(restarted, pinned)
    assert run_trigger(reader_of(log), pinned_start(reader_of(log, startingOffsets="earliest")))[1] == list(
        range(11, 20)
    )


def test_the_only_batch_of_trigger_once_has_all_records(log: ListLog) -> None:
    log.grow(20)
    log.truncate(3)
    reader = reader_of(log, startingOffsets="earliest", maxEntriesPerTrigger="2")
    end, seen = run_trigger(reader, through_json(reader.initialOffset()), ReadAllAvailable())
    assert seen == list(range(3, 20))
    log.grow(5)
    restarted = reader_of(log, startingOffsets="earliest")
    assert run_trigger(restarted, end, ReadAllAvailable())[1] == list(range(20, 25))
    assert restarted.getDefaultReadLimit() == ALL, "ReadAllAvailable means Trigger.Once"


def test_a_query_from_earliest_of_an_empty_log_begins_with_its_first_record(log: ListLog) -> None:
    reader = reader_of(log, startingOffsets="earliest")
    start = through_json(reader.initialOffset())
    assert reader.latestOffset(start, ALL) is start
    log.grow(5)
    pinned, nothing = run_trigger(reader, start)
    assert nothing == []
    assert run_trigger(reader, pinned)[1] == list(range(5))


def test_a_log_with_only_truncated_records_is_followed(log: ListLog) -> None:
    log.grow(8)
    log.truncate(8)
    assert batch_reader_of(log).partitions() == []
    reader = reader_of(log, startingOffsets="earliest")
    pinned = pinned_start(reader)
    assert reader.latestOffset(pinned, ALL) is pinned
    log.grow(12)
    assert run_trigger(reader, pinned)[1] == list(range(8, 20))


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("grow"), st.integers(1, 12)),
            st.tuples(st.just("truncate"), st.integers(1, 12)),
            st.tuples(st.sampled_from(["batch", "restart"]), st.just(0)),
        ),
        max_size=25,
    ),
    bound=st.sampled_from(["1", "3", "100"]),
)
def test_a_batch_planned_again_gives_the_same_rows_or_an_exception(
    steps: list[tuple[str, int]], bound: str
) -> None:
    """Spark keeps only the end of a batch, and plans the last batch again after a restart."""
    log = ListLog()
    log.grow(20)
    options = {"startingOffsets": "earliest", "maxEntriesPerTrigger": bound}
    reader = reader_of(log, **options)
    limit = reader.getDefaultReadLimit()
    ends: list[dict[str, Any]] = []  # the checkpoint
    batches: list[list[int]] = []

    def start_of(batch: int) -> dict[str, Any]:
        return ends[batch - 1] if batch else through_json(reader.initialOffset())

    try:
        for step, number in steps:
            if step == "grow":
                log.grow(number)
            elif step == "truncate":
                log.truncate(log.truncated + number)
            elif step == "batch":
                end, seen = run_trigger(reader, start_of(len(ends)), limit)
                ends.append(end)
                batches.append(seen)
            elif ends:
                reader = reader_of(log, **options)
                last = len(ends) - 1
                assert rows(reader, reader.partitions(start_of(last), ends[last])) == batches[last]
    except DataLossError:
        assert log.truncated
    found = [number for batch in batches for number in batch]
    assert not found or found == list(range(found[0], found[0] + len(found)))


def test_a_range_that_runs_backwards_is_empty(log: ListLog) -> None:
    log.grow(20)
    reader = reader_of(log)
    later, earlier = {"v": 1, "streams": {"s": [2, 1, 1]}}, {"v": 1, "streams": {"s": [1, 0, 0]}}
    assert reader.partitions(later, earlier) == []
    assert reader.latestOffset({"v": 1, "streams": {"s": [9, 0, 0]}}, ALL)["streams"]["s"] == [9, 0, 0]


def test_bounded_triggers_read_all_records_in_the_end(log: ListLog) -> None:
    reader = reader_of(log, startingOffsets="earliest", maxEntriesPerTrigger="3")
    log.grow(40)
    limit = reader.getDefaultReadLimit()
    assert isinstance(limit, ReadMaxRows)
    offset, seen, batches = pinned_start(reader), [], 0
    while True:
        end, some = run_trigger(reader, offset, limit)
        if end == offset:
            break
        assert len(some) <= 6
        seen += some
        offset, batches = end, batches + 1
    assert seen == list(range(40))
    assert batches == 7


def test_a_limited_micro_batch_lists_the_segments_once(log: ListLog) -> None:
    reader = reader_of(log, startingOffsets="earliest", maxEntriesPerTrigger="2")
    log.grow(20)
    start = pinned_start(reader)
    for _ in range(3):
        before = log.listed
        end = through_json(reader.latestOffset(start, ALL))
        assert reader.reportLatestOffset() is not None
        assert len(rows(reader, reader.partitions(start, end))) == 4
        assert log.listed == before + 1
        log.grow(20)  # the next trigger sees new segments
        start = end


def test_available_now_ends_at_the_tail_of_its_start(log: ListLog) -> None:
    log.grow(10)
    reader = reader_of(log, startingOffsets="earliest")
    reader.prepareForTriggerAvailableNow()
    log.grow(10)
    end, seen = run_trigger(reader, pinned_start(reader))
    assert seen == list(range(10))
    assert reader.latestOffset(end, ALL) is end


def test_the_last_seen_tail_is_reported(log: ListLog) -> None:
    reader = reader_of(log, startingOffsets="earliest")
    assert reader.reportLatestOffset() is None
    log.grow(3)
    reader.latestOffset(reader.initialOffset(), ALL)
    reported = reader.reportLatestOffset()
    assert reported is not None
    assert reported["streams"] == {"s": [1, 1, 0]}


def test_a_batch_query_reads_between_its_offsets_in_the_declared_schema(log: ListLog) -> None:
    log.grow(30)
    reader = batch_reader_of(log, startingOffsets="[1, 1, -1]", endingOffsets="[3, 0, 0]")
    partitions = reader.partitions()
    assert rows(reader, partitions) == list(range(4, 17))
    batches: list[pa.RecordBatch] = [batch for part in partitions for batch in reader.read(part)]
    assert all(batch.schema.equals(ArrowRows(Columns(), BinaryType()).schema) for batch in batches)


def test_an_empty_log_has_no_partitions(log: ListLog) -> None:
    assert batch_reader_of(log).partitions() == []


def test_a_task_of_a_batch_query_gives_the_planned_records_or_an_exception(
    log: ListLog,
) -> None:
    log.grow(30)
    log.truncate(9)
    reader = batch_reader_of(log, minPartitions="4")
    partitions = reader.partitions()
    assert len(partitions) == 4
    assert rows(reader, partitions) == list(range(9, 30))
    log.truncate(10)
    with pytest.raises(DataLossError, match="failOnDataLoss=false"):
        rows(reader, partitions)
