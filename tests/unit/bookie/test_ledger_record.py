"""Stored ledger data."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.errors import FormatError
from bookie.ledger_record import (
    LedgerData,
    LedgerRecord,
    SharedKeys,
    decode_ledger_data,
    encode_ledger_data,
)
from tests.strategies import LAST_IDS


@given(st.binary(max_size=40), st.booleans(), st.none() | st.binary(max_size=40), LAST_IDS, LAST_IDS)
def test_ledger_data_survive_encoding_and_decoding(
    key: bytes, fenced: bool, packet: bytes | None, lac: int, last: int
) -> None:
    data = LedgerData(key, fenced, packet, lac, last)
    assert decode_ledger_data(encode_ledger_data(data)) == data


def test_the_first_fields_are_apaches_message() -> None:
    encoded = encode_ledger_data(LedgerData(b"key", True, b"lac", -1, -1))
    assert encoded.hex().startswith("0801" + "1001" + "1a036b6579" + "22036c6163")


def test_data_without_our_fields_have_no_last_entry() -> None:
    assert decode_ledger_data(bytes.fromhex("080110001a03" + "6b6579")) == LedgerData(
        b"key", False, None, -1, -1
    )


@pytest.mark.parametrize(
    "data", ["", "0801", "08011001", "0801100118", "1a05aa", "0801100119", "00", "ff" * 12]
)
def test_damaged_data_are_refused(data: str) -> None:
    with pytest.raises(FormatError):
        decode_ledger_data(bytes.fromhex(data))


@given(st.binary(max_size=80))
def test_any_bytes_are_a_value_or_a_format_error(data: bytes) -> None:
    try:
        decoded = decode_ledger_data(data)
    except FormatError:
        return
    assert isinstance(decoded.master_key, bytes)


def test_a_record_stores_what_must_survive() -> None:
    record = LedgerRecord(7, b"k", True, b"p", 4, 5)
    assert record.stored() == LedgerData(b"k", True, b"p", 4, 5)


def test_limbo_is_apaches_field_5() -> None:
    data = LedgerData(b"key", True, None, 1, 2, limbo=True)
    assert "2801" in encode_ledger_data(data).hex()
    assert decode_ledger_data(encode_ledger_data(data)) == data
    apache = bytes.fromhex("080110011a036b6579" + "2801")
    assert decode_ledger_data(apache).limbo
    assert not decode_ledger_data(bytes.fromhex("080110011a036b6579" + "2800")).limbo


def test_equal_keys_are_one_object_and_different_ones_without_end_fill_no_memory() -> None:
    keys = SharedKeys()
    shared = keys.share(bytes(20))
    assert keys.share(bytes(bytearray(20))) is shared
    for number in range(10_000):
        key = number.to_bytes(20, "big")
        assert keys.share(key) == key
        assert len(keys._keys) <= 256
