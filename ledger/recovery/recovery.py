"""The decision where a ledger ends whose writer is gone, or must stop.

Inside: the bookies to fence and to read from, the meaning of their replies, the entries to write again and
where, the decision.
Not inside: marking and closing the ledger in the metadata (``opening``), requests, time (``driver``).
Always (each rule keeps acknowledged entries safe):
- Every read that the decision uses fences, not only the first one.
- An entry is left out only if this many bookies of its write set, all fenced, denied it that no ack quorum
can
  hold it. An error, silence, limbo or a bad digest is never a denial.
- An entry that is kept is on an ack quorum again before the ledger is closed.
- No entry in front of the last segment is touched.

Source: LedgerRecoveryOp.java, ReadOnlyLedgerHandle.java; docs/protocol.md 7; docs/known-bugs.md 81.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

import attrs

from ledger.digest import ENTRY_ID_MAX, Entry
from ledger.errors import (
    AccessDeniedError,
    ClientRefusedError,
    LedgerError,
    LedgerRecoveryError,
    UnauthorizedRefusal,
    is_refusal,
)
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.quorum import denials_needed
from ledger.read.replica_rules import LacQuery, is_denial, replicas
from ledger.write.writer import LedgerWriter, Pack, SendAdds

ReadResult = Entry | Exception
"""A verified entry, or the reason why there is none. ``NoEntryRefusal`` and ``NoLedgerRefusal`` are
denials."""

_END_MAX = ENTRY_ID_MAX  # entries from this id on are not looked for: an entry's successor must have an id

Choose = Callable[[Sequence[str], Collection[int]], Mapping[int, str]]
"""Replacements for the failed indices of an ensemble; fewer if there are not enough bookies."""


@attrs.frozen
class ReadLac:
    """Fence this bookie and read its last entry; pass the result to ``on_lac_read``."""

    bookie: str


@attrs.frozen
class ReadEntry:
    """Fence this bookie and read an entry; pass the result to ``on_entry_read``."""

    bookie: str
    entry_id: int


@attrs.frozen
class AwaitOthers:
    """Enough bookies denied this entry. Give the others some time, then call ``on_waited``."""

    entry_id: int


@attrs.frozen
class AddEntry:
    """Store this body as a recovery add; pass the outcome to ``on_entry_added``."""

    bookie: str
    entry_id: int
    body: bytes


@attrs.frozen
class ReadLength:
    """Read this confirmed entry from any replica, without fencing; call ``on_length_read``."""

    entry_id: int


@attrs.frozen
class CloseLedger:
    """The end is decided. Write these ensembles and the end into the metadata."""

    last_entry_id: int
    length_bytes: int
    ensembles: tuple[tuple[int, tuple[str, ...]], ...]  # first entry id, bookies; ascending

    def apply(self, metadata: LedgerMetadata) -> LedgerMetadata | None:
        """The closed metadata; None if the ledger is closed already, since a close is final."""
        if metadata.is_closed:
            return None
        for first_entry_id, bookies in self.ensembles:
            metadata = metadata.with_ensemble(first_entry_id, bookies)
        return metadata.closed(self.last_entry_id, self.length_bytes)


@attrs.frozen
class GiveUp:
    """The end cannot be decided now; no decision was made."""

    error: LedgerError


@attrs.frozen
class Progress:
    """How far a recovery has come."""

    last_entry_id: int  # -1 before it has found the LAC
    found_on: Mapping[str, int] = attrs.field(
        hash=False
    )  # by bookie: entries that it was the first to return

    def __str__(self) -> str:
        return ", ".join(f"{count} on bookie {bookie}" for bookie, count in self.found_on.items()) or "none"


Action = ReadLac | ReadEntry | AwaitOthers | AddEntry | ReadLength | CloseLedger | GiveUp


class _Phase(enum.Enum):
    FENCING = "fencing"
    READING = "reading"
    WRITING = "writing"  # the end is known; entries up to it are being written again
    MEASURING = "measuring"
    OVER = "over"


class _Verdict(enum.Enum):
    UNDECIDED = 0
    END = 1  # the entry does not exist: the ledger ends in front of it


@attrs.define
class _EntryReads:
    sent: int
    denials: int = 0
    reasons: dict[str, Exception] = attrs.field(factory=dict)
    result: Entry | LedgerError | _Verdict = _Verdict.UNDECIDED

    @property
    def unknown(self) -> list[Exception]:
        """The reasons of the bookies that neither returned the entry nor denied it."""
        return [reason for reason in self.reasons.values() if not is_denial(reason)]


class Recovery:
    """The recovery of one ledger, from its metadata in the state IN_RECOVERY."""

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        *,
        pack: Pack,
        choose: Choose,
        read_ahead: int = 16,
        bytes_max: int | None = None,
        entries_max: int | None = None,
    ) -> None:
        """Prepare the recovery; ``start`` returns the first actions.

        Args:
            pack: Makes the body of an entry from its id, LAC, length and payload.
            read_ahead: The number of entries that may be read and not yet written again.
            bytes_max: With this many bytes of entries that some replica has not answered, none is read.
            entries_max: The recovery gives up when it finds more entries than this after the LAC.
        """
        assert metadata.state is LedgerState.IN_RECOVERY  # ``recover_ledger`` has marked it
        assert read_ahead >= 1  # ClientConfig validates it
        self._ledger_id = ledger_id
        # All reads use this copy. A replacement below holds only what this recovery writes to it.
        self._metadata = metadata
        self._pack, self._choose, self._read_ahead = pack, choose, read_ahead
        self._bytes_max, self._entries_max = bytes_max, entries_max
        self._found_on: Counter[str] = Counter()  # how many entries each bookie was the first to return
        self._phase = _Phase.FENCING
        self._failed: set[str] = set()  # bookies that failed this recovery; it writes to none of them again
        self._query = LacQuery(
            ledger_id,
            metadata.last_ensemble.bookies,
            write_quorum=metadata.write_quorum,
            ack_quorum=metadata.ack_quorum,
        )
        self._writer: LedgerWriter
        self._reads: dict[int, _EntryReads] = {}
        self._next_to_read = 0
        self._head = 0  # the next entry to decide about
        self._found_lac = -1  # the last entry that the bookies, or the metadata, know to be confirmed
        self._length_bytes: int | None = None  # of the ledger up to the last entry written again
        self._ensembles: dict[int, tuple[str, ...]] = {}

    @property
    def progress(self) -> Progress:
        """How far the recovery has come, and on which bookies it found entries."""
        return Progress(self._head - 1, dict(self._found_on))

    def start(self) -> list[Action]:
        """Fence the last ensemble."""
        return [ReadLac(bookie) for bookie in self._metadata.last_ensemble.bookies]

    def on_lac_read(self, bookie: str, result: ReadResult) -> list[Action]:
        """The result of ``ReadLac``."""
        if self._phase is not _Phase.FENCING:
            return []
        query = self._query
        if isinstance(result, Entry):
            query.on_entry(bookie, result)
        elif isinstance(result, UnauthorizedRefusal):
            return self._give_up(AccessDeniedError(self._ledger_id, bookie, "write"))
        else:
            query.on_failure(bookie, result)
        if query.is_covered:
            return self._begin_reading()
        if query.is_exhausted and query.is_refused:
            return self._give_up(ClientRefusedError(self._ledger_id, list(query.reasons.values())))
        if query.is_exhausted:
            return self._give_up(
                LedgerRecoveryError(
                    self._ledger_id,
                    f"too few bookies of its last ensemble were fenced: {_joined(query.reasons)}",
                )
            )
        return []

    def on_entry_read(self, bookie: str, entry_id: int, result: ReadResult) -> list[Action]:
        """The result of ``ReadEntry``."""
        reads = self._reads.get(entry_id)
        if self._phase is not _Phase.READING or reads is None or reads.result is not _Verdict.UNDECIDED:
            return []
        if isinstance(result, Entry):
            reads.result = result
            self._found_on[bookie] += 1
        elif isinstance(result, UnauthorizedRefusal):
            return self._give_up(AccessDeniedError(self._ledger_id, bookie, "write"))
        else:
            reads.reasons[bookie] = result
            # Only denials count. After write_quorum - ack_quorum + 1 of them, each from a bookie that this
            # read fenced, no ack quorum holds the entry, and none can come about.
            reads.denials += is_denial(result)
            needed = denials_needed(self._metadata.write_quorum, self._metadata.ack_quorum)
            is_denied = reads.denials >= needed
            if is_denied and len(reads.reasons) == reads.sent:
                reads.result = _Verdict.END
            elif is_denied and reads.denials == needed and is_denial(result):
                # The ledger could end here. But a bookie that lost its disk and kept its name denies entries
                # that it acknowledged. If another bookie has the entry, it exists. (apache/bookkeeper#2612)
                return [*self._decide(), AwaitOthers(entry_id)]
            elif not is_denied and len(reads.reasons) == reads.sent and all(map(is_refusal, reads.unknown)):
                reads.result = ClientRefusedError(self._ledger_id, reads.unknown)
            elif not is_denied and len(reads.reasons) == reads.sent:
                reads.result = LedgerRecoveryError(
                    self._ledger_id,
                    f"whether entry {entry_id} exists is unknown: {_joined(reads.reasons)}",
                )
        return self._decide()

    def on_waited(self, entry_id: int) -> list[Action]:
        """The time that ``AwaitOthers`` grants is over: the denials decide."""
        reads = self._reads.get(entry_id)
        if self._phase is not _Phase.READING or reads is None or reads.result is not _Verdict.UNDECIDED:
            return []
        reads.result = _Verdict.END
        return self._decide()

    def on_entry_added(self, bookie: str, entry_id: int, error: Exception | None) -> list[Action]:
        """The outcome of ``AddEntry``: None if the bookie stored the entry."""
        if self._phase not in (_Phase.READING, _Phase.WRITING):
            return []
        writer = self._writer
        actions: list[Action] = []
        if error is None:
            writer.adds_answered(bookie, (entry_id,))
        elif isinstance(error, UnauthorizedRefusal):
            return self._give_up(AccessDeniedError(self._ledger_id, bookie, "write"))
        elif writer.failed(bookie, error, lost=False):
            actions += self._replace_failed()
        return actions + self._decide()

    def on_length_read(self, length_bytes: int | None, unreachable: Exception | None = None) -> list[Action]:
        """The result of ``ReadLength``: the length in the entry; None if no replica returned the entry.

        Args:
            unreachable: The error of a replica that did not reply, if there is one: it may reply later.
        """
        if self._phase is not _Phase.MEASURING:
            return []
        if length_bytes is None and unreachable is not None:
            # The recorded length is final, and the entry is safe. A later recovery is better than a wrong
            # length.
            return self._give_up(
                LedgerRecoveryError(
                    self._ledger_id, f"the length at entry {self._writer.lac} is unknown: {unreachable}"
                )
            )
        # No replica has the entry. The length that came with the LAC is the best value known; no entry
        # depends on it.
        return self._close(self._query.length_bytes if length_bytes is None else length_bytes)

    def _begin_reading(self) -> list[Action]:
        # An empty last segment carries no LAC, but it began at LAC + 1, so every entry in front of it is
        # confirmed. Without this floor, entries of earlier segments would be written again into the last one.
        # (apache/bookkeeper#2615)
        lac = max(self._query.lac, self._metadata.last_ensemble.first_entry_id - 1)
        pack = self._pack
        self._writer = LedgerWriter(
            self._metadata.last_ensemble.bookies,
            write_quorum=self._metadata.write_quorum,
            ack_quorum=self._metadata.ack_quorum,
            # Entries carry the LAC that was found, not the progress of this recovery. Replacements are not in
            # the metadata until the close. If this process died before it, the next recovery would begin
            # after the greater LAC. It would leave entries on fewer bookies of the ensemble in the metadata
            # than an ack quorum.
            pack=lambda entry_id, _, length_bytes, payload: pack(entry_id, lac, length_bytes, payload),
            lac=lac,
        )
        self._phase = _Phase.READING
        self._found_lac = lac
        self._head = self._next_to_read = lac + 1
        return self._decide()

    def _read_on(self) -> list[Action]:
        if self._bytes_max is not None and self._writer.bytes_in_flight >= self._bytes_max:
            return []  # continues when a bookie answers an add, or fails
        # Only two entries are read at first: most ledgers end right after their LAC.
        written = self._head - 1 - self._found_lac
        stop = min(self._writer.lac + 1 + min(self._read_ahead, 2 + written), _END_MAX)
        actions: list[Action] = []
        while self._next_to_read < stop:
            entry_id = self._next_to_read
            self._next_to_read += 1
            bookies = replicas(self._metadata, entry_id)
            self._reads[entry_id] = _EntryReads(len(bookies))
            actions += [ReadEntry(bookie, entry_id) for bookie in bookies]
        return actions

    def _decide(self) -> list[Action]:
        actions: list[Action] = []
        while self._phase is _Phase.READING:
            reads = self._reads.get(self._head)
            result = _Verdict.UNDECIDED if reads is None else reads.result
            if self._head >= _END_MAX:  # an id that no ledger reaches: there is nothing to read
                result = _Verdict.END
            if isinstance(result, Entry) and self._writer.last_pushed - self._found_lac == self._entries_max:
                # One replica with an entry is enough to keep it, since all others may have lost it. So a
                # bookie that knows the password and invents an entry for each id could continue for ever. No
                # writer has this many entries in flight. Giving up is safe: the end stays undecided.
                return self._give_up(
                    LedgerRecoveryError(
                        self._ledger_id,
                        f"more than {self._entries_max} entries were found after the last confirmed one,"
                        f" {self._found_lac}: {self.progress}. If none of these bookies invents entries,"
                        " raise recovery_entries_max",
                    )
                )
            if isinstance(result, Entry):
                actions += self._write_again(result)
            elif isinstance(result, LedgerError):
                return self._give_up(result)
            elif result is _Verdict.END:
                self._phase = _Phase.WRITING
            else:
                actions += self._read_on()
                break
        writer = self._writer
        refusals = {index: cause for index, cause in writer.failures.items() if is_refusal(cause)}
        if writer.blocked_by(refusals):
            return self._give_up(ClientRefusedError(self._ledger_id, list(refusals.values())))
        if writer.blocked:
            return self._give_up(
                LedgerRecoveryError(
                    self._ledger_id,
                    f"entry {writer.lac + 1} cannot be written to an ack quorum: "
                    + "; ".join(str(cause) for cause in writer.failures.values()),
                )
            )
        if self._phase is _Phase.WRITING and not writer.pending_count:
            actions += self._finish()
        return actions

    def _write_again(self, entry: Entry) -> list[Action]:
        # One reply does not show how many bookies have the entry, so it is written to all of them again.
        # Payload and length stay the same; the LAC in it is that of this recovery.
        writer = self._writer
        if not entry.entry_id == self._head == writer.last_pushed + 1:
            # entries are verified by id and decided in order
            raise AssertionError(f"entry {entry.entry_id} is not the next one, {self._head}")
        del self._reads[self._head]
        self._head += 1
        self._length_bytes = entry.length_bytes
        writer.length_bytes = entry.length_bytes - len(entry.payload)
        writer.append(entry.payload)
        return _adds(writer.take_outgoing())

    def _replace_failed(self) -> list[Action]:
        writer = self._writer
        self._failed |= {writer.ensemble[index] for index in writer.failures}
        chosen = self._choose(writer.ensemble, writer.failures.keys())
        # Two bookies that hold an entry with other bytes would replace each other for ever.
        replacements = {index: bookie for index, bookie in chosen.items() if bookie not in self._failed}
        if not replacements:
            return []  # an ack quorum is enough
        ensemble = list(writer.ensemble)
        for index, bookie in replacements.items():
            ensemble[index] = bookie
        # The metadata change only at the close. Until then other recoveries must read from the bookies that
        # the writer used.
        self._ensembles[writer.lac + 1] = tuple(ensemble)
        writer.begin_change()
        actions = _adds(writer.finish_change(ensemble))
        writer.advance()
        return actions

    def _finish(self) -> list[Action]:
        if self._length_bytes is not None:
            return self._close(self._length_bytes)
        if self._writer.lac < 0:
            return self._close(0)
        # The length that came with the LAC is that of a later entry, or of none if the last segment is empty.
        # The entry at the LAC has the right one. (Java closes with the length it has, possibly 0.)
        self._phase = _Phase.MEASURING
        return [ReadLength(self._writer.lac)]

    def _close(self, length_bytes: int) -> list[Action]:
        # The length informs and decides nothing. An entry with an absurd one must not prevent the close.
        length_bytes = max(0, length_bytes)
        self._phase = _Phase.OVER
        return [CloseLedger(self._writer.lac, length_bytes, tuple(sorted(self._ensembles.items())))]

    def _give_up(self, error: LedgerError) -> list[Action]:
        self._phase = _Phase.OVER
        return [GiveUp(error)]


def _adds(outgoing: list[SendAdds]) -> list[Action]:
    return [
        AddEntry(adds.bookie, entry_id, body)
        for adds in outgoing
        for entry_id, body in zip(adds.entry_ids, adds.frames, strict=True)
    ]


def _joined(reasons: Mapping[str, Exception]) -> str:
    return "; ".join(str(reason) for reason in reasons.values()) or "no bookie replied"
