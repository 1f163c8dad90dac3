"""The calls of a namespace on how long the records of its logs are kept.

Inside: the checks before each call, and its record in the audit log. Not inside: the rule and its node
(``namespace.retention_node``), what obeys it (``dlog.write.space``).
"""

from __future__ import annotations

import attrs

from dlog.context import NamespaceContext
from dlog.description import SegmentDescription
from dlog.errors import translated
from dlog.operations.administration import purge
from dlog.operations.calls import waits_for_store, where_it_is
from dlog.write import space
from ledger.pickling import ProcessBound
from ledger.runtime.audit import audited_async
from namespace.access_control.entries import Denial
from namespace.policy import Right
from namespace.retention_node import read_retention, write_retention
from namespace.segments.retention import Retention


@attrs.frozen
class RetentionCalls(ProcessBound):
    """``Namespace.retention``: how long the records of logs are kept."""

    context: NamespaceContext = attrs.field(repr=False)

    @where_it_is
    @waits_for_store
    async def get(self, name: str) -> Retention | None:
        """How long the records of a log are kept; None: until they are truncated.

        Raises:
            LogMetadataError: The stored rule does not parse.
        """
        name = await self.context.permitted(name, Right.READ)
        with translated(name, "reading its retention"):
            return await read_retention(self.context.nodes(name))

    @where_it_is
    async def set(self, name: str, retention: Retention | None) -> None:
        """Set how long the records of a log are kept; None: until they are truncated.

        The log's writers obey: they do so when they open, when they roll, and every minute. If
        cancelled, the rule may or may not be stored.

        Raises:
            LogNotFoundError
        """
        name = self.context.checked(name, Right.ADMIN)
        if not isinstance(retention, Retention | None):
            raise TypeError(f"a retention is a dlog.Retention or None, not {retention!r}")
        with translated(name, "changing its retention"):
            async with audited_async("change retention", f"{self.context.uri} {name} {retention}"):
                await self.context.permitted(name, Right.ADMIN, Denial.TRUNCATE)
                await self.context.change(
                    name,
                    "changing its retention",
                    lambda: write_retention(self.context.nodes(name), retention),
                )

    @where_it_is
    async def apply(self, name: str) -> list[SegmentDescription]:
        """Apply the log's retention now, and purge it, also while another process writes it.

        If the call is cancelled or fails, part of it may be done, from the oldest segment on.

        Returns:
            The segments that were deleted, oldest first.

        Raises:
            LogNotFoundError, LogMetadataError
        """
        name = self.context.checked(name, Right.ADMIN)
        with translated(name, "applying its retention"):
            async with audited_async("retain log", f"{self.context.uri} {name}"):
                await self.context.permitted(name, Right.ADMIN, Denial.TRUNCATE)
                now_ms = self.context.wall_ms()
                await self.context.change(
                    name,
                    "applying its retention",
                    lambda: space.retain(self.context.nodes(name), self.context.client, now_ms=now_ms),
                )
                purged = await purge(self.context, name)
        return [SegmentDescription.of(each) for each in purged]
