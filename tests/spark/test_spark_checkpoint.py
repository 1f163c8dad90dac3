"""The lag of a query of real Spark, by its checkpoint and the figures of the exporter."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio
from pyspark.sql import SparkSession

import dlog
from dlog.page.exporter import Exporter
from spark_integration.checkpoint import committed_positions
from tests.spark.queries import Orders, finish, reading

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def figures(orders: Orders, checkpoint: Path) -> dict[str, float]:
    exporter = Exporter(orders.uri, checkpoints={"q": partial(committed_positions, checkpoint)})

    async def collected() -> str:
        async with dlog.open_namespace(orders.uri) as namespace:
            await exporter.collect(namespace)
            return exporter.text()

    lines = [line for line in trio.run(collected).splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_the_lag_of_a_query_is_what_its_committed_batches_lack(
    spark: SparkSession, orders: Orders, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    orders.append(95)
    query = (
        reading(spark, orders, streaming=True, startingOffsets="earliest", maxRecordsPerTrigger=10)
        .writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    finish(query)
    lag = 'dlog_spark_lag_records{checkpoint="q",log="orders"}'
    assert figures(orders, checkpoint)[lag] == 0
    orders.append(7)
    found = figures(orders, checkpoint)
    assert found[lag] == 7
    assert found['dlog_spark_lag_seconds{checkpoint="q",log="orders"}'] >= 0
    # A batch that was planned and not committed is not consumed.
    number = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdecimal())
    (checkpoint / "commits" / str(number)).unlink()
    assert figures(orders, checkpoint)[lag] > 7
