"""Real Spark archives a log, reads archive and log as one table, and restores."""

# covers: spark_integration/commands/archive.py
# covers: spark_integration/pipelines/archives/export.py
# covers: spark_integration/pipelines/archives/union.py
# covers: spark_integration/pipelines/session.py

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import dlog
from spark_integration.errors import ArchiveDamagedError, ArchiveGapError, PipelineError
from spark_integration.pipelines import (
    Progress,
    archive,
    archived_table,
    export_table,
    read_manifest,
    restore,
    table,
)
from tests.spark.conftest import PipelineCommand
from tests.spark.queries import Orders, collected

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def everything(frame: DataFrame) -> list[tuple[int, int, int, int, bytes]]:
    return sorted(collected(frame))


def test_archive_and_log_are_one_table_while_the_log_is_archived_truncated_and_written(
    spark: SparkSession, orders: Orders, tmp_path: Path, pipeline: PipelineCommand
) -> None:
    into = tmp_path / "archive of orders"

    def read() -> DataFrame:
        return table(spark, orders.uri, "orders", archive=into)

    orders.append(700)
    with pytest.raises(PipelineError, match="no archive"):
        read()
    with pytest.raises(RuntimeError, match="died"):  # the driver, before it adds to the manifest
        archive(spark, orders.uri, "orders", into=into, report=_dying("wrote files"))
    code, found = pipeline("archive", "orders", "--into", str(into), "--uri", orders.uri)
    assert (code, found["records"], found["truncated_before"]) == (0, 700, None)
    both = read()
    assert both.columns == [
        *("stream", "segment", "entry", "slot", "txid"),
        *("payload", "sequence", "key", "headers"),
    ]
    assert everything(both) == orders.written  # all is in the archive and in the log, and once in the table
    orders.append(200)
    assert everything(read()) == orders.written
    with orders.namespace.open_writer("orders") as writer:
        payloads = [b"tail %d" % number for number in range(5)]
        positions = writer.append_many(payloads, txids=[904] * 5)
        orders.written += [
            (at.segment_seqno, at.entry_id, at.slot_id, 904, payload)
            for at, payload in zip(positions, payloads, strict=True)
        ]
        writer.flush()
        code, found = pipeline("archive", "orders", "--into", str(into), "--uri", orders.uri, "--truncate")
        assert (code, found["records"], found["records_total"]) == (0, 200, 900)
        first = orders.namespace.describe_log("orders").first_dlsn
        assert first == dlog.DLSN(positions[0].segment_seqno, 0, 0)
        frame = read()
        assert everything(frame) == orders.written
        assert [row.sequence for row in frame.sort("sequence").select("sequence").collect()] == list(
            range(905)
        )
    assert {row.stream for row in frame.select("stream").distinct().collect()} == {"orders"}
    assert everything(archived_table(spark, archive=into)) == orders.written[:900]

    orders.append(10)
    orders.namespace.truncate_log("orders", dlog.DLSN(positions[0].segment_seqno + 1, 0, 0))
    with pytest.raises(ArchiveGapError):
        read()
    assert pipeline("archive", "orders", "--into", str(into), "--uri", orders.uri)[0] == 1
    # A table made before fails too: it does not leave out what is gone.
    orders.namespace.purge_log("orders")
    with pytest.raises(Exception, match="truncated"):
        frame.collect()

    (into / str(read_manifest(into).segments[2].file)).unlink()
    with pytest.raises(ArchiveDamagedError, match="missing"):
        archived_table(spark, archive=into)


def test_the_table_of_archive_and_log_has_keys_and_headers(
    spark: SparkSession, orders: Orders, tmp_path: Path
) -> None:
    expected = []
    for name in ("archived", "live"):
        with orders.namespace.open_writer("keyed", create=True) as writer:
            writer.append_many(
                [b"1", b"2"], keys=[None, name.encode()], headers=[{"of": name.encode()}, None]
            )
        expected += [(None, {"of": name.encode()}), (name.encode(), {})]
        if name == "archived":
            archive(spark, orders.uri, "keyed", into=tmp_path / "archive", truncate=True)
    rows = table(spark, orders.uri, "keyed", archive=tmp_path / "archive").sort("sequence").collect()
    assert [
        (
            None if row.key is None else bytes(row.key),
            {item.key: bytes(item.value) for item in row.headers},
        )
        for row in rows
    ] == expected


def test_the_table_of_archive_and_log_is_written_to_files_once(
    spark: SparkSession, orders: Orders, tmp_path: Path, pipeline: PipelineCommand
) -> None:
    into, out = tmp_path / "archive", tmp_path / "out"
    orders.append(300)
    archive(spark, orders.uri, "orders", into=into, truncate=True)
    orders.append(100)
    with pytest.raises(RuntimeError, match="died"):
        export_table(
            spark, orders.uri, "orders", archive=into, directory=out, report=_dying("wrote the table")
        )
    (dead,) = out.glob("rows-*")
    command = ("table", "orders", "--archive", str(into), "--uri", orders.uri, "--parquet")
    code, found = pipeline(*command, str(out))
    assert (code, found["records"], found["is_repeated"]) == (0, 400, False)
    assert everything(spark.read.parquet(found["rows"])) == orders.written
    assert not dead.exists()
    orders.append(1)
    assert pipeline(*command, str(out)) == (0, {**found, "is_repeated": True})
    assert pipeline(*command, str(out), "--where", "txid < 10")[0] == 1
    assert "has another export" in pipeline.errors
    code, found = pipeline(*command, str(tmp_path / "few"), "--where", "txid < 10 OR txid >= 395")
    assert (code, found["records"]) == (0, 16)


def test_a_log_is_restored_by_spark_and_the_restart_goes_on(
    spark: SparkSession, orders: Orders, tmp_path: Path, pipeline: PipelineCommand
) -> None:
    into = tmp_path / "archive"
    told: list[Progress] = []
    orders.append(900)
    archive(spark, orders.uri, "orders", into=into.as_uri(), truncate=True, report=told.append)
    assert [each.step for each in told][-2:] == ["read back", "truncated"]
    target = (tmp_path / "target").as_uri()
    with pytest.raises(RuntimeError, match="died"):
        restore(spark, into, target, "again", report=_dying("added to the log"))
    code, found = pipeline("restore", str(into), "again", "--uri", target)
    assert (code, found["records"] + found["records_before"]) == (0, 900)
    with dlog.blocking.open_namespace(target) as namespace:
        with namespace.open_reader("again", follow=False) as reader:
            restored = [(record.txid, record.payload) for record in reader]
        assert restored == [(txid, payload) for *_, txid, payload in orders.written]
        assert namespace.repair.verify("again").is_sound
        with namespace.open_writer("other", create=True) as writer:
            writer.append(b"of other origin")
    assert pipeline("restore", str(into), "other", "--uri", target)[0] == 1

    file = into / str(read_manifest(into).segments[0].file)
    file.write_bytes(file.read_bytes()[::-1])
    with pytest.raises(PipelineError, match=r"ArchiveDamagedError: .*cannot be read"):
        restore(spark, into, target, "damaged")


def _dying(step: str) -> Callable[[Progress], None]:
    def report(progress: Progress) -> None:
        if progress.step == step:
            raise RuntimeError("the driver died")

    return report
