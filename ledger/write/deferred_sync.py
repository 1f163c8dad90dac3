"""Ledgers whose bookies acknowledge entries before these are on disk; ``force`` makes them durable.

Inside: the durable position; asking all bookies to sync. Not inside: ending the writer (``repair``).
Always: the LAC, which readers and the ledger's end rely on, moves only after every bookie of the ensemble has
synced. A bookie whose connection broke in between may have lost entries that it acknowledged, so its
acknowledgements do not count.

Source: ForceLedgerOp.java, LedgerHandle.java; docs/protocol.md 5.11.
"""

from __future__ import annotations

from collections.abc import Iterable

from ledger.codes import Code
from ledger.errors import BookieError, BookieRefusal, LedgerWriteError
from ledger.runtime.tasks.task_errors import for_each
from ledger.transport.transport import Transport
from ledger.wire.messages import ForceLedgerRequest
from ledger.write.writer import LedgerWriter, Pack


class Durable:
    """The position up to which a ledger is synced. ``lac`` never goes back."""

    def __init__(self) -> None:
        self.lac = -1
        self.length_bytes = 0  # up to the LAC

    def forced(self, head: int, length_bytes: int) -> None:
        """All bookies have synced after ``head`` was acknowledged."""
        if head > self.lac:
            self.lac, self.length_bytes = head, length_bytes


def pack_with_durable_lac(pack: Pack, durable: Durable) -> Pack:
    """Pack entries with the LAC that is synced instead of the last acknowledged entry."""

    def packed(entry_id: int, lac: int, length_bytes: int, payload: bytes) -> bytes:
        if durable.lac > lac:  # durable entries are confirmed ones
            raise AssertionError(f"entries up to {durable.lac} are durable, but only {lac} is confirmed")
        return pack(entry_id, durable.lac, length_bytes, payload)

    return packed


async def force_confirmed(transport: Transport, ledger_id: int, writer: LedgerWriter) -> None:
    """Without deferred sync: have the whole ensemble sync; again if the ensemble changes meanwhile.

    Raises:
        LedgerWriteError: A bookie refused, or did not answer.
    """
    while writer.lac >= 0:
        ensemble = writer.ensemble
        try:
            await force_bookies(transport, ledger_id, ensemble)
        except BookieError as exc:
            raise LedgerWriteError(ledger_id, f"not every bookie has synced it: {exc}") from None
        if writer.ensemble == ensemble:
            return


async def force_bookies(transport: Transport, ledger_id: int, bookies: Iterable[str]) -> None:
    """Have each of the bookies sync the entries of a ledger that it acknowledged.

    Raises:
        BookieError: A bookie refused, or did not answer. How much is synced is unknown.
    """

    async def force(bookie: str) -> None:
        reply = await transport.call(bookie, ForceLedgerRequest(ledger_id))
        if reply.code is not Code.OK:
            raise BookieRefusal.by_code[reply.code](bookie, ledger_id)

    await for_each(force, bookies)
