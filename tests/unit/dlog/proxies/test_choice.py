"""Which proxy has a log: each finds the same, the load is even, and little moves when one comes or goes."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dlog.proxies.choice import divided

ALL = ["*"]
names = st.sets(st.text(min_size=1, max_size=8), min_size=1, max_size=6)
logs = st.sets(st.text(min_size=1, max_size=12), max_size=40)


@given(logs, names)
def test_each_log_has_one_proxy_in_whatever_order_they_are_seen(logs: set[str], proxies: set[str]) -> None:
    found = divided(sorted(logs), dict.fromkeys(sorted(proxies), ALL))
    assert set(found) == logs
    assert found == divided(sorted(logs, reverse=True), dict.fromkeys(sorted(proxies, reverse=True), ALL))


@given(logs, names)
def test_no_proxy_has_many_more_than_its_share(logs: set[str], proxies: set[str]) -> None:
    counts = Counter(divided(logs, dict.fromkeys(proxies, ALL)).values())
    assert max(counts.values(), default=0) <= 1.25 * len(logs) / len(proxies) + 1


def test_a_log_goes_to_a_proxy_whose_patterns_match_it() -> None:
    proxies = {"a": ["shop/*"], "b": ["web/*", "shop/orders"], "c": []}
    found = divided(["shop/orders", "shop/bills", "web/hits", "other"], proxies)
    assert found.pop("shop/orders") in ("a", "b")
    assert found == {"shop/bills": "a", "web/hits": "b"}


def test_few_logs_move_when_a_proxy_comes() -> None:
    logs = [f"shop/orders-{number}" for number in range(1_000)]
    before = divided(logs, dict.fromkeys("abcd", ALL))
    after = divided(logs, dict.fromkeys("abcde", ALL))
    moved = [log for log in logs if after[log] != before[log]]
    assert 100 < len(moved) < 350  # a fifth has to
    assert min(Counter(after.values()).values()) > 100


def test_without_a_proxy_no_log_has_one() -> None:
    assert divided(["log"], {}) == {}
