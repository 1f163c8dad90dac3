"""How fast a new auditor looks at the ledgers of bookies that registered a moment ago."""

from __future__ import annotations

import math

import pytest
import trio
from trio.testing import MockClock

from ledger.replication import returned_bookies
from ledger.replication.config import ReplicationConfig
from ledger.replication.ledger_visits import REST, LedgerVisits, Pace
from ledger.replication.marks import UnderReplicatedLedgers
from ledger.replication.returned_bookies import RETURN_PAUSE_S, RETURN_REST, ReturnedBookies
from ledger.runtime.clock import wall_ms
from tests.fakes.replication_world import open_world


@pytest.mark.parametrize(
    ("interval_s", "ago_s", "rests"),
    [
        (math.inf, 60, [RETURN_REST, RETURN_REST, REST]),
        (math.inf, 3000, [REST] * 3),
        (86_400, 90_000, [REST] * 3),
        (0, 60, [RETURN_REST, RETURN_REST, REST]),
        (0, 3000, [REST] * 3),
        (0, 4000, []),
    ],
)
async def test_a_new_auditor_looks_fast_at_the_newest_ledgers_if_a_bookie_registered_a_moment_ago(
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    interval_s: float,
    ago_s: int,
    rests: list[int],
) -> None:
    monkeypatch.setattr(returned_bookies, "GROUP", 2)
    monkeypatch.setattr(returned_bookies, "RECENT_LEDGERS", 4)
    found = list[float]()

    async def note(self: Pace, began_s: float, *, times: float = REST, wake: object = None) -> None:
        found.append(times)

    monkeypatch.setattr(Pace, "rest", note)
    config = ReplicationConfig(ledger_check_interval_s=math.inf, replicas_check_interval_s=interval_s)

    def later_ms() -> int:
        return wall_ms() + 1000 * ago_s

    async with open_world(3, config) as world:
        for _ in range(5):
            await (await world.client.create()).close()
        marks = UnderReplicatedLedgers(world.session, "/ledgers", wall_ms=later_ms)
        bookies = ReturnedBookies(
            world.client.context,
            world.session,
            marks,
            config,
            LedgerVisits(world.client.context, world.session, marks, config),
            lambda count: None,
            later_ms,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bookies.follow, trio.Event)
            nursery.start_soon(bookies.check_returned)
            await trio.sleep(RETURN_PAUSE_S + 1)
            nursery.cancel_scope.cancel()
    assert found == rests
