"""What a backup is made of: the nodes of a namespace, and its ledgers as they are now.

Of a directory all nodes are those of one moment. Of a cluster those of each log are: a log whose segments
change while it is read is read again. The ends of open ledgers are read afterwards, all at once. So a log has
every record that was visible before, a cursor never points behind the last record, and a batch that was put
into several logs of a directory is in all of them or in none.

Inside: reading nodes, metadata, ends and stored entries. Not inside: which entries are needed (``rounds``).
Always: nothing is written, and no ledger is fenced; an entry above the last confirmed one is not read.

Source: our own; docs/backup.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import attrs
import trio

from dlog.backup.content import belongs_to, identity_of, is_upload
from dlog.backup.errors import BackupError
from dlog.context import NamespaceContext
from dlog.errors import LogUnavailableError
from dlog.read.gaps import is_gone
from ledger.catalog.catalog import Versioned
from ledger.catalog.paths import INSTANCE_ID, LAYOUT
from ledger.context import ClientContext
from ledger.errors import LedgerReadError, NoSuchLedgerError
from ledger.fragments.ledger_check import last_entry_of
from ledger.metadata_store.errors import NoNodeError
from ledger.metadata_store.store import MetadataStore, Node
from ledger.read.replica_copy import ReplicaCopy
from ledger.runtime.tasks.task_errors import for_each
from namespace.federated_store import FederatedStore
from namespace.log_nodes import UNPARTITIONED

ATTEMPTS_MAX = 20  # each is lost to a writer that changed a log meanwhile
READS_AT_ONCE = 64


@attrs.frozen
class LedgerNow:
    """A ledger as it is now."""

    current: Versioned
    last: int  # the last confirmed entry

    @property
    def identity(self) -> str:
        """See ``identity_of``."""
        return identity_of(self.current.metadata)


class BackupSource:
    """A namespace that is backed up."""

    def __init__(self, context: NamespaceContext, logs: Collection[str] | None = None) -> None:
        """
        Args:
            logs: Only these, without blobs; None: all of the namespace.

        Raises:
            BackupError: It is federated.
        """
        if isinstance(context.store, FederatedStore):
            raise BackupError(
                f"namespace {context.uri} is made of sub-namespaces, which may be in several clusters. Back"
                " up each of them"
            )
        self.path = context.path
        self.logs = None if logs is None else tuple(sorted(set(logs)))
        self._context, self._client = context, context.client.context
        self._catalog = self._client.catalog

    async def instance_id(self) -> str:
        """The identity of the directory or the cluster with the ledgers; it stays as long as they do."""
        root = self._catalog.root
        found = await self._catalog.store.get_many([f"{root}/{INSTANCE_ID}", f"{root}/{LAYOUT}"])
        instance, layout = found[f"{root}/{INSTANCE_ID}"], found[f"{root}/{LAYOUT}"]
        if instance is not None and instance.value:
            return instance.value.decode("utf-8", "backslashreplace")
        # A cluster that was made without one: when it was made.
        return "none" if layout is None else f"made-{layout.stat.created_ms}"

    async def nodes(self) -> dict[str, bytes]:
        """The persistent nodes that are backed up, by their paths below the namespace; "" is its own.

        Raises:
            LogUnavailableError: A log changed during each attempt to read it.
        """
        store, top = self._context.store, self.path
        await store.sync(top)
        tree = await store.read_tree(top)
        if tree is None:
            tree = await _walk_logs(store, top, self._is_wanted)
        return {
            path[len(top) + 1 :]: node.value
            for path, node in tree.items()
            if not node.stat.ephemeral_owner and self._is_wanted(path)
        }

    def _is_wanted(self, path: str) -> bool:
        path = path[len(self.path) + 1 :]
        is_whole = self.logs is None or not path
        return not is_upload(path) and (is_whole or belongs_to(path, self.logs or ()))

    async def ledger(self, ledger_id: int) -> LedgerNow | None:
        """A ledger and its end, which may be that of an open ledger; None if there is no such ledger.

        Raises:
            LedgerReadError: Too few bookies replied.
        """
        try:
            current = await self._catalog.get_newest(ledger_id)
            return LedgerNow(current, await last_entry_of(self._client, current))
        except NoSuchLedgerError:
            return None

    def entries(self, ledger: LedgerNow) -> EntrySource:
        """The stored entries of a ledger."""
        return EntrySource(ledger, self._client)


class EntrySource:
    """Reads the stored bytes of a ledger's entries."""

    def __init__(self, ledger: LedgerNow, client: ClientContext) -> None:
        self._copy = ReplicaCopy(ledger.current, client, None)

    async def read(self, first: int, last: int, size_bytes_max: int) -> list[bytes]:
        """The stored bytes of one or more entries from ``first`` on; none if the entry is gone for good.

        Raises:
            LedgerReadError: No bookie returned the entry now.
        """
        try:
            return await self._copy.read(first, last, size_bytes_max)
        except LedgerReadError as exc:
            if not is_gone(exc):
                raise
            return []


async def _walk_logs(store: MetadataStore, top: str, is_wanted: Callable[[str], bool]) -> dict[str, Node]:
    """The wanted nodes of a namespace, one after the other; those of each log fit together."""
    tree = await _walk(store, top, is_wanted)
    logs = [path for path in tree if path.endswith(f"/{UNPARTITIONED}")]

    async def settle(root: str) -> None:
        for _ in range(ATTEMPTS_MAX):
            found = await store.get_many(_deciding(root))
            now = {path: _version(node) for path, node in found.items()}
            if now == {path: _version(tree.get(path)) for path in now}:
                return
            for path in [path for path in tree if path == root or path.startswith(f"{root}/")]:
                del tree[path]
            tree.update(await _walk(store, root, is_wanted))
        raise LogUnavailableError(f"{root}: it changed during each of {ATTEMPTS_MAX} looks at it; try again")

    for start in range(0, len(logs), READS_AT_ONCE):
        await for_each(settle, logs[start : start + READS_AT_ONCE])
    return tree


def _deciding(root: str) -> list[str]:
    """The nodes of a log of which each change of its segments writes one."""
    return [f"{root}/{name}" for name in ("ledgers", "maxtxid", "version", "allocation")]


def _version(node: Node | None) -> tuple[int, int] | None:
    return None if node is None else (node.stat.version, node.stat.child_version)


async def _walk(store: MetadataStore, top: str, is_wanted: Callable[[str], bool]) -> dict[str, Node]:
    tree: dict[str, Node] = {}
    pending = [top]
    while pending:
        paths, pending = pending[:READS_AT_ONCE], pending[READS_AT_ONCE:]
        for path, node in (await store.get_many(paths)).items():
            if node is None:
                continue  # deleted meanwhile; its log is read again
            tree[path] = node
            if node.stat.children_count and not node.stat.ephemeral_owner:
                try:
                    names = (await store.children(path)).names
                except NoNodeError:
                    continue
                pending += filter(is_wanted, [f"{path}/{name}" for name in names])
        await trio.lowlevel.checkpoint()
    return tree
