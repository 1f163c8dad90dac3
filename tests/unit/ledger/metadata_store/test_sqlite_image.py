"""Reading a database without SQLite. The twin is SQLite itself, with a copy of the files."""

# covers: ledger/metadata_store/sqlite_store/image.py

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from ledger.metadata_store.errors import StoreUnreachableError
from ledger.metadata_store.sqlite_store import image as sqlite_image
from ledger.metadata_store.sqlite_store.image import DatabaseFiles
from ledger.metadata_store.sqlite_store.tree import SqliteTree


def connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("CREATE TABLE IF NOT EXISTS record (id INTEGER PRIMARY KEY, value BLOB)")
    return database


def rows_in(image: bytes | None) -> list[tuple[int, bytes]]:
    assert image is not None
    with closing(sqlite3.connect(":memory:")) as database:
        database.deserialize(image)
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return database.execute("SELECT id, value FROM record ORDER BY id").fetchall()


def rows_of_twin(path: Path, scratch: Path) -> list[tuple[int, bytes]]:
    """The rows that SQLite finds in a copy of the files, as after a crash."""
    scratch.mkdir()
    for suffix in ("", "-wal"):
        if (source := path.with_name(path.name + suffix)).exists():
            shutil.copy(source, scratch / source.name)
    with closing(sqlite3.connect(scratch / path.name)) as database:
        rows = database.execute("SELECT id, value FROM record ORDER BY id").fetchall()
    shutil.rmtree(scratch)
    return rows


def write_something(database: sqlite3.Connection, rng: random.Random) -> None:
    match rng.randrange(8):
        case 0:
            database.execute("DELETE FROM record WHERE id % 3 = ?", (rng.randrange(3),))
        case 1:
            database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        case 2:
            database.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        case 3:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        case 4:
            database.execute("DELETE FROM record")
            database.execute("VACUUM")
        case _:
            database.execute("BEGIN")
            for _ in range(rng.randrange(1, 20)):
                database.execute(
                    "INSERT INTO record (value) VALUES (?)", (rng.randbytes(rng.randrange(3000)),)
                )
            database.execute("COMMIT" if rng.random() < 0.8 else "ROLLBACK")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_an_image_has_the_rows_that_sqlite_finds_in_the_files(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    path = tmp_path / "metadata.sqlite"
    with closing(connect(path)) as database:
        kept = DatabaseFiles(path)
        rows = rows_in(kept.read_if_changed())
        for _ in range(20):
            write_something(database, rng)
            image = kept.read_if_changed()
            rows = rows if image is None else rows_in(image)
            expected = database.execute("SELECT id, value FROM record ORDER BY id").fetchall()
            assert rows == expected, "read again and again"
            assert rows_in(DatabaseFiles(path).read_if_changed()) == expected, "read once"


@pytest.mark.parametrize("seed", range(4))
def test_a_torn_write_ahead_log_ends_where_sqlite_ends_it(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    path = tmp_path / "metadata.sqlite"
    with closing(connect(path)) as database:
        database.execute("PRAGMA wal_autocheckpoint = 0")
        for number in range(12):
            database.execute("INSERT INTO record (value) VALUES (?)", (b"%d" % number * 900,))
            if number == 5:
                database.execute(
                    "PRAGMA wal_checkpoint(RESTART)"
                ).fetchall()  # older frames stay behind the new
        (tmp_path / "torn").mkdir()
        torn = tmp_path / "torn" / path.name
        for suffix in ("", "-wal"):
            shutil.copy(path.with_name(path.name + suffix), torn.with_name(torn.name + suffix))
    wal = torn.with_name(torn.name + "-wal")
    whole = wal.read_bytes()
    for _ in range(12):
        damaged = bytearray(whole)
        if rng.random() < 0.5:
            del damaged[rng.randrange(len(damaged)) :]
        else:
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        wal.write_bytes(damaged)
        assert rows_in(DatabaseFiles(torn).read_if_changed()) == rows_of_twin(torn, tmp_path / "twin")


def test_a_frame_with_other_salts_ends_the_log_as_in_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    (tmp_path / "copy").mkdir()
    copied = tmp_path / "copy" / path.name
    wal = copied.with_name(path.name + "-wal")
    with closing(connect(path)) as database:
        database.execute("INSERT INTO record (value) VALUES (x'00')")
        shutil.copy(path, copied)
        shutil.copy(path.with_name(wal.name), wal)
    data = bytearray(wal.read_bytes())
    data[-(24 + 4096) + 8] ^= 1  # the checksum of a frame does not cover its salts
    wal.write_bytes(data)
    assert rows_in(DatabaseFiles(copied).read_if_changed()) == rows_of_twin(copied, tmp_path / "twin") == []


def test_a_log_that_begins_anew_while_the_database_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metadata.sqlite"
    read_database = sqlite_image._read_database
    with closing(connect(path)) as database:
        database.execute("INSERT INTO record (value) VALUES (x'00')")

        def read_then_begin_anew(path: Path) -> bytes:
            before = read_database(path)
            if database.execute("SELECT count(*) FROM record").fetchone() == (1,):
                database.execute("BEGIN")
                for number in range(20):
                    database.execute("INSERT INTO record (value) VALUES (?)", (bytes([number]) * 2000,))
                database.execute("COMMIT")
                database.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
                database.execute("UPDATE record SET value = x'01' WHERE id = 1")
            return before

        monkeypatch.setattr(sqlite_image, "_read_database", read_then_begin_anew)
        rows = rows_in(DatabaseFiles(path).read_if_changed())
        assert rows == database.execute("SELECT id, value FROM record ORDER BY id").fetchall()


def test_a_database_without_a_log_that_changes_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metadata.sqlite"
    read_database = sqlite_image._read_database
    with closing(connect(path)) as database:
        for number in range(40):
            database.execute("INSERT INTO record (value) VALUES (?)", (bytes([number]) * 2000,))
    reads = 0

    def read_half_before_and_half_after(path: Path) -> bytes:
        nonlocal reads
        reads += 1
        before = read_database(path)
        if reads > 1:
            return before
        with closing(connect(path)) as database:
            database.execute("UPDATE record SET value = x'01'")
            database.execute("VACUUM")
        return before[: len(before) // 2] + read_database(path)[len(before) // 2 :]

    monkeypatch.setattr(sqlite_image, "_read_database", read_half_before_and_half_after)
    assert rows_in(DatabaseFiles(path).read_if_changed()) == [(id_, b"\1") for id_ in range(1, 41)]
    assert reads == 2


def test_a_commit_in_the_tick_of_the_last_read_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    with closing(connect(path)) as database:
        database.execute("INSERT INTO record (value) VALUES (x'00')")
        database.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        database.execute("UPDATE record SET value = x'01'")
        files, wal = DatabaseFiles(path), path.with_name(path.name + "-wal")
        files.read_if_changed()
        times = {file: os.stat(file) for file in (path, wal)}
        # Frames are written over older ones, so that the size stays; the clock has not moved either.
        database.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        database.execute("UPDATE record SET value = x'02'")
        for file, found in times.items():
            os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))
            assert os.stat(file).st_size == found.st_size
        assert rows_in(files.read_if_changed()) == [(1, b"\x02")]


def test_files_that_have_not_changed_for_a_while_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metadata.sqlite"
    connect(path).close()
    files = DatabaseFiles(path)
    reads = []
    for now_s in (10.0, 10.1, 10.3, 10.4, 20.0):
        monkeypatch.setattr(
            "ledger.metadata_store.sqlite_store.image.time.monotonic", lambda now_s=now_s: now_s
        )
        reads.append(files.read_if_changed() is not None)
    assert reads == [True, True, True, False, False]


def test_reading_keeps_the_locks_that_sqlite_has_in_this_process(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    tree = SqliteTree(path)

    def locks() -> int:
        # By descriptor: the kernel writes /proc/locks in pieces, and other processes' locks
        # that come and go between two of them hide lines.
        count = 0
        for descriptor in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):
                if os.readlink(f"/proc/self/fd/{descriptor}") == os.fspath(path):
                    count += Path(f"/proc/self/fdinfo/{descriptor}").read_text().count("POSIX")
        return count

    before = locks()
    assert before
    DatabaseFiles(path).read_if_changed()
    assert locks() == before
    descriptors = len(os.listdir("/proc/self/fd"))
    tree.close()
    assert len(os.listdir("/proc/self/fd")) < descriptors
    assert tree.identity not in sqlite_image._postponed, "closed with the last use"
    assert tree.identity not in sqlite_image._users


def test_a_database_whose_creation_was_interrupted_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    path.write_bytes(bytes(4096))
    path.with_name(path.name + "-journal").write_bytes(bytes.fromhex("d9d505f920a163d7") + bytes(600))
    with pytest.raises(StoreUnreachableError, match="open it once for writing"):
        DatabaseFiles(path).read_if_changed()
