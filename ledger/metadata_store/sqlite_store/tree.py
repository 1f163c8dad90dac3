"""The nodes in an SQLite file, with blocking calls.

table    one row for each
node     node: data, counters as ZooKeeper keeps them, the number of its last change
session  session that has not ended; ``session`` says whether its process is alive
change   (one row) the number of the last change; each write of a node takes the next number

Inside: reading and changing nodes. Not inside: the file, transactions, sessions (``database``), threads, the
events of watches, trio (``store``). One thread at a time uses a tree.
Always: each call is one transaction; no result contains an ephemeral node whose owner was dead when the call
began.

Source: counters as ZooKeeper's DataTree.java keeps them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import assert_never

import attrs

from ledger.metadata_store.errors import (
    BadVersionError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    StoreFormatError,
    StoreLostError,
)
from ledger.metadata_store.sessions.session import Watched, WatchKind
from ledger.metadata_store.sqlite_store.copy_format import COLUMNS, CopyVerdict, compare, read_changes
from ledger.metadata_store.sqlite_store.database import (
    APPLICATION_ID,
    PAGE_BYTES,
    SCHEMA_VERSION,
    SqliteDatabase,
    other_release,
)
from ledger.metadata_store.sqlite_store.second_copy import copy_name
from ledger.metadata_store.store import (
    ANY_VERSION,
    Check,
    Children,
    Create,
    Delete,
    Node,
    Operation,
    Put,
    Stat,
    parent_of,
    sequence_suffix,
)
from ledger.runtime.clock import wall_ms

READ_AT_ONCE = 500  # nodes by one statement: SQLite limits its parameters
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
            if found == (0, 0) and not opened.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
                raise StoreLostError(
                    f"metadata store {database}: the file has no tables, so logs would be missing; was its"
                    " -wal file removed? Nothing was changed. Bring it back from a copy, with its -wal file"
                )
            if found != (APPLICATION_ID, SCHEMA_VERSION):
                raise other_release(database, *found)
            rows = opened.execute(f"SELECT path, parent, {COLUMNS} FROM node").fetchall()
    except sqlite3.Error as exc:
        raise StoreFormatError(f"{database}: not a metadata store: {exc}") from None
    nodes = []
    for path, parent, *columns in rows:
        row = _Row(*columns)
        nodes.append(
            StoredNode(path, parent, Node(row.value, row.stat()), row.data_change, row.children_change)
        )
    return nodes


def compare_image(image: bytes, database: Path) -> tuple[CopyVerdict, str]:
    """Compare the bytes of a database with the second copy beside it. ``OSError``, ``StoreFormatError``"""
    try:
        copy = database.with_name(copy_name(database)).read_bytes()
    except FileNotFoundError:
        copy = b""
    try:
        with closing(sqlite3.connect(":memory:")) as opened:
            opened.deserialize(image)
            found = opened.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if found != "ok":
                return CopyVerdict.LOST, f"it is damaged: {found}"
            (number,) = opened.execute("SELECT number FROM change").fetchone()
            has_place = opened.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'copied'").fetchone()[
                0
            ]
            copied = opened.execute("SELECT number, digest FROM copied").fetchone() if has_place else None
            rows = {path: tuple(row) for path, *row in opened.execute(f"SELECT path, {COLUMNS} FROM node")}
    except (sqlite3.Error, TypeError, OverflowError) as exc:
        return CopyVerdict.LOST, f"it is damaged: {exc}"
    return compare(read_changes(copy), number, copied, rows)


class SqliteTree(SqliteDatabase):
    """The nodes, as one session sees them."""

    def get(self, path: str) -> tuple[Node, int]:
        """The node, and the number of the last change of its data."""
        with self._reading():
            row = self._row(path)
        return Node(row.value, row.stat()), row.data_change

    def get_many(self, paths: Sequence[str]) -> dict[str, Node | None]:
        """The nodes at one moment; None for a missing one."""
        nodes: dict[str, Node | None] = dict.fromkeys(paths)
        with self._reading():
            for start in range(0, len(paths), READ_AT_ONCE):
                asked = paths[start : start + READ_AT_ONCE]
                marks = ",".join("?" * len(asked))
                found = self._db.execute(f"SELECT path, {COLUMNS} FROM node WHERE path IN ({marks})", asked)
                for path, *columns in found:
                    row = _Row(*columns)
                    nodes[path] = Node(row.value, row.stat())
        return nodes

    def read_tree(self, path: str) -> dict[str, Node]:
        """A node and all nodes below it at one moment."""
        below = "/" if path == "/" else f"{path}/"
        with self._reading():
            found = self._db.execute(
                f"SELECT path, {COLUMNS} FROM node WHERE path = ? OR substr(path, 1, ?) = ?",
                (path, len(below), below),
            ).fetchall()
        rows = ((each, _Row(*columns)) for each, *columns in found)
        return {each: Node(row.value, row.stat()) for each, row in rows}

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

    def last_change(self) -> int:
        """See ``MetadataStore.last_change``."""
        with self._reading():
            (number,) = self._db.execute(
                "SELECT max(max(data_change, children_change)) FROM node WHERE owner = 0"
            ).fetchone()
        return int(number)

    def create(
        self, path: str, value: bytes, *, ephemeral: bool, sequential: bool, parents: bool
    ) -> tuple[str, list[Watched]]:
        """Create a node; return its path and the watches to fire."""
        if not ephemeral:
            self._check_space()
        touched: list[Watched] = []
        with self._writing(touched) as change:
            if parents:
                self._create_ancestors(path, change, touched)
            if sequential and (parent := self._find(parent_of(path))) is not None:
                path += sequence_suffix(parent.creations)
            self._create(path, value, self.session_id if ephemeral else 0, change, touched)
        return path, touched

    def draw_sequential(self, path: str) -> tuple[str, list[Watched]]:
        """Leave the tree as if a sequential node was created and deleted; return its path."""
        touched: list[Watched] = []
        parent_path = parent_of(path)
        with self._writing(touched) as change:
            self._create_ancestors(path, change, touched)
            parent = self._row(parent_path)
            path += sequence_suffix(parent.creations)
            if parent.owner:
                raise NoChildrenForEphemeralsError(path)
            self._db.execute(
                "UPDATE node SET creations = creations + 1, children_change = ? WHERE path = ?",
                (change, parent_path),
            )
            touched += [(WatchKind.DATA, path), (WatchKind.CHILDREN, parent_path)]
        return path, touched

    def skip_numbers(self, path: str, up_to: int) -> list[Watched]:
        """Count creations below a node as if ``up_to`` had been made, unless there were more.

        Return the watches to fire.
        """
        touched = [(WatchKind.CHILDREN, path)]
        with self._writing(touched) as change:
            self._row(path)
            self._db.execute(
                "UPDATE node SET creations = max(creations, ?), children_change = ? WHERE path = ?",
                (up_to, change, path),
            )
        return touched

    def put(self, path: str, value: bytes, expected: int) -> tuple[Stat, list[Watched]]:
        """Write a node's data; return its stat and the watches to fire."""
        touched: list[Watched] = []
        with self._writing(touched) as change:
            self._put(path, value, expected, change, touched)
            stat = self._row(path).stat()
        return stat, touched

    def delete(self, path: str, expected: int) -> list[Watched]:
        """Delete a node; return the watches to fire."""
        touched: list[Watched] = []
        with self._writing(touched) as change:
            self._delete(path, expected, change, touched)
        return touched

    def commit(self, operations: Sequence[Operation]) -> list[Watched]:
        """Do all operations or none; return the watches to fire."""
        kinds = {type(each) for each in operations}
        if Create in kinds and Delete not in kinds:
            self._check_space()
        touched: list[Watched] = []
        with self._writing(touched) as change:
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

    def _create_ancestors(self, path: str, change: int, touched: list[Watched]) -> None:
        missing = []
        # A node that exists has all of its ancestors.
        while self._find(path := parent_of(path)) is None:
            missing.append(path)
        for ancestor in reversed(missing):
            self._create(ancestor, b"", 0, change, touched)

    # A change is made first, and its conditions are part of it. Only if it changed no row, the node is read
    # to find out which condition failed; the error then undoes the transaction.

    def _create(self, path: str, value: bytes, owner: int, change: int, touched: list[Watched]) -> None:
        parent_path = parent_of(path)
        counted = self._db.execute(
            "UPDATE node SET creations = creations + 1, children_count = children_count + 1,"
            " children_change = ? WHERE path = ? AND owner = 0",
            (change, parent_path),
        )
        if not counted.rowcount:
            if self._find(parent_path) is None:
                raise NoNodeError(path, "its parent does not exist")
            raise NoChildrenForEphemeralsError(path)
        try:
            self._db.execute(
                "INSERT INTO node VALUES (?, ?, ?, 0, 0, 0, ?, ?, ?, ?)",
                (path, parent_path, value, wall_ms(), owner, change, change),
            )
        except sqlite3.IntegrityError:
            raise NodeExistsError(path) from None
        self._wal_pages += len(value) // PAGE_BYTES
        touched += [(WatchKind.DATA, path), (WatchKind.CHILDREN, parent_path)]

    def _put(self, path: str, value: bytes, expected: int, change: int, touched: list[Watched]) -> None:
        written = self._db.execute(
            "UPDATE node SET value = ?, version = version + 1, data_change = ?"
            " WHERE path = ? AND ? IN (-1, version)",
            (value, change, path, expected),
        )
        if not written.rowcount:
            self._check_version(path, self._row(path), expected)
        self._wal_pages += len(value) // PAGE_BYTES
        touched.append((WatchKind.DATA, path))

    def _delete(self, path: str, expected: int, change: int, touched: list[Watched]) -> None:
        deleted = self._db.execute(
            "DELETE FROM node WHERE path = ? AND ? IN (-1, version) AND children_count = 0", (path, expected)
        )
        if not deleted.rowcount:
            self._check_version(path, self._row(path), expected)
            raise NotEmptyError(path)
        parent_path = parent_of(path)
        self._db.execute(
            "UPDATE node SET children_count = children_count - 1, children_change = ? WHERE path = ?",
            (change, parent_path),
        )
        touched += [
            (WatchKind.DATA, path),
            (WatchKind.CHILDREN, path),
            (WatchKind.CHILDREN, parent_path),
        ]

    def _delete_nodes_of(self, session_id: int, change: int, touched: list[Watched]) -> None:
        for (path,) in self._db.execute("SELECT path FROM node WHERE owner = ?", (session_id,)).fetchall():
            self._delete(path, ANY_VERSION, change, touched)

    @staticmethod
    def _check_version(path: str, row: _Row, expected: int) -> None:
        if expected not in (ANY_VERSION, row.version):
            raise BadVersionError(path, f"version is {row.version}, not the expected {expected}")

    def _find(self, path: str) -> _Row | None:
        found = self._db.execute(f"SELECT {COLUMNS} FROM node WHERE path = ?", (path,)).fetchone()
        return None if found is None else _Row(*found)

    def _row(self, path: str) -> _Row:
        row = self._find(path)
        if row is None:
            raise NoNodeError(path)
        return row
