"""The metadata store in a file of this machine, read without a session: nothing is written or locked.

Inside: the nodes of an image, the watches on them. Not inside: reading the file (``image``), sessions
and writes (``store``).
Always: each change is refused with ``ReadOnlyStoreError``; a fixed store stays as it was when it was opened,
without the ephemeral nodes, whose owners are gone; another one sees each commit that ended before the call.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from ledger.metadata_store.errors import MetadataError, NoNodeError, StoreUnreachableError
from ledger.metadata_store.read_only import RefusingStore
from ledger.metadata_store.sessions.session import Session, Watched, WatchKind
from ledger.metadata_store.sqlite_store.copy_format import CopyVerdict
from ledger.metadata_store.sqlite_store.database import lost_store
from ledger.metadata_store.sqlite_store.image import DatabaseFiles
from ledger.metadata_store.sqlite_store.tree import ABSENT, compare_image, nodes_of
from ledger.metadata_store.store import Children, Node, SessionState, Stat, check_path, is_within
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger

POLL_S = 0.05  # between two looks for writes of other processes

log = get_logger(__name__)


@attrs.define
class _Found:
    node: Node
    data_change: int
    children_change: int
    names: list[str] = attrs.Factory(list)


class SqliteReader(RefusingStore):
    """The nodes of a database; made by ``open_sqlite_reader``."""

    def __init__(self, path: Path, *, is_fixed: bool) -> None:
        self._path, self._is_fixed = path, is_fixed
        self._files = DatabaseFiles(path)
        self._nodes: dict[str, _Found] = {}
        self._session = Session()
        self._turn = trio.Lock()

    def __repr__(self) -> str:
        return f"<SqliteReader {self._path} {'fixed' if self._is_fixed else self.state.value}>"

    @property
    def session_id(self) -> int:
        return 0  # it owns no node

    @property
    def state(self) -> SessionState:
        return self._session.state

    async def wait_state_change(self, seen: SessionState) -> SessionState:
        return await self._session.wait_state_change(seen)

    async def get(self, path: str, *, watch: trio.Event | None = None) -> Node:
        found = await self._find(path)
        if found is None:
            raise NoNodeError(path)
        self._add_watch(WatchKind.DATA, path, watch)
        return found.node

    async def read_tree(self, path: str) -> dict[str, Node] | None:
        await self._find(path)
        nodes = self._nodes  # a refresh replaces it as a whole
        return {each: found.node for each, found in nodes.items() if is_within(each, path)}

    async def exists(self, path: str, *, watch: trio.Event | None = None) -> Stat | None:
        found = await self._find(path)
        self._add_watch(WatchKind.DATA, path, watch)
        return None if found is None else found.node.stat

    async def children(self, path: str, *, watch: trio.Event | None = None) -> Children:
        found = await self._find(path)
        if found is None:
            raise NoNodeError(path)
        self._add_watch(WatchKind.CHILDREN, path, watch)
        return Children(tuple(found.names), found.node.stat.child_version)

    async def last_change(self) -> int:
        await self._find("/")
        lasting = [one for one in self._nodes.values() if not one.node.stat.ephemeral_owner]
        return max(max(one.data_change, one.children_change) for one in lasting)

    async def sync(self, path: str) -> None:
        await self._find(path)

    async def aclose(self) -> None:
        self._session.change_state(SessionState.CLOSED)
        await trio.lowlevel.checkpoint()

    async def keep_fresh(self) -> None:
        """Fire the watches when other processes have written; for a task, until it is cancelled."""
        while not self._is_fixed:
            await trio.sleep(POLL_S)
            if self._session.watched():
                try:
                    await self.refresh()
                except MetadataError as exc:
                    log.warning(
                        "%s: the check of watches failed, trying again: %s",
                        self._path,
                        exc,
                        extra=event("watches.check_failed", database=str(self._path), error=exc),
                    )

    async def refresh(self) -> None:
        """Read the database again if it may have changed.

        Raises:
            StoreUnreachableError: The file cannot be read.
            StoreFormatError: The file is no metadata store.
        """
        async with self._turn:
            try:
                nodes = await trio.to_thread.run_sync(self._load)
            except OSError as exc:
                raise StoreUnreachableError(f"metadata store {self._path} cannot be read: {exc}") from None
            if nodes is None:
                return
            before, self._nodes = self._nodes, nodes
            for kind, path in self._session.watched():
                if _change_number(before, (kind, path)) != _change_number(nodes, (kind, path)):
                    self._session.fire(kind, path)

    def _load(self) -> dict[str, _Found] | None:
        """In a thread."""
        image = self._files.read_if_changed()
        if image is None:
            return None
        nodes = _nodes_of(image, self._path, with_ephemerals=not self._is_fixed)
        if self._is_fixed:
            self._compare_copy(image)
        return nodes

    def _compare_copy(self, image: bytes) -> None:
        """Raise the error of a store that lacks what its second copy has. No process has it open."""
        verdict, evidence = compare_image(image, self._path)
        if verdict is CopyVerdict.LOST:
            raise lost_store(self._path, evidence, is_copied=True)
        if verdict is CopyVerdict.AHEAD:
            raise StoreUnreachableError(
                f"metadata store {self._path}: its last change was interrupted, or its last commit is lost;"
                " open it once for writing, which takes the change from the second copy"
            )

    async def _find(self, path: str) -> _Found | None:
        self._session.check(check_path(path))
        if self._is_fixed:
            await trio.lowlevel.checkpoint()
        else:
            await self.refresh()
        return self._nodes.get(path)

    def _add_watch(self, kind: WatchKind, path: str, watch: trio.Event | None) -> None:
        # After the last await: a refresh in between would have changed what the watch is compared with.
        if watch is not None:
            self._session.watch(kind, path, watch)


@asynccontextmanager
async def open_sqlite_reader(path: Path, *, is_fixed: bool) -> AsyncIterator[SqliteReader]:
    """Open the database for reading. Unless it is fixed, run ``keep_fresh`` in a task.

    Raises:
        StoreUnreachableError: The file cannot be read, or is missing.
        StoreFormatError: The file is no metadata store of this release.
    """
    store = SqliteReader(path, is_fixed=is_fixed)
    await store.refresh()
    try:
        yield store
    finally:
        with trio.CancelScope(shield=True):
            await store.aclose()


def _nodes_of(image: bytes, path: Path, *, with_ephemerals: bool) -> dict[str, _Found]:
    if not image:
        raise StoreUnreachableError(f"metadata store {path} is empty: no process has completed its creation")
    stored = [one for one in nodes_of(image, path) if with_ephemerals or not one.node.stat.ephemeral_owner]
    nodes = {one.path: _Found(one.node, one.data_change, one.children_change) for one in stored}
    for one in stored:
        if one.path != "/":
            nodes[one.parent].names.append(one.path.rpartition("/")[2])
    for found in nodes.values():
        found.names.sort()
    return nodes


def _change_number(nodes: dict[str, _Found], watched: Watched) -> int:
    found = nodes.get(watched[1])
    if found is None:
        return ABSENT
    return found.data_change if watched[0] is WatchKind.DATA else found.children_change
