"""What a metadata store, and the names kept in it, can answer with other than a value.

Each class exists because some caller reacts to exactly that one. Nothing of kazoo or sqlite3 leaves
this package: the original is kept as ``__cause__``.
"""

from __future__ import annotations


class NamespaceError(Exception):
    """Root of everything this package raises."""


class StoreError(NamespaceError):
    """The metadata store did not do what was asked; see the subclass for what is known."""

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
    """Somebody else wrote the node since it was read. Read it again and decide anew."""

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
    """The path is not one: it must begin with ``/``, not end with one, and hold no empty part."""


class ConnectionLostError(StoreError):
    """The store cannot be reached now. A write that raised this may or may not have been applied."""

    def __init__(self, path: str, message: str = "connection lost; a write may be applied") -> None:
        super().__init__(path, message)


class SessionExpiredError(StoreError):
    """This session is over: its ephemeral nodes are gone, its locks lost. Open a new store."""

    def __init__(self, path: str, message: str = "the session has expired") -> None:
        super().__init__(path, message)


class StoreUnreachableError(NamespaceError):
    """Nobody answered at the store's address when it was opened."""


class FormatError(NamespaceError):
    """Bytes stored in a node do not parse. Nothing is written over them."""


class InvalidUriError(NamespaceError):
    """A namespace or metadata-service URI that cannot be understood; the message says which part."""


class InvalidLogNameError(NamespaceError):
    """A log name with forbidden characters or parts; the message says which."""
