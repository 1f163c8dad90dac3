"""The directory of a ``file:`` URI: its modes, the files that it refuses, the bound of a wait for a lock."""

# covers: ledger/deploy/bookie_lookup.py

from __future__ import annotations

import fcntl
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

import dlog
from ledger.deploy import directory as directory_files
from ledger.deploy import directory as directory_module
from ledger.deploy.deployment import open_client
from ledger.deploy.directory import BOOKIE, LOCK, METADATA, SOCKET, Directory
from ledger.errors import DirectoryUnusableError
from tests.fakes.other_user import IS_ROOT, NOBODY, open_to_others, run_as_other_user

WRITE_AND_STAY = """
import os, sys, trio, dlog
os.umask(int(sys.argv[2], 8))
async def main():
    async with dlog.open_namespace(sys.argv[1]) as namespace:
        async with namespace.open_writer("orders", create=True) as log:
            await log.append(b"secret")
        print("open", flush=True)
        await trio.to_thread.run_sync(sys.stdin.readline)
trio.run(main)
"""

# A stranger counts the files that it can list, read and connect to.
STRANGER = """
import socket
become_other_user()
reached = []
for path in sys.argv[1:]:
    for use in (os.listdir, lambda path: open(path, "rb").read()):
        try:
            use(path)
            reached.append(path)
        except OSError:
            pass
    try:
        socket.socket(socket.AF_UNIX).connect(path)
        reached.append(path)
    except OSError:
        pass
print(reached)
"""

CONNECT = """
import socket
sock = socket.socket(socket.AF_UNIX)
become_other_user()
sock.connect(sys.argv[1])
sock.settimeout(60)
try:
    sock.sendall(b"\\0" * 64)
    print(sock.recv(1))
except ConnectionError:
    print(b"")
"""


def mode_of(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o177])
@pytest.mark.slow
def test_files_and_directories_are_for_the_owner_only_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    home = tmp_path / "outer" / "namespace"
    modes: dict[str, str] = {}

    def look() -> None:
        # RocksDB chooses the modes of its files; the directory they are in keeps others away.
        for path in [home.parent, home, *home.rglob("*")]:
            if path.parent.name != "index":
                modes[path.name + "/" * path.is_dir()] = f"{mode_of(path):o}"

    with subprocess.Popen(
        [sys.executable, "-c", WRITE_AND_STAY, f"file://{home}", f"{mask:o}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        look()
        process.communicate("\n", timeout=60)
    look()
    expected = {METADATA, f"{METADATA}-wal", f"{METADATA}-shm", LOCK, SOCKET, f"{BOOKIE}/", "0.log", "index/"}
    assert set(modes) >= expected
    assert modes == {name: "700" if name.endswith("/") else "600" for name in modes}


@pytest.mark.slow
@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user; CI runs as root")
async def test_another_user_reaches_nothing(tmp_path: Path) -> None:
    home = tmp_path / "namespace"
    open_to_others(tmp_path)
    with umask(0):
        async with dlog.open_namespace(f"file://{home}") as namespace:
            async with namespace.open_writer("orders", create=True) as log:
                await log.append(b"secret")
            files = [str(home), *(str(path) for path in home.rglob("*"))]
            printed = await trio.to_thread.run_sync(run_as_other_user, STRANGER, *files)
    assert printed == "[]\n"


def test_a_namespace_that_an_older_release_left_open_is_closed_to_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "namespace"
    (home / BOOKIE / "current").mkdir(parents=True)
    for path in (home / METADATA, home / BOOKIE / "current" / "0.log"):
        path.write_bytes(b"")
        path.chmod(0o644)
    for path in (home, home / BOOKIE, home / BOOKIE / "current"):
        path.chmod(0o755)
    (tmp_path / "elsewhere").write_bytes(b"")
    (tmp_path / "elsewhere").chmod(0o644)
    (home / "link").symlink_to(tmp_path / "elsewhere")
    Directory(home).close()
    assert {mode_of(home), mode_of(home / BOOKIE), mode_of(home / BOOKIE / "current")} == {0o700}
    assert {mode_of(home / METADATA), mode_of(home / BOOKIE / "current" / "0.log")} == {0o600}
    assert mode_of(tmp_path / "elsewhere") == 0o644
    assert "other users could enter it (mode 755); now 700" in caplog.text


def test_a_shared_directory_keeps_its_mode_and_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "shared"
    home.mkdir()
    (home / "of something else").write_bytes(b"")
    home.chmod(0o755)
    with pytest.raises(DirectoryUnusableError, match=r"mode 755.*chmod 700"):
        Directory(home)
    (home / METADATA).write_bytes(b"")
    home.chmod(0o1777)
    with pytest.raises(DirectoryUnusableError, match=r"mode 1777.*below this one"):
        Directory(home)
    assert mode_of(home) == 0o1777


def test_a_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "namespace"
    home.mkdir(mode=0o700)
    if IS_ROOT:
        os.chown(home, NOBODY, NOBODY)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(
        DirectoryUnusableError, match=r"it belongs to user \d+, and this process runs as user"
    ):
        Directory(home)


@pytest.mark.parametrize("plant", [Path.symlink_to, Path.hardlink_to])
def test_a_planted_lock_file_overwrites_no_other_file(
    tmp_path: Path, plant: Callable[[Path, Path], None]
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    directory = Directory(tmp_path / "namespace")
    plant(directory.path / LOCK, victim)
    with pytest.raises(
        DirectoryUnusableError, match=r"host.lock cannot be opened \(refused: it (is a symlink|has 2 names)"
    ):
        directory.try_lock()
    directory.close()
    assert victim.read_text() == "precious"


def test_a_lock_file_that_got_another_one_in_its_place_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = Directory(tmp_path / "namespace")
    flock, file = fcntl.flock, directory.path / LOCK

    def replaced(fd: int, how: int) -> None:
        flock(fd, how)
        file.with_name("new").touch(0o600)
        file.with_name("new").rename(file)

    monkeypatch.setattr(fcntl, "flock", replaced)
    assert directory.try_lock() is None
    monkeypatch.undo()
    lock = directory.try_lock()
    assert lock is not None
    directory.unlock(lock)
    directory.close()


@pytest.mark.parametrize("name", [METADATA, f"{METADATA}-sessions/opening"])
async def test_a_planted_symlink_in_place_of_the_metadata_is_refused(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"")
    link = tmp_path / "namespace" / name
    link.parent.mkdir(parents=True)
    (tmp_path / "namespace").chmod(0o700)
    link.symlink_to(victim)
    with pytest.raises(dlog.LogUnavailableError, match="it is a symlink"):
        async with dlog.open_namespace(f"file://{tmp_path / 'namespace'}"):
            pass
    assert victim.read_bytes() == b""


async def test_a_planted_socket_gets_no_request(tmp_path: Path) -> None:
    directory = Directory(tmp_path / "namespace")
    with socket.socket(socket.AF_UNIX) as planted:
        planted.bind(str(tmp_path / "planted.sock"))
        planted.listen()
        (directory.path / SOCKET).symlink_to(tmp_path / "planted.sock")
        with pytest.raises(DirectoryUnusableError, match=r"bookie.sock is no socket; remove it"):
            await directory.connect()
    directory.close()


@pytest.mark.slow
async def test_the_host_closes_the_connections_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "namespace"
    async with dlog.open_namespace(f"file://{home}") as namespace:
        await namespace.create_log("orders")
        # Opened by hand: the mode of the directory is the first line of defence, this is the second.
        open_to_others(home)
        (home / SOCKET).chmod(0o777)
        if not IS_ROOT:
            monkeypatch.setattr(directory_files, "is_trusted", lambda uid: False)
        assert await trio.to_thread.run_sync(run_as_other_user, CONNECT, str(home / SOCKET)) == "b''\n"
        assert await trio.to_thread.run_sync(run_as_other_user, CONNECT, str(home / SOCKET)) == "b''\n"
    assert caplog.text.count("was refused") == 1


async def test_a_socket_at_which_another_user_listens_gets_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = Directory(tmp_path / "namespace")
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(directory.path / SOCKET))
        if IS_ROOT:  # the system notes the user at listen()
            os.seteuid(NOBODY)
        try:
            theirs.listen()
        finally:
            if IS_ROOT:
                os.seteuid(0)
        if not IS_ROOT:
            monkeypatch.setattr(directory_module, "is_trusted", lambda uid: False)
        with pytest.raises(
            DirectoryUnusableError, match=r"a process of user \d+ listens at bookie.sock; end it"
        ):
            await directory.connect()
    directory.close()


@pytest.mark.slow
async def test_a_lock_that_a_stranger_holds_is_an_error_that_names_the_process(
    tmp_path: Path,
) -> None:
    Directory(tmp_path).close()
    lock = tmp_path / LOCK
    lock.write_text("4194305\n")  # greater than every process id
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        with trio.fail_after(60), pytest.raises(DirectoryUnusableError) as caught:
            async with open_client(f"file://{tmp_path}", host_lock_timeout_s=0.1):
                pass
    assert f"process {os.getpid()} (" in str(caught.value)
    assert "(the last host was process 4194305) has held host.lock for 0.1 s" in str(caught.value)


@pytest.mark.slow
async def test_a_lock_that_becomes_free_in_time_is_taken(tmp_path: Path) -> None:
    Directory(tmp_path).close()
    with (tmp_path / LOCK).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        async with trio.open_nursery() as nursery:

            async def release() -> None:
                await trio.testing.wait_all_tasks_blocked()
                held.close()

            nursery.start_soon(release)
            async with open_client(f"file://{tmp_path}", host_lock_timeout_s=60):
                assert int((tmp_path / LOCK).read_text()) == os.getpid()


def test_the_names_of_a_new_directory_and_its_parents_are_durable_before_a_file_is_made_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[Path, set[str]]] = []
    sync = os.fsync

    def noting_fsync(descriptor: int) -> None:
        sync(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.append((path, set(os.listdir(path))))

    monkeypatch.setattr(os, "fsync", noting_fsync)
    directory = Directory(tmp_path / "a" / "b" / "c")
    assert os.listdir(directory.path) == []
    directory.close()
    names = {path: listed for path, listed in synced if path.is_relative_to(tmp_path)}
    assert names[tmp_path / "a" / "b"] == {"c"}
    assert names[tmp_path / "a"] == {"b"}
    assert "a" in names[tmp_path]

    # As after a crash between making and syncing: the next process syncs them, although it makes none.
    synced.clear()
    Directory(tmp_path / "a" / "b" / "c").close()
    assert {tmp_path, tmp_path / "a", tmp_path / "a" / "b"} <= {path for path, _ in synced}

    (tmp_path / "a" / "b" / "c" / METADATA).touch()
    synced.clear()
    Directory(tmp_path / "a" / "b" / "c").close()
    assert synced == [], "the names were durable before the first file was made"
