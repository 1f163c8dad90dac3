"""Rights on the logs of a namespace: the policy, its stored form, and the mark of a log's ledgers.

Inside: the values, the decision, JSON, the custom metadata that name the log of a ledger. Not inside: the
node in a namespace (``dlog.metadata.policies``), where rights are checked (``dlog.namespace_handle``,
``bookie.ledger_metadata.log_permissions``).
Always: a right that no rule grants is denied; a policy that does not parse grants nothing; every policy has a
rule that lets a principal change it.

The node ``.dlog-policy`` of a namespace holds JSON. Without the node everything is allowed. Apache's programs
and older releases ignore it: names that begin with a dot are reserved::

    {"version": 1, "rules": [{"principal": "alice", "logs": "shop/*", "rights": ["read", "write"]}]}

``principal`` and ``logs`` are patterns of ``fnmatch``: ``*`` matches any text, also a slash. For a bookie,
the name ``<unmarked>`` stands for all ledgers without a mark (docs/security.md). No log can have it.

Source: our own.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from fnmatch import fnmatchcase

import attrs

from ledger.errors import MetadataFormatError, PolicyError

POLICY_NODE = ".dlog-policy"  # a child of the namespace's node
UNMARKED = "<unmarked>"  # stands for the ledgers without a mark in the "logs" of a rule
NAMESPACE_KEY, LOG_KEY = "dlog.namespace", "dlog.log"  # of the custom metadata of a ledger

VERSION = 1
RULES_MAX = 1_000
PATTERN_MAX = 255  # characters


class Right(enum.Enum):
    """A right that a rule grants. The value is the stored text; each right includes those before it."""

    READ = "read"  # read records, segments and descriptions
    WRITE = "write"  # create a log, append
    ADMIN = "admin"  # delete and truncate a log; with the logs "*": change the policy

    @property
    def level(self) -> int:
        """The number of rights that this one includes."""
        return list(Right).index(self)


@attrs.frozen
class Rule:
    """Rights of the principals that match, on the logs that match.

    Raises:
        PolicyError: A pattern or a right could be stored and not be read, and then nothing would be allowed.
    """

    principal: str
    logs: str
    rights: frozenset[Right]

    def __attrs_post_init__(self) -> None:
        for pattern in (self.principal, self.logs):
            if not isinstance(pattern, str) or not 1 <= len(pattern) <= PATTERN_MAX:
                raise PolicyError(f"a pattern of a rule has 1 to {PATTERN_MAX} characters, not {pattern!r}")
        if not self.rights or not all(isinstance(right, Right) for right in self.rights):
            raise PolicyError(f"a rule grants one Right or more, not {self.rights!r}")

    def grants(self, principal: str, log: str, right: Right) -> bool:
        """True if this rule gives the principal the right on the log."""
        return (
            any(each.level >= right.level for each in self.rights)
            and fnmatchcase(principal, self.principal)
            and self.covers(log)
        )

    def covers(self, log: str) -> bool:
        """True if the log is one of those that the rule is about."""
        return fnmatchcase(log, self.logs)


@attrs.frozen
class Policy:
    """All rules of a namespace.

    Raises:
        PolicyError: No rule leaves the right to change the policy, or there are too many rules.
    """

    rules: tuple[Rule, ...]

    def __attrs_post_init__(self) -> None:
        if len(self.rules) > RULES_MAX:
            raise PolicyError(f"a policy with {len(self.rules)} rules; at most {RULES_MAX} are allowed")
        if not any(Right.ADMIN in rule.rights and rule.logs == "*" for rule in self.rules):
            raise PolicyError(
                'the policy could never be changed: add a rule with the right "admin" on the logs "*"'
            )

    def allows(self, principal: str, log: str, right: Right) -> bool:
        """True if a rule gives the principal the right on the log."""
        return any(rule.grants(principal, log, right) for rule in self.rules)

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
            raise MetadataFormatError(f"{NAMESPACE_KEY} or {LOG_KEY} is no UTF-8: {exc}") from exc


def encode_policy(policy: Policy) -> bytes:
    """The bytes to store."""
    rules = [
        {
            "principal": rule.principal,
            "logs": rule.logs,
            "rights": [right.value for right in Right if right in rule.rights],
        }
        for rule in policy.rules
    ]
    return json.dumps({"version": VERSION, "rules": rules}, indent=1).encode()


def parse_policy(text: str | bytes) -> Policy:
    """Read a policy that a user wrote.

    Raises:
        PolicyError: The message names the rule and the mistake.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise PolicyError(f"the policy is not JSON: {exc}") from exc
    if not isinstance(document, dict) or set(document) != {"version", "rules"}:
        raise PolicyError('a policy is an object with the keys "version" and "rules"')
    if document["version"] != VERSION:
        raise PolicyError(f"a policy of version {document['version']!r}; this release knows {VERSION}")
    if not isinstance(document["rules"], list):
        raise PolicyError('"rules" of a policy is a list')
    return Policy(tuple(_rule(index, value) for index, value in enumerate(document["rules"], 1)))


def _rule(index: int, value: object) -> Rule:
    if not isinstance(value, dict) or set(value) != {"principal", "logs", "rights"}:
        raise PolicyError(f'rule {index}: expected an object with "principal", "logs" and "rights"')
    for key in ("principal", "logs"):
        pattern = value[key]
        if not isinstance(pattern, str) or not 1 <= len(pattern) <= PATTERN_MAX:
            raise PolicyError(f'rule {index}: "{key}" is a text of 1 to {PATTERN_MAX} characters')
    known = {right.value: right for right in Right}
    rights = value["rights"]
    if not isinstance(rights, list) or not rights or not all(isinstance(each, str) for each in rights):
        raise PolicyError(f'rule {index}: "rights" is a list of {", ".join(known)}')
    if unknown := [each for each in rights if each not in known]:
        raise PolicyError(f"rule {index}: unknown right {unknown[0]!r}; there are {', '.join(known)}")
    return Rule(value["principal"], value["logs"], frozenset(known[each] for each in rights))
