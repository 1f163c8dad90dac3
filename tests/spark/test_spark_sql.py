"""Logs in SQL, and what Spark itself passes to a source."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrameReader, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_integration.errors import OptionError
from spark_integration.option_names import SPARKS_OWN, by_lower_name
from tests.spark.queries import Orders, reading

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class _NoRows(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from ()


def recorder(calls: Path) -> type[DataSource]:
    """A source that writes down the options of each call, and then does as little as Spark allows."""

    class Recorder(DataSource):
        @classmethod
        def name(cls) -> str:
            return "recorder"

        def _record(self) -> None:
            with calls.open("a") as file:
                file.write(json.dumps(dict(self.options)) + "\n")

        def schema(self) -> str:
            self._record()
            return "payload BINARY"

        def reader(self, schema: StructType) -> DataSourceReader:
            self._record()
            return _NoRows()

        def writer(self, schema: StructType, overwrite: bool) -> DataSource:  # type: ignore[override]
            self._record()
            raise ValueError("recorded")

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSource:  # type: ignore[override]  # noqa: N802
            self._record()
            raise ValueError("recorded")

    return Recorder


def options_passed(calls: Path, act: Callable[[], object]) -> set[str]:
    calls.write_text("")
    with suppress(Exception):  # a write ends after its options are written down
        act()
    return {name for line in calls.read_text().splitlines() for name in json.loads(line)}


def test_each_option_that_spark_adds_is_known(spark: SparkSession, orders: Orders, tmp_path: Path) -> None:
    calls, given = tmp_path / "calls", {"uri": "u", "stream": "s"}
    spark.dataSource.register(recorder(calls))
    rows = spark.sql("SELECT CAST('a' AS BINARY) AS payload")
    stream = reading(spark, orders, streaming=True).select("payload")
    target = str(tmp_path / "path")

    def source() -> DataFrameReader:
        return spark.read.format("recorder").options(**given)

    def start(*where: str) -> None:
        sink = stream.writeStream.format("recorder").queryName("recorded").options(**given)
        query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).start(*where)
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    def saved(*where: str) -> None:
        rows.write.format("recorder").mode("append").options(**given).save(*where)

    table = "CREATE TABLE recorded USING recorder OPTIONS (uri 'u', stream 's')"
    added = {
        what: options_passed(calls, act) - given.keys()
        for what, act in {
            "load": lambda: source().load().collect(),
            "load of a path": lambda: source().load(target).collect(),
            "load of paths": lambda: source().load([target, target]).collect(),
            "view": lambda: spark.sql(
                "CREATE TEMPORARY VIEW recorded USING recorder OPTIONS (uri 'u', stream 's')"
            ),
            "select": lambda: spark.sql("SELECT * FROM recorded").collect(),
            "insert": lambda: spark.sql("INSERT INTO recorded SELECT CAST('a' AS BINARY)"),
            "save": saved,
            "save to a path": lambda: saved(target),
            "start": start,
            "start to a path": lambda: start(target),
            "table": lambda: spark.sql(table.replace("recorded", "recorded1")),
            "table at a place": lambda: spark.sql(f"{table} COMMENT 'c' LOCATION '{target}'"),
        }.items()
    }
    of_table = {"provider", "owner", "option.uri", "option.stream"}
    assert added.pop("table") == of_table
    assert added.pop("table at a place") == of_table | {"comment", "location", "path"}
    assert added == {
        "load": set(),
        "load of a path": {"path"},
        "load of paths": {"paths"},
        "view": set(),
        "select": set(),
        "insert": set(),
        "save": set(),
        "save to a path": {"path"},
        "start": SPARKS_OWN,
        "start to a path": SPARKS_OWN | {"path"},
    }
    assert by_lower_name(dict.fromkeys(SPARKS_OWN, "x"), ["uri"])
    for table_or_path, message in (
        (dict.fromkeys(of_table, "x"), "CREATE TEMPORARY VIEW"),
        ({"path": "x"}, "a log has no path"),
        ({"paths": "x"}, "a log has no path"),
    ):
        with pytest.raises(OptionError, match=message):
            by_lower_name(table_or_path, ["uri", "stream"])


def test_views_read_and_write_logs_and_a_table_is_refused_with_the_way_to_do_it(
    spark: SparkSession, orders: Orders
) -> None:
    orders.append(30)
    sql = spark.sql

    def using(stream: str) -> str:
        return f"USING dlog OPTIONS (uri '{orders.uri}', stream '{stream}')"

    sql(f"CREATE OR REPLACE TEMPORARY VIEW orders {using('orders')}")
    sql(f"CREATE OR REPLACE TEMPORARY VIEW target (payload BINARY) {using('copy')}")
    sql("INSERT INTO target SELECT payload FROM orders WHERE txid < 20")
    # The views are those of the session. A new one, as after a restart, makes them again.
    sql(f"CREATE OR REPLACE TEMPORARY VIEW copies {using('copy')}")
    payloads = [bytes(row.payload) for row in sql("SELECT payload FROM copies").collect()]
    assert sorted(payloads) == sorted(b"order %d" % number for number in range(20))
    with pytest.raises(Exception, match="TEMPORARY VIEW target"):
        sql("INSERT INTO orders (payload) VALUES (CAST('a' AS BINARY))")

    rows = sql("SELECT payload FROM orders")
    for refused in (
        f"CREATE TABLE sold {using('orders')}",
        f"CREATE TABLE sold {using('orders')} AS SELECT payload FROM orders",
    ):
        with pytest.raises(Exception, match="CREATE TEMPORARY VIEW"):
            sql(refused)
    assert not spark.catalog.tableExists("sold")
    # Spark does not say whether rows are for a log or for a table of its catalog, so the rows are written.
    given = {"uri": orders.uri, "stream": "saved"}
    rows.write.format("dlog").options(**given).saveAsTable("saved")
    assert reading_count(spark, **given) == 30
    for act in ("SELECT * FROM saved", "INSERT INTO saved SELECT payload FROM orders"):
        with pytest.raises(Exception, match="CREATE TEMPORARY VIEW"):
            sql(act).collect()
    sql("DROP TABLE saved")
    assert reading_count(spark, **given) == 30
    with pytest.raises(Exception, match="a log has no path"):
        spark.read.format("dlog").options(**given).load("/somewhere")


def reading_count(spark: SparkSession, **options: str) -> int:
    return spark.read.format("dlog").options(**options).load().count()
