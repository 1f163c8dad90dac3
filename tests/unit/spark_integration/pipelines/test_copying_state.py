"""What a copy takes over besides records: properties, the seal, cursors; and what it leaves alone."""

# covers: spark_integration/pipelines/copying/state.py

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

import dlog
import dlog.blocking
from dlog.blocking import Namespace
from dlog.blocking.namespace import BatchCalls
from dlog.read.positioning import Where
from spark_integration import client
from spark_integration.options import ClientOptions
from spark_integration.pipelines.copying import CopiedLog, copy_logs
from spark_integration.pipelines.copying.state import place_of_record
from tests.fakes.tasks_in_turn import one_by_one

SMALL = dlog.NamespaceConfig(writer=dlog.WriterConfig(segment_bytes_max=2_000, entry_bytes_target=256))


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Namespace, Namespace]]:
    monkeypatch.setattr(client, "_opened", {})
    opened = [
        dlog.blocking.open_namespace((tmp_path / name).as_uri(), config=SMALL).__enter__()
        for name in ("source", "target")
    ]
    for namespace in opened:
        client._opened[os.getpid(), namespace.uri, ClientOptions()] = namespace
    yield opened[0], opened[1]
    for namespace in opened:
        namespace.close()


def copy(places: tuple[Namespace, Namespace], log: str = "orders", *, cursors: bool = False) -> CopiedLog:
    source, target = places
    (copied,) = copy_logs(one_by_one, source.uri, target.uri, logs=[log], part_bytes=1_500, cursors=cursors)
    return copied


def write(namespace: Namespace, first: int, count: int, log: str = "orders") -> list[dlog.DLSN]:
    with namespace.open_writer(log, create=True) as writer:
        return writer.append_many([b"record %d" % number for number in range(first, first + count)])


def rest(namespace: Namespace, start: Where = dlog.EARLIEST, log: str = "orders") -> list[bytes]:
    with namespace.open_reader(log, start=start, follow=False) as reader:
        return [record.payload for record in reader]


@pytest.mark.slow
def test_the_copy_of_a_sealed_log_is_sealed_when_it_is_complete(places: tuple[Namespace, Namespace]) -> None:
    source, target = places
    write(source, 0, 100)
    assert not copy(places).is_sealed
    write(source, 100, 100)
    source.seal_log("orders")
    for _ in range(2):
        copied = copy(places)
        assert (copied.error, copied.is_sealed) == (None, True)
    with target.open_reader("orders") as reader:  # follows, and ends
        assert [record.payload for record in reader] == rest(source)
        assert reader.is_sealed
    with pytest.raises(dlog.EndOfStreamError):
        write(target, 200, 1)


@pytest.mark.slow
def test_a_log_that_is_sealed_while_it_is_copied_is_not_sealed_before_its_last_records(
    places: tuple[Namespace, Namespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = places
    write(source, 0, 100)
    attach = BatchCalls.attach

    def growing(batches: BatchCalls, *args: object, **options: object) -> object:
        monkeypatch.setattr(BatchCalls, "attach", attach)
        write(source, 100, 50)
        source.seal_log("orders")
        return attach(batches, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(BatchCalls, "attach", growing)
    first = copy(places)
    assert (first.records, first.is_sealed) == (100, False)
    second = copy(places)
    assert (second.records, second.is_sealed) == (50, True)
    assert len(rest(target)) == 150


@pytest.mark.slow
def test_an_empty_sealed_log_seals_no_log_of_other_records(places: tuple[Namespace, Namespace]) -> None:
    source, target = places
    source.create_log("orders")
    source.seal_log("orders")
    source.properties.change("orders", {"team": "billing"})
    write(target, 0, 1)
    assert "exists and is no copy" in str(copy(places).error)
    assert not target.describe_log("orders").is_sealed
    assert target.properties.get("orders").values == {}
    target.delete_log("orders")
    assert copy(places).is_sealed
    assert target.properties.get("orders").values == {"team": "billing"}


@pytest.mark.slow
def test_properties_are_copied_but_not_those_of_dlog_itself(places: tuple[Namespace, Namespace]) -> None:
    source, target = places
    write(source, 0, 10)
    source.properties.change("orders", {"team": "billing", "dlog.batch.query": "7"})
    copy(places)
    write(source, 10, 10)
    source.properties.change("orders", {"team": "shop"})
    target.properties.change("orders", {"own": "kept"})
    assert copy(places).error is None
    found = dict(target.properties.get("orders").values)
    assert found.pop("dlog.copy")
    assert found == {"team": "shop", "own": "kept", "dlog.batch.copy": found["dlog.batch.copy"]}


@pytest.mark.slow
def test_copies_of_all_shards_are_a_sharded_log(places: tuple[Namespace, Namespace]) -> None:
    source, target = places
    dlog.blocking.create_sharded_log(source, "clicks", 2)
    with dlog.blocking.open_sharded_writer(source, "clicks") as writer:
        for number in range(20):
            writer.append(b"key %d" % number, b"%d" % number)
    found = copy_logs(one_by_one, source.uri, target.uri, pattern="clicks/*")
    assert [each.error for each in found] == [None, None]
    with dlog.blocking.open_sharded_reader(target, "clicks", follow=False) as reader:
        assert sorted(int(record.payload) for _, record in reader) == list(range(20))


@pytest.mark.slow
def test_cursors_are_copied_to_the_same_records_and_never_go_back(
    places: tuple[Namespace, Namespace],
) -> None:
    source, target = places
    positions = write(source, 0, 200)
    of_source, of_target = source.cursors("orders"), target.cursors("orders")
    at = {"first": 0, "kept": 10, "middle": 77, "last": 199}
    for name, number in at.items():
        of_source.set(name, positions[number])
    of_source.set("done", positions[-1].next_slot())
    source.truncate_log("orders", positions[10])
    assert copy(places).error is None
    assert of_target.list() == []
    copy(places, cursors=True)
    for name, number in (at | {"first": 10, "done": 200}).items():
        cursor = of_target.get(name)
        assert cursor is not None
        assert rest(target, cursor.position) == [b"record %d" % each for each in range(number, 200)], name
    ahead = of_target.get("last")
    assert ahead is not None
    of_target.set("middle", ahead.position)  # a reader of the copy went on
    positions += write(source, 200, 50)
    of_source.set("done", positions[230])
    of_source.set("middle", positions[80])
    assert copy(places, cursors=True).error is None
    assert of_target.get("middle") == attrs.evolve(ahead, name="middle", version=1)
    target.truncate_log("orders", ahead.position)
    of_target.delete("first")
    assert copy(places, cursors=True).error is None
    for name, number in (("middle", 199), ("done", 230), ("first", 199)):
        cursor = of_target.get(name)
        assert cursor is not None
        assert rest(target, cursor.position) == [b"record %d" % each for each in range(number, 250)], name


@pytest.mark.slow
def test_a_record_is_found_by_its_number_in_every_entry_and_behind_large_ones(
    places: tuple[Namespace, Namespace],
) -> None:
    namespace, _ = places
    config = dlog.WriterConfig(record_bytes_max=1 << 22, entry_bytes_target=256)
    payloads = [b"record %d" % number * (300_000 if number in (3, 40) else 1) for number in range(60)]
    with namespace.open_writer("orders", create=True, config=config) as writer:
        positions = writer.append_many(payloads)
    for number in range(60):
        found = place_of_record(namespace, "orders", number)
        assert found is not None
        assert rest(namespace, found) == payloads[number:], number
    assert place_of_record(namespace, "orders", 60) == positions[-1].next_slot()
    namespace.create_log("empty")
    assert place_of_record(namespace, "empty", 0) is None
