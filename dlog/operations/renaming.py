"""Giving a log of a namespace another name.

Inside: the call of ``Namespace``, the checks of both names, the order of the steps. Not inside: the
transaction (``metadata.rename_nodes``), the name that records stay bound to (``metadata.origin``).
Always: no writer has the log, and none that was stopped can add a record any more, when its name changes; the
same rights and denials hold for both names.

Source: our own; DistributedLog, BKDistributedLogNamespace.java (renameLog). docs/metadata.md 16.17.
"""

from __future__ import annotations

import secrets

from dlog.errors import ConfigError, LogRenameError, PromotionError, translated
from dlog.operations.namespace_base import NamespaceBase
from dlog.write.segment_lifecycle import SegmentLifecycle
from ledger.metadata_store.store import MetadataStore
from ledger.runtime.audit import audited_async
from namespace.access_control.entries import Denial
from namespace.federated_store import SUB_NAMESPACES, FederatedStore
from namespace.policy import Right
from namespace.rename_nodes import Rename, rename_nodes, was_renamed


class LogRenaming(NamespaceBase):
    """The call of ``Namespace`` that renames a log."""

    async def rename_log(self, old: str, new: str, *, lock_timeout_s: float = 0) -> None:
        """Give a log another name in this namespace. Its records, positions and cursors stay as they are.

        So do its truncation, retention, properties, seal, encryption and hash chain. It takes the log's lock
        and completes segments that a dead writer left in progress; then one transaction moves the log.
        Readers that are open get ``LogRenamedError`` when they look for the next segment: open them by the
        new name. If the call is cancelled, or fails with ``LogUnavailableError``, the log has either name.

        Args:
            lock_timeout_s: How long to wait for the lock of a writer.

        Raises:
            LogNotFoundError, LogExistsError
            LogLockedError: The log has a writer.
            LogRenameError: The log cannot be renamed as it is now, or not to this name; the message says why.
            PromotionError, LogPromotedError: The log is being promoted, or was promoted.
            ConfigError: The namespace is federated, or a part of a federated one.
            AccessDeniedError: The right to administer it is missing for one of the names, or deleting it or
                taking its lock is denied.
            LogMetadataError, CorruptLogError, LogUnavailableError
        """
        old, new = self._checked(old, Right.ADMIN), self._checked(new, Right.ADMIN)
        with translated(old, "renaming it"):
            async with audited_async("rename log", f"{self.uri} {old} to {new}"):
                if isinstance(self._store, FederatedStore) or f"/{SUB_NAMESPACES}/" in self._path:
                    raise ConfigError(
                        f"log {old!r} was not renamed: the namespace {self.uri} is federated, and"
                        " there logs are not renamed. Nothing was changed"
                    )
                if old == new:
                    raise LogRenameError(old, new, "that is its name already")
                rename = Rename(self._path, old, new, secrets.token_hex(16).encode())
                await self._change(old, "renaming it", lambda: self._check_rename(rename))

                async def attempt() -> None:
                    await self._store.sync(self._path)
                    if await was_renamed(self._store, rename):
                        return  # by the attempt before, whose reply was lost
                    async with self._locked(old, lock_timeout_s) as lock:
                        await self._recover(old, lock.session)
                        await rename_nodes(lock.session, rename)

                await self._change(old, "renaming it", attempt)

    async def _check_rename(self, rename: Rename) -> None:
        """Raise if rights, denials or a promotion forbid it."""
        old, new = rename.old, rename.new
        await self._permitted(new, Right.ADMIN)
        await self._permitted(old, Right.ADMIN, Denial.DELETE, Denial.ACQUIRE)
        # Bookies go by the name at which a segment was written, clients by the name that the log has now. And
        # a denial must not end with a rename. So the same must hold for both names.
        policy = await self._permissions.policy()
        for rule in () if policy is None else policy.rules:
            if rule.covers(old) != rule.covers(new):
                raise LogRenameError(
                    old,
                    new,
                    f"a rule of the policy, for {rule.principal!r} on {rule.logs!r}, holds for one of both"
                    " names only. Change the policy (dlog policy), so that each rule holds for both names or"
                    " none, and leave it so while segments of the old name are read",
                )
        if (await self._access.entry_of(old)).denied != (await self._access.entry_of(new)).denied:
            raise LogRenameError(
                old,
                new,
                "the access control entries deny other operations for the new name. Set the same entry for"
                " both names first (dlog access set)",
            )
        if (promotion := await self._promotion(old)) is not None:
            raise PromotionError(
                old,
                f"not renamed, because it is being promoted to {promotion.target}; give that up first with"
                f" `dlog promote {self.uri} --log {old} --undo`, or wait for its end",
            )

    async def _recover(self, name: str, store: MetadataStore) -> None:
        lifecycle = SegmentLifecycle(
            store,
            self._client,
            self._path,
            name,
            self.config,
            first_segment_seqno=self._first_segment_seqno,
            wall_ms=self._wall_ms,
        )
        await lifecycle.recover_left_over()
