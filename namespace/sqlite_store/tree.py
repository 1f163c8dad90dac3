"""Nodes and sessions in an SQLite file, with blocking calls.

table    one row for each
node     node: data, counters as ZooKeeper keeps them, the number of its last change
session  session that has not ended; ``session`` says whether its process is alive
change   (one row) the number of the last change; each write of a node takes the next number

Inside: the schema, transactions, deleting the ephemeral nodes of dead sessions.
Not inside: threads, the events of watches, trio (``store``). One thread at a time uses a tree.
Always: a transaction is synced to disk before it returns (WAL, synchronous=FULL); no result contains an
ephemeral node whose owner was dead when the call began; a session that is over changes nothing.

Source: sqlite.org (WAL, data_version); counters as ZooKeeper's DataTree.java keeps them.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import assert_never
from urllib.parse import quote

import attrs

from namespace.clock import wall_ms
from namespace.errors import (
    BadVersionError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
    StoreFormatError,
)
from namespace.private_files import (
    create_private,
    lock_within,
    make_private_directories,
    open_private,
    sync_directory,
)
from namespace.sessions.session import Watched, WatchKind
from namespace.sqlite_store.image import begin_use, check_identity, end_use
from namespace.sqlite_store.session import SessionLock, is_dead, remove_lock, remove_stray_locks
from namespace.store import (
    ANY_VERSION,
    Check,
    Children,
    Create,
    Delete,
    Node,
    Operation,
    Put,
    Stat,
    ancestors_of,
    parent_of,
    sequence_suffix,
)

BUSY_TIMEOUT_S = 10.0
APPLICATION_ID = 0x444C4F47  # "DLOG"
SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE node (
    path TEXT PRIMARY KEY,
    parent TEXT NOT NULL,
    value BLOB NOT NULL,
    version INTEGER NOT NULL,
    creations INTEGER NOT NULL,
    children_count INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    owner INTEGER NOT NULL,
    data_change INTEGER NOT NULL,
    children_change INTEGER NOT NULL
);
CREATE INDEX node_by_parent ON node (parent);
CREATE INDEX node_by_owner ON node (owner) WHERE owner <> 0;
CREATE TABLE session (id INTEGER PRIMARY KEY AUTOINCREMENT, pid INTEGER NOT NULL, opened_ms INTEGER NOT NULL);
CREATE TABLE change (number INTEGER NOT NULL);
INSERT INTO change VALUES (0);
INSERT INTO node VALUES ('/', '', x'', 0, 0, 0, 0, 0, 0, 0);
"""
_COLUMNS = "value, version, creations, children_count, created_ms, owner, data_change, children_change"
ABSENT = -1  # the change number of a node that does not exist


@attrs.frozen
class _Row:
    value: bytes
    version: int
    creations: int
    children_count: int
    created_ms: int
    owner: int
    data_change: int
    children_change: int

    def stat(self) -> Stat:
        child_version = 2 * self.creations - self.children_count
        return Stat(self.version, child_version, self.children_count, self.created_ms, self.owner)


@attrs.frozen
class StoredNode:
    """A node of an image, with the numbers of the last changes of its data and among its children."""

    path: str
    parent: str
    node: Node
    data_change: int
    children_change: int


def nodes_of(image: bytes, database: Path) -> list[StoredNode]:
    """All nodes in the bytes of a database (``image``).

    Raises:
        StoreFormatError: They are no metadata store, or a newer release wrote it.
    """
    try:
        with closing(sqlite3.connect(":memory:")) as opened:
            opened.deserialize(image)
            names = ("application_id", "user_version")
            found = tuple(opened.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
            if found != (APPLICATION_ID, SCHEMA_VERSION):
                raise _other_release(database, *found)
            rows = opened.execute(f"SELECT path, parent, {_COLUMNS} FROM node").fetchall()
    except sqlite3.Error as exc:
        raise StoreFormatError(f"{database}: not a metadata store: {exc}") from exc
    nodes = []
    for path, parent, *columns in rows:
        row = _Row(*columns)
        nodes.append(
            StoredNode(path, parent, Node(row.value, row.stat()), row.data_change, row.children_change)
        )
    return nodes


def _other_release(database: Path, application_id: int, version: int) -> StoreFormatError:
    return StoreFormatError(
        f"{database}: not a metadata store of this release "
        f"(application id {application_id:#x}, schema {version})"
    )


class SqliteTree:
    """One session with the database, from the constructor to ``close``."""

    def __init__(self, path: Path, identity: tuple[int, int] | None = None) -> None:
        """Open or create the database, and a session in it.

        Args:
            identity: Device and inode of the file that must be there; nothing is created then. A file that
                replaced the former one holds other logs, although it has the same name.

        Raises:
            StoreFormatError: The file is no metadata store, or a newer release wrote it.
            StoreReplacedError: The file is not the one with ``identity``.
            PermissionError: A file of the store is a symlink, or belongs to another user.
            sqlite3.Error, OSError
        """
        self.path = path
        self._locks = path.with_name(path.name + "-sessions")
        if identity is not None:
            check_identity(path, identity)
        make_private_directories(self._locks)
        if identity is None:
            create_private(path)  # SQLite gives its other files the same mode
        self._use = self.identity = begin_use(path)
        try:
            mode = "rwc" if identity is None else "rw"
            self._db = sqlite3.connect(
                f"file:{quote(os.fsencode(path))}?mode={mode}",
                timeout=BUSY_TIMEOUT_S,
                isolation_level=None,
                check_same_thread=False,
                uri=True,
            )
            try:
                if identity is not None:
                    check_identity(path, identity)  # SQLite has opened the file by its name
                self._prepare()
                self.session_id, self._lock = self._open_session()
                self._seen_version = self._data_version()
            except BaseException:
                self._db.close()
                raise
        except BaseException:
            end_use(self._use)
            raise
        self._removed_dead = False  # since the last ``changed``
        self.closed = False

    def close(self) -> None:
        """End the session and delete its ephemeral nodes. Release the lock even if the database fails."""
        if self.closed:
            return
        self.closed = True
        try:
            with self._writing():
                self._remove_session(self.session_id)
        finally:
            self._db.close()
            end_use(self._use)
            self._lock.release()

    def get(self, path: str) -> tuple[Node, int]:
        """The node, and the number of the last change of its data."""
        with self._reading():
            row = self._row(path)
        return Node(row.value, row.stat()), row.data_change

    def get_many(self, paths: Sequence[str]) -> dict[str, Node | None]:
        """The nodes at one moment; None for a missing one."""
        with self._reading():
            rows = {path: self._find(path) for path in paths}
        return {path: None if row is None else Node(row.value, row.stat()) for path, row in rows.items()}

    def exists(self, path: str) -> tuple[Stat | None, int]:
        """The node's stat, and the number of the last change of its data or ``ABSENT``."""
        with self._reading():
            row = self._find(path)
        return (None, ABSENT) if row is None else (row.stat(), row.data_change)

    def children(self, path: str) -> tuple[Children, int]:
        """The children, and the number of the last change among them."""
        with self._reading():
            row = self._row(path)
            paths = self._db.execute("SELECT path FROM node WHERE parent = ?", (path,)).fetchall()
        names = tuple(sorted(child.rpartition("/")[2] for (child,) in paths))
        return Children(names, row.stat().child_version), row.children_change

    def create(
        self, path: str, value: bytes, *, ephemeral: bool, sequential: bool, parents: bool
    ) -> tuple[str, list[Watched]]:
        """Create a node; return its path and the watches to fire."""
        touched: list[Watched] = []
        with self._writing() as change:
            if parents:
                for ancestor in ancestors_of(path):
                    if self._find(ancestor) is None:
                        self._create(ancestor, b"", 0, change, touched)
            if sequential and (parent := self._find(parent_of(path))) is not None:
                path += sequence_suffix(parent.creations)
            self._create(path, value, self.session_id if ephemeral else 0, change, touched)
        return path, touched

    def put(self, path: str, value: bytes, expected: int) -> tuple[Stat, list[Watched]]:
        """Write a node's data; return its stat and the watches to fire."""
        touched: list[Watched] = []
        with self._writing() as change:
            self._put(path, value, expected, change, touched)
            stat = self._row(path).stat()
        return stat, touched

    def delete(self, path: str, expected: int) -> list[Watched]:
        """Delete a node; return the watches to fire."""
        touched: list[Watched] = []
        with self._writing() as change:
            self._delete(path, expected, change, touched)
        return touched

    def commit(self, operations: Sequence[Operation]) -> list[Watched]:
        """Do all operations or none; return the watches to fire."""
        touched: list[Watched] = []
        with self._writing() as change:
            for operation in operations:
                match operation:
                    case Create(path=path, value=value):
                        self._create(path, value, 0, change, touched)
                    case Put(path=path, value=value, expected=expected):
                        self._put(path, value, expected, change, touched)
                    case Delete(path=path, expected=expected):
                        self._delete(path, expected, change, touched)
                    case Check(path=path, expected=expected):
                        self._check_version(path, self._row(path), expected)
                    case _:
                        assert_never(operation)
        return touched

    def sync(self) -> None:
        """Delete the nodes of dead sessions. Committed writes are always visible."""
        with self._reading():
            pass

    def changed(self, seen: Mapping[Watched, int], *, look: bool) -> dict[Watched, int]:
        """The watches whose change number differs from the given one, with the number now.

        Args:
            look: Compare even if no other process has written.
        """
        with self._reading():
            version = self._data_version()
            if version == self._seen_version and not self._removed_dead and not look:
                return {}
            changed = {}
            for watched, number in seen.items():
                row = self._find(watched[1])
                if row is None:
                    present = ABSENT
                elif watched[0] is WatchKind.DATA:
                    present = row.data_change
                else:
                    present = row.children_change
                if present != number:
                    changed[watched] = present
            self._seen_version, self._removed_dead = version, False
            return changed

    def _prepare(self) -> None:
        with _exclusive(self._locks / "opening"):
            try:
                version = self._pragma("user_version")
                application_id = self._pragma("application_id")
                tables = self._db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
            except sqlite3.DatabaseError as exc:
                if isinstance(exc, sqlite3.OperationalError):
                    raise
                raise StoreFormatError(f"{self.path}: not a metadata store: {exc}") from exc
            if (application_id, version) not in ((APPLICATION_ID, SCHEMA_VERSION), (0, 0)) or (
                application_id == 0 and tables
            ):
                raise _other_release(self.path, application_id, version)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            if application_id == 0:
                self._db.executescript(
                    f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA application_id = {APPLICATION_ID};"
                    f"PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
                )
                sync_directory(self.path.parent)

    def _open_session(self) -> tuple[int, SessionLock]:
        # Take the lock before the row is visible: another process would count the session as dead.
        self._db.execute("BEGIN IMMEDIATE")
        lock = None
        try:
            session_ids = {row[0] for row in self._db.execute("SELECT id FROM session")}
            remove_stray_locks(self._locks, session_ids)
            session_id = self._db.execute(
                "INSERT INTO session (pid, opened_ms) VALUES (?, ?)", (os.getpid(), wall_ms())
            ).lastrowid
            assert session_id is not None
            lock = SessionLock(self._locks, session_id)
            self._db.execute("COMMIT")
        except BaseException:
            self._roll_back()
            if lock is not None:
                lock.release()
            raise
        return session_id, lock

    @contextmanager
    def _reading(self) -> Iterator[None]:
        self._remove_dead_sessions()
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._roll_back()

    @contextmanager
    def _writing(self) -> Iterator[int]:
        """A transaction that changes nodes; yields the number of the change."""
        if not self.closed:
            self._remove_dead_sessions()
        self._db.execute("BEGIN IMMEDIATE")
        try:
            # Another process may have ended the session since the check above. An ephemeral node that is
            # created after the end of its session would stay for ever.
            if not self.closed:
                self._check_session(
                    self._db.execute("SELECT id FROM session WHERE id = ?", (self.session_id,)).fetchone()
                )
            self._db.execute("UPDATE change SET number = number + 1")
            yield self._db.execute("SELECT number FROM change").fetchone()[0]
            self._db.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def _remove_dead_sessions(self) -> None:
        session_ids = [row[0] for row in self._db.execute("SELECT id FROM session")]
        self._check_session(self.session_id in session_ids)
        for session_id in session_ids:
            if session_id != self.session_id and is_dead(self._locks, session_id):
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    self._remove_session(session_id)
                    self._db.execute("COMMIT")
                except BaseException:
                    self._roll_back()
                    raise
                remove_lock(self._locks, session_id)
                self._removed_dead = True

    def _check_session(self, is_alive: object) -> None:
        if not is_alive:
            raise SessionExpiredError("/", f"the session's lock file in {self._locks} was removed")

    def _remove_session(self, session_id: int) -> None:
        self._db.execute("UPDATE change SET number = number + 1")
        change = self._db.execute("SELECT number FROM change").fetchone()[0]
        for (path,) in self._db.execute("SELECT path FROM node WHERE owner = ?", (session_id,)).fetchall():
            self._delete(path, ANY_VERSION, change, [])
        self._db.execute("DELETE FROM session WHERE id = ?", (session_id,))

    def _create(self, path: str, value: bytes, owner: int, change: int, touched: list[Watched]) -> None:
        parent_path = parent_of(path)
        parent = self._find(parent_path)
        if parent is None:
            raise NoNodeError(path, "its parent does not exist")
        if self._find(path) is not None:
            raise NodeExistsError(path)
        if parent.owner:
            raise NoChildrenForEphemeralsError(path)
        self._db.execute(
            "INSERT INTO node VALUES (?, ?, ?, 0, 0, 0, ?, ?, ?, ?)",
            (path, parent_path, value, wall_ms(), owner, change, change),
        )
        self._db.execute(
            "UPDATE node SET creations = creations + 1, children_count = children_count + 1,"
            " children_change = ? WHERE path = ?",
            (change, parent_path),
        )
        touched += [(WatchKind.DATA, path), (WatchKind.CHILDREN, parent_path)]

    def _put(self, path: str, value: bytes, expected: int, change: int, touched: list[Watched]) -> None:
        self._check_version(path, self._row(path), expected)
        self._db.execute(
            "UPDATE node SET value = ?, version = version + 1, data_change = ? WHERE path = ?",
            (value, change, path),
        )
        touched.append((WatchKind.DATA, path))

    def _delete(self, path: str, expected: int, change: int, touched: list[Watched]) -> None:
        row = self._row(path)
        self._check_version(path, row, expected)
        if row.children_count:
            raise NotEmptyError(path)
        parent_path = parent_of(path)
        self._db.execute("DELETE FROM node WHERE path = ?", (path,))
        self._db.execute(
            "UPDATE node SET children_count = children_count - 1, children_change = ? WHERE path = ?",
            (change, parent_path),
        )
        touched += [
            (WatchKind.DATA, path),
            (WatchKind.CHILDREN, path),
            (WatchKind.CHILDREN, parent_path),
        ]

    @staticmethod
    def _check_version(path: str, row: _Row, expected: int) -> None:
        if expected not in (ANY_VERSION, row.version):
            raise BadVersionError(path, f"version is {row.version}, not the expected {expected}")

    def _find(self, path: str) -> _Row | None:
        found = self._db.execute(f"SELECT {_COLUMNS} FROM node WHERE path = ?", (path,)).fetchone()
        return None if found is None else _Row(*found)

    def _row(self, path: str) -> _Row:
        row = self._find(path)
        if row is None:
            raise NoNodeError(path)
        return row

    def _pragma(self, name: str) -> int:
        number = self._db.execute(f"PRAGMA {name}").fetchone()[0]
        assert isinstance(number, int)
        return number

    def _data_version(self) -> int:
        """A number that changes with each commit of another connection."""
        return self._pragma("data_version")


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Let one process in at a time. Switching to WAL fails while another process does the same."""
    fd = open_private(path, create=True)
    try:
        lock_within(fd, BUSY_TIMEOUT_S, path)
        yield
    finally:
        os.close(fd)
