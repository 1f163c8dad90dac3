"""A connection with the database of a metadata store, and one session in it, with blocking calls.

Inside: opening the file, transactions, waiting for other processes, checkpoints of the WAL, ending dead
sessions. Not inside: nodes (``tree``), threads, trio (``store``). One thread at a time uses a connection.
Always: a transaction is synced to disk before it returns (WAL, synchronous=FULL); no transaction waits for
another process: ``patiently`` does, in a thread; within a transaction this session is alive and no other one
is dead; a session that is over changes nothing.

Source: sqlite.org (WAL, data_version, wal_checkpoint).
"""

from __future__ import annotations

import abc
import contextlib
import errno
import itertools
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from ledger.metadata_store.errors import (
    MetadataError,
    SessionExpiredError,
    StoreFormatError,
    StoreLostError,
)
from ledger.metadata_store.sqlite_store.copy_format import (
    COLUMNS,
    DIGEST_BYTES,
    Change,
    CopyVerdict,
    Row,
    compare,
    encode_change,
)
from ledger.metadata_store.sqlite_store.failures import is_busy, is_full
from ledger.metadata_store.sqlite_store.image import begin_use, check_identity, end_use
from ledger.metadata_store.sqlite_store.reserve import RESERVE_BYTES, SpaceReserve
from ledger.metadata_store.sqlite_store.second_copy import SecondCopy, copy_name
from ledger.metadata_store.sqlite_store.session import SessionLock, is_dead, remove_lock, remove_stray_locks
from ledger.metadata_store.store import parent_of
from ledger.runtime.clock import wall_ms
from ledger.runtime.events import event
from ledger.runtime.held_directories import HeldDirectory, open_directory
from ledger.runtime.log_lines import get_logger
from ledger.runtime.private_files import (
    create_private,
    is_named,
    lock_within,
    make_private_directories,
    open_private,
    sync_directory,
)

if TYPE_CHECKING:
    from ledger.metadata_store.sessions.session import Watched

BUSY_TIMEOUT_S = 10.0
BUSY_PAUSES_S = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05)  # between attempts; the last one is repeated
CHECKPOINT_PAGES = 1000  # in the WAL, about, when it is due: SQLite's own default
SCARCE_CHECKPOINT_PAGES = 20  # while the disk has little space: the WAL must not take what the reserves gave
PAGE_BYTES = 4096
PAGES_OF_WRITE = 10  # in the WAL after a transaction, about, without large data
_OPENING = "opening"  # beside the locks of the sessions
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
CREATE TABLE copied (number INTEGER NOT NULL, digest BLOB NOT NULL);
INSERT INTO node VALUES ('/', '', x'', 0, 0, 0, 0, 0, 0, 0);
"""
NEW_STORE = (
    f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA application_id = {APPLICATION_ID};"
    f"PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
)
T = TypeVar("T")
log = get_logger(__name__)


class _NothingChangedError(Exception):
    """Undoes a transaction without a change."""


class SqliteDatabase(abc.ABC):
    """One session with the database, from the constructor to ``close``."""

    def __init__(self, path: Path, identity: tuple[int, int] | None = None, must_exist: bool = False) -> None:
        """Open or create the database, and a session in it.

        Args:
            identity: Device and inode of the file that must be there; nothing is created then. A file that
                replaced the former one holds other logs, although it has the same name.
            must_exist: The store was used before: a file that is missing, or has no tables, has lost them.

        Raises:
            StoreLostError: It ``must_exist``, and does not.
            StoreFormatError: The file is no metadata store, or a newer release wrote it.
            StoreReplacedError: The file is not the one with ``identity``.
            PermissionError: A file of the store is a symlink, or belongs to another user.
            sqlite3.Error, OSError
        """
        self.path, self._must_exist = path, must_exist
        # SQLite deletes the WAL of an empty file.
        if must_exist and not (path.exists() and path.stat().st_size):
            raise self._lost("the file is missing or empty")
        locks = path.with_name(path.name + "-sessions")
        if identity is not None:
            check_identity(path, identity)
        make_private_directories(locks)
        if identity is None:
            create_private(path, takes_links=True)  # SQLite gives its other files the same mode
        with ExitStack() as opened:
            self._home_fd = open_directory(path.parent)
            opened.callback(os.close, self._home_fd)
            self._locks = HeldDirectory(locks, open_directory(locks))
            opened.callback(self._locks.close)
            self._copy = SecondCopy(path, self._home_fd)
            opened.callback(self._copy.close)
            self._reserve = SpaceReserve(self._home_fd, f"{path.stem}.reserve")
            opened.callback(self._reserve.fill, makes=False)
            if self._reserve.is_wanted():
                self._reserve.release()
            self.identity = begin_use(path)
            opened.callback(end_use, self.identity)
            self._db = sqlite3.connect(
                f"file:{quote(os.fsencode(path))}?mode={'rwc' if identity is None else 'rw'}",
                timeout=BUSY_TIMEOUT_S,
                isolation_level=None,
                check_same_thread=False,
                uri=True,
            )
            opened.callback(self._db.close)
            self._check_place()  # SQLite has opened the file by its name
            self._prepare()
            self.session_id, self._lock = self._open_session()
            opened.callback(self._lock.release)
            self._seen_version = self._data_version()
            # From here on a transaction may be made in the loop: it waits for no other process, and does
            # not copy the WAL into the database.
            self._db.execute("PRAGMA busy_timeout = 0")
            self._db.execute("PRAGMA wal_autocheckpoint = 0")
            self._opened = opened.pop_all()
        self._own_session = str(self.session_id)
        # During ``together``: the number of its change, and what is touched by it.
        self._whole: tuple[int, list[Watched]] | None = None
        self._removed_dead = False  # since the last ``changed``
        self._wal_pages = _wal_pages(path)  # about, since the last checkpoint
        self.closed = False
        self._reserve.fill()

    def close(self) -> None:
        """End the session and delete its ephemeral nodes. Release the lock even if the database fails."""
        if self.closed:
            return
        self.closed = True
        with self._opened:
            self.patiently(lambda: self._remove_session(self.session_id))

    def patiently(self, work: Callable[[], T]) -> T:
        """Do the work; repeat it while other processes lock the database, for ``BUSY_TIMEOUT_S``.

        Once more if the disk is full: in the reserve, or in the space of the WAL. A transaction that finds
        the database locked, or the disk full, does nothing.
        """
        deadline_s = time.monotonic() + BUSY_TIMEOUT_S
        has_made_space = False
        try:
            for attempt in itertools.count():
                try:
                    return work()
                except sqlite3.OperationalError as exc:
                    if is_full(exc, self.path) and not has_made_space:
                        has_made_space = True
                        self._make_space()
                        continue
                    if not is_busy(exc) or time.monotonic() >= deadline_s:
                        raise
                time.sleep(BUSY_PAUSES_S[min(attempt, len(BUSY_PAUSES_S) - 1)])
        finally:
            if has_made_space:
                self._reserve.fill()  # or others would take what is left of it
        raise AssertionError

    def _make_space(self) -> None:
        """For the next change on a full disk."""
        self._reserve.release()
        with contextlib.suppress(sqlite3.Error):  # the next change is written over the beginning of the WAL
            self._db.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()

    def _check_space(self) -> None:
        """For a change that only adds nodes. The rest of the reserve is for changes that delete nodes.

        Raises:
            OSError: The disk is full, and half of the reserve is used.
        """
        if self._reserve.is_scarce() and self._reserve.missing_bytes() > RESERVE_BYTES // 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    @property
    def is_checkpoint_due(self) -> bool:
        """True if the WAL has grown so far that the next write should call ``checkpoint``, in a thread."""
        pages = self._wal_pages
        return pages >= CHECKPOINT_PAGES or (pages >= SCARCE_CHECKPOINT_PAGES and self._reserve.is_scarce())

    def checkpoint(self) -> None:
        """Copy what other connections no longer need from the WAL into the database.

        A failure is left to the next one: the WAL has all data.
        """
        self._wal_pages = 0
        self._copy.sync()
        with contextlib.suppress(sqlite3.Error):
            self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()

    def sync(self) -> None:
        """Delete the nodes of dead sessions. Committed writes are always visible."""
        with self._reading():
            pass

    @abc.abstractmethod
    def _delete_nodes_of(self, session_id: int, change: int, touched: list[Watched]) -> None:
        """In a transaction: delete the ephemeral nodes of a session; add what is touched."""

    def _prepare(self) -> None:
        with _exclusive(self._locks):
            try:
                version = self._pragma("user_version")
                application_id = self._pragma("application_id")
                tables = self._db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
            except sqlite3.DatabaseError as exc:
                if isinstance(exc, sqlite3.OperationalError):
                    raise
                raise StoreFormatError(f"{self.path}: not a metadata store: {exc}") from None
            if (application_id, version) not in ((APPLICATION_ID, SCHEMA_VERSION), (0, 0)) or (
                application_id == 0 and tables
            ):
                raise other_release(self.path, application_id, version)
            if application_id == 0 and self._must_exist:
                raise self._lost("the file has no tables; was its -wal file removed?")
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            if application_id == 0:
                self._db.executescript(NEW_STORE)
                sync_directory(self.path.parent)
                self._copy.put_aside()  # of a store that was given up
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._compare_copy()
                self._check_place()
                self._db.execute("COMMIT")
            finally:
                self._roll_back()

    def _lost(self, evidence: str, *, is_copied: bool = False) -> StoreLostError:
        return lost_store(self.path, evidence, is_copied=is_copied)

    def _open_session(self) -> tuple[int, SessionLock]:
        # Take the lock before the row is visible: another process would count the session as dead.
        self._db.execute("BEGIN IMMEDIATE")
        lock = None
        try:
            session_ids = {row[0] for row in self._db.execute("SELECT id FROM session")}
            # Listed by a descriptor of its own, which no other thread reads.
            listed = open_directory(".", directory_fd=self._locks.fd)
            try:
                remove_stray_locks(self._locks.fd, os.listdir(listed), session_ids)
            finally:
                os.close(listed)
            session_id = self._db.execute(
                "INSERT INTO session (pid, opened_ms) VALUES (?, ?)", (os.getpid(), wall_ms())
            ).lastrowid
            assert session_id is not None  # an ephemeral node needs a session
            lock = SessionLock(self._locks.fd, session_id)
            self._check_place()
            self._db.execute("COMMIT")
        except BaseException:
            self._roll_back()
            if lock is not None:
                lock.release()
            raise
        return session_id, lock

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """A transaction that reads, after the nodes of dead sessions are deleted."""
        try:
            self._begin("BEGIN")
            yield
        finally:
            self._roll_back()

    def _compare_copy(self) -> None:
        """In the transaction that opens the store: compare it with its copy. Apply the one change that is
        missing, or write the copy again.

        Raises:
            StoreLostError: The database is damaged or older than its copy.
        """
        found = self._db.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if found != "ok":
            raise self._lost(f"it is damaged: {found}", is_copied=True)
        (number,) = self._db.execute("SELECT number FROM change").fetchone()
        self._db.execute("CREATE TABLE IF NOT EXISTS copied (number INTEGER NOT NULL, digest BLOB NOT NULL)")
        copied = self._db.execute("SELECT number, digest FROM copied").fetchone()
        changes, rows = self._copy.read(), self._rows()
        verdict, evidence = compare(changes, number, copied, rows)
        match verdict:
            case CopyVerdict.LOST:
                raise self._lost(evidence, is_copied=True)
            case CopyVerdict.AHEAD:
                log.warning(
                    "%s: change %d is taken from %s",
                    self.path,
                    number + 1,
                    self._copy.name,
                    extra=event("metadata.change_taken", database=str(self.path)),
                )
                self._apply(changes[-1])
            case CopyVerdict.BEHIND:
                if copied is not None:
                    log.warning(
                        "%s: %s is written again: %s",
                        self.path,
                        self._copy.name,
                        evidence,
                        extra=event("metadata.copy_written_again", database=str(self.path)),
                    )
                digest = copied[1] if copied is not None and copied[0] == number else os.urandom(DIGEST_BYTES)
                self._write_copy(number, digest, rows)
                self._db.execute("DELETE FROM copied")
                self._db.execute("INSERT INTO copied VALUES (?, ?)", (number, digest))

    def _apply(self, change: Change) -> None:
        for path, row in change.rows.items():
            self._db.execute("DELETE FROM node WHERE path = ?", (path,))
            if row is not None:
                parent = "" if path == "/" else parent_of(path)
                marks = ",".join("?" * (len(row) + 2))
                self._db.execute(f"INSERT INTO node VALUES ({marks})", (path, parent, *row))
        self._db.execute("UPDATE change SET number = ?", (change.number,))
        self._db.execute("UPDATE copied SET number = ?, digest = ?", (change.number, change.digest))

    def _rows(self) -> dict[str, Row]:
        return {path: tuple(row) for path, *row in self._db.execute(f"SELECT path, {COLUMNS} FROM node")}

    def _write_copy(self, number: int, digest: bytes, rows: Mapping[str, Row]) -> None:
        try:
            self._copy.write(number, digest, rows)
        except OSError as exc:
            self._copy.warn(exc)

    @contextmanager
    def _copying(self, number: int, touched: Sequence[Watched]) -> Iterator[None]:
        """Around a change within its transaction: append it to the copy.

        Args:
            number: Of the change before.
            touched: Filled by the change.
        """
        before, digest = self._db.execute("SELECT number, digest FROM copied").fetchone()
        is_copied = before == number  # else another release writes at the same time
        if is_copied and not self._copy.is_at(number, digest):
            self._write_copy(number, digest, self._rows())
        yield
        if not is_copied:
            return
        rows: dict[str, Row | None] = dict.fromkeys([path for _, path in touched])
        for path in rows:
            rows[path] = self._db.execute(f"SELECT {COLUMNS} FROM node WHERE path = ?", (path,)).fetchone()
        record, digest = encode_change(number + 1, digest, rows)
        try:
            self._copy.append(record, number + 1, digest)
        except OSError as exc:
            self._copy.warn(exc)
        self._db.execute("UPDATE copied SET number = ?, digest = ?", (number + 1, digest))

    @contextmanager
    def _writing(self, touched: Sequence[Watched]) -> Iterator[int]:
        """A transaction that changes nodes, and adds them to ``touched``; yields the number of the change.

        Within ``together``: a part of its transaction that is undone alone.
        """
        if self._whole is not None:
            number, all_touched = self._whole
            with self._part():
                yield number
            all_touched += touched
            self._wal_pages += PAGES_OF_WRITE
            return
        try:
            number = self._begin("BEGIN IMMEDIATE")
            with self._copying(number, touched):
                self._db.execute("UPDATE change SET number = ?", (number + 1,))
                yield number + 1
            self._check_place()
            self._db.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        self._wal_pages += PAGES_OF_WRITE

    def together(self, works: Sequence[Callable[[], T]]) -> list[T | MetadataError | OSError]:
        """Make several writes in one transaction, which is one change.

        Return the result of each, or the error that undid it. An error of SQLite undoes them all, and is
        raised.
        """
        made: list[T | MetadataError | OSError] = []
        touched: list[Watched] = []
        with contextlib.suppress(_NothingChangedError), self._writing(touched) as number:
            self._whole = number, touched
            try:
                for work in works:
                    try:
                        made.append(work())
                    except (MetadataError, OSError) as exc:
                        made.append(exc)
            finally:
                self._whole = None
            if not touched:
                raise _NothingChangedError
        return made

    @contextmanager
    def _part(self) -> Iterator[None]:
        self._db.execute("SAVEPOINT part")
        try:
            yield
        except BaseException:
            if self._db.in_transaction:  # not after an error for which SQLite undoes all of it
                self._db.execute("ROLLBACK TO part")
                self._db.execute("RELEASE part")
            raise
        self._db.execute("RELEASE part")

    def _begin(self, begin: str) -> int:
        """Begin a transaction in which no session is dead; return the number of the last change."""
        while True:
            self._check_place()
            self._db.execute(begin)
            # One look within the transaction. An ephemeral node that is created after another process has
            # ended this session would stay for ever.
            number, found = self._db.execute(
                "SELECT number, (SELECT group_concat(id) FROM session) FROM change"
            ).fetchone()
            if found == self._own_session:  # nearly always
                return int(number)
            session_ids = [int(each) for each in (found or "").split(",") if each]
            self._check_session(self.session_id in session_ids)
            if not any(self._is_dead(each) for each in session_ids):
                return int(number)
            self._roll_back()
            self._remove_dead_sessions(session_ids)

    def _check_place(self) -> None:
        """Raise ``StoreReplacedError`` if the path leads to another file: SQLite opens its files by name."""
        check_identity(self.path, self.identity)

    def _roll_back(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def _is_dead(self, session_id: int) -> bool:
        return session_id != self.session_id and is_dead(self._locks.fd, session_id)

    def _remove_dead_sessions(self, session_ids: Iterable[int]) -> None:
        for session_id in session_ids:
            if self._is_dead(session_id):
                self._remove_session(session_id)
                remove_lock(self._locks.fd, session_id)
                self._removed_dead = True

    def _check_session(self, is_alive: bool) -> None:
        if not is_alive:
            raise SessionExpiredError("/", f"the session's lock file in {self._locks.path} was removed")

    def _remove_session(self, session_id: int) -> None:
        """Remove a session with its ephemeral nodes, in a transaction; it may be removed already."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            number = self._db.execute("SELECT number FROM change").fetchone()[0]
            touched: list[Watched] = []
            with self._copying(number, touched):
                self._db.execute("UPDATE change SET number = ?", (number + 1,))
                self._delete_nodes_of(session_id, number + 1, touched)
            self._db.execute("DELETE FROM session WHERE id = ?", (session_id,))
            self._check_place()
            self._db.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise

    def _pragma(self, name: str) -> int:
        number = self._db.execute(f"PRAGMA {name}").fetchone()[0]
        assert isinstance(number, int)  # SQLite's PRAGMA of a number
        return number

    def _data_version(self) -> int:
        """A number that changes with each commit of another connection."""
        return self._pragma("data_version")


def lost_store(database: Path, evidence: str, *, is_copied: bool) -> StoreLostError:
    """The error of a store that lacks what it had. ``is_copied``: its second copy is sound."""
    back = ""
    if is_copied:
        back = (
            f"`dlog repair {database.parent}` makes it again from {copy_name(database)}. To keep this one,"
            f" and give up what it lacks, remove {copy_name(database)}"
        )
    return StoreLostError(
        f"metadata store {database}: {evidence}. Logs would be missing, so nothing was opened or"
        f" changed. {back or 'Bring it back from a backup of the directory, with its -wal file'}. A copy that"
        " was made while a process had the directory open is such a one; `dlog backup` makes whole ones"
    )


def other_release(database: Path, application_id: int, version: int) -> StoreFormatError:
    """The error of a file that is no metadata store, or that of another release."""
    return StoreFormatError(
        f"{database}: not a metadata store of this release "
        f"(application id {application_id:#x}, schema {version})"
    )


def _wal_pages(path: Path) -> int:
    """The pages that the WAL may have. Its file keeps its size when SQLite begins it again."""
    try:
        return path.with_name(path.name + "-wal").stat().st_size // PAGE_BYTES
    except OSError:
        return 0


@contextmanager
def _exclusive(locks: HeldDirectory) -> Iterator[None]:
    """Let one process in at a time. Switching to WAL fails while another process does the same."""
    while True:
        fd = open_private(_OPENING, create=True, directory_fd=locks.fd, takes_links=True)
        try:
            lock_within(fd, BUSY_TIMEOUT_S, locks.path / _OPENING)
            if not is_named(fd, _OPENING, locks.fd):
                continue  # the file got a copy in its place meanwhile
            yield
            return
        finally:
            os.close(fd)
