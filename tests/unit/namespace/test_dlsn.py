from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import LogMetadataError
from namespace.dlsn import DLSN, INVALID_DLSN

INITIAL_DLSN = DLSN(1, 0, 0)  # the first position of a new log
BEFORE_INITIAL = DLSN(1, 0, -1)


def test_dlsns_compare_in_log_order() -> None:
    ordered = [
        INVALID_DLSN,
        BEFORE_INITIAL,
        INITIAL_DLSN,
        DLSN(1, 0, 1),
        DLSN(1, 2, 0),
        DLSN(2, 0, 0),
    ]
    assert sorted(ordered, reverse=True) == ordered[::-1]
    assert BEFORE_INITIAL.next_slot() == INITIAL_DLSN
    assert repr(DLSN(7, 12, 0)) == "DLSN(7, 12, 0)"


parts = st.tuples(*[st.integers(-1, 2)] * 3)


@pytest.mark.parametrize("compare", [operator.lt, operator.le, operator.gt, operator.ge, operator.eq])
@given(one=parts, other=parts)
def test_dlsns_compare_as_their_parts_do_and_with_nothing_else(
    compare: Callable[[object, object], bool], one: tuple[int, int, int], other: tuple[int, int, int]
) -> None:
    assert compare(DLSN(*one), DLSN(*other)) == compare(one, other)
    if compare is not operator.eq:
        with pytest.raises(TypeError):
            compare(DLSN(*one), one)


@pytest.mark.parametrize(
    "text",
    [
        "7:42:0",
        " 7 : 42 : 0\n",
        "7,42,0",
        "[7,42,0]",
        "[7, 42, 0]",
        "[7:42:0]",
        "DLSN(7, 42, 0)",
        DLSN(7, 42, 0).to_text(),
        DLSN(7, 42, 0).to_text(0),
        "DLSN{logSegmentSequenceNo=7, entryId=42, slotId=0}",
    ],
)
def test_a_position_is_read_in_every_form_that_was_ever_shown(text: str) -> None:
    assert DLSN.parse(text) == DLSN(7, 42, 0)


def test_the_parts_of_a_dlsn_have_the_names_of_the_columns_of_tables_too() -> None:
    dlsn = DLSN(7, 42, 3)
    assert (dlsn.segment, dlsn.entry, dlsn.slot) == (dlsn.segment_seqno, dlsn.entry_id, dlsn.slot_id)


@pytest.mark.parametrize("dlsn", [INVALID_DLSN, BEFORE_INITIAL, DLSN(2**63 - 1, -(2**63), 7)])
def test_a_position_has_one_form_for_people_which_comes_back(dlsn: DLSN) -> None:
    assert f"{dlsn}" == str(dlsn) == ":".join(map(str, (dlsn.segment_seqno, dlsn.entry_id, dlsn.slot_id)))
    assert DLSN.parse(str(dlsn)) == DLSN.parse(repr(dlsn)) == DLSN.parse(dlsn.to_text()) == dlsn


@pytest.mark.parametrize(
    "text", ["", "7:42", "7:42:0:1", "latest", "\u0667:42:0", f"{2**63}:0:0", "7:42:" + 5000 * "1", "1.5"]
)
def test_text_that_is_no_position_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="give a DLSN such as 7:42:0"):
        DLSN.parse(text)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no bytes"),
        (bytes([2]) + bytes(24), "version 2"),
        (bytes([0]) + bytes(24), "25 bytes, version 0 has 200"),
        (bytes([1]) + bytes(23), "24 bytes, version 1 has 25"),
        (bytes([1]) + bytes(199), "200 bytes, version 1 has 25"),
        (bytes(199) + b"x", "175 zero bytes"),
    ],
)
def test_bytes_that_are_no_dlsn_are_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(LogMetadataError, match=reason):
        DLSN.from_bytes(data)


@pytest.mark.parametrize("text", ["", "garbage!", "AQ==\n", "ü", "AQAAAAAAAAABAAAAAAAAAAIAAAAAAAAAAw"])
def test_text_that_is_no_dlsn_is_refused(text: str) -> None:
    with pytest.raises(LogMetadataError, match="stored DLSN"):
        DLSN.from_text(text)


def test_numbers_beyond_64_bits_and_unknown_versions_are_not_stored() -> None:
    with pytest.raises(ValueError, match="64-bit"):
        DLSN(2**63, 0, 0).to_bytes()
    with pytest.raises(ValueError, match="version 2"):
        INITIAL_DLSN.to_bytes(2)
