"""RocksDB in a process that has no file descriptor left: the kernel's own EMFILE, in a process of its own."""

# covers: bookie/disk/rocksdb.py

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Options, Rdict

import tests
from bookie.disk import rocksdb
from bookie.disk.descriptors import Descriptors
from bookie.disk.rocksdb import RocksKeyValues
from bookie.errors import IndexFailedError

# A limit below the next free number lets each open fail, whatever this process closes.
PRELUDE = """
import resource, sys, threading, trio
from pathlib import Path
from bookie.disk import rocksdb
from bookie.disk.real_disk import RealDisk
rocksdb._MEMTABLE_BYTES = 1 << 16
HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

def take_descriptors():
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, HARD))

def give_descriptors():
    resource.setrlimit(resource.RLIMIT_NOFILE, (HARD, HARD))

class Pauses:
    # Gives the descriptors back in the n-th pause of a thread that waits for one.
    def __init__(self, count):
        self.left = count

    def __call__(self, seconds):
        self.left -= 1
        if self.left <= 0:
            give_descriptors()

path = Path(sys.argv[1])
disk = RealDisk()
disk.descriptors._pause = Pauses(5)
"""


def run(tmp_path: Path, script: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", PRELUDE + script, str(tmp_path / "index")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=Path(tests.__file__).parent.parent,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def fail_once(database: RocksKeyValues, reason: str) -> None:
    """Change the database with a call that fails once for this reason."""
    reasons = [reason]

    def job(opened: Rdict) -> None:
        if reasons:
            raise Exception(reasons.pop())
        opened.put(b"key", b"value")

    database._change(job)


def test_a_database_that_lost_writes_when_it_was_opened_again_fails_the_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = RocksKeyValues(tmp_path / "index")
    database.write([(b"old", b"1")])

    def open_empty(path: str, options: Options) -> Rdict:
        shutil.rmtree(path)
        return Rdict(path, options)

    monkeypatch.setattr(rocksdb, "Rdict", open_empty)
    with pytest.raises(IndexFailedError, match="lacks writes that had succeeded"):
        fail_once(database, "IO error: x.log: Too many open files")
    with pytest.raises(IndexFailedError):
        database.write([(b"new", b"2")])


def test_another_error_fails_the_storage_also_below_a_directory_with_a_strange_name(tmp_path: Path) -> None:
    path = tmp_path / "Too many open files"
    database = RocksKeyValues(path)
    with pytest.raises(IndexFailedError, match="Input/output error"):
        fail_once(database, f"IO error: While appending to file: {path}/000008.log: Input/output error")
    fail_once(database, "IO error: While open a file for appending: x.log: Too many open files in system")
    assert database.get(b"key") == b"value"
    database.close()


class NotClosed:
    """A database that a thread still uses: it keeps its lock when it is closed."""

    def __init__(self, opened: Rdict) -> None:
        self.opened = opened

    def __getattr__(self, name: str) -> Any:
        return getattr(self.opened, name)

    def close(self) -> None:
        pass


def test_a_database_whose_lock_is_not_given_back_yet_is_opened_again_when_it_is(tmp_path: Path) -> None:
    database = RocksKeyValues(tmp_path / "index")
    database.write([(b"old", b"1")])
    before: Any = NotClosed(database._db)
    database._db = before
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            before.opened.close()

    database._descriptors = Descriptors(pause=pause)
    fail_once(database, "IO error: x.log: Too many open files")
    assert len(pauses) == 3
    assert [key for key, _ in database.scan(b"a", b"z")] == [b"key", b"old"]
    database.close()


def test_a_database_whose_lock_is_never_given_back_fails_the_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocksdb, "_LOCK_WAITS_MAX", 4)
    database = RocksKeyValues(tmp_path / "index")
    before: Any = NotClosed(database._db)
    database._db = before
    pauses: list[float] = []
    database._descriptors = Descriptors(pause=pauses.append)
    with pytest.raises(IndexFailedError, match="lock hold by current process"):
        fail_once(database, "IO error: x.log: Too many open files")
    assert len(pauses) == 4
    before.opened.close()


@pytest.mark.slow
def test_writes_go_on_after_rocksdb_found_no_descriptor_for_its_next_files(tmp_path: Path) -> None:
    """Log and table files cannot be made: RocksDB refuses all later writes until it is opened again."""
    found = run(
        tmp_path,
        """
database = disk.open_key_values(path)
take_descriptors()
database.delete_range(b"", b"0")
for number in range(2_000):
    database.write([(b"%08d" % number, b"v" * 300)])
    if number % 100 == 0:
        database.sync()
assert disk.descriptors.shortages == 1, disk.descriptors.shortages
take_descriptors()
disk.descriptors._pause.left = 5
for number in range(2_000, 4_000):
    database.write([(b"%08d" % number, b"v" * 300)])
assert disk.descriptors.shortages == 2, disk.descriptors.shortages
assert [key for key, _ in database.scan(b"0", b"9")] == [b"%08d" % number for number in range(4_000)]
database.sync()
database.close()
print("done")
""",
    )
    assert found == "done\n"


@pytest.mark.slow
def test_an_opening_and_a_read_wait_and_closing_without_a_descriptor_keeps_what_was_synced(
    tmp_path: Path,
) -> None:
    found = run(
        tmp_path,
        """
take_descriptors()
path.mkdir()
database = rocksdb.RocksKeyValues(path, disk)
for number in range(2_000):
    database.write([(b"%08d" % number, b"v" * 300)])
database.sync()
database.close()
database = rocksdb.RocksKeyValues(path, disk)
take_descriptors()
disk.descriptors._pause.left = 5
assert len(list(database.scan(b"0", b"9"))) == 2_000
take_descriptors()
disk.descriptors._pause.left = 5
assert database.floor(b"00000500x")[0] == b"00000500"
assert database.get(b"00001999") == b"v" * 300
for number in range(100):
    database.write([(b"%08d" % number, b"w")])
database.sync()
take_descriptors()
database.close()
give_descriptors()
database = rocksdb.RocksKeyValues(path, disk)
assert [database.get(b"%08d" % number) for number in (0, 99, 100)] == [b"w", b"w", b"v" * 300]
print("done")
""",
    )
    assert found == "done\n"


@pytest.mark.slow
def test_a_scan_that_keeps_the_old_database_open_ends_with_an_error_that_may_be_repeated(
    tmp_path: Path,
) -> None:
    found = run(
        tmp_path,
        """
database = disk.open_key_values(path)
for number in range(10):
    database.write([(b"%08d" % number, b"v" * 300)])
scan = database.scan(b"0", b"9")
assert next(scan)[0] == b"00000000"
begun = threading.Event()
async def loop():
    global token, stop
    token, stop = trio.lowlevel.current_trio_token(), trio.Event()
    begun.set()
    await stop.wait()
thread = threading.Thread(target=trio.run, args=(loop,), daemon=True)
thread.start()
begun.wait()
take_descriptors()
errors, rounds = [], 0
def read():
    try:
        database.get(b"00000000")
    except OSError as exc:
        errors.append(exc.errno)
def pause(seconds):
    global rounds
    rounds += 1
    if rounds == 5:
        trio.from_thread.run_sync(read, trio_token=token)  # the old database still serves
        assert not errors, errors
    if rounds == rocksdb._SCAN_WAITS_MAX + 5:
        trio.from_thread.run_sync(read, trio_token=token)  # the loop does not wait
        give_descriptors()
disk.descriptors._pause = pause
disk.descriptors._on_shortage = lambda: None  # as with a server: wait without limit
for number in range(10, 1_000):
    database.write([(b"%08d" % number, b"v" * 300)])
assert errors == [24], errors
trio.from_thread.run_sync(lambda: stop.set(), trio_token=token)
thread.join()
try:
    next(scan)
except OSError as exc:
    assert exc.errno == 24, exc
else:
    raise AssertionError("the scan went on")
assert len(list(database.scan(b"0", b"9"))) == 1_000
print("done")
""",
    )
    assert found == "done\n"
