"""The calls of a namespace that show and change access control entries.

Inside: the checks before each call, and its record in the audit log. Not inside: the entries
(``access_control``), the calls that obey them.
Always: only a principal that may administer all logs changes an entry.

Source: DistributedLog, DistributedLogAdmin.java (set_default_acl, set_stream_acl, delete_stream_acl).
"""

from __future__ import annotations

import attrs

from dlog.errors import AccessDeniedError, ConfigError, NamespaceNotBoundError, translated
from dlog.operations.namespace_base import NamespaceBase
from ledger.metadata_store.errors import BadVersionError
from ledger.runtime.audit import audited_async
from namespace.access_control.entries import AccessControlEntry, Denial
from namespace.access_control.nodes import AccessControl, AccessControlEntries
from namespace.bindings import place_access_control
from namespace.policy import Right


class AccessAdministration(NamespaceBase):
    """The calls of ``Namespace`` on access control entries."""

    async def access_control(self) -> AccessControlEntries:
        """The access control entries that Apache's tools and this namespace obey. May be cancelled.

        If the namespace has a policy, those of logs that this program may not read are left out, unless it
        may administer all logs.

        Raises:
            ConfigError: The binding names no place for them; see ``enable_access_control``.
        """
        self._check_open()
        with translated(None, "reading the access control entries"):
            found = await self._access.entries()
            if await self._permissions.is_administrator():
                return found
            readable = await self._permissions.readable(sorted(found.logs))
            # The path of an entry that does not parse ends with the name of a log.
            return attrs.evolve(found, logs={name: found.logs[name] for name in readable}, corrupt=())

    async def set_access_control(self, name: str | None, denied: frozenset[Denial] | None) -> None:
        """Deny operations on a log to everyone, or on every log without an entry of its own.

        It holds for later calls: open writers continue, but truncate only what is not denied. If cancelled,
        the entry may or may not be stored.

        Args:
            name: The log; None for the default. A name with several parts can have no entry.
            denied: The operations to deny; all others are allowed. None deletes the entry.

        Raises:
            ConfigError: The binding names no place for entries; see ``enable_access_control``.
            AccessDeniedError: The policy lets this principal not administer all logs; or another
                administrator has just changed the entry.
        """
        self._check_open(Right.ADMIN)
        name = None if name is None else self._checked(name, Right.ADMIN)
        entry = None if denied is None else AccessControlEntry(denied)
        names = sorted(each.name.lower() for each in denied or ())
        text = "no entry" if denied is None else f"denies {','.join(names) or 'nothing'}"
        with translated(name, "changing its access control entry"):
            async with audited_async("change access control", f"{self.uri} {name or '(default)'} {text}"):
                await self._permissions.check_administrator()
                await self._access.replace(name, entry)

    async def enable_access_control(self) -> None:
        """Give the namespace a place for access control entries (``.acls``) if its binding names none.

        Programs that have the namespace open obey entries only after they have opened it again. If
        cancelled, the binding may or may not be changed.

        Raises:
            ConfigError: The namespace is a directory; use a policy.
            AccessDeniedError: The policy lets this principal not administer all logs; or another
                administrator has just changed the binding.
        """
        self._check_open(Right.ADMIN)
        with translated(None, "enabling access control"):
            async with audited_async("enable access control", self.uri):
                await self._permissions.check_administrator()
                try:
                    root = await place_access_control(self._store, self._path)
                except NamespaceNotBoundError as exc:
                    raise ConfigError(
                        f"namespace {self.uri}: a directory has no access control entries; use `dlog policy`"
                    ) from exc
                except BadVersionError as exc:
                    raise AccessDeniedError(
                        "another administrator has just changed the binding; try again"
                    ) from exc
        self._access = AccessControl(self._store, root)
