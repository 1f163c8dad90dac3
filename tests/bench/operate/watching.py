"""A look from outside at a repair, through the metadata alone.

Inside: from the death of a bookie until no ledger names it and no mark is left.
Always: the repair counts from the last look that still found the bookie. So its time is never too short, and
at most one look too long. A small repair can be over before the next look; it then takes one look.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import trio

from dlog.cluster.layout import LEDGERS_ROOT
from ledger.client import LedgerClient
from ledger.fragments.registered import read_registered
from ledger.metadata_store.store import MetadataStore
from ledger.replication import UnderReplicatedLedgers
from tests.bench.operate.load import Load

POLL_S = 0.05  # between two looks


@attrs.frozen
class RepairTimes:
    """The times of one repair, from the death of the bookie."""

    noticed_s: float  # until the last look that still found the bookie
    marked_s: float | None  # until the first mark was seen; None: no look saw one
    healed_s: float
    load_per_s: float | None  # of the writer beside it, from noticed to healed; None: there was none


@attrs.define
class RepairLooks:
    """The looks at one repair; begin them before the bookie dies."""

    store: MetadataStore
    client: LedgerClient
    lost: str  # bookie id
    ledgers: Sequence[int]
    load: Load | None
    is_alive: Callable[[], bool]  # of the process that restores
    started_s: float = attrs.field(init=False, factory=trio.current_time)
    unrestored: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.unrestored = len(self.ledgers)

    async def watch(self) -> RepairTimes | None:
        """Wait for the end of the repair; None: the process that restores ended before."""
        beside = noticed_s = marked_s = None
        marks = UnderReplicatedLedgers(self.store.current_session(), LEDGERS_ROOT)
        is_registered = True
        while self.is_alive():
            if is_registered:
                look_s, interval = self._passed_s(), self.load.begin() if self.load else None
                is_registered = self.lost in (await read_registered(self.store, LEDGERS_ROOT)).all
                if is_registered or noticed_s is None:
                    noticed_s, beside = look_s, interval
            if not is_registered:
                is_marked = bool(await marks.marked())
                if is_marked and marked_s is None:
                    marked_s = self._passed_s()
                if await self._are_restored() and not is_marked:
                    healed_s = self._passed_s()
                    assert noticed_s is not None  # the first round of the loop sets it
                    return RepairTimes(
                        noticed_s, marked_s, healed_s, await beside.per_s() if beside else None
                    )
            await trio.sleep(POLL_S)
        return None

    async def _are_restored(self) -> bool:
        while self.unrestored and not await self._is_named(self.ledgers[self.unrestored - 1]):
            self.unrestored -= 1
        return self.unrestored == 0

    async def _is_named(self, ledger_id: int) -> bool:
        metadata = await self.client.metadata(ledger_id)
        return any(self.lost in ensemble.bookies for ensemble in metadata.ensembles)

    def _passed_s(self) -> float:
        return trio.current_time() - self.started_s
