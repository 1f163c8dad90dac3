"""Which records a rule of retention gives up."""

from __future__ import annotations

import datetime

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import ConfigError
from namespace.dlsn import DLSN
from namespace.segments.retention import (
    Retention,
    decode_retention,
    encode_retention,
    first_retained,
)
from namespace.segments.segment import LogSegment
from tests.unit.namespace.segments.test_truncation import segment

HOUR_MS = 3_600_000


def completed(seqno: int, *, at_ms: int = 0) -> LogSegment:
    return attrs.evolve(segment(seqno), completed_ms=at_ms)


def kept(
    rule: Retention,
    segments: list[LogSegment],
    *,
    now_ms: int = 0,
    sizes: dict[int, int] | None = None,
    cursors: tuple[DLSN, ...] = (),
) -> DLSN | None:
    return first_retained(rule, segments, now_ms=now_ms, sizes=sizes or {}, cursors=cursors)


def test_segments_completed_too_long_ago_are_given_up() -> None:
    rule = Retention(age_s=3600)
    segments = [completed(number, at_ms=number * HOUR_MS) for number in (1, 2, 3)]
    assert kept(rule, segments, now_ms=2 * HOUR_MS) is None
    assert kept(rule, segments, now_ms=2 * HOUR_MS + 1) == DLSN(2, 0, 0)
    assert kept(rule, segments, now_ms=9 * HOUR_MS) == DLSN(4, 0, 0)
    assert kept(rule, [*segments, segment(4, in_progress=True)], now_ms=9 * HOUR_MS) == DLSN(4, 0, 0)
    assert kept(rule, segments, now_ms=-9 * HOUR_MS) is None, "a clock that is behind gives up nothing"


def test_the_newest_completed_segments_of_a_size_are_kept() -> None:
    segments = [completed(number) for number in (1, 2, 3)]
    sizes = {each.ledger_id: 100 for each in segments}
    assert kept(Retention(size_bytes=300), segments, sizes=sizes) is None
    assert kept(Retention(size_bytes=201), segments, sizes=sizes) is None
    assert kept(Retention(size_bytes=200), segments, sizes=sizes) == DLSN(2, 0, 0)
    assert kept(Retention(size_bytes=1), segments, sizes=sizes) == DLSN(3, 0, 0)


def test_records_that_a_cursor_has_not_consumed_are_kept() -> None:
    segments = [completed(number) for number in (1, 2, 3)]
    old = Retention(age_s=1, keep_unread=True)
    behind = segments[1].last_dlsn.next_slot()
    assert kept(old, segments, now_ms=HOUR_MS) == DLSN(4, 0, 0), "without a cursor nothing is unread"
    assert kept(old, segments, now_ms=HOUR_MS, cursors=(DLSN(3, 0, 0),)) == DLSN(3, 0, 0)
    # All of segment 2 is consumed. But without it, a reader that opens at the cursor would be refused.
    assert kept(old, segments, now_ms=HOUR_MS, cursors=(DLSN(3, 0, 0), behind)) == DLSN(2, 0, 0)
    assert kept(old, segments, now_ms=HOUR_MS, cursors=(DLSN(1, 0, 0),)) is None
    assert kept(old, segments, now_ms=HOUR_MS, cursors=(segments[1].last_dlsn,)) == DLSN(2, 0, 0)
    ignores = Retention(age_s=1)
    assert kept(ignores, segments, now_ms=HOUR_MS, cursors=(DLSN(1, 0, 0),)) == DLSN(4, 0, 0)


def test_with_cursors_alone_all_that_they_have_consumed_is_given_up() -> None:
    rule = Retention(keep_unread=True)
    segments = [completed(number) for number in (1, 2, 3)]
    assert kept(rule, segments) is None, "no cursor has read it yet"
    assert kept(rule, segments, cursors=(DLSN(3, 0, 0), DLSN(9, 0, 0))) == DLSN(3, 0, 0)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=6),
    st.builds(
        Retention,
        age_s=st.none() | st.integers(1, 9),
        size_bytes=st.none() | st.integers(1, 30),
        keep_unread=st.just(True),
    ),
    st.lists(st.integers(1, 7), max_size=3),
    st.integers(0, 20),
)
def test_what_is_given_up_is_allowed_to_go_and_nothing_behind_it_is(
    made: list[tuple[int, int]], rule: Retention, cursors: list[int], now_s: int
) -> None:
    segments = [completed(number, at_ms=at * 1000) for number, (at, _) in enumerate(made, 1)]
    sizes = {each.ledger_id: size for each, (_, size) in zip(segments, made, strict=True)}
    positions = tuple(DLSN(number, 0, 0) for number in cursors)
    first = kept(rule, segments, now_ms=now_s * 1000, sizes=sizes, cursors=positions)

    def may_go(index: int) -> bool:
        is_read = all(position.segment_seqno > segments[index].segment_seqno for position in positions)
        by_age = rule.age_s is not None and made[index][0] < now_s - rule.age_s
        by_size = rule.size_bytes is not None and sum(s for _, s in made[index + 1 :]) >= rule.size_bytes
        by_cursors = rule.age_s is None and rule.size_bytes is None and bool(positions)
        return is_read and (by_age or by_size or by_cursors)

    count = 0
    while count < len(made) and may_go(count):
        count += 1
    assert first == (DLSN(count + 1, 0, 0) if count else None)


@pytest.mark.parametrize(
    "numbers", [{}, {"age_s": 0}, {"age_s": -1}, {"age_s": float("inf")}, {"size_bytes": 0}]
)
def test_a_rule_without_limits_or_with_absurd_ones_is_refused(numbers: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="retention"):
        Retention(**numbers)  # type: ignore[arg-type]


def test_a_rule_is_read_back() -> None:
    for rule in (
        Retention(age_s=0.5),
        Retention(size_bytes=7, keep_unread=True),
        Retention.of(age=datetime.timedelta(days=7)),
    ):
        assert decode_retention(encode_retention(rule)) == rule


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"[" * 100_000,
        b'{"version": 2, "age_s": 1, "size_bytes": null, "keep_unread": true}',
        b'{"version": 1, "age_s": true, "size_bytes": null, "keep_unread": true}',
        b'{"version": 1, "age_s": "1", "size_bytes": null, "keep_unread": true}',
        b'{"version": 1, "age_s": NaN, "size_bytes": null, "keep_unread": true}',
        b'{"version": 1, "age_s": null, "size_bytes": 1.5, "keep_unread": true}',
        b'{"version": 1, "age_s": null, "size_bytes": null, "keep_unread": false}',
        b'{"version": 1, "age_s": 1, "size_bytes": null, "keep_unread": true, "more": 1}',
    ],
)
def test_a_stored_rule_that_does_not_parse_is_an_error(data: bytes) -> None:
    with pytest.raises(ConfigError):
        decode_retention(data)
