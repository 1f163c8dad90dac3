"""The policy of a namespace with the errors of this package.

Inside: the errors. Not inside: the meaning of rules and their stored form (``ledger.policy``, which
bookies use too), the node (``policies``).
Always: a policy that does not parse grants nothing.

Source: our own.
"""

from __future__ import annotations

import ledger.policy
from ledger.errors import PolicyError
from ledger.policy import Policy, Right, Rule, policy_document
from namespace.errors import ConfigError, LogMetadataError

__all__ = ["Policy", "Right", "Rule", "decode_policy", "encode_policy", "parse_policy", "policy_document"]


def parse_policy(text: str | bytes) -> Policy:
    """Read a policy that a user wrote.

    Raises:
        ConfigError: The message names the rule and the mistake.
    """
    try:
        return ledger.policy.parse_policy(text)
    except PolicyError as exc:
        raise ConfigError(str(exc)) from None


def encode_policy(policy: Policy) -> bytes:
    """The bytes to store.

    Raises:
        ConfigError: It has only the rules about one principal.
    """
    try:
        return ledger.policy.encode_policy(policy)
    except PolicyError as exc:
        raise ConfigError(str(exc)) from None


def decode_policy(data: bytes) -> Policy:
    """Read the stored policy.

    Raises:
        LogMetadataError: It does not parse. Nothing is allowed then: guessing could grant too much.
    """
    try:
        return ledger.policy.parse_policy(data)
    except PolicyError as exc:
        reason = f"the stored policy: {exc}; nothing is allowed until it is corrected"
        raise LogMetadataError(reason) from None
