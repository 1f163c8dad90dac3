"""Queries of tests on real Spark, and the logs that they read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import dlog
import dlog.blocking

QUERY_TIMEOUT_S = 300  # only a bound, for a busy machine


class Orders:
    """A log that grows while Spark reads it, with the expected rows."""

    def __init__(self, directory: Path) -> None:
        self.uri = f"file://{directory}"
        small = dlog.WriterConfig(segment_bytes_max=8_000, entry_bytes_target=512)
        self._namespace = dlog.blocking.open_namespace(self.uri, config=dlog.NamespaceConfig(writer=small))
        self.written: list[tuple[int, int, int, int, bytes]] = []

    def __enter__(self) -> Orders:
        self.namespace = self._namespace.__enter__()
        self.namespace.create_log("orders")
        return self

    def __exit__(self, *error: object) -> None:
        self._namespace.__exit__(None, None, None)

    def append(self, count: int) -> None:
        first = len(self.written)
        payloads = [b"order %d" % number for number in range(first, first + count)]
        with self.namespace.open_writer("orders") as writer:
            positions = writer.append_many(payloads, txids=range(first, first + count))
        self.written += [
            (dlsn.segment_seqno, dlsn.entry_id, dlsn.slot_id, txid, payload)
            for dlsn, txid, payload in zip(positions, range(first, first + count), payloads, strict=True)
        ]


def reading(spark: SparkSession, orders: Orders, *, streaming: bool, **options: object) -> DataFrame:
    reader = spark.readStream if streaming else spark.read
    source = reader.format("dlog").option("uri", orders.uri).option("stream", "orders")
    for name, value in options.items():
        source = source.option(name, value)  # type: ignore[arg-type]
    return source.load()


def collected(frame: DataFrame) -> list[tuple[int, int, int, int, bytes]]:
    return [
        (row.segment, row.entry, row.slot, row.txid, bytes(row.payload))
        for row in frame.select("segment", "entry", "slot", "txid", "payload").collect()
    ]


def to_files(frame: DataFrame, directory: Path, **trigger: Any) -> StreamingQuery:
    return (
        frame.writeStream.format("parquet")
        .option("path", str(directory / "out"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(**(trigger or {"availableNow": True}))
        .start()
    )


def finish(query: StreamingQuery) -> None:
    try:
        assert query.awaitTermination(QUERY_TIMEOUT_S), query.lastProgress
        assert query.exception() is None
    finally:
        query.stop()
