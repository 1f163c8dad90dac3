"""SQLite in WAL mode with synchronous=FULL: each commit syncs the WAL. The reader polls ``data_version``.

Source: https://www.sqlite.org/pragma.html (data_version, synchronous).
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from tests.bench.peers.polling import READ_RECORDS, pause
from tests.bench.peers.seam import Address, Peer, Service, no_servers

_SELECT = "SELECT payload FROM records WHERE number > ? ORDER BY number LIMIT ?"


class SqliteWriter:
    """Inserts the records of one append in one transaction."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def append(self, payloads: Sequence[bytes]) -> None:
        """As ``PeerWriter.append``."""
        self._database.execute("BEGIN IMMEDIATE")
        self._database.executemany(
            "INSERT INTO records (payload) VALUES (?)", [(payload,) for payload in payloads]
        )
        self._database.execute("COMMIT")

    append_each = append


class SqliteReader:
    """Selects the records after the last one."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._met = 0
        self._version = -1

    def read(self) -> Sequence[bytes]:
        """As ``PeerReader.read``."""
        while True:
            # First the version, then the rows: a commit between the two is found by the next look.
            (version,) = self._database.execute("PRAGMA data_version").fetchone()
            if version == self._version:
                pause()
                continue
            rows = self._database.execute(_SELECT, (self._met, READ_RECORDS)).fetchall()
            self._met += len(rows)
            if len(rows) < READ_RECORDS:
                self._version = version
            if rows:
                return [payload for (payload,) in rows]


@contextlib.asynccontextmanager
async def _serve(directory: Path, _replicas: int) -> AsyncIterator[Service]:
    yield Service({"file": str(directory / "records.sqlite")}, 1, no_servers)


def _connect(address: Address) -> sqlite3.Connection:
    return sqlite3.connect(address["file"], isolation_level=None, timeout=60)


@contextlib.contextmanager
def _open_writer(address: Address, _size: int) -> Iterator[SqliteWriter]:
    with contextlib.closing(_connect(address)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("CREATE TABLE records (number INTEGER PRIMARY KEY, payload BLOB NOT NULL)")
        yield SqliteWriter(database)


@contextlib.contextmanager
def _open_reader(address: Address, _size: int) -> Iterator[SqliteReader]:
    with contextlib.closing(_connect(address)) as database:
        yield SqliteReader(database)


def _find_missing() -> str | None:
    return None


PEER = Peer("sqlite", _find_missing, _serve, _open_writer, _open_reader)
