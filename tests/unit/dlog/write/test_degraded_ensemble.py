"""Segments that begin on fewer bookies than asked: down to the ack quorum, marked, rolled to all of them."""

# covers: dlog/description.py
# covers: dlog/write/full_ensemble.py
# covers: ledger/replication_asked.py

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
import trio.testing

import dlog
from dlog.page.snapshots import log_detail
from dlog.write.full_ensemble import STEADY_S
from ledger.metadata import LedgerMetadata
from ledger.replication_asked import ASKED_KEY, AskedReplication
from tests.fakes.dict_bookies import DictCluster, open_cluster
from tests.fakes.dict_namespace import CONFIG, Opened, open_on, read_all

ASKED = AskedReplication(3, 3, 2)


@asynccontextmanager
async def opened_with_two_of_three(
    config: dlog.NamespaceConfig = CONFIG,
) -> AsyncIterator[tuple[DictCluster, Opened]]:
    async with open_cluster(3) as cluster:
        await cluster.stop("b3:1")
        async with open_on(cluster, config=config) as opened:
            yield cluster, opened


async def ledgers_of(opened: Opened, log: str = "log") -> list[LedgerMetadata]:
    return [await opened.client.metadata(each.ledger_id) for each in await opened.namespace.segments(log)]


def sizes(metadata: LedgerMetadata) -> tuple[int, int, int]:
    return metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum


async def test_a_new_log_is_written_on_the_two_bookies_that_are_there_and_says_so(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened_with_two_of_three() as (_, opened):
        with caplog.at_level(logging.WARNING, logger="dlog.write.full_ensemble"):
            async with opened.namespace.open_writer("log", create=True) as writer:
                began_s = trio.current_time()
                await writer.append(b"one")
                assert trio.current_time() - began_s < 1
                statistics = opened.namespace.statistics()
                assert statistics.counters["dlog_segments_degraded"] == 1
                assert statistics.gauges["dlog_degraded_segments"] == 1
        (ledger,) = await ledgers_of(opened)
        assert sizes(ledger) == (2, 2, 2)
        assert AskedReplication.of(ledger.custom) == ASKED
        assert await read_all(opened.namespace, "log") == [b"one"]
    (said,) = [each for each in caplog.records if "has only" in each.getMessage()]
    assert "log log: segment 1 has only 2 of 3 bookies (b" in said.getMessage()


async def test_the_writer_rolls_to_a_full_ensemble_once_the_bookie_stays(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with (
        opened_with_two_of_three() as (cluster, opened),
        opened.namespace.open_writer("log", create=True) as writer,
    ):
        await writer.append(b"one")
        for _ in range(3):  # a bookie that comes and goes makes no segments
            await cluster.start("b3:1")
            await trio.sleep(STEADY_S / 2)
            await cluster.stop("b3:1")
            await trio.sleep(STEADY_S)
        assert len(await opened.namespace.segments("log")) == 1
        await cluster.start("b3:1")
        await trio.sleep(2 * STEADY_S)
        await writer.append(b"two")
        first, second = await ledgers_of(opened)
        assert (sizes(first), sizes(second)) == ((2, 2, 2), (3, 3, 2))
        assert AskedReplication.of(second.custom) is None
        assert opened.namespace.statistics().gauges["dlog_degraded_segments"] == 0
        await trio.sleep(600)
        assert len(await opened.namespace.segments("log")) == 2
        assert await read_all(opened.namespace, "log") == [b"one", b"two"]


@pytest.mark.slow
async def test_a_full_segment_whose_bookie_goes_is_not_rolled(autojump_clock: trio.testing.MockClock) -> None:
    async with (
        open_cluster(3) as cluster,
        open_on(cluster) as opened,
        opened.namespace.open_writer("log", create=True) as writer,
    ):
        await writer.append(b"one")
        await cluster.stop("b3:1")
        for number in range(100):
            began_s = trio.current_time()
            await writer.append(b"%d" % number)
            assert trio.current_time() - began_s < 1
            await trio.sleep(1)
        assert [sizes(each) for each in await ledgers_of(opened)] == [(3, 3, 2)]


async def test_a_roll_for_a_full_ensemble_that_is_gone_again_begins_no_other_segment(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        opened_with_two_of_three() as (cluster, opened),
        opened.namespace.open_writer("log", create=True) as writer,
    ):
        await writer.append(b"one")

        async def at_once(_count: int, _steady_s: float) -> None:
            await trio.sleep(1)

        monkeypatch.setattr(opened.client.membership, "wait_writable", at_once)
        shell: Any = writer._shell
        shell._full_ensemble.again(0.0)
        await trio.sleep(60)
        assert len(await opened.namespace.segments("log")) == 1
        await writer.append(b"two")
        await cluster.start("b3:1")
        await trio.sleep(60)
        assert [sizes(each) for each in await ledgers_of(opened)] == [(2, 2, 2), (3, 3, 2)]


async def test_fewer_bookies_than_the_ack_quorum_begin_no_segment(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened_with_two_of_three() as (cluster, opened):
        await cluster.stop("b2:1")
        await trio.sleep(1)
        async with opened.namespace.open_writer("log", create=True) as writer:
            with pytest.raises(dlog.LogWriteError, match="3 bookies wanted, 1 writable"):
                await writer.append(b"one")


async def test_without_the_setting_a_segment_waits_as_in_apaches_writers(
    autojump_clock: trio.testing.MockClock,
) -> None:
    off = dlog.WriterConfig(degraded_ensemble=False)
    async with (
        opened_with_two_of_three() as (_, opened),
        opened.namespace.open_writer("log", create=True, config=off) as writer,
    ):
        with pytest.raises(dlog.LogWriteError, match="3 bookies wanted, 2 writable"):
            await writer.append(b"one")


async def test_with_five_bookies_asked_four_keep_the_write_quorum(
    autojump_clock: trio.testing.MockClock,
) -> None:
    config = attrs.evolve(CONFIG, ensemble_size=5, write_quorum=3)
    async with open_cluster(4) as cluster, open_on(cluster, config=config) as opened:
        async with opened.namespace.open_writer("log", create=True) as writer:
            await writer.append(b"one")
        (ledger,) = await ledgers_of(opened)
        assert sizes(ledger) == (4, 3, 2)
        assert AskedReplication.of(ledger.custom) == AskedReplication(5, 3, 2)


@pytest.mark.parametrize("value", [b"", b"3/3", b"3/4/2", b"0/0/0", b"3/3/2 ", b"9999999999/1/1"])
def test_what_is_no_asked_replication_is_ignored(value: bytes) -> None:
    assert AskedReplication.of({ASKED_KEY: value}) is None
    assert AskedReplication.of(ASKED.custom) == ASKED


async def test_a_check_and_the_page_list_such_segments(autojump_clock: trio.testing.MockClock) -> None:
    async with opened_with_two_of_three() as (_, opened):
        async with opened.namespace.open_writer("log", create=True) as writer:
            await writer.append(b"one")
            found = await opened.namespace.repair.check("log")
            assert found.is_consistent
            assert [(each.kind, each.advice) for each in found.findings] == [
                (
                    dlog.FindingKind.DEGRADED,
                    "its writer begins the next segment on all bookies once they are there",
                )
            ]
        found = await opened.namespace.repair.check("log")
        assert found.is_consistent
        (finding,) = found.findings
        assert (finding.kind, finding.is_error) == (dlog.FindingKind.DEGRADED, False)
        assert "is on 2 bookies; 3 and 3 copies were asked for" in finding.evidence
        (segment,) = (await log_detail(opened.namespace, "log"))["segments"]
        assert (segment["bookies"], segment["bookies_asked"]) == (2, 3)
