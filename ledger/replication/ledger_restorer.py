"""Restoring the replicas of one ledger under its lock.

Inside: the order of the steps: check, copy, change the metadata, check again; closing an open ledger whose
end lies on a lost bookie. Not inside: taking and releasing locks, pauses (``worker``).
Always: the metadata are changed only while the lock exists, and only after every entry of the fragment is
durable on the new bookies; a new bookie is none of the ensemble; a ledger counts as restored only if a check
after the last change finds nothing; a ledger that is not closed is fenced only by ``close_if_stuck``.

Source: ReplicationWorker.java (rereplicate), BookKeeperAdmin.java (replicateLedgerFragment); docs/protocol.md
7.8; docs/autorecovery.md.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Collection

import attrs

from ledger.catalog.catalog import LedgerCatalog, Versioned
from ledger.catalog.metadata_update import update_metadata
from ledger.context import ClientContext
from ledger.digest import EntryCodec
from ledger.errors import BookieError, LedgerError, NoSuchLedgerError
from ledger.fragments.fragments import ReplaceReplicas, fragments_of, needs_closing
from ledger.fragments.ledger_check import BadFragment, CheckResult, LedgerCheck, last_entry_of
from ledger.fragments.placement_check import Placing, judge_fragment
from ledger.fragments.registered import RegisteredBookies, read_registered
from ledger.recovery.opening import recover_ledger
from ledger.replication.config import ReplicationConfig
from ledger.replication.fragment_copy import CopyRate, FragmentCopy, unreadable_entry
from namespace.events import event
from namespace.store import MetadataStore

logger = logging.getLogger(__name__)


class Outcome(enum.Enum):
    """The state of a ledger after an attempt."""

    GONE = "deleted"
    RESTORED = "restored"  # a check found all replicas
    OPEN = "open"  # its open end lies on a lost bookie; its writer may replace the bookie
    FAILED = "failed"  # replicas are missing that could not be copied now


@attrs.define
class RestorerStats:
    """The work done by one ``LedgerRestorer``."""

    fragments_copied: int = 0
    entries_copied: int = 0
    bytes_copied: int = 0
    ledgers_closed: int = 0


@attrs.frozen
class _Checked:
    current: Versioned
    lac: int
    registered: RegisteredBookies
    found: CheckResult


class LedgerRestorer:
    """Restores ledgers for one program in one session with the metadata store."""

    def __init__(
        self,
        context: ClientContext,
        session: MetadataStore,
        config: ReplicationConfig,
        *,
        lock_path: Callable[[int], str],
        stats: RestorerStats | None = None,
    ) -> None:
        """``lock_path``: the lock of a ledger; the caller holds it during each call."""
        self.stats = stats or RestorerStats()
        self._context, self._session, self._config = context, session, config
        self._catalog = LedgerCatalog(session, context.catalog.root, context.catalog.layout)
        self._lock_path = lock_path
        self._check = LedgerCheck(
            context,
            percentage=config.verified_percentage,
            reads_max=config.reads_in_flight_max,
            asks_lists=True,
        )
        self._rate = CopyRate(config.rate_bytes_max)
        self._unreadable: dict[tuple[int, int], int] = {}  # ledger and fragment to the entry that failed

    async def restore(self, ledger_id: int) -> Outcome:
        """Copy what a check finds missing, in all final fragments. If cancelled, a part may be done.

        Raises:
            LedgerError: The metadata do not parse, or the ledger's LAC cannot be read.
            namespace.errors.NamespaceError: The metadata store failed, or the lock is gone.
        """
        try:
            checked = await self._checked(ledger_id)
            for one in checked.found.bad:
                if one.fragment.is_final:
                    lost = {one.fragment.bookies[index] for index in one.indices}
                    away = lost - checked.registered.all
                    await self._try_copy(checked.current, one, away=away)
            if _is_stuck(checked):
                return Outcome.OPEN
            if not checked.found.is_sound:
                checked = await self._checked(ledger_id)
            may_move = self._config.repairs_placement and checked.found.is_sound and not _is_stuck(checked)
            if may_move and await self._repair_placement(checked):
                checked = await self._checked(ledger_id)
        except NoSuchLedgerError:
            return Outcome.GONE
        if _is_stuck(checked):
            return Outcome.OPEN
        return Outcome.RESTORED if checked.found.is_sound else Outcome.FAILED

    async def close_if_stuck(self, ledger_id: int) -> bool:
        """Close the ledger if its open end still lies on a lost bookie; return True if it was closed.

        Its writer fails from then on. If cancelled, the ledger may be fenced already.

        Raises: as ``restore``, and ``LedgerRecoveryError`` if the end cannot be decided now.
        """
        try:
            checked = await self._checked(ledger_id)
            if not _is_stuck(checked):
                return False
            await self._close(checked.current)
        except NoSuchLedgerError:
            return False
        return True

    async def evacuate(self, ledger_id: int, bookies: Collection[str], *, close_open: bool) -> Outcome:
        """Replace these bookies in all fragments of the ledger, whether or not they still run.

        Args:
            close_open: Close the ledger first if one of them is in its open end.

        Raises: as ``close_if_stuck``.
        """
        try:
            current = await self._catalog.get_newest(ledger_id)
            open_end = current.metadata.last_ensemble.bookies
            is_in_use = not current.metadata.is_closed and not set(bookies).isdisjoint(open_end)
            if is_in_use and close_open:
                await self._close(current)
                current, is_in_use = await self._catalog.get_newest(ledger_id), False
            lac = await last_entry_of(self._context, current)
            is_complete = True
            for fragment in fragments_of(current.metadata, lac):
                indices = tuple(n for n, bookie in enumerate(fragment.bookies) if bookie in bookies)
                if indices and fragment.is_final:
                    is_complete &= await self._try_copy(current, BadFragment(fragment, indices))
                elif indices:
                    is_in_use = True
        except NoSuchLedgerError:
            return Outcome.GONE
        if is_in_use:
            return Outcome.OPEN
        return Outcome.RESTORED if is_complete else Outcome.FAILED

    async def _repair_placement(self, checked: _Checked) -> bool:
        """Move replicas of fragments that are placed badly, as few as possible; True if a move was tried.

        A fragment that no move can improve now stays as it is. The next check of the placement marks its
        ledger again, so the worker does not wait for other bookies.
        """
        current, placer = checked.current, self._context.placer
        metadata, topology = current.metadata, await placer.located()
        is_tried = False
        for fragment in fragments_of(metadata, checked.lac):
            judged = judge_fragment(
                fragment, metadata.ack_quorum, placer.config, topology, checked.registered.all
            )
            if not fragment.is_final or judged is not Placing.BAD:
                continue
            chosen = await placer.choose_adhering(
                fragment.bookies, metadata.write_quorum, metadata.ack_quorum
            )
            if chosen:
                is_tried = True
                await self._try_copy(current, BadFragment(fragment, tuple(chosen)), chosen)
        return is_tried

    async def _close(self, current: Versioned) -> None:
        metadata = current.metadata
        logger.warning(
            "ledger %d: its open end lies on a lost bookie, so it is fenced and closed; its writer fails",
            current.ledger_id,
            extra=event("ledger.closed_by_autorecovery", ledger=current.ledger_id),
        )
        codec = EntryCodec(metadata.digest_type, metadata.password or b"")
        await recover_ledger(self._context, current, codec)
        self.stats.ledgers_closed += 1

    async def _checked(self, ledger_id: int) -> _Checked:
        current = await self._catalog.get_newest(ledger_id)
        registered = await read_registered(self._session, self._catalog.root)
        lac = await last_entry_of(self._context, current)
        return _Checked(current, lac, registered, await self._check.find(current, lac, registered))

    async def _try_copy(
        self,
        current: Versioned,
        bad: BadFragment,
        chosen: dict[int, str] | None = None,
        *,
        away: Collection[str] = (),
    ) -> bool:
        """Copy one fragment and change the metadata; False if replicas may still be missing.

        Args:
            chosen: The new bookies by index; None: the placement policy chooses them.
            away: Bookies that were not registered. If all of them come back, the copy ends.
        """
        ledger_id, first = current.ledger_id, bad.fragment.first
        try:
            is_complete = await self._copy(current, bad, chosen or await self._choose(current, bad), away)
        except NoSuchLedgerError:
            raise
        except LedgerError as exc:
            if isinstance(exc, BookieError):
                self._context.membership.report_failure(exc.bookie)
            entry_id = unreadable_entry(exc)
            if entry_id is not None:
                self._unreadable[ledger_id, first] = entry_id
            logger.warning(
                "ledger %d: the fragment at entry %d was not copied: %s",
                ledger_id,
                first,
                exc,
                extra=event("fragment.copy_failed", ledger=ledger_id, first_entry=first, error=exc),
            )
            return False
        self._unreadable.pop((ledger_id, first), None)
        return is_complete

    async def _choose(self, current: Versioned, bad: BadFragment) -> dict[int, str]:
        metadata = current.metadata
        chosen, reason = await self._context.placer.choose_replacements(
            bad.fragment.bookies, bad.indices, metadata.write_quorum, metadata.ack_quorum
        )
        if not chosen:
            raise LedgerError(
                reason or "no writable bookie is outside its ensemble; start another bookie for the lost one"
            )
        return chosen

    async def _are_back(self, away: Collection[str]) -> bool:
        membership = self._context.membership
        # The client's own view may be old in both directions, so it only says when it is time to ask.
        if not away or not all(one in membership.writable or one in membership.readonly for one in away):
            return False
        registered = await read_registered(self._session, self._catalog.root)
        return registered.all.issuperset(away)

    async def _copy(
        self, current: Versioned, bad: BadFragment, chosen: dict[int, str], away: Collection[str]
    ) -> bool:
        fragment = bad.fragment
        assert not set(chosen.values()) & set(fragment.bookies)  # the placer never chooses a member
        copy = FragmentCopy(self._context, current, self._config, self._rate)
        try:
            if (entry_id := self._unreadable.get((current.ledger_id, fragment.first))) is not None:
                await copy.check_readable(entry_id)
            if not await copy.copy(fragment, chosen, lambda: self._are_back(away)):
                logger.info(
                    "ledger %d: the copy of the fragment at entry %d ends, because %s came back",
                    current.ledger_id,
                    fragment.first,
                    ", ".join(sorted(away)),
                    extra=event(
                        "fragment.copy_ended",
                        ledger=current.ledger_id,
                        first_entry=fragment.first,
                        bookies=sorted(away),
                    ),
                )
                return False
        finally:
            self.stats.entries_copied += copy.entries_copied
            self.stats.bytes_copied += copy.bytes_copied
        change = ReplaceReplicas(fragment, chosen)
        stored = await update_metadata(
            self._catalog,
            current,
            change.apply,
            retry_timeout_s=self._context.config.unavailable_timeout_s,
            lock=self._lock_path(current.ledger_id),
        )
        if not change.is_in_place(stored.metadata):
            return False
        self.stats.fragments_copied += 1
        logger.info(
            "ledger %d: %d entries from %d on are on %s now, in place of %s",
            current.ledger_id,
            copy.entries_copied,
            fragment.first,
            ", ".join(chosen.values()),
            ", ".join(fragment.bookies[index] for index in chosen),
            extra=event(
                "fragment.copied",
                ledger=current.ledger_id,
                first_entry=fragment.first,
                entries=copy.entries_copied,
                bytes=copy.bytes_copied,
                bookies=list(chosen.values()),
            ),
        )
        return len(chosen) == len(bad.indices)


def _is_stuck(checked: _Checked) -> bool:
    has_bad_open = any(not one.fragment.is_final for one in checked.found.bad)
    return has_bad_open or needs_closing(checked.current.metadata, checked.lac, checked.registered.writable)
