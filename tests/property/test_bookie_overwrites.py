"""A bookie's rule for repeated adds beside a twin that keeps the first bytes of each entry, and no others.

The peers: the writer and recoveries know the password. A stranger knows the master key only.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from bookie.disk.real_disk import RealDisk
from bookie.storage.config import StorageConfig
from bookie.storage.opening import open_storage
from ledger.codes import Code
from ledger.digest import DigestType, EntryCodec
from ledger.wire.messages import AddReply, AddRequest, ReadReply, ReadRequest
from tests.effort import examples
from tests.fakes.connection_by_hand import Connection
from tests.strategies import DIGEST_TYPES

ENTRIES = st.integers(0, 5)
LACS = st.integers(-1, 5)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), ENTRIES, LACS, st.booleans(), st.just("")),
        st.tuples(
            st.just("forge"),
            ENTRIES,
            LACS,
            st.booleans(),
            st.sampled_from(["payload", "length", "longer", "empty", "crc32", "crc32c", "dummy"]),
        ),
        st.tuples(st.sampled_from(["flush", "restart", "fence"]), ENTRIES, LACS, st.just(True), st.just("")),
    ),
    max_size=40,
)
Step = tuple[str, int, int, bool, str]


def payload_of(entry_id: int) -> bytes:
    return b"%d, a payload that is longer than any digest" % entry_id


def packed(codec: EntryCodec, entry_id: int, lac: int) -> bytes:
    """The only entry with this id, by its writer or by a recovery."""
    return codec.pack(1, entry_id, lac, 100 * entry_id, payload_of(entry_id))


def forged(digest_type: DigestType, entry_id: int, lac: int, kind: str) -> bytes:
    """Another entry with this id, by a peer that does not know the password."""
    payload = payload_of(entry_id)[:-1] + b"!"
    length = 100 * entry_id
    match kind:
        case "length":
            payload, length = payload_of(entry_id), length + 1
        case "longer":
            payload += b"!"
        case "empty":
            payload = b""
        case "crc32" | "crc32c" | "dummy":
            digest_type = DigestType(kind.upper())
    return EntryCodec(digest_type, b"guessed").pack(1, entry_id, lac, length, payload)


async def play(directory: Path, digest_type: DigestType, steps: Sequence[Step]) -> None:
    codec = EntryCodec(digest_type, b"secret")
    first: dict[int, bytes] = {}  # the twin
    is_fenced = False
    config = StorageConfig(
        journal_directories=(directory / "j",), ledger_directories=(directory / "l",), flush_interval_s=60
    )

    async def digest_type_of(ledger_id: int) -> DigestType:
        return digest_type

    remaining = iter([*steps, ("restart", 0, 0, True, "")])
    is_over = False
    while not is_over:
        async with open_storage(RealDisk(), config) as storage:
            connection = Connection(storage, digest_type_of)
            for entry_id, body in first.items():
                (read,) = await connection.ask(ReadRequest(1, entry_id))
                assert isinstance(read, ReadReply)
                assert read.body == body
            is_over = True
            for step, entry_id, lac, recovery, kind in remaining:
                if step == "restart":
                    is_over = False
                    break
                if step == "flush":
                    await storage.flush()
                    continue
                if step == "fence":
                    if first:  # a fence alone would create the ledger
                        await connection.ask(ReadRequest(1, -1, fence=True, master_key=codec.master_key))
                        is_fenced = True
                    continue
                is_honest = step == "add"
                if not is_honest and entry_id not in first:
                    continue
                body = packed(codec, entry_id, lac) if is_honest else forged(digest_type, entry_id, lac, kind)
                request = AddRequest(1, entry_id, codec.master_key, body, recovery=recovery)
                (reply,) = await connection.ask(request, version=2 + entry_id % 2)
                if is_fenced and not recovery:
                    expected = Code.FENCED
                elif is_honest:
                    expected = Code.OK
                    first.setdefault(entry_id, body)
                else:
                    expected = Code.BAD_REQUEST
                assert reply == AddReply(expected, 1, entry_id), (step, kind)
                if entry_id in first:
                    (read,) = await connection.ask(ReadRequest(1, entry_id))
                    assert isinstance(read, ReadReply)
                    assert read.body == first[entry_id]


@settings(max_examples=examples(60), deadline=None)
@given(digest_type=DIGEST_TYPES, steps=STEPS)
@pytest.mark.slow
def test_the_first_bytes_of_an_entry_stay(digest_type: DigestType, steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        trio.run(play, Path(directory), digest_type, steps)
