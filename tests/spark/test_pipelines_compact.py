"""Real Spark compacts logs: the last record of each key, once, in the order of positions."""

# covers: spark_integration/commands/compact.py
# covers: spark_integration/pipelines/compacting/rows.py

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import dlog
import dlog.blocking
from spark_integration.errors import PipelineError
from spark_integration.pipelines import compact, compact_to_files, read_snapshot
from tests.spark.conftest import PipelineCommand

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
KEY = "get_json_object(text, '$.id')"


@pytest.fixture
def namespace(tmp_path: Path) -> Iterator[dlog.blocking.Namespace]:
    small = dlog.WriterConfig(segment_bytes_max=2_000, entry_bytes_target=256)
    with dlog.blocking.open_namespace(
        (tmp_path / "log").as_uri(), config=dlog.NamespaceConfig(writer=small)
    ) as opened:
        yield opened


def write(namespace: dlog.blocking.Namespace, first: int, count: int) -> None:
    with namespace.open_writer("prices", create=True) as writer:
        writer.append_many(
            [b'{"id": %d, "n": %d}' % (number % 7, number) for number in range(first, first + count)],
            txids=[number // 2 for number in range(first, first + count)],
        )


def records(namespace: dlog.blocking.Namespace, log: str) -> list[dlog.Record]:
    with namespace.open_reader(log, follow=False) as reader:
        return list(reader)


def numbers(namespace: dlog.blocking.Namespace, log: str) -> list[int]:
    return [json.loads(record.payload)["n"] for record in records(namespace, log)]


def test_a_snapshot_has_the_last_record_of_each_key_and_is_made_once(
    spark: SparkSession, namespace: dlog.blocking.Namespace
) -> None:
    write(namespace, 0, 200)
    made = compact(spark, namespace.uri, "prices", key=KEY, into="prices-1")
    assert not made.is_repeated
    assert numbers(namespace, "prices-1") == list(range(193, 200))
    assert [record.txid for record in records(namespace, "prices-1")] == [
        number // 2 for number in range(193, 200)
    ]
    assert made.manifest == read_snapshot(namespace.uri, "prices-1")
    assert (made.manifest.rows, made.manifest.mark.sequence) == (7, 200)
    write(namespace, 200, 3)
    again = compact(spark, namespace.uri, "prices", key=KEY, into="prices-1")
    assert (again.is_repeated, again.manifest) == (True, made.manifest)
    at = made.manifest.mark.position
    behind = dlog.DLSN(at.segment, at.entry, at.slot).next_slot()
    with namespace.open_reader("prices", start=behind, follow=False) as reader:
        assert [json.loads(record.payload)["n"] for record in reader] == [200, 201, 202]
    # What the snapshot covers may go now; the next one is made from it.
    namespace.truncate_log("prices", behind)
    with pytest.raises(PipelineError, match="a snapshot would lack its keys"):
        compact(spark, namespace.uri, "prices", key=KEY, into="prices-2")
    with namespace.open_writer("prices") as writer:
        writer.append(b'{"n": 203}', txid=300)
    with pytest.raises(PipelineError, match=r"the key is null of the record at prices \["):
        compact(spark, namespace.uri, "prices", key=KEY, into="prices-2", base="prices-1")
    assert records(namespace, "prices-2") == []
    compact(spark, namespace.uri, "prices", key=KEY, into="prices-2", base="prices-1", drop_null_keys=True)
    assert numbers(namespace, "prices-2") == [196, 197, 198, 199, 200, 201, 202]
    assert namespace.repair.verify("prices-2").is_sound


def test_a_snapshot_by_the_key_of_the_records_keeps_keys_and_headers(
    spark: SparkSession, namespace: dlog.blocking.Namespace, tmp_path: Path
) -> None:
    with namespace.open_writer("prices", create=True) as writer:
        writer.append_many(
            [b"%d" % number for number in range(60)],
            keys=[b"k%d" % (number % 4) for number in range(60)],
            headers=[{"n": b"%d" % number} for number in range(60)],
        )
    compact(spark, namespace.uri, "prices", into="prices-1")
    expected = [(b"%d" % n, b"k%d" % (n % 4), {"n": b"%d" % n}) for n in range(56, 60)]
    assert [
        (each.payload, each.key, dict(each.headers)) for each in records(namespace, "prices-1")
    ] == expected
    files = compact_to_files(spark, namespace.uri, "prices", directory=tmp_path / "files")
    found = spark.read.parquet(str(files.rows)).orderBy("segment", "entry", "slot").collect()
    assert [
        (bytes(each.payload), bytes(each.key), {item.key: bytes(item.value) for item in each.headers})
        for each in found
    ] == expected


def test_a_snapshot_of_files_is_made_once_and_drops_what_was_deleted(
    spark: SparkSession,
    namespace: dlog.blocking.Namespace,
    tmp_path: Path,
    pipeline: PipelineCommand,
) -> None:
    with namespace.open_writer("prices", create=True) as writer:
        # The key is the transaction id.
        writer.append_many([b"a", b"b", b"c", b"", b"d"], txids=[1, 1, 2, 2, 3])
    home = tmp_path / "snapshot"
    (home / "rows-0").mkdir(parents=True)  # of an attempt that died
    arguments = ["compact", "prices", "--uri", namespace.uri, "--key", "txid"]
    for is_repeated in (False, True):
        code, found = pipeline(*arguments, "--parquet", str(home), "--drop-tombstones")
        assert (code, found["rows"], found["is_repeated"]) == (0, 2, is_repeated)
        rows = spark.read.parquet(found["snapshot"]).orderBy("segment", "entry", "slot").collect()
        assert [(row.txid, bytes(row.payload)) for row in rows] == [(1, b"b"), (3, b"d")]
    assert sorted(each.name for each in home.iterdir()) == ["manifest.json", Path(found["snapshot"]).name]
    assert pipeline(*arguments, "--parquet", str(home))[0] == 1  # with tombstones it is another snapshot
    assert "without empty records" in pipeline.errors
    assert pipeline(*arguments)[0] == 2
