"""Ledgers that lack entries on a bookie are marked when the bookie is back, and not before."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from ledger.catalog.under_replicated import mark_under_replicated
from ledger.config import ClientConfig
from ledger.ledger_spec import LedgerSpec
from ledger.replication.marks import UnderReplicatedLedgers
from ledger.write import missed
from ledger.write.writer import LedgerWriter
from tests.fakes.dict_bookies import DictCluster, open_cluster
from tests.unit.ledger.write.test_ledger_writer import B1, B2, B3, make, push

CONFIG = ClientConfig(retry_backoff_min_s=0.1, retry_backoff_max_s=0.5)


async def marked(cluster: DictCluster) -> dict[int, tuple[str, ...]]:
    marks = UnderReplicatedLedgers(cluster._registrar, "/ledgers")
    return {one.ledger_id: one.mark.replicas for one in await marks.marked()}


def fail(writer: LedgerWriter, bookie: str) -> None:
    writer.failed(bookie, OSError("away"), lost=False)


def test_what_is_confirmed_without_a_failing_bookie_is_missed() -> None:
    writer = make()
    push(writer, 2)
    for bookie in (B1, B2, B3):
        writer.adds_answered(bookie, [0, 1])
    fail(writer, B3)
    push(writer, 3)
    for bookie in (B1, B2):
        writer.adds_answered(bookie, [2, 3, 4])
    assert writer.take_missed() == []  # it may miss more
    writer.revive(2)
    assert writer.missed == {B3: (2, 4)}
    assert writer.take_missed() == [B3]
    assert writer.take_missed() == []


def test_what_a_slow_bookie_owes_is_missed_when_it_fails() -> None:
    writer = make()
    push(writer, 2)
    for bookie in (B1, B2):
        writer.adds_answered(bookie, [0, 1])
    assert writer.take_missed(is_over=True) == []  # it may still answer
    fail(writer, B3)
    assert writer.take_missed() == []
    assert writer.take_missed(is_over=True) == [B3]


def test_an_entry_that_is_sent_again_is_not_missed() -> None:
    writer = make()
    fail(writer, B3)
    push(writer, 1)
    assert writer.revive(2) is not None  # not confirmed yet
    for bookie in (B1, B2, B3):
        writer.adds_answered(bookie, [0])
    assert writer.take_missed(is_over=True) == []


def test_a_bookie_that_is_replaced_missed_what_it_did_not_acknowledge() -> None:
    writer = make()
    fail(writer, B3)
    push(writer, 1)
    writer.adds_answered(B1, [0])
    writer.adds_answered(B2, [0])
    writer.begin_change()
    writer.finish_change([B1, B2, "b4"])
    assert writer.take_missed() == [B3]


@pytest.mark.parametrize("breaks", [False, True])
def test_what_is_confirmed_before_a_new_connection_is_trusted_is_missed_only_if_it_breaks(
    breaks: bool,
) -> None:
    writer = make()
    writer.reconnected(B3)
    push(writer, 1)
    for bookie in (B1, B2):
        writer.adds_answered(bookie, [0])
    assert writer.lac == 0
    if breaks:
        writer.failed(B3, OSError("broken"), lost=True)
        writer.revive(2)
    assert writer.take_missed(is_over=True) == ([B3] if breaks else [])


async def test_a_ledger_is_marked_when_its_bookie_answers_again(autojump_clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client(CONFIG) as client:
        writer = await client.create()
        await writer.append(b"on three")
        await cluster.stop("b2:1")
        for _ in range(5):
            await writer.append(b"on two")
        await trio.sleep(60)
        assert await marked(cluster) == {}  # it is away: the auditor decides about it
        await cluster.start("b2:1")
        await trio.sleep(30)
        assert await marked(cluster) == {writer.ledger_id: ("b2:1",)}
        # The LAC that bookies know covers what is missing, although the writer is idle.
        async with await client.open(writer.ledger_id, recover=False) as reader:
            assert reader.last_confirmed == writer.lac
        await writer.close()


@pytest.mark.parametrize("ends", ["close", "abandon"])
async def test_a_ledger_that_ended_meanwhile_is_marked_when_its_bookie_registers(
    autojump_clock: MockClock, ends: str
) -> None:
    async with open_cluster(3) as cluster, cluster.client(CONFIG) as client:
        writer = await client.create()
        await cluster.stop("b2:1")
        await writer.append(b"on two")
        if ends == "close":
            await writer.close()
        else:
            writer.abandon()
        await trio.sleep(60)
        assert await marked(cluster) == {}
        await cluster.start("b2:1")
        await trio.sleep(10)
        assert await marked(cluster) == {writer.ledger_id: ("b2:1",)}


async def test_a_replaced_bookie_is_marked_for_what_it_missed_before(autojump_clock: MockClock) -> None:
    async with open_cluster(4) as cluster, cluster.client(CONFIG) as client:
        writer = await client.create_from(LedgerSpec(bookies=("b1:1", "b2:1", "b3:1")))
        cluster.bookies["b2:1"].is_silent = True
        await writer.append(b"on two, the third is slow")
        await cluster.stop("b2:1")
        await writer.append(b"on two and a new one")
        await cluster.start("b2:1")
        await trio.sleep(10)
        assert await marked(cluster) == {writer.ledger_id: ("b2:1",)}


async def test_a_client_that_ends_marks_what_is_left(autojump_clock: MockClock) -> None:
    async with open_cluster(3) as cluster:
        async with cluster.client(CONFIG) as client:
            writer = await client.create()
            await cluster.stop("b2:1")
            await writer.append(b"on two")
        assert await marked(cluster) == {writer.ledger_id: ("b2:1",)}


async def test_a_client_that_ends_before_a_mark_makes_it(autojump_clock: MockClock) -> None:
    async with open_cluster(3) as cluster:
        async with cluster.client(CONFIG) as client:
            writer = await client.create()
            await cluster.stop("b2:1")
            await writer.append(b"on two")
            await cluster.start("b2:1")
            is_begun = trio.Event()

            async def write_lac() -> int:
                is_begun.set()
                await trio.sleep_forever()

            writer._write_lac = write_lac  # type: ignore[method-assign]
            await is_begun.wait()
            assert await marked(cluster) == {}
        assert await marked(cluster) == {writer.ledger_id: ("b2:1",)}


async def test_what_is_missed_while_a_worker_has_the_mark_keeps_the_mark(autojump_clock: MockClock) -> None:
    async with open_cluster(3) as cluster, cluster.client(CONFIG) as client:
        client._missed.note(5, "b2:1")
        await trio.sleep(1)
        marks = UnderReplicatedLedgers(cluster._registrar, "/ledgers")
        taken = await marks.take()
        assert taken is not None
        client._missed.note(5, "b2:1")
        await trio.sleep(1)
        await marks.complete(taken)
        await marks.release(taken)
        assert await marked(cluster) == {5: ("b2:1",)}


async def test_what_is_missed_during_the_mark_is_marked_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster(3) as cluster, cluster.client(CONFIG) as client:
        calls = 0

        async def mark(*arguments: Any, **options: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == 1:
                client._missed.note(5, "b2:1")
            await trio.sleep(1)

        monkeypatch.setattr(missed, "mark_under_replicated", mark)
        client._missed.note(5, "b2:1")
        await trio.sleep(5)
        assert calls == 2


async def test_a_client_that_ends_marks_many_ledgers_in_its_short_time(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster(3) as cluster:
        async with cluster.client(CONFIG) as client:
            await cluster.stop("b2:1")
            await trio.sleep(60)
            for ledger_id in range(300):
                client._missed.note(ledger_id, "b2:1")

            async def slowly(*arguments: Any, **options: Any) -> None:
                await trio.sleep(0.05)
                await mark_under_replicated(*arguments, **options)

            monkeypatch.setattr(missed, "mark_under_replicated", slowly)
        assert len(await marked(cluster)) == 300


async def test_a_healthy_ensemble_marks_nothing(autojump_clock: MockClock) -> None:
    async with open_cluster(3) as cluster:
        async with cluster.client(CONFIG) as client:
            writer = await client.create()
            for _ in range(20):
                await writer.append(b"on three")
            await writer.close()
        assert await marked(cluster) == {}
