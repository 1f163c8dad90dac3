"""Bugs of auto-recovery, put back one at a time.

Inside: ``HEALING_BUGS``: the name, the source, a patch of each bug, and the worlds in which it can show. Not
inside: descriptions (``tests/simulation/known_bugs.md``).
Always: the product contains none of this; leaving the ``with`` block removes the bug.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import attrs
import trio

from ledger.catalog.catalog import Versioned
from ledger.catalog.metadata_update import update_metadata
from ledger.context import ClientContext
from ledger.digest import EntryCodec
from ledger.errors import LedgerReadError
from ledger.fragments import fragments, ledger_check
from ledger.fragments.fragments import Fragment, ReplaceReplicas
from ledger.fragments.ledger_check import BadFragment, CheckResult, last_entry_of
from ledger.fragments.registered import read_registered
from ledger.metadata import LedgerMetadata
from ledger.metadata_store.errors import ConnectionLostError, NoNodeError, SessionExpiredError
from ledger.metadata_store.store import MetadataStore
from ledger.read.replica_copy import ReplicaCopy
from ledger.replication import ledger_restorer
from ledger.replication.auditor import Auditor
from ledger.replication.autorecovery import AutoRecovery
from ledger.replication.election import AuditorElection
from ledger.replication.fragment_copy import FragmentCopy
from ledger.replication.ledger_restorer import LedgerRestorer, Outcome
from ledger.replication.ledger_visits import LedgerVisits
from ledger.replication.marks import TakenLedger, UnderReplicatedLedgers
from ledger.replication.returned_bookies import ReturnedBookies
from ledger.write.missed import MissedReplicas
from tests.simulation import checkers
from tests.simulation.healing import rules
from tests.simulation.known_bugs import KnownBug

REST = "repair_comes_to_rest"  # a rule of the world itself (``HealWorld``)

SMALL_WORLD: dict[str, object] = {"bookies": 3, "ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2}

HEALING_BUGS: dict[str, KnownBug] = {}


def _known_bug(
    name: str, source: str, *seen_by: Callable[..., str | None] | str, **shape: object
) -> Callable[[Callable[[], Iterator[None]]], Callable[[], Iterator[None]]]:
    """``shape``: values of every world's shape."""

    def note(patched: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
        names = tuple(check if isinstance(check, str) else check.__name__ for check in seen_by)
        HEALING_BUGS[name] = KnownBug(name, source, names, contextmanager(patched), shape=shape)
        return patched

    return note


@_known_bug(
    "fragment moved before it is copied",
    "a copy that ends too early",
    rules.a_fragment_is_copied_before_its_metadata_change,
)
def _moved_before_copied() -> Iterator[None]:
    # The last entry of a fragment is left out.
    original = FragmentCopy.copy

    async def copy(
        self: FragmentCopy,
        fragment: Fragment,
        replacements: Mapping[int, str],
        is_needless: Callable[[], Awaitable[bool]],
    ) -> bool:
        shorter = attrs.evolve(fragment, last=fragment.last - 1)
        return await original(self, shorter, replacements, is_needless)

    with patch.object(FragmentCopy, "copy", copy):
        yield


@_known_bug(
    "entry missing everywhere counts as copied",
    "a copy that goes on after a read that failed",
    rules.a_fragment_is_copied_before_its_metadata_change,
    checkers.metadata_names_the_bookies_that_have_the_acknowledged_entries,
)
def _missing_counts_as_copied() -> Iterator[None]:
    original = FragmentCopy.copy

    async def copy(
        self: FragmentCopy,
        fragment: Fragment,
        replacements: Mapping[int, str],
        is_needless: Callable[[], Awaitable[bool]],
    ) -> bool:
        try:
            return await original(self, fragment, replacements, is_needless)
        except LedgerReadError:
            return True

    with patch.object(FragmentCopy, "copy", copy):
        yield


@_known_bug(
    "open end copied without a fence",
    "docs/autorecovery.md, ledgers that are being written",
    rules.the_open_end_is_left_to_its_writer,
)
def _open_end_copied() -> Iterator[None]:
    def fragments_of(metadata: LedgerMetadata, lac: int) -> list[Fragment]:
        return [attrs.evolve(each, is_final=True) for each in fragments.fragments_of(metadata, lac)]

    def apply(self: ReplaceReplicas, metadata: LedgerMetadata) -> LedgerMetadata | None:
        for ensemble in metadata.ensembles:
            if ensemble.first_entry_id == self.fragment.first and ensemble.bookies == self.fragment.bookies:
                changed = list(ensemble.bookies)
                for index, bookie in self.replacements.items():
                    changed[index] = bookie
                return metadata.with_replicas(ensemble.first_entry_id, changed)
        return None

    with (
        patch.object(ledger_check, "fragments_of", fragments_of),
        patch.object(ReplaceReplicas, "apply", apply),
    ):
        yield


@_known_bug(
    "new bookie that is in the ensemble already",
    "a target chosen without the other members",
    checkers.closed_metadata_is_complete,
)
def _bookie_twice() -> Iterator[None]:
    async def copy(
        self: LedgerRestorer,
        current: Versioned,
        bad: BadFragment,
        chosen: dict[int, str],
        away: Collection[str],
    ) -> bool:
        there = [name for index, name in enumerate(bad.fragment.bookies) if index not in bad.indices]
        changed = list(bad.fragment.bookies)
        for index in chosen:
            changed[index] = there[0] if there else chosen[index]
        copying = FragmentCopy(self._context, current, self._config, self._rate)
        targets = {index: changed[index] for index in chosen}
        if not await copying.copy(bad.fragment, targets, lambda: self._are_back(away)):
            return False
        await update_metadata(
            self._catalog,
            current,
            lambda metadata: metadata.with_replicas(bad.fragment.first, changed),
            retry_timeout_s=1.0,
            lock=self._lock_path(current.ledger_id),
        )
        return True

    with (
        patch.object(LedgerRestorer, "_copy", copy),
        patch.object(LedgerMetadata, "__attrs_post_init__", lambda self: None),  # it refuses such metadata
    ):
        yield


@_known_bug(
    "mark removed although a fragment was left out",
    "a failure of one fragment that is not passed on",
    rules.a_mark_goes_only_after_the_lost_bookie,
)
def _mark_removed_too_early() -> Iterator[None]:
    original = LedgerRestorer.restore

    async def restore(self: LedgerRestorer, ledger_id: int, absent: Collection[str] = ()) -> Outcome:
        find = self._check.find

        async def find_first(*args: Any) -> CheckResult:
            found = await find(*args)
            return attrs.evolve(found, bad=found.bad[:1])

        with patch.object(self._check, "find", find_first):
            outcome = await original(self, ledger_id, absent)
        return Outcome.RESTORED if outcome is Outcome.FAILED else outcome

    with patch.object(LedgerRestorer, "restore", restore):
        yield


@_known_bug(
    "open ledger closed at its LAC",
    "a close that trusts the LAC and reads no further",
    checkers.closing_keeps_every_acknowledged_entry,
)
def _closed_at_its_lac() -> Iterator[None]:
    async def recover(context: ClientContext, current: Versioned, codec: EntryCodec) -> Versioned:
        lac = await last_entry_of(context, current)
        if lac >= 0:  # the LAC that the last entry carries, which is older than the writer's hints
            (body,) = await ReplicaCopy(current, context, None).read(lac, lac, 1 << 20)
            lac = codec.unpack(body, current.ledger_id, lac).lac

        def close(metadata: LedgerMetadata) -> LedgerMetadata | None:
            return None if metadata.is_closed else metadata.closed(lac, max(0, lac))

        return await update_metadata(context.catalog, current, close, retry_timeout_s=5.0)

    with patch.object(ledger_restorer, "recover_ledger", recover):
        yield


@_known_bug(
    "open ledger closed without the grace",
    "a worker that does not wait for the writer",
    rules.an_open_ledger_is_closed_only_after_the_grace,
)
def _closed_without_grace() -> Iterator[None]:
    original = LedgerRestorer.restore

    async def restore(self: LedgerRestorer, ledger_id: int, absent: Collection[str] = ()) -> Outcome:
        outcome = await original(self, ledger_id, absent)
        if outcome is Outcome.OPEN:
            await self.close_if_stuck(ledger_id)
        return outcome

    with patch.object(LedgerRestorer, "restore", restore):
        yield


@_known_bug(
    "open ledger closed without a replacement",
    "ReplicationWorker: it fences whatever names a lost bookie",
    rules.an_open_ledger_is_closed_only_for_a_replacement,
    **SMALL_WORLD,
)
def _closed_without_replacement() -> Iterator[None]:
    async def has_replacement(self: LedgerRestorer, checked: object) -> bool:
        return True

    async def must_wait(self: LedgerRestorer, ledger_id: int, lost: object) -> bool:
        return False  # each marked ledger is tried

    with (
        patch.object(LedgerRestorer, "_has_replacement", has_replacement),
        patch.object(LedgerRestorer, "must_wait", must_wait),
    ):
        yield


@_known_bug(
    "entries above the LAC copied into a member",
    "a fill that takes the last entry of any bookie for the end",
    rules.only_confirmed_entries_are_copied,
    **SMALL_WORLD,
)
def _filled_above_the_lac() -> Iterator[None]:
    async def last_entry(context: ClientContext, current: Versioned) -> int:
        lac = await last_entry_of(context, current)
        copying = ReplicaCopy(current, context, None)
        while not current.metadata.is_closed:
            try:
                await copying.read(lac + 1, lac + 1, 1 << 20)
            except LedgerReadError:
                break
            lac += 1
        return lac

    with patch.object(ledger_restorer, "last_entry_of", last_entry):
        yield


@_known_bug(
    "holes of a member that is back are left",
    "ReplicationWorker: it copies only to bookies outside the ensemble",
    REST,
    **SMALL_WORLD,
)
def _holes_left() -> Iterator[None]:
    async def fill(self: LedgerRestorer, checked: object, bad: object, index: int) -> bool:
        return False

    with patch.object(LedgerRestorer, "_is_filled_or_refuses", fill):
        yield


@_known_bug(
    "what a bookie missed is forgotten",
    "our own: neither writers nor the auditor remember that a bookie was away",
    rules.every_replica_is_where_the_metadata_say,
)
def _missed_is_forgotten() -> Iterator[None]:
    async def find_nothing(self: object, *arguments: object) -> int:
        return 0

    with (
        patch.object(MissedReplicas, "note", lambda self, ledger_id, bookie: None),
        patch.object(ReturnedBookies, "check", find_nothing),
        patch.object(Auditor, "check_ledgers", find_nothing),
        patch.object(Auditor, "check_replicas", find_nothing),
    ):
        yield


@_known_bug(
    "bookie forgotten that was lost while there was no auditor",
    "an auditor that knows only the bookies that it saw leave",
    rules.no_ledger_names_a_lost_bookie,
)
def _bookie_forgotten() -> Iterator[None]:
    seen: dict[LedgerVisits, frozenset[str]] = {}
    audit_all, mark = Auditor.audit, LedgerVisits.mark

    async def audit(self: Auditor) -> int:
        registered = await read_registered(self._session, self._root)
        seen[self._visits] = seen.get(self._visits, frozenset()) | registered.all
        return await audit_all(self)

    async def mark_known(self: LedgerVisits, ledger_id: int, lost: Sequence[str]) -> bool:
        known = [bookie for bookie in lost if bookie in seen.get(self, frozenset())]
        return await mark(self, ledger_id, known) if known else False

    with patch.object(Auditor, "audit", audit), patch.object(LedgerVisits, "mark", mark_known):
        yield


@_known_bug(
    "worker that goes on after its session",
    "a zombie: its client renews the session, and the lock is not checked",
    rules.metadata_change_only_under_the_lock,
)
def _zombie() -> Iterator[None]:
    audit, init = AutoRecovery._audit_if_elected, LedgerRestorer.__init__
    restore = LedgerRestorer.restore

    async def restore_again(self: LedgerRestorer, *arguments: Any) -> Outcome:
        while True:
            try:
                return await restore(self, *arguments)
            except ConnectionLostError:
                await trio.sleep(0.2)  # until there is another session

    async def audit_if_elected(self: AutoRecovery, election: AuditorElection, candidate: Auditor) -> None:
        try:
            await audit(self, election, candidate)
        except* SessionExpiredError:
            await trio.sleep_forever()

    async def wait_expired(self: AutoRecovery, session: MetadataStore) -> None:
        await trio.sleep_forever()

    def use_client(self: LedgerRestorer, context: ClientContext, *args: Any, **options: Any) -> None:
        init(self, context, *args, **options)
        self._catalog, self._session = context.catalog, context.catalog._store

    async def update(*args: Any, lock: str, **options: Any) -> Versioned:
        return await update_metadata(*args, **options)

    with (
        patch.object(AutoRecovery, "_audit_if_elected", audit_if_elected),
        patch.object(AutoRecovery, "_wait_expired", wait_expired),
        patch.object(LedgerRestorer, "__init__", use_client),
        patch.object(LedgerRestorer, "restore", restore_again),
        patch.object(ledger_restorer, "update_metadata", update),
    ):
        yield


@_known_bug(
    "lock taken again while it is being released",
    "our own: found by these worlds",
    rules.metadata_change_only_under_the_lock,
    REST,  # its lock is left, and no other call of ``take`` looks for it
)
def _lock_taken_again() -> Iterator[None]:
    async def release(self: UnderReplicatedLedgers, taken: TakenLedger) -> None:
        self._held.discard(taken.ledger_id)
        self._strays.add(taken.ledger_id)
        with trio.move_on_after(2.0) as scope:
            scope.shield = True
            while True:
                try:
                    await self._session.delete(self.lock_path(taken.ledger_id))
                except ConnectionLostError:
                    await trio.sleep(0.5)
                    continue
                except (NoNodeError, SessionExpiredError):
                    pass
                self._strays.discard(taken.ledger_id)
                return

    with patch.object(UnderReplicatedLedgers, "release", release):
        yield
