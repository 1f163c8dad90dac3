"""Giving a log of a namespace another name.

Inside: the checks of both names, the order of the steps. Not inside: the
transaction (``metadata.rename_nodes``), the name that records stay bound to (``metadata.origin``).
Always: no writer has the log, and none that was stopped can add a record any more, when its name changes; the
same rights and denials hold for both names.

Source: our own; DistributedLog, BKDistributedLogNamespace.java (renameLog). docs/metadata.md 16.17.
"""

from __future__ import annotations

import secrets

from dlog.context import NamespaceContext
from dlog.errors import ConfigError, LogRenameError, translated
from ledger.runtime.audit import audited_async
from namespace.access_control.entries import Denial
from namespace.federated_store import SUB_NAMESPACES, FederatedStore
from namespace.policy import Right
from namespace.rename_nodes import Rename, rename_nodes, was_renamed


async def rename_log(context: NamespaceContext, old: str, new: str, *, lock_timeout_s: float = 0) -> None:
    """See ``Namespace.rename_log``."""
    old, new = context.checked(old, Right.ADMIN), context.checked(new, Right.ADMIN)
    with translated(old, "renaming it"):
        async with audited_async("rename log", f"{context.uri} {old} to {new}"):
            if isinstance(context.store, FederatedStore) or f"/{SUB_NAMESPACES}/" in context.path:
                raise ConfigError(
                    f"log {old!r} was not renamed: the namespace {context.uri} is federated, and"
                    " there logs are not renamed. Nothing was changed"
                )
            if old == new:
                raise LogRenameError(old, new, "that is its name already")
            token = secrets.token_hex(16).encode()
            await context.change(old, "renaming it", lambda: _check_rename(context, old, new))

            async def attempt() -> None:
                await context.store.sync(context.path)
                if await was_renamed(Rename(context.nodes(old), context.nodes(new), token)):
                    return  # by the attempt before, whose reply was lost
                async with context.locked(old, lock_timeout_s) as lock:
                    await context.lifecycle(old, lock.session).recover_left_over()
                    names = context.nodes(old, lock.session), context.nodes(new, lock.session)
                    await rename_nodes(Rename(*names, token))

            await context.change(old, "renaming it", attempt)


async def _check_rename(context: NamespaceContext, old: str, new: str) -> None:
    """Raise if rights, denials or a move forbid it."""
    await context.permitted(new, Right.ADMIN)
    await context.permitted(old, Right.ADMIN, Denial.DELETE, Denial.ACQUIRE)
    # Bookies go by the name at which a segment was written, clients by the name that the log has now. And
    # a denial must not end with a rename. So the same must hold for both names.
    policy = await context.permissions.policy()
    for rule in () if policy is None else policy.rules:
        if rule.covers(old) != rule.covers(new):
            raise LogRenameError(
                old,
                new,
                f"a rule of the policy, for {rule.principal!r} on {rule.logs!r}, holds for one of both"
                " names only. Change the policy (dlog policy), so that each rule holds for both names or"
                " none, and leave it so while segments of the old name are read",
            )
    if (await context.access.entry_of(old)).denied != (await context.access.entry_of(new)).denied:
        raise LogRenameError(
            old,
            new,
            "the access control entries deny other operations for the new name. Set the same entry for"
            " both names first (dlog access set)",
        )
    await context.location(old).check_stays("not renamed")
