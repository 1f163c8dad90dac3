"""Auto-recovery in the process of a bookie: its failures, and the bookie that goes on."""

# covers: bookie/cluster/autorecovery.py
# covers: bookie/serving.py

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from bookie import serving
from bookie.cluster.autorecovery import PAUSE_MAX_S, keep_running
from bookie.config.bookie_config import load_config
from ledger.catalog.paths import UNDERREPLICATION_LAYOUT, available_path, cookie_path
from ledger.client import LedgerClient, open_ledger_client
from ledger.errors import LedgerError
from ledger.ledger_spec import LedgerSpec
from ledger.metadata_store.memory import MemoryTree, open_memory_store
from ledger.replication import UnderReplicatedLedgers, current_auditor
from ledger.transport.dial import dial_tcp
from tests.fakes.replication_world import until
from tests.unit.bookie.test_main import NAME_OF, add_one, config_for, running

WITH_AUTO_RECOVERY = "autoRecoveryDaemonEnabled=true\nrwRereplicateBackoffMs=100\n"
TEST_TIMEOUT_S = 30


async def test_a_failure_is_repeated_after_a_pause_that_doubles_up_to_a_bound(
    autojump_clock: MockClock,
) -> None:
    times: list[float] = []

    async def fail() -> None:
        times.append(trio.current_time())
        raise LedgerError("no")

    with trio.move_on_after(400):
        await keep_running(fail)
    pauses = [round(after - before) for before, after in pairwise(times)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60]


async def test_a_failure_after_a_long_time_is_repeated_soon(autojump_clock: MockClock) -> None:
    times: list[float] = []

    async def fail_late() -> None:
        times.append(trio.current_time())
        await trio.sleep(PAUSE_MAX_S)
        raise ExceptionGroup("of a nursery", [ValueError("a bug")])

    with trio.move_on_after(250):
        await keep_running(fail_late)
    assert [round(at - times[0]) for at in times] == [0, 61, 122, 183, 244]


async def test_a_failure_during_a_stop_does_not_come_out(autojump_clock: MockClock) -> None:
    async def fail_when_cancelled() -> None:
        async with trio.open_nursery() as nursery:

            async def fail() -> None:
                try:
                    await trio.sleep_forever()
                finally:
                    raise LedgerError("the lock could not be released")

            nursery.start_soon(fail)
            await trio.sleep_forever()

    with trio.move_on_after(1) as scope:
        await keep_running(fail_when_cancelled)
    assert scope.cancelled_caught


@asynccontextmanager
async def client_of(tree: MemoryTree) -> AsyncIterator[tuple[LedgerClient, UnderReplicatedLedgers]]:
    async with open_memory_store(tree) as store, open_ledger_client(store, dial_tcp) as client:
        yield client, UnderReplicatedLedgers(store, "/ledgers")


@pytest.mark.slow
async def test_a_bookie_with_auto_recovery_restores_the_replicas_of_a_lost_one(tmp_path: Path) -> None:
    tree = MemoryTree()
    with trio.fail_after(TEST_TIMEOUT_S):
        async with (
            running(config_for(tmp_path / "1", WITH_AUTO_RECOVERY), tree) as one,
            running(config_for(tmp_path / "2"), tree) as two,
            running(config_for(tmp_path / "3"), tree) as spare,
            client_of(tree) as (client, marks),
        ):
            names = tuple(NAME_OF(each.port) for each in (one, two))
            spec = LedgerSpec(ensemble_size=2, write_quorum=2, bookies=names)
            async with await client.create_from(spec) as writer:
                await writer.append_many([b"a", b"b"])

            async def is_restored() -> bool:
                members = (await client.metadata(writer.ledger_id)).last_ensemble.bookies
                return members == (names[0], NAME_OF(spare.port)) and not await marks.marked()

            two.stop.set()
            await until(is_restored)
            async with await client.open(writer.ledger_id) as reader:
                assert [entry.payload for entry in await reader.read(0, 1)] == [b"a", b"b"]


async def test_auto_recovery_begins_after_the_bookie_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before that, its auditor would count the bookie itself as lost."""
    tree, was_announced = MemoryTree(), list[bool]()
    began = trio.Event()

    async def begin(_cluster: object, bookie_id: str, *_more: object) -> None:
        async with open_memory_store(tree) as store:
            was_announced.append(await store.exists(available_path("/ledgers", bookie_id)) is not None)
        began.set()

    monkeypatch.setattr(serving, "run_auto_recovery", begin)
    with trio.fail_after(TEST_TIMEOUT_S):
        async with running(config_for(tmp_path, WITH_AUTO_RECOVERY), tree):
            await began.wait()
    assert was_announced == [True]


def test_the_option_has_the_effect_of_the_key(tmp_path: Path) -> None:
    path = tmp_path / "bookie.conf"
    path.write_text(
        "zkServers=zk1\njournalDirectories=/j\nledgerDirectories=/l\nautoRecoveryDaemonEnabled=false"
    )
    assert load_config(path).auto_recovery is None
    assert load_config(path, with_auto_recovery=True).auto_recovery is not None


@pytest.mark.slow
async def test_the_auditor_is_the_bookie_and_its_vote_goes_with_it(tmp_path: Path) -> None:
    tree = MemoryTree()
    with trio.fail_after(TEST_TIMEOUT_S):
        async with open_memory_store(tree) as store:
            async with running(config_for(tmp_path, WITH_AUTO_RECOVERY), tree) as bookie:

                async def is_elected() -> bool:
                    return await current_auditor(store, "/ledgers") == NAME_OF(bookie.port)

                await until(is_elected)
            assert await current_auditor(store, "/ledgers") is None


@pytest.mark.slow
async def test_a_bookie_whose_auto_recovery_fails_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tree = MemoryTree()

    async def has_failed() -> bool:
        return "auto-recovery in this bookie failed" in caplog.text

    with trio.fail_after(TEST_TIMEOUT_S):
        async with open_memory_store(tree) as store:
            await store.create(f"/ledgers/{UNDERREPLICATION_LAYOUT}", b"nonsense", parents=True)
            async with running(config_for(tmp_path, WITH_AUTO_RECOVERY), tree) as bookie:
                await until(has_failed)
                await add_one(bookie.port)
                assert await store.exists(cookie_path("/ledgers", NAME_OF(bookie.port))) is not None
