"""Rights on the logs of a namespace: the policy, its stored form, and the mark of a log's ledgers.

Inside: the values, the decision, JSON, the custom metadata that name the log of a ledger. Not inside: the
node in a namespace (``namespace.access_control.policies``), where rights are checked
(``dlog.namespace_handle``, ``bookie.ledger_metadata.log_permissions``).
Always: a right that no rule grants is denied; a policy that does not parse grants nothing; every policy has a
rule that lets a principal change it.

The node ``.dlog-policy`` of a namespace holds JSON. Without the node everything is allowed. Apache's programs
and older releases ignore it: names that begin with a dot are reserved::

    {"version": 1, "rules": [{"principal": "alice", "logs": "shop/*", "rights": ["read", "write"]}]}

``principal`` and ``logs`` are patterns: ``*`` stands for any text, also a slash; every other character stands
for itself. A rule with the right ``commit`` may have ``cursors``, a pattern of the cursors that it may move;
without it, the rule is about every cursor of its logs. For a bookie, the name ``<unmarked>`` stands for all
ledgers without a mark (docs/security.md). No log can have it.

Source: our own.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from typing import Any

import attrs

from ledger.errors import MetadataFormatError, PolicyError

POLICY_NODE = ".dlog-policy"  # a child of the namespace's node
UNMARKED = "<unmarked>"  # stands for the ledgers without a mark in the "logs" of a rule
NAMESPACE_KEY, LOG_KEY = "dlog.namespace", "dlog.log"  # of the custom metadata of a ledger

VERSION = 1
RULES_MAX = 1_000
PATTERN_MAX = 255  # characters


def matches(pattern: str, text: str) -> bool:
    """True if a pattern of a policy stands for the whole text: ``*`` for any text, the rest for itself.

    The time is linear in the length of both.
    """
    first, *others = pattern.split("*")
    if not others:
        return pattern == text
    *middle, last = others
    at, end = len(first), len(text) - len(last)
    if at > end or not text.startswith(first) or not text.endswith(last):
        return False
    for part in middle:  # the first place is the best one: it leaves the most text for the other parts
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


class Right(enum.Enum):
    """A right that a rule grants. The value is the stored text."""

    READ = "read"  # read records, segments, descriptions and cursors
    COMMIT = "commit"  # create, move and delete cursors
    WRITE = "write"  # create a log, append
    ADMIN = "admin"  # delete and truncate a log; with the logs "*": change the policy

    @property
    def included(self) -> frozenset[Right]:
        """The rights that come with this one, itself included."""
        return _INCLUDED[self]


_INCLUDED = {
    Right.READ: frozenset({Right.READ}),
    Right.COMMIT: frozenset({Right.READ, Right.COMMIT}),
    Right.WRITE: frozenset({Right.READ, Right.WRITE}),  # who appends to a log need not move its readers
    Right.ADMIN: frozenset(Right),
}


@attrs.frozen
class Rule:
    """Rights of the principals that match, on the logs that match.

    Raises:
        PolicyError: A pattern or a right could be stored and not be read, and then nothing would be allowed;
            or a limit to some cursors would not limit anything.
    """

    principal: str
    logs: str
    rights: frozenset[Right]
    cursors: str = "*"  # that the right to commit is about

    def __attrs_post_init__(self) -> None:
        for pattern in (self.principal, self.logs, self.cursors):
            if not isinstance(pattern, str) or not 1 <= len(pattern) <= PATTERN_MAX:
                raise PolicyError(f"a pattern of a rule has 1 to {PATTERN_MAX} characters, not {pattern!r}")
        if not self.rights or not all(isinstance(right, Right) for right in self.rights):
            raise PolicyError(f"a rule grants one Right or more, not {self.rights!r}")
        if self.cursors != "*" and (Right.COMMIT not in self.rights or Right.ADMIN in self.rights):
            raise PolicyError(
                f"the rule for {self.principal!r} on {self.logs!r} names cursors, which limits only the right"
                ' "commit": give it this right, and not "admin", which is about every cursor'
            )

    def includes(self, right: Right) -> bool:
        """True if the right is one of this rule, or comes with one."""
        return any(right in each.included for each in self.rights)

    def grants(self, principal: str, log: str, right: Right, cursor: str | None = None) -> bool:
        """True if this rule gives the principal the right on the log.

        Args:
            cursor: The cursor that the right to commit is wanted for; None for all cursors of the log.
        """
        return (
            self.includes(right)
            and self.is_about(principal)
            and self.covers(log)
            and (right is not Right.COMMIT or self._is_about_cursor(cursor))
        )

    def is_about(self, principal: str) -> bool:
        """True if the principal is one of those that the rule is about."""
        return matches(self.principal, principal)

    def covers(self, log: str) -> bool:
        """True if the log is one of those that the rule is about."""
        return matches(self.logs, log)

    def _is_about_cursor(self, cursor: str | None) -> bool:
        return self.cursors == "*" or (cursor is not None and matches(self.cursors, cursor))


@attrs.frozen
class Policy:
    """All rules of a namespace; or those about one principal, which cannot be stored.

    Raises:
        PolicyError: No rule leaves the right to change the policy, or there are too many rules.
    """

    rules: tuple[Rule, ...]
    is_whole: bool = True  # False: only the rules about one principal

    def __attrs_post_init__(self) -> None:
        if len(self.rules) > RULES_MAX:
            raise PolicyError(f"a policy with {len(self.rules)} rules; at most {RULES_MAX} are allowed")
        if self.is_whole and not any(Right.ADMIN in rule.rights and rule.logs == "*" for rule in self.rules):
            raise PolicyError(
                'the policy could never be changed: add a rule with the right "admin" on the logs "*"'
            )

    def allows(self, principal: str, log: str, right: Right, cursor: str | None = None) -> bool:
        """True if a rule gives the principal the right on the log; ``cursor``: see ``Rule.grants``."""
        return any(rule.grants(principal, log, right, cursor) for rule in self.rules)

    def about(self, principal: str) -> Policy:
        """The rules about one principal."""
        return Policy(tuple(rule for rule in self.rules if rule.is_about(principal)), is_whole=False)

    @property
    def restricts_unmarked(self) -> bool:
        """True if a rule names the ledgers without a mark. Without such a rule they are open."""
        return any(rule.logs == UNMARKED for rule in self.rules)

    def may_change_policy(self, principal: str) -> bool:
        """True if the principal may store another policy or delete this one."""
        return any(rule.logs == "*" and rule.grants(principal, "", Right.ADMIN) for rule in self.rules)


@attrs.frozen
class LogMark:
    """The log that a ledger belongs to, as the custom metadata of the ledger name it."""

    namespace: str  # the path of the namespace's node
    log: str

    @property
    def custom(self) -> dict[str, bytes]:
        """The custom metadata of a new ledger of this log."""
        return {NAMESPACE_KEY: self.namespace.encode(), LOG_KEY: self.log.encode()}

    @classmethod
    def of(cls, custom: Mapping[str, bytes]) -> LogMark | None:
        """The mark in the custom metadata of a ledger; None if there is none.

        Raises:
            MetadataFormatError: There is half a mark, or it is no text.
        """
        namespace, log = custom.get(NAMESPACE_KEY), custom.get(LOG_KEY)
        if namespace is None and log is None:
            return None
        if not namespace or not log:
            raise MetadataFormatError(f"custom metadata with only one of {NAMESPACE_KEY} and {LOG_KEY}")
        try:
            return cls(namespace.decode(), log.decode())
        except UnicodeDecodeError as exc:
            raise MetadataFormatError(f"{NAMESPACE_KEY} or {LOG_KEY} is no UTF-8: {exc}") from None


def policy_document(policy: Policy) -> dict[str, Any]:
    """The policy as an object of JSON."""
    rules = [
        {
            "principal": rule.principal,
            "logs": rule.logs,
            "rights": [right.value for right in Right if right in rule.rights],
        }
        | ({} if rule.cursors == "*" else {"cursors": rule.cursors})
        for rule in policy.rules
    ]
    return {"version": VERSION, "rules": rules}


def encode_policy(policy: Policy) -> bytes:
    """The bytes to store.

    Raises:
        PolicyError: These are the rules about one principal only; the others would be lost.
    """
    if not policy.is_whole:
        raise PolicyError(
            "the policy has only the rules about one principal, so it was not stored; an administrator sees"
            " all rules"
        )
    return json.dumps(policy_document(policy), indent=1).encode()


def parse_policy(text: str | bytes) -> Policy:
    """Read a policy that a user wrote.

    Raises:
        PolicyError: The message names the rule and the mistake.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise PolicyError(f"the policy is not JSON: {exc}") from None
    if not isinstance(document, dict) or set(document) != {"version", "rules"}:
        raise PolicyError('a policy is an object with the keys "version" and "rules"')
    if document["version"] != VERSION:
        raise PolicyError(f"a policy of version {document['version']!r}; this release knows {VERSION}")
    if not isinstance(document["rules"], list):
        raise PolicyError('"rules" of a policy is a list')
    return Policy(tuple(_rule(index, value) for index, value in enumerate(document["rules"], 1)))


def _rule(index: int, value: object) -> Rule:
    if not isinstance(value, dict) or set(value) | {"cursors"} != _KEYS:
        raise PolicyError(
            f'rule {index}: expected an object with "principal", "logs" and "rights", and "cursors" or not'
        )
    patterns = {key: value[key] for key in ("principal", "logs", "cursors") if key in value}
    for key, pattern in patterns.items():
        if not isinstance(pattern, str) or not 1 <= len(pattern) <= PATTERN_MAX:
            raise PolicyError(f'rule {index}: "{key}" is a text of 1 to {PATTERN_MAX} characters')
    known = {right.value: right for right in Right}
    rights = value["rights"]
    if not isinstance(rights, list) or not rights or not all(isinstance(each, str) for each in rights):
        raise PolicyError(f'rule {index}: "rights" is a list of {", ".join(known)}')
    if unknown := [each for each in rights if each not in known]:
        raise PolicyError(f"rule {index}: unknown right {unknown[0]!r}; there are {', '.join(known)}")
    try:
        return Rule(rights=frozenset(known[each] for each in rights), **patterns)
    except PolicyError as exc:
        raise PolicyError(f"rule {index}: {exc}") from None


_KEYS = {"principal", "logs", "rights", "cursors"}
