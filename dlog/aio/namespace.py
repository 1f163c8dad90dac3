"""A namespace for asyncio."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from dlog.aio.batches import DetachedSegmentWriter
from dlog.aio.blobs import BlobReader, BlobWriter
from dlog.aio.cursors import LogCursors
from dlog.aio.face import Face, HeldOpen, called, forwarded, opened, part
from dlog.aio.reader import LogReader
from dlog.aio.scan import Scan
from dlog.aio.segment_watch import SegmentWatch
from dlog.aio.writer import LogWriter
from dlog.backup import calls as backup
from dlog.blobs import calls as blobs
from dlog.config import NamespaceConfig
from dlog.connect import open_namespace as open_in_trio
from dlog.namespace_handle import Namespace as TrioNamespace
from dlog.operations import access, batches, policy, properties, repairs, retention
from dlog.promotion import calls as promotion
from ledger.runtime.tasks.face import Shown, described, listed, shown


class PropertyCalls(Face[properties.PropertyCalls]):
    """See ``dlog.Namespace.properties``."""

    get = forwarded(properties.PropertyCalls.get)
    change = forwarded(properties.PropertyCalls.change)


class RetentionCalls(Face[retention.RetentionCalls]):
    """See ``dlog.Namespace.retention``."""

    get = forwarded(retention.RetentionCalls.get)
    set = forwarded(retention.RetentionCalls.set)
    apply = forwarded(retention.RetentionCalls.apply)


class BatchCalls(Face[batches.BatchCalls]):
    """See ``dlog.Namespace.batches``."""

    begin = forwarded(batches.BatchCalls.begin)
    last = forwarded(batches.BatchCalls.last)
    attach = forwarded(batches.BatchCalls.attach)
    abandon = forwarded(batches.BatchCalls.abandon)
    open_segment = opened(
        batches.BatchCalls.open_segment, DetachedSegmentWriter, on_error=DetachedSegmentWriter.give_up
    )


class RepairCalls(Face[repairs.RepairCalls]):
    """See ``dlog.Namespace.repair``."""

    find_orphans = forwarded(repairs.RepairCalls.find_orphans)
    delete_orphans = forwarded(repairs.RepairCalls.delete_orphans, ledger_ids=list)
    check = forwarded(repairs.RepairCalls.check)
    apply = forwarded(repairs.RepairCalls.apply)
    heal = forwarded(repairs.RepairCalls.heal)
    recover = forwarded(repairs.RepairCalls.recover)
    verify = forwarded(repairs.RepairCalls.verify)
    verify_entries = forwarded(repairs.RepairCalls.verify_entries)


class PromotionCalls(Face[promotion.PromotionCalls]):
    """See ``dlog.Namespace.promotion``."""

    promote = forwarded(promotion.PromotionCalls.promote)
    promote_all = forwarded(promotion.PromotionCalls.promote_all, logs=listed)
    undo = forwarded(promotion.PromotionCalls.undo)
    status = forwarded(promotion.PromotionCalls.status)
    purge = forwarded(promotion.PromotionCalls.purge)


class BackupCalls(Face[backup.BackupCalls]):
    """See ``dlog.Namespace.backup``."""

    make = forwarded(backup.BackupCalls.make)
    replicate = forwarded(backup.BackupCalls.replicate)


class BlobCalls(Face[blobs.BlobCalls]):
    """See ``dlog.Namespace.blobs``."""

    put = forwarded(blobs.BlobCalls.put)
    get = forwarded(blobs.BlobCalls.get)
    describe = forwarded(blobs.BlobCalls.describe)
    list = forwarded(blobs.BlobCalls.list)
    delete = forwarded(blobs.BlobCalls.delete)
    sweep = forwarded(blobs.BlobCalls.sweep)
    open_writer = opened(blobs.BlobCalls.open_writer, BlobWriter, on_error=BlobWriter.give_up)
    open_reader = opened(blobs.BlobCalls.open_reader, BlobReader)


class PolicyCalls(Face[policy.PolicyCalls]):
    """See ``dlog.Namespace.policy``."""

    get = forwarded(policy.PolicyCalls.get)
    set = forwarded(policy.PolicyCalls.set)


class AccessCalls(Face[access.AccessCalls]):
    """See ``dlog.Namespace.access``."""

    entries = forwarded(access.AccessCalls.entries)
    set = forwarded(access.AccessCalls.set)
    enable = forwarded(access.AccessCalls.enable)


class Namespace(Face[TrioNamespace]):
    """See ``dlog.Namespace``. Made by ``open_namespace``; it belongs to the loop that opened it, where
    its calls may run concurrently."""

    uri: Shown[str] = shown(TrioNamespace.uri)
    read_only: Shown[bool] = shown(TrioNamespace.read_only)
    is_snapshot: Shown[bool] = shown(TrioNamespace.is_snapshot)
    principal: Shown[str] = shown(TrioNamespace.principal)
    config: Shown[NamespaceConfig] = shown(TrioNamespace.config)

    properties = part(TrioNamespace.properties, PropertyCalls)
    retention = part(TrioNamespace.retention, RetentionCalls)
    batches = part(TrioNamespace.batches, BatchCalls)
    repair = part(TrioNamespace.repair, RepairCalls)
    promotion = part(TrioNamespace.promotion, PromotionCalls)
    backup = part(TrioNamespace.backup, BackupCalls)
    blobs = part(TrioNamespace.blobs, BlobCalls)
    policy = part(TrioNamespace.policy, PolicyCalls)
    access = part(TrioNamespace.access, AccessCalls)

    open_writer = opened(TrioNamespace.open_writer, LogWriter)
    open_reader = opened(TrioNamespace.open_reader, LogReader)
    scan = opened(TrioNamespace.scan, Scan)
    watch_segments = opened(TrioNamespace.watch_segments, SegmentWatch)
    cursors = called(TrioNamespace.cursors, LogCursors)
    statistics = called(TrioNamespace.statistics)
    health = called(TrioNamespace.health)

    create_log = forwarded(TrioNamespace.create_log)
    delete_log = forwarded(TrioNamespace.delete_log)
    rename_log = forwarded(TrioNamespace.rename_log)
    truncate_log = forwarded(TrioNamespace.truncate_log)
    purge_log = forwarded(TrioNamespace.purge_log)
    seal_log = forwarded(TrioNamespace.seal_log)
    list_logs = forwarded(TrioNamespace.list_logs)
    log_location = forwarded(TrioNamespace.log_location)
    log_exists = forwarded(TrioNamespace.log_exists)
    segments = forwarded(TrioNamespace.segments)
    last_dlsn = forwarded(TrioNamespace.last_dlsn)
    log_identity = forwarded(TrioNamespace.log_identity)
    describe_log = forwarded(TrioNamespace.describe_log)
    entry_totals = forwarded(TrioNamespace.entry_totals, entries=list)
    count_records = forwarded(TrioNamespace.count_records)
    position_of = forwarded(TrioNamespace.position_of)


@described(open_in_trio)
def open_namespace(
    uri: str,
    *,
    config: NamespaceConfig | None = None,
    config_file: str | Path | None = None,
    settings: Mapping[str, object] | None = None,
    read_only: bool = False,
) -> AbstractAsyncContextManager[Namespace]:
    """See ``dlog.open_namespace``. The namespace belongs to the asyncio loop that opened it."""
    opening = open_in_trio(
        uri, config=config, config_file=config_file, settings=settings, read_only=read_only
    )
    return HeldOpen(opening, Namespace)
