"""The bugs of the field, put back one by one, to see that the world finds them.

Inside: ``KNOWN_BUGS``: for each a name, what it is, and a patch for the time of some worlds.
Not inside: the stories behind them (``known_bugs.md``).
Always: nothing of it is in the product; leaving the ``with`` takes the bug out again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import attrs

from bookie import admission, integrity, limbo, replay
from bookie.journal import Journal
from bookie.ledgers import LedgerRecord
from bookie.replay import JournalScan
from bookie.service import BookieService, Session
from bookie.storage import Storage
from ledger.digest import DigestType, EntryCodec
from ledger.ensemble_change import EnsembleChange
from ledger.metadata import Ensemble, LedgerMetadata
from ledger.recovery import Recovery
from ledger.recovery_run import RecoveryRun
from ledger.repair import EnsembleRepair
from ledger.wire.messages import ReadRequest
from ledger.writer import LedgerWriter
from tests.simulation import bookies, checkers

if TYPE_CHECKING:
    from tests.simulation.world import World


@attrs.frozen
class KnownBug:
    """One bug that others had."""

    name: str
    source: str
    seen_by: tuple[str, ...]  # the checkers that should see it
    patched: Callable[[], AbstractContextManager[None]]
    prepare: Callable[[World], None] | None = None


KNOWN_BUGS: dict[str, KnownBug] = {}


def _known_bug(
    name: str,
    source: str,
    *seen_by: Callable[..., str | None],
    prepare: Callable[[World], None] | None = None,
) -> Callable[[Callable[[], Iterator[None]]], Callable[[], Iterator[None]]]:
    def note(patched: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
        names = tuple(check.__name__ for check in seen_by)
        KNOWN_BUGS[name] = KnownBug(name, source, names, contextmanager(patched), prepare)
        return patched

    return note


@_known_bug(
    "ack before fsync",
    "nats-io/nats-server#7564, apache/bookkeeper#3979",
    checkers.an_acknowledged_entry_is_durable_on_an_ack_quorum,
)
def _ack_before_fsync() -> Iterator[None]:
    original = Journal.submit

    def submit(self: Journal, records: list[bytes], size_bytes: int, on_durable: Any, *, sync: bool) -> None:
        original(self, records, size_bytes, on_durable, sync=False)

    with patch.object(Journal, "submit", submit):
        yield


@_known_bug(
    "fencing by LAC read alone",
    "apache/bookkeeper#2614",
    checkers.whoever_answers_a_recovery_has_fenced_the_ledger,
    checkers.a_bookie_takes_no_adds_after_a_fence,
    checkers.a_bookie_forgets_no_fence,
)
def _fencing_by_lac_read_alone() -> Iterator[None]:
    original = RecoveryRun._fencing_read

    def fencing_read(self: RecoveryRun, entry_id: int) -> ReadRequest:
        request = original(self, entry_id)
        return request if entry_id < 0 else attrs.evolve(request, fence=False, master_key=None)

    with patch.object(RecoveryRun, "_fencing_read", fencing_read):
        yield


@_known_bug(
    "recovery from LAC -1",
    "apache/bookkeeper#2615",
    checkers.a_recovery_writes_only_to_the_last_segment,
)
def _recovery_from_the_beginning() -> Iterator[None]:
    # Without the floor of the last segment, an empty one leads back into the segments before it.
    original = Recovery._begin_reading

    class NoFloor:
        def __init__(self, metadata: LedgerMetadata) -> None:
            self._metadata = metadata
            self.last_ensemble = Ensemble(0, metadata.last_ensemble.bookies)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._metadata, name)

    def begin_reading(self: Recovery) -> Any:
        self._metadata = NoFloor(self._metadata)  # type: ignore[assignment]
        return original(self)

    with patch.object(Recovery, "_begin_reading", begin_reading):
        yield


@_known_bug(
    "ensemble change confirmed early",
    "apache/bookkeeper#1591",
    checkers.metadata_names_the_bookies_that_have_the_acknowledged_entries,
    checkers.an_acknowledged_entry_is_durable_on_an_ack_quorum,
)
def _ensemble_change_confirmed_early() -> Iterator[None]:
    original = LedgerWriter.advance

    def advance(self: LedgerWriter) -> bool:
        is_changing, self.changing_ensemble = self.changing_ensemble, False
        try:
            return original(self)
        finally:
            self.changing_ensemble = is_changing

    with patch.object(LedgerWriter, "advance", advance):
        yield


@_known_bug(
    "overlapping ensemble changes",
    "apache/bookkeeper#4097",
    checkers.closed_metadata_is_complete,
    checkers.metadata_names_the_bookies_that_have_the_acknowledged_entries,
    checkers.an_acknowledged_entry_is_durable_on_an_ack_quorum,
)
def _overlapping_ensemble_changes() -> Iterator[None]:
    # Failures during a change begin another one; whichever ends first lets entries be confirmed.
    begin, finish = LedgerWriter.begin_change, LedgerWriter.finish_change

    def begin_change(self: LedgerWriter) -> None:
        self.changing_ensemble = False
        begin(self)

    def finish_change(self: LedgerWriter, ensemble: Sequence[str]) -> Any:
        self.changing_ensemble = True
        return finish(self, ensemble)

    try_again = EnsembleRepair._try_again

    async def try_again_if_any(self: EnsembleRepair) -> None:
        if self._writer.failures:  # another change may have ended them
            await try_again(self)

    never = property(lambda self: False, lambda self, value: None)
    with (
        patch.object(LedgerWriter, "begin_change", begin_change),
        patch.object(LedgerWriter, "finish_change", finish_change),
        patch.object(EnsembleRepair, "_try_again", try_again_if_any),
        patch.object(EnsembleChange, "check_found", lambda self, metadata: None),
        patch.object(EnsembleRepair, "is_running", never, create=True),
    ):
        yield


def _without_cookies(world: World) -> None:
    for machine in world.bookies.values():
        machine.ignores_cookies = True


@_known_bug(
    'wiped bookie answering "no entry"',
    "apache/bookkeeper#2612",
    checkers.a_bookie_denies_nothing_that_it_acknowledged,
    checkers.a_bookie_forgets_no_fence,
    prepare=_without_cookies,
)
def _wiped_bookie() -> Iterator[None]:
    yield


@_known_bug(
    "no limbo after a wiped disk",
    "apache/bookkeeper#2612, BP-46",
    checkers.a_bookie_denies_nothing_that_it_acknowledged,
    checkers.a_bookie_forgets_no_fence,
)
def _no_limbo() -> Iterator[None]:
    # An empty bookie in the place of another one answers as if it had always been empty.
    with patch.object(bookies, "ADMISSION", attrs.evolve(bookies.ADMISSION, limbo=False)):
        yield


@_known_bug(
    "old copy taken for the newest",
    "apache/bookkeeper#2612; Jepsen's snapshots put back",
    checkers.a_bookie_denies_nothing_that_it_acknowledged,
    checkers.a_bookie_forgets_no_fence,
)
def _old_copy() -> Iterator[None]:
    with patch.object(admission, "doubt_of", lambda found, registered: None):
        yield


@_known_bug(
    "fence lost with replaced bookies",
    "apache/bookkeeper#4812",
    checkers.a_bookie_forgets_no_fence,
)
def _replaced_bookies() -> Iterator[None]:
    original = limbo.suspicion

    def suspicion(*arguments: Any) -> Any:
        found = original(*arguments)
        return None if found is None else attrs.evolve(found, fence=False)

    with patch.object(limbo, "suspicion", suspicion):
        yield


@_known_bug(
    "limbo that ends too early",
    "BP-46",
    checkers.a_bookie_denies_nothing_that_it_acknowledged,
)
def _limbo_that_ends_too_early() -> Iterator[None]:
    # The ledger is recovered, but its entries are not copied before denials are given again.
    with patch.object(integrity, "held_ranges", lambda metadata, bookie_id: iter(())):
        yield


@_known_bug(
    "fence lost on restart",
    "apache/bookkeeper#4843, #913",
    checkers.a_bookie_forgets_no_fence,
)
def _fence_lost_on_restart() -> Iterator[None]:
    def stage_fence(self: Storage, ledger: LedgerRecord) -> None:
        ledger.fenced = True  # in memory, and nowhere else

    def stored(self: LedgerRecord) -> Any:
        return attrs.evolve(original(self), fenced=False)

    original = LedgerRecord.stored
    with patch.object(Storage, "stage_fence", stage_fence), patch.object(LedgerRecord, "stored", stored):
        yield


@_known_bug(
    "LAC beyond acknowledged",
    "bookkeeper-tlaplus, invariant 3",
    checkers.an_entry_carries_no_greater_lac_than_was_acknowledged,
)
def _lac_beyond_acknowledged() -> Iterator[None]:
    original = LedgerWriter.append

    def append(self: LedgerWriter, payload: bytes) -> int:
        lac, self.lac = self.lac, self.last_pushed
        try:
            return original(self, payload)
        finally:
            self.lac = lac

    with patch.object(LedgerWriter, "append", append):
        yield


@_known_bug(
    "torn journal tail accepted",
    "apache/bookkeeper#4659, #2176",
    checkers.a_bookie_has_only_what_was_sent_to_it,
)
def _torn_journal_tail_accepted() -> Iterator[None]:
    # As a reader without checksums does: what has a plausible length is a record.
    def ended(self: JournalScan, start: int, records: list[bytes], at: int, what: str) -> Any:
        return records, at if records else start

    with (
        patch.object(replay, "trailer_holds", lambda *args: True),
        patch.object(JournalScan, "_ended", ended),
    ):
        yield


@_known_bug(
    "digest over the wrong range",
    "apache/bookkeeper PR#4196, PR#4140, PR#4205",
    checkers.replicas_do_not_diverge,
    checkers.every_acknowledged_entry_is_readable,
    checkers.a_reader_gets_what_was_written,
)
def _digest_over_the_wrong_range() -> Iterator[None]:
    # Writer and reader agree, so a round trip sees nothing: the digest covers the header alone.
    original = EntryCodec.__init__

    def init(self: EntryCodec, digest_type: DigestType, password: bytes) -> None:
        original(self, digest_type, password)
        whole = self.digest
        self.digest = lambda header, payload: whole(header, b"")

    def payloads(
        self: EntryCodec, bodies: Sequence[bytes], ledger_id: int, first_entry_id: int
    ) -> list[bytes]:
        # The quick check has its own idea of the range. A bad first entry is told as ever.
        found = self._payloads_any(bodies, ledger_id, first_entry_id)
        if not found and bodies:
            self.unpack(bodies[0], ledger_id, first_entry_id)
        return found

    with (
        patch.object(EntryCodec, "__init__", init),
        patch.object(EntryCodec, "payloads", payloads),
    ):
        yield


class _Handle:
    """One connection's own idea of a ledger: it does not see a fence that came over another one."""

    def __init__(self, record: LedgerRecord) -> None:
        object.__setattr__(self, "_record", record)
        object.__setattr__(self, "fenced", record.fenced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._record, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._record, name, value)
        if name == "fenced":
            object.__setattr__(self, name, value)


class _OwnHandles:
    """The storage as one connection sees it."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._handles: dict[int, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def ledger(self, ledger_id: int) -> Any:
        record = self._storage.ledger(ledger_id)
        if record is None:
            return None
        handle = self._handles.get(ledger_id)
        if handle is None or handle._record is not record:
            handle = self._handles[ledger_id] = _Handle(record)
        return handle


@_known_bug(
    "duplicate handle",
    "apache/bookkeeper PR#4701",
    checkers.a_bookie_takes_no_adds_after_a_fence,
    checkers.whoever_answers_a_recovery_has_fenced_the_ledger,
)
def _duplicate_handle() -> Iterator[None]:
    original = Session.__init__

    def init(self: Session, service: BookieService, send: Any, start: Any) -> None:
        original(self, service, send, start)
        self._storage = _OwnHandles(service.storage)  # type: ignore[assignment]

    with patch.object(Session, "__init__", init):
        yield
