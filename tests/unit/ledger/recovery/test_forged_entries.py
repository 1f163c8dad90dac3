"""A bookie that knows the password returns an entry for every id: recovery is bounded, and loses nothing."""

from __future__ import annotations

import logging

import attrs
import pytest
import trio
from trio.testing import MockClock

from ledger.client import LedgerClient
from ledger.config import ClientConfig
from ledger.digest import DigestType, EntryCodec
from ledger.errors import LedgerRecoveryError
from ledger.metadata import LedgerState
from ledger.recovery.driver import PROGRESS_S
from ledger.recovery.recovery import AddEntry, CloseLedger, GiveUp
from ledger.replication import AutoRecovery, ReplicationConfig
from ledger.runtime.events import ATTRIBUTE
from ledger.wire.messages import ReadReply, ReadRequest
from tests.fakes.dict_bookies import DictBookie, DictCluster, open_cluster
from tests.fakes.replication_world import open_world, renewing, until
from tests.fakes.scripted_bookies import request_timers
from tests.unit.ledger.recovery.test_ledger_recovery import B1, B2, B3, denial, entry, reads, recovery
from tests.unit.ledger.replication.test_autorecovery import elected

CODEC = EntryCodec(DigestType.CRC32C, b"")
HONEST = [b"honest%d" % number for number in range(5)]
LIMIT = 200


class ForgingBookie(DictBookie):
    """Has an entry for each id that it is asked for, as long as ``forges``."""

    forges = True

    def _read(self, request: ReadRequest) -> ReadReply:
        reply = super()._read(request)
        if reply.body is None and request.entry_id >= 0 and self.forges:
            body = CODEC.pack(request.ledger_id, request.entry_id, -1, 5, b"evil")
            reply = attrs.evolve(reply, code=reply.code.OK, body=body)
        return reply


def make_one_forge(cluster: DictCluster, *, delay_s: float = 0.001) -> ForgingBookie:
    forging = cluster.bookies["b1:1"] = ForgingBookie("b1:1")
    forging.delay_s = delay_s  # so that the clock of the test goes on
    return forging


async def abandoned(client: LedgerClient) -> int:
    writer = await client.create(digest_type=CODEC.digest_type, ensemble_size=3)
    await writer.append_many(HONEST)
    writer.abandon()
    return writer.ledger_id


@pytest.mark.slow
async def test_a_recovery_from_a_forging_bookie_ends_undecided_at_its_limit_and_names_the_bookie(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster(3) as cluster:
        forging = make_one_forge(cluster)
        async with cluster.client(ClientConfig(recovery_entries_max=LIMIT)) as client:
            ledger_id = await abandoned(client)
            requests_before = sum(len(one.requests) for one in cluster.bookies.values())
            with pytest.raises(
                LedgerRecoveryError,
                match=rf"more than {LIMIT} entries .* on bookie b1:1.*recovery_entries_max",
            ):
                await client.open(ledger_id)
            work = sum(len(one.requests) for one in cluster.bookies.values()) - requests_before
            assert work < 7 * (LIMIT + 20)  # three reads and three adds of each entry
            assert (await client.metadata(ledger_id)).state is LedgerState.IN_RECOVERY
            forging.forges = False
            async with await client.open(ledger_id) as reader:
                found = await reader.read(0, reader.last_confirmed)
            assert [one.payload for one in found][: len(HONEST)] == HONEST


@pytest.mark.slow
async def test_a_recovery_from_a_forging_bookie_says_where_it_is_and_ends_when_it_is_cancelled(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with open_cluster(3) as cluster:
        make_one_forge(cluster, delay_s=0.01)
        async with cluster.client(ClientConfig(recovery_entries_max=None)) as client:
            ledger_id = await abandoned(client)
            with trio.move_on_after(2.5 * PROGRESS_S) as scope:
                await client.open(ledger_id)
            assert scope.cancelled_caught
            assert request_timers(client.context.transport) == 0
            await trio.sleep(1)
            sent = sum(len(one.requests) for one in cluster.bookies.values())
            await trio.sleep(60)
            assert sum(len(one.requests) for one in cluster.bookies.values()) == sent
    events = [getattr(line, ATTRIBUTE) for line in caplog.records if hasattr(line, ATTRIBUTE)]
    progress = [one["fields"] for one in events if one["event"] == "ledger.recovering"]
    assert len(progress) == 2
    assert len(HONEST) < progress[0]["last_entry"] < progress[1]["last_entry"]
    assert all(one["ledger"] == ledger_id for one in progress)
    assert progress[1]["found_on"]["b1:1"] > progress[1]["last_entry"] - 2 * len(HONEST)


def test_as_many_entries_as_the_limit_are_kept_and_one_more_leaves_the_end_undecided() -> None:
    for count, last in ((3, CloseLedger), (4, GiveUp)):
        one = recovery(entries_max=3)
        one.on_lac_read(B1, denial(B1))
        actions = one.on_lac_read(B2, denial(B2))
        for entry_id in range(count):
            actions = one.on_entry_read(B1, entry_id, entry(entry_id, -1))
            for added in [added for added in actions if isinstance(added, AddEntry)]:
                actions = one.on_entry_added(added.bookie, added.entry_id, None) or actions
        if count == 3:
            for bookie in (B1, B2, B3):
                actions = one.on_entry_read(bookie, count, denial(bookie)) or actions
        assert isinstance(actions[-1], last), actions


def test_entries_that_a_silent_replica_has_not_answered_bound_what_is_read() -> None:
    one = recovery(bytes_max=1000, read_ahead=4)
    one.on_lac_read(B1, denial(B1))
    due = reads(one.on_lac_read(B2, denial(B2)))
    read_ids = 0
    while due:  # a recovery that reads on without an end would never leave this loop
        assert read_ids < 100
        _, entry_id = min(due, key=lambda read: read[1])
        due = {read for read in due if read[1] != entry_id}
        read_ids += 1
        actions = one.on_entry_read(B1, entry_id, entry(entry_id, -1))
        for added in [added for added in actions if isinstance(added, AddEntry) and added.bookie != B3]:
            due |= reads(one.on_entry_added(added.bookie, added.entry_id, None))
        due |= reads(actions)
    assert 5 < read_ids < 50
    assert reads(one.on_entry_added(B3, 0, OSError("silent"))), "a failed bookie holds nothing up"


@pytest.mark.slow
async def test_auto_recovery_restores_other_ledgers_while_one_is_forged_without_an_end(
    autojump_clock: MockClock,
) -> None:
    config = ReplicationConfig(retry_pause_s=1, failed_ledger_pause_s=1, open_ledger_grace_s=1)
    async with open_world(6, client=ClientConfig(recovery_entries_max=None)) as world:
        forging = make_one_forge(world.cluster, delay_s=0.02)
        writer = await world.client.create(digest_type=CODEC.digest_type, ensemble_size=3)
        while not {"b1:1", "b2:1"} <= set(writer.metadata.last_ensemble.bookies):
            await writer.close()
            writer = await world.client.create(digest_type=CODEC.digest_type, ensemble_size=3)
        await writer.append_many(HONEST)
        writer.abandon()
        async with renewing(world.cluster.tree) as store, trio.open_nursery() as nursery:
            program = AutoRecovery(world.client.context, store, "first:1", config)
            await nursery.start(program.run)
            await elected(program)
            await world.lose("b2:1")

            async def is_forged() -> bool:
                held = forging.ledgers.get(writer.ledger_id)
                return held is not None and len(held.entries) > 50

            await until(is_forged)
            others = [await world.closed_ledger() for _ in range(4)]
            lost = min(set(world.cluster.bookies) - set(writer.metadata.last_ensemble.bookies))
            await world.lose(lost)

            async def are_restored() -> bool:
                return lost not in {name for one in others for name in (await world.members(one))[0]}

            await until(are_restored)
            assert not await is_closed(world.client, writer.ledger_id)
            forging.forges = False
            await until(lambda: is_closed(world.client, writer.ledger_id))
            nursery.cancel_scope.cancel()


async def is_closed(client: LedgerClient, ledger_id: int) -> bool:
    return (await client.metadata(ledger_id)).is_closed
