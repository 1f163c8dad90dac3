"""Telling bookies the LAC without an entry to carry it, so that readers may go on.

Inside: when it is worth it; sending it. Not inside: what readers make of it (``lac_poll``, ``opening``).
Always: what is told is confirmed, and under the ledger's digest; a failure harms nothing, for the next entry
carries the LAC too.

Source: ExplicitLacFlushPolicy.java, PendingWriteLacOp.java; reference section 5.12.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

from ledger.digest import EntryCodec
from ledger.errors import LedgerError, LedgerWriteError
from ledger.metadata import LedgerMetadata
from ledger.quorum import write_set
from ledger.transport import Transport
from ledger.wire.codes import Code
from ledger.wire.messages import WriteLacRequest

logger = logging.getLogger(__name__)


class IdleLac:
    """Says when a writer has become idle with a LAC that its entries do not carry."""

    def __init__(self) -> None:
        self._told = -1
        self._last_pushed = -1

    def is_due(self, lac: int, last_pushed: int) -> bool:
        """Called once for each interval. A busy writer's entries carry its LAC themselves."""
        is_idle = last_pushed == self._last_pushed
        self._last_pushed = last_pushed
        return is_idle and lac > self._told

    def told(self, lac: int) -> None:
        """An ack quorum knows it."""
        self._told = max(self._told, lac)


async def tell_when_idle(
    interval_s: float, position: Callable[[], tuple[int, int]], tell: Callable[[], Awaitable[int]]
) -> None:
    """Look at a writer at each interval, and tell when it is idle; never returns.

    Args:
        position: The writer's LAC and the last entry pushed.
        tell: Tells bookies the LAC and returns which; or raises ``LedgerWriteError``.
    """
    idle = IdleLac()
    while True:
        await trio.sleep(interval_s)
        if idle.is_due(*position()):
            try:
                idle.told(await tell())
            except LedgerWriteError as exc:
                logger.info("trying again in %g s: %s", interval_s, exc)


async def tell_lac(
    transport: Transport, ledger_id: int, metadata: LedgerMetadata, codec: EntryCodec, lac: int
) -> int:
    """Store the LAC at the write set of its entry, and return it. If cancelled, some bookies may know it.

    Raises:
        LedgerWriteError: Fewer than an ack quorum took it.
    """
    ensemble = metadata.last_ensemble.bookies
    request = WriteLacRequest(ledger_id, lac, codec.master_key, codec.pack_lac(ledger_id, lac))
    taken: list[str] = []
    problems: list[str] = []

    async def tell(bookie: str, scope: trio.CancelScope) -> None:
        try:
            reply = await transport.call(bookie, request)
        except LedgerError as exc:
            problems.append(str(exc))
            return
        if reply.code is not Code.OK:
            problems.append(f"{bookie}: {reply.code.name}")
            return
        taken.append(bookie)
        if len(taken) >= metadata.ack_quorum:
            scope.cancel()

    async with trio.open_nursery() as nursery:
        for index in write_set(lac, len(ensemble), metadata.write_quorum):
            nursery.start_soon(tell, ensemble[index], nursery.cancel_scope)
    if len(taken) < metadata.ack_quorum:
        raise LedgerWriteError(ledger_id, f"explicit LAC {lac} not stored: {'; '.join(problems)}")
    return lac
