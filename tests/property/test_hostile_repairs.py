"""Hostile bookies against auto-recovery and its checks, and against readers and writers of a log.

One bookie, or each one, answers as ``test_hostile_bookies`` lists. Auto-recovery restores a lost bookie and
closes an open ledger meanwhile, checks of all ledgers run, a log is read and written. Each call ends with an
error of ours or with right data; nothing spins or hangs; then all bookies are honest, auto-recovery ends its
work, and everything that was acknowledged is there.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from trio.testing import MockClock

import dlog
from ledger.client import LedgerClient
from ledger.metadata_store.memory import MemoryStore
from ledger.replication import AutoRecovery, ReplicationConfig
from ledger.replication.auditor import Auditor
from ledger.replication.marks import UnderReplicatedLedgers
from ledger.runtime.tasks.failure_domain import contained_failures
from namespace.binding import new_binding
from namespace.bindings import bind
from tests.fakes.dict_bookies import DictCluster, open_cluster
from tests.fakes.replication_world import renewing, until
from tests.property.test_hostile_bookies import (
    ANSWERS,
    CODEC,
    CONFIG,
    PAYLOADS,
    Frame,
    HostileBookie,
    again,
    mixed,
    run_case,
)
from tests.property.test_node_values import OURS, PATH, namespace_of

REPLICATION = ReplicationConfig(
    retry_pause_s=1,
    failed_ledger_pause_s=2,
    open_ledger_grace_s=2,
    ledger_check_interval_s=20,
    replicas_check_interval_s=20,
    placement_check_interval_s=20,
    bookie_check_interval_s=20,
    verified_percentage=100,
)
# Such a bookie has the password, or denies what it holds: it can make others store its bytes, or close a
# ledger early (docs/security.md, "Entries that a holder of the password plants").
FORGING = [what for what in ANSWERS if what.startswith(("an LAC", "an entry near", "well-formed"))]
FAR = FORGING[-2:]  # the open ledger is closed at an entry that no bookie has, so its check never ends well
HOSTILE_S = 100  # of the mock clock


@asynccontextmanager
async def hostile_cluster(count: int) -> AsyncIterator[DictCluster]:
    async with open_cluster(count) as cluster:
        for name in cluster.bookies:
            cluster.bookies[name] = HostileBookie(name)
        yield cluster


@contextlib.contextmanager
def hostile(cluster: DictCluster, names: list[str], answer: Frame) -> Iterator[None]:
    for name in names:
        cluster.bookies[name].answer = answer  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for name in names:
            cluster.bookies[name].answer = None  # type: ignore[attr-defined]


async def tried(call: Callable[[], Awaitable[object]], within_s: float = 300) -> object:
    """The result, or None after an error of ours; a hang or another error fails the test."""
    with trio.fail_after(within_s):
        try:
            return await call()
        except OURS as exc:
            if isinstance(exc, trio.TooSlowError):
                raise
            return None


async def read_payloads(client: LedgerClient, ledger_id: int) -> list[bytes]:
    async with await client.open(ledger_id, password=b"pw") as reader:
        entries = await reader.read(0, reader.last_confirmed) if reader.last_confirmed >= 0 else []
        return [one.payload for one in entries]


async def repair(answer: Frame, *, all_hostile: bool, loses: bool = False, is_far: bool = False) -> None:
    """Auto-recovery restores a lost bookie while others are hostile, and ends its work when they are not.

    Args:
        loses: The answers may cost entries, since the bookies that give them are believed.
        is_far: They may leave a ledger whose end no check finds.
    """
    config = attrs.evolve(REPLICATION, verified_percentage=0 if is_far else 100)
    before = contained_failures.total()
    async with hostile_cluster(5) as cluster, cluster.client(CONFIG) as client:
        closed = await client.create(digest_type=CODEC.digest_type, password=b"pw")
        await closed.append_many(PAYLOADS)
        await closed.close()
        members = closed.metadata.last_ensemble.bookies
        writer = await client.create(digest_type=CODEC.digest_type, password=b"pw")
        while set(writer.metadata.last_ensemble.bookies) != set(members):
            await writer.close()
            writer = await client.create(digest_type=CODEC.digest_type, password=b"pw")
        await writer.append_many(PAYLOADS)
        await trio.testing.wait_all_tasks_blocked()  # each replica has them
        writer.abandon()
        session = MemoryStore(cluster.tree)
        marks = UnderReplicatedLedgers(session, "/ledgers")
        await marks.prepare()
        auditor = Auditor(client.context, session, marks, config, wall_ms=lambda: 1_700_000_000_000)
        async with renewing(cluster.tree) as store, trio.open_nursery() as nursery:
            program = AutoRecovery(client.context, store, "first:1", config)
            await nursery.start(program.run)
            with hostile(cluster, sorted(cluster.bookies) if all_hostile else [members[1]], answer):
                await cluster.stop(members[0])
                await tried(auditor.audit)
                await tried(auditor.check_ledgers)
                await tried(auditor.check_replicas)
                await tried(auditor.check_placement)
                await trio.sleep(HOSTILE_S)

            async def is_done() -> bool:
                left = set(await marks.marked()) - ({writer.ledger_id} if is_far else set())
                return not left and (await client.metadata(writer.ledger_id)).is_closed

            with trio.fail_after(1000):
                await until(is_done)
            nursery.cancel_scope.cancel()
        await session.aclose()
        for ledger_id in (closed.ledger_id, writer.ledger_id):
            if not loses:
                assert members[0] not in (await client.metadata(ledger_id)).last_ensemble.bookies
                found = await read_payloads(client, ledger_id)
                assert found[: len(PAYLOADS)] == PAYLOADS
        work = sum(len(bookie.requests) for bookie in cluster.bookies.values())
        assert work < 20_000
    assert contained_failures.total() == before  # each reply has its own answer


SOME = ["another entry", "noise", "nothing", "refusal NO_ENTRY"]
CASES = [pytest.param(what, marks=() if what in SOME else pytest.mark.slow) for what in ANSWERS]


@pytest.mark.slow
@pytest.mark.parametrize("what", CASES)
@pytest.mark.parametrize("all_hostile", [False, True])
async def test_auto_recovery_ends_its_work_in_spite_of_hostile_bookies(
    what: str, all_hostile: bool, autojump_clock: MockClock
) -> None:
    loses = what in FORGING or all_hostile
    await repair(ANSWERS[what], all_hostile=all_hostile, loses=loses, is_far=what in FAR)


LOG_CONFIG = dlog.NamespaceConfig(
    writer=dlog.WriterConfig(segment_bytes_max=300, entry_bytes_target=100, retry_timeout_s=5),
    reader=dlog.ReaderConfig(relist_interval_s=1, retry_timeout_s=5, retry_pause_s=0.1),
)
RECORDS = [b"%d" % number * 20 for number in range(12)]


async def read_log(namespace: dlog.Namespace, *, follow: bool = False) -> list[bytes]:
    """The payloads up to the first error of ours, or to the time limit."""
    found: list[bytes] = []

    async def read() -> None:
        async with namespace.open_reader("orders", follow=follow) as reader:
            async for record in reader:
                found.append(record.payload)

    with trio.move_on_after(60):
        await tried(read)
    return found


async def use_log(answer: Frame, *, all_hostile: bool, forges: bool = False) -> None:
    """Read, check and write a log while bookies are hostile; what was acknowledged is read afterwards."""
    before = contained_failures.total()
    async with hostile_cluster(3) as cluster, cluster.client(CONFIG) as client:
        store = MemoryStore(cluster.tree)
        await bind(store, PATH, new_binding("zk1", "/ledgers"))
        namespace = namespace_of(store, client, LOG_CONFIG)
        acknowledged = list(RECORDS)
        async with namespace.open_writer("orders", create=True) as writer:
            for payload in RECORDS:
                await writer.append(payload)
        with hostile(cluster, sorted(cluster.bookies) if all_hostile else ["b1:1"], answer):
            for follow in (False, True):
                found = await read_log(namespace, follow=follow)
                assert forges or found == RECORDS[: len(found)]
            await tried(lambda: namespace.repair.check("orders"))
            await tried(lambda: namespace.repair.verify("orders"))
            await tried(lambda: namespace.last_dlsn("orders"))

            async def write() -> None:
                async with namespace.open_writer("orders") as writer:
                    for number in range(6):
                        await writer.append(b"new %d" % number * 20)
                        acknowledged.append(b"new %d" % number * 20)

            await tried(write)
        await trio.sleep(10)  # the connections on which replies are due are closed by now
        async with namespace.open_writer("orders") as writer:
            await writer.append(b"last")
        found = await read_log(namespace)
        if not (forges or all_hostile):
            assert [one for one in found if one in acknowledged] == acknowledged
        assert forges or found[: len(RECORDS)] == RECORDS
        assert forges or found[-1] == b"last"
        await store.aclose()
    assert contained_failures.total() == before


@pytest.mark.slow
@pytest.mark.parametrize("what", CASES)
@pytest.mark.parametrize("all_hostile", [False, True])
async def test_a_log_over_hostile_bookies_is_read_right_or_raises_errors_of_ours(
    what: str, all_hostile: bool, autojump_clock: MockClock
) -> None:
    await use_log(ANSWERS[what], all_hostile=all_hostile, forges=what in FORGING)


_FRAMES = 400  # of a sweep's count, for one case


def sweep(seed: int, count: int) -> list[str]:
    """A mixture of bad replies against auto-recovery and a log; the reports of what failed."""
    reports = []
    for number in range(max(1, count // _FRAMES)):
        rng = random.Random(f"{seed} {number}")
        # Only answers that are no lies with the password, so that nothing may be lost.
        answer = mixed(rng, [what for what in ANSWERS if what not in FORGING])
        run, all_hostile = rng.choice((repair, use_log)), rng.random() < 0.3
        loses = {"loses": True} if all_hostile and run is repair else {}
        lossy = {"forges": True} if all_hostile and run is use_log else loses
        report = run_case(lambda: run(answer, all_hostile=all_hostile, **lossy))  # noqa: B023
        if report is not None:
            reports.append(again(__name__, seed, count, f"case {number}: {report}"))
    return reports
