"""Garbage collection: which ledgers and entry logs may go, and letting them go.

Inside: the rule, one round, the endless loop. Not inside: compaction of logs that are partly dead.
Always: a ledger goes only if the metadata store has confirmed, after it was seen here, that it does not
exist; a listing that fails or is cut short deletes nothing. An entry log goes only if it could be read
to its end and no ledger in it is known here.

A ledger is in the metadata store before any of its entries can reach a bookie; hence "seen here first,
absent there afterwards" means deleted.

Source: ScanAndCompareGarbageCollector.java, GarbageCollectorThread.java; bugs it keeps out:
apache/bookkeeper #870, #876, #2264, #4596, #4607.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Protocol

import attrs
import trio

from bookie.errors import StorageFailedError

log = logging.getLogger(__name__)

LiveLedgers = Callable[[Sequence[int]], Awaitable[Collection[int]]]
"""Given ledger ids, ascending: those of them that exist, or may exist. To leave an id out is to confirm
that the metadata store was asked about it and has no such ledger. Raises if it cannot be asked."""


class GarbageStore(Protocol):
    """What a round asks of the store; ``Storage`` is one."""

    def ledger_ids(self) -> list[int]: ...
    async def delete_ledger(self, ledger_id: int) -> None: ...
    async def remove_dead_logs(self) -> list[int]: ...


@attrs.frozen
class Collected:
    """What one round let go."""

    ledger_ids: tuple[int, ...]
    log_ids: tuple[int, ...]


def dead_ledgers(local: Iterable[int], live: Collection[int]) -> list[int]:
    """The local ledgers that are not live, ascending."""
    return sorted(set(local).difference(live))


async def collect_garbage(storage: GarbageStore, live_ledgers: LiveLedgers) -> Collected:
    """Do one round. What ``live_ledgers`` raises goes through, and nothing has been deleted then.

    A cancelled round has deleted some of the dead ledgers; the next one goes on.
    """
    local = storage.ledger_ids()
    dead = dead_ledgers(local, await live_ledgers(local)) if local else []
    for ledger_id in dead:
        await storage.delete_ledger(ledger_id)
    removed = await storage.remove_dead_logs()
    if dead or removed:
        log.info("garbage: %d ledgers and %d entry logs deleted", len(dead), len(removed))
    return Collected(tuple(dead), tuple(removed))


async def collect_garbage_regularly(
    storage: GarbageStore, live_ledgers: LiveLedgers, *, interval_s: float
) -> None:
    """Do a round every ``interval_s`` until cancelled, or until the storage has failed.

    A round that fails is logged and tried again: a metadata store out of reach is no reason to stop.
    """
    while True:
        await trio.sleep(interval_s)
        try:
            await collect_garbage(storage, live_ledgers)
        except StorageFailedError:
            return  # told by wait_failed
        except Exception:  # the store's, whatever it is: reported here, and here it stops
            log.exception("garbage collection failed; the next round is in %s s", interval_s)
