"""A stranger who has a ledger's password plants one entry with an absurd header.

Nothing acknowledged is lost, no call ends with an error of another kind than ours, and no LAC is raised by a
LAC that the protocol forbids.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from ledger.client import LedgerClient
from ledger.digest import LAC_HEADER, DigestType, EntryCodec
from ledger.errors import LedgerError
from ledger.wire.entry_lac import credible_lac
from tests.fakes.dict_bookies import DictBookie, DictCluster, DictLedger

HONEST = [b"honest%d" % number for number in range(5)]
LAST = len(HONEST) - 1
MAX = 2**63 - 1
CODEC = EntryCodec(DigestType.CRC32C, b"")
REQUESTS_MAX = 400  # of all bookies, for all that one case does

FORBIDDEN = [  # entry id, LAC, length
    (5, MAX, 10),
    (5, 5, 10),
    (5, 10**6, 10),
    (5, 10**12, -(2**63)),
    (5, -MAX - 1, 0),
    (5, -2, 0),
    (6, 6, MAX),
    (MAX, MAX, 10),
    (10**12, 10**12, 5),
]
WELL_FORMED = [
    (5, 4, MAX),
    (5, 4, -5),
    (5, 3, -(2**63)),
    (10**12 + 1, 10**12, 10),
    (MAX, MAX - 1, MAX),
    (MAX - 1, MAX - 2, 0),
    (MAX - 2, MAX - 3, -1),
    (MAX - 3, MAX - 20, -1),
]


def plant(bookie: DictBookie, ledger_id: int, entry: tuple[int, int, int]) -> None:
    entry_id, lac, length = entry
    held = bookie.ledgers.setdefault(ledger_id, DictLedger(CODEC.master_key))
    held.entries[entry_id] = CODEC.pack(ledger_id, entry_id, lac, length, b"evil")
    held.raise_lac(lac)  # as a bookie does that believes every header


async def tried(call: Callable[[], Awaitable[object]]) -> object:
    """The result of a call, or None after an error of ours. Any other error, or a hang, fails the test."""
    with trio.fail_after(60):
        try:
            return await call()
        except LedgerError:
            return None


async def read_all_ways(client: LedgerClient, ledger_id: int) -> None:
    async with await client.open(ledger_id, recover=False) as reader:
        for call in (
            reader.read_last_confirmed,
            lambda: reader.wait_last_confirmed_beyond(LAST, timeout_s=1),
            lambda: reader.wait_last_confirmed_beyond(max(LAST, reader.last_confirmed), timeout_s=1),
            lambda: reader.read_payloads(0, max(0, reader.last_confirmed)),
            lambda: reader.read(0, min(max(0, reader.last_confirmed), 20)),
            lambda: reader.read(max(0, reader.last_confirmed), max(0, reader.last_confirmed)),
        ):
            await tried(call)
        if reader.last_confirmed >= LAST:
            assert (await reader.read_payloads(0, LAST))[0] == HONEST[0]


@pytest.mark.slow
@pytest.mark.parametrize("entry", FORBIDDEN + WELL_FORMED)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 3, 2), (3, 2, 2)])
@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("alive", [False, True])
async def test_a_planted_entry_costs_no_acknowledged_one_and_raises_no_other_error(
    cluster: DictCluster,
    entry: tuple[int, int, int],
    sizes: tuple[int, int, int],
    everywhere: bool,
    alive: bool,
    autojump_clock: MockClock,
) -> None:
    async with cluster.client() as client:
        writer = await client.create(
            ensemble_size=sizes[0], write_quorum=sizes[1], ack_quorum=sizes[2], digest_type=CODEC.digest_type
        )
        await writer.append_many(HONEST)
        ledger_id, last = writer.ledger_id, LAST
        if not alive:
            writer.abandon()
        bookies = writer.metadata.last_ensemble.bookies
        for bookie in bookies if everywhere else bookies[:1]:
            plant(cluster.bookies[bookie], ledger_id, entry)
        await read_all_ways(client, ledger_id)
        if alive and await tried(lambda: writer.append(b"six")) is not None:
            last += 1
        if alive:
            await tried(writer.close)
        reader = await tried(lambda: client.open(ledger_id))
        assert reader is not None, "the ledger cannot be recovered"
        metadata = await client.metadata(ledger_id)
        assert metadata.is_closed
        assert metadata.last_entry_id >= last
        assert 0 <= metadata.length_bytes <= MAX
        async with await client.open(ledger_id) as reader:
            found = [one.payload for one in await reader.read(0, last)]
        assert found == HONEST if last == LAST else [*HONEST, b"six"]
        check = await client.replica_check(ledger_id)
        await tried(lambda: check.entry(metadata.last_entry_id))
        await tried(lambda: check.entry(0))
        # Nobody can be asked for the entries between: the work must not grow with the planted id.
        assert sum(len(bookie.requests) for bookie in cluster.bookies.values()) < REQUESTS_MAX


@pytest.mark.parametrize("entry", FORBIDDEN)
async def test_a_forbidden_lac_raises_the_lac_of_no_reader(
    cluster: DictCluster, entry: tuple[int, int, int], autojump_clock: MockClock
) -> None:
    async with cluster.client() as client:
        writer = await client.create(
            ensemble_size=1, write_quorum=1, ack_quorum=1, digest_type=CODEC.digest_type
        )
        await writer.append_many(HONEST)
        await writer.append(b"six")
        bookie = cluster.bookies[writer.metadata.last_ensemble.bookies[0]]
        reader = await client.open(writer.ledger_id, recover=False)
        plant(bookie, writer.ledger_id, entry)
        assert await reader.read_last_confirmed() <= LAST + 1
        assert await reader.wait_last_confirmed_beyond(LAST + 1, timeout_s=1) <= LAST + 1
        await writer.write_explicit_lac()  # an honest LAC goes on to count beside it
        assert await reader.read_last_confirmed() == LAST + 1
        writer.abandon()


@pytest.mark.parametrize("entry_id", range(5, 10))
@pytest.mark.parametrize("way", ["read", "read_payloads"])
async def test_a_forbidden_lac_in_an_entry_that_is_read_raises_no_lac(
    cluster: DictCluster, entry_id: int, way: str
) -> None:
    async with cluster.client() as client:
        writer = await client.create(
            ensemble_size=1, write_quorum=1, ack_quorum=1, digest_type=CODEC.digest_type
        )
        await writer.append_many(HONEST * 2)
        await writer.write_explicit_lac()
        reader = await client.open(writer.ledger_id, recover=False)
        last = reader.last_confirmed
        assert last == 2 * LAST + 1
        held = cluster.bookies[writer.metadata.last_ensemble.bookies[0]].ledgers[writer.ledger_id]
        held.entries[entry_id] = CODEC.pack(writer.ledger_id, entry_id, 10**12, 0, b"evil")
        first = 0
        while first <= last:
            first += len(await getattr(reader, way)(first, last))
        assert reader.last_confirmed == last
        writer.abandon()


@pytest.mark.parametrize("lac", [MAX, -2, -MAX - 1])
async def test_an_explicit_lac_that_no_ledger_can_have_raises_none(cluster: DictCluster, lac: int) -> None:
    async with cluster.client() as client:
        writer = await client.create(
            ensemble_size=1, write_quorum=1, ack_quorum=1, digest_type=CODEC.digest_type
        )
        await writer.append_many(HONEST)
        await writer.append(b"six")
        held = cluster.bookies[writer.metadata.last_ensemble.bookies[0]].ledgers[writer.ledger_id]
        held.lac_body = CODEC.pack_lac(writer.ledger_id, lac)
        reader = await client.open(writer.ledger_id, recover=False)
        assert await reader.read_last_confirmed() == LAST
        writer.abandon()


@pytest.mark.parametrize("lac", [-MAX - 1, -2, -1, 0, 3, 4, 5, 10**12, MAX])
def test_an_unpacked_entry_has_the_lac_that_the_rule_gives(lac: int) -> None:
    assert CODEC.unpack(CODEC.pack(1, 4, lac, 0, b""), 1, 4).lac == credible_lac(4, lac)
    packet = LAC_HEADER.pack(1, lac)
    expected = lac if -1 <= lac < MAX else -1
    assert CODEC.unpack_lac(packet + CODEC.digest(packet, b""), 1) == expected
