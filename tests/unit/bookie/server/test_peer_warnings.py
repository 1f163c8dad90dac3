"""However many peers misbehave, the log gets few lines."""

from __future__ import annotations

import logging

import pytest

from bookie.server.peer_warnings import INTERVAL_S, KINDS_MAX, PeerEvent, PeerWarnings


def test_one_line_at_once_and_one_for_each_interval(caplog: pytest.LogCaptureFixture) -> None:
    warnings = PeerWarnings()
    for number in range(10_000):
        warnings.note(PeerEvent.PROTOCOL, f"garbage {number}", number * 0.001)
    assert [record.getMessage() for record in caplog.records] == [
        "connections closed by a protocol error: garbage 0"
    ]
    warnings.flush(INTERVAL_S)
    assert caplog.records[-1].getMessage() == (
        "connections closed by a protocol error: 9999 more in 60 s; the last: garbage 9999"
    )
    warnings.flush(INTERVAL_S + 1)
    assert len(caplog.records) == 2


def test_each_kind_has_its_own_line_and_speaks_at_once_after_a_quiet_interval(
    caplog: pytest.LogCaptureFixture,
) -> None:
    warnings = PeerWarnings()
    warnings.note(PeerEvent.PROTOCOL, "one", 0)
    warnings.note(PeerEvent.STALLED, "two", 1)
    warnings.flush(INTERVAL_S + 1)
    warnings.note(PeerEvent.PROTOCOL, "three", INTERVAL_S + 2)
    assert [record.getMessage().rpartition(" ")[2] for record in caplog.records] == ["one", "two", "three"]


def test_without_flush_a_later_event_writes_the_count(caplog: pytest.LogCaptureFixture) -> None:
    warnings = PeerWarnings()
    for at_s in (0.0, 1.0, 61.0, 62.0):
        warnings.note(PeerEvent.FAULT, "fault", at_s, error=ValueError("boom"))
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.WARNING]
    assert "2 more in 61 s" in caplog.records[1].getMessage()


def test_a_line_has_a_bounded_length(caplog: pytest.LogCaptureFixture) -> None:
    PeerWarnings().note(PeerEvent.PROTOCOL, "x" * 100_000, 0)
    assert len(caplog.records[0].getMessage()) < 500


def test_each_reason_has_a_line_and_reasons_without_end_do_not(caplog: pytest.LogCaptureFixture) -> None:
    warnings = PeerWarnings()
    for _ in range(2):
        for number in range(10 * KINDS_MAX):
            warnings.note(PeerEvent.TLS, f"reason {number}", 0.0, reason=str(number))
    assert len(caplog.records) == KINDS_MAX + 1
    assert "reason 1" in caplog.text
