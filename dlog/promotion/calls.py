"""Moving logs of a directory to another namespace, undoing that, and looking at it.

Inside: the calls of ``Namespace.promotion``; rights and policies. Not inside: the steps (``promoter``), where
a promoted log is found afterwards (``location``).
Always: only logs of a directory are promoted, since only there every reader and writer looks for it.

Source: our own; docs/promotion.md.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from dlog.context import NamespaceContext
from dlog.errors import ConfigError, PromotionError, translated
from dlog.promotion.location import PromotableLocation
from dlog.promotion.progress import OnProgress, PromotionStatus, no_report
from dlog.promotion.promoter import Promoter
from ledger.pickling import ProcessBound
from ledger.runtime.audit import audited_async
from namespace import logs
from namespace.policy import Right


@attrs.frozen
class PromotionCalls(ProcessBound):
    """``Namespace.promotion``: moving logs of a directory to a cluster."""

    context: NamespaceContext = attrs.field(repr=False)

    async def promote(
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
        ``purge``. If the call is cancelled or fails, the promotion stays where it was: call it
        again, or call ``undo``.

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
        location = await self._promotable(name)
        record = await location.record()
        if to is None and record is None:
            raise PromotionError(name, "it has no interrupted promotion; name the target with `to`, or --to")
        if to is not None and record is not None and record.target != to:
            raise PromotionError(
                name, f"it is promoted to {record.target} already; --resume goes on, --undo gives that up"
            )
        uri = to if record is None else record.target
        assert uri is not None  # the record has a target
        if uri == self.context.uri:
            raise ConfigError(f"the target {uri} is the namespace itself")
        async with audited_async("promote log", f"{self.context.uri} {name} to {uri}"):
            target = await self._target_of(location, uri, Right.ADMIN)
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

    async def promote_all(
        self,
        to: str | None = None,
        logs: Iterable[str] | None = None,
        *,
        keep_target_policy: bool = False,
        on_progress: OnProgress = no_report,
    ) -> list[PromotionStatus]:
        """Move logs of this directory to another namespace, one after the other; see ``promote``.

        If the call is cancelled or fails, logs before the one in work are promoted. Call it again to
        continue.

        Args:
            to: The URI of the target; None to continue with interrupted promotions only.
            logs: None for all logs; with ``to=None``, for all whose promotion was interrupted.
        """
        done = []
        for name in await self.context.readable_logs() if logs is None else list(logs):
            if logs is None and to is None and await self.status(name) is None:
                continue
            done.append(
                await self.promote(name, to, keep_target_policy=keep_target_policy, on_progress=on_progress)
            )
        return done

    async def undo(self, name: str, to: str | None = None) -> None:
        """Give up a promotion before its hand-over is complete, and delete the copies at the target.

        If a writer was stopped by the hand-over, open it again. If the call is cancelled or fails, call it
        again.

        Args:
            to: The target, to delete there what an interrupted process left; None for the one recorded here.

        Raises:
            PromotionError: The hand-over is complete. Or there is no promotion to undo.
            LogUnavailableError: One of the two namespaces cannot be reached.
        """
        location = await self._promotable(name)
        record = await location.record()
        uri = to if record is None else record.target
        if uri is None:
            raise PromotionError(name, "it is not being promoted; there is nothing to undo")
        async with audited_async("undo promotion", f"{self.context.uri} {name} to {uri}"):
            await self._promoter(name, await self._target_of(location, uri, Right.ADMIN), no_report).undo()

    async def status(self, name: str) -> PromotionStatus | None:
        """How far the promotion of a log is, by what both namespaces store; None if there is none."""
        location = self.context.location(await self.context.may_read(name))
        if not isinstance(location, PromotableLocation) or (record := await location.record()) is None:
            return None
        target = await self._target_of(location, record.target, Right.READ)
        return await self._promoter(name, target, no_report).status()

    async def purge(self, name: str) -> int:
        """Delete the segments of a promoted log here, after comparing their ends with those of the copies.

        Later calls on the log here still go to the target. If the call is cancelled or fails, some segments
        may be deleted; call it again.

        Returns:
            The number of deleted segments.

        Raises:
            PromotionError: The promotion is not complete, or the target has lost the log.
            CorruptLogError: The target lacks a part of the log. Nothing was deleted.
        """
        location = await self._promotable(name)
        record = await location.record()
        if record is None:
            raise PromotionError(name, "it was not promoted; nothing was deleted")
        async with audited_async("purge promoted log", f"{self.context.uri} {name}"):
            target = await self._target_of(location, record.target, Right.READ)
            return await self._promoter(name, target, no_report).purge()

    async def _promotable(self, name: str) -> PromotableLocation:
        """The place of a log that this program may administer here."""
        context = self.context
        location = context.location(context.checked(name, Right.ADMIN))
        if not isinstance(location, PromotableLocation):
            raise ConfigError(f"log {name!r}: only logs of a directory can be promoted, not of {context.uri}")
        with translated(name, "reading the policy"):
            await context.permissions.check(name, Right.ADMIN)
        return location

    async def _target_of(self, location: PromotableLocation, uri: str, right: Right) -> NamespaceContext:
        """The open target, on which the program has a right.

        A promotion brings cursors, retention and properties, and its undoing deletes them: both administer
        the log there.
        """
        target = await location.open_context(uri)
        with translated(location.name, "reading the policy of the target"):
            await target.permissions.check(location.name, right)
        return target

    async def _bring_policy(self, target: NamespaceContext, keep_target_policy: bool) -> None:
        """Take the policy along to a target without logs; refuse another one there."""
        ours, theirs = await self.context.permissions.policy(), await target.permissions.policy()
        if ours is None or ours == theirs or keep_target_policy:
            return
        if theirs is None and not await logs.list_logs(target.store, target.path):
            await target.permissions.replace(ours)
            return
        raise ConfigError(
            f"{self.context.uri} has a policy, and {target.uri} has "
            + ("logs but no policy" if theirs is None else "another one")
            + ". Make them equal with `dlog policy`, or accept that of the target with --keep-target-policy"
            " (keep_target_policy=True)"
        )

    def _promoter(self, name: str, target: NamespaceContext, on_progress: OnProgress) -> Promoter:
        return Promoter(
            self.context,
            target,
            name,
            # A writer that finishes an interrupted hand-over takes a moment.
            lock_timeout_s=self.context.config.writer.lock_timeout_s,
            on_progress=on_progress,
        )
