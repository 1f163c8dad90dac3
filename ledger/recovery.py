"""Deciding where a ledger ends whose writer is gone, or must go.

Inside: which bookies to fence and to ask, what their answers prove, which entries to write again and where,
the decision. Not inside: marking and closing in the metadata (``opening``), requests, time.
Always, and this is what makes acknowledged entries safe:
every read fences, not only the first; an entry is left out only after so many bookies of its write set, all
fenced, have denied it that no ack quorum can hold it; an error, silence, limbo or a bad digest is never a
denial; whatever is kept is on an ack quorum again before the ledger is closed; nothing in front of the last
segment is touched.

Source: LedgerRecoveryOp.java, ReadOnlyLedgerHandle.java; reference section 7; bookkeeper-tlaplus.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping, Sequence

import attrs

from ledger.digest import Entry
from ledger.errors import LedgerError, LedgerRecoveryError, UnauthorizedRefusal, WrongPasswordError
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.quorum import negatives_needed
from ledger.reader import LacQuery, is_negative, replicas
from ledger.writer import LedgerWriter, Outgoing, Pack

Answer = Entry | Exception
"""A verified entry, or why there is none; ``NoEntryRefusal`` and ``NoLedgerRefusal`` are denials."""

Choose = Callable[[Sequence[str], Collection[int]], Mapping[int, str]]
"""Spare bookies for failed indices of an ensemble, as many as there are."""


@attrs.frozen
class ReadLac:
    """Fence this bookie and ask for its last entry; answer with ``lac_answered``."""

    bookie: str


@attrs.frozen
class ReadEntry:
    """Fence this bookie and ask for an entry; answer with ``entry_answered``."""

    bookie: str
    entry_id: int


@attrs.frozen
class AwaitOthers:
    """Enough bookies deny this entry. Give the others a moment, then call ``waited_for_others``."""

    entry_id: int


@attrs.frozen
class AddEntry:
    """Store this body as a recovery add; answer with ``add_answered``."""

    bookie: str
    entry_id: int
    body: bytes


@attrs.frozen
class ReadLength:
    """Read this confirmed entry from any replica, without fencing; answer with ``length_answered``."""

    entry_id: int


@attrs.frozen
class CloseLedger:
    """The end is decided: first put these ensembles into the metadata, then close there."""

    last_entry_id: int
    length_bytes: int
    ensembles: tuple[tuple[int, tuple[str, ...]], ...]  # first entry id, bookies; ascending

    def apply(self, metadata: LedgerMetadata) -> LedgerMetadata | None:
        """The closed metadata; None if somebody closed it already, which then is the truth."""
        if metadata.is_closed:
            return None
        for first_entry_id, bookies in self.ensembles:
            metadata = metadata.with_ensemble(first_entry_id, bookies)
        return metadata.closed(self.last_entry_id, self.length_bytes)


@attrs.frozen
class GiveUp:
    """Nothing can be decided now, and nothing was."""

    error: LedgerError


Action = ReadLac | ReadEntry | AwaitOthers | AddEntry | ReadLength | CloseLedger | GiveUp


class _Phase(enum.Enum):
    FENCING = "fencing"
    READING = "reading"
    WRITING = "writing"  # the end is known, entries up to it are being written again
    MEASURING = "measuring"
    OVER = "over"


class _Found(enum.Enum):
    NOTHING_YET = 0
    THE_END = 1


@attrs.define
class _Reading:
    asked: int
    denials: int = 0
    reasons: dict[str, Exception] = attrs.field(factory=dict)
    result: Entry | LedgerError | _Found = _Found.NOTHING_YET


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
    ) -> None:
        """Prepare; ``start`` gives the first actions.

        Args:
            pack: Makes the body of an entry from its id, LAC, length and payload.
            read_ahead: How many entries may be read and not yet written again.
        """
        assert metadata.state is LedgerState.IN_RECOVERY
        assert read_ahead >= 1
        self._ledger_id = ledger_id
        # Reads go by this copy to the end. Bookies taken in below hold nothing but what is written to them.
        self._metadata = metadata
        self._pack, self._choose, self._read_ahead = pack, choose, read_ahead
        self._phase = _Phase.FENCING
        self._query = LacQuery(
            ledger_id,
            metadata.last_ensemble.bookies,
            write_quorum=metadata.write_quorum,
            ack_quorum=metadata.ack_quorum,
        )
        self._writer: LedgerWriter
        self._readings: dict[int, _Reading] = {}
        self._next_to_read = 0
        self._head = 0  # the entry whose reading decides next
        self._length_bytes: int | None = None  # of the ledger up to the last entry written again
        self._ensembles: dict[int, tuple[str, ...]] = {}

    def start(self) -> list[Action]:
        """Fence the last ensemble."""
        return [ReadLac(bookie) for bookie in self._metadata.last_ensemble.bookies]

    def lac_answered(self, bookie: str, answer: Answer) -> list[Action]:
        """What a bookie said to ``ReadLac``."""
        if self._phase is not _Phase.FENCING:
            return []
        query = self._query
        if isinstance(answer, Entry):
            query.answered(bookie, answer)
        elif isinstance(answer, UnauthorizedRefusal):
            return self._give_up(WrongPasswordError(self._ledger_id))
        else:
            query.failed(bookie, answer)
        if query.is_covered:
            return self._begin_reading()
        if query.is_exhausted:
            return self._give_up(
                LedgerRecoveryError(
                    self._ledger_id,
                    f"too few bookies of its last ensemble were fenced: {_told(query.reasons)}",
                )
            )
        return []

    def entry_answered(self, bookie: str, entry_id: int, answer: Answer) -> list[Action]:
        """What a bookie said to ``ReadEntry``."""
        reading = self._readings.get(entry_id)
        if self._phase is not _Phase.READING or reading is None or reading.result is not _Found.NOTHING_YET:
            return []
        if isinstance(answer, Entry):
            reading.result = answer
        elif isinstance(answer, UnauthorizedRefusal):
            return self._give_up(WrongPasswordError(self._ledger_id))
        else:
            reading.reasons[bookie] = answer
            # Only those who know count. With write_quorum - ack_quorum + 1 denials, each from a bookie that
            # this very read fenced, an ack quorum neither exists nor can come about any more.
            reading.denials += is_negative(answer)
            needed = negatives_needed(self._metadata.write_quorum, self._metadata.ack_quorum)
            is_denied = reading.denials >= needed
            if is_denied and len(reading.reasons) == reading.asked:
                reading.result = _Found.THE_END
            elif is_denied and reading.denials == needed and is_negative(answer):
                # By the rule this ends the ledger. But a bookie that lost its disk and kept its name denies
                # what it had acknowledged; another one that has the entry proves it wrong.
                # (apache/bookkeeper#2612)
                return [*self._decide(), AwaitOthers(entry_id)]
            elif not is_denied and len(reading.reasons) == reading.asked:
                reading.result = LedgerRecoveryError(
                    self._ledger_id,
                    f"whether entry {entry_id} exists cannot be told: {_told(reading.reasons)}",
                )
        return self._decide()

    def waited_for_others(self, entry_id: int) -> list[Action]:
        """The moment that ``AwaitOthers`` grants has passed: denials decide."""
        reading = self._readings.get(entry_id)
        if self._phase is not _Phase.READING or reading is None or reading.result is not _Found.NOTHING_YET:
            return []
        reading.result = _Found.THE_END
        return self._decide()

    def add_answered(self, bookie: str, entry_id: int, error: Exception | None) -> list[Action]:
        """A bookie stored what ``AddEntry`` gave it, or why not."""
        if self._phase not in (_Phase.READING, _Phase.WRITING):
            return []
        writer = self._writer
        actions: list[Action] = []
        if error is None:
            writer.answered(bookie, (entry_id,))
        elif isinstance(error, UnauthorizedRefusal):
            return self._give_up(WrongPasswordError(self._ledger_id))
        elif writer.failed(bookie, error, lost=False):
            actions += self._replace_failed()
        return actions + self._decide()

    def length_answered(self, length_bytes: int | None, silent: Exception | None = None) -> list[Action]:
        """The length that the entry of ``ReadLength`` carries; None if no replica could show it.

        Args:
            silent: Why a replica gave no answer at all, if one did not: it may know later.
        """
        if self._phase is not _Phase.MEASURING:
            return []
        if length_bytes is None and silent is not None:
            # What is recorded now stands for good, and the entry is safe: better later than wrong.
            return self._give_up(
                LedgerRecoveryError(
                    self._ledger_id, f"the length at entry {self._writer.lac} cannot be told: {silent}"
                )
            )
        # The bookies said at least so much. The length informs people; no entry depends on it.
        return self._close(self._query.length_bytes if length_bytes is None else length_bytes)

    def _begin_reading(self) -> list[Action]:
        # An empty last segment carries no LAC, yet everything in front of it is confirmed: it was begun at
        # LAC + 1. Without this floor entries of earlier segments would be written again into the last one.
        # (apache/bookkeeper#2615)
        lac = max(self._query.lac, self._metadata.last_ensemble.first_entry_id - 1)
        pack = self._pack
        self._writer = LedgerWriter(
            self._metadata.last_ensemble.bookies,
            write_quorum=self._metadata.write_quorum,
            ack_quorum=self._metadata.ack_quorum,
            # Entries carry the LAC that was found, not how far we have come: bookies may be replaced in
            # memory only, and should we die before the close, the next recovery would begin behind our LAC
            # and leave entries on fewer bookies of the ensemble that the metadata names than an ack quorum.
            pack=lambda entry_id, _, length_bytes, payload: pack(entry_id, lac, length_bytes, payload),
            lac=lac,
        )
        self._phase = _Phase.READING
        self._head = self._next_to_read = lac + 1
        return self._read_on()

    def _read_on(self) -> list[Action]:
        # The first few entries are read two by two: most ledgers end where they are said to.
        written = self._head - 1 - max(self._query.lac, self._metadata.last_ensemble.first_entry_id - 1)
        stop = self._writer.lac + 1 + min(self._read_ahead, 2 + written)
        actions: list[Action] = []
        while self._next_to_read < stop:
            entry_id = self._next_to_read
            self._next_to_read += 1
            bookies = replicas(self._metadata, entry_id)
            self._readings[entry_id] = _Reading(len(bookies))
            actions += [ReadEntry(bookie, entry_id) for bookie in bookies]
        return actions

    def _decide(self) -> list[Action]:
        actions: list[Action] = []
        while self._phase is _Phase.READING:
            reading = self._readings.get(self._head)
            result = _Found.NOTHING_YET if reading is None else reading.result
            if isinstance(result, Entry):
                actions += self._write_again(result)
            elif isinstance(result, LedgerError):
                return self._give_up(result)
            elif result is _Found.THE_END:
                self._phase = _Phase.WRITING
            else:
                actions += self._read_on()
                break
        writer = self._writer
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
        # On one bookie or on all: one answer does not tell, so it is written to every bookie again. Payload
        # and length stay; the LAC in it is ours.
        writer = self._writer
        assert entry.entry_id == self._head == writer.last_pushed + 1
        del self._readings[self._head]
        self._head += 1
        self._length_bytes = entry.length_bytes
        writer.length_bytes = entry.length_bytes - len(entry.payload)
        writer.append(entry.payload)
        return _adds(writer.take_outgoing())

    def _replace_failed(self) -> list[Action]:
        writer = self._writer
        replacements = self._choose(writer.ensemble, writer.failures.keys())
        if not replacements:
            return []  # an ack quorum will do
        ensemble = list(writer.ensemble)
        for index, bookie in replacements.items():
            ensemble[index] = bookie
        # Not written to the metadata before the close: until then other recoveries must go on asking the
        # bookies the writer used.
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
        # The length that came with the LAC belongs to a later entry, or to none if the last segment is
        # empty. The entry at the LAC knows. (Java closes with what it has, perhaps 0.)
        self._phase = _Phase.MEASURING
        return [ReadLength(self._writer.lac)]

    def _close(self, length_bytes: int) -> list[Action]:
        self._phase = _Phase.OVER
        return [CloseLedger(self._writer.lac, length_bytes, tuple(sorted(self._ensembles.items())))]

    def _give_up(self, error: LedgerError) -> list[Action]:
        self._phase = _Phase.OVER
        return [GiveUp(error)]


def _adds(outgoing: list[Outgoing]) -> list[Action]:
    return [
        AddEntry(run.bookie, entry_id, body)
        for run in outgoing
        for entry_id, body in zip(run.entry_ids, run.frames, strict=True)
    ]


def _told(reasons: Mapping[str, Exception]) -> str:
    return "; ".join(str(reason) for reason in reasons.values()) or "nobody answered"
