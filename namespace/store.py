"""The metadata-store seam: a small tree of versioned nodes, as ZooKeeper offers it.

Inside: the interface and its values. Not inside: any implementation (``memory``, ``sqlite``,
``zookeeper``); all three pass ``tests/contracts/test_store.py``, which is the finer print of this page.
Always: a node's version starts at 0 and grows by one with each write of its data; a write with
``expected`` happens only at exactly that version; ``commit`` does all of its operations or none;
ephemeral nodes vanish when the session that made them ends, and nobody else's do.

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

from namespace.errors import InvalidPathError, NodeTooLargeError

ANY_VERSION = -1
NODE_BYTES_MAX = 1_048_576 - 65_536  # ZooKeeper's default packet limit, less room for a request's rest

# What ZooKeeper's server refuses in a path. Its strings are UTF-16: all beyond U+FFFF is a surrogate there.
FORBIDDEN_CHARACTERS = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")


class SessionState(enum.Enum):
    """Whether this client may trust what it holds in the store."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"  # out of touch: locks may be lost already, so do not write
    EXPIRED = "expired"  # over for good: ephemeral nodes are gone
    CLOSED = "closed"  # closed by this side


@attrs.frozen
class Stat:
    """What the store knows about a node besides its data."""

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
    """In a transaction: create a persistent node; its parent must exist or be made earlier in it."""

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
    ``watch`` arguments are events set once, when what was read may have changed or the session ends:
    read again to learn what happened. A watch never fires without reason to look, and fires only once.
    Being out of touch is such a reason: watches left before a suspension all fire when it ends.
    A watch whose event nobody refers to any more is forgotten.
    """

    @property
    @abc.abstractmethod
    def session_id(self) -> int:
        """Signed 64-bit, unique among live sessions; the owner recorded in ephemeral nodes."""

    @property
    @abc.abstractmethod
    def state(self) -> SessionState:
        """Where the session stands now."""

    @abc.abstractmethod
    async def wait_state_change(self, seen: SessionState) -> SessionState:
        """Return the state as soon as it differs from ``seen``."""

    @abc.abstractmethod
    async def get(self, path: str, *, watch: trio.Event | None = None) -> Node:
        """The node's data and stat. The watch fires on a change of data or deletion.

        Raises:
            NoNodeError: No such node; the watch is then not left.
        """

    @abc.abstractmethod
    async def exists(self, path: str, *, watch: trio.Event | None = None) -> Stat | None:
        """The node's stat or None. The watch fires on creation, a change of data, or deletion."""

    @abc.abstractmethod
    async def children(self, path: str, *, watch: trio.Event | None = None) -> Children:
        """The node's children. The watch fires when one comes or goes, or the node is deleted.

        Raises:
            NoNodeError: No such node; the watch is then not left.
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
        """Create a node; return its path (with a ten-digit number appended if sequential).

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
        """Do all of the operations, in order and at once, or none of them.

        Raises the first failing operation's error, with its path. New nodes have version 0.
        """

    @abc.abstractmethod
    async def sync(self, path: str) -> None:
        """After this returns, reads through this session see everything written before the call."""

    @abc.abstractmethod
    async def aclose(self) -> None:
        """End the session: its ephemeral nodes are removed. Idempotent."""


def check_path(path: str) -> str:
    """Return the path if it is a legal node path, else raise ``InvalidPathError``."""
    if path == "/":
        return path
    if not path.startswith("/"):
        raise InvalidPathError(path, "a path begins with '/'")
    if path.endswith("/"):
        raise InvalidPathError(path, "a path does not end with '/'")
    if forbidden := FORBIDDEN_CHARACTERS.search(path):
        raise InvalidPathError(path, f"a path holds no character U+{ord(forbidden[0]):04X}")
    for part in path[1:].split("/"):
        if part in ("", ".", ".."):
            raise InvalidPathError(path, f"{part!r} is not a node name")
    return path


def check_new_path(path: str) -> str:
    """The same for a node to be created or deleted, which the root never is."""
    if path == "/":
        raise InvalidPathError(path, "the root is neither created nor deleted")
    return check_path(path)


def check_size(path: str, size_bytes: int) -> None:
    """Raise ``NodeTooLargeError`` if so much data would not pass ZooKeeper's packet limit."""
    if size_bytes > NODE_BYTES_MAX:
        raise NodeTooLargeError(path, f"{size_bytes} bytes are more than the {NODE_BYTES_MAX} a store takes")


def check_operations(operations: Sequence[Operation]) -> None:
    """Raise what is wrong with a transaction before any of it is tried."""
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


def parent_of(path: str) -> str:
    """``/a`` for ``/a/b``; ``/`` for ``/a``."""
    return path.rpartition("/")[0] or "/"


def ancestors_of(path: str) -> list[str]:
    """``["/a", "/a/b"]`` for ``/a/b/c``: outermost first, without the root."""
    parts = path[1:].split("/")[:-1]
    return ["/" + "/".join(parts[: depth + 1]) for depth in range(len(parts))]


def sequence_suffix(creations: int) -> str:
    """What a sequential node's name ends with, if its parent has had so many children created in it before.

    Ten digits of a signed 32-bit counter: as ZooKeeper's does, it turns negative after 2147483647.
    """
    return f"{(creations + 2**31) % 2**32 - 2**31:010d}"
