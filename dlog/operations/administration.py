"""Changing the logs of a namespace as a whole: creating, deleting, truncating, purging.

Inside: the checks before each change, its steps, and its record in the audit log. Not inside: writing records
(``log_writer``), the rules of space (``write.space``), questions about logs (``queries``).
Always: each change is permitted by the policy and recorded in the audit log.

Source: DistributedLog, BKDistributedLogNamespace.java, BKDistributedLogManager.java.
"""

from __future__ import annotations

import secrets

from dlog.context import NamespaceContext
from dlog.description import SegmentDescription
from dlog.errors import LogFencedError, LogInUseError, LogNotFoundError, translated
from dlog.format.arguments import as_dlsn
from dlog.ownership import NamedByLog, delete_ledger, delete_replaced, drop_unfinished
from dlog.write import space
from ledger.metadata_store.store import MetadataStore
from ledger.runtime.audit import audited_async
from namespace import logs, segment_nodes
from namespace.access_control.entries import Denial
from namespace.dlsn import DLSN
from namespace.log_identity import new_log_id
from namespace.policy import Right
from namespace.segments.segment import LogSegment
from namespace.segments.truncation import first_left


async def create_log(context: NamespaceContext, name: str, *, exist_ok: bool) -> None:
    """See ``Namespace.create_log``."""
    name = await context.permitted(name, Right.WRITE)
    # Without ``exist_ok`` the log must be ours: not the one of a client that was faster.
    token = b"" if exist_ok else secrets.token_hex(16).encode()
    log_id = new_log_id()
    await context.change(
        name,
        "creating it",
        lambda: logs.create_log(context.nodes(name), exist_ok=exist_ok, token=token, log_id=log_id),
    )


async def delete_log(context: NamespaceContext, name: str, *, lock_timeout_s: float = 0) -> None:
    """See ``Namespace.delete_log``."""
    name = context.checked(name, Right.ADMIN)
    with translated(name, "deleting it"):
        async with audited_async("delete log", f"{context.uri} {name}"):
            await context.permitted(name, Right.ADMIN, Denial.DELETE)
            has_begun = False

            async def delete() -> None:
                nonlocal has_begun
                try:
                    async with context.locked(name, lock_timeout_s) as lock:
                        has_begun = True
                        await _delete(context, name, lock.session)
                except LogNotFoundError:
                    if not has_begun:
                        raise
                    # Otherwise the attempt before deleted it, and its reply was lost.

            await context.change(name, "deleting it", delete)


async def _delete(context: NamespaceContext, name: str, store: MetadataStore) -> None:
    await context.location(name).check_stays("not deleted")
    log = context.nodes(name, store)
    metadata = await logs.open_log(log)
    listed = await segment_nodes.list_segments(log, gaps_ok=True)
    # Ledgers first. The next attempt finds a node without its ledger; it cannot find a ledger without a
    # node.
    for segment in listed.segments:
        claim = NamedByLog.as_segment(log, segment.name)
        await delete_ledger(context.client, segment.ledger_id, claim)
        try:
            await segment_nodes.delete_segment(log, segment)
        except LogFencedError as exc:
            raise LogInUseError(name, exc.evidence) from exc
    await drop_unfinished(log, context.client)
    await delete_replaced(log, context.client, now_ms=None)
    if metadata.allocated_ledger_id is not None:
        claim = NamedByLog.as_allocated(log)
        await delete_ledger(context.client, metadata.allocated_ledger_id, claim)
    await logs.delete_log_nodes(log)


async def truncate_log(context: NamespaceContext, name: str, before: DLSN) -> DLSN | None:
    """See ``Namespace.truncate_log``."""
    name, before = context.checked(name, Right.ADMIN), as_dlsn(before)
    with translated(name, "truncating it"):
        async with audited_async("truncate log", f"{context.uri} {name} before {before}"):
            await context.permitted(name, Right.ADMIN, Denial.TRUNCATE)
            marked = await context.change(
                name,
                "truncating it",
                lambda: space.mark_truncated(context.nodes(name), before),
            )
    return first_left(marked)


async def purge_log(
    context: NamespaceContext, name: str, *, dry_run: bool = False
) -> list[SegmentDescription]:
    """See ``Namespace.purge_log``."""
    name = context.checked(name, Right.READ if dry_run else Right.ADMIN)
    if dry_run:
        await context.permitted(name, Right.READ)
        purged = await purge(context, name, dry_run=True)
    else:
        with translated(name, "purging it"):
            async with audited_async("purge log", f"{context.uri} {name}"):
                await context.permitted(name, Right.ADMIN)
                purged = await purge(context, name)
    return [SegmentDescription.of(each) for each in purged]


async def purge(context: NamespaceContext, name: str, *, dry_run: bool = False) -> tuple[LogSegment, ...]:
    """Delete the truncated segments of a log; the caller has checked its right."""
    found: dict[int, LogSegment] = {}

    async def purge() -> tuple[LogSegment, ...]:
        where = context.nodes(name), context.client
        if not dry_run:
            await delete_replaced(*where, now_ms=context.wall_ms())
        return await space.purge_segments(*where, dry_run=dry_run, found_before=found)

    return await context.change(name, "purging it", purge)
