"""The access control entries of a namespace: a copy that watches keep fresh, and the refusal.

Inside: the nodes, reading and changing them, the check. Not inside: their bytes (``entries``).
Always: a check uses no entry that this session knows to be replaced. A log's entry that does not parse counts
as missing, and a default that does not parse leaves the one before it in force: Apache's manager does so.

``<root>`` holds the default; ``<root>/<log>`` the entry of a log, which replaces the default. A log whose
name has several parts can have no entry of its own.

Source: DistributedLog, ZKAccessControlManager.java, ZKAccessControl.java; docs/metadata.md 16.15.
"""

from __future__ import annotations

import attrs
import trio

from ledger.metadata_store.errors import BadVersionError, NodeExistsError, NoNodeError
from ledger.metadata_store.store import MetadataStore
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from namespace.access_control.entries import AccessControlEntry, Denial, decode_entry, encode_entry
from namespace.errors import AccessDeniedError, ConfigError, InvalidLogNameError, LogMetadataError
from namespace.node_reads import read_nodes

KEPT_MAX = 10_000  # entries in memory; then all are read again

logger = get_logger(__name__)


@attrs.frozen
class AccessControlEntries:
    """All access control entries of a namespace."""

    default: AccessControlEntry | None  # None: there is none, or it does not parse
    logs: dict[str, AccessControlEntry]
    corrupt: tuple[str, ...]  # paths of entries that do not parse; they count as missing


@attrs.frozen
class _Kept:
    entry: AccessControlEntry | None
    changed: trio.Event


class AccessControl:
    """The calls that the entries of one namespace deny.

    Args:
        root: The node with the default entry; None if the namespace's binding names none. Then nothing is
            denied.
    """

    def __init__(self, store: MetadataStore, root: str | None) -> None:
        self.root = root
        self._store = store
        self._kept: dict[str, _Kept] = {}
        self._default = AccessControlEntry()  # the last one that parsed

    async def check(self, log: str, operations: tuple[Denial, ...]) -> None:
        """Return if none of the operations is denied on the log.

        Raises:
            AccessDeniedError: One is.
            ledger.metadata_store.errors.MetadataError: The entries cannot be read.
        """
        if self.root is None or not operations:
            return
        denied = (await self.entry_of(log)).denied
        for operation in operations:
            if operation in denied:
                name = operation.name.lower()
                raise AccessDeniedError(
                    f"log {log!r}: the access control entries of the namespace deny to {name}; `dlog access"
                    f" show` prints them, and an administrator can change them with `dlog access set`"
                )

    async def entry_of(self, log: str) -> AccessControlEntry:
        """The entry that holds for a log: its own, else the default."""
        if self.root is None:
            return AccessControlEntry()
        own = None if "/" in log else await self._entry(f"{self.root}/{log}")
        if own is not None:
            return own
        default = await self._entry(self.root)
        if default is not None:
            self._default = default
        elif await self._store.exists(self.root) is None:
            self._default = AccessControlEntry()
        return self._default

    async def entries(self) -> AccessControlEntries:
        """All stored entries, read now.

        Raises:
            ConfigError: The namespace has no place for entries.
        """
        root = self._place()
        await self._store.sync(root)
        try:
            names = (await self._store.children(root)).names
        except NoNodeError:
            return AccessControlEntries(None, {}, ())
        nodes = await read_nodes(self._store, [root, *(f"{root}/{name}" for name in names)])
        parsed: dict[str, AccessControlEntry] = {}
        corrupt = []
        for path in sorted(nodes):
            node = nodes[path]
            try:
                if node is not None:
                    parsed[path] = decode_entry(node.value)
            except LogMetadataError:
                corrupt.append(path)
        default = parsed.pop(root, None)
        logs = {path.removeprefix(f"{root}/"): entry for path, entry in parsed.items()}
        return AccessControlEntries(default, logs, tuple(corrupt))

    async def replace(self, log: str | None, entry: AccessControlEntry | None) -> None:
        """Store an entry of a log, or the default if ``log`` is None; an ``entry`` of None deletes it.

        If cancelled, it may or may not be stored.

        Raises:
            ConfigError: The namespace has no place for entries.
            InvalidLogNameError: The name has several parts.
            AccessDeniedError: Another administrator has just changed it.
        """
        root = self._place()
        if log is not None and "/" in log:
            raise InvalidLogNameError(
                f"log {log!r}: a name with several parts can have no access control entry; the default holds"
            )
        path = root if log is None else f"{root}/{log}"
        try:
            stat = await self._store.exists(path)
            if entry is None and stat is not None:
                if log is None:
                    await self._store.put(path, b"", expected=stat.version)
                else:
                    await self._store.delete(path, expected=stat.version)
            elif entry is not None and stat is None:
                await self._store.create(path, encode_entry(entry), parents=True)
            elif entry is not None and stat is not None:
                await self._store.put(path, encode_entry(entry), expected=stat.version)
        except (BadVersionError, NodeExistsError, NoNodeError) as exc:
            raise AccessDeniedError(
                "another administrator has just changed this access control entry; look at it, then try again"
            ) from exc
        finally:
            self._kept.pop(path, None)

    def _place(self) -> str:
        if self.root is None:
            raise ConfigError(
                "the binding of the namespace names no place for access control entries; `dlog access enable`"
                " adds one. In a directory use `dlog policy`"
            )
        return self.root

    async def _entry(self, path: str) -> AccessControlEntry | None:
        """The entry in a node; None if there is none, or it does not parse."""
        kept = self._kept.get(path)
        while kept is None or kept.changed.is_set():
            changed, entry = trio.Event(), None
            if await self._store.exists(path, watch=changed) is not None:
                try:
                    entry = decode_entry((await self._store.get(path)).value)
                except NoNodeError:
                    continue  # deleted in between
                except LogMetadataError as exc:
                    logger.warning(
                        "%s: %s; it is ignored",
                        path,
                        exc,
                        extra=event("access_control.ignored", node=path, error=exc),
                    )
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            kept = self._kept[path] = _Kept(entry, changed)
        return kept.entry
