"""The adds of one writer that are on their way: sent, answered, failed, confirmed; and what ends them.

Inside: what the transport tells (this is its sink), whose word counts, handing failing bookies over to be
replaced, waking those who wait, the bound of what is in flight, syncing on request.
Not inside: taking entries, what callers are promised (``write_handle``), counting acknowledgements
(``writer``), replacing bookies (``repair``), the end in the metadata (``closing``).
Always: callers learn of entries in their order; the first reason to end is the only one, after it nothing is
sent or confirmed any more, and whoever waits is told it.

Source: LedgerHandle.java, PendingAddOp.java, ForceLedgerOp.java; reference sections 5.4, 5.5, 5.11, 5.13;
lessons rows 1, 48, 52.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import trio

from ledger.catalog import Versioned
from ledger.cluster import Cluster
from ledger.confirmations import Confirmations
from ledger.continuity import Continuity
from ledger.deferred_sync import Durable, force_bookies
from ledger.errors import (
    BookieError,
    BookieRefusal,
    BookieUnavailableError,
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    LedgerWriteError,
    WrongPasswordError,
)
from ledger.repair import EnsembleRepair, MakeError
from ledger.wire.codes import Code
from ledger.writer import LedgerWriter, Outgoing

Confirmed = Callable[[int, BaseException | None], None]
"""Told the LAC, and at the end why it grows no more."""


class PendingAdds:
    """Carries what a ``LedgerWriter`` decides to bookies and back."""

    def __init__(
        self,
        writer: LedgerWriter,
        current: Versioned,
        cluster: Cluster,
        nursery: trio.Nursery,
        *,
        add_version: int,
        durable: Durable | None,
        connections: Mapping[str, int | None],
        ended: Callable[[], None],
    ) -> None:
        """Nothing is on its way yet.

        Args:
            durable: With deferred sync, what is synced.
            connections: Those that the bookies had before the metadata was written.
            ended: Called once, before anybody else is told of the end.
        """
        self.make_error: MakeError | None = None  # once it has ended, why
        self.callbacks: list[Confirmed] = []
        self.submitted = trio.Event()  # set when there is something to send that nobody waits for
        self._ledger_id = current.ledger_id
        self._writer, self._durable, self._ended = writer, durable, ended
        self._transport, self._membership = cluster.transport, cluster.membership
        self._nursery = nursery
        self._bytes_max = cluster.config.bytes_in_flight_max
        self._entries_max = cluster.config.entries_in_flight_max
        transport = cluster.transport
        self._continuity = Continuity(lambda bookie: transport.connection_to(bookie, add_version=add_version))
        self._continuity.begin(connections)
        self.repair = EnsembleRepair(
            writer,
            current,
            cluster,
            self._continuity,
            send=self._send,
            progressed=self._confirmed,
            look_at_connections=self._look_at_connections,
            end=self.end,
        )
        self._room = trio.Event()
        self._confirmations = Confirmations()

    @property
    def lac(self) -> int:
        """The last entry that is confirmed, and durable."""
        return self._writer.lac if self._durable is None else self._durable.lac

    def flush(self) -> None:
        """Send what was appended."""
        if self._writer.unsent_count and self.make_error is None:
            self._send(self._writer.take_outgoing())

    async def run(self) -> None:
        """Send what nobody waits for, until the end."""
        while self.make_error is None:
            await self.submitted.wait()
            self.submitted = trio.Event()
            self.flush()

    async def wait(self, entry_id: int) -> None:
        """Return when the entry is acknowledged by a quorum, or when nothing will be any more."""
        if self.make_error is None:
            self.flush()
            await self._confirmations.wait(entry_id)

    def has_room(self) -> bool:
        """Whether what is in flight leaves room for more."""
        writer = self._writer
        return writer.bytes_in_flight < self._bytes_max and writer.entries_in_flight < self._entries_max

    async def wait_room(self) -> None:
        """Return when there is room, or at the end."""
        self.flush()
        while not self.has_room() and self.make_error is None:
            await self._room.wait()

    async def force(self) -> None:
        """Have all bookies sync what is acknowledged; with deferred sync this makes it durable.

        Raises: what ``WriteHandle.force`` raises.
        """
        writer, durable = self._writer, self._durable
        while writer.lac > (-1 if durable is None else durable.lac):
            head, length_bytes, ensemble = writer.lac, writer.lac_length_bytes, writer.ensemble
            try:
                await force_bookies(self._transport, self._ledger_id, ensemble)
            except BookieError as exc:
                if durable is None:
                    raise LedgerWriteError(self._ledger_id, f"not every bookie has synced it: {exc}") from exc
                self._lose_unsynced(exc)
            if durable is not None:
                self._look_at_connections()
                if self.make_error is not None:
                    raise self.error()
                durable.forced(head, length_bytes)
                for callback in self.callbacks:
                    callback(durable.lac, None)
            if durable is not None or writer.ensemble == ensemble:
                return

    def adds_answered(self, bookie: str, code: Code, entry_ids: Sequence[int]) -> None:
        """The transport tells, on the loop, what a bookie answered."""
        if code is Code.OK:
            if not self._continuity.is_settled(bookie, self._transport.losses):
                self._look_at_connections(bookie)
                if self.make_error is not None:
                    return
            if self._writer.answered(bookie, entry_ids):
                self._confirmed()
                return
            if self._writer.doubtful and not self.repair.is_verifying:
                self.repair.is_verifying = True
                self._nursery.start_soon(self.repair.verify)
            self._give_room()
        elif code is Code.FENCED:
            self.end(lambda: LedgerFencedError(self._ledger_id, f"bookie {bookie} has fenced it"))
        elif code is Code.UNAUTHORIZED:
            self.end(lambda: WrongPasswordError(self._ledger_id))
        else:
            cause = BookieRefusal.by_code[code](bookie, self._ledger_id, entry_ids[0])
            self._membership.count_errors(bookie, len(entry_ids), cause)
            self._failed(bookie, cause, lost=False)

    def bookie_lost(self, bookie: str, cause: Exception) -> None:
        """The transport tells that a connection broke; what was unanswered there is unknown."""
        self._membership.count_errors(bookie, 1, cause)
        self._failed(bookie, cause, lost=True)

    def end(self, make_error: MakeError) -> None:
        """Nothing more is sent or confirmed; everyone who waits learns why. Only the first reason counts."""
        self._ended()
        if self.make_error is not None:
            return
        self.make_error = make_error
        self.repair.stop()
        self._transport.forget(self._ledger_id, self)
        self._confirmations.wake_all()
        self._room.set()
        self.submitted.set()
        error = make_error()
        for callback in self.callbacks:
            callback(self.lac, error)

    def error(self) -> LedgerError:
        """Why it has ended, or is about to."""
        # A new exception for each who asks: one object raised in several tasks would mix their tracebacks.
        if self.make_error is None:
            return LedgerClosedError(self._ledger_id, "is being closed")
        return self.make_error()

    def _send(self, outgoing: list[Outgoing]) -> None:
        for run in outgoing:
            self._transport.post_adds(run.bookie, self._ledger_id, run.frames, run.entry_ids, self)

    def _confirmed(self) -> None:
        lac = self._writer.lac
        self.repair.unblocked()
        self._confirmations.confirm(lac)
        if self._durable is None:
            for callback in self.callbacks:
                callback(lac, None)
        self._give_room()

    def _look_at_connections(self, bookie: str | None = None) -> None:
        """Notice lost connections, and that ``bookie`` answers over a new one."""
        doubted = self._continuity.gone(self._transport.losses)
        if doubted and self._durable is not None and self._writer.last_pushed > self._durable.lac:
            self._lose_unsynced(BookieUnavailableError(doubted[0], "the connection was lost"))
            return
        if bookie is not None and self._continuity.is_new(bookie):
            doubted.append(bookie)
        for one in doubted:
            run = self._writer.reconnected(one)
            if run is not None:
                self._send([run])

    def _lose_unsynced(self, cause: Exception) -> None:
        assert self._durable is not None
        message = f"entries after {self._durable.lac} are not synced and may be lost: {cause}"
        self.end(lambda: LedgerWriteError(self._ledger_id, message))

    def _failed(self, bookie: str, cause: Exception, *, lost: bool) -> None:
        if self._durable is not None:
            # Another bookie could take what is pending, but not what this one acknowledged.
            self._lose_unsynced(cause)
            return
        if self.make_error is not None or not self._writer.failed(bookie, cause, lost=lost):
            return
        self.repair.noticed(bookie, cause)
        self._give_room()
        if not self.repair.is_running:
            self.repair.is_running = True
            self._nursery.start_soon(self.repair.run)

    def _give_room(self) -> None:
        if self._room.statistics().tasks_waiting and self.has_room():
            self._room.set()
            self._room = trio.Event()
