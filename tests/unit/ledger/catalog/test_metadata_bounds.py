"""Metadata that name absurdly much: refused, or handled by work in proportion to their bytes."""

from __future__ import annotations

import random

import attrs
import pytest

from ledger.catalog.catalog import DECODED_AT_ONCE_BYTES_MAX, LedgerCatalog
from ledger.catalog.metadata_codec import (
    ENSEMBLE_SIZE_MAX,
    METADATA_BYTES_MAX,
    check_bounds,
    decode_metadata,
    encode_metadata,
)
from ledger.catalog.paths import Layout
from ledger.digest import ENTRY_ID_MAX
from ledger.errors import LedgerError, LedgerMetadataError, MetadataFormatError
from ledger.metadata import Ensemble, LedgerMetadata, LedgerState
from ledger.metadata_store.memory import MemoryTree, open_memory_store
from ledger.wire.data_formats_pb2 import LedgerMetadataFormat
from ledger.wire.protobuf import encode_varint

HEADER = b"BookieMetadataFormatVersion\t"


def names(count: int) -> tuple[str, ...]:
    return tuple(f"10.0.{number // 256}.{number % 256}:3181" for number in range(count))


def metadata(size: int, write_quorum: int = 3, segments: int = 1) -> LedgerMetadata:
    bookies = names(size)
    return LedgerMetadata(
        ensemble_size=size,
        write_quorum=write_quorum,
        ack_quorum=1,
        ensembles=tuple(Ensemble(number, bookies) for number in range(segments)),
    )


def stored(**fields: object) -> bytes:
    """Metadata of version 3 with these fields in place of good ones."""
    values: dict[str, object] = {"quorumSize": 2, "ensembleSize": 3, "length": 0, "state": "OPEN", **fields}
    message = LedgerMetadataFormat(**{key: value for key, value in values.items() if key != "segment"})  # type: ignore[arg-type]
    for first, bookies in values.get("segment", [(0, names(3))]):  # type: ignore[attr-defined]
        message.segment.add(firstEntryId=first, ensembleMember=bookies)
    body = message.SerializePartialToString()
    return HEADER + b"3\n" + encode_varint(len(body)) + body


BAD = {
    "an ack quorum of 0": stored(ackQuorumSize=0),
    "a negative ack quorum": stored(ackQuorumSize=-1),
    "an ack quorum above the write quorum": stored(ackQuorumSize=3),
    "a write quorum above the ensemble": stored(quorumSize=4, ackQuorumSize=1),
    "an ensemble of 2^31-1": stored(ensembleSize=2**31 - 1),
    "an ensemble of 0": stored(ensembleSize=0, quorumSize=0),
    "no segment": stored(segment=[]),
    "a bookie twice": stored(segment=[(0, ("a:1", "b:1", "a:1"))]),
    "a segment of another size": stored(segment=[(0, names(2))]),
    "segments out of order": stored(segment=[(0, names(3)), (9, names(3)), (9, names(3))]),
    "a negative segment": stored(segment=[(-1, names(3))]),
    "an ensemble too large": stored(
        ensembleSize=ENSEMBLE_SIZE_MAX + 1, quorumSize=1, segment=[(0, names(ENSEMBLE_SIZE_MAX + 1))]
    ),
    "write sets too large": stored(ensembleSize=3000, quorumSize=3000, segment=[(0, names(3000))]),
    "a last entry without a successor": stored(state="CLOSED", lastEntryId=ENTRY_ID_MAX),
    "a last entry below none": stored(state="CLOSED", lastEntryId=-2),
    "a negative length": stored(state="CLOSED", lastEntryId=0, length=-1),
    "no last entry": stored(state="CLOSED"),
    "a version 1 entry of 64 bits": HEADER + b"1\n1\n1\n0\n9999999999999999999\ta:1\n",
    "a version 1 last entry of 64 bits": HEADER + b"1\n1\n1\n0\n0\ta:1\n9999999999999999999\tCLOSED",
    "a version 1 length of 64 bits": HEADER + b"1\n1\n1\n9999999999999999999\n0\ta:1\n5\tCLOSED",
}


@pytest.mark.parametrize("what", BAD)
def test_metadata_out_of_bounds_are_an_error_of_ours(what: str) -> None:
    with pytest.raises(MetadataFormatError):
        decode_metadata(BAD[what])


@pytest.mark.slow
def test_a_million_segments_are_refused_before_they_are_parsed() -> None:
    segment = b"\x32\x05\x0a\x01a\x10"
    body = b"".join(segment + encode_varint(number) for number in range(1_000_000))
    data = HEADER + b"3\n" + encode_varint(len(body)) + body
    with pytest.raises(MetadataFormatError, match=rf"bytes; at most {METADATA_BYTES_MAX}"):
        decode_metadata(data)


def test_three_thousand_bookies_are_within_bounds_if_the_write_sets_are_small() -> None:
    large = metadata(3000)
    assert decode_metadata(encode_metadata(large)) == large
    with pytest.raises(MetadataFormatError):
        check_bounds(1, 3000, 34)


@pytest.mark.parametrize("last", [ENTRY_ID_MAX, -2])
def test_a_ledger_is_closed_only_at_an_entry_whose_successor_has_an_id(last: int) -> None:
    with pytest.raises(LedgerMetadataError):
        metadata(3).closed(last, 0)


async def test_a_catalog_writes_only_what_it_can_read_and_names_the_node_that_it_cannot() -> None:
    async with open_memory_store(MemoryTree()) as store:
        catalog = LedgerCatalog(store, "/ledgers", Layout.HIERARCHICAL, rng=random.Random(1))
        with pytest.raises(MetadataFormatError, match="at most"):
            await catalog.create(metadata(3000, 100))
        large = metadata(100, segments=1 + DECODED_AT_ONCE_BYTES_MAX // 1500)
        current = await catalog.create(large)
        assert len(encode_metadata(large)) > DECODED_AT_ONCE_BYTES_MAX  # decoded in a thread
        assert (await catalog.get(current.ledger_id)).metadata == attrs.evolve(
            large, creator_token=(await catalog.get(current.ledger_id)).metadata.creator_token
        )
        await store.put(catalog.path(current.ledger_id), b"\xff" * 70_000)
        for call in (catalog.get, catalog.get_newest, catalog.stored):
            with pytest.raises(LedgerError, match=catalog.path(current.ledger_id)):
                await call(current.ledger_id)


@pytest.mark.parametrize("entry_id", [0, 1, 2, 5, 9, 10, 11, 10**6])
def test_the_ensemble_of_an_entry_is_found_among_many(entry_id: int) -> None:
    many = LedgerMetadata(
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        ensembles=tuple(Ensemble(first, (f"b{first}:1",)) for first in (0, 2, 5, 10)),
        state=LedgerState.OPEN,
    )
    expected = max(first for first in (0, 2, 5, 10) if first <= entry_id)
    assert many.ensemble_for(entry_id).first_entry_id == expected
