"""Healing segments that began on fewer bookies: same positions, all replicas, interrupted anywhere."""

# covers: dlog/ownership/replaced.py
# covers: namespace/heal_node.py

from __future__ import annotations

import contextlib
import datetime
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
import trio.testing

import dlog
from dlog.ownership import LedgerMark, delete_ledger
from dlog.ownership.replaced import GivenUpByHeal, drop_unfinished
from dlog.repair import healing
from dlog.repair.orphans import OrphanSearch, find_orphans
from ledger.errors import NoSuchLedgerError
from ledger.metadata_store.memory import MemoryTree
from ledger.replication_asked import AskedReplication
from namespace.heal_node import Heal, HealNode, HealState, in_same_segment, read_heals
from namespace.log_nodes import LogNodes
from tests.fakes.dict_bookies import DictCluster, open_cluster
from tests.fakes.dict_namespace import CONFIG, Opened, open_on, read_all
from tests.fakes.log_paths import paths_of

HOUR = datetime.timedelta(hours=1)
SLOW = attrs.evolve(CONFIG, reader=dlog.ReaderConfig(read_bytes_max=1, read_ahead_bytes_max=1))
PAYLOADS = [b"%d" % number for number in range(30)]


@asynccontextmanager
async def degraded(**options: Any) -> AsyncIterator[tuple[DictCluster, Opened]]:
    """A log with the records of ``PAYLOADS`` in three segments, of which the first two are on two bookies."""
    async with open_cluster(3) as cluster:
        await cluster.stop("b3:1")
        async with open_on(cluster, **options) as opened:
            for first in (0, 10):
                await write(opened, first)
        await cluster.start("b3:1")
        async with open_on(cluster, **options) as opened:
            await write(opened, 20)
            yield cluster, opened


async def write(opened: Opened, first: int) -> None:
    async with opened.namespace.open_writer("log", create=True) as writer:
        for number in range(first, first + 10):
            await writer.append(PAYLOADS[number], txid=number)


async def records_of(opened: Opened) -> list[tuple[dlog.DLSN, int, bytes]]:
    async with opened.namespace.open_reader("log", follow=False) as reader:
        return [(each.dlsn, each.txid, each.payload) async for each in reader]


async def ledger_ids(opened: Opened) -> list[int]:
    return [each.ledger_id for each in await opened.namespace.segments("log")]


async def check_full(opened: Opened) -> None:
    """Every segment has three good replicas of each entry, and nothing says otherwise."""
    for ledger_id in await ledger_ids(opened):
        check = await opened.client.replica_check(ledger_id)
        assert (check.metadata.ensemble_size, check.metadata.write_quorum) == (3, 3)
        assert AskedReplication.of(check.metadata.custom) is None
        async for entry in check.entries(0, check.last_entry_id):
            assert (entry.replicas, entry.faults) == (3, ())
    assert (await opened.namespace.repair.check("log")).findings == ()


async def test_a_heal_gives_all_replicas_and_changes_no_position(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with degraded() as (_, opened):
        before, ids = await records_of(opened), await ledger_ids(opened)
        described = await opened.namespace.describe_log("log")
        healed = await opened.namespace.repair.heal("log")
        assert [each.segment_seqno for each in healed] == [1, 2]
        assert await records_of(opened) == before
        after = await opened.namespace.describe_log("log")
        assert (after.record_count, after.last_dlsn) == (described.record_count, described.last_dlsn)
        assert [attrs.evolve(each, ledger_id=0) for each in after.segments] == [
            attrs.evolve(each, ledger_id=0) for each in described.segments
        ]
        new = await ledger_ids(opened)
        assert [one == other for one, other in zip(ids, new, strict=True)] == [False, False, True]
        await check_full(opened)
        for ledger_id in (*ids, *new):  # the old ones are kept
            mark = LedgerMark.of((await opened.client.metadata(ledger_id)).custom)
            assert mark is not None
            assert mark.log_id is not None
        assert await opened.namespace.repair.heal("log") == []


async def test_the_old_ledger_goes_after_the_time_that_it_is_kept(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with degraded() as (cluster, opened):
        old = (await ledger_ids(opened))[:2]
        await opened.namespace.repair.heal("log", keep=HOUR)
        await opened.namespace.purge_log("log")
        for ledger_id in old:
            await opened.client.metadata(ledger_id)
        async with open_on(cluster, days_later=1) as later:
            assert await later.namespace.purge_log("log") == []
            for ledger_id in old:
                with pytest.raises(NoSuchLedgerError):
                    await later.client.metadata(ledger_id)
            assert [payload for _, _, payload in await records_of(later)] == PAYLOADS
            heals = (await read_heals(LogNodes(later.store, "/ns", "log"))).heals
            assert [each.state for each in heals] == [HealState.GONE] * 2


async def test_a_writer_deletes_replaced_ledgers_too(autojump_clock: trio.testing.MockClock) -> None:
    config = dlog.WriterConfig(purge=True)
    async with degraded() as (_, opened):
        old = (await ledger_ids(opened))[:2]
        await opened.namespace.repair.heal("log", keep=datetime.timedelta(0))
        async with opened.namespace.open_writer("log", config=config) as writer:
            await writer.append(b"more")
            await trio.sleep(90)
        for ledger_id in old:
            with pytest.raises(NoSuchLedgerError):
                await opened.client.metadata(ledger_id)


@pytest.mark.slow
@pytest.mark.parametrize("keep", [HOUR, datetime.timedelta(0)], ids=["kept", "deleted"])
@pytest.mark.parametrize("read_before", [0, 1, 5, 10, 15, 20, 25, 30])
async def test_an_open_reader_continues_through_a_heal(
    read_before: int, keep: datetime.timedelta, autojump_clock: trio.testing.MockClock
) -> None:
    async with degraded(config=SLOW) as (_, opened):
        expected = [payload for _, _, payload in await records_of(opened)]
        async with opened.namespace.open_reader("log") as reader:
            found = [(await anext(reader)).payload for _ in range(read_before)]
            await opened.namespace.repair.heal("log", keep=keep)
            await opened.namespace.purge_log("log")
            async with opened.namespace.open_writer("log") as writer:
                await writer.append(b"more")
            found += [(await anext(reader)).payload for _ in range(len(expected) + 1 - read_before)]
        assert found == [*expected, b"more"]


async def test_a_reader_whose_ledger_the_bookies_have_deleted_continues_in_the_copy(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with degraded(config=SLOW) as (cluster, opened):
        (first, *_) = await ledger_ids(opened)
        async with opened.namespace.open_reader("log") as reader:
            found = [(await anext(reader)).payload for _ in range(2)]
            await opened.namespace.repair.heal("log", keep=datetime.timedelta(0))
            await opened.namespace.purge_log("log")
            for bookie in cluster.bookies.values():
                bookie.ledgers.pop(first, None)
            found += [(await anext(reader)).payload for _ in range(28)]
        assert found == PAYLOADS


async def test_a_slow_reader_of_a_segment_that_was_in_progress_continues(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It sees the list of segments again only when the segment has another ledger already."""
    async with open_cluster(3) as cluster:
        await cluster.stop("b3:1")
        async with open_on(cluster, config=SLOW) as opened:
            await opened.namespace.create_log("log")
            async with opened.namespace.open_reader("log") as reader:
                async with opened.namespace.open_writer("log") as writer:
                    for txid, payload in enumerate(PAYLOADS[:10]):
                        await writer.append(payload, txid=txid)
                    await writer.flush()
                    found = [(await anext(reader)).payload for _ in range(2)]
                    await trio.sleep(1)
                await cluster.start("b3:1")
                await opened.namespace.repair.heal("log")
                found += [(await anext(reader)).payload for _ in range(8)]
                await write(opened, 10)
                found += [(await anext(reader)).payload for _ in range(10)]
            assert found == PAYLOADS[:20]


async def test_a_follower_at_the_end_of_a_healed_segment_continues(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The healed segment is the newest one that the reader knows, which shows whether the log is the same."""
    async with open_cluster(3) as cluster:
        await cluster.stop("b3:1")
        async with open_on(cluster) as opened:
            await write(opened, 0)
            await cluster.start("b3:1")
            async with opened.namespace.open_reader("log") as reader:
                found = [(await anext(reader)).payload for _ in range(10)]
                await opened.namespace.repair.heal("log", keep=datetime.timedelta(0))
                await opened.namespace.purge_log("log")
                await trio.sleep(60)
                await write(opened, 10)
                found += [(await anext(reader)).payload for _ in range(10)]
            assert found == PAYLOADS[:20]


async def test_a_log_that_was_created_again_is_no_healed_one(autojump_clock: trio.testing.MockClock) -> None:
    async with open_cluster(3) as cluster, open_on(cluster) as opened:
        await write(opened, 0)
        async with opened.namespace.open_reader("log") as reader:
            for _ in range(10):
                await anext(reader)
            await opened.namespace.delete_log("log")
            await write(opened, 0)
            with pytest.raises((dlog.LogMetadataError, dlog.LogNotFoundError)):
                await anext(reader)


@pytest.mark.slow
@pytest.mark.parametrize("days_later", [0, 1])
async def test_a_heal_that_is_cut_at_any_write_is_repeated(
    days_later: int, autojump_clock: trio.testing.MockClock
) -> None:
    """The writes of the whole life: two heals, then the deletion of what they replaced."""
    keep = datetime.timedelta(minutes=1)
    for cut in range(100):
        async with degraded() as (cluster, opened):
            expected = await records_of(opened)
            opened.store.writes_left = cut
            with contextlib.suppress(dlog.DLogError):
                await opened.namespace.repair.heal("log", keep=keep)
            was_cut = opened.store.is_cut
            async with open_on(cluster, days_later=days_later) as other:
                assert await records_of(other) == expected
                await other.namespace.repair.heal("log", keep=keep)
                assert await records_of(other) == expected
                await check_full(other)
                other.store.writes_left = cut % 7
                with contextlib.suppress(dlog.DLogError):
                    await other.namespace.purge_log("log")
            async with open_on(cluster, days_later=2) as last:
                await last.namespace.purge_log("log")
                assert await records_of(last) == expected
                # No ledger is left over.
                assert await last.client.ledger_ids() == sorted(await ledger_ids(last))
        if not was_cut:
            break
    else:
        pytest.fail("a heal needs more writes than this test cuts")
    assert cut > 5


async def test_the_segment_is_not_changed_unless_every_replica_of_the_copy_is_there(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with degraded() as (cluster, opened):
        ids = await ledger_ids(opened)
        copied = 0

        def lose_entry(size_bytes: int) -> None:
            nonlocal copied
            copied += 1
            if copied == 5:
                cluster.bookies["b1:1"].is_silent = True  # two are an ack quorum

        with pytest.raises(dlog.LogUnavailableError):
            await opened.namespace.repair.heal("log", on_copied=lose_entry)
        assert await ledger_ids(opened) == ids
        cluster.bookies["b1:1"].is_silent = False
        await trio.sleep(60)
        await opened.namespace.repair.heal("log")
        await check_full(opened)


async def test_a_heal_needs_all_bookies_and_leaves_nothing_without_them(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with degraded() as (cluster, opened):
        before = await opened.client.ledger_ids()
        await cluster.stop("b2:1")
        await trio.sleep(1)
        with pytest.raises(dlog.TooFewBookiesError):
            await opened.namespace.repair.heal("log")
        assert await opened.client.ledger_ids() == before


async def test_a_second_heal_ends_the_first_one(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = healing._check_replicas
    others = 0

    async def interrupted(*arguments: Any) -> None:
        nonlocal others
        await check(*arguments)
        if not others:
            others += 1
            await opened.namespace.repair.heal("log")

    async with degraded() as (_, opened):
        expected = await records_of(opened)
        monkeypatch.setattr(healing, "_check_replicas", interrupted)
        with pytest.raises(dlog.LogUnavailableError, match="heals it, too"):
            await opened.namespace.repair.heal("log")
        assert others == 1
        assert await records_of(opened) == expected
        await check_full(opened)


async def test_a_segment_truncated_meanwhile_is_not_healed(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = healing._check_replicas

    async def truncated(*arguments: Any) -> None:
        await check(*arguments)
        await opened.namespace.truncate_log("log", dlog.DLSN(2, 0, 0))

    async with degraded() as (_, opened):
        monkeypatch.setattr(healing, "_check_replicas", truncated)
        with pytest.raises(dlog.LogUnavailableError, match="truncated segment 1"):
            await opened.namespace.repair.heal("log")
        first, *_ = await opened.namespace.segments("log")
        assert first.truncation.name == "TRUNCATED"


async def test_deleting_a_log_deletes_its_replaced_ledgers_and_unfinished_copies(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with degraded() as (_, opened):
        await opened.namespace.repair.heal("log")
        assert len(await opened.client.ledger_ids()) == 5
        await opened.namespace.delete_log("log")
        assert await opened.client.ledger_ids() == []

    async def cancelled(*_: Any) -> None:
        raise dlog.LogUnavailableError("stop here")

    async with degraded() as (_, opened):
        monkeypatch.setattr(healing, "_exchange", cancelled)
        with pytest.raises(dlog.LogUnavailableError, match="stop here"):
            await opened.namespace.repair.heal("log")
        assert len(await opened.client.ledger_ids()) == 4
        await opened.namespace.delete_log("log")
        assert await opened.client.ledger_ids() == []


async def test_ledgers_that_the_heal_node_names_are_no_orphans(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with degraded() as (_, opened):
        await opened.namespace.repair.heal("log")
        now_ms = opened.namespace.context.wall_ms() + 10 * 86_400_000
        search = OrphanSearch(opened.store, opened.client, "/ns", "test", now_ms)
        assert await find_orphans(search) == []


async def test_a_claim_deletes_no_ledger_that_a_segment_names(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with degraded() as (_, opened):
        (first, *_) = await ledger_ids(opened)
        claim = GivenUpByHeal(LogNodes(opened.store, "/ns", "log"))
        assert "does not give it up" in str(await delete_ledger(opened.client, first, claim))
        wrong = Heal(1, first, 99, HealState.KEPT)
        await opened.store.commit([HealNode().operation(paths_of("/ns", "log"), [wrong])])
        assert await delete_ledger(opened.client, first, claim) == "segment 1 is in it"
        assert [payload for _, _, payload in await records_of(opened)] == PAYLOADS


async def test_an_unfinished_copy_is_given_up_before_it_is_deleted(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the heal that makes it could put the deleted ledger into the log."""
    exchange = healing._exchange

    async def late(*arguments: Any) -> Any:
        await drop_unfinished(LogNodes(opened.store, "/ns", "log"), opened.client)
        return await exchange(*arguments)

    async with degraded() as (_, opened):
        ids = await ledger_ids(opened)
        monkeypatch.setattr(healing, "_exchange", late)
        with pytest.raises(dlog.LogUnavailableError, match="heals it, too"):
            await opened.namespace.repair.heal("log")
        assert await ledger_ids(opened) == ids
        assert await read_all(opened.namespace, "log") == PAYLOADS


async def test_a_healed_log_can_be_renamed(autojump_clock: trio.testing.MockClock) -> None:
    async with degraded() as (cluster, opened):
        await opened.namespace.repair.heal("log")
        await opened.namespace.rename_log("log", "new")
        assert await read_all(opened.namespace, "new") == PAYLOADS
        async with open_on(cluster, days_later=2) as later:
            await later.namespace.purge_log("new")
            assert len(await later.client.ledger_ids()) == 3
            assert await read_all(later.namespace, "new") == PAYLOADS


async def test_heals_that_do_not_parse_are_an_error(autojump_clock: trio.testing.MockClock) -> None:
    async with degraded() as (_, opened):
        for wrong in (b"", b"[]", b'{"version": 2, "heals": []}', b'{"version": 1, "heals": [{"old": 1}]}'):
            path = paths_of("/ns", "log").heal_path
            with contextlib.suppress(Exception):
                await opened.store.delete(path)
            await opened.store.create(path, wrong)
            with pytest.raises(dlog.LogMetadataError, match="dlog-heal"):
                await opened.namespace.repair.heal("log")


def test_ledgers_of_one_segment_are_found_through_several_heals() -> None:
    heals = [Heal(1, 7, 8, HealState.GONE), Heal(1, 8, 9, HealState.KEPT), Heal(1, 9, 10, HealState.COPYING)]
    assert in_same_segment(heals, 1, 7, 9)
    assert in_same_segment(heals, 1, 9, 7)
    assert not in_same_segment(heals, 1, 7, 10)
    assert not in_same_segment(heals, 2, 7, 9)
    assert not in_same_segment((), 1, 7, 9)


@pytest.mark.parametrize("is_one_store", [True, False])
async def test_a_ledger_is_registered_only_while_the_allocation_is_as_in_its_stamp(
    is_one_store: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """Else the search for orphans could have proved that no log can ever need it, and delete it."""
    tree = None if is_one_store else MemoryTree()
    async with degraded(tree=tree) as (_, opened):
        path = paths_of("/ns", "log").allocation_path
        before, seen = await opened.client.ledger_ids(), False

        async def change(kind: str, written: str) -> None:
            nonlocal seen
            if kind == "commit" and not seen and ("/ledgers/" in written or written == path):
                seen = True
                await opened.store.put(path, b"")

        opened.store.before = change
        with pytest.raises(dlog.LogUnavailableError, match="when its heal began"):
            await opened.namespace.repair.heal("log")
        assert seen
        assert await opened.client.ledger_ids() == before
        assert len(await opened.namespace.repair.heal("log")) == 2
        await check_full(opened)
