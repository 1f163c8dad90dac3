"""Moving logs of a directory to another namespace, undoing that, and looking at it.

Inside: the calls of ``Namespace`` on promotions, ``promote`` for many logs; rights and policies.
Not inside: the steps (``promotion``), the redirection of later calls (``namespace_base``).
Always: only logs of a directory are promoted, since only there every reader and writer looks for it.

Source: our own; docs/promotion.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dlog.errors import ConfigError, PromotionError, translated
from dlog.operations.namespace_base import NamespaceBase
from dlog.promotion.promoter import Promoter
from dlog.promotion.sides import PromotionProgress, PromotionStatus
from ledger.runtime.audit import audited_async
from namespace import logs
from namespace.policy import Right

OnProgress = Callable[[PromotionProgress], None]


def no_report(_: PromotionProgress) -> None:
    """Report nothing."""


class LogPromotion(NamespaceBase):
    """The calls of ``Namespace`` that move a log to another namespace."""

    async def promote_log(
        self,
        name: str,
        to: str | None = None,
        *,
        keep_target_policy: bool = False,
        on_progress: OnProgress = no_report,
    ) -> PromotionStatus:
        """Move a log from this directory to another namespace, while it is written and read.

        Records keep their positions and transaction ids. Open writers and readers continue at the target, if
        their processes can reach it. Cursors, retention and properties move too. The segments here stay until
        ``purge_promoted_log``. If the call is cancelled or fails, the promotion stays where it was: call it
        again, or call ``undo_promotion``.

        Args:
            to: The URI of the target, such as ``distributedlog://zk1:2181/shop``; None to continue with an
                interrupted promotion.
            keep_target_policy: Also if the policy of the target differs from the one here.
            on_progress: Called at each step, and with each copied entry.

        Raises:
            LogNotFoundError
            LogExistsError: The target has a log of this name. Nothing was changed.
            PromotionError: Another process promotes it now, or it is promoted to another target, or undone.
            ConfigError: The namespace is no directory, policies differ, or Apache's readers at the target
                could not read an entry.
            CorruptLogError: A copy differs from its original. The log stays here.
            LogUnavailableError: One of the two namespaces cannot be reached.
        """
        await self._may_promote(name)
        record = await self._promotion(name)
        if to is None and record is None:
            raise PromotionError(name, "it has no interrupted promotion; name the target with `to`, or --to")
        if to is not None and record is not None and record.target != to:
            raise PromotionError(
                name, f"it is promoted to {record.target} already; --resume goes on, --undo gives that up"
            )
        uri = to if record is None else record.target
        assert uri is not None  # the record has a target
        if uri == self.uri:
            raise ConfigError(f"the target {uri} is the namespace itself")
        async with audited_async("promote log", f"{self.uri} {name} to {uri}"):
            target = await self._target_of(name, uri, Right.ADMIN)
            if record is None:
                await self._bring_policy(target, keep_target_policy)
            promoter = self._promoter(name, target, on_progress)
            await promoter.run()
        status = await promoter.status()
        if status is None:  # another process can undo it, or delete the log, between two reads
            raise PromotionError(
                name, "its record is gone; another process has just ended it or deleted the log"
            )
        return status

    async def undo_promotion(self, name: str, to: str | None = None) -> None:
        """Give up a promotion before its hand-over is complete, and delete the copies at the target.

        If a writer was stopped by the hand-over, open it again. If the call is cancelled or fails, call it
        again.

        Args:
            to: The target, to delete there what an interrupted process left; None for the one recorded here.

        Raises:
            PromotionError: The hand-over is complete. Or there is no promotion to undo.
            LogUnavailableError: One of the two namespaces cannot be reached.
        """
        await self._may_promote(name)
        record = await self._promotion(name)
        uri = to if record is None else record.target
        if uri is None:
            raise PromotionError(name, "it is not being promoted; there is nothing to undo")
        async with audited_async("undo promotion", f"{self.uri} {name} to {uri}"):
            await self._promoter(name, await self._target_of(name, uri, Right.ADMIN), no_report).undo()

    async def promotion(self, name: str) -> PromotionStatus | None:
        """How far the promotion of a log is, by what both namespaces store; None if there is none."""
        name = self._checked(name)
        with translated(name, "reading the policy"):
            await self._permissions.check(name, Right.READ)
        record = await self._promotion(name)
        if record is None:
            return None
        target = await self._target_of(name, record.target, Right.READ)
        return await self._promoter(name, target, no_report).status()

    async def purge_promoted_log(self, name: str) -> int:
        """Delete the segments of a promoted log here, after comparing their ends with those of the copies.

        Later calls on the log here still go to the target. If the call is cancelled or fails, some segments
        may be deleted; call it again.

        Returns:
            The number of deleted segments.

        Raises:
            PromotionError: The promotion is not complete, or the target has lost the log.
            CorruptLogError: The target lacks a part of the log. Nothing was deleted.
        """
        await self._may_promote(name)
        record = await self._promotion(name)
        if record is None:
            raise PromotionError(name, "it was not promoted; nothing was deleted")
        async with audited_async("purge promoted log", f"{self.uri} {name}"):
            target = await self._target_of(name, record.target, Right.READ)
            return await self._promoter(name, target, no_report).purge()

    async def _may_promote(self, name: str) -> None:
        name = self._checked(name, Right.ADMIN)
        if self._open_target is None:
            raise ConfigError(f"log {name!r}: only logs of a directory can be promoted, not of {self.uri}")
        with translated(name, "reading the policy"):
            await self._permissions.check(name, Right.ADMIN)

    async def _target_of(self, name: str, uri: str, right: Right) -> Any:
        """The open target, on which the program has a right.

        A promotion brings cursors, retention and properties, and its undoing deletes them: both administer
        the log there.
        """
        assert self._open_target is not None  # checked before a promotion
        target = await self._open_target(uri)
        with translated(name, "reading the policy of the target"):
            await target._permissions.check(name, right)
        return target

    async def _bring_policy(self, target: Any, keep_target_policy: bool) -> None:
        """Take the policy along to a target without logs; refuse another one there."""
        ours, theirs = await self._permissions.policy(), await target._permissions.policy()
        if ours is None or ours == theirs or keep_target_policy:
            return
        if theirs is None and not await logs.list_logs(target._store, target._path):
            await target._permissions.replace(ours)
            return
        raise ConfigError(
            f"{self.uri} has a policy, and {target.uri} has "
            + ("logs but no policy" if theirs is None else "another one")
            + ". Make them equal with `dlog policy`, or accept that of the target with --keep-target-policy"
            " (keep_target_policy=True)"
        )

    def _promoter(self, name: str, target: NamespaceBase, on_progress: OnProgress) -> Promoter:
        return Promoter(
            self._side(),
            target._side(),
            name,
            client_id=self._client_id,
            # A writer that finishes an interrupted hand-over takes a moment.
            lock_timeout_s=self.config.writer.lock_timeout_s,
            on_progress=on_progress,
        )
