"""Opening and recovering over the wire: replies of bookies, and how long a recovery waits for them."""

# covers: ledger/recovery/opening.py

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from ledger.codes import Code
from ledger.config import ClientConfig
from ledger.errors import AccessDeniedError, LedgerRecoveryError
from ledger.metadata import LedgerState
from ledger.wire.messages import LAST_ENTRY, AddRequest, ReadRequest
from tests.fakes.dict_bookies import DictCluster, abandon_ledger

CONFIG = ClientConfig(overload_timeout_s=5.0, retry_backoff_min_s=0.05, recovery_denial_grace_s=0.1)


def is_lac_read(request: object) -> bool:
    return isinstance(request, ReadRequest) and request.fence and request.entry_id == LAST_ENTRY


def is_recovery_read(request: object) -> bool:
    return isinstance(request, ReadRequest) and request.fence and request.entry_id != LAST_ENTRY


def is_recovery_add(request: object) -> bool:
    return isinstance(request, AddRequest) and request.recovery


EACH_STEP = pytest.mark.parametrize("wanted", [is_lac_read, is_recovery_read, is_recovery_add])


@EACH_STEP
async def test_a_recovery_retries_bookies_over_capacity(
    cluster: DictCluster, autojump_clock: MockClock, wanted: Any
) -> None:
    async with cluster.client(CONFIG) as client:
        ledger_id = await abandon_ledger(client, 3)
        relief_s = trio.current_time() + 3.0
        for bookie in cluster.bookies.values():
            bookie.refuse = lambda request: (
                Code.TOO_MANY_REQUESTS if wanted(request) and trio.current_time() < relief_s else None
            )
        async with await client.open(ledger_id) as reader:
            assert [int(entry.payload) for entry in await reader.read(0, 2)] == [0, 1, 2]
        assert trio.current_time() >= relief_s


@EACH_STEP
async def test_a_recovery_gives_up_on_bookies_over_capacity_after_the_configured_time(
    cluster: DictCluster, autojump_clock: MockClock, wanted: Any
) -> None:
    async with cluster.client(CONFIG, ends_within_s=60) as client:
        ledger_id = await abandon_ledger(client, 3)
        for bookie in cluster.bookies.values():
            bookie.refuse = lambda request: Code.TOO_MANY_REQUESTS if wanted(request) else None
        with pytest.raises(LedgerRecoveryError, match="TOO_MANY_REQUESTS"):
            await client.open(ledger_id)
        assert (await client.metadata(ledger_id)).state is LedgerState.IN_RECOVERY
        for bookie in cluster.bookies.values():
            bookie.refuse = lambda request: None
        async with await client.open(ledger_id) as reader:
            assert reader.last_confirmed == 2


@EACH_STEP
async def test_a_bookie_with_another_key_ends_a_recovery_without_a_decision(
    cluster: DictCluster, autojump_clock: MockClock, wanted: Any
) -> None:
    async with cluster.client(CONFIG) as client:
        ledger_id = await abandon_ledger(client, 3)
        cluster.bookies["b2:1"].refuse = lambda request: Code.UNAUTHORIZED if wanted(request) else None
        for name in ("b1:1", "b3:1"):
            cluster.bookies[name].delay_s = 0.1  # the refusal is the first reply in each step
        with pytest.raises(AccessDeniedError):
            await client.open(ledger_id)
        assert (await client.metadata(ledger_id)).state is LedgerState.IN_RECOVERY


async def test_a_recovery_replaces_a_bookie_that_refuses_its_adds(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    """The replacement holds the entries written again; the close names it from the first of them on."""
    async with cluster.client(CONFIG) as client:
        ledger_id = await abandon_ledger(client, 3)
        await cluster.start("b4:1")
        await trio.testing.wait_all_tasks_blocked()
        cluster.bookies["b2:1"].refuse = lambda request: (
            Code.READ_ONLY if isinstance(request, AddRequest) else None
        )
        for name in ("b1:1", "b3:1"):
            cluster.bookies[name].delay_s = 0.1
        async with await client.open(ledger_id) as reader:
            assert [int(entry.payload) for entry in await reader.read(0, 2)] == [0, 1, 2]
            first, last = reader.metadata.ensembles
            assert (first.first_entry_id, last.first_entry_id) == (0, 2)
            assert set(last.bookies) == {"b1:1", "b3:1", "b4:1"}
        await trio.testing.wait_all_tasks_blocked()
        assert set(cluster.bookies["b4:1"].ledgers[ledger_id].entries) == {2}


async def test_a_recovery_reads_ahead_no_further_than_configured(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    config = ClientConfig(recovery_read_ahead=4)
    async with cluster.client(config) as client:
        writer = await client.create()
        await writer.append(b"x")
        for _ in range(40):
            writer.submit(b"x")
        await trio.testing.wait_all_tasks_blocked()
        writer.abandon()  # forty entries on disk; the bookies do not know that any is confirmed
        ahead: list[int] = []
        read: set[int] = set()
        stored: dict[int, set[str]] = {}

        def watch(name: str) -> Any:
            def refuse(request: object) -> Code | None:
                if isinstance(request, AddRequest) and request.recovery:
                    stored.setdefault(request.entry_id, set()).add(name)
                elif isinstance(request, ReadRequest) and request.entry_id >= 0:
                    read.add(request.entry_id)
                    safe = [entry_id for entry_id, names in stored.items() if len(names) >= 2]
                    ahead.append(max(read) - max(safe, default=0))
                return None

            return refuse

        for name, bookie in cluster.bookies.items():
            bookie.refuse = watch(name)
        async with await client.open(writer.ledger_id) as reader:
            assert reader.last_confirmed == 40
        assert set(range(1, 42)) <= read
        assert 1 < max(ahead) <= 4


async def test_opening_with_recovery_finds_the_last_entry_that_opening_without_it_misses(
    cluster: DictCluster,
) -> None:
    """docs/known-bugs.md 20: the last acknowledged entry is missed unless the ledger is recovered."""
    async with cluster.client() as client:
        ledger_id = await abandon_ledger(client, 1)
        unrecovered = await client.open(ledger_id, recover=False)
        assert (unrecovered.last_confirmed, unrecovered.is_closed) == (-1, False)
        assert (await client.metadata(ledger_id)).state is LedgerState.OPEN  # no end was decided
        async with await client.open(ledger_id) as recovered:
            assert (recovered.last_confirmed, recovered.is_closed) == (0, True)
            assert [entry.payload for entry in await recovered.read(0, 0)] == [b"0"]
        assert all(bookie.ledgers[ledger_id].fenced for bookie in cluster.bookies.values())
        await unrecovered.close()
