"""Adds of entries that the bookie holds: the same entry is acknowledged, anything else is refused."""

from __future__ import annotations

import logging
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie.disk.real_disk import RealDisk
from bookie.errors import EntryUnreadableError
from bookie.requests.repeated_adds import LOGGED_LEDGERS_MAX, Comparison, RefusedAdds, StoredEntry, compare
from bookie.storage.config import CURRENT, StorageConfig
from bookie.storage.opening import open_storage
from ledger.codes import Code
from ledger.digest import DigestType, EntryCodec, master_key
from ledger.wire.messages import AddReply, AddRequest, ReadReply, ReadRequest
from tests.fakes.connection_by_hand import Connection
from tests.fakes.service_by_hand import HandDisk, Peer, add, fence

PUBLIC = EntryCodec(DigestType.CRC32C, b"")  # the key that every stranger knows
CRC_TYPES = [DigestType.CRC32C, DigestType.CRC32]
SAME, OTHER, MAY_BE_DAMAGED = Comparison.SAME, Comparison.OTHER, Comparison.MAY_BE_DAMAGED


def body_of(
    codec: EntryCodec = PUBLIC,
    *,
    entry_id: int = 0,
    lac: int = -1,
    length: int = 500,
    payload: bytes = b"honest payload, more than a MAC long",
) -> bytes:
    return codec.pack(1, entry_id, lac, length, payload)


def flipped(body: bytes, at: int) -> bytes:
    return body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]


# The rule


@pytest.mark.parametrize("digest_type", DigestType)
@pytest.mark.parametrize("has_checksums", [None, "as they are"])
def test_a_recovery_may_send_the_entry_again_with_its_own_lac(
    digest_type: DigestType, has_checksums: object
) -> None:
    known = None if has_checksums is None else digest_type in CRC_TYPES
    codec = EntryCodec(digest_type, b"pass")
    held = body_of(codec, lac=-1)
    assert compare(held, held, has_checksums=known) is SAME
    assert compare(held, body_of(codec, lac=7), has_checksums=known) is SAME


@pytest.mark.parametrize("digest_type", DigestType)
@pytest.mark.parametrize("lac", [-1, 7])
@pytest.mark.parametrize(
    "change",
    [{"payload": b"forged payload, more than a MAC long"}, {"length": 499}, {"payload": b"short"}],
    ids=["payload", "length", "size"],
)
def test_another_payload_or_length_is_another_entry(
    digest_type: DigestType, lac: int, change: dict[str, bytes]
) -> None:
    codec = EntryCodec(digest_type, b"pass")
    held, offered = body_of(codec), body_of(codec, lac=lac, **change)  # type: ignore[arg-type]
    if digest_type is DigestType.DUMMY and lac == 7 and "payload" in change and len(held) == len(offered):
        # Without a digest its first 20 bytes could be a MAC. The held bytes stay, whatever the reply says.
        offered = flipped(offered, len(offered) - 1)
    assert compare(held, offered) is OTHER


def test_a_digest_that_does_not_match_makes_another_entry() -> None:
    held = body_of()
    for at in (20, 33, 40):
        assert compare(held, flipped(body_of(lac=7), at)) is OTHER
    mac = EntryCodec(DigestType.MAC, b"pass")
    assert compare(body_of(mac), flipped(body_of(mac), 33)) is OTHER, "the same header has the same MAC"


def test_a_checksum_does_not_replace_a_mac() -> None:
    """A peer with the master key cannot make MACs, but it can make a valid CRC of any payload."""
    held = body_of(EntryCodec(DigestType.MAC, b"secret"))
    forged = body_of(payload=b"forged payload, as long as the other one and its MAC"[: len(held) - 36])
    assert len(forged) == len(held)
    assert compare(held, forged) is MAY_BE_DAMAGED
    assert compare(held, forged, has_checksums=False) is OTHER


@pytest.mark.parametrize("digest_type", CRC_TYPES)
def test_damaged_bytes_are_replaced_once_the_type_is_known(digest_type: DigestType) -> None:
    good = body_of(EntryCodec(digest_type, b""))
    for at in (25, 33, len(good) - 1):
        rotten = flipped(good, at)
        assert compare(rotten, good) is MAY_BE_DAMAGED
        stored = StoredEntry(HandDisk().create_ledger_by_hand(1), rotten)
        assert stored.compare(good) is MAY_BE_DAMAGED
        assert StoredEntry(stored.ledger, rotten, has_checksums=True).compare(good) is None
        assert StoredEntry(stored.ledger, rotten, has_checksums=True).compare(flipped(good, 50)) is OTHER
        assert StoredEntry(stored.ledger, good, has_checksums=True).compare(body_of(payload=b"x")) is OTHER
    assert StoredEntry(stored.ledger, None).compare(good) is None, "lost bytes protect nothing"


# A session, the disk played by hand


def test_the_fast_loop_does_not_look_for_entries_above_the_last(peer: Peer, disk: HandDisk) -> None:
    peer.ask(add(1, 0))
    disk.find_entry = None  # type: ignore[assignment, method-assign]  # a call fails
    for entry_id in (1, 2, 5):
        peer.ask(add(1, entry_id))
        peer.ask(add(1, entry_id + 1_000_000), version=3)
        disk.ledgers[1].last_entry_id = entry_id
    disk.sync()
    assert {reply.code for reply in peer.replies()} == {Code.OK}


@pytest.mark.parametrize("version", [2, 3])
def test_a_repeated_add_is_acknowledged_when_the_held_entry_is_durable(
    peer: Peer, disk: HandDisk, version: int
) -> None:
    peer.ask(add(1, 0, deferred_sync=version == 3), version=version)
    peer.ask(add(1, 0, lac=9, recovery=True), version=version)
    assert disk.batches[-1].names == [], "nothing is stored again"
    assert disk.batches[-1].awaited == [1]
    assert disk.batches[-1].sync
    assert peer.replies() == []
    disk.sync()
    assert peer.replies() == [AddReply(Code.OK, 1, 0)] * 2
    assert disk.ledgers[1].lac == -1, "the LAC of bytes that are not stored counts for nothing"


def test_a_deferred_add_is_checked_again_when_its_entry_was_read(peer: Peer, disk: HandDisk) -> None:
    """While the entry is read, the ledger may be fenced, deleted, or created again."""
    peer.ask(add(1, 0))
    disk.sync()
    peer.raw()
    disk.flushed.add((1, 0))
    peer.ask(add(1, 0))
    (waiting,) = peer.deferred
    peer.deferred.clear()
    peer.ask(fence(1))
    disk.sync()
    peer.deferred.clear()
    stored = StoredEntry(disk.ledgers[1], None)
    peer.add_again(waiting, stored)
    assert peer.replies() == [AddReply(Code.FENCED, 1, 0)]
    del disk.ledgers[1]
    record = disk.create_ledger_by_hand(1)
    record.last_entry_id = 0
    peer.add_again(waiting, stored)
    assert peer.replies() == [AddReply(Code.IO_ERROR, 1, 0)], "the entry was read from another ledger"
    assert peer.deferred == []
    assert disk.unsubmitted[-1].names == []


# Real storage


def config(directory: Path) -> StorageConfig:
    return StorageConfig(
        journal_directories=(directory / "j",), ledger_directories=(directory / "l",), flush_interval_s=60
    )


@pytest.fixture
async def connection(tmp_path: Path) -> AsyncIterator[Connection]:
    async with open_storage(RealDisk(), config(tmp_path)) as storage:
        yield Connection(storage)


def add_of(body: bytes, *, recovery: bool = False, password: bytes = b"") -> AddRequest:
    ledger_id, entry_id = struct.unpack_from(">qq", body)
    return AddRequest(ledger_id, entry_id, master_key(password), body, recovery=recovery)


async def stored(connection: Connection, entry_id: int = 0) -> bytes | None:
    (reply,) = await connection.ask(ReadRequest(1, entry_id))
    assert isinstance(reply, ReadReply)
    return reply.body


@pytest.mark.slow
@pytest.mark.parametrize("recovery", [False, True])
@pytest.mark.parametrize("is_fenced", [False, True])
@pytest.mark.parametrize("is_flushed", [False, True])
async def test_a_stranger_with_the_public_key_changes_no_entry(
    connection: Connection, recovery: bool, is_fenced: bool, is_flushed: bool
) -> None:
    honest = body_of()
    await connection.ask(add_of(honest))
    if is_fenced:
        await connection.ask(ReadRequest(1, -1, fence=True, master_key=PUBLIC.master_key))
    if is_flushed:
        await connection.storage.flush()
    forged = body_of(payload=b"forged payload, more than a MAC long")
    for version in (2, 3):
        (reply,) = await connection.ask(add_of(forged, recovery=recovery), version=version)
        code = Code.FENCED if is_fenced and not recovery else Code.BAD_REQUEST
        assert reply == AddReply(code, 1, 0)
    assert await stored(connection) == honest
    await connection.storage.flush()
    assert await stored(connection) == honest
    assert connection.service.refused_adds.count == (0 if is_fenced and not recovery else 2)


@pytest.mark.parametrize("digest_type", DigestType)
async def test_a_recovery_goes_on_over_entries_that_are_held_and_changes_none(
    connection: Connection, digest_type: DigestType
) -> None:
    codec = EntryCodec(digest_type, b"pass")
    first = [body_of(codec, entry_id=n, lac=n - 1) for n in range(3)]
    await connection.ask(*[add_of(body, password=b"pass") for body in first[:2]])
    await connection.storage.flush()
    await connection.ask(add_of(first[2], password=b"pass"))
    again = [body_of(codec, entry_id=n, lac=1) for n in range(4)]
    replies = await connection.ask(*[add_of(body, recovery=True, password=b"pass") for body in again])
    assert sorted(replies, key=lambda reply: reply.entry_id) == [  # type: ignore[union-attr]
        AddReply(Code.OK, 1, n) for n in range(4)
    ]
    assert [await stored(connection, n) for n in range(4)] == [*first, again[3]]


async def test_an_entry_below_the_last_one_is_taken_if_it_is_not_held(connection: Connection) -> None:
    await connection.ask(add_of(body_of(entry_id=5)))
    await connection.storage.flush()
    assert await connection.ask(add_of(body_of(entry_id=3))) == [AddReply(Code.OK, 1, 3)]
    assert await stored(connection, 3) == body_of(entry_id=3)


def entry_log_of(directory: Path) -> Path:
    return max((directory / "l" / CURRENT).glob("*.log"), key=lambda path: path.stat().st_size)


async def rot(connection: Connection, directory: Path, body: bytes, at: int) -> None:
    """Flush, and damage one byte of the entry on disk."""
    await connection.storage.flush()
    path = entry_log_of(directory)
    data = path.read_bytes()
    path.write_bytes(data.replace(body, flipped(body, at)))
    assert path.read_bytes() != data


@pytest.mark.slow
@pytest.mark.parametrize("digest_type", [*DigestType, None])
async def test_a_damaged_copy_is_healed_if_the_metadata_say_that_it_has_a_checksum(
    tmp_path: Path, digest_type: DigestType | None
) -> None:
    async def digest_type_of(ledger_id: int) -> DigestType | None:
        assert ledger_id == 1
        return digest_type

    async with open_storage(RealDisk(), config(tmp_path)) as storage:
        connection = Connection(storage, digest_type_of)
        good = body_of()
        await connection.ask(add_of(good))
        await rot(connection, tmp_path, good, 60)
        (reply,) = await connection.ask(add_of(good, recovery=True))
        is_healed = digest_type in CRC_TYPES
        assert reply == AddReply(Code.OK if is_healed else Code.BAD_REQUEST, 1, 0)
        assert await stored(connection) == (good if is_healed else flipped(good, 60))


async def test_of_two_copies_that_heal_the_same_entry_the_first_one_stays(tmp_path: Path) -> None:
    async def digest_type_of(ledger_id: int) -> DigestType | None:
        return DigestType.CRC32C

    async with open_storage(RealDisk(), config(tmp_path)) as storage:
        connection = Connection(storage, digest_type_of)
        good = body_of()
        await connection.ask(add_of(good))
        await rot(connection, tmp_path, good, 60)
        forged = body_of(payload=b"forged payload, more than a MAC long")
        replies = await connection.ask(add_of(good, recovery=True), add_of(forged, recovery=True))
        assert [reply.code for reply in replies] == [Code.BAD_REQUEST, Code.OK]
        assert await stored(connection) == good


async def test_without_metadata_no_copy_that_can_be_read_is_replaced(
    connection: Connection, tmp_path: Path
) -> None:
    """Entries with a valid CRC prove nothing: a peer may have planted them beside entries with a MAC."""
    planted = [body_of(entry_id=n) for n in range(5)]
    held = body_of(EntryCodec(DigestType.MAC, b"secret"), entry_id=5)
    await connection.ask(*map(add_of, [*planted, held]))
    await connection.storage.flush()
    assert await connection.storage.stores[0].scrubber.scrub(throttled=False) == []
    forged = body_of(entry_id=5, payload=b"forged payload, more than a MAC long")
    assert await connection.ask(add_of(forged, recovery=True)) == [AddReply(Code.BAD_REQUEST, 1, 5)]
    assert await stored(connection, 5) == held


async def test_an_entry_whose_bytes_are_gone_may_be_written_again(
    connection: Connection, tmp_path: Path
) -> None:
    good = body_of()
    await connection.ask(add_of(good))
    await rot(connection, tmp_path, good, 15)  # the entry id: another entry lies there now
    assert await connection.ask(add_of(good, recovery=True)) == [AddReply(Code.OK, 1, 0)]
    assert await stored(connection) == good


async def test_an_entry_that_cannot_be_read_now_is_not_written_over(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger can exhaust the descriptors of a bookie; that must not make its entries replaceable."""
    good = body_of()
    await connection.ask(add_of(good))
    await connection.storage.flush()

    async def out_of_descriptors(ledger_id: int, entry_id: int, location: int) -> bytes:
        raise EntryUnreadableError(ledger_id, entry_id, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(connection.storage.stores[0].reader, "read", out_of_descriptors)
        assert await connection.ask(add_of(good, recovery=True)) == [AddReply(Code.IO_ERROR, 1, 0)]
    assert await stored(connection) == good


# The log


def test_a_refusal_is_logged_once_for_a_ledger_and_for_few_ledgers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = RefusedAdds()
    with caplog.at_level(logging.ERROR):
        for ledger_id in range(LOGGED_LEDGERS_MAX + 100):
            for entry_id in range(3):
                refused.note(ledger_id, entry_id)
    assert refused.count == 3 * (LOGGED_LEDGERS_MAX + 100)
    assert len(caplog.records) == LOGGED_LEDGERS_MAX
