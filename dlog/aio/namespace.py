"""A namespace for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from dlog.aio.batches import DetachedSegmentWriter
from dlog.aio.bridge import Bridge, Held, passed
from dlog.aio.reader import LogReader
from dlog.aio.writer import LogWriter
from dlog.bulk.plan import BatchPlan
from dlog.config import NamespaceConfig, WriterConfig
from dlog.connect import open_namespace as open_in_trio
from dlog.namespace_handle import Namespace as TrioNamespace
from dlog.read.cursors import LogCursors as TrioLogCursors
from dlog.read.positioning import EARLIEST, Where
from ledger.runtime.statistics import Statistics


class LogCursors:
    """See ``dlog.LogCursors``."""

    def __init__(self, bridge: Bridge, inner: TrioLogCursors) -> None:
        self._bridge, self._inner = bridge, inner
        self.log = inner.log

    def __repr__(self) -> str:
        return f"<asyncio {repr(self._inner)[1:]}"

    list = passed(TrioLogCursors.list)
    get = passed(TrioLogCursors.get)
    set = passed(TrioLogCursors.set)
    delete = passed(TrioLogCursors.delete)
    lag = passed(TrioLogCursors.lag)


class Namespace:
    """See ``dlog.Namespace``. Made by ``open_namespace``; its calls may run concurrently in one loop."""

    def __init__(self, bridge: Bridge, inner: TrioNamespace) -> None:
        self._bridge, self._inner = bridge, inner
        self.uri, self.read_only, self.is_snapshot = inner.uri, inner.read_only, inner.is_snapshot

    def __repr__(self) -> str:
        return f"<asyncio {repr(self._inner)[1:]}"

    @property
    def principal(self) -> str:
        """See ``dlog.Namespace.principal``."""
        return self._inner.principal

    def statistics(self) -> Statistics:
        """See ``dlog.Namespace.statistics``."""
        return self._inner.statistics()

    create_log = passed(TrioNamespace.create_log)
    delete_log = passed(TrioNamespace.delete_log)
    rename_log = passed(TrioNamespace.rename_log)
    truncate_log = passed(TrioNamespace.truncate_log)
    purge_log = passed(TrioNamespace.purge_log)
    retention = passed(TrioNamespace.retention)
    set_retention = passed(TrioNamespace.set_retention)
    properties = passed(TrioNamespace.properties)
    change_properties = passed(TrioNamespace.change_properties)
    retain_log = passed(TrioNamespace.retain_log)
    begin_batch = passed(TrioNamespace.begin_batch)
    last_batch = passed(TrioNamespace.last_batch)
    attach_batch = passed(TrioNamespace.attach_batch)
    abandon_batch = passed(TrioNamespace.abandon_batch)
    promote_log = passed(TrioNamespace.promote_log)
    undo_promotion = passed(TrioNamespace.undo_promotion)
    promotion = passed(TrioNamespace.promotion)
    purge_promoted_log = passed(TrioNamespace.purge_promoted_log)
    check_log = passed(TrioNamespace.check_log)
    repair_log = passed(TrioNamespace.repair_log)
    heal_log = passed(TrioNamespace.heal_log)
    recover_log = passed(TrioNamespace.recover_log)
    find_orphans = passed(TrioNamespace.find_orphans)
    delete_orphans = passed(TrioNamespace.delete_orphans)
    seal_log = passed(TrioNamespace.seal_log)
    list_logs = passed(TrioNamespace.list_logs)
    log_location = passed(TrioNamespace.log_location)
    log_exists = passed(TrioNamespace.log_exists)
    segments = passed(TrioNamespace.segments)
    last_dlsn = passed(TrioNamespace.last_dlsn)
    log_identity = passed(TrioNamespace.log_identity)
    verify_log = passed(TrioNamespace.verify_log)
    verify_entries = passed(TrioNamespace.verify_entries)
    describe_log = passed(TrioNamespace.describe_log)
    entry_totals = passed(TrioNamespace.entry_totals)
    count_records = passed(TrioNamespace.count_records)
    access_control = passed(TrioNamespace.access_control)
    set_access_control = passed(TrioNamespace.set_access_control)
    enable_access_control = passed(TrioNamespace.enable_access_control)
    policy = passed(TrioNamespace.policy)
    set_policy = passed(TrioNamespace.set_policy)

    def cursors(self, name: str) -> LogCursors:
        """See ``dlog.Namespace.cursors``."""
        return LogCursors(self._bridge, self._inner.cursors(name))

    @asynccontextmanager
    async def open_writer(
        self,
        name: str,
        *,
        create: bool = False,
        lock_timeout_s: float | None = None,
        config: WriterConfig | None = None,
    ) -> AsyncIterator[LogWriter]:
        """See ``dlog.Namespace.open_writer``."""
        manager = self._inner.open_writer(name, create=create, lock_timeout_s=lock_timeout_s, config=config)
        held = Held(self._bridge, manager)
        writer = LogWriter(self._bridge, await held.open())
        async with closing(held):
            yield writer

    @asynccontextmanager
    async def open_detached_segment(self, plan: BatchPlan, log: str) -> AsyncIterator[DetachedSegmentWriter]:
        """See ``dlog.Namespace.open_detached_segment``."""
        held = Held(self._bridge, self._inner.open_detached_segment(plan, log))
        writer = DetachedSegmentWriter(self._bridge, await held.open())
        async with closing(held):
            try:
                yield writer
            except BaseException:
                writer.give_up()
                raise

    @asynccontextmanager
    async def open_reader(
        self,
        name: str,
        *,
        start: Where = EARLIEST,
        end: Where | None = None,
        follow: bool = True,
        cursor: str | None = None,
        gaps: bool = False,
    ) -> AsyncIterator[LogReader]:
        """See ``dlog.Namespace.open_reader``."""
        manager = self._inner.open_reader(name, start=start, end=end, follow=follow, cursor=cursor, gaps=gaps)
        held = Held(self._bridge, manager)
        reader = LogReader(self._bridge, await held.open())
        async with closing(held):
            yield reader


@asynccontextmanager
async def open_namespace(
    uri: str,
    *,
    config: NamespaceConfig | None = None,
    config_file: str | Path | None = None,
    settings: Mapping[str, object] | None = None,
    read_only: bool = False,
) -> AsyncIterator[Namespace]:
    """See ``dlog.open_namespace``. The namespace belongs to the asyncio loop that opened it."""
    bridge = Bridge.of_running_loop()
    await bridge.acquire()
    try:
        opening = open_in_trio(
            uri, config=config, config_file=config_file, settings=settings, read_only=read_only
        )
        held = Held(bridge, opening)
        namespace = Namespace(bridge, await held.open())
        async with closing(held):
            yield namespace
    finally:
        await bridge.release()


@asynccontextmanager
async def closing(held: Held[Any]) -> AsyncIterator[None]:
    """Close at the end of the block. If the block raised, its error is raised, not one of closing."""
    try:
        yield
    except BaseException:
        try:
            await held.close()
        except Exception:
            pass
        raise
    await held.close()
