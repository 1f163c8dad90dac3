"""Sending the LAC to bookies without an entry that carries it, so that readers can continue.

Inside: when this is needed; sending it. Not inside: how readers use it (``lac_poll``, ``opening``).
Always: the LAC that is sent is confirmed, and protected by the ledger's digest; a failure does no harm,
because the next entry carries the LAC too.

Source: ExplicitLacFlushPolicy.java, PendingWriteLacOp.java; docs/protocol.md 5.12.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from ledger.codes import Code
from ledger.digest import EntryCodec
from ledger.errors import LedgerError, LedgerWriteError
from ledger.metadata import LedgerMetadata
from ledger.quorum import write_set
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from ledger.transport.transport import Transport
from ledger.wire.messages import WriteLacRequest

logger = get_logger(__name__)


class IdleLac:
    """Notices that a writer became idle with a LAC that none of its entries carries."""

    def __init__(self) -> None:
        self._written = -1
        self._last_pushed = -1

    def is_due(self, lac: int, last_pushed: int) -> bool:
        """To be called once in each interval. The entries of a busy writer carry its LAC themselves."""
        is_idle = last_pushed == self._last_pushed
        self._last_pushed = last_pushed
        return is_idle and lac > self._written

    def on_written(self, lac: int) -> None:
        """An ack quorum has stored this LAC."""
        self._written = max(self._written, lac)


class Position(Protocol):
    """How far a writer is."""

    @property
    def lac(self) -> int: ...

    @property
    def last_pushed(self) -> int: ...


async def write_lac_when_idle(
    interval_s: float, position: Position, write: Callable[[], Awaitable[int]]
) -> None:
    """Look at a writer in each interval, and write its LAC when it is idle; never returns.

    Args:
        write: Sends bookies the LAC and returns it; or raises ``LedgerWriteError``.
    """
    idle = IdleLac()
    while True:
        await trio.sleep(interval_s)
        if idle.is_due(position.lac, position.last_pushed):
            try:
                idle.on_written(await write())
            except LedgerWriteError as exc:
                logger.info(
                    "trying again in %g s: %s",
                    interval_s,
                    exc,
                    extra=event("ledger.lac_not_written", error=exc),
                )


async def write_lac(
    transport: Transport, ledger_id: int, metadata: LedgerMetadata, codec: EntryCodec, lac: int
) -> int:
    """Store the LAC on the write set of its entry, and return it. If cancelled, some bookies may have it.

    Raises:
        LedgerWriteError: Fewer than an ack quorum stored it.
    """
    ensemble = metadata.last_ensemble.bookies
    request = WriteLacRequest(ledger_id, lac, codec.master_key, codec.pack_lac(ledger_id, lac))
    stored_on: list[str] = []
    problems: list[str] = []

    async def write_to(bookie: str, scope: trio.CancelScope) -> None:
        try:
            reply = await transport.call(bookie, request)
        except LedgerError as exc:
            problems.append(str(exc))
            return
        if reply.code is not Code.OK:
            problems.append(f"{bookie}: {reply.code.name}")
            return
        stored_on.append(bookie)
        if len(stored_on) >= metadata.ack_quorum:
            scope.cancel()

    async with trio.open_nursery() as nursery:
        for index in write_set(lac, len(ensemble), metadata.write_quorum):
            nursery.start_soon(write_to, ensemble[index], nursery.cancel_scope)
    if len(stored_on) < metadata.ack_quorum:
        raise LedgerWriteError(ledger_id, f"explicit LAC {lac} not stored: {'; '.join(problems)}")
    return lac
