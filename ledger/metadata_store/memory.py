"""The metadata store in a dictionary: the reference for the other two implementations.

Inside: ``MemoryTree``, the shared nodes; ``MemorySession``, one session with it, whose calls return at once;
``MemoryStore``, that session as a store. Several sessions may open one tree. A test ends a session
(``expire``) or suspends it (``suspend``).
Not inside: other faults; a test adds them in a wrapper of this store.
Always: a call does its whole work in one step of the loop after its checkpoint, so a cancelled call changes
nothing; every change of a node goes through one of three methods, and each can be undone.

Source: ZooKeeper programmer's guide; counters as DataTree.java and DataNode.java keep them.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import assert_never

import attrs
import trio

from ledger.metadata_store.errors import (
    BadVersionError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)
from ledger.metadata_store.sessions.session import Session, Watched, WatchKind
from ledger.metadata_store.store import (
    ANY_VERSION,
    Check,
    Children,
    Create,
    Delete,
    MetadataStore,
    Node,
    Operation,
    Put,
    SessionState,
    Stat,
    ancestors_of,
    check_new_path,
    check_operations,
    check_path,
    check_size,
    is_within,
    parent_of,
    sequence_suffix,
)
from ledger.runtime.clock import wall_ms


@attrs.define(eq=False)
class _MemoryNode:
    value: bytes
    created_ms: int
    owner: int
    version: int = 0
    creations: int = 0  # children ever created here: the next sequence number
    children: set[str] = attrs.Factory(set)

    def stat(self) -> Stat:
        # Deletions need no counter: a creation without a child now means a deletion.
        child_version = 2 * self.creations - len(self.children)
        return Stat(self.version, child_version, len(self.children), self.created_ms, self.owner)


class MemoryTree:
    """Nodes, shared by the sessions that open the tree."""

    def __init__(self, wall_ms: Callable[[], int] = wall_ms) -> None:
        self._wall_ms = wall_ms
        self._nodes = {"/": _MemoryNode(b"", wall_ms(), 0)}
        self._session_ids = itertools.count(1)
        self._sessions: dict[int, Session] = {}

    def __repr__(self) -> str:
        return f"<MemoryTree with {len(self._nodes)} nodes, {len(self._sessions)} sessions>"

    def _open_session(self) -> tuple[int, Session]:
        session_id = next(self._session_ids)
        self._sessions[session_id] = session = Session()
        return session_id, session

    def _end_session(self, session_id: int) -> None:
        if self._sessions.pop(session_id, None) is None:
            return
        with _Change(self) as change:
            for path in [path for path, node in self._nodes.items() if node.owner == session_id]:
                change.delete(path, ANY_VERSION)

    def _node(self, path: str) -> _MemoryNode:
        try:
            return self._nodes[path]
        except KeyError:
            raise NoNodeError(path) from None

    def _fire(self, touched: Sequence[Watched]) -> None:
        for session in self._sessions.values():
            # A suspended session gets no events. It fires every watch when it resumes.
            if session.state is SessionState.CONNECTED:
                for kind, path in touched:
                    session.fire(kind, path)


class _Change:
    """Writes that happen together: undone on an exception; otherwise their watches fire at the end."""

    def __init__(self, tree: MemoryTree) -> None:
        self._tree = tree
        self._nodes = tree._nodes
        self._undo: list[Callable[[], object]] = []
        self._touched: list[Watched] = []

    def __enter__(self) -> _Change:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        if exc_type is None:
            self._tree._fire(self._touched)
        else:
            for undo in reversed(self._undo):
                undo()

    def create(self, path: str, value: bytes, owner: int) -> None:
        nodes, name, parent_path = self._nodes, path.rpartition("/")[2], parent_of(path)
        parent = self._tree._node(parent_path) if parent_path in nodes else None
        if parent is None:
            raise NoNodeError(path, "its parent does not exist")
        if path in nodes:
            raise NodeExistsError(path)
        if parent.owner:
            raise NoChildrenForEphemeralsError(path)
        nodes[path] = _MemoryNode(value, self._tree._wall_ms(), owner)
        parent.children.add(name)
        parent.creations += 1

        def undo() -> None:
            del nodes[path]
            parent.children.discard(name)
            parent.creations -= 1

        self._undo.append(undo)
        self._touched += [(WatchKind.DATA, path), (WatchKind.CHILDREN, parent_path)]

    def put(self, path: str, value: bytes, expected: int) -> None:
        node = self._tree._node(path)
        self.check(path, expected)
        before = node.value
        node.value, node.version = value, node.version + 1

        def undo() -> None:
            node.value, node.version = before, node.version - 1

        self._undo.append(undo)
        self._touched.append((WatchKind.DATA, path))

    def delete(self, path: str, expected: int) -> None:
        nodes, name, parent_path = self._nodes, path.rpartition("/")[2], parent_of(path)
        node, parent = self._tree._node(path), nodes.get(parent_path)
        assert parent is not None  # create() refuses a node without a parent
        self.check(path, expected)
        if node.children:
            raise NotEmptyError(path)
        del nodes[path]
        parent.children.discard(name)

        def undo() -> None:
            nodes[path] = node
            parent.children.add(name)

        self._undo.append(undo)
        self._touched += [
            (WatchKind.DATA, path),
            (WatchKind.CHILDREN, path),
            (WatchKind.CHILDREN, parent_path),
        ]

    def check(self, path: str, expected: int) -> None:
        version = self._tree._node(path).version
        if expected not in (ANY_VERSION, version):
            raise BadVersionError(path, f"version is {version}, not the expected {expected}")


class MemorySession:
    """One session with a ``MemoryTree``: the calls of ``MetadataStore``, without waiting."""

    def __init__(self, tree: MemoryTree) -> None:
        self._tree = tree
        self.id, self.watches = tree._open_session()

    @property
    def state(self) -> SessionState:
        return self.watches.state

    def expire(self) -> None:
        """End the session as a server does after the session timeout."""
        self._tree._end_session(self.id)
        self.watches.change_state(SessionState.EXPIRED)

    def suspend(self) -> None:
        """Suspend the session as a lost connection does. The session stays alive in the tree."""
        self.watches.change_state(SessionState.SUSPENDED)

    def resume(self) -> None:
        """Continue the same session after a suspension."""
        if self.state is SessionState.SUSPENDED:
            self.watches.change_state(SessionState.CONNECTED)

    def close(self) -> None:
        """End the session as its client does."""
        self._tree._end_session(self.id)
        self.watches.change_state(SessionState.CLOSED)

    def get(self, path: str, watch: trio.Event | None = None) -> Node:
        self.watches.check(check_path(path))
        node = self._tree._node(path)
        self._add_watch(WatchKind.DATA, path, watch)
        return Node(node.value, node.stat())

    def read_tree(self, path: str) -> dict[str, Node]:
        self.watches.check(check_path(path))
        nodes = self._tree._nodes
        return {each: Node(node.value, node.stat()) for each, node in nodes.items() if is_within(each, path)}

    def exists(self, path: str, watch: trio.Event | None = None) -> Stat | None:
        self.watches.check(check_path(path))
        self._add_watch(WatchKind.DATA, path, watch)
        node = self._tree._nodes.get(path)
        return None if node is None else node.stat()

    def children(self, path: str, watch: trio.Event | None = None) -> Children:
        self.watches.check(check_path(path))
        node = self._tree._node(path)
        self._add_watch(WatchKind.CHILDREN, path, watch)
        return Children(tuple(sorted(node.children)), node.stat().child_version)

    def create(self, path: str, value: bytes, *, ephemeral: bool, sequential: bool, parents: bool) -> str:
        check_size(check_new_path(path), len(value))
        self.watches.check(path)
        nodes = self._tree._nodes
        with _Change(self._tree) as change:
            if parents:
                for ancestor in ancestors_of(path):
                    if ancestor not in nodes:
                        change.create(ancestor, b"", 0)
            if sequential and (parent := nodes.get(parent_of(path))) is not None:
                path += sequence_suffix(parent.creations)
            change.create(path, bytes(value), self.id if ephemeral else 0)
        return path

    def put(self, path: str, value: bytes, expected: int) -> Stat:
        check_size(check_path(path), len(value))
        self.watches.check(path)
        with _Change(self._tree) as change:
            change.put(path, bytes(value), expected)
        return self._tree._node(path).stat()

    def delete(self, path: str, expected: int) -> None:
        self.watches.check(check_new_path(path))
        with _Change(self._tree) as change:
            change.delete(path, expected)

    def commit(self, operations: Sequence[Operation]) -> None:
        check_operations(operations)
        self.watches.check(operations[0].path if operations else "/")
        with _Change(self._tree) as change:
            for operation in operations:
                match operation:
                    case Create(path=path, value=value):
                        change.create(path, bytes(value), 0)
                    case Put(path=path, value=value, expected=expected):
                        change.put(path, bytes(value), expected)
                    case Delete(path=path, expected=expected):
                        change.delete(path, expected)
                    case Check(path=path, expected=expected):
                        change.check(path, expected)
                    case _:
                        assert_never(operation)

    def sync(self, path: str) -> None:
        self.watches.check(check_path(path))

    def _add_watch(self, kind: WatchKind, path: str, watch: trio.Event | None) -> None:
        if watch is not None:
            self.watches.watch(kind, path, watch)


class MemoryStore(MetadataStore):
    """A ``MemorySession`` as a store: each call passes a checkpoint. Made by ``open_memory_store``."""

    def __init__(self, tree: MemoryTree) -> None:
        self._session = MemorySession(tree)

    def __repr__(self) -> str:
        return f"<MemoryStore session {self.session_id} {self.state.value}>"

    @property
    def session_id(self) -> int:
        return self._session.id

    @property
    def state(self) -> SessionState:
        return self._session.state

    async def wait_state_change(self, seen: SessionState) -> SessionState:
        return await self._session.watches.wait_state_change(seen)

    def expire(self) -> None:
        """See ``MemorySession``."""
        self._session.expire()

    def suspend(self) -> None:
        """See ``MemorySession``."""
        self._session.suspend()

    def resume(self) -> None:
        """See ``MemorySession``."""
        self._session.resume()

    async def get(self, path: str, *, watch: trio.Event | None = None) -> Node:
        await trio.lowlevel.checkpoint()
        return self._session.get(path, watch)

    async def read_tree(self, path: str) -> dict[str, Node] | None:
        await trio.lowlevel.checkpoint()
        return self._session.read_tree(path)

    async def exists(self, path: str, *, watch: trio.Event | None = None) -> Stat | None:
        await trio.lowlevel.checkpoint()
        return self._session.exists(path, watch)

    async def children(self, path: str, *, watch: trio.Event | None = None) -> Children:
        await trio.lowlevel.checkpoint()
        return self._session.children(path, watch)

    async def create(
        self,
        path: str,
        value: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        parents: bool = False,
    ) -> str:
        await trio.lowlevel.checkpoint()
        return self._session.create(path, value, ephemeral=ephemeral, sequential=sequential, parents=parents)

    async def put(self, path: str, value: bytes, *, expected: int = ANY_VERSION) -> Stat:
        await trio.lowlevel.checkpoint()
        return self._session.put(path, value, expected)

    async def delete(self, path: str, *, expected: int = ANY_VERSION) -> None:
        await trio.lowlevel.checkpoint()
        self._session.delete(path, expected)

    async def commit(self, operations: Sequence[Operation]) -> None:
        await trio.lowlevel.checkpoint()
        self._session.commit(operations)

    async def sync(self, path: str) -> None:
        await trio.lowlevel.checkpoint()
        self._session.sync(path)

    async def aclose(self) -> None:
        self._session.close()
        await trio.lowlevel.checkpoint()


@asynccontextmanager
async def open_memory_store(tree: MemoryTree) -> AsyncIterator[MemoryStore]:
    """Open a session with the tree. Leaving the block ends it and deletes its ephemeral nodes."""
    store = MemoryStore(tree)
    try:
        yield store
    finally:
        with trio.CancelScope(shield=True):
            await store.aclose()
