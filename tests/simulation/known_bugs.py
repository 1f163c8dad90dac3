"""Bugs of other systems, put back one at a time, to check that the simulation finds them.

Inside: ``KNOWN_BUGS``: the name, the source and a patch of each bug. Not inside: descriptions
(``known_bugs.md``).
Always: the product contains none of this; leaving the ``with`` block removes the bug.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import attrs

from bookie.cluster import startup_check
from bookie.healing import integrity, limbo
from bookie.journal import replay
from bookie.journal.group_commit import WriteBatch
from bookie.journal.journal import Journal
from bookie.journal.replay import JournalScan
from bookie.ledger_record import LedgerRecord
from bookie.requests.session import BookieService, ClientSession
from bookie.storage.storage import Storage
from ledger.digest import DigestType, EntryCodec
from ledger.metadata import Ensemble, LedgerMetadata
from ledger.packed_entries import PackedEntries
from ledger.read.handle import ReadHandle
from ledger.recovery.driver import RecoveryDriver
from ledger.recovery.recovery import Recovery
from ledger.wire.messages import ReadRequest
from ledger.write.actions import Action, BeginRepair
from ledger.write.ensemble_change import EnsembleChange
from ledger.write.ensemble_state import TRANSITIONS, EnsembleEvent, EnsembleState
from ledger.write.explicit_lac import Position
from ledger.write.lac_hints import LacHints
from ledger.write.repair import EnsembleRepair
from ledger.write.writer import LedgerWriter
from tests.simulation import bookies, checkers

if TYPE_CHECKING:
    from tests.simulation.world import World

_HEADER_BYTES = 32  # of an entry, before its digest


@attrs.frozen
class KnownBug:
    """One bug of another system."""

    name: str
    source: str
    seen_by: tuple[str, ...]  # the checkers that should report it
    patched: Callable[[], AbstractContextManager[None]]
    prepare: Callable[[World], None] | None = None
    switches: Mapping[str, bool] = attrs.field(factory=dict)  # of faults, in the worlds that look for it
    shape: Mapping[str, object] = attrs.field(factory=dict)  # values of the shapes of these worlds


KNOWN_BUGS: dict[str, KnownBug] = {}


def _known_bug(
    name: str,
    source: str,
    *seen_by: Callable[..., str | None],
    prepare: Callable[[World], None] | None = None,
    shape: Mapping[str, object] | None = None,
) -> Callable[[Callable[[], Iterator[None]]], Callable[[], Iterator[None]]]:
    def note(patched: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
        names = tuple(check.__name__ for check in seen_by)
        KNOWN_BUGS[name] = KnownBug(
            name, source, names, contextmanager(patched), prepare, shape={} if shape is None else shape
        )
        return patched

    return note


@_known_bug(
    "ack before fsync",
    "nats-io/nats-server#7564, apache/bookkeeper#3979",
    checkers.an_acknowledged_entry_is_durable_on_an_ack_quorum,
)
def _ack_before_fsync() -> Iterator[None]:
    original = Journal.submit

    def submit(self: Journal, batch: WriteBatch) -> None:
        batch.sync = False
        original(self, batch)

    with patch.object(Journal, "submit", submit):
        yield


@_known_bug(
    "lone ack before fsync",
    "nats-io/nats-server#7564, where the loop takes the place of the journal's thread",
    checkers.an_acknowledged_entry_is_durable_on_an_ack_quorum,
)
def _lone_ack_before_fsync() -> Iterator[None]:
    original = Journal._commit_lone

    def commit_lone(self: Journal) -> None:
        self._waiting[0].sync = False
        original(self)

    with patch.object(Journal, "_commit_lone", commit_lone):
        yield


@_known_bug(
    "fencing by LAC read alone",
    "apache/bookkeeper#2614",
    checkers.a_bookie_fences_before_it_replies_to_a_recovery,
    checkers.a_bookie_takes_no_adds_after_a_fence,
    checkers.a_bookie_forgets_no_fence,
)
def _fencing_by_lac_read_alone() -> Iterator[None]:
    original = RecoveryDriver._fencing_read

    def fencing_read(self: RecoveryDriver, entry_id: int) -> ReadRequest:
        request = original(self, entry_id)
        return request if entry_id < 0 else attrs.evolve(request, fence=False, master_key=None)

    with patch.object(RecoveryDriver, "_fencing_read", fencing_read):
        yield


@_known_bug(
    "recovery from LAC -1",
    "apache/bookkeeper#2615",
    checkers.a_recovery_writes_only_to_the_last_segment,
)
def _recovery_from_the_beginning() -> Iterator[None]:
    # Recovery then does not stop at the first entry of the last segment, and an empty one leads further back.
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

    def advance(self: LedgerWriter) -> range:
        state = self.state
        if state is EnsembleState.CHANGING:
            self.state = EnsembleState.DEGRADED
        try:
            return original(self)
        finally:
            self.state = state

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
    # A failure during a change begins another change; the first of them to end lets entries be confirmed.
    targets = {event: target for (_, event), target in TRANSITIONS.items()}
    bookie_failed, wait = EnsembleRepair.on_bookie_failed, EnsembleRepair._wait

    def move(self: LedgerWriter, event: EnsembleEvent) -> None:
        if self.state is not EnsembleState.CHANGING or event in (
            EnsembleEvent.SETTLE_CHANGE,
            EnsembleEvent.END,
        ):
            self.state = TRANSITIONS.get((self.state, event), targets[event])

    def always_begin_repair(self: EnsembleRepair, *arguments: Any, **keywords: Any) -> list[Action]:
        actions = bookie_failed(self, *arguments, **keywords)
        return [*actions[:2], BeginRepair()] if actions and not self.is_over else actions

    def wait_if_any(self: EnsembleRepair, now_s: float) -> list[Action]:
        return wait(self, now_s) if self._writer.failures else []  # another change may have ended them

    with (
        patch.object(LedgerWriter, "move", move),
        patch.object(EnsembleRepair, "on_bookie_failed", always_begin_repair),
        patch.object(EnsembleRepair, "_wait", wait_if_any),
        patch.object(EnsembleChange, "check_found", lambda self, metadata: None),
    ):
        yield


def _without_cookies(world: World) -> None:
    for machine in world.bookies.values():
        machine.ignores_cookies = True


@_known_bug(
    'wiped bookie answering "no entry"',
    "apache/bookkeeper#2612",
    checkers.a_bookie_denies_no_entry_that_it_acknowledged,
    checkers.a_bookie_forgets_no_fence,
    prepare=_without_cookies,
)
def _wiped_bookie() -> Iterator[None]:
    yield


@_known_bug(
    "no limbo after a wiped disk",
    "apache/bookkeeper#2612, BP-46",
    checkers.a_bookie_denies_no_entry_that_it_acknowledged,
    checkers.a_bookie_forgets_no_fence,
)
def _no_limbo() -> Iterator[None]:
    # An empty bookie in the place of another one replies as if it had never stored an entry.
    with patch.object(bookies, "STARTUP_CHECK", attrs.evolve(bookies.STARTUP_CHECK, limbo=False)):
        yield


@_known_bug(
    "old copy taken for the newest",
    "apache/bookkeeper#2612; Jepsen's snapshots put back",
    checkers.a_bookie_denies_no_entry_that_it_acknowledged,
    checkers.a_bookie_forgets_no_fence,
)
def _old_copy() -> Iterator[None]:
    with patch.object(startup_check, "incarnation_mismatch", lambda found, registered: None):
        yield


@_known_bug(
    "fence lost with replaced bookies",
    "apache/bookkeeper#4812",
    checkers.a_bookie_forgets_no_fence,
)
def _replaced_bookies() -> Iterator[None]:
    original = limbo.affected_ledger

    def affected_ledger(*arguments: Any) -> Any:
        found = original(*arguments)
        return None if found is None else attrs.evolve(found, fence=False)

    with patch.object(limbo, "affected_ledger", affected_ledger):
        yield


@_known_bug(
    "limbo that ends too early",
    "BP-46",
    checkers.a_bookie_denies_no_entry_that_it_acknowledged,
)
def _limbo_that_ends_too_early() -> Iterator[None]:
    # The ledger is recovered, but the bookie denies entries again before it has copied them.
    with patch.object(integrity, "held_ranges", lambda metadata, bookie_id: iter(())):
        yield


@_known_bug(
    "fence lost on restart",
    "apache/bookkeeper#4843, #913",
    checkers.a_bookie_forgets_no_fence,
)
def _fence_lost_on_restart() -> Iterator[None]:
    def stage_fence(self: Storage, batch: WriteBatch, ledger: LedgerRecord) -> None:
        ledger.fenced = True  # in memory only

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
    "LAC hint that runs ahead",
    "our own; bookkeeper-tlaplus, invariant 3",
    checkers.a_reader_sees_a_lac_only_once_it_is_on_an_ack_quorum,
)
def _lac_hint_that_runs_ahead() -> Iterator[None]:
    # A writer hints the entries that it has sent, not those that are confirmed.
    class Pushed:
        def __init__(self, position: Position) -> None:
            self._position = position

        @property
        def lac(self) -> int:
            return self._position.last_pushed

        last_pushed = lac

    original = LacHints._look

    def look(self: LacHints) -> None:
        position = self._position
        self._position = Pushed(position)
        try:
            original(self)
        finally:
            self._position = position

    with patch.object(LacHints, "_look", look):
        yield


@_known_bug(
    "torn journal tail accepted",
    "apache/bookkeeper#4659, #2176",
    checkers.a_bookie_has_only_entries_that_were_sent_to_it,
)
def _torn_journal_tail_accepted() -> Iterator[None]:
    # As a reader without checksums: any bytes with a plausible length are a record.
    def ended(self: JournalScan, start: int, records: list[bytes], at: int, what: str) -> Any:
        return records, at if records else start

    with (
        patch.object(replay, "trailer_matches", lambda *args: True),
        patch.object(JournalScan, "_ended", ended),
    ):
        yield


@_known_bug(
    "digest over the wrong range",
    "apache/bookkeeper PR#4196, PR#4140, PR#4205",
    checkers.replicas_do_not_diverge,
    checkers.every_acknowledged_entry_is_readable,
    checkers.a_reader_gets_the_bytes_that_were_written,
)
def _digest_over_the_wrong_range() -> Iterator[None]:
    # The digest covers the header alone, for writer and reader, so that a round trip does not show the bug.
    original = EntryCodec.__init__

    def init(self: EntryCodec, digest_type: DigestType, password: bytes) -> None:
        original(self, digest_type, password)
        whole = self.digest
        self.digest = lambda header, payload: whole(header, b"")

    def payloads(
        self: EntryCodec, bodies: Sequence[bytes], ledger_id: int, first_entry_id: int
    ) -> list[bytes]:
        # The original's quick check covers the whole range. A bad first entry is still reported.
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
    """One connection's own view of a ledger: it misses a fence that came over another connection."""

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
    """The storage with a view of each ledger that belongs to one connection."""

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
    checkers.a_bookie_fences_before_it_replies_to_a_recovery,
)
def _duplicate_handle() -> Iterator[None]:
    original = ClientSession.__init__

    def init(self: ClientSession, service: BookieService, send: Any, start: Any) -> None:
        original(self, service, send, start)
        self._storage = _OwnHandles(service.storage)  # type: ignore[assignment]

    with patch.object(ClientSession, "__init__", init):
        yield


@_known_bug(
    "reader of files that trusts what it finds",
    "our own: the bookie moves, deletes and replaces entry logs under a reader of files",
    checkers.a_reader_gets_the_bytes_that_were_written,
    shape={"reads_files": True, "readers": 3},
)
def _reader_of_files_that_trusts() -> Iterator[None]:
    # An entry at the named place counts as the entry, and its digest is not compared.
    original = ReadHandle._read_locally

    async def read_locally(
        self: ReadHandle, metadata: LedgerMetadata, first: int, last: int, size_bytes_max: int, unpack: Any
    ) -> Any:
        head = _HEADER_BYTES + self._codec.digest_type.size_bytes

        def trust(entries: Sequence[bytes], first_id: int) -> Any:
            if isinstance(entries, PackedEntries) and unpack == self._unpack_payloads:
                return [bytes(entry[head:]) for entry in entries]
            return unpack(entries, first_id)

        return await original(self, metadata, first, last, size_bytes_max, trust)

    with patch.object(ReadHandle, "_read_locally", read_locally):
        yield
