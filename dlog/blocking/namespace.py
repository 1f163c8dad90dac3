"""A namespace without ``async``. All that are open are closed when Python ends."""

from __future__ import annotations

import atexit
import datetime
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol

from dlog.blocking.batches import DetachedSegmentWriter
from dlog.blocking.closing import close_after_block
from dlog.blocking.cursors import LogCursors
from dlog.blocking.reader import LogReader
from dlog.blocking.writer import LogWriter
from dlog.bulk.plan import AttachedBatch, BatchPlan, DetachedSegment
from dlog.config import NamespaceConfig, WriterConfig
from dlog.connect import open_namespace as open_async
from dlog.description import EntryTotals, LogDescription, SegmentDescription
from dlog.errors import NamespaceClosedError
from dlog.namespace_handle import Namespace as AsyncNamespace
from dlog.operations.maintenance import SAFE_AGE
from dlog.promotion.sides import PromotionProgress, PromotionStatus
from dlog.read.entry_verifier import EntryVerification
from dlog.read.positioning import EARLIEST, Where
from dlog.read.verifier import LogVerification
from dlog.repair.mending import LogCheck, LogRepair
from dlog.repair.orphans import OrphanLedger, OrphanOutcome
from ledger.metadata_store.service_uri import without_user_info
from ledger.runtime.statistics import Statistics
from ledger.runtime.tasks.loop_thread import Held, LoopThread
from namespace.access_control.entries import Denial
from namespace.access_control.nodes import AccessControlEntries
from namespace.dlsn import DLSN
from namespace.policy import Policy
from namespace.properties import LogProperties
from namespace.segments.retention import Retention


class SupportsClose(Protocol):
    """A writer, a reader or another object of the namespace that is closed before it."""

    def close(self) -> None:
        """Close it. Idempotent."""


class Namespace:
    """See ``dlog.Namespace``. Closed by ``close`` or the end of a ``with`` block, at the latest when
    Python ends."""

    def __init__(
        self,
        uri: str,
        config: NamespaceConfig | None = None,
        *,
        config_file: str | Path | None = None,
        settings: Mapping[str, object] | None = None,
        read_only: bool = False,
    ) -> None:
        self._loop = LoopThread(
            f"dlog {without_user_info(uri)}", NamespaceClosedError, "it was closed; open the namespace again"
        )
        self._open: weakref.WeakSet[SupportsClose] = weakref.WeakSet()
        self._is_closed = False
        try:
            opening = open_async(
                uri, config=config, config_file=config_file, settings=settings, read_only=read_only
            )
            self._held = Held(self._loop, opening)
        except BaseException:
            self._loop.stop()
            raise
        self._namespace: AsyncNamespace = self._held.value
        self.read_only, self.is_snapshot = self._namespace.read_only, self._namespace.is_snapshot
        _namespaces.add(self)

    def __repr__(self) -> str:
        return f"<blocking {repr(self._namespace)[1:]}"

    @property
    def uri(self) -> str:
        """The URI as passed to ``open_namespace``."""
        return self._namespace.uri

    def statistics(self) -> Statistics:
        """See ``dlog.Namespace.statistics``."""

        async def read() -> Statistics:
            return self._namespace.statistics()

        return self._loop.run(read)

    def create_log(self, name: str, *, exist_ok: bool = False) -> None:
        """See ``dlog.Namespace.create_log``."""
        self._loop.run(self._namespace.create_log, name, exist_ok=exist_ok)

    def delete_log(self, name: str, *, lock_timeout_s: float = 0) -> None:
        """See ``dlog.Namespace.delete_log``."""
        self._loop.run(self._namespace.delete_log, name, lock_timeout_s=lock_timeout_s)

    def rename_log(self, old: str, new: str, *, lock_timeout_s: float = 0) -> None:
        """See ``dlog.Namespace.rename_log``."""
        self._loop.run(self._namespace.rename_log, old, new, lock_timeout_s=lock_timeout_s)

    def truncate_log(self, name: str, before: DLSN) -> DLSN | None:
        """See ``dlog.Namespace.truncate_log``."""
        return self._loop.run(self._namespace.truncate_log, name, before)

    def purge_log(self, name: str, *, dry_run: bool = False) -> list[SegmentDescription]:
        """See ``dlog.Namespace.purge_log``."""
        return self._loop.run(self._namespace.purge_log, name, dry_run=dry_run)

    def retention(self, name: str) -> Retention | None:
        """See ``dlog.Namespace.retention``."""
        return self._loop.run(self._namespace.retention, name)

    def set_retention(self, name: str, retention: Retention | None) -> None:
        """See ``dlog.Namespace.set_retention``."""
        self._loop.run(self._namespace.set_retention, name, retention)

    def properties(self, name: str) -> LogProperties:
        """See ``dlog.Namespace.properties``."""
        return self._loop.run(self._namespace.properties, name)

    def change_properties(
        self, name: str, changes: Mapping[str, str | None], *, expected: LogProperties | None = None
    ) -> LogProperties:
        """See ``dlog.Namespace.change_properties``."""
        return self._loop.run(self._namespace.change_properties, name, changes, expected=expected)

    def retain_log(self, name: str) -> list[SegmentDescription]:
        """See ``dlog.Namespace.retain_log``."""
        return self._loop.run(self._namespace.retain_log, name)

    def check_log(
        self,
        name: str,
        *,
        read_ledgers: bool = True,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> LogCheck:
        """See ``dlog.Namespace.check_log``."""
        return self._loop.run(
            self._namespace.check_log, name, read_ledgers=read_ledgers, on_progress=on_progress
        )

    def repair_log(self, name: str, *, lock_timeout_s: float = 0) -> LogRepair:
        """See ``dlog.Namespace.repair_log``."""
        return self._loop.run(self._namespace.repair_log, name, lock_timeout_s=lock_timeout_s)

    def heal_log(
        self,
        name: str,
        *,
        keep: datetime.timedelta | None = None,
        on_copied: Callable[[int], None] | None = None,
    ) -> list[SegmentDescription]:
        """See ``dlog.Namespace.heal_log``."""
        return self._loop.run(self._namespace.heal_log, name, keep=keep, on_copied=on_copied)

    def recover_log(self, name: str, *, lock_timeout_s: float = 0) -> list[SegmentDescription]:
        """See ``dlog.Namespace.recover_log``."""
        return self._loop.run(self._namespace.recover_log, name, lock_timeout_s=lock_timeout_s)

    def find_orphans(
        self,
        *,
        older_than: datetime.timedelta = SAFE_AGE,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[OrphanLedger]:
        """See ``dlog.Namespace.find_orphans``."""
        return self._loop.run(self._namespace.find_orphans, older_than=older_than, on_progress=on_progress)

    def delete_orphans(
        self,
        ledger_ids: Iterable[int],
        *,
        older_than: datetime.timedelta = SAFE_AGE,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[OrphanOutcome]:
        """See ``dlog.Namespace.delete_orphans``."""
        return self._loop.run(
            self._namespace.delete_orphans, ledger_ids, older_than=older_than, on_progress=on_progress
        )

    def cursors(self, name: str) -> LogCursors:
        """See ``dlog.Namespace.cursors``."""
        return LogCursors(self._loop, self._namespace.cursors(name))

    def count_records(self, name: str, *, start: DLSN | None = None, end: DLSN | None = None) -> int:
        """See ``dlog.Namespace.count_records``."""
        return self._loop.run(self._namespace.count_records, name, start=start, end=end)

    def promote_log(
        self,
        name: str,
        to: str | None = None,
        *,
        keep_target_policy: bool = False,
        on_progress: Callable[[PromotionProgress], None] = lambda _: None,
    ) -> PromotionStatus:
        """See ``dlog.Namespace.promote_log``. ``on_progress`` is called in another thread."""
        return self._loop.run(
            self._namespace.promote_log,
            name,
            to,
            keep_target_policy=keep_target_policy,
            on_progress=on_progress,
        )

    def undo_promotion(self, name: str, to: str | None = None) -> None:
        """See ``dlog.Namespace.undo_promotion``."""
        self._loop.run(self._namespace.undo_promotion, name, to)

    def promotion(self, name: str) -> PromotionStatus | None:
        """See ``dlog.Namespace.promotion``."""
        return self._loop.run(self._namespace.promotion, name)

    def purge_promoted_log(self, name: str) -> int:
        """See ``dlog.Namespace.purge_promoted_log``."""
        return self._loop.run(self._namespace.purge_promoted_log, name)

    def list_logs(self, prefix: str = "", *, pattern: str | None = None) -> list[str]:
        """See ``dlog.Namespace.list_logs``."""
        return self._loop.run(self._namespace.list_logs, prefix, pattern=pattern)

    @property
    def principal(self) -> str:
        """See ``dlog.Namespace.principal``."""
        return self._namespace.principal

    def access_control(self) -> AccessControlEntries:
        """See ``dlog.Namespace.access_control``."""
        return self._loop.run(self._namespace.access_control)

    def set_access_control(self, name: str | None, denied: frozenset[Denial] | None) -> None:
        """See ``dlog.Namespace.set_access_control``."""
        self._loop.run(self._namespace.set_access_control, name, denied)

    def enable_access_control(self) -> None:
        """See ``dlog.Namespace.enable_access_control``."""
        self._loop.run(self._namespace.enable_access_control)

    def policy(self) -> Policy | None:
        """See ``dlog.Namespace.policy``."""
        return self._loop.run(self._namespace.policy)

    def set_policy(self, policy: Policy | None) -> None:
        """See ``dlog.Namespace.set_policy``."""
        self._loop.run(self._namespace.set_policy, policy)

    def seal_log(self, name: str, *, lock_timeout_s: float = 0) -> None:
        """See ``dlog.Namespace.seal_log``."""
        self._loop.run(self._namespace.seal_log, name, lock_timeout_s=lock_timeout_s)

    def log_location(self, name: str) -> str:
        """See ``dlog.Namespace.log_location``."""
        return self._loop.run(self._namespace.log_location, name)

    def log_exists(self, name: str) -> bool:
        """See ``dlog.Namespace.log_exists``."""
        return self._loop.run(self._namespace.log_exists, name)

    def segments(self, name: str) -> list[SegmentDescription]:
        """See ``dlog.Namespace.segments``."""
        return self._loop.run(self._namespace.segments, name)

    def last_dlsn(self, name: str) -> DLSN | None:
        """See ``dlog.Namespace.last_dlsn``."""
        return self._loop.run(self._namespace.last_dlsn, name)

    def log_identity(self, name: str) -> str | None:
        """See ``dlog.Namespace.log_identity``."""
        return self._loop.run(self._namespace.log_identity, name)

    def verify_log(self, name: str, *, expect_head: str | None = None) -> LogVerification:
        """See ``dlog.Namespace.verify_log``."""
        return self._loop.run(self._namespace.verify_log, name, expect_head=expect_head)

    def verify_entries(
        self, name: str, segment_seqno: int, *, first_entry_id: int = 0, last_entry_id: int | None = None
    ) -> EntryVerification:
        """See ``dlog.Namespace.verify_entries``."""
        return self._loop.run(
            self._namespace.verify_entries,
            name,
            segment_seqno,
            first_entry_id=first_entry_id,
            last_entry_id=last_entry_id,
        )

    def describe_log(self, name: str) -> LogDescription:
        """See ``dlog.Namespace.describe_log``."""
        return self._loop.run(self._namespace.describe_log, name)

    def entry_totals(self, name: str, entries: Iterable[tuple[int, int]]) -> list[EntryTotals | None]:
        """See ``dlog.Namespace.entry_totals``."""
        return self._loop.run(self._namespace.entry_totals, name, entries)

    def open_writer(
        self,
        name: str,
        *,
        create: bool = False,
        lock_timeout_s: float | None = None,
        config: WriterConfig | None = None,
    ) -> LogWriter:
        """See ``dlog.Namespace.open_writer``. The writer is open; the caller closes it."""
        manager = self._namespace.open_writer(
            name, create=create, lock_timeout_s=lock_timeout_s, config=config
        )
        writer = LogWriter(self._loop, manager)
        self._open.add(writer)
        return writer

    def begin_batch(
        self,
        logs: Iterable[str],
        *,
        series: str | None = None,
        number: int = 0,
        record_log: str | None = None,
        lock_timeout_s: float = 0,
    ) -> BatchPlan | None:
        """See ``dlog.Namespace.begin_batch``."""
        return self._loop.run(
            self._namespace.begin_batch,
            logs,
            series=series,
            number=number,
            record_log=record_log,
            lock_timeout_s=lock_timeout_s,
        )

    def last_batch(self, series: str, record_log: str) -> int | None:
        """See ``dlog.Namespace.last_batch``."""
        return self._loop.run(self._namespace.last_batch, series, record_log)

    def open_detached_segment(self, plan: BatchPlan, log: str) -> DetachedSegmentWriter:
        """See ``dlog.Namespace.open_detached_segment``. The writer is open; the caller closes it."""
        writer = DetachedSegmentWriter(self._loop, self._namespace.open_detached_segment(plan, log))
        self._open.add(writer)
        return writer

    def attach_batch(
        self,
        plan: BatchPlan,
        segments: Sequence[DetachedSegment],
        *,
        properties: Mapping[str, str] | None = None,
        adopt_unmarked: bool = False,
        lock_timeout_s: float = 0,
    ) -> AttachedBatch:
        """See ``dlog.Namespace.attach_batch``."""
        return self._loop.run(
            self._namespace.attach_batch,
            plan,
            segments,
            properties=properties,
            adopt_unmarked=adopt_unmarked,
            lock_timeout_s=lock_timeout_s,
        )

    def abandon_batch(
        self, plan: BatchPlan, segments: Sequence[DetachedSegment], *, lock_timeout_s: float = 0
    ) -> list[int]:
        """See ``dlog.Namespace.abandon_batch``."""
        return self._loop.run(self._namespace.abandon_batch, plan, segments, lock_timeout_s=lock_timeout_s)

    def open_reader(
        self,
        name: str,
        *,
        start: Where = EARLIEST,
        end: Where | None = None,
        follow: bool = True,
        cursor: str | None = None,
        gaps: bool = False,
    ) -> LogReader:
        """See ``dlog.Namespace.open_reader``. The reader is open; the caller closes it."""
        manager = self._namespace.open_reader(
            name, start=start, end=end, follow=follow, cursor=cursor, gaps=gaps
        )
        reader = LogReader(self._loop, manager)
        self._open.add(reader)
        return reader

    def close(self) -> None:
        """Close all open writers and readers, then the namespace. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        _namespaces.discard(self)
        error: Exception | None = None
        try:
            for each in list(self._open):
                try:
                    each.close()
                except Exception as exc:
                    error = error or exc
            self._held.release()
        finally:
            self._loop.stop()
        if error is not None:
            raise error

    def __enter__(self) -> Namespace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        close_after_block(self.close, exc)


def open_namespace(
    uri: str,
    *,
    config: NamespaceConfig | None = None,
    config_file: str | Path | None = None,
    settings: Mapping[str, object] | None = None,
    read_only: bool = False,
) -> Namespace:
    """See ``dlog.open_namespace``. Close the result, or use it in a ``with`` statement."""
    return Namespace(uri, config, config_file=config_file, settings=settings, read_only=read_only)


_namespaces: weakref.WeakSet[Namespace] = weakref.WeakSet()


def _close_all() -> None:
    for each in list(_namespaces):
        try:
            each.close()
        except Exception:
            pass  # the program ends; a recovery finds every durable record


atexit.register(_close_all)
