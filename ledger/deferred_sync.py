"""Ledgers whose entries are acknowledged before they are on disk, and made durable by ``force``.

Inside: what is durable so far; asking all bookies to sync. Not inside: ending the writer (``write_handle``).
Always: the LAC, which readers and the ledger's end go by, moves only when every bookie of the ensemble has
synced; one whose connection broke in between may have lost what it acknowledged, so its word is not taken.

Source: ForceLedgerOp.java, LedgerHandle.java; reference section 5.11.
"""

from __future__ import annotations

from collections.abc import Iterable

import trio

from ledger.errors import BookieError, BookieRefusal
from ledger.transport import Transport
from ledger.wire.codes import Code
from ledger.wire.messages import ForceLedgerRequest
from ledger.writer import Pack


class Durable:
    """How far a ledger is synced. ``lac`` never goes back."""

    def __init__(self) -> None:
        self.lac = -1
        self.length_bytes = 0  # up to the LAC

    def forced(self, head: int, length_bytes: int) -> None:
        """All bookies have synced since ``head`` was acknowledged."""
        if head > self.lac:
            self.lac, self.length_bytes = head, length_bytes


def pack_with_durable_lac(pack: Pack, durable: Durable) -> Pack:
    """Entries carry the LAC that is synced, not what is acknowledged."""

    def packed(entry_id: int, lac: int, length_bytes: int, payload: bytes) -> bytes:
        assert durable.lac <= lac
        return pack(entry_id, durable.lac, length_bytes, payload)

    return packed


async def force_bookies(transport: Transport, ledger_id: int, bookies: Iterable[str]) -> None:
    """Have every one of the bookies sync what it acknowledged of a ledger.

    Raises:
        BookieError: One refused, or did not answer. What is synced and what is not is unknown.
    """
    failures: list[BookieError] = []

    async def force(bookie: str, scope: trio.CancelScope) -> None:
        try:
            reply = await transport.call(bookie, ForceLedgerRequest(ledger_id))
            if reply.code is not Code.OK:
                raise BookieRefusal.by_code[reply.code](bookie, ledger_id)
        except BookieError as exc:
            failures.append(exc)
            scope.cancel()

    async with trio.open_nursery() as nursery:
        for bookie in bookies:
            nursery.start_soon(force, bookie, nursery.cancel_scope)
    if failures:
        raise failures[0]
