"""Restoring the replicas of one ledger under its lock.

Inside: the order of the steps: check, fill members, copy, change the metadata, check again; closing an open
ledger whose end lies on a lost bookie. Not inside: taking and releasing locks, pauses (``worker``).
Always: a member that is back gets what it lacks, and the metadata stay; nothing above the LAC is copied into
an open end; the metadata are changed only while the lock exists, and only after every entry of the fragment
is durable on the new bookies; a new bookie is none of the ensemble; a ledger counts as restored only if a
check after the last change finds nothing; a ledger that is not closed is fenced only by ``close_if_stuck``,
and only if another bookie can take the place of the lost one: without one, a fence would stop the writer for
nothing.

Source: ReplicationWorker.java (rereplicate), BookKeeperAdmin.java (replicateLedgerFragment); docs/protocol.md
7.8; docs/autorecovery.md.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection

import attrs

from ledger.catalog.catalog import LedgerCatalog, Versioned
from ledger.catalog.metadata_update import update_metadata
from ledger.context import ClientContext
from ledger.digest import EntryCodec
from ledger.errors import (
    BookieError,
    BookieUnavailableError,
    LedgerError,
    NoSuchLedgerError,
    TooManyRequestsRefusal,
)
from ledger.fragments.fragments import ReplaceReplicas, fragments_of, needs_closing
from ledger.fragments.ledger_check import BadFragment, CheckResult, LedgerCheck, last_entry_of
from ledger.fragments.placement_check import Placing, fragment_placing
from ledger.fragments.registered import RegisteredBookies, read_registered
from ledger.metadata_store.store import MetadataStore
from ledger.placement.membership import Membership
from ledger.recovery.opening import recover_ledger
from ledger.replication.config import ReplicationConfig
from ledger.replication.fragment_copy import CopyRate, FragmentCopy, unreadable_entry
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger

logger = get_logger(__name__)


class Outcome(enum.Enum):
    """The state of a ledger after an attempt."""

    GONE = "deleted"
    RESTORED = "restored"  # a check found all replicas
    OPEN = "open"  # its open end lies on a lost bookie; its writer may replace the bookie
    WAITING = "waiting"  # nothing can be done before another bookie is registered
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
        self.copied: set[int] = set()  # ledgers of which a fragment was copied; the caller takes them out
        self._filled_in_vain: dict[int, set[tuple[int, str]]] = {}  # by ledger: fragment and bookie
        self._unreadable: dict[tuple[int, int], int] = {}  # ledger and fragment to the entry that failed

    @property
    def membership(self) -> Membership:
        """The bookies that the client knows; a change of them may allow what was impossible."""
        return self._context.membership

    async def restore(self, ledger_id: int, absent: Collection[str] = ()) -> Outcome:
        """Copy what a check finds missing, in all final fragments. If cancelled, a part may be done.

        Args:
            absent: The bookies that the mark names; they may lack any entry.

        Raises:
            LedgerError: The metadata do not parse, or the ledger's LAC cannot be read.
            ledger.metadata_store.errors.MetadataError: The metadata store failed, or the lock is gone.
        """
        try:
            checked = await self._checked(ledger_id, absent)
            for one in checked.found.bad:
                await self._restore_fragment(checked, one)
            if not checked.found.is_sound and not _is_stuck(checked):
                checked = await self._checked(ledger_id, absent)
            may_move = self._config.repairs_placement and checked.found.is_sound and not _is_stuck(checked)
            if may_move and await self._repair_placement(checked):
                checked = await self._checked(ledger_id)
        except NoSuchLedgerError:
            return Outcome.GONE
        if _is_stuck(checked):
            return Outcome.OPEN if await self._has_replacement(checked) else Outcome.WAITING
        if checked.found.is_sound:
            self._filled_in_vain.pop(ledger_id, None)
            return Outcome.RESTORED
        return Outcome.WAITING if _waits_for_bookies(checked) else Outcome.FAILED

    async def must_wait(self, ledger_id: int, lost: Collection[str]) -> bool:
        """True if no attempt can restore what these bookies lost, by the bookies that the client knows.

        It costs one read of the metadata. An attempt asks bookies, and the lists of bookies too.
        """
        writable, there = self.membership.writable, self.membership.writable | self.membership.readonly
        if not lost or not there.isdisjoint(lost):
            return False  # a member that is back may lack entries, and takes them itself
        try:
            metadata = (await self._catalog.get(ledger_id)).metadata
        except LedgerError:
            return False  # the attempt decides
        short = [
            fragment.bookies
            for fragment in fragments_of(metadata, -1)
            if any(
                bookie not in there and not (metadata.is_closed and fragment.ends_at(index) is None)
                for index, bookie in enumerate(fragment.bookies)
            )
        ]
        return bool(short) and all(writable.issubset(bookies) for bookies in short)

    async def close_if_stuck(self, ledger_id: int) -> bool:
        """Close the ledger if its open end still lies on a lost bookie; return True if it was closed.

        It stays open while no other bookie could take the place of the lost one.

        Its writer fails from then on. If cancelled, the ledger may be fenced already.

        Raises: as ``restore``, and ``LedgerRecoveryError`` if the end cannot be decided now.
        """
        try:
            checked = await self._checked(ledger_id)
            if not (_is_stuck(checked) and await self._has_replacement(checked)):
                return False
            await self._close(checked.current)
        except NoSuchLedgerError:
            return False
        return True

    async def _restore_fragment(self, checked: _Checked, bad: BadFragment) -> None:
        """Copy what members lack: into a member that takes writes, else to a bookie in its place.

        Nothing leaves the open end: its writer may add to it. What is confirmed there is copied into members
        as elsewhere. A member that was filled and still lacks entries is replaced, if a spare is there.
        """
        fragment, writable = bad.fragment, checked.registered.writable
        ledger_id, has_spares = checked.current.ledger_id, not writable.issubset(bad.fragment.bookies)
        in_vain = self._filled_in_vain.get(ledger_id, set())
        lost = []
        for index, bookie in zip(bad.indices, bad.bookies, strict=True):
            may_leave = fragment.is_final and has_spares
            if bookie not in writable or (may_leave and (fragment.first, bookie) in in_vain):
                lost.append(index)
            elif await self._is_filled_or_refuses(checked, bad, index):
                self._filled_in_vain.setdefault(ledger_id, set()).add((fragment.first, bookie))
        if lost and fragment.is_final and has_spares:
            bookies = {fragment.bookies[index] for index in lost}
            one = attrs.evolve(bad, indices=tuple(lost))
            await self._try_copy(checked.current, one, away=bookies - checked.registered.all)

    async def _is_filled_or_refuses(self, checked: _Checked, bad: BadFragment, index: int) -> bool:
        """Fill one member; False if another attempt may do better."""
        current, fragment = checked.current, bad.fragment
        bookie = fragment.bookies[index]
        # No entry above what is confirmed: whether it belongs to the ledger is not decided. The LAC is one
        # that a digest covers, so metadata without a password prove none.
        last = fragment.last if fragment.is_final else min(fragment.last, checked.lac)
        if not fragment.is_final and current.metadata.password is None:
            return False
        copy = FragmentCopy(self._context, current, self._config, self._rate)
        try:
            await copy.fill(attrs.evolve(fragment, last=last), index, bad.held.get(index))
        except NoSuchLedgerError:
            raise
        except LedgerError as exc:
            self._note_failed_copy(current.ledger_id, fragment.first, exc)
            return isinstance(exc, BookieError) and not isinstance(exc, TooManyRequestsRefusal)
        finally:
            self.stats.entries_copied += copy.entries_copied
            self.stats.bytes_copied += copy.bytes_copied
        self.stats.fragments_copied += 1
        self.copied.add(current.ledger_id)
        logger.info(
            "ledger %d: %d entries from %d on that %s lacked are on it now",
            current.ledger_id,
            copy.entries_copied,
            fragment.first,
            bookie,
            extra=event(
                "fragment.filled",
                ledger=current.ledger_id,
                first_entry=fragment.first,
                entries=copy.entries_copied,
                bytes=copy.bytes_copied,
                bookie=bookie,
            ),
        )
        return True

    async def _has_replacement(self, checked: _Checked) -> bool:
        """True if another bookie could take the place of a member that takes no writes."""
        metadata = checked.current.metadata
        members = metadata.last_ensemble.bookies
        lost = [index for index, bookie in enumerate(members) if bookie not in checked.registered.writable]
        chosen, _ = await self._context.placer.choose_replacements(
            members, lost, metadata.write_quorum, metadata.ack_quorum
        )
        return bool(chosen)

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

    async def relocate(self, ledger_id: int, source: str, target: str) -> Outcome:
        """Put one running bookie in the place of another one in all fragments of a closed ledger.

        Each copy is read back from the new bookie before the metadata name it. If cancelled, or if it raises,
        the fragments so far are changed, and copies may be left over that the new bookie deletes later.

        Returns:
            ``FAILED`` if a fragment does not fit any more, or if the new bookie does not return each entry.

        Raises:
            LedgerReadError: No replica returned an entry; the error names it.
            BookieError: The new bookie failed, or refused an entry.
            ledger.metadata_store.errors.MetadataError: The metadata store failed, or the lock is gone.
        """
        try:
            current = await self._catalog.get_newest(ledger_id)
            if not current.metadata.is_closed:
                return Outcome.OPEN
            is_complete = True
            for fragment in fragments_of(current.metadata, current.metadata.last_entry_id):
                if source not in fragment.bookies:
                    continue
                index = fragment.bookies.index(source)
                is_complete &= target not in fragment.bookies and await self._copy(
                    current, BadFragment(fragment, (index,)), {index: target}, (), reads_back=True
                )
        except NoSuchLedgerError:
            return Outcome.GONE
        return Outcome.RESTORED if is_complete else Outcome.FAILED

    async def _returns_all(self, current: Versioned, change: ReplaceReplicas) -> bool:
        """True if the new bookies return each entry of the fragment, as a check with their names reads it."""
        planned = change.apply(current.metadata)
        if planned is None:
            return False
        registered = await read_registered(self._session, self._catalog.root)
        check = LedgerCheck(
            self._context,
            percentage=100,
            reads_max=self._config.reads_in_flight_max,
            asks_lists=True,
            members=change.replacements.values(),
        )
        found = await check.find(attrs.evolve(current, metadata=planned), planned.last_entry_id, registered)
        for bookie in found.unreached:
            raise BookieUnavailableError(bookie, "it was lost after the copy, which was not read back")
        return found.is_sound

    async def _repair_placement(self, checked: _Checked) -> bool:
        """Move replicas of fragments that are placed badly, as few as possible; True if a move was tried.

        A fragment that no move can improve now stays as it is. The next check of the placement marks its
        ledger again, so the worker does not wait for other bookies.
        """
        current, placer = checked.current, self._context.placer
        metadata, topology = current.metadata, await placer.located()
        is_tried = False
        for fragment in fragments_of(metadata, checked.lac):
            judged = fragment_placing(
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

    async def _checked(self, ledger_id: int, absent: Collection[str] = ()) -> _Checked:
        current = await self._catalog.get_newest(ledger_id)
        registered = await read_registered(self._session, self._catalog.root)
        lac = await last_entry_of(self._context, current)
        found = await self._check.find(current, lac, registered, absent)
        return _Checked(current, lac, registered, found)

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
            self._note_failed_copy(ledger_id, first, exc)
            return False
        self._unreadable.pop((ledger_id, first), None)
        return is_complete

    def _note_failed_copy(self, ledger_id: int, first: int, exc: LedgerError) -> None:
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
        self,
        current: Versioned,
        bad: BadFragment,
        chosen: dict[int, str],
        away: Collection[str],
        *,
        reads_back: bool = False,
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
        if reads_back and not await self._returns_all(current, change):
            return False
        stored = await update_metadata(
            self._catalog,
            current,
            change.apply,
            retry_timeout_s=self._context.config.unavailable_timeout_s,
            lock=self._lock_path(current.ledger_id),
        )
        if not change.is_in_place(stored.metadata):
            return False
        self._note_copied(current.ledger_id, change, copy)
        return len(chosen) == len(bad.indices)

    def _note_copied(self, ledger_id: int, change: ReplaceReplicas, copy: FragmentCopy) -> None:
        fragment = change.fragment
        self.stats.fragments_copied += 1
        self.copied.add(ledger_id)
        logger.info(
            "ledger %d: %d entries from %d on are on %s now, in place of %s",
            ledger_id,
            copy.entries_copied,
            fragment.first,
            ", ".join(change.replacements.values()),
            ", ".join(fragment.bookies[index] for index in change.replacements),
            extra=event(
                "fragment.copied",
                ledger=ledger_id,
                first_entry=fragment.first,
                entries=copy.entries_copied,
                bytes=copy.bytes_copied,
                bookies=list(change.replacements.values()),
            ),
        )


def _is_stuck(checked: _Checked) -> bool:
    return needs_closing(checked.current.metadata, checked.lac, checked.registered.writable)


def _waits_for_bookies(checked: _Checked) -> bool:
    """True if all that is missing belongs on bookies that take no writes, and every other one is a member."""
    writable = checked.registered.writable
    return not checked.found.has_doubts and all(
        one.fragment.is_final and writable.isdisjoint(one.bookies) and writable.issubset(one.fragment.bookies)
        for one in checked.found.bad
    )
