"""The mark of a log's ledgers, and the rule for ledgers without one. Rules: ``test_policy`` of ``dlog``."""

# covers: ledger/policy.py

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import MetadataFormatError, PolicyError
from ledger.policy import (
    LOG_KEY,
    NAMESPACE_KEY,
    UNMARKED,
    LogMark,
    Policy,
    Right,
    Rule,
    encode_policy,
    matches,
    parse_policy,
)

ROOT = Rule("root", "*", frozenset({Right.ADMIN}))


def test_a_mark_survives_the_custom_metadata() -> None:
    mark = LogMark("/messaging/shop", "orders/caf\u00e9")
    assert mark.custom == {"dlog.namespace": b"/messaging/shop", "dlog.log": "orders/caf\u00e9".encode()}
    assert LogMark.of(mark.custom | {"application": b"pulsar"}) == mark


def test_a_ledger_of_java_has_no_mark() -> None:
    assert LogMark.of({}) is None
    assert LogMark.of({"application": b"pulsar", "component": b"managed-ledger"}) is None


@pytest.mark.parametrize(
    "custom",
    [
        {NAMESPACE_KEY: b"/n"},
        {LOG_KEY: b"orders"},
        {NAMESPACE_KEY: b"", LOG_KEY: b"orders"},
        {NAMESPACE_KEY: b"/n", LOG_KEY: b""},
        {NAMESPACE_KEY: b"/n", LOG_KEY: b"\xff"},
    ],
)
def test_half_a_mark_is_an_error_and_not_a_ledger_of_no_log(custom: dict[str, bytes]) -> None:
    with pytest.raises(MetadataFormatError):
        LogMark.of(custom)


def test_only_a_rule_that_names_the_unmarked_ledgers_restricts_them() -> None:
    assert not Policy((ROOT, Rule("a", "un*", frozenset({Right.WRITE})))).restricts_unmarked
    assert Policy((ROOT, Rule("a", UNMARKED, frozenset({Right.WRITE})))).restricts_unmarked


def test_a_policy_that_could_never_be_changed_is_refused() -> None:
    with pytest.raises(PolicyError, match="never be changed"):
        Policy((Rule("root", "shop", frozenset({Right.ADMIN})),))


@pytest.mark.parametrize(
    ("principal", "logs", "rights"),
    [
        (7, "*", {Right.READ}),
        ("", "*", {Right.READ}),
        ("alice", None, {Right.READ}),
        ("alice", "x" * 256, {Right.READ}),
        ("alice", "*", {"read"}),
        ("alice", "*", set()),
    ],
)
def test_a_rule_that_could_not_be_read_again_is_refused(principal: Any, logs: Any, rights: Any) -> None:
    with pytest.raises(PolicyError, match=r"a pattern of a rule|a rule grants"):
        Rule(principal, logs, frozenset(rights))


def fits(pattern: str, text: str) -> bool:
    """A dumb twin of ``matches``: tries every length of every star."""
    if not pattern:
        return not text
    if pattern[0] == "*":
        return any(fits(pattern[1:], text[at:]) for at in range(len(text) + 1))
    return text[:1] == pattern[0] and fits(pattern[1:], text[1:])


@given(st.text("ab*?[]!-", max_size=8), st.text("ab*?[]!-", max_size=10))
def test_a_pattern_means_what_its_dumb_twin_says(pattern: str, text: str) -> None:
    assert matches(pattern, text) == fits(pattern, text)


@given(st.lists(st.text("ab/", max_size=3), min_size=1, max_size=5), st.text("ab", max_size=3))
def test_any_text_in_the_place_of_each_star_fits(parts: list[str], text: str) -> None:
    assert matches("*".join(parts), text.join(parts))


def test_only_the_star_is_special() -> None:
    assert matches("a[bc]", "a[bc]")
    assert not matches("a[bc]", "ab")
    assert matches("a?", "a?")
    assert not matches("a?", "ab")
    assert matches("shop/*", "shop/a/b")
    assert not matches("shop", "shop2")
    assert not matches("a*a", "a")
    assert not matches("Shop", "shop")
    assert not matches("*a*a", "a")  # a part in the middle and the end do not share a character


def test_a_pattern_of_many_stars_and_a_long_text_take_no_blow_up() -> None:
    assert not matches("*a" * 127 + "b", "a" * 1_000_000)
    assert matches("*a" * 127 + "*b", "a" * 1_000_000 + "b")


def test_a_right_comes_with_others() -> None:
    assert {right.value: sorted(each.value for each in right.included) for right in Right} == {
        "read": ["read"],
        "commit": ["commit", "read"],
        "write": ["read", "write"],
        "admin": ["admin", "commit", "read", "write"],
    }


@pytest.mark.parametrize(
    ("rule", "cursor", "allowed"),
    [
        (Rule("p", "log", frozenset({Right.READ})), "billing", False),
        (Rule("p", "log", frozenset({Right.WRITE})), "billing", False),
        (Rule("p", "log", frozenset({Right.COMMIT})), "billing", True),
        (Rule("p", "log", frozenset({Right.COMMIT})), None, True),
        (Rule("p", "log", frozenset({Right.ADMIN})), "billing", True),
        (Rule("p", "log", frozenset({Right.COMMIT}), "bill*"), "billing", True),
        (Rule("p", "log", frozenset({Right.COMMIT}), "bill*"), "audit", False),
        (Rule("p", "log", frozenset({Right.COMMIT}), "bill*"), None, False),
        (Rule("p", "log", frozenset({Right.COMMIT, Right.WRITE}), "bill*"), "audit", False),
        (Rule("p", "other", frozenset({Right.COMMIT})), "billing", False),
    ],
)
def test_the_right_to_commit_is_about_the_cursors_that_the_rule_names(
    rule: Rule, cursor: str | None, allowed: bool
) -> None:
    policy = Policy((ROOT, rule))
    assert policy.allows("p", "log", Right.COMMIT, cursor) == allowed
    assert parse_policy(encode_policy(policy)) == policy


def test_a_limit_to_cursors_does_not_limit_the_other_rights_of_the_rule() -> None:
    policy = Policy((ROOT, Rule("p", "log", frozenset({Right.COMMIT, Right.WRITE}), "bill*")))
    assert policy.allows("p", "log", Right.READ)
    assert policy.allows("p", "log", Right.WRITE)


def test_a_policy_of_before_the_right_to_commit_means_what_it_says() -> None:
    rules = b'{"version":1,"rules":[{"principal":"*","logs":"*","rights":["read","write","admin"]}]}'
    assert parse_policy(rules).rules == (Rule("*", "*", frozenset({Right.READ, Right.WRITE, Right.ADMIN})),)


def test_the_rules_about_one_principal_are_not_stored() -> None:
    part = Policy((ROOT, Rule("p*", "log", frozenset({Right.READ})))).about("p1")
    assert part.rules == (Rule("p*", "log", frozenset({Right.READ})),)
    with pytest.raises(PolicyError, match="an administrator sees all rules"):
        encode_policy(part)
