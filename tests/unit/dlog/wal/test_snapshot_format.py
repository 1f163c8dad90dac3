"""The records of a snapshot: what is complete, what is damaged, and which one counts."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog import DLSN
from dlog.wal import ReplayError
from dlog.wal.snapshot_format import CHUNK_BYTES_MAX, Decoder, StateSnapshot, encode


def last_complete(log: str, payloads: Iterable[bytes]) -> StateSnapshot | None:
    decoder = Decoder(log)
    for payload in payloads:
        decoder.add(payload)
    return decoder.found


def snapshot(index: int, state: bytes) -> StateSnapshot:
    return StateSnapshot(index, DLSN(1, index, 0), state)


@given(st.binary(max_size=40), st.binary(max_size=40), st.integers(0, 6))
def test_a_snapshot_counts_only_when_its_end_is_there(older: bytes, newer: bytes, kept: int) -> None:
    first, second = list(encode(snapshot(1, older))), list(encode(snapshot(2, newer)))
    whole = kept >= len(second)
    found = last_complete("log", first + second[:kept])
    assert found == (snapshot(2, newer) if whole else snapshot(1, older))
    # The service that crashed in between takes its next snapshot behind the piece.
    assert last_complete("log", first + second[:kept] + list(encode(snapshot(3, b"x")))) == snapshot(3, b"x")


def test_a_large_state_is_cut_into_chunks() -> None:
    state = bytes(range(256)) * (CHUNK_BYTES_MAX // 128) + b"rest"
    payloads = list(encode(snapshot(7, state)))
    assert max(map(len, payloads)) == CHUNK_BYTES_MAX + 1
    assert last_complete("log", payloads) == snapshot(7, state)


def test_the_rest_of_a_truncated_snapshot_is_passed_over() -> None:
    payloads = list(encode(snapshot(1, b"state")))
    assert last_complete("log", payloads[1:]) is None
    assert last_complete("log", payloads[2:]) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda parts: [parts[0], parts[2]],
        lambda parts: [parts[0], parts[1], parts[1], parts[2]],
        lambda parts: [parts[0], b"\x02stale", parts[2]],
        lambda parts: [parts[0], parts[1], *list(encode(snapshot(2, b"state")))[2:]],
    ],
    ids=["chunk missing", "chunk twice", "other bytes", "end of another"],
)
def test_a_damaged_snapshot_is_refused(damage: object) -> None:
    parts = list(encode(snapshot(1, b"state")))
    with pytest.raises(ReplayError, match=r"snapshot up to operation \d is damaged"):
        last_complete("log", damage(parts))  # type: ignore[operator]


@pytest.mark.parametrize("payload", [b"", b"\x00", b"\x01\x01", b"\x03", b"\x04abc", b'["key", "value"]'])
def test_a_record_of_another_program_is_refused(payload: bytes) -> None:
    with pytest.raises(ReplayError, match="another program wrote it"):
        last_complete("log", [payload])


def test_a_snapshot_of_a_newer_version_is_refused() -> None:
    header, *_ = encode(snapshot(1, b""))
    with pytest.raises(ReplayError, match="version 2; this program knows 1"):
        last_complete("log", [header[:1] + b"\x02" + header[2:]])


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_arbitrary_records_give_a_snapshot_or_one_error(payloads: list[bytes]) -> None:
    try:
        assert last_complete("log", payloads) is None
    except ReplayError:
        pass
