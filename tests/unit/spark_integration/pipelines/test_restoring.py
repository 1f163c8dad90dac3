"""Restoring without Spark: every record once, wherever a run dies, and never into a log of other records."""

# covers: spark_integration/pipelines/archives/restoring.py

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import dlog
from spark_integration.errors import ArchiveDamagedError, PipelineError
from spark_integration.pipelines import Progress
from spark_integration.pipelines.archives import read_manifest
from tests.fakes.tasks_in_turn import one_by_one
from tests.unit.spark_integration.pipelines.archived_logs import (
    ArchivedLog,
    DiedError,
    dying_at,
    rows_of,
)


def orphans(orders: ArchivedLog) -> int:
    return len(orders.namespace.repair.find_orphans(older_than=datetime.timedelta()))


@pytest.mark.slow
def test_a_log_is_restored_with_its_transaction_ids_payloads_and_order(orders: ArchivedLog) -> None:
    told: list[Progress] = []
    orders.write(5, 1, 40)
    orders.run(truncate=True)
    orders.write(2)
    orders.run()
    result = orders.restore("copy", told.append)
    assert rows_of(orders.namespace, "copy") == orders.rows
    assert (result.segments, result.records, result.records_before) == (4, 48, 0)
    assert [each.records for each in told] == [0, 6, 48]
    assert (orders.namespace.repair.verify("copy")).is_sound
    assert orphans(orders) == 0
    # The log goes on as any other.
    with orders.namespace.open_writer("copy") as writer, pytest.raises(dlog.TxidOutOfOrderError):
        writer.append(b"late", txid=orders.rows[-1][0] - 1)
    with orders.namespace.open_writer("copy") as writer:
        writer.append(b"next", txid=orders.rows[-1][0])
    assert orders.restore("copy").records == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "count"), [("planned", 1), ("added to the log", 1), ("added to the log", 2)]
)
def test_a_run_that_dies_at_any_step_is_repeated_and_every_record_is_restored_once(
    orders: ArchivedLog, step: str, count: int
) -> None:
    orders.write(4, 3, 2, 5, 1)
    orders.run()
    with pytest.raises(DiedError):
        orders.restore("copy", dying_at(step, count))
    done = len(rows_of(orders.namespace, "copy"))
    orders.write(3)
    orders.run()  # the archive grows between the attempts
    result = orders.restore("copy")
    assert (result.records_before, result.records) == (done, len(orders.rows) - done)
    assert rows_of(orders.namespace, "copy") == orders.rows


@pytest.mark.slow
def test_a_driver_that_dies_after_its_tasks_restores_once(orders: ArchivedLog) -> None:
    orders.write(4, 3, 2)
    orders.run()

    def then_dies(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        one_by_one(function, items)
        raise DiedError

    with pytest.raises(DiedError):
        orders.restore("copy", tasks=then_dies)
    assert rows_of(orders.namespace, "copy") == []
    orders.restore("copy")
    assert rows_of(orders.namespace, "copy") == orders.rows


@pytest.mark.slow
def test_two_runs_at_the_same_time_restore_every_record_once(orders: ArchivedLog) -> None:
    orders.write(4, 3, 2)
    orders.run()

    def other_first(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        written = one_by_one(function, items)
        orders.restore("copy")
        return written

    with pytest.raises(PipelineError, match="another run"):
        orders.restore("copy", tasks=other_first)
    assert rows_of(orders.namespace, "copy") == orders.rows
    assert orphans(orders) == 0


@pytest.mark.slow
def test_a_log_with_other_records_is_refused_and_unchanged(orders: ArchivedLog) -> None:
    orders.write(4, 3, 2)
    orders.run()
    other = ArchivedLog(orders.namespace, orders.archive, "other")
    other.write(2)
    with pytest.raises(PipelineError, match="has 2 records"):
        orders.restore("other")
    assert rows_of(orders.namespace, "other") == other.rows
    with pytest.raises(DiedError):
        orders.restore("copy", dying_at("added to the log"))
    with orders.namespace.open_writer("copy") as writer:
        writer.append(b"between")
    with pytest.raises(PipelineError, match="restore into a new log"):
        orders.restore("copy")
    assert rows_of(orders.namespace, "copy")[:-1] == orders.rows[:7]


@pytest.mark.slow
def test_records_that_another_writer_adds_meanwhile_keep_the_step_out(orders: ArchivedLog) -> None:
    orders.write(4, 3)
    orders.run()

    def then_others_write(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        written = one_by_one(function, items)
        with orders.namespace.open_writer("copy") as writer:
            writer.append(b"other", txid=5)
        return written

    with pytest.raises(PipelineError, match="got other records"):
        orders.restore("copy", tasks=then_others_write)
    assert rows_of(orders.namespace, "copy") == [(5, b"other")]
    assert orphans(orders) == 0


@pytest.mark.slow
def test_records_that_another_writer_adds_between_two_steps_end_the_restore(orders: ArchivedLog) -> None:
    orders.write(4, 3, 2)
    orders.run()

    def others_write(progress: Progress) -> None:
        if progress.step == "added to the log":
            with orders.namespace.open_writer("copy") as writer:
                writer.append(b"other", txid=orders.rows[6][0])

    with pytest.raises(PipelineError, match="has 8 records, but 7 were restored"):
        orders.restore("copy", others_write)
    assert rows_of(orders.namespace, "copy") == [*orders.rows[:7], (orders.rows[6][0], b"other")]


@pytest.mark.slow
def test_a_damaged_file_is_never_restored(orders: ArchivedLog) -> None:
    orders.write(3, 3, 2)
    orders.run()
    first, second, _ = (orders.archive / str(each.file) for each in read_manifest(orders.archive).segments)
    second.write_bytes(first.read_bytes())
    with pytest.raises(ArchiveDamagedError):
        orders.restore("copy")
    assert rows_of(orders.namespace, "copy") == []
    assert orphans(orders) <= 1  # of the task that had ended
    second.unlink()
    with pytest.raises(ArchiveDamagedError, match="missing"):
        orders.restore("third")
    assert not orders.namespace.log_exists("third")
