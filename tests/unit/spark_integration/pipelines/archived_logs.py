"""Logs in a directory and runs of their pipelines in this process, for tests without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dlog
import dlog.blocking
from spark_integration.pipelines import Progress, Report, ignore_progress
from spark_integration.pipelines.archives.archiving import ArchiveResult, ArchiveRun, named_log
from spark_integration.pipelines.archives.directory import ArchiveDirectory
from spark_integration.pipelines.archives.restoring import RestoreResult, RestoreRun
from tests.fakes.tasks_in_turn import one_by_one

Row = tuple[int, bytes]  # transaction id, payload


class DiedError(Exception):
    """The driver of a pipeline died, as far as anything outside can see."""


def dying_at(step: str, count: int = 1) -> Report:
    """A report that dies when it is called for a step the ``count``-th time."""
    left = count

    def report(progress: Progress) -> None:
        nonlocal left
        left -= progress.step == step
        if not left:
            raise DiedError(step)

    return report


class ArchivedLog:
    """A log with its archive and the rows that were written to it."""

    def __init__(self, namespace: dlog.blocking.Namespace, archive: Path, log: str = "orders") -> None:
        self.namespace, self.archive, self.log = namespace, archive, log
        self.rows: list[Row] = []
        namespace.create_log(log)

    def write(self, *counts: int) -> None:
        """Write a segment of each size. Every third record is of the transaction before it."""
        for count in counts:
            first = len(self.rows)
            rows = [(10 + number // 3, b"%d:" % number * 9) for number in range(first, first + count)]
            with self.namespace.open_writer(self.log) as writer:
                writer.append_many([payload for _, payload in rows], txids=[txid for txid, _ in rows])
            self.rows += rows

    def run(
        self,
        report: Report = ignore_progress,
        *,
        truncate: bool = False,
        tasks: Any = one_by_one,
        step: int = 2,
        **more: Any,
    ) -> ArchiveResult:
        """Archive it, two segments a step."""
        directory = ArchiveDirectory.at(self.archive)
        log = named_log(self.namespace.uri, self.log, {"readTimeoutMs": "20000"})
        return ArchiveRun(log, directory, tasks, report, segments_per_step=step).do(truncate=truncate, **more)

    def restore(
        self, target: str, report: Report = ignore_progress, *, tasks: Any = one_by_one
    ) -> RestoreResult:
        """Restore its archive into a log of the same namespace, two segments a step."""
        directory = ArchiveDirectory.at(self.archive)
        log = named_log(self.namespace.uri, target, None)
        return RestoreRun(log, directory, tasks, report, segments_per_step=2).do()

    def files(self) -> set[str]:
        """The files of data in the archive."""
        data = self.archive / "data"
        return {each.relative_to(self.archive).as_posix() for each in data.glob("*/*")}


def rows_of(namespace: dlog.blocking.Namespace, log: str) -> list[Row]:
    with namespace.open_reader(log, follow=False) as reader:
        return [(record.txid, record.payload) for record in reader]
