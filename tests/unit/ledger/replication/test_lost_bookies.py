"""When the auditor looks for the ledgers of lost bookies, by the rules of Apache's auditor."""

from __future__ import annotations

from ledger.replication.lost_bookies import AuditNow, CancelAudit, LostBookies, ScheduleAudit


def test_without_a_delay_a_lost_bookie_is_audited_at_once_and_only_once() -> None:
    lost = LostBookies({"a", "b"}, 0)
    assert lost.on_bookies({"a", "b"}) == []
    assert lost.on_bookies({"a"}) == [AuditNow()]
    assert lost.on_bookies({"a"}) == []


def test_a_bookie_with_a_cookie_that_was_never_seen_is_lost() -> None:
    assert LostBookies({"a", "gone"}, 0).on_bookies({"a"}) == [AuditNow()]


def test_one_lost_bookie_waits_for_the_delay() -> None:
    lost = LostBookies({"a", "b", "c"}, 60)
    assert lost.on_bookies({"a", "b"}) == [ScheduleAudit(60)]
    assert lost.on_bookies({"a", "b"}) == []
    assert lost.is_pending
    assert lost.on_delay_over() == [AuditNow()]
    assert lost.on_delay_over() == []


def test_a_bookie_that_comes_back_cancels_the_audit() -> None:
    lost = LostBookies({"a", "b"}, 60)
    lost.on_bookies({"a"})
    assert lost.on_bookies({"a", "b"}) == [CancelAudit()]
    assert lost.on_delay_over() == []
    assert lost.on_bookies({"a"}) == [ScheduleAudit(60)]


def test_a_second_lost_bookie_ends_the_wait() -> None:
    lost = LostBookies({"a", "b", "c"}, 60)
    assert lost.on_bookies({"a", "b"}) == [ScheduleAudit(60)]
    assert lost.on_bookies({"a"}) == [AuditNow()]
    assert not lost.is_pending


def test_another_bookie_lost_when_the_first_comes_back_waits_anew() -> None:
    lost = LostBookies({"a", "b", "c"}, 60)
    lost.on_bookies({"a", "b"})
    assert lost.on_bookies({"a", "c"}) == [CancelAudit(), ScheduleAudit(60)]


def test_the_same_delay_written_again_audits_at_once() -> None:
    lost = LostBookies({"a", "b"}, 60)
    assert lost.on_delay_set(60) == [AuditNow()]
    assert lost.on_delay_set(0) == [AuditNow()]
    assert lost.on_delay_set(30) == []


def test_another_delay_schedules_a_pending_audit_anew() -> None:
    lost = LostBookies({"a", "b"}, 60)
    lost.on_bookies({"a"})
    assert lost.on_delay_set(30) == [CancelAudit(), ScheduleAudit(30)]
    assert lost.on_delay_over() == [AuditNow()]
