"""Batches on fewer bookies than asked, and what a heal of their segments means for a repeated attach."""

from __future__ import annotations

import datetime
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio.testing

import dlog
from dlog.bulk import AttachedBatch, BatchPlan, DetachedSegment
from ledger.errors import NoSuchLedgerError
from ledger.replication_asked import AskedReplication
from tests.fakes.dict_bookies import DictCluster, open_cluster
from tests.fakes.dict_namespace import CONFIG, Opened, open_on, read_all

KEPT, AT_ONCE = datetime.timedelta(hours=1), datetime.timedelta(0)


@asynccontextmanager
async def two_of_three(config: dlog.NamespaceConfig = CONFIG) -> AsyncIterator[tuple[DictCluster, Opened]]:
    async with open_cluster(3) as cluster:
        await cluster.stop("b3:1")
        async with open_on(cluster, config=config) as opened:
            await opened.namespace.create_log("a")
            yield cluster, opened


async def written(opened: Opened, series: str | None) -> tuple[BatchPlan, DetachedSegment]:
    plan = await opened.namespace.batches.begin(["a"], series=series, number=7)
    assert plan is not None
    async with opened.namespace.batches.open_segment(plan, "a") as writer:
        await writer.append_many([b"one", b"two"])
    assert writer.result is not None
    return plan, writer.result


async def test_a_batch_is_written_on_the_two_bookies_that_are_there_and_healed(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with two_of_three() as (cluster, opened):
        with caplog.at_level(logging.WARNING, logger="dlog.write.full_ensemble"):
            plan, segment = await written(opened, "query")
        (said,) = [each.getMessage() for each in caplog.records if "has only" in each.getMessage()]
        assert f"log a: segment in ledger {segment.ledger_id} has only 2 of 3 bookies (b" in said
        assert "dlog log heal" in said
        assert opened.namespace.statistics().counters["dlog_segments_degraded"] == 1
        ledger = await opened.client.metadata(segment.ledger_id)
        assert (ledger.ensemble_size, ledger.write_quorum, ledger.ack_quorum) == (2, 2, 2)
        assert AskedReplication.of(ledger.custom) == AskedReplication(3, 3, 2)
        await opened.namespace.batches.attach(plan, [segment])
        (finding,) = (await opened.namespace.repair.check("a")).findings
        assert finding.kind is dlog.FindingKind.DEGRADED
        assert "`dlog log heal a`" in finding.advice
        await cluster.start("b3:1")
        (healed,) = await opened.namespace.repair.heal("a")
        ledger = await opened.client.metadata(healed.ledger_id)
        assert (ledger.ensemble_size, ledger.write_quorum, ledger.ack_quorum) == (3, 3, 2)
        assert (await opened.namespace.repair.check("a")).findings == ()
        assert await read_all(opened.namespace, "a") == [b"one", b"two"]


async def test_a_block_that_fails_on_two_bookies_leaves_no_ledger(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with two_of_three() as (_, opened):
        plan = await opened.namespace.batches.begin(["a"])
        assert plan is not None
        async with opened.namespace.batches.open_segment(plan, "a") as writer:
            await writer.append_many([b"one"])
            writer.give_up()
        async with opened.namespace.batches.open_segment(plan, "a"):
            pass  # a segment without records
        assert await opened.client.ledger_ids() == []


async def test_without_the_setting_a_batch_needs_all_bookies(autojump_clock: trio.testing.MockClock) -> None:
    off = attrs.evolve(CONFIG, writer=attrs.evolve(CONFIG.writer, degraded_ensemble=False))
    async with two_of_three(off) as (_, opened):
        plan = await opened.namespace.batches.begin(["a"])
        assert plan is not None
        with pytest.raises(dlog.LogUnavailableError, match="3 bookies wanted, 2 writable"):
            async with opened.namespace.batches.open_segment(plan, "a"):
                pass


@pytest.mark.parametrize("keep", [KEPT, AT_ONCE], ids=["kept", "deleted"])
@pytest.mark.parametrize("series", ["query", None])
async def test_a_batch_is_attached_once_though_its_ledger_was_replaced(
    series: str | None, keep: datetime.timedelta, autojump_clock: trio.testing.MockClock
) -> None:
    """A caller that is told that the batch was overtaken would write its records again."""
    async with two_of_three() as (cluster, opened):
        namespace = opened.namespace
        plan, segment = await written(opened, series)
        first = await namespace.batches.attach(plan, [segment])
        await cluster.start("b3:1")
        for _ in range(2):
            await namespace.repair.heal("a", keep=keep)
            await namespace.purge_log("a")
            (now,) = await namespace.segments("a")
            assert now.ledger_id != segment.ledger_id
            assert await namespace.batches.attach(plan, [segment]) == first
            assert await read_all(namespace, "a") == [b"one", b"two"]
        assert first == AttachedBatch(
            positions={"a": (dlog.DLSN(1, 0, 0), dlog.DLSN(1, 0, 1))}, is_repeated=False
        )


async def test_an_abandoned_batch_keeps_what_a_heal_keeps(autojump_clock: trio.testing.MockClock) -> None:
    async with two_of_three() as (cluster, opened):
        plan, segment = await written(opened, None)
        await opened.namespace.batches.attach(plan, [segment])
        await cluster.start("b3:1")
        await opened.namespace.repair.heal("a", keep=KEPT)
        assert await opened.namespace.batches.abandon(plan, [segment]) == []
        await opened.client.metadata(segment.ledger_id)  # readers may have it open
        async with open_on(cluster, days_later=1) as later:
            await later.namespace.purge_log("a")
            with pytest.raises(NoSuchLedgerError):
                await later.client.metadata(segment.ledger_id)
            assert await read_all(later.namespace, "a") == [b"one", b"two"]
