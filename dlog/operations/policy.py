"""The calls of a namespace on its policy: who may do what.

Inside: the checks before each call, and its record in the audit log. Not inside: the rules
(``namespace.policy``), the calls that obey them.
"""

from __future__ import annotations

import attrs

from dlog.context import NamespaceContext
from dlog.errors import translated
from dlog.operations.calls import waits_for_store
from ledger.pickling import ProcessBound
from ledger.runtime.audit import audited_async
from namespace.policy import Policy, Right, encode_policy


@attrs.frozen
class PolicyCalls(ProcessBound):
    """``Namespace.policy``: which principals have which rights on which logs."""

    context: NamespaceContext = attrs.field(repr=False)

    @waits_for_store
    async def get(self) -> Policy | None:
        """The policy of the namespace; None if there is none, so that everything is allowed.

        A principal that may not change it gets the rules about itself only (``Policy.is_whole``).

        Raises:
            LogMetadataError: It does not parse.
        """
        self.context.check_open()
        with translated(None, "reading its policy"):
            return await self.context.permissions.visible()

    async def set(self, policy: Policy | None) -> None:
        """Replace the policy of the namespace; None deletes it. If cancelled, it may or may not be stored.

        Open writers and readers continue; it counts for later openings.

        Raises:
            AccessDeniedError: The stored policy does not let this program's principal change it.
        """
        context = self.context
        context.check_open(Right.ADMIN)
        rules = "none" if policy is None else encode_policy(policy).decode()
        with translated(None, "changing its policy"):
            async with audited_async("change policy", f"{context.uri} {rules}"):
                await context.permissions.replace(
                    policy, retry_timeout_s=context.retry_timeout_s(Right.ADMIN)
                )
