"""Compactions without Spark: what a snapshot covers, once, and nothing of it lost to a truncation."""

# covers: spark_integration/pipelines/compacting/compactor.py
# covers: spark_integration/pipelines/compacting/files.py
# covers: spark_integration/pipelines/compacting/manifest.py
# covers: spark_integration/pipelines/compacting/parts.py
# covers: spark_integration/pipelines/output_directory.py
# covers: spark_integration/pipelines/places.py
# covers: spark_integration/pipelines/resuming.py

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import dlog
import dlog.blocking
from dlog.blocking import Namespace
from dlog.blocking.namespace import BatchCalls
from spark_integration import client
from spark_integration.errors import OptionError, PipelineError
from spark_integration.offsets import Position
from spark_integration.options import ClientOptions
from spark_integration.pipelines.compacting.compactor import Compaction, Snapshot
from spark_integration.pipelines.compacting.files import compact_to_files, read_file_snapshot
from spark_integration.pipelines.compacting.manifest import SnapshotManifest, decode_manifest
from spark_integration.pipelines.compacting.parts import Row, WriteTarget, WrittenPart, in_order, write_rows
from spark_integration.pipelines.compacting.rows import Wanted
from spark_integration.pipelines.marks import ReadMark
from spark_integration.pipelines.output_directory import locked
from spark_integration.pipelines.places import Place, place_of
from spark_integration.planning import Range

SMALL = dlog.NamespaceConfig(writer=dlog.WriterConfig(segment_bytes_max=2_000, entry_bytes_target=256))
KEYS = 5


class DiedError(Exception):
    """The compaction dies here."""


@pytest.fixture
def namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Namespace]:
    monkeypatch.setattr(client, "_opened", {})
    with dlog.blocking.open_namespace((tmp_path / "log").as_uri(), config=SMALL) as opened:
        client._opened[os.getpid(), opened.uri, ClientOptions()] = opened
        yield opened


def write(namespace: Namespace, first: int, count: int, log: str = "prices") -> None:
    with namespace.open_writer(log, create=True) as writer:
        writer.append_many([b"%d" % number for number in range(first, first + count)])


def last_of_each_key(place: Place, wanted: Wanted) -> list[Row]:
    """What Spark does: the key is the payload modulo ``KEYS``."""
    last: dict[int, Row] = {}
    for generation, (log, start, end) in enumerate(wanted.ranges, 2 - len(wanted.ranges)):
        for batch in place.log(log).read_range(Range(start, end), records_max=100):
            for record in batch:
                at = record.dlsn
                order = (generation, at.segment_seqno, at.entry_id, at.slot_id)
                last[int(record.payload) % KEYS] = (
                    *order,
                    record.txid,
                    record.payload,
                    record.key,
                    [*record.headers.items()],
                )
    return sorted(last.values())


def in_two_parts(wanted: Wanted, target: WriteTarget) -> list[WrittenPart]:
    target = pickle.loads(pickle.dumps(target))
    rows = last_of_each_key(target.place, wanted)
    parts = [write_rows(target, number, rows[cut]) for number, cut in enumerate((slice(2), slice(2, None)))]
    return [pickle.loads(pickle.dumps(part)) for part in reversed(parts) if part is not None]


def compact(namespace: Namespace, into: str, **options: Any) -> Snapshot:
    chosen: dict[str, Any] = {
        "place": place_of(namespace.uri, None),
        "log": "prices",
        "key": "text",
        "into": into,
        "base": None,
        "drops_tombstones": False,
        "drops_null_keys": False,
        "allows_truncated": False,
        "options": {},
        "write": in_two_parts,
        **options,
    }
    return Compaction(**chosen).do()


@pytest.mark.slow
def test_the_records_of_a_snapshot_keep_their_keys_and_headers(namespace: Namespace) -> None:
    with namespace.open_writer("prices", create=True) as writer:
        for number in range(20):
            attributes: dict[str, Any] = {"key": b"k%d" % number, "headers": {"n": b"%d" % number}}
            writer.append(b"%d" % number, **(attributes if number % 2 else {}))
    compact(namespace, "s1")
    with namespace.open_reader("s1", follow=False) as reader:
        assert [(int(each.payload), each.key, dict(each.headers)) for each in reader] == [
            (number, b"k%d" % number, {"n": b"%d" % number}) if number % 2 else (number, None, {})
            for number in range(15, 20)
        ]


def numbers(namespace: Namespace, log: str) -> list[int]:
    with namespace.open_reader(log, follow=False) as reader:
        return [int(record.payload) for record in reader]


def after(manifest: SnapshotManifest) -> dlog.DLSN:
    at = manifest.mark.position
    return dlog.DLSN(at.segment, at.entry, at.slot).next_slot()


@pytest.mark.slow
def test_a_snapshot_is_written_once_and_a_reader_goes_on_behind_it(namespace: Namespace) -> None:
    write(namespace, 0, 200)
    made = compact(namespace, "s1")
    assert numbers(namespace, "s1") == [195, 196, 197, 198, 199]
    assert (made.manifest.rows, made.manifest.mark.sequence, made.is_repeated) == (5, 200, False)
    write(namespace, 200, 2)
    again = compact(namespace, "s1")
    assert (again.is_repeated, again.manifest) == (True, made.manifest)
    with namespace.open_reader("prices", start=after(made.manifest), follow=False) as reader:
        assert [int(record.payload) for record in reader] == [200, 201]
    assert len(namespace.segments("s1")) == 2


@pytest.mark.slow
@pytest.mark.parametrize("step", ["in the tasks", "after the tasks", "after attaching"])
def test_a_compaction_that_dies_is_repeated_and_there_is_one_snapshot(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    write(namespace, 0, 100)

    def dying(wanted: Wanted, target: WriteTarget) -> list[WrittenPart]:
        if step == "in the tasks":
            write_rows(target, 0, last_of_each_key(target.place, wanted)[:2])
            raise DiedError
        found = in_two_parts(wanted, target)
        if step == "after the tasks":
            raise DiedError
        return found

    attach = BatchCalls.attach

    def attach_and_die(batches: BatchCalls, *args: Any, **options: Any) -> Any:
        attach(batches, *args, **options)
        raise DiedError

    with monkeypatch.context() as patched:
        patched.setattr(BatchCalls, "attach", attach_and_die)
        with pytest.raises(DiedError):
            compact(namespace, "s1", write=dying)
    made = compact(namespace, "s1")
    assert made.is_repeated == (step == "after attaching")
    assert numbers(namespace, "s1") == [95, 96, 97, 98, 99]
    assert made.manifest.rows == 5


@pytest.mark.slow
def test_of_two_compactions_at_once_one_is_the_snapshot(namespace: Namespace) -> None:
    write(namespace, 0, 100)
    others: list[Snapshot] = []

    def overtaken(wanted: Wanted, target: WriteTarget) -> list[WrittenPart]:
        found = in_two_parts(wanted, target)
        others.append(compact(namespace, "s1"))
        return found

    made = compact(namespace, "s1", write=overtaken)
    assert (made.is_repeated, made.manifest) == (True, others[0].manifest)
    assert numbers(namespace, "s1") == [95, 96, 97, 98, 99]


@pytest.mark.slow
def test_a_snapshot_is_made_from_an_earlier_one_although_the_source_was_truncated(
    namespace: Namespace,
) -> None:
    write(namespace, 0, 102)
    first = compact(namespace, "s1").manifest
    write(namespace, 102, 100)
    namespace.truncate_log("prices", after(first))
    with pytest.raises(PipelineError, match="a snapshot would lack its keys"):
        compact(namespace, "s2")
    namespace.purge_log("prices")
    with pytest.raises(PipelineError, match="a snapshot would lack its keys"):
        compact(namespace, "s2")
    assert compact(namespace, "part", allows_truncated=True).manifest.rows == 5
    second = compact(namespace, "s2", base="s1")
    assert numbers(namespace, "s2") == [197, 198, 199, 200, 201]
    assert (second.manifest.base, second.manifest.mark.sequence) == ("s1", 202)
    third = compact(namespace, "s3", base="s2")  # nothing new
    assert numbers(namespace, "s3") == numbers(namespace, "s2")
    assert third.manifest.mark == second.manifest.mark
    write(namespace, 202, 1)
    compact(namespace, "s4", base="s2")
    assert numbers(namespace, "s4") == [198, 199, 200, 201, 202]


@pytest.mark.slow
def test_a_source_truncated_behind_the_base_is_an_error(namespace: Namespace) -> None:
    write(namespace, 0, 100)
    compact(namespace, "s1")
    write(namespace, 100, 100)
    namespace.truncate_log("prices", dlog.DLSN(namespace.segments("prices")[-1].segment_seqno, 0, 0))
    with pytest.raises(PipelineError, match="truncated behind the last record that was read"):
        compact(namespace, "s2", base="s1")
    assert numbers(namespace, "s2") == []
    namespace.delete_log("prices")
    write(namespace, 0, 300)
    with pytest.raises(PipelineError, match="deleted and created again"):
        compact(namespace, "s2", base="s1")


@pytest.mark.slow
def test_other_logs_are_not_taken_for_the_snapshot(namespace: Namespace) -> None:
    write(namespace, 0, 10)
    write(namespace, 0, 10, "full")
    namespace.create_log("empty")
    compact(namespace, "s1")
    for into, options, why in (
        ("full", {}, "exists and is no snapshot"),
        ("s1", {"key": "txid"}, "'s1' is a snapshot of 'prices'"),
        ("s1", {"drops_tombstones": True}, "'s1' is a snapshot of 'prices'"),
        ("prices", {}, "its own snapshot"),
        ("s2", {"base": "full"}, "no base"),
        ("s2", {"log": "empty"}, "has no record"),
    ):
        with pytest.raises(PipelineError, match=why):
            compact(namespace, into, **options)
    assert numbers(namespace, "full") == list(range(10))
    namespace.properties.change("s1", {"dlog.snapshot": "{}"})
    with pytest.raises(PipelineError, match="no manifest of a snapshot"):
        compact(namespace, "s1")
    namespace.properties.change("s1", {"dlog.snapshot": None})
    with pytest.raises(PipelineError, match="show no snapshot"):
        compact(namespace, "s1")
    with pytest.raises(OptionError, match="keyFile"):
        place_of(namespace.uri, {"keyFile": "keys"})


@pytest.mark.slow
def test_rows_out_of_order_are_refused(namespace: Namespace) -> None:
    namespace.create_log("s1")
    plan = namespace.batches.begin(["s1"])
    assert plan is not None
    target = WriteTarget(place=Place(uri=namespace.uri), into="s1", plan=plan)
    rows: list[Row] = [(1, 1, number, 0, number, b"x", None, []) for number in range(4)]
    assert write_rows(target, 0, []) is None
    with pytest.raises(PipelineError, match="not in order"):
        write_rows(target, 0, [rows[1], rows[0]])
    low, high = write_rows(target, 0, rows[:2]), write_rows(target, 1, rows[2:])
    assert low is not None
    assert high is not None
    assert in_order([high, low]) == [low.segment, high.segment]
    with pytest.raises(PipelineError, match="not in order"):
        in_order([attrs.evolve(low, number=2), high])


def test_a_manifest_is_stored_and_read() -> None:
    mark = ReadMark(source="file:///log", log="prices", position=Position(7, 1, -1), ledger_id=3, sequence=9)
    manifest = SnapshotManifest(mark=mark, key="text", drops_tombstones=True, base="s0", rows=4)
    assert decode_manifest("s1", manifest.encode()) == manifest
    for wrong in ("", "[]", "{}", manifest.encode().replace('"v": 1', '"v": 2'), '{"v": 1}'):
        with pytest.raises(PipelineError, match="no manifest of a snapshot"):
            decode_manifest("s1", wrong)


def test_a_directory_in_use_or_without_its_rows_is_refused(namespace: Namespace, tmp_path: Path) -> None:
    home = tmp_path / "snapshot"
    home.mkdir()
    assert read_file_snapshot(home) is None
    no_spark: Any = None
    with locked(home), pytest.raises(PipelineError, match="another program"):
        compact_to_files(no_spark, namespace.uri, "prices", key="text", directory=home)
    mark = ReadMark(source="file:///log", log="prices", position=Position(7, 1, -1), ledger_id=3, sequence=9)
    manifest = SnapshotManifest(mark=mark, key="text", drops_tombstones=True, base=None, rows=4)
    (home / "manifest.json").write_text(manifest.encode())
    with pytest.raises(PipelineError, match="are gone"):
        read_file_snapshot(home)
