"""The mark of a log's ledgers, and the rule for ledgers without one. Rules: ``test_policy`` of ``dlog``."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.errors import MetadataFormatError, PolicyError
from ledger.policy import LOG_KEY, NAMESPACE_KEY, UNMARKED, LogMark, Policy, Right, Rule

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
