"""The streaming reader over several streams: offsets, new streams, limits, lag, lost streams."""

# covers: spark_integration/measuring.py
# covers: spark_integration/ranges.py

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from spark_integration import stream as stream_module
from spark_integration.errors import DataLossError, OffsetFormatError, OptionError
from spark_integration.measuring import SEGMENTS_MEASURED
from spark_integration.offsets import Position
from spark_integration.stream import DlogStreamReader
from tests.fakes.list_streams import ListLog, ListStreams, batch_reader, stream_reader

ALL = ReadMaxRows(2**63 - 1)
Offset = dict[str, Any]


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(stream_module, "time", clock)
    return clock


def streams_of(**counts: int) -> ListStreams:
    streams = ListStreams({})
    for name, count in counts.items():
        streams.logs[name] = ListLog()
        streams.logs[name].grow(count)
    return streams


def reader_of(logs: ListStreams, **options: str) -> DlogStreamReader:
    given = {"uri": "file:///x", "pollTimeoutMs": "1", "startingOffsets": "earliest", **options}
    if not {"streams", "shardedStream"} & set(options):
        given["streamPattern"] = options.get("streamPattern", "*")
    return stream_reader(logs, given)


def through_json(offset: object) -> Offset:
    value: Offset = json.loads(json.dumps(offset))
    return value


def rows(reader: DlogStreamReader, start: Offset, end: Offset) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for partition in reader.partitions(start, end):
        for batch in reader.read(pickle.loads(pickle.dumps(partition))):
            for stream, payload in zip(
                batch["stream"].to_pylist(), batch["payload"].to_pylist(), strict=True
            ):
                found.setdefault(stream, []).append(int(payload))
    return found


def trigger(reader: DlogStreamReader, start: Offset) -> tuple[Offset, dict[str, list[int]]]:
    end = through_json(reader.latestOffset(start, ALL))
    return end, rows(reader, start, end)


def pinned(reader: DlogStreamReader) -> Offset:
    start, seen = trigger(reader, through_json(reader.initialOffset()))
    assert seen == {}
    return start


def test_each_stream_is_read_in_its_order(clock: Clock) -> None:
    streams = streams_of(a=11, b=3, c=0)
    reader = reader_of(streams)
    end, seen = trigger(reader, pinned(reader))
    assert seen == {"a": list(range(11)), "b": list(range(3))}
    streams.logs["c"].grow(5)
    streams.logs["a"].grow(4)
    between, first = trigger(reader, end)  # the first range of c pins its start
    _, second = trigger(reader, between)
    assert (first, second) == ({"a": [11, 12, 13, 14]}, {"c": list(range(5))})


def test_a_query_starts_where_the_offset_of_another_one_or_a_report_says(clock: Clock) -> None:
    streams = streams_of(a=11, b=3)
    streams.logs["a"].identity = "first"
    first = reader_of(streams)
    end, _ = trigger(first, pinned(first))
    report = first.reportLatestOffset()
    assert report is not None
    assert report["lag"] == {"records": 0, "seconds": 0.0}
    for log in streams.logs.values():
        log.grow(2)
    for offset in (end, report):
        reader = reader_of(streams, startingOffsets=json.dumps(offset))
        assert trigger(reader, through_json(reader.initialOffset()))[1] == {"a": [11, 12], "b": [3, 4]}
    streams.logs["a"].identity = "second"
    with pytest.raises(OptionError, match="'a': the offset given as an option is of another log"):
        reader_of(streams, startingOffsets=json.dumps(end)).initialOffset()


def test_a_batch_between_two_dlsns_has_both_records() -> None:
    streams = streams_of(a=30)
    wanted = {"uri": "file:///x", "stream": "a", "startingDlsn": "1:2:1", "endingDlsn": "DLSN(2, 0, 0)"}
    reader = batch_reader(streams, wanted)
    (partition,) = reader.partitions()
    assert [int(each) for batch in reader.read(partition) for each in batch["payload"].to_pylist()] == [
        5,
        6,
        7,
        8,
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "9:0:0"}, r"the start 9:0:0 is beyond its last record, 4:2:1"),
        ({"startingDlsn": "4:3:0", "endingDlsn": "2:0:0"}, r"the end 2:0:0 is before the start 4:2:-1"),
    ],
)
def test_a_batch_that_would_read_nothing_is_an_error(options: dict[str, str], message: str) -> None:
    streams = streams_of(a=30)
    with pytest.raises(OptionError, match=message):
        batch_reader(streams, {"uri": "file:///x", "stream": "a", **options})


def test_a_query_that_starts_beyond_the_end_is_an_error_and_one_without_a_log_waits_with_a_warning(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    streams = streams_of(a=30)
    with pytest.raises(OptionError, match="is beyond its last record, 4:2:1"):
        reader_of(streams, streams="a", startingOffsets="4:3:0").initialOffset()
    end = reader_of(streams, streams="a", startingOffsets="4:2:1").initialOffset()
    assert end["streams"] == {"a": [4, 2, 1]}, "the end itself is a start"
    empty = ListStreams({})
    reader = reader_of(empty, streamPattern="b*")
    at = through_json(reader.initialOffset())
    assert "the streams 'b*': no log of file:///x matches yet" in caplog.text
    at, _ = trigger(reader, at)
    empty.logs["b1"] = ListLog()
    empty.logs["b1"].grow(3)
    clock.now += 5
    at, _ = trigger(reader, at)
    assert trigger(reader, at)[1] == {"b1": [0, 1, 2]}


def test_small_ranges_of_many_streams_are_one_task(clock: Clock) -> None:
    streams = streams_of(**{f"s{number:03d}": 3 for number in range(200)})
    reader = reader_of(streams)
    start = pinned(reader)
    end = through_json(reader.latestOffset(start, ALL))
    (partition,) = reader.partitions(start, end)
    assert len(partition.parts) == 200
    (batch,) = reader.read(partition)
    assert len(batch) == 600


def test_a_new_stream_joins_at_its_first_record(clock: Clock) -> None:
    streams = streams_of(a=4)
    reader = reader_of(streams, discoveryIntervalMs="5000")
    end, _ = trigger(reader, pinned(reader))
    streams.logs["b"] = ListLog()
    streams.logs["b"].grow(6)
    assert reader.latestOffset(end, ALL) is end, "streams are listed again only after discoveryIntervalMs"
    clock.now += 5
    joined, nothing = trigger(reader, end)
    assert nothing == {}
    assert joined["streams"].keys() == {"a", "b"}
    assert trigger(reader, joined)[1] == {"b": list(range(6))}


def test_a_new_stream_is_pinned_before_it_is_read(clock: Clock) -> None:
    """A replay of the batch with which it joined must not read other records after a truncation."""
    streams = streams_of(a=4)
    reader = reader_of(streams)
    end, _ = trigger(reader, pinned(reader))
    streams.logs["b"] = ListLog()
    streams.logs["b"].grow(20)
    clock.now += 5
    joined, _ = trigger(reader, end)
    streams.logs["b"].truncate(8)
    again = reader_of(streams)
    assert rows(again, end, joined) == {}
    with pytest.raises(DataLossError, match="failOnDataLoss=false"):
        trigger(again, joined)


def test_a_query_from_latest_pins_every_stream(clock: Clock) -> None:
    streams = streams_of(a=10, b=10)
    reader = reader_of(streams, startingOffsets="latest")
    start = through_json(reader.initialOffset())
    for log in streams.logs.values():
        log.grow(15)
    end, seen = trigger(reader, start)
    assert (end, seen) == (start, {})
    restarted = reader_of(streams, startingOffsets="latest")
    assert trigger(restarted, end)[1] == {"a": list(range(10, 25)), "b": list(range(10, 25))}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingTxId": "55"}, {"a": range(6, 20), "b": range(6, 9)}),
        ({"startingTimestamp": '{"a": 100, "b": 0}'}, {"a": range(10, 20), "b": range(9)}),
        ({"startingOffsets": '{"a": [2, 0, 0], "b": "latest"}'}, {"a": range(9, 20)}),
        ({"startingCursor": "billing"}, {"a": range(3, 20), "b": range(9)}),
        (
            {"startingTxId": "100", "startingTimestampStrategy": "latest"},
            {"a": range(10, 20)},
        ),
    ],
)
def test_a_query_starts_where_the_options_say(
    clock: Clock, options: dict[str, str], expected: dict[str, range]
) -> None:
    streams = streams_of(a=20, b=9)
    streams.logs["a"].cursors["billing"] = Position(1, 1, 0)
    given = {"startingOffsets": "earliest"} if "startingCursor" in options else {}
    reader = stream_reader(
        streams, {"uri": "file:///x", "streams": "a,b", "pollTimeoutMs": "1", **given, **options}
    )
    start = through_json(reader.initialOffset())
    seen: dict[str, list[int]] = {}
    for _ in range(3):
        start, some = trigger(reader, start)
        for stream, numbers in some.items():
            seen.setdefault(stream, []).extend(numbers)
    assert seen == {stream: list(numbers) for stream, numbers in expected.items()}


def test_a_start_behind_all_records_is_an_error_or_latest(clock: Clock) -> None:
    streams = streams_of(a=20, b=9)
    given = {"uri": "file:///x", "streams": "a,b", "startingTxId": "100"}
    with pytest.raises(OptionError, match="'b' has no record with transaction id 100"):
        stream_reader(streams, given).initialOffset()


LIMITS: list[tuple[dict[str, str], dict[str, int]]] = [
    ({"maxRecordsPerTrigger": "10"}, {"records": 10}),
    ({"maxBytesPerTrigger": "400"}, {"bytes": 400}),
    ({"maxEntriesPerTrigger": "3"}, {"records": 6}),
    ({"maxRecordsPerTrigger": "7", "maxBytesPerTrigger": "10K", "maxEntriesPerTrigger": "9"}, {"records": 7}),
]


@pytest.mark.parametrize(("options", "most"), LIMITS)
def test_every_limit_bounds_a_trigger_and_all_records_come(
    clock: Clock, options: dict[str, str], most: dict[str, int]
) -> None:
    streams = ListStreams({"a": ListLog()})
    for size in (1, 9, 60):
        streams.logs["a"].grow(20, payload_bytes=size)
    reader = reader_of(streams, **options)
    offset, seen = pinned(reader), []
    while (end := through_json(reader.latestOffset(offset, ALL))) != offset:
        some = rows(reader, offset, end)["a"]
        size = sum(20 + len(streams.logs["a"].records[number].payload) for number in some)
        assert len(some) <= most.get("records", 60) or len(some) <= 2, "an entry is not divided"
        assert size <= most.get("bytes", 10**6) or len(some) <= 2
        seen += some
        offset = end
    assert seen == list(range(60))


def test_a_limit_is_shared_in_proportion_and_leaves_no_stream_out(clock: Clock) -> None:
    streams = streams_of(a=64, b=16, c=2)
    reader = reader_of(streams, maxRecordsPerTrigger="20")
    _, seen = trigger(reader, pinned(reader))
    assert {stream: len(numbers) for stream, numbers in seen.items()} == {"a": 16, "b": 3, "c": 1}


def test_planning_reads_few_entries(clock: Clock) -> None:
    streams = streams_of(a=800)
    reader = reader_of(streams, maxRecordsPerTrigger="100")
    trigger(reader, pinned(reader))
    assert streams.logs["a"].measured < 20


def test_a_limited_trigger_ends_within_the_segments_whose_sizes_are_known(clock: Clock) -> None:
    streams = streams_of(a=800)  # 100 segments
    reader = reader_of(streams, maxRecordsPerTrigger="790")
    start = pinned(reader)
    end, seen = trigger(reader, start)
    assert end["streams"]["a"][0] == SEGMENTS_MEASURED
    assert len(seen["a"]) == 8 * SEGMENTS_MEASURED


def test_a_trigger_waits_for_enough_records_or_the_delay(clock: Clock) -> None:
    streams = streams_of(a=4)
    reader = reader_of(streams, minRecordsPerTrigger="10", maxTriggerDelay="30s")
    start = pinned(reader)
    assert reader.latestOffset(start, ALL) is start
    streams.logs["a"].grow(4)
    assert reader.latestOffset(start, ALL) is start
    streams.logs["a"].grow(2)
    end, seen = trigger(reader, start)
    assert seen == {"a": list(range(10))}
    streams.logs["a"].grow(1)
    assert reader.latestOffset(end, ALL) is end
    clock.now += 31
    assert trigger(reader, end)[1] == {"a": [10]}


def test_available_now_waits_for_no_minimum(clock: Clock) -> None:
    streams = streams_of(a=4)
    reader = reader_of(streams, minRecordsPerTrigger="10")
    reader.prepareForTriggerAvailableNow()
    streams.logs["b"] = ListLog()
    streams.logs["b"].grow(3)
    clock.now += 60
    end, seen = trigger(reader, pinned(reader))
    assert seen == {"a": list(range(4))}, "a stream that is created later belongs to the next run"
    assert reader.latestOffset(end, ALL) is end


@pytest.mark.parametrize("limit", [1, 3, 7, 8, 50])
def test_a_limit_of_records_is_exact_also_inside_an_entry_and_over_restarts(clock: Clock, limit: int) -> None:
    streams = streams_of(a=101)
    reader = reader_of(streams, maxRecordsPerTrigger=str(limit))
    at, seen = pinned(reader), list[int]()
    for batch in range(-(-101 // limit)):
        if batch % 2:
            reader = reader_of(streams, maxRecordsPerTrigger=str(limit))  # it knows only the checkpoint
        end, found = trigger(reader, at)
        assert rows(reader_of(streams), at, end) == found, "a restart reads the same"
        assert len(found["a"]) == min(limit, 101 - len(seen))
        at, seen = end, seen + found["a"]
    assert seen == list(range(101))
    assert reader.latestOffset(at, ALL) is at


def test_a_limit_of_bytes_or_entries_ends_between_entries(clock: Clock) -> None:
    streams = streams_of(a=60)
    for option, value in (("maxEntriesPerTrigger", "3"), ("maxBytesPerTrigger", "150")):
        reader = reader_of(streams, **{option: value, "maxRecordsPerTrigger": "50"})
        assert trigger(reader, pinned(reader))[1] == {"a": list(range(6))}


def test_a_limited_query_goes_on_beyond_entries_that_are_gone(clock: Clock) -> None:
    streams = streams_of(a=30)
    lenient = reader_of(streams, failOnDataLoss="false", maxRecordsPerTrigger="3")
    at = through_json(lenient.initialOffset())
    at, _ = trigger(lenient, at)
    streams.logs["a"].truncate(16)
    seen: list[int] = []
    for _ in range(30):
        at, found = trigger(lenient, at)
        seen += found.get("a", [])
    assert seen == list(range(16, 30))


def test_trigger_once_reads_all_streams(clock: Clock) -> None:
    streams = streams_of(a=4, b=2)
    reader = reader_of(streams, maxRecordsPerTrigger="1")
    start = through_json(reader.initialOffset())
    end = through_json(reader.latestOffset(start, ReadAllAvailable()))
    assert rows(reader, start, end) == {"a": [0, 1, 2, 3], "b": [0, 1]}


def test_the_lag_is_reported_in_records_and_seconds(clock: Clock) -> None:
    streams = streams_of(a=800, b=1)
    reader = reader_of(streams, maxRecordsPerTrigger="20")
    start = pinned(reader)
    end, _ = trigger(reader, start)
    reported = reader.reportLatestOffset()
    assert reported is not None
    done = sum(len(numbers) for numbers in rows(reader, start, end).values())
    assert done == 20
    # The record 18 of "a" is the last one read, and 19 the last one of its entry, whose id is known.
    assert reported["lag"] == {"records": 781, "seconds": (7990 - 190) / 1000}
    assert reported["streams"] == {"a": [100, 3, 1], "b": [1, 0, 0]}


def test_a_stream_that_vanished_is_lost_or_left_out(clock: Clock) -> None:
    streams = streams_of(a=4, b=4)
    strict = reader_of(streams)
    lenient = reader_of(streams, failOnDataLoss="false")
    end, _ = trigger(strict, pinned(strict))
    pinned(lenient)
    streams.logs["a"].grow(2)
    planned = through_json(strict.latestOffset(end, ALL))
    streams.logs["b"].exists = False
    with pytest.raises(DataLossError, match="stream 'b'"):
        strict.latestOffset(end, ALL)
    del streams.logs["b"]
    with pytest.raises(DataLossError, match="stream 'b'"):
        reader_of(streams).latestOffset(end, ALL)  # restarted from the checkpoint, it lists no such stream
    assert trigger(lenient, end) == (planned, {"a": [4, 5]})


def test_truncated_records_are_left_out_only_on_request(clock: Clock) -> None:
    streams = streams_of(a=30)
    strict, lenient = reader_of(streams), reader_of(streams, failOnDataLoss="false")
    start = pinned(strict)
    streams.logs["a"].truncate(9)
    with pytest.raises(DataLossError, match="failOnDataLoss=false"):
        trigger(strict, start)
    pinned(lenient)
    assert trigger(lenient, start)[1] == {"a": list(range(9, 30))}


@pytest.mark.parametrize("options", [{"streams": "a,c"}, {"streamPattern": "b*"}, {"shardedStream": "a"}])
def test_a_checkpoint_of_other_streams_is_refused(clock: Clock, options: dict[str, str]) -> None:
    streams = streams_of(a=4, b=4)
    start = pinned(reader_of(streams))
    other = reader_of(streams_of(a=4, b=4, c=4), **options)
    with pytest.raises(OffsetFormatError, match="new checkpoint location"):
        other.latestOffset(start, ALL)
    with pytest.raises(OffsetFormatError, match="new checkpoint location"):
        other.partitions(start, start)


def test_a_stream_that_is_added_to_a_checkpoint_is_read_from_its_first_record(clock: Clock) -> None:
    streams = streams_of(a=4, b=4)
    only = reader_of(ListStreams({"a": streams.logs["a"]}), streams="a")
    end, _ = trigger(only, pinned(only))
    both = reader_of(streams, streams="a,b")
    joined, nothing = trigger(both, end)
    assert (nothing, trigger(both, joined)[1]) == ({}, {"b": [0, 1, 2, 3]})


@pytest.mark.slow
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.sampled_from("abc"), st.integers(1, 12)),
            st.tuples(st.sampled_from(["batch", "restart"]), st.just(0)),
        ),
        max_size=30,
    ),
    bound=st.sampled_from(["1", "3", "100"]),
)
def test_every_record_comes_once_over_restarts_and_new_streams(
    steps: list[tuple[str, int]], bound: str
) -> None:
    streams = streams_of(a=5)
    options = {"maxRecordsPerTrigger": bound, "discoveryIntervalMs": "1"}
    reader = reader_of(streams, **options)
    ends: list[Offset] = []
    batches: list[dict[str, list[int]]] = []

    def start_of(batch: int) -> Offset:
        return ends[batch - 1] if batch else through_json(reader.initialOffset())

    def run() -> None:
        reader._names_until = 0
        end, seen = trigger(reader, start_of(len(ends)))
        ends.append(end)
        batches.append(seen)

    for step, number in steps:
        if step == "batch":
            run()
        elif step == "restart" and ends:
            reader = reader_of(streams, **options)
            last = len(ends) - 1
            assert rows(reader, start_of(last), ends[last]) == batches[last]
        elif step in "abc":
            streams.logs.setdefault(step, ListLog()).grow(number)
    run()
    run()
    while ends[-1] != ends[-2]:
        run()
    for stream, log in streams.logs.items():
        found = [number for batch in batches for number in batch.get(stream, [])]
        assert found == list(range(len(log.records)))


def test_a_batch_query_reads_the_same_ranges_in_every_action() -> None:
    streams = streams_of(a=9, b=5)
    reader = batch_reader(streams, {"uri": "file:///x", "streams": "a,b", "endingTxId": "40"})
    streams.logs["a"].grow(9)
    for _ in range(2):
        found = {
            (stream, int(payload))
            for partition in reader.partitions()
            for batch in reader.read(partition)
            for stream, payload in zip(batch["stream"].to_pylist(), batch["payload"].to_pylist(), strict=True)
        }
        assert found == {(stream, number) for stream in "ab" for number in range(5)}
