"""Positions as text on the command line."""

# covers: dlog/cli/terminal/position.py

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dlog
from dlog.cli.terminal.position import parse_position, record_document

numbers = st.integers(0, 10**17)


@given(numbers, numbers, numbers)
def test_a_dlsn_comes_back_from_its_text(segment: int, entry: int, slot: int) -> None:
    dlsn = dlog.DLSN(segment, entry, slot)
    assert parse_position(str(dlsn)) == dlsn
    assert parse_position(repr(dlsn)) == dlsn
    assert parse_position(dlsn.to_text()) == dlsn
    assert parse_position(f"[{segment}, {entry}, {slot}]") == dlsn


def test_words_numbers_and_dates_are_distinguished() -> None:
    assert parse_position("Earliest") is dlog.EARLIEST
    assert parse_position("latest") is dlog.LATEST
    assert parse_position("123456") == 123456
    assert parse_position("2026-11-01T12:00+00:00") == 1_793_534_400_000
    local = datetime.datetime(2026, 11, 1)
    assert parse_position("2026-11-01") == int(local.timestamp() * 1000)


@pytest.mark.parametrize("text", ["", "7:42", "some day", "-1", str(2**63), "7:42:0:1", "1.5"])
def test_other_text_is_rejected_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"7:42:0|maximum"):
        parse_position(text)


@given(st.text())
def test_any_text_is_a_position_or_a_value_error(text: str) -> None:
    try:
        position = parse_position(text)
    except ValueError:
        return
    assert isinstance(position, dlog.DLSN | int | dlog.Start)


def test_bytes_that_are_no_text_are_base64() -> None:
    dlsn = dlog.DLSN(1, 2, 3)
    record = dlog.Record(dlsn=dlsn, txid=4, payload=b"\xff", sequence_id=5)
    assert record_document(record) == {
        "dlsn": "1:2:3",
        "txid": 4,
        "sequence_id": 5,
        "payload_base64": "/w==",
    }
