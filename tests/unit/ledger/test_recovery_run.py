"""How a recovery is performed: what it leaves behind, and whom its own faults hit."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from ledger.add_lanes import SILENT_TICKS
from ledger.config import ClientConfig
from ledger.errors import BookieUnavailableError, LedgerRecoveryError
from ledger.recovery import ReadLength, Recovery
from ledger.wire.codes import Code
from ledger.wire.messages import AddRequest, ReadRequest

PATIENT = ClientConfig(overload_patience_s=60.0, retry_backoff_min_s=1.0, recovery_denial_grace_s=5.0)


async def abandoned(client: Any, count: int) -> int:
    writer = await client.create()
    for number in range(count):
        await writer.append(b"%d" % number)
    await trio.testing.wait_all_tasks_blocked()
    writer.abandon()
    ledger_id: int = writer.ledger_id
    return ledger_id


def timers_of_questions(transport: Any) -> int:
    """Running timers, but for the one that looks for silence."""
    tick_s = transport.config.add_timeout_s / SILENT_TICKS
    return sum(len(row) for seconds, row in transport.timers._rows.items() if seconds != tick_s)


def is_read(request: object) -> bool:
    return isinstance(request, ReadRequest) and request.fence


def is_add(request: object) -> bool:
    return isinstance(request, AddRequest) and request.recovery


@pytest.mark.parametrize("what", ["silence", "overload", "grace"])
async def test_a_recovery_that_is_cancelled_leaves_no_question_and_no_timer(
    cluster: Any, autojump_clock: Any, what: str
) -> None:
    async with cluster.client(PATIENT) as client:
        ledger_id = await abandoned(client, 3)
        transport = client._cluster.transport
        names = list(cluster.bookies)
        if what == "silence":
            for bookie in cluster.bookies.values():
                bookie.is_silent = True
        elif what == "overload":
            for bookie in cluster.bookies.values():
                bookie.refuse = lambda request: Code.TOO_MANY_REQUESTS if is_read(request) else None
        else:  # two deny what follows the last entry, the third says nothing: it has a moment
            cluster.bookies[names[0]].is_silent = True
        with trio.move_on_after(3) as scope:
            await client.open(ledger_id)
        assert scope.cancelled_caught
        assert timers_of_questions(transport) == 0
        for bookie in cluster.bookies.values():
            bookie.is_silent, bookie.refuse = False, lambda request: None
        if what == "silence":
            # The answers that are still due would be taken for those to the new reads, which look alike.
            with pytest.raises(LedgerRecoveryError):
                await client.open(ledger_id)
            await trio.sleep(client._cluster.transport.config.add_timeout_s * 4)
        async with await client.open(ledger_id) as reader:
            assert [int(entry.payload) for entry in await reader.read(0, 2)] == [0, 1, 2]


@pytest.mark.parametrize("step", ["lac_answered", "entry_answered", "add_answered", "length_answered"])
async def test_a_fault_of_ours_in_a_recovery_ends_that_recovery_and_nothing_else(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    async with cluster.client(PATIENT) as client:
        ledger_id = await abandoned(client, 3)
        losses = client._cluster.transport.losses
        with monkeypatch.context() as patch:
            patch.setattr(Recovery, step, lambda *_: 1 / 0)
            if step == "length_answered":  # it is asked for only when nothing had to be written again
                patch.setattr(Recovery, "_begin_reading", lambda self: [ReadLength(0)])
            with pytest.raises(ZeroDivisionError):
                await client.open(ledger_id)
        assert client._cluster.transport.losses == losses
        async with await client.open(ledger_id) as reader:
            assert [int(entry.payload) for entry in await reader.read(0, 2)] == [0, 1, 2]


async def test_a_recovery_that_comes_to_no_decision_says_so(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client(PATIENT) as client:
        ledger_id = await abandoned(client, 3)
        monkeypatch.setattr(Recovery, "lac_answered", lambda *_: [])
        with pytest.raises(LedgerRecoveryError, match="no decision"):
            await client.open(ledger_id)


async def test_a_recovery_that_can_ask_nobody_gives_up_with_the_reasons(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client(PATIENT) as client:
        ledger_id = await abandoned(client, 3)

        def closed(bookie: str, *_: object, **__: object) -> None:
            raise BookieUnavailableError(bookie, "the transport is closed")

        monkeypatch.setattr(client._cluster.transport, "ask", closed)
        with pytest.raises(LedgerRecoveryError, match="the transport is closed"):
            await client.open(ledger_id)
