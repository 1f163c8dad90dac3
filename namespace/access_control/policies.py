"""The stored policy of a namespace, as one principal sees it.

Inside: the node, a copy that a watch keeps fresh, the refusal. Not inside: the meaning of rules (``policy``).
Always: a check never uses a policy that this session knows to be replaced; only a principal that the stored
policy lets change it replaces it.

Source: our own.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from ledger.catalog.connection_retry import retry_lost_connection
from ledger.metadata_store.errors import BadVersionError, NodeExistsError, NoNodeError
from ledger.metadata_store.store import MetadataStore
from namespace.errors import AccessDeniedError
from namespace.log_nodes import policy_path
from namespace.policy import Policy, Right, decode_policy, encode_policy

COMPARISONS_OF_A_STEP = 10_000  # of a log with a rule; about 5 ms


class Permissions:
    """The rights of one principal in one namespace."""

    def __init__(self, store: MetadataStore, namespace_path: str, principal: str) -> None:
        self.principal = principal
        self._store, self._path = store, policy_path(namespace_path)
        self._policy: Policy | None = None
        self._version = -1
        self._changed = trio.Event()
        self._changed.set()  # nothing is read yet

    async def check(self, log: str, right: Right, cursor: str | None = None) -> None:
        """Return if the principal has the right.

        Args:
            cursor: The cursor that the right to commit is needed for.

        Raises:
            AccessDeniedError: It has not.
            LogMetadataError: The stored policy does not parse.
            ledger.metadata_store.errors.StoreError: The policy cannot be read.
        """
        policy = await self.policy()
        if policy is not None and not policy.allows(self.principal, log, right, cursor):
            wanted = right.value if cursor is None else f"{right.value} cursor {cursor!r}"
            raise AccessDeniedError(
                f"log {log!r}: the policy of the namespace gives {self.principal!r} no right to"
                f" {wanted}; `dlog policy show` prints the rules about you, and an administrator of the"
                " namespace can change it"
            )

    async def check_administrator(self) -> None:
        """Return if the principal may administer all logs of the namespace. Raises like ``check``."""
        if not await self.is_administrator():
            raise AccessDeniedError(
                f"{self.principal!r} may not do this in the whole namespace: that needs the right"
                ' "admin" on the logs "*"; `dlog policy show` prints the rules about you'
            )

    async def is_administrator(self) -> bool:
        """True if the principal may administer all logs of the namespace. Raises like ``check``."""
        policy = await self.policy()
        return policy is None or policy.may_change_policy(self.principal)

    async def visible(self) -> Policy | None:
        """The policy as the principal may see it: an administrator all rules, others those about them."""
        policy = await self.policy()
        if policy is None or policy.may_change_policy(self.principal):
            return policy
        return policy.about(self.principal)

    async def readable(self, logs: Sequence[str]) -> list[str]:
        """Those of the logs that the principal may read, in their order. Raises like ``check``."""
        policy = await self.policy()
        rules = () if policy is None else policy.about(self.principal).rules
        if policy is None or any(rule.logs == "*" for rule in rules):
            return list(logs)
        found: list[str] = []
        step = max(1, COMPARISONS_OF_A_STEP // max(1, len(rules)))
        for start in range(0, len(logs), step):
            found += [log for log in logs[start : start + step] if any(rule.covers(log) for rule in rules)]
            await trio.lowlevel.checkpoint()
        return found

    async def policy(self) -> Policy | None:
        """The policy; None if there is none. Raises like ``check``."""
        while self._changed.is_set():
            changed = trio.Event()
            policy, version = None, -1
            if await self._store.exists(self._path, watch=changed) is not None:
                try:
                    node = await self._store.get(self._path)
                except NoNodeError:
                    continue  # deleted in between
                policy, version = decode_policy(node.value), node.stat.version
            self._policy, self._version, self._changed = policy, version, changed
        return self._policy

    async def replace(self, policy: Policy | None, *, retry_timeout_s: float = 0) -> None:
        """Store another policy; None for none. If cancelled, it may or may not be stored.

        Args:
            retry_timeout_s: How long to repeat the write while the store is out of reach.

        Raises:
            AccessDeniedError: The stored policy does not let the principal change it.
            AccessDeniedError: Another administrator has just changed it.
            LogMetadataError: The stored policy does not parse; correct its node by hand.
        """
        stored = await retry_lost_connection(self.policy, timeout_s=retry_timeout_s)
        if stored is not None and not stored.may_change_policy(self.principal):
            raise AccessDeniedError(
                f'{self.principal!r} may not change the policy: that needs the right "admin" on the logs "*"'
            )
        wanted, version = None if policy is None else encode_policy(policy), self._version
        is_repeated = False

        async def write() -> None:
            nonlocal is_repeated
            if is_repeated and await self._stored_bytes() == wanted:
                return  # the attempt before was applied, and its reply was lost
            is_repeated = True
            if wanted is None:
                if stored is not None:
                    await self._store.delete(self._path, expected=version)
            elif stored is None:
                await self._store.create(self._path, wanted, parents=True)
            else:
                await self._store.put(self._path, wanted, expected=version)

        try:
            await retry_lost_connection(write, timeout_s=retry_timeout_s)
        except (BadVersionError, NodeExistsError, NoNodeError) as exc:
            raise AccessDeniedError(
                "another administrator has just changed the policy; look at it, then try again"
            ) from exc
        finally:
            self._changed.set()  # read it again, whatever became of the write

    async def _stored_bytes(self) -> bytes | None:
        await self._store.sync(self._path)
        try:
            return (await self._store.get(self._path)).value
        except NoNodeError:
            return None
