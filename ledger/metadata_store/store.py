"""The interface of a metadata store: a small tree of versioned nodes, as ZooKeeper offers it.

Inside: the interface and its values. Not inside: any implementation (``memory``, ``sqlite``,
``zookeeper``). All three pass ``tests/contracts/test_store.py``, which holds the details of this contract.
Always: a node's version starts at 0 and grows by one with each write of its data; a write with
``expected`` happens only at exactly that version; ``commit`` does all of its operations or none; when a
session ends, its ephemeral nodes are deleted, and no others.

Source: ZooKeeper programmer's guide; org.apache.bookkeeper.meta uses nothing beyond this.
"""

from __future__ import annotations

import abc
import enum
import re
from collections.abc import Sequence
from typing import assert_never

import attrs
import trio

from ledger.metadata_store.errors import (
    InvalidPathError,
    NodeTooLargeError,
    NoNodeError,
    StoreError,
    StoreReplacedError,
)

ANY_VERSION = -1
NODE_BYTES_MAX = 1_048_576 - 65_536  # ZooKeeper's default packet limit, minus space for the rest of a request

# ZooKeeper's server refuses these in a path. Its strings are UTF-16: a character beyond U+FFFF is surrogates.
FORBIDDEN_CHARACTERS = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")


class SessionState(enum.Enum):
    """The state of a session as its client knows it."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"  # out of reach: locks may be lost already, so do not write
    EXPIRED = "expired"  # over; the ephemeral nodes are deleted
    CLOSED = "closed"  # closed by this client


@attrs.frozen
class Stat:
    """The facts that the store keeps about a node besides its data."""

    version: int  # of the data: 0 at creation, +1 with each put
    child_version: int  # +1 whenever a child is created or deleted (cversion)
    children_count: int
    created_ms: int  # epoch milliseconds
    ephemeral_owner: int  # session id, 0 for a persistent node


@attrs.frozen
class Node:
    """A node's data with its stat, read at one moment."""

    value: bytes
    stat: Stat


@attrs.frozen
class Children:
    """The names (not paths) of a node's children, sorted, and the list's version."""

    names: tuple[str, ...]
    child_version: int


@attrs.frozen
class Create:
    """In a transaction: create a persistent node. Its parent exists, or an earlier operation creates it."""

    path: str
    value: bytes = b""


@attrs.frozen
class Put:
    """In a transaction: write a node's data at the expected version."""

    path: str
    value: bytes
    expected: int = ANY_VERSION


@attrs.frozen
class Delete:
    """In a transaction: delete a childless node at the expected version."""

    path: str
    expected: int = ANY_VERSION


@attrs.frozen
class Check:
    """In a transaction: fail unless the node is at the expected version."""

    path: str
    expected: int


Operation = Create | Put | Delete | Check


class MetadataStore(abc.ABC):
    """One session with a metadata store.

    Every call raises ``ConnectionLostError`` while the store is out of reach (the outcome of a write is
    then unknown), ``SessionExpiredError`` once the session is over or closed, ``InvalidPathError`` for a bad
    path, ``NodeTooLargeError`` for data above ``NODE_BYTES_MAX``.
    A cancelled write may or may not be applied; a cancelled read changes nothing.

    A ``watch`` argument is an event. The store sets it once, when the value read may have changed or the
    session has ended: read again to learn the present state. A watch does not fire without such a reason. A
    suspension is a reason: when it ends, all watches left before it fire. The store drops a watch whose event
    has no other reference.
    """

    @property
    @abc.abstractmethod
    def session_id(self) -> int:
        """Signed 64-bit, unique among live sessions; the owner recorded in ephemeral nodes."""

    @property
    @abc.abstractmethod
    def state(self) -> SessionState:
        """The state of the session now."""

    @property
    def replaced(self) -> StoreReplacedError | None:
        """Why no other session can follow this one: its store is gone. None while that is not known."""
        return None

    @abc.abstractmethod
    async def wait_state_change(self, seen: SessionState) -> SessionState:
        """Return the state as soon as it differs from ``seen``."""

    async def wait_reachable(self) -> None:
        """Wait while the store is known to be out of reach; return also when the session has ended."""
        while self.state is SessionState.SUSPENDED:
            await self.wait_state_change(SessionState.SUSPENDED)

    def current_session(self) -> MetadataStore:
        """A store for the present session alone; its calls fail once that session is over.

        Most stores are one session, and return themselves. See ``sessions.renewing_store``.

        Raises:
            ConnectionLostError: No session is open now.
        """
        return self

    @abc.abstractmethod
    async def get(self, path: str, *, watch: trio.Event | None = None) -> Node:
        """The node's data and stat. The watch fires on a change of data or deletion.

        Raises:
            NoNodeError: No such node; then there is no watch.
        """

    async def get_many(self, paths: Sequence[str]) -> dict[str, Node | None]:
        """Each path with its node; None for a missing node. The nodes may be read at different moments.

        All reads of a call are under way at once, so a caller limits the number of paths.
        """
        nodes: dict[str, Node | None] = {}
        failures: list[Exception] = []

        async def read(path: str) -> None:
            try:
                nodes[path] = await self.get(path)
            except NoNodeError:
                nodes[path] = None
            except Exception as exc:
                failures.append(exc)

        async with trio.open_nursery() as nursery:
            for path in paths:
                nursery.start_soon(read, path)
        if failures:
            raise failures[0]
        return nodes

    async def read_tree(self, path: str) -> dict[str, Node] | None:
        """A node and all nodes below it, as they were at one moment; empty if there is no such node.

        None: the store cannot read several nodes at one moment.
        """
        return None

    @abc.abstractmethod
    async def exists(self, path: str, *, watch: trio.Event | None = None) -> Stat | None:
        """The node's stat or None. The watch fires on creation, a change of data, or deletion."""

    @abc.abstractmethod
    async def children(self, path: str, *, watch: trio.Event | None = None) -> Children:
        """The node's children. The watch fires when a child is created or deleted, or the node is deleted.

        Raises:
            NoNodeError: No such node; then there is no watch.
        """

    @abc.abstractmethod
    async def create(
        self,
        path: str,
        value: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        parents: bool = False,
    ) -> str:
        """Create a node; return its path. A sequential node's name ends with a ten-digit number.

        Args:
            parents: Also create missing ancestors, persistent and empty.

        Raises:
            NodeExistsError, NoNodeError (parent missing), NoChildrenForEphemeralsError
        """

    @abc.abstractmethod
    async def put(self, path: str, value: bytes, *, expected: int = ANY_VERSION) -> Stat:
        """Write a node's data; return its new stat.

        Raises:
            NoNodeError, BadVersionError
        """

    @abc.abstractmethod
    async def delete(self, path: str, *, expected: int = ANY_VERSION) -> None:
        """Delete a childless node.

        Raises:
            NoNodeError, BadVersionError, NotEmptyError
        """

    @abc.abstractmethod
    async def commit(self, operations: Sequence[Operation]) -> None:
        """Do all operations in order, in one transaction, or none of them.

        Raises the error of the first operation that fails, with its path. New nodes have version 0.
        """

    async def draw_sequential(self, path: str) -> str:
        """Return the path that a sequential node gets, and leave no such node.

        No other call returns the same path. Missing ancestors are created, persistent and empty. If
        cancelled, one number may be skipped.

        Raises:
            NoChildrenForEphemeralsError
        """
        drawn = await self.create(path, ephemeral=True, sequential=True, parents=True)
        try:
            await self.delete(drawn)
        except StoreError:
            pass  # it vanishes with the session at the latest
        return drawn

    @abc.abstractmethod
    async def sync(self, path: str) -> None:
        """Make reads of this session, after the return, see everything written before the call."""

    async def last_change(self) -> int:
        """The number of the last change of a node that is not ephemeral, or of its children.

        It never decreases, so an older copy of the store has a smaller one. 0: the store counts no changes.
        """
        return 0

    @abc.abstractmethod
    async def aclose(self) -> None:
        """End the session: its ephemeral nodes are deleted. Idempotent."""


def check_path(path: str) -> str:
    """Return the path if it is valid for a node, else raise ``InvalidPathError``."""
    if path == "/":
        return path
    if not path.startswith("/"):
        raise InvalidPathError(path, "a path begins with '/'")
    if path.endswith("/"):
        raise InvalidPathError(path, "a path does not end with '/'")
    if forbidden := FORBIDDEN_CHARACTERS.search(path):
        raise InvalidPathError(path, f"a path must not contain U+{ord(forbidden[0]):04X}")
    for part in path[1:].split("/"):
        if part in ("", ".", ".."):
            raise InvalidPathError(path, f"{part!r} is not a node name")
    return path


def check_new_path(path: str) -> str:
    """``check_path`` for a node to create or delete, which the root never is."""
    if path == "/":
        raise InvalidPathError(path, "the root can be neither created nor deleted")
    return check_path(path)


def check_size(path: str, size_bytes: int) -> None:
    """Raise ``NodeTooLargeError`` if this much data does not fit into ZooKeeper's packet limit."""
    if size_bytes > NODE_BYTES_MAX:
        raise NodeTooLargeError(path, f"{size_bytes} bytes; a store takes at most {NODE_BYTES_MAX}")


def check_operations(operations: Sequence[Operation]) -> int:
    """Raise the error of an invalid transaction, before the store tries any of it. Return its size."""
    size_bytes = 0
    for operation in operations:
        match operation:
            case Create(path=path, value=value):
                check_new_path(path)
            case Put(path=path, value=value):
                check_path(path)
            case Delete(path=path):
                check_new_path(path)
                value = b""
            case Check(path=path):
                check_path(path)
                value = b""
            case _:
                assert_never(operation)
        size_bytes += len(path) + len(value) + 32
        check_size(path, size_bytes)
    return size_bytes


def parent_of(path: str) -> str:
    """``/a`` for ``/a/b``; ``/`` for ``/a``."""
    return path.rpartition("/")[0] or "/"


def is_within(path: str, top: str) -> bool:
    """True if the path is that of ``top`` or of a node below it."""
    return path == top or path.startswith("/" if top == "/" else f"{top}/")


def ancestors_of(path: str) -> list[str]:
    """``["/a", "/a/b"]`` for ``/a/b/c``: outermost first, without the root."""
    parts = path[1:].split("/")[:-1]
    return ["/" + "/".join(parts[: depth + 1]) for depth in range(len(parts))]


def sequence_suffix(creations: int) -> str:
    """The end of a sequential node's name, if this many children were created below its parent before it.

    Ten digits of a signed 32-bit counter. Like ZooKeeper's, it turns negative after 2147483647.
    """
    return f"{(creations + 2**31) % 2**32 - 2**31:010d}"
