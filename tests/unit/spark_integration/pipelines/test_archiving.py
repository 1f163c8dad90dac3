"""Archiving without Spark: what survives a death at any step, and what is never truncated."""

# covers: spark_integration/pipelines/archives/archiving.py
# covers: spark_integration/pipelines/archives/directory.py
# covers: spark_integration/pipelines/archives/plan.py
# covers: spark_integration/pipelines/archives/segment_files.py

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dlog
import dlog.blocking
from dlog.encryption import KeyFile
from spark_integration.errors import ArchiveDamagedError, ArchiveGapError, PipelineError
from spark_integration.pipelines import Progress
from spark_integration.pipelines.archives import read_manifest
from spark_integration.pipelines.archives.content import SCHEMA
from spark_integration.pipelines.archives.directory import ArchiveDirectory
from spark_integration.pipelines.archives.manifest import ManifestPart
from spark_integration.pipelines.archives.segment_files import ReadSegment, read_segment
from tests.fakes.tasks_in_turn import one_by_one
from tests.unit.spark_integration.pipelines.archived_logs import (
    ArchivedLog,
    DiedError,
    Row,
    dying_at,
    rows_of,
)


def archived(orders: ArchivedLog) -> list[Row]:
    """The rows in the archive, in the order of the manifest."""
    directory = ArchiveDirectory.at(orders.archive)
    return [
        row
        for segment in read_manifest(orders.archive).segments
        for rows in read_segment(ReadSegment(directory, segment))
        for row in zip(rows.column("txid").to_pylist(), rows.column("payload").to_pylist(), strict=True)
    ]


def first_left(orders: ArchivedLog) -> dlog.DLSN | None:
    return orders.namespace.describe_log(orders.log).first_dlsn


@pytest.mark.slow
def test_completed_segments_are_archived_and_only_once(orders: ArchivedLog) -> None:
    told: list[Progress] = []
    orders.write(5, 1, 40)
    with orders.namespace.open_writer(orders.log) as writer:
        writer.append(b"in progress", txid=1_000)
        result = orders.run(told.append)
    assert (result.segments, result.records, result.truncated_before) == (3, 46, None)
    assert archived(orders) == orders.rows
    assert [each.step for each in told] == ["planned", *["wrote files", "added to the manifest"] * 2]
    assert (told[-1].records, told[-1].records_total, told[-1].records_before) == (46, 46, 0)
    orders.rows.append((1_000, b"in progress"))
    again = orders.run()
    assert (again.segments, again.records, again.records_total) == (1, 1, 47)
    assert archived(orders) == orders.rows
    assert orders.run().segments == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "step", ["planned", "wrote files", "added to the manifest", "read back", "truncated"]
)
@pytest.mark.parametrize("count", [1, 2])
def test_a_run_that_dies_at_any_step_is_repeated_and_every_record_is_there_once(
    orders: ArchivedLog, step: str, count: int
) -> None:
    if count == 2 and step not in ("wrote files", "added to the manifest"):
        count = 1
    orders.write(4, 3, 2, 5)
    with pytest.raises(DiedError):
        orders.run(dying_at(step, count), truncate=True)
    manifest = ArchiveDirectory.at(orders.archive).manifest()
    have = 0 if manifest is None else manifest.records
    left = orders.namespace.describe_log(orders.log).first_dlsn
    assert left is not None
    # Whatever was truncated is in the manifest.
    assert left.segment_seqno - 1 <= (len(manifest.segments) if manifest else 0)
    orders.write(3)
    result = orders.run(truncate=True)
    assert result.records == len(orders.rows) - have
    assert archived(orders) == orders.rows
    assert orders.files() == read_manifest(orders.archive).files  # what dead attempts left is deleted
    assert rows_of(orders.namespace, orders.log) == []


@pytest.mark.slow
def test_a_task_that_dies_leaves_a_file_that_is_never_taken_for_a_segment(orders: ArchivedLog) -> None:
    orders.write(4, 3)

    def second_dies(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        function(items[0])  # an attempt whose result was lost
        raise PipelineError("the executor is gone")

    with pytest.raises(PipelineError, match="executor"):
        orders.run(tasks=second_dies)
    assert len(orders.files()) == 1
    orders.run()
    assert archived(orders) == orders.rows
    assert orders.files() == read_manifest(orders.archive).files


@pytest.mark.slow
def test_a_file_that_the_driver_does_not_see_gets_into_no_manifest(orders: ArchivedLog) -> None:
    orders.write(4, 3)

    def elsewhere(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        written = one_by_one(function, items)
        (orders.archive / str(written[1].file)).unlink()  # as if on a disk of the executor
        return written

    with pytest.raises(ArchiveDamagedError, match="missing"):
        orders.run(tasks=elsewhere, truncate=True)
    assert ArchiveDirectory.at(orders.archive).manifest() is None
    assert rows_of(orders.namespace, orders.log) == orders.rows


@pytest.mark.slow
def test_a_task_that_reads_too_few_records_adds_nothing(orders: ArchivedLog) -> None:
    orders.write(4, 3)

    def shortened(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        one, two = one_by_one(function, items)
        return [one, attrs.evolve(two, content=attrs.evolve(two.content, records=2))]

    with pytest.raises(PipelineError, match="2 records were read, but the log has 3"):
        orders.run(tasks=shortened)
    assert ArchiveDirectory.at(orders.archive).manifest() is None


@pytest.mark.slow
def test_what_is_not_read_back_unchanged_is_not_truncated(orders: ArchivedLog) -> None:
    orders.write(4, 3)
    orders.run()
    file = orders.archive / str(read_manifest(orders.archive).segments[1].file)
    data = bytearray(file.read_bytes())
    for change in (data[:-1], data[:100] + bytes([data[100] ^ 1]) + data[101:], None):
        file.unlink()
        if change is not None:
            file.write_bytes(change)
        with pytest.raises(ArchiveDamagedError):
            orders.run(truncate=True)
        assert rows_of(orders.namespace, orders.log) == orders.rows
        file.write_bytes(data)
    orders.run(truncate=True)
    assert rows_of(orders.namespace, orders.log) == []


@pytest.mark.slow
def test_a_file_with_other_rows_is_not_read_back_as_the_segment(orders: ArchivedLog) -> None:
    orders.write(3, 3)
    orders.run()
    first, second = (orders.archive / str(each.file) for each in read_manifest(orders.archive).segments)
    second.write_bytes(first.read_bytes())
    with pytest.raises(ArchiveDamagedError, match="another segment"):
        orders.run(truncate=True)
    assert rows_of(orders.namespace, orders.log) == orders.rows


@pytest.mark.slow
def test_a_file_with_one_other_payload_is_not_read_back_as_the_segment(orders: ArchivedLog) -> None:
    orders.write(3)
    orders.run()
    file = orders.archive / str(read_manifest(orders.archive).segments[0].file)
    rows = pq.read_table(file)
    payloads = rows.column("payload").to_pylist()
    changed = pa.array([*payloads[:-1], payloads[-1][::-1]], pa.binary())
    pq.write_table(rows.set_column(5, "payload", changed), file)
    with pytest.raises(ArchiveDamagedError, match="other rows"):
        orders.run(truncate=True)
    assert rows_of(orders.namespace, orders.log) == orders.rows


@pytest.mark.slow
def test_newest_segments_and_those_that_a_cursor_has_not_read_stay(orders: ArchivedLog) -> None:
    orders.write(4, 3, 2, 5)
    assert orders.run(truncate=True, keep_segments=4).truncated_before is None
    assert orders.run(truncate=True, keep_segments=3).truncated_before == dlog.DLSN(2, 0, 0)
    orders.namespace.cursors(orders.log).set("billing", dlog.DLSN(3, 0, 1))
    assert orders.run(truncate=True).truncated_before == dlog.DLSN(3, 0, 0)
    assert rows_of(orders.namespace, orders.log) == orders.rows[7:]
    assert orders.run(truncate=True).truncated_before is None
    assert orders.run(truncate=True, truncate_unread=True).truncated_before == dlog.DLSN(5, 0, 0)
    orders.write(2)
    orders.run()
    assert archived(orders) == orders.rows


@pytest.mark.slow
@pytest.mark.parametrize("hash_chain", [False, True])
def test_a_sealed_log_is_archived_and_its_readers_still_see_the_end(
    orders: ArchivedLog, hash_chain: bool
) -> None:
    config = dlog.WriterConfig(hash_chain=hash_chain, entry_bytes_target=64)
    for at in range(2):
        with orders.namespace.open_writer(orders.log, config=config) as writer:
            writer.append_many([b"%d" % number for number in range(20)], txids=[at] * 20)
    orders.rows = [(at, b"%d" % number) for at in range(2) for number in range(20)]
    orders.namespace.seal_log(orders.log)
    assert orders.run(truncate=True).records == 40
    assert archived(orders) == orders.rows
    with orders.namespace.open_reader(orders.log) as reader:
        assert reader.read_batch(10, wait_s=5) is None
        assert reader.is_sealed
    assert orders.run(truncate=True).truncated_before is None


@pytest.mark.slow
def test_a_hole_between_archive_and_log_is_an_error(orders: ArchivedLog) -> None:
    orders.write(4, 3, 6)
    orders.run()
    orders.write(3, 2)
    orders.namespace.truncate_log(orders.log, dlog.DLSN(4, 0, 1))
    for _ in range(2):
        with pytest.raises(ArchiveGapError, match="truncated"):
            orders.run(truncate=True)
    assert read_manifest(orders.archive).last_segment == 3


@pytest.mark.slow
def test_an_archive_may_begin_in_the_midst_of_a_truncated_segment(orders: ArchivedLog) -> None:
    orders.write(4, 30, 2)
    with orders.namespace.open_reader(orders.log, follow=False) as reader:
        cut = [record.dlsn for record in reader][14]
    orders.namespace.truncate_log(orders.log, cut)
    result = orders.run()
    assert archived(orders) == orders.rows[14:]
    assert (result.segments, result.records) == (2, 22)


@pytest.mark.slow
def test_records_that_vanish_while_they_are_archived_are_an_error(orders: ArchivedLog) -> None:
    orders.write(4, 3)

    def truncated_before(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        orders.namespace.truncate_log(orders.log, dlog.DLSN(2, 0, 0))
        return one_by_one(function, items)

    with pytest.raises(dlog.LogTruncatedError):
        orders.run(tasks=truncated_before)
    assert ArchiveDirectory.at(orders.archive).manifest() is None


@pytest.mark.slow
def test_of_two_runs_at_the_same_time_one_adds_its_segments_and_one_fails(orders: ArchivedLog) -> None:
    orders.write(4, 3)

    def other_first(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        written = one_by_one(function, items)
        orders.run()
        return written

    with pytest.raises(PipelineError, match="another run added part 1"):
        orders.run(tasks=other_first, truncate=True)
    assert archived(orders) == orders.rows
    assert rows_of(orders.namespace, orders.log) == orders.rows


@pytest.mark.slow
def test_a_log_created_again_is_not_added_to_the_archive_of_the_old_one(orders: ArchivedLog) -> None:
    orders.write(4, 3)
    orders.run()
    before = list(orders.rows)
    orders.namespace.delete_log(orders.log)
    orders.namespace.create_log(orders.log)
    for counts in ((), (4,), (3, 5)):
        orders.write(*counts)
        with pytest.raises(PipelineError, match="not the log of this archive"):
            orders.run(truncate=True)
    other = ArchivedLog(orders.namespace, orders.archive, "other")
    with pytest.raises(PipelineError, match="of log 'orders'"):
        other.run()
    assert archived(orders) == before


@pytest.mark.slow
@pytest.mark.parametrize("counts", [(2, 3), (6, 3)], ids=["fewer", "more"])
def test_a_log_created_again_and_purged_past_the_archive_is_noticed_by_its_records(
    orders: ArchivedLog, counts: tuple[int, int]
) -> None:
    orders.write(4, 3)
    orders.run()
    before = list(orders.rows)
    orders.namespace.delete_log(orders.log)
    orders.namespace.create_log(orders.log)
    orders.write(*counts, 5, 1)
    orders.namespace.truncate_log(orders.log, dlog.DLSN(3, 0, 0))
    orders.namespace.purge_log(orders.log)
    with pytest.raises(
        PipelineError, match=f"had {sum(counts)} records before segment 3, and the archive has 7"
    ):
        orders.run(truncate=True)
    assert archived(orders) == before


@pytest.mark.slow
def test_a_log_that_was_purged_up_to_the_end_of_its_archive_is_archived_on(orders: ArchivedLog) -> None:
    orders.write(4, 3)
    orders.run(truncate=True)
    orders.write(5)
    orders.namespace.truncate_log(orders.log, dlog.DLSN(3, 0, 0))
    orders.namespace.purge_log(orders.log)
    orders.run(truncate=True)
    orders.write(2)
    orders.run()
    assert archived(orders) == orders.rows


@pytest.mark.slow
def test_a_changed_or_missing_part_of_the_manifest_is_an_error(orders: ArchivedLog) -> None:
    orders.write(4, 3, 2)
    orders.run(step=1)
    parts = sorted((orders.archive / "manifest").iterdir())
    assert len(parts) == 3
    data = parts[1].read_bytes()
    document = json.loads(data)
    document["segments"] = []
    renumbered = ManifestPart.decoded(parts[2].read_bytes(), "it")
    for change in (data[:-5], json.dumps(document).encode(), renumbered.encoded(), None):
        parts[1].unlink()
        if change is not None:
            parts[1].write_bytes(change)
        with pytest.raises(ArchiveDamagedError):
            orders.run(truncate=True)
        parts[1].write_bytes(data)
    newest = parts[2].read_bytes()  # no part after it has its digest
    parts[2].write_bytes(newest.replace(b'"ledger_id": 2', b'"ledger_id": 3'))
    assert parts[2].read_bytes() != newest
    with pytest.raises(ArchiveDamagedError, match="digest"):
        orders.run(truncate=True)
    parts[2].write_bytes(newest)
    assert rows_of(orders.namespace, orders.log) == orders.rows
    assert orders.run().segments == 0


def test_an_archive_is_in_a_directory_that_all_see(orders: ArchivedLog) -> None:
    with pytest.raises(PipelineError, match="s3a: is not supported"):
        ArchiveDirectory.at("s3a://lake/orders")
    assert ArchiveDirectory.at("file:///a%20b").path.as_posix() == "/a b"
    with pytest.raises(PipelineError, match="no manifest"):
        read_manifest(orders.archive)


def attributes_of(
    namespace: dlog.blocking.Namespace, log: str
) -> list[tuple[bytes | None, dict[str, bytes]]]:
    with namespace.open_reader(log, follow=False) as reader:
        return [(record.key, dict(record.headers)) for record in reader]


@pytest.mark.slow
def test_keys_and_headers_are_archived_and_restored(orders: ArchivedLog) -> None:
    keys, headers = [None, b"k", None, b""], [None, None, {"a": b"1", "b": b""}, {"a": b"2"}]
    orders.write(3)
    with orders.namespace.open_writer(orders.log) as writer:
        writer.append_many([b"1", b"2", b"3", b"4"], keys=keys, headers=headers)
    orders.run(truncate=True)
    assert rows_of(orders.namespace, orders.log) == []
    orders.restore("copy")
    expected = [(key, each or {}) for key, each in zip(keys, headers, strict=True)]
    assert attributes_of(orders.namespace, "copy") == [(None, {})] * 3 + expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "changed"),
    [
        ("key", b"other"),
        ("key", None),
        ("headers", [{"key": "a", "value": b"2"}]),
        ("headers", []),
        ("headers", [{"key": None, "value": b"1"}]),
        ("headers", [{"key": "", "value": b"1"}]),
    ],
)
def test_a_file_with_another_key_or_header_is_not_read_back_as_the_segment(
    orders: ArchivedLog, column: str, changed: object
) -> None:
    with orders.namespace.open_writer(orders.log) as writer:
        writer.append_many([b"1", b"2"], keys=[None, b"k"], headers=[None, {"a": b"1"}])
    orders.run()
    (name,) = orders.files()
    rows = pq.read_table(orders.archive / name)
    at = rows.schema.get_field_index(column)
    values = pa.array([rows.column(at)[0].as_py(), changed], rows.schema.field(at).type)
    pq.write_table(rows.set_column(at, rows.schema.field(at), values), orders.archive / name)
    (segment,) = read_manifest(orders.archive).segments
    with pytest.raises(ArchiveDamagedError):
        list(read_segment(ReadSegment(ArchiveDirectory.at(orders.archive), segment)))


@pytest.mark.slow
def test_a_file_of_an_older_archive_without_keys_and_headers_is_read_back(orders: ArchivedLog) -> None:
    orders.write(5)
    orders.run()
    (name,) = orders.files()
    pq.write_table(pq.read_table(orders.archive / name).select(SCHEMA.names), orders.archive / name)
    (segment,) = read_manifest(orders.archive).segments
    found = list(read_segment(ReadSegment(ArchiveDirectory.at(orders.archive), segment)))
    assert [payload for rows in found for payload in rows.column("payload").to_pylist()] == [
        payload for _, payload in orders.rows
    ]


@pytest.mark.slow
def test_an_encrypted_key_or_header_that_cannot_be_read_is_not_left_out(
    orders: ArchivedLog, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.touch(0o600)
    keys.write_text(f"1 {bytes(32).hex()}\n")
    encrypting = dlog.WriterConfig(encryption=KeyFile(keys))
    with orders.namespace.open_writer(orders.log, config=encrypting) as writer:
        writer.append_many([b"plain", b"with a key"], keys=[None, b"k"])
    with pytest.raises(PipelineError, match="encrypted key or headers"):
        orders.run(truncate=True)
    assert len(rows_of(orders.namespace, orders.log)) == 2
