"""The sink without Spark: parts of tasks, the commit of a batch, and what is left of what failed."""

# covers: spark_integration/sink/committing.py
# covers: spark_integration/sink/options.py
# covers: spark_integration/sink/parts.py

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, DataType, LongType, StringType, StructField, StructType

import dlog
import dlog.blocking
from dlog.bulk import BatchOvertakenError
from spark_integration import client
from spark_integration.errors import (
    BatchTooLargeError,
    OptionError,
    RepeatedBatchError,
    RowFormatError,
    SparkDlogError,
)
from spark_integration.sink import DlogBatchWriter, committing
from spark_integration.sink.committing import abandon_parts, commit_parts
from spark_integration.sink.contents import Block
from spark_integration.sink.options import SinkOptions, parse_sink_options
from spark_integration.sink.parts import Part, part_of_task, write_part
from spark_integration.sink.rows import check_schema, rows_of
from tests.unit.spark_integration.sinking import options_of, orphans, part, rows, written


@pytest.mark.slow
@pytest.mark.parametrize("driver_bytes_max", [1, 1_000_000])
def test_few_rows_go_through_the_driver_and_many_by_segments(
    namespace: dlog.blocking.Namespace, driver_bytes_max: int
) -> None:
    options = options_of(namespace, driverBytesMax=driver_bytes_max)
    for number in range(3):
        parts = [
            part(
                namespace, options, number, rows(b"%d a" % number, b"%d b" % number), rows(b"%d c" % number)
            ),
            part(namespace, options, number),
            part(namespace, options, number, rows(b"%d d" % number, stream="other")),
        ]
        assert [bool(each.segments) for each in parts] == [
            driver_bytes_max == 1,
            False,
            driver_bytes_max == 1,
        ]
        commit_parts(namespace, options, parts, "query", number)
    assert written(namespace) == [
        b"%d %s" % (number, letter) for number in range(3) for letter in (b"a", b"b", b"c")
    ]
    assert written(namespace, "other") == [b"%d d" % number for number in range(3)]
    assert orphans(namespace) == []


@pytest.mark.slow
def test_small_and_large_parts_are_committed_together(namespace: dlog.blocking.Namespace) -> None:
    options = options_of(namespace, driverBytesMax=10)
    parts = [part(namespace, options, 0, rows(b"small")), part(namespace, options, 0, rows(bytes(100)))]
    assert not namespace.log_exists("other")
    commit_parts(namespace, options, parts, "query", 0)
    assert sorted(written(namespace)) == sorted([b"small", bytes(100)])


@pytest.mark.slow
@pytest.mark.parametrize("driver_bytes_max", [1, 1_000_000])
def test_a_batch_that_spark_runs_again_is_written_once(
    namespace: dlog.blocking.Namespace, driver_bytes_max: int
) -> None:
    options = options_of(namespace, driverBytesMax=driver_bytes_max)
    first, zombie = [[part(namespace, options, 5, rows(b"xx"))] for _ in range(2)]
    commit_parts(namespace, options, first, "query", 5)
    commit_parts(namespace, options, first, "query", 5)
    commit_parts(namespace, options, zombie, "query", 5)
    again = part(namespace, options, 5, rows(b"xx"))
    assert again.is_repeated == (driver_bytes_max == 1)
    commit_parts(namespace, options, [again], "query", 5)
    abandon_parts(namespace, first)  # Spark aborts with the same parts if a commit seems to fail
    assert written(namespace) == [b"xx"]
    assert orphans(namespace) == []


@pytest.mark.slow
def test_a_checkpoint_older_than_the_stream_is_an_error(namespace: dlog.blocking.Namespace) -> None:
    options = options_of(namespace)
    commit_parts(namespace, options, [part(namespace, options, 5, rows(b"x"))], "query", 5)
    with pytest.raises(RepeatedBatchError, match="has batch 5 of 'query', and this is batch 3"):
        commit_parts(namespace, options, [part(namespace, options, 3, rows(b"y"))], "query", 3)
    assert written(namespace) == [b"x"]


@pytest.mark.slow
@pytest.mark.parametrize("driver_bytes_max", [1, 1_000_000])
def test_a_batch_is_known_although_its_records_were_truncated_and_purged(
    namespace: dlog.blocking.Namespace, driver_bytes_max: int
) -> None:
    options = options_of(namespace, driverBytesMax=driver_bytes_max)
    for number in range(2):
        commit_parts(namespace, options, [part(namespace, options, number, rows(b"xx"))], "query", number)
    last = namespace.segments("out")[-1].segment_seqno
    namespace.truncate_log("out", dlog.DLSN(last, 1_000, 0))
    namespace.purge_log("out")
    assert written(namespace) == []
    commit_parts(namespace, options, [part(namespace, options, 1, rows(b"xx"))], "query", 1)
    with pytest.raises(RepeatedBatchError):
        commit_parts(namespace, options, [part(namespace, options, 0, rows(b"xx"))], "query", 0)
    assert written(namespace) == []


@pytest.mark.slow
def test_a_batch_that_vanished_after_a_task_saw_it_is_not_committed_in_part(
    namespace: dlog.blocking.Namespace,
) -> None:
    options = options_of(namespace, driverBytesMax=1)
    commit_parts(namespace, options, [part(namespace, options, 0, rows(b"xx"))], "query", 0)
    repeated = part(namespace, options, 0, rows(b"xx"))
    assert repeated.is_repeated
    namespace.properties.change("out", {"dlog.batch.query": None})
    with pytest.raises(SparkDlogError, match="now it is not there"):
        commit_parts(
            namespace, options, [repeated, Part("query", 0, {"out": [Block.of([b"y"])]})], "query", 0
        )
    assert written(namespace) == [b"xx"]


@pytest.mark.slow
def test_a_driver_that_is_overtaken_in_its_commit_leaves_no_orphan(
    namespace: dlog.blocking.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of(namespace)
    first, second = [[part(namespace, options, 0, rows(b"x"))] for _ in range(2)]
    attach = namespace.batches.attach

    def overtaken(*args: Any, **kwargs: Any) -> object:
        monkeypatch.setattr(namespace.batches, "attach", attach)
        commit_parts(namespace, options, second, "query", 0)
        return attach(*args, **kwargs)

    monkeypatch.setattr(namespace.batches, "attach", overtaken)
    commit_parts(namespace, options, first, "query", 0)
    assert written(namespace) == [b"x"]
    assert orphans(namespace) == []


@pytest.mark.slow
@pytest.mark.parametrize("driver_bytes_max", [1, 1_000_000])
def test_a_batch_of_too_many_segments_names_the_settings_and_leaves_nothing(
    namespace: dlog.blocking.Namespace, monkeypatch: pytest.MonkeyPatch, driver_bytes_max: int
) -> None:
    monkeypatch.setattr(committing, "SEGMENTS_MAX", 2)
    options = options_of(namespace, driverBytesMax=driver_bytes_max)
    parts = [part(namespace, options, 0, rows(b"row", stream=stream)) for stream in ("a", "b", "c")]
    with pytest.raises(BatchTooLargeError, match=r"coalesce.*maxRecordsPerTrigger.*driverBytesMax"):
        commit_parts(namespace, options, parts, "query", 0)
    abandon_parts(namespace, parts)  # as Spark does then
    assert orphans(namespace) == []
    assert [written(namespace, log) for log in ("a", "b", "c") if namespace.log_exists(log)] in ([], [[]] * 3)


def test_a_batch_without_rows_writes_nothing(namespace: dlog.blocking.Namespace) -> None:
    options = options_of(namespace)
    commit_parts(namespace, options, [part(namespace, options, 0)], "query", 0)
    assert namespace.list_logs() == []


@pytest.mark.slow
def test_another_writer_delays_small_batches_and_keeps_out_large_ones(
    namespace: dlog.blocking.Namespace,
) -> None:
    for driver_bytes_max in (1_000_000, 1):
        options = options_of(namespace, driverBytesMax=driver_bytes_max)
        number = 0 if driver_bytes_max > 1 else 1
        parts = [part(namespace, options, number, rows(b"batch"))]
        with namespace.open_writer("out", create=True) as writer:
            writer.append(b"other")
        if parts[0].segments:
            with pytest.raises(BatchOvertakenError):
                commit_parts(namespace, options, parts, "query", number)
            abandon_parts(namespace, parts)
        else:
            commit_parts(namespace, options, parts, "query", number)
    assert written(namespace) == [b"other", b"batch", b"other"]
    assert orphans(namespace) == []


class CrashError(Exception):
    """The driver or the task is dead from here on."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:unclosed <blocking DetachedSegmentWriter:ResourceWarning")  # it died
@pytest.mark.parametrize("driver_bytes_max", [1, 1_000_000])
@pytest.mark.parametrize("is_done", [True, False])
@pytest.mark.parametrize("call", ["last", "begin", "open_segment", "attach"])
def test_a_driver_that_dies_at_any_step_has_written_all_or_nothing_and_the_batch_runs_again(
    namespace: dlog.blocking.Namespace,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    is_done: bool,
    driver_bytes_max: int,
) -> None:
    options = options_of(namespace, driverBytesMax=driver_bytes_max)
    commit_parts(namespace, options, [part(namespace, options, 0, rows(b"0"))], "query", 0)

    def task() -> list[Part]:
        return [part(namespace, options, 1, rows(b"1", b"2"), rows(b"3", stream="other"))]

    parts, before = task(), getattr(namespace.batches, call)

    def dying(*args: Any, **kwargs: Any) -> object:
        if is_done:
            before(*args, **kwargs)
        raise CrashError

    with monkeypatch.context() as patch:
        patch.setattr(namespace.batches, call, dying)
        try:
            commit_parts(namespace, options, parts, "query", 1)
        except CrashError:
            is_all = call == "attach" and is_done
        else:
            is_all = True  # the tasks had made these calls
    assert written(namespace) == ([b"0", b"1", b"2"] if is_all else [b"0"])
    assert namespace.log_exists("other") in (True, is_all)
    commit_parts(namespace, options, task(), "query", 1)
    assert written(namespace) == [b"0", b"1", b"2"]
    assert written(namespace, "other") == [b"3"]


@pytest.mark.slow
def test_a_task_that_fails_leaves_nothing(namespace: dlog.blocking.Namespace) -> None:
    options = options_of(namespace, driverBytesMax=1)

    def failing() -> Iterator[pa.RecordBatch]:
        yield rows(b"xx")
        raise CrashError

    with pytest.raises(CrashError):
        write_part(namespace, options, failing(), "query", 0)
    with pytest.raises(RowFormatError, match="a payload is null"):
        write_part(
            namespace,
            options,
            [rows(b"xx"), pa.RecordBatch.from_pydict({"payload": [b"y", None]})],
            "query",
            0,
        )
    assert written(namespace) == []
    assert orphans(namespace) == []


@pytest.mark.slow
@pytest.mark.parametrize("call", ["begin", "open_segment"])
def test_a_task_that_loses_its_namespace_fails_and_its_next_attempt_writes_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The rows that the first attempt took are gone from its iterator, so it must not begin again."""
    uri = (tmp_path / "log").as_uri()
    options = parse_sink_options({"uri": uri, "stream": "out", "driverBytesMax": "1"}, streaming=False)
    monkeypatch.setattr(client, "_opened", {})  # of this process; the test closes it
    first, writer = client.namespace(uri, options.client), DlogBatchWriter(options)

    def lose(*args: object, **kwargs: object) -> None:
        raise dlog.NamespaceLostError("the session is over")

    monkeypatch.setattr(first.batches, call, lose)
    batches = [rows(b"1", b"2"), rows(b"3"), rows(b"4")]
    with pytest.raises(dlog.NamespaceLostError):
        writer.write(iter(batches))
    again = client.namespace(uri, options.client)
    assert again is not first
    with again:
        writer.commit([writer.write(iter(batches))])
        assert written(again) == [b"1", b"2", b"3", b"4"]


@pytest.mark.slow
@pytest.mark.parametrize("driver_bytes_max", [1, 1_000_000])
def test_a_failure_that_another_attempt_would_meet_is_raised_by_the_commit(
    namespace: dlog.blocking.Namespace, driver_bytes_max: int
) -> None:
    """Spark repeats a task that raises, as often as spark.task.maxFailures."""
    options = options_of(namespace, driverBytesMax=driver_bytes_max, lockTimeoutMs=1)

    def task(*batches: pa.RecordBatch) -> Part:
        made = pickle.loads(pickle.dumps(part_of_task(namespace, options, batches, "query", 0, 0)))
        assert isinstance(made, Part)
        return made

    null = pa.RecordBatch.from_pydict({"payload": [b"y", None]})
    parts = [task(rows(b"good")), task(rows(b"xx"), null)]
    with pytest.raises(RowFormatError, match="a payload is null"):
        commit_parts(namespace, options, parts, "query", 0)
    abandon_parts(namespace, parts)
    assert (written(namespace) if namespace.log_exists("out") else [], orphans(namespace)) == ([], [])
    with namespace.open_writer("out", create=True):
        if driver_bytes_max == 1:  # otherwise the task takes no lock
            locked = task(rows(b"xx"))
            with pytest.raises(SparkDlogError, match=r"holds its lock.*lockTimeoutMs.*no other writer"):
                commit_parts(namespace, options, [locked], "query", 0)
    commit_parts(namespace, options, [task(rows(b"good"))], "query", 0)
    assert written(namespace) == [b"good"]


@pytest.mark.slow
def test_a_batch_write_without_a_series_is_recorded_nowhere(namespace: dlog.blocking.Namespace) -> None:
    options = options_of(namespace)
    found = write_part(namespace, options, [rows(b"x")], None, 0)
    commit_parts(namespace, options, [found], None, 0)
    assert written(namespace) == [b"x"]
    assert namespace.properties.get("out").values == {}


def test_a_missing_stream_is_an_error_if_none_may_be_created(namespace: dlog.blocking.Namespace) -> None:
    options = attrs.evolve(options_of(namespace), create_stream=False)
    with pytest.raises(dlog.LogNotFoundError):
        commit_parts(namespace, options, [part(namespace, options, 0, rows(b"x"))], "query", 0)
    assert namespace.list_logs() == []


def test_rows_of_each_stream_keep_their_order() -> None:
    table = pa.RecordBatch.from_pydict(
        {"value": ["1", "2", "3", "4"], "stream": ["a", None, "a", "b"]},
    )
    assert list(rows_of(table, "out")) == [
        ("a", [b"1", b"3"], None, None),
        ("out", [b"2"], None, None),
        ("b", [b"4"], None, None),
    ]
    upper = pa.RecordBatch.from_pydict({"PAYLOAD": ["1"], "Stream": ["a"], "KEY": ["k"]})
    assert [(stream, payloads) for stream, payloads, _, _ in rows_of(upper, "out")] == [("a", [b"1"])]
    long = pa.RecordBatch.from_pydict({"payload": [bytes(dlog.PAYLOAD_BYTES_MAX + 1)]})
    with pytest.raises(RowFormatError, match=r"at most 1040364 by client\.writer\.record_bytes_max"):
        list(rows_of(long, "out"))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"payload": BinaryType()}, None),
        ({"value": StringType(), "stream": StringType()}, None),
        ({"PAYLOAD": BinaryType(), "Stream": StringType(), "Key": BinaryType()}, None),
        ({"PAYLOAD": BinaryType(), "payload": BinaryType()}, "need one column"),
        ({"id": LongType()}, "need one column 'payload' or 'value'"),
        ({"payload": BinaryType(), "value": BinaryType()}, "need one column"),
        (
            {"payload": BinaryType(), "id": LongType(), "at": LongType()},
            r"columns \['id', 'at'\] would be lost",
        ),
        ({"payload": LongType()}, "it must be binary or string"),
        ({"payload": BinaryType(), "stream": BinaryType()}, "it must be string"),
    ],
)
def test_no_column_is_left_out_silently(columns: dict[str, DataType], message: str | None) -> None:
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    if message is None:
        check_schema(schema)
    else:
        with pytest.raises(RowFormatError, match=message):
            check_schema(schema)


@pytest.mark.parametrize(
    ("given", "streaming", "message"),
    [
        ({"stream": ""}, True, "option stream is required"),
        ({"strean": "x"}, True, "did you mean stream"),
        ({"keyFile": "/keys"}, True, "does not encrypt"),
        ({"number": "1"}, True, "Spark numbers the batches"),
        ({"series": "nightly"}, False, "belong together"),
        ({"series": "nightly", "number": "x"}, False, "whole number"),
        ({"driverBytesMax": "many"}, True, "option driverBytesMax must be bytes"),
        ({"startingOffsets": "earliest"}, True, "unknown option"),
    ],
)
def test_options_of_the_sink_are_parsed_strictly(
    given: dict[str, str], streaming: bool, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        parse_sink_options({"uri": "file:///somewhere", "stream": "out", **given}, streaming=streaming)


def test_the_options_that_spark_sends_hold_no_secret(tmp_path: Path) -> None:
    given = {"uri": "file:///somewhere", "stream": "out", "client.password_file": str(tmp_path / "secret")}
    (tmp_path / "secret").write_text("hunter2")
    sent: Sequence[Callable[[SinkOptions], object]] = (repr, pickle.dumps)
    try:
        options = parse_sink_options(given, streaming=True)
    except OptionError:
        pytest.fail("the setting is known")
    for form in sent:
        assert "hunter2" not in str(form(options))
