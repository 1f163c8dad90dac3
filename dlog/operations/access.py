"""The calls of a namespace that show and change access control entries.

Inside: the checks before each call, and its record in the audit log. Not inside: the entries
(``access_control``), the calls that obey them.
Always: only a principal that may administer all logs changes an entry.

Source: DistributedLog, DistributedLogAdmin.java (set_default_acl, set_stream_acl, delete_stream_acl).
"""

from __future__ import annotations

import attrs

from dlog.context import NamespaceContext
from dlog.errors import AccessDeniedError, ConfigError, NamespaceNotBoundError, translated
from ledger.metadata_store.errors import BadVersionError
from ledger.pickling import ProcessBound
from ledger.runtime.audit import audited_async
from namespace.access_control.entries import AccessControlEntry, Denial
from namespace.access_control.nodes import AccessControlEntries
from namespace.bindings import place_access_control
from namespace.policy import Right


@attrs.frozen
class AccessCalls(ProcessBound):
    """``Namespace.access``: the access control entries, which deny operations on logs to everyone."""

    context: NamespaceContext = attrs.field(repr=False)

    async def entries(self) -> AccessControlEntries:
        """The access control entries that Apache's tools and this namespace obey. May be cancelled.

        If the namespace has a policy, those of logs that this program may not read are left out, unless it
        may administer all logs.

        Raises:
            ConfigError: The binding names no place for them; see ``enable``.
        """
        self.context.check_open()
        with translated(None, "reading the access control entries"):
            found = await self.context.access.entries()
            if await self.context.permissions.is_administrator():
                return found
            readable = await self.context.permissions.readable(sorted(found.logs))
            # The path of an entry that does not parse ends with the name of a log.
            return attrs.evolve(found, logs={name: found.logs[name] for name in readable}, corrupt=())

    async def set(self, name: str | None, denied: frozenset[Denial] | None) -> None:
        """Deny operations on a log to everyone, or on every log without an entry of its own.

        It holds for later calls: open writers continue, but truncate only what is not denied. If cancelled,
        the entry may or may not be stored.

        Args:
            name: The log; None for the default. A name with several parts can have no entry.
            denied: The operations to deny; all others are allowed. None deletes the entry.

        Raises:
            ConfigError: The binding names no place for entries; see ``enable``.
            AccessDeniedError: The policy lets this principal not administer all logs; or another
                administrator has just changed the entry.
        """
        self.context.check_open(Right.ADMIN)
        name = None if name is None else self.context.checked(name, Right.ADMIN)
        entry = None if denied is None else AccessControlEntry(denied)
        names = sorted(each.name.lower() for each in denied or ())
        text = "no entry" if denied is None else f"denies {','.join(names) or 'nothing'}"
        with translated(name, "changing its access control entry"):
            async with audited_async(
                "change access control", f"{self.context.uri} {name or '(default)'} {text}"
            ):
                await self.context.permissions.check_administrator()
                await self.context.access.replace(name, entry)

    async def enable(self) -> None:
        """Give the namespace a place for access control entries (``.acls``) if its binding names none.

        Programs that have the namespace open obey entries only after they have opened it again. If
        cancelled, the binding may or may not be changed.

        Raises:
            ConfigError: The namespace is a directory; use a policy.
            AccessDeniedError: The policy lets this principal not administer all logs; or another
                administrator has just changed the binding.
        """
        self.context.check_open(Right.ADMIN)
        with translated(None, "enabling access control"):
            async with audited_async("enable access control", self.context.uri):
                await self.context.permissions.check_administrator()
                try:
                    root = await place_access_control(self.context.store, self.context.path)
                except NamespaceNotBoundError as exc:
                    raise ConfigError(
                        f"namespace {self.context.uri}: a directory has no access control entries; use"
                        " `dlog policy`"
                    ) from exc
                except BadVersionError as exc:
                    raise AccessDeniedError(
                        "another administrator has just changed the binding; try again"
                    ) from exc
        self.context.access.root = root
