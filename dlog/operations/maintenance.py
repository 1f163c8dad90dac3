"""The calls of a namespace that find and mend damage: checks, repairs, recovery, orphan ledgers.

Inside: the checks before each call, and its record in the audit log. Not inside: the work (``repair``).
Always: what changes something is permitted by the policy first; what finds something changes nothing.

Source: our own.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable

from dlog.description import SegmentDescription
from dlog.errors import PromotionError, translated
from dlog.operations.namespace_base import NamespaceBase, at_target
from dlog.repair.healing import heal_log
from dlog.repair.log_reading import LogPlace
from dlog.repair.mending import LogCheck, LogRepair, check_log, repair_log
from dlog.repair.orphans import OrphanLedger, OrphanOutcome, OrphanSearch, delete_orphans, find_orphans
from dlog.write.segment_lifecycle import SegmentLifecycle
from ledger.metadata_store.store import MetadataStore
from ledger.runtime.audit import audited_async
from namespace.access_control.entries import Denial
from namespace.policy import Right

SAFE_AGE = datetime.timedelta(days=1)


class LogMaintenance(NamespaceBase):
    """The calls of ``Namespace`` that find and mend damage."""

    async def find_orphans(
        self,
        *,
        older_than: datetime.timedelta = SAFE_AGE,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[OrphanLedger]:
        """The ledgers of the cluster or directory that no log needs, ascending by id. Changes nothing.

        Neither a segment nor an ``allocation`` node of any log below the topmost bound node above this
        namespace names them. It reads every log there. May be cancelled at any time.

        Args:
            older_than: Leave out younger ledgers, by the store's clock: a writer may be about to use them.
            on_progress: Called with the number of ledgers looked at, and of all.

        Raises:
            AccessDeniedError: The policy lets this principal not administer all logs.
            LogMetadataError: A node does not parse, so the ledgers that it names are not known.
            LogUnavailableError: Logs were created, deleted or renamed during every attempt.
        """
        self._check_open()
        with translated(None, "looking for orphan ledgers"):
            await self._permissions.check_administrator()
        return await find_orphans(self._search(older_than, on_progress))

    async def delete_orphans(
        self,
        ledger_ids: Iterable[int],
        *,
        older_than: datetime.timedelta = SAFE_AGE,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[OrphanOutcome]:
        """Delete ledgers that ``find_orphans`` found, as far as they are still orphans.

        Each is looked for again. A ledger whose creator could still put it into a log is kept, and so is one
        of another namespace. Naming a ledger of unknown origin says that no other application needs it: only
        its age protects a ledger without a mark. If the call is cancelled or fails, some may be deleted; call
        it again. Bookies give the space back with their next garbage collection.

        Returns:
            The outcome of each id, ascending.

        Raises:
            AccessDeniedError: The policy lets this principal not administer all logs.
            LogMetadataError, LogUnavailableError: As ``find_orphans``; nothing was deleted.
        """
        wanted = sorted(set(ledger_ids))
        self._check_open(Right.ADMIN)
        with translated(None, "deleting orphan ledgers"):
            async with audited_async("delete orphan ledgers", f"{self.uri} {wanted}"):
                await self._permissions.check_administrator()
                return await delete_orphans(self._search(older_than, on_progress), wanted)

    @at_target
    async def check_log(
        self,
        name: str,
        *,
        read_ledgers: bool = True,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> LogCheck:
        """Look for contradictions among the nodes of a log and the ends of its ledgers. Changes nothing.

        Unlike ``verify_log`` it reads only the last entries of each ledger, and it looks at nodes that
        readers refuse. It may run beside a writer, and be cancelled at any time.

        Args:
            read_ledgers: False to look at the nodes only.
            on_progress: Called with the number of ledgers looked at, and of all.

        Raises:
            LogNotFoundError
            LogUnavailableError: The store or bookies are out of reach.
        """
        name = await self._permitted(name, Right.READ)
        return await check_log(
            self._place(name, self._store),
            read_ledgers=read_ledgers,
            on_progress=on_progress or (lambda _done, _total: None),
        )

    @at_target
    async def repair_log(self, name: str, *, lock_timeout_s: float = 0) -> LogRepair:
        """Do what ``check_log`` proposes (``Finding.repair``), while holding the log's lock.

        Nothing that a record needs is deleted. If the call is cancelled or fails, some steps may be applied;
        call it again.

        Returns:
            The findings that were repaired, and a check afterwards: some findings cannot be repaired.

        Raises:
            LogNotFoundError
            LogLockedError: The log has a writer.
            LogFencedError: Another client changed the log in spite of the lock.
            LogMetadataError: The last entries of a segment in progress do not parse.
            LogUnavailableError
        """
        name = self._checked(name, Right.ADMIN)
        with translated(name, "repairing it"):
            async with audited_async("repair log", f"{self.uri} {name}"):
                await self._permitted(name, Right.ADMIN, Denial.ACQUIRE)
                async with self._locked(name, lock_timeout_s) as lock:
                    return await repair_log(self._place(name, lock.session), self._wall_ms)

    @at_target
    async def heal_log(
        self,
        name: str,
        *,
        keep: datetime.timedelta | None = None,
        on_copied: Callable[[int], None] | None = None,
    ) -> list[SegmentDescription]:
        """Give the completed segments that began on fewer bookies than asked all their replicas.

        Each is copied into a new ledger, of which every replica is read; then the segment's node names it.
        No position changes, and writers and readers continue. If the call is cancelled or fails, some
        segments may be healed; call it again. Of two calls at the same time at least one fails.

        Args:
            keep: How long the old ledgers are kept, for readers that have them open; None: as
                ``HealConfig.keep_s`` says. The log's writer or ``purge_log`` deletes them then.
            on_copied: Called with the bytes of each entry copied.

        Returns:
            The healed segments, with their new ledgers.

        Raises:
            LogNotFoundError, CorruptLogError
            PromotionError: The log is being promoted.
            TooFewBookiesError: There are fewer bookies than asked.
            LogUnavailableError: Bookies are out of reach, or another client changed the log meanwhile.
        """
        name = self._checked(name, Right.ADMIN)
        keep_s = self.config.heal.keep_s if keep is None else keep.total_seconds()
        with translated(name, "healing it"):
            async with audited_async("heal log", f"{self.uri} {name}"):
                await self._permitted(name, Right.ADMIN)
                if (promotion := await self._promotion(name)) is not None:
                    raise PromotionError(name, f"not healed: it is being promoted to {promotion.target}")
                healed = await heal_log(
                    self._place(name, self._store),
                    keep_s=keep_s,
                    now_ms=self._wall_ms,
                    on_copied=on_copied or (lambda _: None),
                )
        return [SegmentDescription.of(each) for each in healed]

    @at_target
    async def recover_log(self, name: str, *, lock_timeout_s: float = 0) -> list[SegmentDescription]:
        """Complete the segments that a dead writer left in progress, without writing a record.

        Each ledger is fenced and recovered: the writer can add nothing more, and every record that was
        durable for it is in the log. An empty segment is deleted. ``open_writer`` does the same. If the call
        is cancelled or fails, some segments may be completed; call it again.

        Returns:
            The segments that are completed now, oldest first.

        Raises:
            LogNotFoundError, LogMetadataError, CorruptLogError
            LogLockedError: The log has a writer.
            LogFencedError: Another client changed the log in spite of the lock.
            LogUnavailableError: Too few bookies are up to recover a ledger.
        """
        name = self._checked(name, Right.WRITE)
        with translated(name, "recovering it"):
            async with audited_async("recover log", f"{self.uri} {name}"):
                await self._permitted(name, Right.WRITE, Denial.ACQUIRE)
                async with self._locked(name, lock_timeout_s) as lock:
                    lifecycle = SegmentLifecycle(
                        lock.session,
                        self._client,
                        self._path,
                        name,
                        self.config,
                        first_segment_seqno=self._first_segment_seqno,
                        wall_ms=self._wall_ms,
                    )
                    return [SegmentDescription.of(each) for each in await lifecycle.recover_left_over()]

    def _place(self, name: str, store: MetadataStore) -> LogPlace:
        return LogPlace(store, self._client, self._path, name, self.config.password)

    def _search(
        self, older_than: datetime.timedelta, on_progress: Callable[[int, int], None] | None
    ) -> OrphanSearch:
        return OrphanSearch(
            self._store,
            self._client,
            self._path,
            self._client_id,
            self._wall_ms(),
            older_than.total_seconds(),
            on_progress or (lambda _done, _total: None),
        )
