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


class NodeTooLargeError(StoreError):
    """A node's data, or a transaction's, is more than a store takes in one request. Nothing was changed."""


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


class NoBindingError(NamespaceError):
    """No ancestor of a namespace path says which ledger cluster holds its logs: bind the namespace first."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"no bkdl config bound under dl path {path}: bind the namespace to a ledger cluster first"
        )
        self.path = path


class LogError(NamespaceError):
    """Something about one named log; see the subclass."""

    def __init__(self, log_name: str, message: str) -> None:
        super().__init__(f"log {log_name!r}: {message}")
        self.log_name = log_name


class LogNotFoundError(LogError):
    """There is no such log, or it has been deleted, or its creation never finished. Create it."""

    def __init__(self, log_name: str, message: str = "does not exist or has been deleted") -> None:
        super().__init__(log_name, message)


class LogExistsError(LogError):
    """The log is there already, or somebody else has just created it."""

    def __init__(self, log_name: str, message: str = "exists already") -> None:
        super().__init__(log_name, message)


class LogInUseError(LogError):
    """A log's nodes cannot be deleted: a writer holds its lock, or segments are left. Nothing was deleted."""


class LogMetadataError(LogError):
    """A node of the log holds what no version of the software writes. Nothing was changed."""


class SegmentGapError(LogMetadataError):
    """A log segment is missing between two others. Nothing is listed: records would be skipped silently."""


class LogTakenOverError(LogError):
    """Another writer has changed the log since this one opened it; this writer must stop and reopen.

    The conditional transaction that found out has changed nothing.
    """


class TxidOutOfOrderError(LogError):
    """A segment was to be started with a transaction id below one already written."""

    def __init__(self, log_name: str, txid: int, max_txid: int) -> None:
        super().__init__(log_name, f"transaction id {txid} is less than {max_txid}, already written")
        self.txid, self.max_txid = txid, max_txid


class LogSealedError(LogError):
    """The log has its end-of-stream record: nothing can be written to it any more."""

    def __init__(self, log_name: str) -> None:
        super().__init__(log_name, "has been sealed; nothing can be written after its end of stream")


class LockError(NamespaceError):
    """Something about one lock; see the subclass."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"lock {path}: {message}")
        self.path = path


class LockTakenError(LockError):
    """Somebody else holds the lock, and did so for as long as this side was willing to wait."""

    def __init__(self, path: str, owner: str, waited_s: float) -> None:
        waited = f" after {waited_s:g} s of waiting" if waited_s else ""
        super().__init__(path, f"acquisition failed{waited}, the current owner is {owner}")
        self.owner = owner
        self.waited_s = waited_s


class LockLostError(LockError):
    """The member node is gone though its session lives: somebody deleted it. Acquire a new lock."""
