"""The calls of a namespace that find and mend damage: checks, repairs, recovery, orphan ledgers.

Inside: the checks before each call, and its record in the audit log. Not inside: the work (``repair``).
Always: what changes something is permitted by the policy first; what finds something changes nothing.

Source: our own.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import attrs

from dlog.context import NamespaceContext
from dlog.description import SegmentDescription
from dlog.errors import translated
from dlog.operations.calls import where_it_is
from ledger.metadata_store.store import MetadataStore
from ledger.pickling import ProcessBound
from ledger.runtime.audit import audited_async
from namespace.access_control.entries import Denial
from namespace.policy import Right

if TYPE_CHECKING:
    # Each call imports what it needs: a program that appends or reads does without.
    from dlog.read.entry_verifier import EntryVerification
    from dlog.read.verifier import LogVerification
    from dlog.repair.log_reading import LogPlace
    from dlog.repair.mending import LogCheck, LogRepair
    from dlog.repair.orphans import OrphanLedger, OrphanOutcome, OrphanSearch

SAFE_AGE = datetime.timedelta(days=1)


@attrs.frozen
class RepairCalls(ProcessBound):
    """``Namespace.repair``: finding and mending damage."""

    context: NamespaceContext = attrs.field(repr=False)

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
        from dlog.repair.orphans import find_orphans

        self.context.check_open()
        with translated(None, "looking for orphan ledgers"):
            await self.context.permissions.check_administrator()
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
        from dlog.repair.orphans import delete_orphans

        wanted = sorted(set(ledger_ids))
        self.context.check_open(Right.ADMIN)
        with translated(None, "deleting orphan ledgers"):
            async with audited_async("delete orphan ledgers", f"{self.context.uri} {wanted}"):
                await self.context.permissions.check_administrator()
                return await delete_orphans(self._search(older_than, on_progress), wanted)

    @where_it_is
    async def check(
        self,
        name: str,
        *,
        read_ledgers: bool = True,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> LogCheck:
        """Look for contradictions among the nodes of a log and the ends of its ledgers. Changes nothing.

        Unlike ``verify`` it reads only the last entries of each ledger, and it looks at nodes that
        readers refuse. It may run beside a writer, and be cancelled at any time.

        Args:
            read_ledgers: False to look at the nodes only.
            on_progress: Called with the number of ledgers looked at, and of all.

        Raises:
            LogNotFoundError
            LogUnavailableError: The store or bookies are out of reach.
        """
        from dlog.repair.mending import check_log

        name = await self.context.permitted(name, Right.READ)
        return await check_log(
            self._place(name, self.context.store),
            read_ledgers=read_ledgers,
            on_progress=on_progress or (lambda _done, _total: None),
        )

    @where_it_is
    async def apply(self, name: str, *, lock_timeout_s: float = 0) -> LogRepair:
        """Do what ``check`` proposes (``Finding.repair``), while holding the log's lock.

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
        from dlog.repair.mending import repair_log

        name = self.context.checked(name, Right.ADMIN)
        with translated(name, "repairing it"):
            async with audited_async("repair log", f"{self.context.uri} {name}"):
                await self.context.permitted(name, Right.ADMIN, Denial.ACQUIRE)
                async with self.context.locked(name, lock_timeout_s) as lock:
                    return await repair_log(self._place(name, lock.session), self.context.wall_ms)

    @where_it_is
    async def heal(
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
            LogMovingError: The log is being moved to another namespace.
            TooFewBookiesError: There are fewer bookies than asked.
            LogUnavailableError: Bookies are out of reach, or another client changed the log meanwhile.
        """
        from dlog.repair.healing import heal_log

        name = self.context.checked(name, Right.ADMIN)
        keep_s = self.context.config.heal.keep_s if keep is None else keep.total_seconds()
        with translated(name, "healing it"):
            async with audited_async("heal log", f"{self.context.uri} {name}"):
                await self.context.permitted(name, Right.ADMIN)
                await self.context.location(name).check_stays("not healed")
                healed = await heal_log(
                    self._place(name, self.context.store),
                    keep_s=keep_s,
                    now_ms=self.context.wall_ms,
                    on_copied=on_copied or (lambda _: None),
                )
        return [SegmentDescription.of(each) for each in healed]

    @where_it_is
    async def recover(self, name: str, *, lock_timeout_s: float = 0) -> list[SegmentDescription]:
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
        name = self.context.checked(name, Right.WRITE)
        with translated(name, "recovering it"):
            async with audited_async("recover log", f"{self.context.uri} {name}"):
                await self.context.permitted(name, Right.WRITE, Denial.ACQUIRE)
                async with self.context.locked(name, lock_timeout_s) as lock:
                    lifecycle = self.context.lifecycle(name, lock.session)
                    return [SegmentDescription.of(each) for each in await lifecycle.recover_left_over()]

    @where_it_is
    async def verify(self, name: str, *, expect_head: str | None = None) -> LogVerification:
        """Read a whole log and check its digests, positions, transaction ids, metadata and hash chain.

        The result names the first problem. It changes nothing, and may be cancelled at any time.

        Args:
            expect_head: The ``head`` of an earlier check: the log must still hold the chain up to it.

        Raises:
            ValueError: ``expect_head`` is no head.
            LogNotFoundError, LogMetadataError, LogUnavailableError
        """
        from dlog.read.verifier import verify_log

        log = self.context.log(await self.context.permitted(name, Right.READ))
        return await verify_log(log, expect_head)

    @where_it_is
    async def verify_entries(
        self, name: str, segment_seqno: int, *, first_entry_id: int = 0, last_entry_id: int | None = None
    ) -> EntryVerification:
        """Read entries of a segment from every bookie that should have them, and check all of it.

        It checks the digest of each replica, that replicas are equal, the positions and transaction ids of
        the records, and, if the range has the last entry, the metadata of the segment. So several processes
        may check the parts of a log. It changes nothing, and may be cancelled at any time.

        Args:
            last_entry_id: Inclusive. None: the last entry; of a segment in progress the last confirmed
                one.

        Raises:
            LogNotFoundError
            LogMetadataError: The log has no such segment, or its metadata do not parse.
            LogUnavailableError: The metadata store is out of reach, or the end of a segment in progress
                cannot be found. A bookie that is out of reach is a fault in the result.
        """
        from dlog.read.entry_verifier import verify_entries

        if first_entry_id < 0:
            raise ValueError(f"entry {first_entry_id}: the first entry is 0")
        log = self.context.log(await self.context.permitted(name, Right.READ))
        return await verify_entries(log, segment_seqno, first_entry_id, last_entry_id)

    def _place(self, name: str, store: MetadataStore) -> LogPlace:
        from dlog.repair.log_reading import LogPlace

        return LogPlace(self.context.nodes(name, store), self.context.client, self.context.config.password)

    def _search(
        self, older_than: datetime.timedelta, on_progress: Callable[[int, int], None] | None
    ) -> OrphanSearch:
        from dlog.repair.orphans import OrphanSearch

        return OrphanSearch(
            self.context.store,
            self.context.client,
            self.context.path,
            self.context.client_id,
            self.context.wall_ms(),
            older_than.total_seconds(),
            on_progress or (lambda _done, _total: None),
        )
