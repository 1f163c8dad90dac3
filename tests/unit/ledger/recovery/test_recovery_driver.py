"""Performing a recovery: its state after a cancellation, and its internal errors."""

# covers: ledger/recovery/driver.py

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from ledger.codes import Code
from ledger.config import ClientConfig
from ledger.errors import BookieUnavailableError, LedgerRecoveryError
from ledger.recovery.recovery import ReadLength, Recovery
from ledger.wire.messages import AddRequest, ReadRequest
from tests.fakes.dict_bookies import DictCluster, abandon_ledger
from tests.fakes.scripted_bookies import request_timers

SLOW_TO_GIVE_UP = ClientConfig(overload_timeout_s=60.0, retry_backoff_min_s=1.0, recovery_denial_grace_s=5.0)


def is_read(request: object) -> bool:
    return isinstance(request, ReadRequest) and request.fence


def is_add(request: object) -> bool:
    return isinstance(request, AddRequest) and request.recovery


@pytest.mark.parametrize("waits_for", ["silence", "overload", "grace"])
async def test_a_cancelled_recovery_leaves_no_request_and_no_timer(
    cluster: DictCluster, autojump_clock: MockClock, waits_for: str
) -> None:
    async with cluster.client(SLOW_TO_GIVE_UP) as client:
        ledger_id = await abandon_ledger(client, 3)
        transport = client._context.transport
        names = list(cluster.bookies)
        if waits_for == "silence":
            for bookie in cluster.bookies.values():
                bookie.is_silent = True
        elif waits_for == "overload":
            for bookie in cluster.bookies.values():
                bookie.refuse = lambda request: Code.TOO_MANY_REQUESTS if is_read(request) else None
        else:  # two bookies deny the entry after the last; the third has time to reply
            cluster.bookies[names[0]].is_silent = True
        with trio.move_on_after(3) as scope:
            await client.open(ledger_id)
        assert scope.cancelled_caught
        assert request_timers(transport) == 0
        for bookie in cluster.bookies.values():
            bookie.is_silent, bookie.refuse = False, lambda request: None
        if waits_for == "silence":
            # Late replies would be taken for replies to the new reads, which are equal: the connection is
            # closed.
            with pytest.raises(LedgerRecoveryError):
                await client.open(ledger_id)
            await trio.sleep(client._context.transport.config.add_timeout_s * 4)
        async with await client.open(ledger_id) as reader:
            assert [int(entry.payload) for entry in await reader.read(0, 2)] == [0, 1, 2]


@pytest.mark.parametrize("step", ["on_lac_read", "on_entry_read", "on_entry_added", "on_length_read"])
async def test_an_internal_error_in_a_recovery_ends_only_that_recovery(
    cluster: DictCluster, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    async with cluster.client(SLOW_TO_GIVE_UP) as client:
        ledger_id = await abandon_ledger(client, 3)
        losses = client._context.transport.losses
        with monkeypatch.context() as patch:
            patch.setattr(Recovery, step, lambda *_: 1 / 0)
            if step == "on_length_read":  # the length is read only if no entry is written again
                patch.setattr(Recovery, "_begin_reading", lambda self: [ReadLength(0)])
            with pytest.raises(ZeroDivisionError):
                await client.open(ledger_id)
        assert client._context.transport.losses == losses
        async with await client.open(ledger_id) as reader:
            assert [int(entry.payload) for entry in await reader.read(0, 2)] == [0, 1, 2]


async def test_a_recovery_without_a_decision_raises(
    cluster: DictCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client(SLOW_TO_GIVE_UP) as client:
        ledger_id = await abandon_ledger(client, 3)
        monkeypatch.setattr(Recovery, "on_lac_read", lambda *_: [])
        with pytest.raises(LedgerRecoveryError, match="without a decision"):
            await client.open(ledger_id)


async def test_a_recovery_that_cannot_send_raises_with_the_reasons(
    cluster: DictCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client(SLOW_TO_GIVE_UP) as client:
        ledger_id = await abandon_ledger(client, 3)

        def closed(bookie: str, *_: object, **__: object) -> None:
            raise BookieUnavailableError(bookie, "the transport is closed")

        monkeypatch.setattr(client._context.transport, "send", closed)
        with pytest.raises(LedgerRecoveryError, match="the transport is closed"):
            await client.open(ledger_id)
