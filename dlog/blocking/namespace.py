"""A namespace without ``async``. All that are open are closed when Python ends."""

from __future__ import annotations

import atexit
import datetime
import weakref
from types import TracebackType

from dlog.blocking.closing import close_after_block
from dlog.blocking.cursors import LogCursors
from dlog.blocking.reader import LogReader
from dlog.blocking.writer import LogWriter
from dlog.config import NamespaceConfig, WriterConfig
from dlog.connect import open_namespace as open_async
from dlog.description import LogDescription, SegmentDescription
from dlog.errors import NamespaceClosedError
from dlog.format.dlsn import DLSN
from dlog.metadata.policy import Policy
from dlog.metadata.retention import Retention
from dlog.namespace_handle import Namespace as AsyncNamespace
from dlog.read.positioning import EARLIEST, Start
from dlog.read.verifier import LogVerification
from ledger.tasks.loop_thread import Held, LoopThread
from namespace.service_uri import without_user_info


class Namespace:
    """See ``dlog.Namespace``. Closed by ``close`` or the end of a ``with`` block, at the latest when
    Python ends."""

    def __init__(self, uri: str, config: NamespaceConfig | None = None, *, read_only: bool = False) -> None:
        self._loop = LoopThread(
            f"dlog {without_user_info(uri)}", NamespaceClosedError, "it was closed; open the namespace again"
        )
        self._open: weakref.WeakSet[LogWriter | LogReader] = weakref.WeakSet()
        self._is_closed = False
        try:
            self._held = Held(self._loop, open_async(uri, config=config, read_only=read_only))
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

    def create_log(self, name: str, *, exist_ok: bool = False) -> None:
        """See ``dlog.Namespace.create_log``."""
        self._loop.run(self._namespace.create_log, name, exist_ok=exist_ok)

    def delete_log(self, name: str, *, lock_timeout_s: float = 0) -> None:
        """See ``dlog.Namespace.delete_log``."""
        self._loop.run(self._namespace.delete_log, name, lock_timeout_s=lock_timeout_s)

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

    def retain_log(self, name: str) -> list[SegmentDescription]:
        """See ``dlog.Namespace.retain_log``."""
        return self._loop.run(self._namespace.retain_log, name)

    def cursors(self, name: str) -> LogCursors:
        """See ``dlog.Namespace.cursors``."""
        return LogCursors(self._loop, self._namespace.cursors(name))

    def count_records(self, name: str, *, start: DLSN | None = None) -> int:
        """See ``dlog.Namespace.count_records``."""
        return self._loop.run(self._namespace.count_records, name, start=start)

    def list_logs(self, prefix: str = "") -> list[str]:
        """See ``dlog.Namespace.list_logs``."""
        return self._loop.run(self._namespace.list_logs, prefix)

    @property
    def principal(self) -> str:
        """See ``dlog.Namespace.principal``."""
        return self._namespace.principal

    def policy(self) -> Policy | None:
        """See ``dlog.Namespace.policy``."""
        return self._loop.run(self._namespace.policy)

    def set_policy(self, policy: Policy | None) -> None:
        """See ``dlog.Namespace.set_policy``."""
        self._loop.run(self._namespace.set_policy, policy)

    def log_exists(self, name: str) -> bool:
        """See ``dlog.Namespace.log_exists``."""
        return self._loop.run(self._namespace.log_exists, name)

    def segments(self, name: str) -> list[SegmentDescription]:
        """See ``dlog.Namespace.segments``."""
        return self._loop.run(self._namespace.segments, name)

    def last_dlsn(self, name: str) -> DLSN | None:
        """See ``dlog.Namespace.last_dlsn``."""
        return self._loop.run(self._namespace.last_dlsn, name)

    def verify_log(self, name: str, *, expect_head: str | None = None) -> LogVerification:
        """See ``dlog.Namespace.verify_log``."""
        return self._loop.run(self._namespace.verify_log, name, expect_head=expect_head)

    def describe_log(self, name: str) -> LogDescription:
        """See ``dlog.Namespace.describe_log``."""
        return self._loop.run(self._namespace.describe_log, name)

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

    def open_reader(
        self,
        name: str,
        *,
        start: DLSN | int | Start | datetime.datetime = EARLIEST,
        end: DLSN | None = None,
        follow: bool = True,
        cursor: str | None = None,
    ) -> LogReader:
        """See ``dlog.Namespace.open_reader``. The reader is open; the caller closes it."""
        manager = self._namespace.open_reader(name, start=start, end=end, follow=follow, cursor=cursor)
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


def open_namespace(uri: str, *, config: NamespaceConfig | None = None, read_only: bool = False) -> Namespace:
    """See ``dlog.open_namespace``. Close the result, or use it in a ``with`` statement."""
    return Namespace(uri, config, read_only=read_only)


_namespaces: weakref.WeakSet[Namespace] = weakref.WeakSet()


def _close_all() -> None:
    for each in list(_namespaces):
        try:
            each.close()
        except Exception:
            pass  # the program ends; a recovery finds every durable record


atexit.register(_close_all)
