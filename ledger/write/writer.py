"""The adds of one ledger, as its only writer counts them: a machine without waiting, clock or sockets.

Inside: entry ids, the running length, entries in flight, acknowledgements, the LAC, the state of the
ensemble, the entries that a bookie must get again, bytes in flight.
Not inside: sockets and timeouts (``transport``), the bytes of a frame (``wire``; the caller passes ``pack``),
when to try or replace a failing bookie (``repair``), the choice of bookies (``placement``), metadata
(``catalog``).
Always: each entry at or below ``lac`` is durable on an ack quorum of the ensemble that the metadata names for
it; the LAC grows in the order of entries; the bytes of an entry never change once they are packed; the LAC in
an entry is at most the LAC at the moment when it was packed; nothing is confirmed while an ensemble change is
under way, or after the end.

Methods take and return batches. Counting one acknowledgement costs one dictionary access.

Source: LedgerHandle.java, PendingAddOp.java; docs/protocol.md 5.3 to 5.7; docs/known-bugs.md 81.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import attrs

from ledger.quorum import AckRule, check_quorums, write_sets
from ledger.write.ensemble_state import EnsembleEvent, EnsembleState, following

Pack = Callable[[int, int, int, bytes], bytes]
"""From ``(entry_id, lac, length_bytes, payload)`` to the bytes to send; for example ``AddEncoder.encode``."""

NOTHING = range(0)
"""No entry was confirmed."""


_CHANGING, _OVER = EnsembleState.CHANGING, EnsembleState.OVER


@attrs.frozen
class SendAdds:
    """Send these entries to one bookie. Bookies may share the lists: do not change them."""

    bookie: str
    frames: list[bytes]
    entry_ids: Sequence[int]


class LedgerWriter:
    """Orders the adds of one ledger and counts their replies.

    The caller appends entries, sends what ``take_outgoing`` and the other methods return, and reports replies
    and failures.
    """

    def __init__(
        self,
        ensemble: Sequence[str],
        *,
        write_quorum: int,
        ack_quorum: int,
        pack: Pack,
        lac: int = -1,
        length_bytes: int = 0,
        ack_rule: AckRule | None = None,
    ) -> None:
        """The next entry is ``lac + 1``.

        Args:
            ack_rule: A rule that an ack quorum must fulfil besides its size.
        """
        check_quorums(len(ensemble), write_quorum, ack_quorum)
        assert len(set(ensemble)) == len(ensemble)  # LedgerMetadata refuses a repeated bookie
        self.lac = lac
        self.last_pushed = lac
        self.length_bytes = length_bytes  # payload bytes of the ledger up to and including last_pushed
        self.lac_length_bytes = length_bytes  # the same up to and including the LAC; a close records it
        self.bytes_in_flight = 0
        self.state = EnsembleState.HEALTHY
        self.failures: dict[int, Exception] = {}  # by index: the bookies that get nothing now, with the cause
        # Indices whose connection broke since the last look at the metadata, with the entry ids of the
        # acknowledgements that came over a new connection. A bookie replaced at the same address knows of no
        # fence and accepts every add. Its acknowledgements count only after the metadata, read later than
        # they came, still say that the ledger is this writer's. (apache/bookkeeper#4812)
        self.held_replies: dict[int, list[int]] = {}
        # By bookie: the first and the last confirmed entry that it failed to acknowledge. It does not get
        # them from this writer any more.
        self.missed: dict[str, tuple[int, int]] = {}
        self._owed: dict[int, tuple[int, int]] = {}  # by index: the same, while it is failing or not trusted
        self._pack = pack
        self._ensemble = list(ensemble)
        self._index_of = {bookie: index for index, bookie in enumerate(ensemble)}
        self._size = len(ensemble)
        self._ack_quorum = ack_quorum
        self._ack_rule = ack_rule
        self._ack_rule_results: dict[int, bool] = {}  # by mask of the indices
        self._write_sets = write_sets(self._size, write_quorum)
        self._write_masks = [sum(1 << index for index in indices) for indices in self._write_sets]
        self._striped = write_quorum < self._size
        # By entry id: frame, payload size, bit mask of the indices that acknowledged. They begin at the
        # oldest entry that some replica has not answered. Confirmed entries stay until then: their bytes sit
        # in send queues.
        self._frames: dict[int, bytes] = {}
        self._sizes: dict[int, int] = {}
        self._acks: dict[int, int] = {}
        self._oldest = lac + 1
        self._send_queue: list[bytes] = []  # the newest frames; take_outgoing takes them
        self._generations = [0] * self._size  # by index: how often its connection or its bookie changed
        self._down_mask = 0  # the indices in failures
        self._absent_mask = 0  # failing or not trusted: no entry waits for these indices

    @property
    def ensemble(self) -> tuple[str, ...]:
        """The bookies that get new entries, by index."""
        return tuple(self._ensemble)

    @property
    def pending_count(self) -> int:
        """Entries pushed and not confirmed."""
        return self.last_pushed - self.lac

    @property
    def entries_in_flight(self) -> int:
        """Entries that some replica has not answered yet, including confirmed ones."""
        return len(self._frames)

    @property
    def unsent_count(self) -> int:
        """Entries that ``take_outgoing`` would hand out."""
        return len(self._send_queue)

    def take_missed(self, *, is_over: bool = False) -> list[str]:
        """The bookies that lack confirmed entries and fail no longer; with ``is_over`` those that still fail,
        too."""
        for index in self.failures if is_over else ():
            self._note_missed(index)
        failing = () if is_over else [self._ensemble[index] for index in self.failures]
        return [bookie for bookie in list(self.missed) if bookie not in failing and self.missed.pop(bookie)]

    def move(self, event: EnsembleEvent) -> None:
        """Change the state; AssertionError if the event is illegal in it."""
        self.state = following(self.state, event)

    def append(self, payload: bytes) -> int:
        """Add one entry; return its id. This fixes its bytes. They wait for ``take_outgoing``."""
        entry_id = self.last_pushed + 1
        size = len(payload)
        length = self.length_bytes + size
        frame = self._pack(entry_id, self.lac, length, payload)  # if this raises, nothing has changed
        self.last_pushed = entry_id
        self.length_bytes = length
        self._frames[entry_id] = frame
        self._sizes[entry_id] = size
        self._acks[entry_id] = 0
        self._send_queue.append(frame)
        self.bytes_in_flight += len(frame)
        return entry_id

    def take_outgoing(self) -> list[SendAdds]:
        """The entries appended since the last call, for each bookie that is not failing."""
        frames = self._send_queue
        if not frames:
            return []
        self._send_queue = []
        first, stop = self.last_pushed + 1 - len(frames), self.last_pushed + 1
        failures = self.failures
        if not self._striped:
            entry_ids = range(first, stop)
            outgoing = []
            for index, bookie in enumerate(self._ensemble):
                if index not in failures:
                    outgoing.append(SendAdds(bookie, frames, entry_ids))
            return outgoing
        entry_lists: list[list[int]] = [[] for _ in range(self._size)]
        for entry_id in range(first, stop):
            for index in self._write_sets[entry_id % self._size]:
                entry_lists[index].append(entry_id)
        return [
            SendAdds(self._ensemble[index], [frames[entry_id - first] for entry_id in ids], ids)
            for index, ids in enumerate(entry_lists)
            if ids and index not in failures
        ]

    def adds_answered(self, bookie: str, entry_ids: Iterable[int]) -> range:
        """Count a bookie's acknowledgements; return the entries that are confirmed now.

        The writer ignores replies of a bookie that is no longer in the ensemble, and replies for entries that
        are not in flight.
        """
        index = self._index_of.get(bookie)
        if index is None:
            return NOTHING
        if index in self.held_replies:
            self.held_replies[index].extend(entry_ids)
            return NOTHING
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

    def advance(self) -> range:
        """Confirm, in order, the entries that have their quorum; return those that are confirmed now."""
        if self.state is _CHANGING or self.state is _OVER:
            # The metadata may already name another ensemble from LAC + 1 on. A recovery would not look for
            # entries that were confirmed now on the acknowledgements of the old one. After the end the
            # outcome of a change may be unknown for ever. (apache/bookkeeper#1591)
            return NOTHING
        acks, sizes, ack_quorum = self._acks, self._sizes, self._ack_quorum
        first_id = next_id = self.lac + 1
        length = self.lac_length_bytes
        last_sent = self.last_pushed - len(self._send_queue)
        if self._ack_rule is not None:
            last_sent = self._last_fulfilling(next_id, last_sent)
        while next_id <= last_sent and acks[next_id].bit_count() >= ack_quorum:
            length += sizes.pop(next_id)
            next_id += 1
        if next_id > first_id:
            self.lac, self.lac_length_bytes = next_id - 1, length
        self._release()
        return range(first_id, next_id) if next_id > first_id else NOTHING

    def reevaluate(self) -> range:
        """Ask ``ack_rule`` again, because a bookie's location changed; return the entries confirmed now."""
        self._ack_rule_results = {}
        return self.advance()

    def failed(self, bookie: str, cause: Exception, *, lost: bool) -> bool:
        """A bookie refused an entry or its connection broke; True if its index was not failing before.

        It gets nothing more until ``revive`` or an ensemble change.

        Args:
            lost: The connection broke. The bookie's acknowledgements of unconfirmed entries no longer count,
                and later ones count only after ``trust``.
        """
        index = self._index_of.get(bookie)
        if index is None:
            return False
        bit = 1 << index
        if lost:
            self.held_replies[index] = []
            self._generations[index] += 1
            for entry_id in range(self.lac + 1, self.last_pushed + 1):
                self._acks[entry_id] &= ~bit
            self._note_missed(index)
        is_new = index not in self.failures
        if is_new:
            self.move(EnsembleEvent.BOOKIE_FAILED)
        self.failures[index] = cause
        self._down_mask |= bit
        self._absent_mask |= bit
        self._release()
        return is_new

    def reconnected(self, bookie: str) -> SendAdds | None:
        """The connection was lost and replaced while no reply was due, so the transport reported no loss.

        The bookie's acknowledgements of unconfirmed entries no longer count; return these entries, to be sent
        again. Later acknowledgements count only after ``trust``.
        """
        index = self._index_of.get(bookie)
        if index is None:
            return None
        bit = 1 << index
        last_sent = self.last_pushed - len(self._send_queue)
        lost = {entry_id for entry_id in self.held_replies.get(index, ()) if self.lac < entry_id <= last_sent}
        for entry_id in range(self.lac + 1, self.last_pushed + 1):
            if self._acks[entry_id] & bit:
                lost.add(entry_id)
                self._acks[entry_id] &= ~bit
        self.held_replies[index] = []
        self._generations[index] += 1
        self._absent_mask |= bit
        self._release()
        if not lost or index in self.failures:
            return None  # a failing bookie gets all its entries when it is revived
        ids = sorted(lost)
        return SendAdds(bookie, [self._frames[entry_id] for entry_id in ids], ids)

    def revive(self, index: int) -> SendAdds | None:
        """Stop treating a bookie as failing; return the entries it must get again, with the same bytes.

        These are all unconfirmed entries that it did not acknowledge.
        """
        self._note_missed(index)
        del self.failures[index]
        self._down_mask &= ~(1 << index)
        if index not in self.held_replies:
            self._present(index)
        return self._unacknowledged(index)

    @property
    def untrusted(self) -> list[tuple[int, int]]:
        """(index, generation) of each bookie whose acknowledgements wait for ``trust``."""
        return [(index, self._generations[index]) for index, held in self.held_replies.items() if held]

    def trust(self, index: int, generation: int) -> range:
        """Count the held acknowledgements of that generation; return the entries confirmed now.

        The caller has read the metadata after the first of these acknowledgements came, and the ledger is
        still this writer's.
        """
        if index not in self.held_replies or self._generations[index] != generation:
            return NOTHING  # the connection broke again, or the bookie was replaced
        held = self.held_replies.pop(index)
        if index not in self.failures:
            self._present(index)
        return self.adds_answered(self._ensemble[index], held)

    def begin_change(self) -> None:
        """An ensemble change goes to the metadata store: nothing is confirmed until its outcome is known."""
        self.move(EnsembleEvent.BEGIN_CHANGE)

    def finish_change(self, ensemble: Sequence[str]) -> list[SendAdds]:
        """The metadata names this ensemble from LAC + 1 on; return the entries that the new bookies must get.

        Call ``advance`` afterwards: entries may have got their quorum while the change was under way.
        """
        assert len(ensemble) == self._size  # LedgerMetadata has ensembles of one size
        assert len(set(ensemble)) == self._size  # LedgerMetadata refuses a repeated bookie
        self.move(EnsembleEvent.SETTLE_CHANGE)
        replaced = [index for index, bookie in enumerate(ensemble) if bookie != self._ensemble[index]]
        for index in replaced:
            self._note_missed(index)
        self._ensemble = list(ensemble)
        self._index_of = {bookie: index for index, bookie in enumerate(ensemble)}
        self._ack_rule_results = {}
        outgoing = []
        for index in replaced:
            bit = 1 << index
            # Every unconfirmed entry belongs to the new segment now, even if it had its quorum before.
            for entry_id in range(self.lac + 1, self.last_pushed + 1):
                self._acks[entry_id] &= ~bit
            self.failures.pop(index, None)
            self.held_replies.pop(index, None)
            self._generations[index] += 1
            self._down_mask &= ~bit
            self._present(index)
            adds = self._unacknowledged(index)
            if adds is not None:
                outgoing.append(adds)
        if not self.failures:
            self.move(EnsembleEvent.HEAL)
        return outgoing

    @property
    def blocked(self) -> bool:
        """The oldest pending entry cannot be confirmed without a bookie that is failing or not trusted."""
        head = self.lac + 1
        if head > self.last_pushed:
            return False
        reachable = self._acks[head] | (self._write_masks[head % self._size] & ~self._absent_mask)
        return not self._suffices(reachable)

    def blocked_by(self, indices: Collection[int]) -> bool:
        """The oldest pending entry cannot be confirmed without one of these bookies."""
        head = self.lac + 1
        if head > self.last_pushed:
            return False
        lost_mask = sum(1 << index for index in indices)
        reachable = self._acks[head] | (self._write_masks[head % self._size] & ~lost_mask)
        return not self._suffices(reachable)

    @property
    def endangered(self) -> bool:
        """Some entry, perhaps a later one, cannot be confirmed without a failing bookie."""
        return any(not self._suffices(mask & ~self._down_mask) for mask in set(self._write_masks))

    def check(self) -> None:
        """Assert everything that always holds; for tests."""
        # ``append`` raises ``last_pushed``, and ``advance`` raises ``lac`` up to it
        assert self._oldest - 1 <= self.lac <= self.last_pushed
        assert self.lac_length_bytes <= self.length_bytes  # ``append`` sums sizes, ``advance`` takes them
        # ``append`` adds in order, ``advance`` removes from the front
        assert list(self._frames) == list(range(self._oldest, self.last_pushed + 1))
        assert self._frames.keys() == self._acks.keys()  # the same lines add and remove them
        # ``append`` adds a size, and ``advance`` removes it with its entry's confirmation
        assert list(self._sizes) == list(range(self.lac + 1, self.last_pushed + 1))
        assert self.bytes_in_flight == sum(map(len, self._frames.values()))  # the same lines change both
        assert self._down_mask == sum(1 << index for index in self.failures)  # the same lines change both
        # the mask is computed again where ``failures`` or ``held_replies`` change
        assert self._absent_mask == self._down_mask | sum(
            1 << i for i in self.held_replies.keys() - self.failures.keys()
        )
        assert len(self._send_queue) <= self.pending_count  # each was pushed, and is removed when confirmed
        # a failure in ``HEALTHY`` begins another state
        assert self.state is not EnsembleState.HEALTHY or not self.failures

    def _last_fulfilling(self, entry_id: int, last: int) -> int:
        while entry_id <= last and self._fulfils_ack_rule(self._acks[entry_id]):
            entry_id += 1
        return entry_id - 1

    def _suffices(self, mask: int) -> bool:
        return mask.bit_count() >= self._ack_quorum and self._fulfils_ack_rule(mask)

    def _fulfils_ack_rule(self, mask: int) -> bool:
        if self._ack_rule is None:
            return True
        known = self._ack_rule_results.get(mask)
        if known is None:
            bookies = [bookie for index, bookie in enumerate(self._ensemble) if mask >> index & 1]
            known = self._ack_rule_results[mask] = self._ack_rule(bookies)
        return known

    def _unacknowledged(self, index: int) -> SendAdds | None:
        bit = 1 << index
        sent_stop = self.last_pushed + 1 - len(self._send_queue)
        ids = [
            entry_id
            for entry_id in range(self.lac + 1, sent_stop)
            if self._write_masks[entry_id % self._size] & bit and not self._acks[entry_id] & bit
        ]
        if not ids:
            return None
        return SendAdds(self._ensemble[index], [self._frames[entry_id] for entry_id in ids], ids)

    def _present(self, index: int) -> None:
        # From here on entries wait for this bookie again. Entries confirmed during its absence do not: the
        # writer never sends them to it, so it owes no reply.
        bit = 1 << index
        self._absent_mask &= ~bit
        for entry_id in range(self._oldest, self.lac + 1):
            self._acks[entry_id] |= bit

    def _note_missed(self, index: int) -> None:
        """The bookie of this index fails, or did: note the confirmed entries that it may not have."""
        bit, bookie = 1 << index, self._ensemble[index]
        owed = self._owed.pop(index, ())
        left = range(self._oldest, self.lac + 1)
        ids = [*owed, *(one for one in left if self._write_masks[one % self._size] & bit & ~self._acks[one])]
        if ids:
            self.missed[bookie] = self.missed.get(bookie, ids)[0], ids[-1]

    def _release(self) -> None:
        acks, frames, absent = self._acks, self._frames, self._absent_mask
        masks, size = self._write_masks, self._size
        oldest, lac = self._oldest, self.lac
        while oldest <= lac:
            mask = masks[oldest % size]
            if (acks[oldest] | absent) & mask != mask:
                break
            if absent and (lost := mask & ~acks[oldest]):
                for index in range(size):
                    if lost >> index & 1:
                        self._owed[index] = self._owed.get(index, (oldest,))[0], oldest
            del acks[oldest]
            self.bytes_in_flight -= len(frames.pop(oldest))
            oldest += 1
        self._oldest = oldest
