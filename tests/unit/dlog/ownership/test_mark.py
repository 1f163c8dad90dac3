"""The mark of a ledger: golden bytes, and what is refused."""

from __future__ import annotations

import pytest

from dlog.ownership import BatchMark, LedgerMark
from ledger.catalog.metadata_codec import decode_metadata, encode_metadata
from ledger.errors import MetadataFormatError
from ledger.metadata import Ensemble, LedgerMetadata
from ledger.policy import LogMark

LOG_ID = "6f1cbd0e6a0e4f6a9a4e2f7f6c4b7c55"
NAMED = {"dlog.namespace": b"/messaging/shop", "dlog.log": b"orders"}
WITH_ID = NAMED | {"dlog.log-id": LOG_ID.encode()}
GOLDEN = {
    "older": (LedgerMark("/messaging/shop", "orders"), NAMED),
    "log": (LedgerMark("/messaging/shop", "orders", LOG_ID), WITH_ID),
    "batch": (
        LedgerMark("/messaging/shop", "orders", LOG_ID, BatchMark("import", 7)),
        WITH_ID | {"dlog.batch": b'{"series": "import", "number": 7, "token": ""}'},
    ),
    "no series": (
        LedgerMark("/messaging/shop", "orders", LOG_ID, BatchMark(None, 0, "ab12")),
        WITH_ID | {"dlog.batch": b'{"series": null, "number": 0, "token": "ab12"}'},
    ),
}


@pytest.mark.parametrize("kind", GOLDEN)
def test_a_mark_has_these_bytes_and_comes_back_beside_the_pairs_of_other_programs(kind: str) -> None:
    mark, custom = GOLDEN[kind]
    assert mark.custom == custom
    apache = {"application": b"distributedlog", "component": b"orders", "dlog.allocation": b"1:0"}
    assert LedgerMark.of(custom | apache) == mark
    assert LogMark.of(custom) == LogMark("/messaging/shop", "orders"), "bookies read the first two pairs"


def test_the_stored_metadata_of_a_marked_ledger_have_these_bytes() -> None:
    metadata = LedgerMetadata(
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        ensembles=(Ensemble(0, ("b:1",)),),
        custom=GOLDEN["batch"][0].custom,
    )
    stored = encode_metadata(metadata)
    assert stored.endswith(
        b"Z!\n\x0edlog.namespace\x12\x0f/messaging/shop"
        b"Z\x12\n\x08dlog.log\x12\x06orders"
        b"Z/\n\x0bdlog.log-id\x12 6f1cbd0e6a0e4f6a9a4e2f7f6c4b7c55"
        b'Z<\n\ndlog.batch\x12.{"series": "import", "number": 7, "token": ""}`\x00'
    )
    assert LedgerMark.of(decode_metadata(stored).custom) == GOLDEN["batch"][0]


def test_ledgers_of_other_programs_have_no_mark() -> None:
    assert LedgerMark.of({}) is None
    assert LedgerMark.of({"application": b"distributedlog", "component": b"orders"}) is None


@pytest.mark.parametrize(
    "custom",
    [
        {"dlog.log-id": LOG_ID.encode()},
        {"dlog.batch": b"{}"},
        {"dlog.log": b"orders"},
        *(NAMED | {"dlog.log-id": text} for text in (b"", b"\xff" * 32, LOG_ID.upper().encode(), b"0" * 33)),
        *(
            WITH_ID | {"dlog.batch": text}
            for text in (
                b"",
                b"\xff",
                b"[]",
                b"[" * 100_000,
                b"{}",
                b'{"series": 1, "number": 7, "token": ""}',
                b'{"series": "a", "number": true, "token": ""}',
                b'{"series": "a", "number": 7.0, "token": ""}',
                b'{"series": "a", "number": 7, "token": null}',
                b'{"series": "a", "number": 7, "token": "", "more": 1}',
            )
        ),
    ],
)
def test_a_part_of_a_mark_and_a_damaged_one_are_errors(custom: dict[str, bytes]) -> None:
    with pytest.raises(MetadataFormatError):
        LedgerMark.of(custom)
