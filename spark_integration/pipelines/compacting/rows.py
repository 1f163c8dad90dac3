"""The query of a compaction: the last record of each key, in the order of positions.

Inside: the DataFrame. Not inside: what becomes of its rows. Always: every action on it reads the same
records, because both ends of its ranges are positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import attrs

from spark_integration.offsets import Position
from spark_integration.pipelines.compacting.parts import (
    CONTENT,
    ORDER,
    Row,
    WriteTarget,
    WrittenPart,
    write_rows,
)
from spark_integration.pipelines.tasks import context_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@attrs.frozen(kw_only=True)
class Wanted:
    """The records and the rules that make a snapshot."""

    uri: str
    options: Mapping[str, str]
    ranges: tuple[tuple[str, Position, Position], ...]  # of the base and of the source, from older to newer
    key: str
    drops_tombstones: bool
    drops_null_keys: bool
    parts: int


def last_of_each_key(spark: SparkSession, wanted: Wanted) -> DataFrame:
    """The rows of a snapshot, sorted over all partitions: ``ORDER`` and ``CONTENT``."""
    from pyspark.sql import functions as f

    records = None
    for generation, (log, start, end) in enumerate(wanted.ranges, 2 - len(wanted.ranges)):
        source = spark.read.format("dlog").options(
            **{
                **wanted.options,
                "uri": wanted.uri,
                "stream": log,
                "startingOffsets": _offset(start),
                "endingOffsets": _offset(end),
                "includeHeaders": "true",
            }
        )
        part = source.load().select(f.lit(generation).cast("bigint").alias("generation"), "*")
        records = part if records is None else records.unionByName(part)
    assert records is not None  # ``_Run.covered`` refuses to compact no range
    place = f.format_string("%s [%d, %d, %d]", "stream", "segment", "entry", "slot")
    keyed = records.select(
        f.struct(*ORDER, *CONTENT).alias("record"),
        f.col("payload").cast("string").alias("text"),
        "*",
    ).select("record", f.expr(wanted.key).alias("key"), place.alias("place"))
    if wanted.drops_null_keys:
        keyed = keyed.where("key IS NOT NULL")
    else:
        keyed = keyed.where(
            f.col("key").isNotNull()
            | f.raise_error(f.concat(f.lit("PipelineError: the key is null of the record at "), "place"))
        )
    # The position decides: no two records have the same one, so the payload is never compared.
    found = keyed.groupBy("key").agg(f.max("record").alias("record")).select("record.*")
    if wanted.drops_tombstones:
        found = found.where(f.length("payload") > 0)
    return found.repartitionByRange(wanted.parts, *ORDER).sortWithinPartitions(*ORDER)


def write_through_spark(spark: SparkSession, wanted: Wanted, target: WriteTarget) -> list[WrittenPart]:
    """Write the rows of a snapshot; each partition becomes a segment."""
    context_of(spark)  # a session without has no ``rdd`` either
    # Spark has a function over Arrow batches, too, but that needs pandas.
    rows = last_of_each_key(spark, wanted).rdd
    return rows.mapPartitionsWithIndex(partial(_write_partition, target)).collect()


def _write_partition(target: WriteTarget, number: int, rows: Iterable[Row]) -> Iterator[WrittenPart]:
    part = write_rows(target, number, rows)
    if part is not None:
        yield part


def _offset(position: Position) -> str:
    return f"[{position.segment}, {position.entry}, {position.slot}]"
