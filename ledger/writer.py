"""The life of an open ledger, seen by its only writer.

Inside: entry ids, the running length, pending adds, ack counting, the LAC, which bookies of the ensemble are
failing, what must be sent again, bytes in flight.
Not inside: sockets and timeouts (``transport``), bytes (``pack`` is handed in), when to try a failed bookie
again or to replace it (``repair``), choosing bookies (``placement``), metadata (``catalog``).
Always: everything at or below ``lac`` is durable on an ack quorum of the ensemble that the metadata names for
it, and the LAC grows by one entry after the other; no entry's bytes change once packed; the LAC inside an
entry never exceeds what was confirmed when it was packed; nothing is confirmed while an ensemble change is
not.

Methods take and return runs: counting an acknowledgement is one dictionary access.

Source: LedgerHandle.java, PendingAddOp.java; reference sections 5.3 to 5.7; bookkeeper-tlaplus.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import attrs

from ledger.quorum import check_quorums, write_sets

Pack = Callable[[int, int, int, bytes], bytes]
"""``(entry_id, lac, length_bytes, payload)`` to what is sent; ``AddEncoder.encode`` is one."""

Spans = Callable[[Collection[str]], bool]
"""Whether bookies that acknowledged an entry lie in enough fault domains (``placer``). Of the same bookies it
is asked once, until ``judge_anew``."""


@attrs.frozen
class Outgoing:
    """A run of entries for one bookie. Lists may be shared between bookies: do not change them."""

    bookie: str
    frames: list[bytes]
    entry_ids: Sequence[int]


class LedgerWriter:
    """Counts and orders the adds of one ledger. Feed it answers, ask it what to send."""

    def __init__(
        self,
        ensemble: Sequence[str],
        *,
        write_quorum: int,
        ack_quorum: int,
        pack: Pack,
        lac: int = -1,
        length_bytes: int = 0,
        spans: Spans | None = None,
    ) -> None:
        """Begin behind ``lac``.

        Args:
            spans: What an ack quorum must fulfil besides its size.
        """
        check_quorums(len(ensemble), write_quorum, ack_quorum)
        assert len(set(ensemble)) == len(ensemble)
        self.lac = lac
        self.last_pushed = lac
        self.length_bytes = length_bytes  # payload bytes of the ledger up to and including last_pushed
        self.lac_length_bytes = length_bytes  # the same up to and including the LAC: what closing records
        self.bytes_in_flight = 0
        self.changing_ensemble = False
        self.failures: dict[int, Exception] = {}  # indices that get nothing now, and why
        self._pack = pack
        self._ensemble = list(ensemble)
        self._index_of = {bookie: index for index, bookie in enumerate(ensemble)}
        self._size = len(ensemble)
        self._ack_quorum = ack_quorum
        self._spans = spans
        self._is_span: dict[int, bool] = {}  # by mask of the indices, for this ensemble where it stands now
        self._write_sets = write_sets(self._size, write_quorum)
        self._write_masks = [sum(1 << index for index in indices) for indices in self._write_sets]
        self._striped = write_quorum < self._size
        # By entry id: frame, payload size, bit mask of the indices that acknowledged. They begin with the
        # oldest entry that some replica owes an answer for: confirmed ones stay, their bytes sit in queues.
        self._frames: dict[int, bytes] = {}
        self._sizes: dict[int, int] = {}
        self._acks: dict[int, int] = {}
        self._oldest = lac + 1
        self._outbox: list[bytes] = []  # the newest frames, handed out by take_outgoing
        # Indices whose connection broke since the last look at the metadata, with acknowledgements that came
        # over a new one. A bookie replaced at the same address knows of no fence and takes anything; its word
        # counts only once the metadata, read after it spoke, still says that the ledger is ours.
        # (apache/bookkeeper#4812)
        self._held: dict[int, list[int]] = {}
        self._epochs = [0] * self._size
        self._down_mask = 0
        self._absent_mask = 0  # down or not trusted: nobody waits for these

    @property
    def ensemble(self) -> tuple[str, ...]:
        """The bookies that new entries go to, by index."""
        return tuple(self._ensemble)

    @property
    def pending_count(self) -> int:
        """Entries pushed and not confirmed."""
        return self.last_pushed - self.lac

    @property
    def entries_in_flight(self) -> int:
        """Entries that some replica has not answered yet, confirmed ones included."""
        return len(self._frames)

    @property
    def unsent_count(self) -> int:
        """Entries that ``take_outgoing`` would hand out."""
        return len(self._outbox)

    def append(self, payload: bytes) -> int:
        """Take one entry; return its id. Its bytes are fixed here and wait for ``take_outgoing``."""
        entry_id = self.last_pushed + 1
        size = len(payload)
        length = self.length_bytes + size
        frame = self._pack(entry_id, self.lac, length, payload)  # if it raises, nothing has happened
        self.last_pushed = entry_id
        self.length_bytes = length
        self._frames[entry_id] = frame
        self._sizes[entry_id] = size
        self._acks[entry_id] = 0
        self._outbox.append(frame)
        self.bytes_in_flight += len(frame)
        return entry_id

    def take_outgoing(self) -> list[Outgoing]:
        """What was appended since the last call, for each bookie that is not failing."""
        frames = self._outbox
        if not frames:
            return []
        self._outbox = []
        first, stop = self.last_pushed + 1 - len(frames), self.last_pushed + 1
        failures = self.failures
        if not self._striped:
            entry_ids = range(first, stop)
            return [
                Outgoing(bookie, frames, entry_ids)
                for index, bookie in enumerate(self._ensemble)
                if index not in failures
            ]
        entry_lists: list[list[int]] = [[] for _ in range(self._size)]
        for entry_id in range(first, stop):
            for index in self._write_sets[entry_id % self._size]:
                entry_lists[index].append(entry_id)
        return [
            Outgoing(self._ensemble[index], [frames[entry_id - first] for entry_id in ids], ids)
            for index, ids in enumerate(entry_lists)
            if ids and index not in failures
        ]

    def answered(self, bookie: str, entry_ids: Iterable[int]) -> bool:
        """Count a bookie's acknowledgements; True if the LAC grew.

        Answers of a bookie that is no longer in the ensemble, and for entries nobody waits for, are ignored.
        """
        index = self._index_of.get(bookie)
        if index is None:
            return False
        if index in self._held:
            self._held[index].extend(entry_ids)
            return False
        bit = 1 << index
        acks = self._acks
        if self._striped:
            masks, size = self._write_masks, self._size
            for entry_id in entry_ids:
                if entry_id in acks and masks[entry_id % size] & bit:
                    acks[entry_id] |= bit
        else:
            for entry_id in entry_ids:
                if entry_id in acks:
                    acks[entry_id] |= bit
        return self.advance()

    def advance(self) -> bool:
        """Confirm what may be confirmed, in order; True if the LAC grew."""
        if self.changing_ensemble:
            # The metadata may already name another ensemble from LAC + 1 on. Whatever was confirmed now on
            # the strength of the old one, a recovery would not look for. (apache/bookkeeper#1591)
            return False
        acks, sizes, ack_quorum = self._acks, self._sizes, self._ack_quorum
        next_id, length = self.lac + 1, self.lac_length_bytes
        last_sent = self.last_pushed - len(self._outbox)
        if self._spans is not None:
            last_sent = self._last_spanning(next_id, last_sent)
        while next_id <= last_sent and acks[next_id].bit_count() >= ack_quorum:
            length += sizes.pop(next_id)
            next_id += 1
        grew = next_id > self.lac + 1
        self.lac, self.lac_length_bytes = next_id - 1, length
        self._release()
        return grew

    def judge_anew(self) -> bool:
        """Bookies stand elsewhere than ``spans`` was told; True if the LAC grew."""
        self._is_span = {}
        return self.advance()

    def failed(self, bookie: str, cause: Exception, *, lost: bool) -> bool:
        """A bookie refused an entry or its connection broke; True if the index was not failing before.

        It gets nothing more until ``revive`` or a change of the ensemble.

        Args:
            lost: The connection broke. What the bookie acknowledged of unconfirmed entries no longer counts,
                and what it acknowledges later counts from ``trust`` on.
        """
        index = self._index_of.get(bookie)
        if index is None:
            return False
        bit = 1 << index
        if lost:
            self._held[index] = []
            self._epochs[index] += 1
            for entry_id in range(self.lac + 1, self.last_pushed + 1):
                self._acks[entry_id] &= ~bit
        is_new = index not in self.failures
        self.failures[index] = cause
        self._down_mask |= bit
        self._absent_mask |= bit
        self._release()
        return is_new

    def reconnected(self, bookie: str) -> Outgoing | None:
        """The connection was lost and replaced while no answer was due, so that nobody told of it.

        What the bookie acknowledged of unconfirmed entries counts no longer; it must be sent again.
        What it acknowledges now counts from ``trust`` on.
        """
        index = self._index_of.get(bookie)
        if index is None:
            return None
        bit = 1 << index
        last_sent = self.last_pushed - len(self._outbox)
        told = {entry_id for entry_id in self._held.get(index, ()) if self.lac < entry_id <= last_sent}
        for entry_id in range(self.lac + 1, self.last_pushed + 1):
            if self._acks[entry_id] & bit:
                told.add(entry_id)
                self._acks[entry_id] &= ~bit
        self._held[index] = []
        self._epochs[index] += 1
        self._absent_mask |= bit
        self._release()
        if not told or index in self.failures:
            return None  # a failing one gets everything when it is revived
        ids = sorted(told)
        return Outgoing(bookie, [self._frames[entry_id] for entry_id in ids], ids)

    def revive(self, index: int) -> Outgoing | None:
        """Try a failing bookie again: all unconfirmed entries it did not acknowledge, the same bytes."""
        del self.failures[index]
        self._down_mask &= ~(1 << index)
        if index not in self._held:
            self._present(index)
        return self._unacknowledged(index)

    @property
    def doubtful(self) -> list[tuple[int, int]]:
        """(index, epoch) of each bookie whose acknowledgements wait for ``trust``."""
        return [(index, self._epochs[index]) for index, held in self._held.items() if held]

    def trust(self, index: int, epoch: int) -> bool:
        """The metadata, read since that epoch's first acknowledgement, is unchanged; True if the LAC grew."""
        if index not in self._held or self._epochs[index] != epoch:
            return False  # the connection broke again, or the bookie was replaced
        held = self._held.pop(index)
        if index not in self.failures:
            self._present(index)
        return self.answered(self._ensemble[index], held)

    def begin_change(self) -> None:
        """An ensemble change goes to the metadata store: confirm nothing until its outcome is known."""
        assert not self.changing_ensemble
        self.changing_ensemble = True

    def abandon_change(self) -> bool:
        """Nothing was, and nothing will be, written to the metadata; True if the LAC grew."""
        assert self.changing_ensemble
        self.changing_ensemble = False
        return self.advance()

    def finish_change(self, ensemble: Sequence[str]) -> list[Outgoing]:
        """The metadata names this ensemble from LAC + 1 on; return what the new bookies must get.

        Call ``advance`` afterwards: entries may have gathered their quorum meanwhile.
        """
        assert self.changing_ensemble
        assert len(ensemble) == self._size
        assert len(set(ensemble)) == self._size
        self.changing_ensemble = False
        replaced = [index for index, bookie in enumerate(ensemble) if bookie != self._ensemble[index]]
        self._ensemble = list(ensemble)
        self._index_of = {bookie: index for index, bookie in enumerate(ensemble)}
        self._is_span = {}
        outgoing = []
        for index in replaced:
            bit = 1 << index
            # Every unconfirmed entry belongs to the new segment now, also those that had their quorum.
            for entry_id in range(self.lac + 1, self.last_pushed + 1):
                self._acks[entry_id] &= ~bit
            self.failures.pop(index, None)
            self._held.pop(index, None)
            self._epochs[index] += 1
            self._down_mask &= ~bit
            self._present(index)
            run = self._unacknowledged(index)
            if run is not None:
                outgoing.append(run)
        return outgoing

    @property
    def blocked(self) -> bool:
        """The oldest pending entry cannot be confirmed without a bookie that is failing or in doubt."""
        head = self.lac + 1
        if head > self.last_pushed:
            return False
        reachable = self._acks[head] | (self._write_masks[head % self._size] & ~self._absent_mask)
        return not self._suffices(reachable)

    @property
    def endangered(self) -> bool:
        """Some entry, perhaps one to come, cannot be confirmed without a bookie that is failing."""
        return any(not self._suffices(mask & ~self._down_mask) for mask in set(self._write_masks))

    def check(self) -> None:
        """Assert everything that always holds; for tests."""
        assert self._oldest - 1 <= self.lac <= self.last_pushed
        assert self.lac_length_bytes <= self.length_bytes
        assert list(self._frames) == list(range(self._oldest, self.last_pushed + 1))
        assert self._frames.keys() == self._acks.keys()
        assert list(self._sizes) == list(range(self.lac + 1, self.last_pushed + 1))
        assert self.bytes_in_flight == sum(map(len, self._frames.values()))
        assert self._down_mask == sum(1 << index for index in self.failures)
        assert self._absent_mask == self._down_mask | sum(
            1 << i for i in self._held.keys() - self.failures.keys()
        )
        assert len(self._outbox) <= self.pending_count

    def _last_spanning(self, entry_id: int, last: int) -> int:
        while entry_id <= last and self._is_spanned(self._acks[entry_id]):
            entry_id += 1
        return entry_id - 1

    def _suffices(self, mask: int) -> bool:
        return mask.bit_count() >= self._ack_quorum and self._is_spanned(mask)

    def _is_spanned(self, mask: int) -> bool:
        if self._spans is None:
            return True
        known = self._is_span.get(mask)
        if known is None:
            bookies = [bookie for index, bookie in enumerate(self._ensemble) if mask >> index & 1]
            known = self._is_span[mask] = self._spans(bookies)
        return known

    def _unacknowledged(self, index: int) -> Outgoing | None:
        bit = 1 << index
        sent_stop = self.last_pushed + 1 - len(self._outbox)
        ids = [
            entry_id
            for entry_id in range(self.lac + 1, sent_stop)
            if self._write_masks[entry_id % self._size] & bit and not self._acks[entry_id] & bit
        ]
        if not ids:
            return None
        return Outgoing(self._ensemble[index], [self._frames[entry_id] for entry_id in ids], ids)

    def _present(self, index: int) -> None:
        # From here on entries wait for this bookie again, but not those confirmed while it was away: it will
        # never be sent them, so it owes no answer.
        bit = 1 << index
        self._absent_mask &= ~bit
        for entry_id in range(self._oldest, self.lac + 1):
            self._acks[entry_id] |= bit

    def _release(self) -> None:
        acks, frames, absent = self._acks, self._frames, self._absent_mask
        masks, size = self._write_masks, self._size
        oldest, lac = self._oldest, self.lac
        while oldest <= lac:
            mask = masks[oldest % size]
            if (acks[oldest] | absent) & mask != mask:
                break
            del acks[oldest]
            self.bytes_in_flight -= len(frames.pop(oldest))
            oldest += 1
        self._oldest = oldest
