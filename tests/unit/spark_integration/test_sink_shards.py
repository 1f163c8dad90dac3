"""The sink writes to a sharded log: the key of a row chooses its shard, as for every other writer."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

import dlog
import dlog.blocking
from dlog.shards import NotShardedError, shard_of
from spark_integration.errors import OptionError, RowFormatError
from spark_integration.sink.committing import commit_parts
from spark_integration.sink.options import SinkOptions, parse_sink_options
from spark_integration.sink.rows import check_schema, rows_of
from tests.unit.spark_integration.sinking import orphans, part

SHARDS = 3
KEYS = [f"customer {number % 7}" for number in range(60)]


def options_of(namespace: dlog.blocking.Namespace, **more: str) -> SinkOptions:
    given = {"uri": namespace.uri, "shardedStream": "clicks", "keyColumn": "customer", **more}
    return parse_sink_options(given, streaming=True)


def clicks(first: int, stop: int) -> pa.RecordBatch:
    numbers = range(first, stop)
    return pa.RecordBatch.from_pydict(
        {"payload": [b"%d" % number for number in numbers], "customer": [KEYS[number] for number in numbers]}
    )


def in_shards(namespace: dlog.blocking.Namespace) -> list[tuple[int, int]]:
    with dlog.blocking.open_sharded_reader(namespace, "clicks", follow=False) as reader:
        return [(shard, int(record.payload)) for shard, record in reader]


@pytest.mark.slow
@pytest.mark.parametrize("driver_bytes_max", ["1", "1m"])
def test_rows_go_to_the_shard_of_their_key_in_order_and_once(
    namespace: dlog.blocking.Namespace, driver_bytes_max: str
) -> None:
    dlog.blocking.create_sharded_log(namespace, "clicks", SHARDS)
    options = options_of(namespace, driverBytesMax=driver_bytes_max)
    for number, (first, stop) in enumerate([(0, 40), (0, 40), (40, 60)]):
        batch = max(0, number - 1)  # Spark runs the first one twice
        parts = [part(namespace, options, batch, clicks(first, stop - 10), clicks(stop - 10, stop))]
        commit_parts(namespace, options, parts, "query", batch)
    found = in_shards(namespace)
    assert sorted(number for _, number in found) == list(range(60))
    assert {shard for shard, _ in found} == set(range(SHARDS))
    for shard, number in found:
        assert shard == shard_of(KEYS[number].encode(), SHARDS)
    for key in set(KEYS):
        of_key = [number for _, number in found if KEYS[number] == key]
        assert of_key == sorted(of_key)
    assert namespace.batches.last("query", "clicks/shard-00000") == 1
    assert orphans(namespace) == []


@pytest.mark.slow
def test_a_log_that_is_not_sharded_is_an_error_and_no_shard_is_made(
    namespace: dlog.blocking.Namespace,
) -> None:
    options = options_of(namespace, createStream="true")
    with pytest.raises(NotShardedError):
        part(namespace, options, 0, clicks(0, 10))
    dlog.blocking.create_sharded_log(namespace, "clicks", SHARDS)
    parts = [part(namespace, options, 0, clicks(0, 10))]
    dlog.blocking.delete_sharded_log(namespace, "clicks")
    with pytest.raises(dlog.LogNotFoundError):  # a log without the layout would be no shard
        commit_parts(namespace, options, parts, "query", 0)
    assert namespace.list_logs() == []


def test_a_key_is_text_or_bytes_and_never_null() -> None:
    shards = [f"clicks/shard-{shard:05d}" for shard in range(SHARDS)]

    def streams(keys: pa.Array) -> list[str]:
        payloads = pa.array([b"x"] * len(keys))
        table = pa.RecordBatch.from_arrays([payloads, keys], ["payload", "key"])
        return [stream for stream, *_ in rows_of(table, shards[0], key_column="key", shards=shards)]

    assert (
        streams(pa.array(["é"])) == streams(pa.array(["é".encode()])) == [shards[shard_of("é".encode(), 3)]]
    )
    assert streams(pa.array([], pa.string())) == []
    with pytest.raises(RowFormatError, match="column 'key': a key is null"):
        streams(pa.array(["a", None]))


def test_columns_and_options_of_a_sharded_log_are_checked() -> None:
    def schema(**columns: object) -> StructType:
        return StructType([StructField(name, kind) for name, kind in columns.items()])  # type: ignore[arg-type]

    payload = BinaryType()
    check_schema(schema(payload=payload, key=StringType(), txid=LongType()), "txid", "key")
    for columns, message in (
        (schema(payload=payload), "no column of their own 'key'"),
        (schema(payload=payload, key=LongType()), "'key' is bigint; it must be binary or string"),
        (schema(payload=payload, key=StringType(), stream=StringType()), "leave out the column 'stream'"),
        (schema(payload=payload, key=StringType(), id=LongType()), "would be lost"),
    ):
        with pytest.raises(RowFormatError, match=message):
            check_schema(columns, None, "key")
    for given, message in (
        ({"shardedStream": "clicks"}, "belong together"),
        ({"stream": "clicks", "keyColumn": "key"}, "belong together"),
        ({"stream": "a", "shardedStream": "clicks", "keyColumn": "key"}, "exclude each other"),
    ):
        with pytest.raises(OptionError, match=message):
            parse_sink_options({"uri": "file:///somewhere", **given}, streaming=True)
