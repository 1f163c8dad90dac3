"""The calls of a namespace on the properties of its logs.

Inside: the checks before each call, and its record in the audit log. Not inside: the node
(``namespace.properties``).
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from dlog.context import NamespaceContext
from dlog.errors import translated
from dlog.operations.calls import waits_for_store, where_it_is
from ledger.pickling import ProcessBound
from ledger.runtime.audit import audited_async
from namespace.policy import Right
from namespace.properties import LogProperties, change_properties, read_properties


@attrs.frozen
class PropertyCalls(ProcessBound):
    """``Namespace.properties``: a small map of texts that the users of a log keep beside its records."""

    context: NamespaceContext = attrs.field(repr=False)

    @where_it_is
    @waits_for_store
    async def get(self, name: str) -> LogProperties:
        """The properties of a log: a small map of texts that its users keep beside the records.

        Raises:
            LogNotFoundError
            LogMetadataError: They do not parse.
        """
        name = await self.context.permitted(name, Right.READ)
        with translated(name, "reading its properties"):
            return await read_properties(self.context.nodes(name))

    @where_it_is
    async def change(
        self, name: str, changes: Mapping[str, str | None], *, expected: LogProperties | None = None
    ) -> LogProperties:
        """Set some properties of a log, and remove those whose new value is None; the others stay.

        If cancelled, the change may or may not be stored.

        Args:
            changes: New values by key. All properties of a log take at most 64 KiB.
            expected: Change nothing unless the properties are still these.

        Returns:
            The properties afterwards.

        Raises:
            PropertiesConflictError: They are no longer those expected. Nothing was changed.
            ConfigError: A key is not allowed, or the values are too long. Nothing was changed.
            LogNotFoundError, LogMetadataError
        """
        name = self.context.checked(name, Right.ADMIN)
        with translated(name, "changing its properties"):
            async with audited_async(
                "change properties", f"{self.context.uri} {name} {', '.join(sorted(changes))}"
            ):
                await self.context.permitted(name, Right.ADMIN)
                return await self.context.change(
                    name,
                    "changing its properties",
                    lambda: change_properties(self.context.nodes(name), changes, expected),
                )
