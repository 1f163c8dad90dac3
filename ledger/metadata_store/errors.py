"""The errors of a metadata store and of its locks.

Each class exists because a caller reacts to it. No error of kazoo or sqlite3 leaves this package; the
original is the ``__cause__``.
"""

from __future__ import annotations

from ledger.pickling import PicklableError


class MetadataError(PicklableError):
    """Root of everything this package raises: Apache's ``MetadataException``."""


class StoreError(MetadataError):
    """The metadata store did not do the request. The subclass says why, and whether anything changed."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path


class NoNodeError(StoreError):
    """There is no such node. Nothing was changed."""

    def __init__(self, path: str, message: str = "no such node") -> None:
        super().__init__(path, message)


class NodeExistsError(StoreError):
    """The node is already there. Nothing was changed."""

    def __init__(self, path: str, message: str = "node exists already") -> None:
        super().__init__(path, message)


class BadVersionError(StoreError):
    """Another client wrote the node since it was read. Read it again, then decide again."""

    def __init__(self, path: str, message: str = "version is not the expected one") -> None:
        super().__init__(path, message)


class NotEmptyError(StoreError):
    """The node still has children and cannot be deleted."""

    def __init__(self, path: str, message: str = "node has children") -> None:
        super().__init__(path, message)


class NoChildrenForEphemeralsError(StoreError):
    """An ephemeral node cannot have children."""

    def __init__(self, path: str, message: str = "parent is ephemeral") -> None:
        super().__init__(path, message)


class InvalidPathError(StoreError):
    """The path is not valid: it must begin with ``/``, must not end with ``/``, and has no empty part."""


class NodeTooLargeError(StoreError):
    """The data of a node or of a transaction exceeds what one request may hold. Nothing was changed."""


class ConnectionLostError(StoreError):
    """The store cannot be reached now. A write that raised this may or may not have been applied."""

    def __init__(self, path: str, message: str = "connection lost; a write may be applied") -> None:
        super().__init__(path, message)


class StoreDiskError(ConnectionLostError):
    """The disk of a store in a file is full, read-only or failing. A write may or may not have been applied.

    Waiting alone does not help.
    """


class StoreFullError(StoreDiskError):
    """The disk of a store in a file is full. Earlier changes are kept."""


class SessionExpiredError(StoreError):
    """This session is over: its ephemeral nodes are deleted, its locks are lost. Open a new store."""

    def __init__(self, path: str, message: str = "the session has expired") -> None:
        super().__init__(path, message)


class AccessDeniedError(StoreError):
    """The identity of the session lacks the right. Nothing was changed."""

    def __init__(
        self,
        path: str,
        message: str = "access denied: the node's access list does not name this session's identity. Check"
        " the identity with which the program opens its session",
    ) -> None:
        super().__init__(path, message)


class ReadOnlyStoreError(StoreError):
    """The store was opened for reading only. Nothing was changed."""

    def __init__(self, path: str, message: str = "the store is open for reading only") -> None:
        super().__init__(path, message)


class StoreSecurityError(MetadataError):
    """Settings of identity or TLS are wrong, or the server refused the identity. Nothing was changed."""


class StoreUnreachableError(MetadataError):
    """No server answered at the store's address when it was opened."""


class StoreFormatError(MetadataError):
    """The file is no metadata store, or a newer release wrote it. Nothing was written to it."""


class StoreLostError(StoreFormatError):
    """The file of the store was used before and has lost what it had. Nothing was written to it."""


class StoreReplacedError(MetadataError):
    """The file of the store is gone, or is another one than before. Nothing was written to it.

    No other session can be opened with the store that was there.
    """


class InvalidStoreAddressError(MetadataError):
    """The address of a metadata store, a service URI or a list of hosts, cannot be parsed."""


class LockError(MetadataError):
    """A lock was used in the wrong state; or see the subclass."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"lock {path}: {message}")
        self.path = path


class LockTakenError(LockError):
    """Another client held the lock until the timeout of ``acquire``.

    ``is_own``: it is held by this process, by another lock object.
    """

    def __init__(self, path: str, owner: str, waited_s: float, *, is_own: bool = False) -> None:
        waited = f" after {waited_s:g} s of waiting" if waited_s else ""
        super().__init__(path, f"acquisition failed{waited}, the current owner is {owner}")
        self.owner, self.is_own = owner, is_own
        self.waited_s = waited_s


class LockLostError(LockError):
    """The member node was deleted although its session is alive. Acquire a new lock."""
