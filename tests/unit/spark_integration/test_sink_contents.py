"""What the sink knows of the rows of a batch: their transaction ids, their size, their digest."""

# covers: spark_integration/sink/contents.py
# covers: spark_integration/sink/grouping.py
# covers: spark_integration/sink/rows.py

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

import dlog
import dlog.blocking
from ledger.runtime.log_lines import flush_lines
from spark_integration.errors import ChangedBatchError, OptionError, RowFormatError
from spark_integration.sink.committing import CONTENTS_PREFIX, abandon_parts, commit_parts
from spark_integration.sink.contents import BatchRecord, Block, Contents, together
from spark_integration.sink.options import TASK_BYTES_MAX, TASK_BYTES_MIN, SinkOptions, parse_sink_options
from spark_integration.sink.parts import Part
from spark_integration.sink.rows import check_schema, rows_of
from tests.unit.spark_integration.sinking import options_of, orphans, part, rows, written

BY_DRIVER_AND_BY_SEGMENTS = pytest.mark.parametrize("driver_bytes_max", [1, 1_000_000])
PAYLOADS = st.lists(st.binary(max_size=20), max_size=8)


def records(namespace: dlog.blocking.Namespace, log: str = "out") -> list[tuple[int, bytes]]:
    with namespace.open_reader(log, follow=False) as reader:
        return [(record.txid, record.payload) for record in reader]


def with_ids(namespace: dlog.blocking.Namespace, driver_bytes_max: int) -> SinkOptions:
    return options_of(namespace, driverBytesMax=driver_bytes_max, txidColumn="txid")


# Transaction ids of the rows.


@pytest.mark.slow
def test_rows_keep_their_transaction_ids_although_segments_of_tasks_are_between_them(
    namespace: dlog.blocking.Namespace,
) -> None:
    options, large = with_ids(namespace, 300), bytes(400)
    for number in range(2):
        first = 10 * number
        parts = [
            part(namespace, options, number, rows(b"e", b"f", txids=[first + 9, first + 9])),
            part(namespace, options, number, rows(b"a", b"b", txids=[first, first + 1])),
            part(namespace, options, number, rows(large, b"c", txids=[first + 1, first + 4])),
            part(namespace, options, number, rows(large, b"g", txids=[first + 4, first + 6])),
            part(namespace, options, number, rows(b"d", txids=[first + 4])),
            part(namespace, options, number),
        ]
        assert [bool(each.segments) for each in parts] == [False, False, True, True, False, False]
        commit_parts(namespace, options, parts, "query", number)
    assert records(namespace) == [
        (first + txid, payload)
        for first in (0, 10)
        for txid, payload in [
            *(
                (0, b"a"),
                (1, b"b"),
                (1, large),
                (4, b"c"),
                (4, b"d"),
                (4, large),
                (6, b"g"),
                (9, b"e"),
                (9, b"f"),
            ),
        ]
    ]
    assert namespace.repair.verify("out").is_sound
    assert orphans(namespace) == []


@pytest.mark.slow
def test_transaction_ids_are_checked_in_each_stream_by_itself(namespace: dlog.blocking.Namespace) -> None:
    options = with_ids(namespace, 1_000_000)
    batches = [rows(b"1", txids=[5]), rows(b"2", txids=[3], stream="other"), rows(b"3", txids=[5])]
    commit_parts(namespace, options, [part(namespace, options, 0, *batches)], "query", 0)
    assert records(namespace) == [(5, b"1"), (5, b"3")]
    assert records(namespace, "other") == [(3, b"2")]


@pytest.mark.slow
@BY_DRIVER_AND_BY_SEGMENTS
@pytest.mark.parametrize("ids", [[(2, 1)], [(2,), (1,)]], ids=["in a batch of rows", "between them"])
def test_transaction_ids_that_decrease_in_a_task_are_an_error(
    namespace: dlog.blocking.Namespace, driver_bytes_max: int, ids: Sequence[Sequence[int]]
) -> None:
    batches = [rows(*(b"x" for _ in each), txids=each) for each in ids]
    with pytest.raises(RowFormatError, match="id 1 comes after one with 2"):
        part(namespace, with_ids(namespace, driver_bytes_max), 0, *batches)
    assert orphans(namespace) == []


@pytest.mark.slow
@BY_DRIVER_AND_BY_SEGMENTS
def test_transaction_ids_of_two_tasks_that_overlap_are_an_error_and_nothing_is_written(
    namespace: dlog.blocking.Namespace, driver_bytes_max: int
) -> None:
    options = with_ids(namespace, driver_bytes_max)
    parts = [part(namespace, options, 0, rows(b"xx", b"xx", txids=ids)) for ids in ([1, 5], [4, 9])]
    with pytest.raises(RowFormatError, match="ids 1 to 5, another one 4 to 9"):
        commit_parts(namespace, options, parts, "query", 0)
    abandon_parts(namespace, parts)  # as Spark does then
    assert not namespace.log_exists("out") or written(namespace) == []
    assert orphans(namespace) == []


@pytest.mark.slow
@BY_DRIVER_AND_BY_SEGMENTS
def test_transaction_ids_below_those_of_the_log_are_an_error_and_nothing_is_written(
    namespace: dlog.blocking.Namespace, driver_bytes_max: int
) -> None:
    with namespace.open_writer("out", create=True) as writer:
        writer.append(b"there", txid=7)
    options = with_ids(namespace, driver_bytes_max)

    def run() -> None:
        found = part(namespace, options, 0, rows(b"b", txids=[3], stream="a"), rows(b"xx", txids=[6]))
        commit_parts(namespace, options, [found], "query", 0)

    with pytest.raises(dlog.TxidOutOfOrderError, match="txid 6 after txid 7"):
        run()
    assert records(namespace) == [(7, b"there")]
    assert not namespace.log_exists("a") or records(namespace, "a") == []
    assert orphans(namespace) == []


@pytest.mark.slow
@pytest.mark.parametrize("txids", [[None], [-1], [2**63 - 1]])
def test_a_row_without_a_valid_transaction_id_is_an_error(
    namespace: dlog.blocking.Namespace, txids: Any
) -> None:
    with pytest.raises(RowFormatError, match="column 'txid': a transaction id is"):
        part(namespace, with_ids(namespace, 1), 0, rows(b"x", txids=txids))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"payload": BinaryType(), "txid": LongType()}, None),
        (
            {"payload": BinaryType(), "txid": StringType()},
            "column 'txid' is string; it must be bigint or int",
        ),
        ({"payload": BinaryType()}, "no column of their own 'txid'"),
        ({"payload": BinaryType(), "txid": LongType(), "id": LongType()}, "would be lost"),
    ],
)
def test_the_column_of_transaction_ids_is_checked(columns: dict[str, Any], message: str | None) -> None:
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    if message is None:
        check_schema(schema, "txid")
        with pytest.raises(RowFormatError, match=r"would be lost.*option txidColumn"):
            check_schema(schema)
        with pytest.raises(RowFormatError, match="no column of their own 'payload'"):
            check_schema(schema, "payload")
    else:
        with pytest.raises(RowFormatError, match=message):
            check_schema(schema, "txid")


# How much goes through the driver.


@given(driver_bytes_max=st.integers(1, 1 << 40), tasks=st.sampled_from([1, 2, 8, 200, 12_000]))
def test_all_tasks_of_a_batch_together_return_what_the_option_says(driver_bytes_max: int, tasks: int) -> None:
    given = {"uri": "file:///somewhere", "stream": "out", "driverBytesMax": str(driver_bytes_max)}
    options = parse_sink_options(given, streaming=True)
    shares = [options.driver_bytes_of_task(each) for each in range(tasks)]
    assert sum(share for share in shares if share > TASK_BYTES_MIN) <= driver_bytes_max
    assert all(share <= min(driver_bytes_max, TASK_BYTES_MAX) for share in shares)
    assert min(shares) >= min(TASK_BYTES_MIN, driver_bytes_max)


@pytest.mark.slow
def test_rows_without_bytes_count_too(namespace: dlog.blocking.Namespace) -> None:
    found = part(namespace, options_of(namespace, driverBytesMax=1_000), 0, rows(*[b""] * 1_000))
    assert found.segments


@given(PAYLOADS, st.booleans())
def test_a_block_gives_the_rows_that_it_was_made_of(payloads: list[bytes], has_ids: bool) -> None:
    ids = range(len(payloads)) if has_ids else None
    block = Block.of(payloads, ids)
    assert block.payloads() == payloads
    assert block.txids is None or list(block.txids) == list(range(len(payloads)))


# Keys and headers of the rows.

ATTRIBUTES = st.lists(st.none() | st.binary(max_size=9), min_size=8, max_size=8)
HEADERS = [[{"key": "a", "value": b"1"}, {"key": "b", "value": b""}], [], None]


@pytest.mark.slow
@BY_DRIVER_AND_BY_SEGMENTS
def test_records_have_the_keys_and_headers_of_their_rows(
    namespace: dlog.blocking.Namespace, driver_bytes_max: int
) -> None:
    options = options_of(namespace, driverBytesMax=driver_bytes_max)
    some = rows(b"1", b"2", b"3", key=[b"k", None, "é".encode()], headers=HEADERS)
    text = rows(b"4", b"5", stream="other", key=["t", "u"], headers=[[{"key": "c", "value": "d"}], []])
    parts = [part(namespace, options, 0, some, rows(b"6", key=[None])), part(namespace, options, 0, text)]
    commit_parts(namespace, options, parts, "query", 0)
    found = []
    for log in ("out", "other"):
        with namespace.open_reader(log, follow=False) as reader:
            found += [(record.payload, record.key, dict(record.headers)) for record in reader]
    assert found == [
        (b"1", b"k", {"a": b"1", "b": b""}),
        (b"2", None, {}),
        (b"3", "é".encode(), {}),
        (b"6", None, {}),
        (b"4", b"t", {"c": b"d"}),
        (b"5", b"u", {}),
    ]


@pytest.mark.slow
def test_a_batch_that_comes_again_with_another_key_is_changed(namespace: dlog.blocking.Namespace) -> None:
    options = options_of(namespace)
    for key, is_changed in ((b"k", False), (b"k", False), (b"l", True), (None, True)):
        parts = [part(namespace, options, 0, rows(b"1", key=[key]))]
        if is_changed:
            with pytest.raises(ChangedBatchError):
                commit_parts(namespace, options, parts, "query", 0)
        else:
            commit_parts(namespace, options, parts, "query", 0)
    assert written(namespace) == [b"1"]


@given(PAYLOADS, ATTRIBUTES, ATTRIBUTES)
def test_rows_with_other_keys_or_headers_are_other_rows(
    payloads: list[bytes], first: list[bytes | None], second: list[bytes | None]
) -> None:
    one, other = first[: len(payloads)], second[: len(payloads)]
    same = sorted(zip(payloads, map(repr, one), strict=True)) == sorted(
        zip(payloads, map(repr, other), strict=True)
    )
    assert (Contents.of(payloads, None, one) == Contents.of(payloads, None, other)) == same
    assert Contents.of(payloads, None, [None] * len(payloads)) == Contents.of(payloads, None)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"headers": [[{"key": None, "value": b"x"}]]}, "the header None with the value b'x'"),
        ({"headers": [[{"key": "a", "value": None}]]}, "the header 'a' with the value None"),
        ({"headers": [[None]]}, "the header None"),
        ({"headers": [[{"key": "a", "value": b"1"}, {"key": "a", "value": b"2"}]]}, "the header 'a' twice"),
        ({"headers": [[{"key": "", "value": b"1"}]]}, "a name has 1 to 255 bytes"),
        ({"key": [bytes(40_000)]}, "columns 'key' and 'headers': .*bytes"),
    ],
)
def test_headers_that_no_record_can_have_are_refused(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(RowFormatError, match=message):
        list(rows_of(rows(b"1", **columns), "out"))


def headers_of(name: str, kind: DataType) -> DataType:
    return ArrayType(StructType([StructField(name, StringType()), StructField("value", kind)]))


@pytest.mark.parametrize(
    ("kind", "is_taken"),
    [
        (headers_of("key", BinaryType()), True),
        (headers_of("key", StringType()), True),
        (headers_of("key", LongType()), False),
        (headers_of("name", BinaryType()), False),
        (MapType(StringType(), BinaryType()), False),
        (BinaryType(), False),
    ],
    ids=str,
)
def test_a_column_of_headers_is_as_that_of_kafka(kind: DataType, is_taken: bool) -> None:
    kinds: list[tuple[str, DataType]] = [("payload", BinaryType()), ("key", StringType()), ("headers", kind)]
    schema = StructType([StructField(*each) for each in kinds])
    if is_taken:
        check_schema(schema)
    else:
        with pytest.raises(RowFormatError, match=r"column 'headers' is .* map_entries"):
            check_schema(schema)
    with pytest.raises(RowFormatError, match="option txidColumn"):
        check_schema(schema, "headers")


# A batch that Spark runs again.


def commit(
    namespace: dlog.blocking.Namespace, options: SinkOptions, number: int, *payloads: Sequence[bytes]
) -> None:
    """As a driver with one task for each list of payloads."""
    parts = [part(namespace, options, number, rows(*each)) for each in payloads]
    try:
        commit_parts(namespace, options, parts, "query", number)
    except ChangedBatchError:
        abandon_parts(namespace, parts)  # as Spark does then
        raise


@pytest.mark.slow
@BY_DRIVER_AND_BY_SEGMENTS
@pytest.mark.parametrize(
    ("again", "what"), [([b"1", b"2", b"3"], "3 rows"), ([b"1", b"x"], "other rows"), ([], "0 rows")]
)
def test_a_batch_run_again_with_other_rows_is_an_error_and_nothing_is_written(
    namespace: dlog.blocking.Namespace,
    caplog: pytest.LogCaptureFixture,
    driver_bytes_max: int,
    again: list[bytes],
    what: str,
) -> None:
    options = options_of(namespace, driverBytesMax=driver_bytes_max)
    commit(namespace, options, 4, [b"1", b"2"])
    with pytest.raises(ChangedBatchError, match=f"with 2 rows, and Spark ran it again with {what}"):
        commit(namespace, options, 4, again)
    keeping = options_of(namespace, driverBytesMax=driver_bytes_max, failOnChangedBatch=False)
    commit(namespace, keeping, 4, again)
    assert flush_lines(60)
    assert "they are not written" in caplog.text
    assert written(namespace) == [b"1", b"2"]
    assert orphans(namespace) == []
    commit(namespace, options, 5, again)
    assert written(namespace) == [b"1", b"2", *again]


@pytest.mark.slow
@BY_DRIVER_AND_BY_SEGMENTS
def test_a_batch_run_again_by_other_tasks_in_another_order_is_the_same(
    namespace: dlog.blocking.Namespace, driver_bytes_max: int
) -> None:
    options = options_of(namespace, driverBytesMax=driver_bytes_max)
    commit(namespace, options, 0, [b"1", b"2", b"2"])
    commit(namespace, options, 0, [b"2"], [b"2", b"1"], [])
    assert sorted(written(namespace)) == [b"1", b"2", b"2"]


@pytest.mark.slow
@BY_DRIVER_AND_BY_SEGMENTS
def test_a_driver_that_is_overtaken_by_other_rows_is_told(
    namespace: dlog.blocking.Namespace, monkeypatch: pytest.MonkeyPatch, driver_bytes_max: int
) -> None:
    options = options_of(namespace, driverBytesMax=driver_bytes_max)
    attach = namespace.batches.attach

    def overtaken(*args: Any, **kwargs: Any) -> object:
        monkeypatch.setattr(namespace.batches, "attach", attach)
        commit(namespace, options, 0, [b"first"])
        return attach(*args, **kwargs)

    monkeypatch.setattr(namespace.batches, "attach", overtaken)
    with pytest.raises(ChangedBatchError):
        commit(namespace, options, 0, [b"second"])
    assert written(namespace) == [b"first"]
    assert orphans(namespace) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "stored", [None, "{}", "of a later version", '{"number": 3, "rows": 9, "digest": ""}']
)
def test_a_batch_of_which_only_the_number_is_stored_is_taken_for_the_same(
    namespace: dlog.blocking.Namespace, stored: str | None
) -> None:
    options = options_of(namespace)
    commit(namespace, options, 4, [b"1"])
    namespace.properties.change("out", {f"{CONTENTS_PREFIX}query": stored})
    commit(namespace, options, 4, [b"2"])
    assert written(namespace) == [b"1"]
    assert namespace.batches.last("query", "out") == 4


@given(first=PAYLOADS, second=PAYLOADS, cut=st.integers(0, 8), stream=st.sampled_from(["out", "other"]))
def test_only_the_same_rows_have_the_same_digest(
    first: list[bytes], second: list[bytes], cut: int, stream: str
) -> None:
    def record(payloads: Sequence[bytes], stream: str = "out") -> BatchRecord:
        parts = [{stream: Contents.of(each, None)} for each in (payloads[:cut], payloads[cut:])]
        return BatchRecord.of(7, together(parts))

    same = sorted(first) == sorted(second) and (stream == "out" or not first)
    assert (record(first) == record(second, stream)) == same
    assert BatchRecord.decode(record(first).encode(), 7) == record(first)
    assert BatchRecord.decode(record(first).encode(), 8) is None


def test_rows_with_other_transaction_ids_are_other_rows() -> None:
    ids = [Contents.of([b"x"], txids) for txids in ([1], [2], None)]
    assert len(set(ids)) == 3


def test_options_of_contents_are_parsed_strictly() -> None:
    given = {"uri": "file:///somewhere", "stream": "out"}
    with pytest.raises(OptionError, match="failOnChangedBatch"):
        parse_sink_options({**given, "failOnChangedBatch": "maybe"}, streaming=True)
    assert Part() == Part()
