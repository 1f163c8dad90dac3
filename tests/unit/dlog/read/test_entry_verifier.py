"""Checking entries on all of their replicas: each fault is found, and named with its bookie."""

# covers: ledger/read/replica_check.py

from __future__ import annotations

from collections.abc import AsyncIterator

import attrs
import pytest

import dlog
from dlog import EntryVerification, FaultKind
from dlog.format.envelope import seal_envelope
from dlog.format.record import encode_records
from ledger.codes import Code
from ledger.digest import EntryCodec
from ledger.read.replica_check import ReplicaCheck
from ledger.wire.messages import ReadRequest
from namespace.segments.segment import LogSegment
from tests.fakes.dict_bookies import DictCluster, open_cluster
from tests.fakes.dict_namespace import CONFIG, Opened, open_on

FOUR = attrs.evolve(
    CONFIG,
    ensemble_size=4,
    write_quorum=3,
    ack_quorum=2,
    writer=attrs.evolve(CONFIG.writer, entry_bytes_target=200),
)
RECORDS = 60


@pytest.fixture
async def cluster() -> AsyncIterator[DictCluster]:
    async with open_cluster(5) as opened:
        yield opened


@attrs.frozen
class Segment:
    """A log with one completed segment, striped over four bookies."""

    opened: Opened
    ledger_id: int
    last_entry_id: int
    bookies: tuple[str, ...]
    cluster: DictCluster
    codec: EntryCodec

    def entries(self, bookie: str) -> dict[int, bytes]:
        return self.cluster.bookies[bookie].ledgers[self.ledger_id].entries

    def holders(self, entry_id: int) -> list[str]:
        return [bookie for bookie in self.bookies if entry_id in self.entries(bookie)]

    async def verify(self, first: int = 0, last: int | None = None) -> EntryVerification:
        return await self.opened.namespace.repair.verify_entries(
            "log", 1, first_entry_id=first, last_entry_id=last
        )

    def forge(self, entry_id: int, payload: bytes, *bookies: str) -> None:
        """Replace the payload on bookies, with a good digest."""
        for bookie in bookies:
            old = self.codec.unpack(self.entries(bookie)[entry_id], self.ledger_id, entry_id)
            self.entries(bookie)[entry_id] = self.codec.pack(
                self.ledger_id, entry_id, old.lac, old.length_bytes, payload
            )


@pytest.fixture
async def segment(cluster: DictCluster) -> AsyncIterator[Segment]:
    async with open_on(cluster, config=FOUR) as opened:
        async with opened.namespace.open_writer("log", create=True) as writer:
            for number in range(RECORDS):
                await writer.append(b"%050d" % number, txid=number)
        (stored,) = await opened.namespace.segments("log")
        metadata = await opened.client.metadata(stored.ledger_id)
        yield Segment(
            opened,
            stored.ledger_id,
            metadata.last_entry_id,
            metadata.last_ensemble.bookies,
            cluster,
            EntryCodec(metadata.digest_type, metadata.password or b""),
        )


def found(result: EntryVerification) -> list[tuple[int, str | None, FaultKind]]:
    return [(fault.entry_id, fault.bookie, fault.kind) for fault in result.faults]


async def test_a_sound_segment_is_read_from_every_bookie_of_every_write_set(segment: Segment) -> None:
    result = await segment.verify()
    assert result.is_sound
    assert (result.is_closed, result.entries) == (True, segment.last_entry_id + 1)
    assert (result.records, result.first_txid, result.last_txid) == (RECORDS, 0, RECORDS - 1)
    assert result.replicas == 3 * result.entries
    parts = [await segment.verify(first, first + 9) for first in range(0, result.entries, 10)]
    assert sum(part.records for part in parts) == RECORDS
    assert all(part.is_sound for part in parts)


async def test_a_damaged_replica_is_named_with_its_bookie_and_entry(segment: Segment) -> None:
    corrupt, missing, unread = (segment.holders(entry)[entry % 3] for entry in (5, 6, 7))
    body = bytearray(segment.entries(corrupt)[5])
    body[-1] ^= 1
    segment.entries(corrupt)[5] = bytes(body)
    del segment.entries(missing)[6]
    assert found(await segment.verify()) == [
        (5, corrupt, FaultKind.CORRUPT),
        (6, missing, FaultKind.MISSING),
    ]
    assert (await segment.verify(0, 4)).is_sound
    assert (await segment.verify(7)).is_sound
    segment.cluster.bookies[unread].refuse = lambda request: (
        Code.IO_ERROR if isinstance(request, ReadRequest) and request.entry_id == 7 else None
    )
    assert found(await segment.verify(7)) == [(7, unread, FaultKind.CORRUPT)]


async def test_an_entry_without_a_good_replica_is_lost(segment: Segment) -> None:
    holders = segment.holders(9)
    for bookie in holders:
        del segment.entries(bookie)[9]
    expected = [(9, bookie, FaultKind.MISSING) for bookie in holders] + [(9, None, FaultKind.LOST)]
    assert sorted(found(await segment.verify()), key=str) == sorted(expected, key=str)


async def test_a_bookie_out_of_reach_is_named_and_its_replicas_do_not_count_as_lost(
    segment: Segment,
) -> None:
    away = segment.bookies[0]
    segment.cluster.bookies[away].refuse = lambda request: Code.TOO_MANY_REQUESTS
    result = await segment.verify()
    assert {(fault.bookie, fault.kind) for fault in result.faults} == {(away, FaultKind.UNREACHABLE)}
    assert result.records == RECORDS


async def test_two_good_replicas_that_differ_are_found(segment: Segment) -> None:
    other = segment.holders(4)[1]
    segment.forge(4, b"other", other)
    result = await segment.verify()
    assert {fault.kind for fault in result.faults} <= {FaultKind.DIFFERENT, FaultKind.FORMAT}
    assert any(fault.kind is FaultKind.DIFFERENT and fault.entry_id == 4 for fault in result.faults)


async def test_records_that_go_back_or_are_left_out_are_found(segment: Segment) -> None:
    holders = segment.holders(3)
    good = segment.entries(holders[0])[3]
    back = encode_records([b"x", b"y"], [RECORDS, 0], 999)
    segment.forge(3, seal_envelope(back, dlog.Compression.NONE), *holders)
    assert {kind for _, _, kind in found(await segment.verify())} == {FaultKind.POSITION}
    assert {kind for _, _, kind in found(await segment.verify(3, 3))} == {FaultKind.POSITION}
    position = (await segment.verify(0, 2)).records + 1
    back = encode_records([b"x", b"y"], [RECORDS, 0], position)
    segment.forge(3, seal_envelope(back, dlog.Compression.NONE), *holders)
    kinds = {(entry, kind) for entry, _, kind in found(await segment.verify(0, 3))}
    assert kinds == {(3, FaultKind.TXID)}
    early = encode_records([b"x"], [0], position)
    segment.forge(3, seal_envelope(early, dlog.Compression.NONE), *holders)
    assert found(await segment.verify(3, 3)) == [(3, None, FaultKind.TXID)]  # less than in entry 2
    segment.forge(3, b"no envelope", *holders)
    assert found(await segment.verify(3, 3)) == [(3, None, FaultKind.FORMAT)]
    for bookie in holders:
        segment.entries(bookie)[3] = good
    assert (await segment.verify()).is_sound


async def test_metadata_that_do_not_fit_the_ledger_are_found(
    segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = LogSegment.last_dlsn
    with monkeypatch.context() as patched:
        patched.setattr(LogSegment, "last_dlsn", property(lambda self: dlog.DLSN(1, 0, 0)))
        assert found(await segment.verify()) == [(-1, None, FaultKind.METADATA)]
        assert (await segment.verify(0, 3)).is_sound
    assert LogSegment.last_dlsn is stored
    await segment.opened.client.delete(segment.ledger_id)
    result = await segment.verify()
    assert found(result) == [(-1, None, FaultKind.METADATA)]
    assert "is gone" in result.faults[0].evidence


async def test_a_replica_that_was_moved_during_the_check_is_not_missing(
    segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    spare = next(name for name in segment.cluster.bookies if name not in segment.bookies)
    left = segment.bookies[1]
    entry = ReplicaCheck.entry
    moved = False

    async def move_first(check: ReplicaCheck, entry_id: int) -> object:
        nonlocal moved
        if not moved:
            moved = True
            target = segment.cluster.bookies[spare]
            target.ledgers[segment.ledger_id] = segment.cluster.bookies[left].ledgers.pop(segment.ledger_id)
            catalog = segment.opened.client.context.catalog
            current = await catalog.get_newest(segment.ledger_id)
            bookies = [spare if name == left else name for name in segment.bookies]
            changed = current.metadata.with_replicas(0, bookies)
            await catalog.put(current.ledger_id, changed, expected=current.version)
        return await entry(check, entry_id)

    monkeypatch.setattr(ReplicaCheck, "entry", move_first)
    assert (await segment.verify()).is_sound


async def test_confirmed_entries_of_a_segment_in_progress_are_checked(cluster: DictCluster) -> None:
    async with open_on(cluster, config=FOUR) as opened:
        namespace = opened.namespace
        async with namespace.open_writer("log", create=True) as writer:
            for number in range(20):
                await writer.append(b"%050d" % number)
            await writer.flush()
            result = await namespace.repair.verify_entries("log", 1)
            assert result.is_sound
            assert not result.is_closed
            assert result.records == 20
            (stored,) = await namespace.segments("log")
            stores = [each.ledgers.get(stored.ledger_id) for each in cluster.bookies.values()]
            holders = [each.entries for each in stores if each is not None and 2 in each.entries]
            del holders[0][2]
            assert (
                await namespace.repair.verify_entries("log", 1)
            ).is_sound  # its writer may be about to write it
            del holders[1][2]
            assert len((await namespace.repair.verify_entries("log", 1)).faults) == 2
        with pytest.raises(dlog.LogMetadataError, match="no segment 9"):
            await namespace.repair.verify_entries("log", 9)
