"""Changing the logs of a namespace: creating, deleting, truncating, retention.

Inside: the calls that change a log as a whole. Not inside: writing records (``log_writer``), the rules of
space (``write.space``), questions about logs (``queries``).
Always: each change is permitted by the policy and recorded in the audit log.

Source: DistributedLog, BKDistributedLogNamespace.java, BKDistributedLogManager.java.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from dlog.description import SegmentDescription
from dlog.errors import LogFencedError, LogInUseError, LogNotFoundError, PromotionError, translated
from dlog.format.arguments import as_dlsn
from dlog.operations.namespace_base import NamespaceBase, at_target, waits_for_store
from dlog.ownership import NamedByLog, delete_ledger, delete_replaced, drop_unfinished
from dlog.write import space
from ledger.metadata_store.store import MetadataStore
from ledger.runtime.audit import audited_async
from namespace import logs, segment_nodes
from namespace.access_control.entries import Denial
from namespace.dlsn import DLSN
from namespace.log_identity import new_log_id
from namespace.policy import Right
from namespace.properties import LogProperties, change_properties, read_properties
from namespace.retention_node import read_retention, write_retention
from namespace.segments.retention import Retention
from namespace.segments.segment import LogSegment
from namespace.segments.truncation import first_left


class LogAdministration(NamespaceBase):
    """The calls of ``Namespace`` that change a log as a whole."""

    @at_target
    async def create_log(self, name: str, *, exist_ok: bool = False) -> None:
        """Create an empty log. A name may have parts (``shop/orders``). If cancelled, the log may exist.

        Raises:
            LogExistsError: Unless ``exist_ok``.
        """
        await self._create_log(name, exist_ok=exist_ok)

    async def _create_log(self, name: str, *, exist_ok: bool) -> None:
        name = await self._permitted(name, Right.WRITE)
        # Without ``exist_ok`` the log must be ours: not the one of a client that was faster.
        token = b"" if exist_ok else secrets.token_hex(16).encode()
        log_id = new_log_id()
        await self._change(
            name,
            "creating it",
            lambda: logs.create_log(
                self._store, self._path, name, exist_ok=exist_ok, token=token, log_id=log_id
            ),
        )

    @at_target
    async def delete_log(self, name: str, *, lock_timeout_s: float = 0) -> None:
        """Delete a log with all of its records. Its readers fail.

        If the call is cancelled or fails, part of the log may be deleted; call it again.

        Raises:
            LogNotFoundError
            LogLockedError: The log has a writer.
            LogMetadataError: Another client changed the log during the deletion.
        """
        name = self._checked(name, Right.ADMIN)
        with translated(name, "deleting it"):
            async with audited_async("delete log", f"{self.uri} {name}"):
                await self._permitted(name, Right.ADMIN, Denial.DELETE)
                has_begun = False

                async def delete() -> None:
                    nonlocal has_begun
                    try:
                        async with self._locked(name, lock_timeout_s) as lock:
                            has_begun = True
                            await self._delete_log(name, lock.session)
                    except LogNotFoundError:
                        if not has_begun:
                            raise
                        # Otherwise the attempt before deleted it, and its reply was lost.

                await self._change(name, "deleting it", delete)

    async def _delete_log(self, name: str, store: MetadataStore) -> None:
        if (promotion := await self._promotion(name)) is not None:
            raise PromotionError(
                name,
                f"not deleted, because it is being promoted to {promotion.target}; give that up first with"
                f" `dlog promote {self.uri} --log {name} --undo`",
            )
        metadata = await logs.open_log(store, self._path, name)
        listed = await segment_nodes.list_segments(store, self._path, name, gaps_ok=True)
        # Ledgers first. The next attempt finds a node without its ledger; it cannot find a ledger without a
        # node.
        for segment in listed.segments:
            claim = NamedByLog.as_segment(store, self._path, name, segment.name)
            await delete_ledger(self._client, segment.ledger_id, claim)
            try:
                await segment_nodes.delete_segment(store, self._path, name, segment)
            except LogFencedError as exc:
                raise LogInUseError(name, exc.evidence) from exc
        await drop_unfinished(store, self._client, self._path, name)
        await delete_replaced(store, self._client, self._path, name, now_ms=None)
        if metadata.allocated_ledger_id is not None:
            claim = NamedByLog.as_allocated(store, self._path, name)
            await delete_ledger(self._client, metadata.allocated_ledger_id, claim)
        await logs.delete_log_nodes(store, self._path, name)

    @at_target
    async def truncate_log(self, name: str, before: DLSN) -> DLSN | None:
        """Truncate a log, also while another process writes it; see ``LogWriter.truncate``.

        Readers begin at ``before``, or earlier: records of the segment in use stay. A truncated record stays
        truncated. If the call is cancelled or fails, some records may be truncated, from the first on; call
        it again. ``purge_log`` or the log's writer then deletes whole segments of truncated records.

        Returns:
            The first position that is left; None if there is no segment yet.

        Raises:
            LogNotFoundError, LogMetadataError
        """
        name, before = self._checked(name, Right.ADMIN), as_dlsn(before)
        with translated(name, "truncating it"):
            async with audited_async("truncate log", f"{self.uri} {name} before {before}"):
                await self._permitted(name, Right.ADMIN, Denial.TRUNCATE)
                marked = await self._change(
                    name,
                    "truncating it",
                    lambda: space.mark_truncated(self._store, self._path, name, before),
                )
        return first_left(marked)

    @at_target
    async def purge_log(self, name: str, *, dry_run: bool = False) -> list[SegmentDescription]:
        """Delete the truncated segments of a log and their ledgers, also while another process writes it.

        The newest completed segment stays until there is a newer one. A reader inside a deleted segment gets
        ``LogTruncatedError``. If the call is cancelled or fails, some segments may be deleted, from the
        oldest on; call it again. Bookies give the disk space back with their next garbage collection.

        Args:
            dry_run: Delete nothing.

        Returns:
            The segments that were deleted, oldest first; with ``dry_run``, those that would be.

        Raises:
            LogNotFoundError, LogMetadataError
        """
        name = self._checked(name, Right.READ if dry_run else Right.ADMIN)
        if dry_run:
            await self._permitted(name, Right.READ)
            purged = await self._purge(name, dry_run=True)
        else:
            with translated(name, "purging it"):
                async with audited_async("purge log", f"{self.uri} {name}"):
                    await self._permitted(name, Right.ADMIN)
                    purged = await self._purge(name)
        return [SegmentDescription.of(each) for each in purged]

    async def _purge(self, name: str, *, dry_run: bool = False) -> tuple[LogSegment, ...]:
        found: dict[int, LogSegment] = {}

        async def purge() -> tuple[LogSegment, ...]:
            where = self._store, self._client, self._path, name
            if not dry_run:
                await delete_replaced(*where, now_ms=self._wall_ms())
            return await space.purge_segments(*where, dry_run=dry_run, found_before=found)

        return await self._change(name, "purging it", purge)

    @at_target
    @waits_for_store
    async def retention(self, name: str) -> Retention | None:
        """How long the records of a log are kept; None: until they are truncated.

        Raises:
            LogMetadataError: The stored rule does not parse.
        """
        name = await self._permitted(name, Right.READ)
        with translated(name, "reading its retention"):
            return await read_retention(self._store, self._path, name)

    @at_target
    async def set_retention(self, name: str, retention: Retention | None) -> None:
        """Set how long the records of a log are kept; None: until they are truncated.

        The log's writers obey: they do so when they open, when they roll, and every minute. If
        cancelled, the rule may or may not be stored.

        Raises:
            LogNotFoundError
        """
        name = self._checked(name, Right.ADMIN)
        if not isinstance(retention, Retention | None):
            raise TypeError(f"a retention is a dlog.Retention or None, not {retention!r}")
        with translated(name, "changing its retention"):
            async with audited_async("change retention", f"{self.uri} {name} {retention}"):
                await self._permitted(name, Right.ADMIN, Denial.TRUNCATE)
                await self._change(
                    name,
                    "changing its retention",
                    lambda: write_retention(self._store, self._path, name, retention),
                )

    @at_target
    @waits_for_store
    async def properties(self, name: str) -> LogProperties:
        """The properties of a log: a small map of texts that its users keep beside the records.

        Raises:
            LogNotFoundError
            LogMetadataError: They do not parse.
        """
        name = await self._permitted(name, Right.READ)
        with translated(name, "reading its properties"):
            return await read_properties(self._store, self._path, name)

    @at_target
    async def change_properties(
        self, name: str, changes: Mapping[str, str | None], *, expected: LogProperties | None = None
    ) -> LogProperties:
        """Set some properties of a log, and remove those whose new value is None; the others stay.

        If cancelled, the change may or may not be stored.

        Args:
            changes: New values by key. All properties of a log take at most 64 KiB.
            expected: Change nothing unless the properties are still these.

        Returns:
            The properties afterwards.

        Raises:
            PropertiesConflictError: They are no longer those expected. Nothing was changed.
            ConfigError: A key is not allowed, or the values are too long. Nothing was changed.
            LogNotFoundError, LogMetadataError
        """
        name = self._checked(name, Right.ADMIN)
        with translated(name, "changing its properties"):
            async with audited_async("change properties", f"{self.uri} {name} {', '.join(sorted(changes))}"):
                await self._permitted(name, Right.ADMIN)
                return await self._change(
                    name,
                    "changing its properties",
                    lambda: change_properties(self._store, self._path, name, changes, expected),
                )

    @at_target
    async def retain_log(self, name: str) -> list[SegmentDescription]:
        """Apply the log's retention now, and purge it, also while another process writes it.

        If the call is cancelled or fails, part of it may be done, from the oldest segment on.

        Returns:
            The segments that were deleted, oldest first.

        Raises:
            LogNotFoundError, LogMetadataError
        """
        name = self._checked(name, Right.ADMIN)
        with translated(name, "applying its retention"):
            async with audited_async("retain log", f"{self.uri} {name}"):
                await self._permitted(name, Right.ADMIN, Denial.TRUNCATE)
                now_ms = self._wall_ms()
                await self._change(
                    name,
                    "applying its retention",
                    lambda: space.retain(self._store, self._client, self._path, name, now_ms=now_ms),
                )
                purged = await self._purge(name)
        return [SegmentDescription.of(each) for each in purged]
