"""Rates between two looks at counters."""

# covers: dlog/page/rates.py

from __future__ import annotations

from dlog.page.rates import Rates


def test_a_counter_has_a_rate_from_its_second_look_on() -> None:
    rates = Rates()
    assert rates.update(10.0, {"a": 100}) == {"a": None}
    assert rates.update(12.0, {"a": 150, "b": 7}) == {"a": 25.0, "b": None}


def test_looks_that_are_close_together_keep_the_last_rate() -> None:
    rates = Rates()
    rates.update(10.0, {"a": 100})
    assert rates.update(10.5, {"a": 150}) == {"a": None}
    assert rates.update(11.0, {"a": 160}) == {"a": 60.0}
    assert rates.update(11.5, {"a": 900}) == {"a": 60.0}


def test_a_counter_that_shrank_or_was_away_has_no_rate() -> None:
    rates = Rates()
    rates.update(10.0, {"a": 100})
    assert rates.update(12.0, {"a": 50}) == {"a": None}
    rates.update(14.0, {})
    assert rates.update(16.0, {"a": 200}) == {"a": None}
