"""Copies of logs without Spark: incremental, and each record once, wherever a copy dies."""

# covers: spark_integration/pipelines/copying/copier.py
# covers: spark_integration/pipelines/copying/note.py
# covers: spark_integration/pipelines/copying/parts.py
# covers: spark_integration/pipelines/copying/steps.py

from __future__ import annotations

import datetime
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

import dlog
import dlog.blocking
from dlog.blocking import Namespace
from dlog.blocking.namespace import BatchCalls
from spark_integration import client
from spark_integration.errors import PipelineError
from spark_integration.options import ClientOptions
from spark_integration.pipelines import Progress
from spark_integration.pipelines.copying import CopiedLog, copy_logs
from tests.fakes.tasks_in_turn import one_by_one

NAMES = ("source", "target")
SMALL = dlog.NamespaceConfig(writer=dlog.WriterConfig(segment_bytes_max=2_000, entry_bytes_target=256))


class DiedError(Exception):
    """The copy dies here."""


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Namespace, Namespace]]:
    monkeypatch.setattr(client, "_opened", {})
    opened = [
        dlog.blocking.open_namespace((tmp_path / name).as_uri(), config=SMALL).__enter__() for name in NAMES
    ]
    for namespace in opened:
        client._opened[os.getpid(), namespace.uri, ClientOptions()] = namespace
    yield opened[0], opened[1]
    for namespace in opened:
        namespace.close()


def pickled(function: Callable[[Any], Any], items: Sequence[Any], /) -> list[Any]:
    """Tasks, results and functions travel as in Spark."""
    return [pickle.loads(pickle.dumps(function(pickle.loads(pickle.dumps(item))))) for item in items]


def copy(places: tuple[Namespace, Namespace], *logs: str, **options: Any) -> list[CopiedLog]:
    source, target = places
    return copy_logs(
        options.pop("run_tasks", pickled), source.uri, target.uri, logs=logs, part_bytes=1_500, **options
    )


def write(namespace: Namespace, log: str, first: int, count: int) -> None:
    with namespace.open_writer(log, create=True) as writer:
        writer.append_many(
            [b"record %d of %s" % (number, log.encode()) for number in range(first, first + count)],
            txids=[number // 3 for number in range(first, first + count)],
        )


def records(namespace: Namespace, log: str) -> list[tuple[int, bytes]]:
    with namespace.open_reader(log, follow=False) as reader:
        return [(record.txid, record.payload) for record in reader]


def orphans(namespace: Namespace) -> int:
    return len(namespace.repair.find_orphans(older_than=datetime.timedelta()))


@pytest.mark.slow
def test_a_copy_has_the_records_and_ids_of_its_source_and_goes_on_where_it_stopped(
    places: tuple[Namespace, Namespace],
) -> None:
    source, target = places
    seen: list[Progress] = []
    for number, count in enumerate((200, 0, 150, 1)):
        before = 0 if number == 0 else len(records(source, "orders"))
        if count:
            write(source, "orders", before, count)
        (copied,) = copy(places, "orders", report=seen.append)
        assert copied.error is None
        assert (copied.records, copied.records_before) == (count, before)
        assert records(target, "orders") == records(source, "orders")
    assert target.repair.verify("orders").is_sound
    assert len(target.segments("orders")) > 5
    assert orphans(target) == 0
    assert [each.records for each in seen] == sorted(each.records for each in seen)
    assert seen[-1].records == seen[-1].records_total == 351


@pytest.mark.slow
def test_logs_of_a_pattern_are_copied_under_a_prefix_and_a_bad_one_keeps_none_back(
    places: tuple[Namespace, Namespace],
) -> None:
    source, target = places
    for log in ("shop/a", "shop/b", "shop/c", "other"):
        write(source, log, 0, 10)
    source.create_log("shop/empty")
    write(target, "of/shop/b", 0, 1)
    found = copy(places, "missing", pattern="shop/*", prefix="of/")
    assert [each.log for each in found] == ["missing", "shop/a", "shop/b", "shop/c", "shop/empty"]
    assert [each.is_complete for each in found] == [False, True, False, True, True]
    assert isinstance(found[0].error, dlog.LogNotFoundError)
    assert "exists and is no copy" in str(found[2].error)
    assert records(target, "of/shop/c") == records(source, "shop/c")
    assert len(records(target, "of/shop/b")) == 1
    assert not target.log_exists("of/other")
    for wrong in ({"pattern": "nothing*"}, {}):
        with pytest.raises(PipelineError, match="no log to copy"):
            copy(places, **wrong)
    with pytest.raises(PipelineError, match="needs a prefix"):
        copy((source, source), "other")
    assert copy((source, source), "other", prefix="old/")[0].is_complete
    assert records(source, "old/other") == records(source, "other")


@pytest.mark.slow
@pytest.mark.parametrize("step", range(6))
def test_a_copy_that_dies_at_any_step_is_completed_by_the_next_and_repeats_nothing(
    places: tuple[Namespace, Namespace], monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    source, _ = places
    write(source, "orders", 0, 300)
    calls = 0

    def dying(function: Callable[[Any], Any], items: Sequence[Any], /) -> list[Any]:
        nonlocal calls
        calls += 1
        found = pickled(function, items[:1]) if calls == step else pickled(function, items)
        if calls == step:
            raise DiedError  # some tasks are over, and no part is attached
        return found

    attach = BatchCalls.attach

    def attach_and_die(batches: BatchCalls, *args: Any, **options: Any) -> Any:
        attached = attach(batches, *args, **options)
        if calls == step - 3:
            raise DiedError  # attached, and the program does not know
        return attached

    with monkeypatch.context() as patched:
        patched.setattr(BatchCalls, "attach", attach_and_die)
        if step:
            with pytest.raises(DiedError):
                copy(places, "orders", run_tasks=dying, cores=1)
    (copied,) = copy(places, "orders", cores=1)
    assert copied.error is None
    assert records(places[1], "orders") == records(source, "orders")


@pytest.mark.slow
def test_two_copies_at_once_copy_each_record_once(places: tuple[Namespace, Namespace]) -> None:
    source, target = places
    write(source, "orders", 0, 200)
    others: list[CopiedLog] = []

    def overtaken(function: Callable[[Any], Any], items: Sequence[Any], /) -> list[Any]:
        found = one_by_one(function, items)
        if not others:
            others.extend(copy(places, "orders"))
        return found

    (copied,) = copy(places, "orders", run_tasks=overtaken)
    assert copied.error is None
    assert copied.records == 0
    assert others[0].records == 200
    assert records(target, "orders") == records(source, "orders")
    assert orphans(target) == 0


@pytest.mark.slow
def test_a_source_truncated_behind_the_copied_records_is_an_error(
    places: tuple[Namespace, Namespace],
) -> None:
    source, target = places
    write(source, "orders", 0, 100)
    copy(places, "orders")
    write(source, "orders", 100, 100)
    kept = source.segments("orders")[-1].segment_seqno
    source.truncate_log("orders", dlog.DLSN(kept, 0, 0))
    (copied,) = copy(places, "orders")
    assert "truncated behind the last record that was read" in str(copied.error)
    source.purge_log("orders")
    (copied,) = copy(places, "orders")
    assert "truncated behind the last record that was read" in str(copied.error)
    assert len(records(target, "orders")) == 100


@pytest.mark.slow
def test_a_source_truncated_up_to_the_copied_records_is_copied_on(
    places: tuple[Namespace, Namespace],
) -> None:
    source, target = places
    write(source, "orders", 0, 100)
    copy(places, "orders")
    last = source.segments("orders")[-1]
    write(source, "orders", 100, 100)
    expected = records(source, "orders")
    source.truncate_log("orders", dlog.DLSN(last.segment_seqno + 1, 0, 0))
    assert copy(places, "orders")[0].is_complete
    write(source, "orders", 200, 1)
    source.purge_log("orders")
    assert last.segment_seqno < source.segments("orders")[0].segment_seqno
    assert copy(places, "orders")[0].is_complete
    assert records(target, "orders") == [*expected, *records(source, "orders")[-1:]]


@pytest.mark.slow
def test_the_segment_of_the_position_may_be_purged_if_all_before_the_next_is_copied(
    places: tuple[Namespace, Namespace],
) -> None:
    source, target = places
    write(source, "orders", 0, 100)
    copy(places, "orders")
    first_new = source.segments("orders")[-1].segment_seqno + 1
    write(source, "orders", 100, 100)
    expected = records(source, "orders")
    source.truncate_log("orders", dlog.DLSN(first_new, 0, 0))
    source.purge_log("orders")
    assert source.segments("orders")[0].segment_seqno == first_new
    assert copy(places, "orders")[0].is_complete
    assert records(target, "orders") == expected


@pytest.mark.slow
def test_a_source_of_which_all_records_are_truncated_and_purged_is_copied_on(
    places: tuple[Namespace, Namespace],
) -> None:
    source, target = places
    for first in (0, 50):
        write(source, "orders", first, 50)
    copy(places, "orders")
    source.truncate_log("orders", dlog.DLSN(100, 0, 0))
    source.purge_log("orders")
    assert records(source, "orders") == []
    write(source, "orders", 100, 50)
    source.purge_log("orders")
    assert copy(places, "orders")[0].is_complete
    assert len(records(target, "orders")) == 150


@pytest.mark.slow
def test_a_source_created_again_and_a_copy_of_another_source_are_errors(
    places: tuple[Namespace, Namespace],
) -> None:
    source, target = places
    write(source, "orders", 0, 100)
    copy(places, "orders")
    (copied,) = copy(places, "orders", source_name="elsewhere")
    assert "is a copy of 'orders' in file:" in str(copied.error)
    source.delete_log("orders")
    write(source, "orders", 0, 200)
    (copied,) = copy(places, "orders")
    assert "was deleted and created again" in str(copied.error)
    source.delete_log("orders")
    write(source, "orders", 0, 1)
    (copied,) = copy(places, "orders")
    assert "was deleted and created again" in str(copied.error)
    assert len(records(target, "orders")) == 100
    target.properties.change("orders", {"dlog.copy": "{}"})
    (copied,) = copy(places, "orders")
    assert "is no note of a copy" in str(copied.error)
    target.properties.change("orders", {"dlog.copy": None})
    (copied,) = copy(places, "orders")
    assert "do not show the last copied batch" in str(copied.error)


@pytest.mark.slow
def test_a_part_that_cannot_be_copied_is_named_and_leaves_nothing(
    places: tuple[Namespace, Namespace],
) -> None:
    source, target = places
    write(source, "orders", 0, 200)

    def truncating(function: Callable[[Any], Any], items: Sequence[Any], /) -> list[Any]:
        source.truncate_log("orders", dlog.DLSN(source.segments("orders")[-1].segment_seqno, 0, 0))
        return one_by_one(function, items)

    (copied,) = copy(places, "orders", run_tasks=truncating)
    assert "'orders' in file:" in str(copied.error)
    assert "truncated" in str(copied.error)
    assert records(target, "orders") == []
    assert orphans(target) == 0


@pytest.mark.slow
def test_tasks_hold_no_open_namespace(places: tuple[Namespace, Namespace]) -> None:
    write(places[0], "orders", 0, 10)
    kept: list[Any] = []

    def keep(function: Callable[[Any], Any], items: Sequence[Any], /) -> list[Any]:
        kept.extend(items)
        return one_by_one(function, items)

    copy(places, "orders", run_tasks=keep)
    assert pickle.loads(pickle.dumps(kept)) == kept
    assert attrs.asdict(kept[0])["log"] == "orders"


def test_a_copy_keeps_keys_and_headers(places: tuple[Namespace, Namespace]) -> None:
    source, target = places
    with source.open_writer("orders", create=True) as writer:
        writer.append_many([b"0", b"1", b"2"], keys=[b"k", None, None], headers=[None, {"a": b"1"}, None])
    copy(places, "orders")
    with target.open_reader("orders", follow=False) as reader:
        found = [(each.payload, each.key, dict(each.headers)) for each in reader]
    assert found == [(b"0", b"k", {}), (b"1", None, {"a": b"1"}), (b"2", None, {})]
