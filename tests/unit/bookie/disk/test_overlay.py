"""A disk whose changes stay in memory. The twin is the real disk, with a copy of the files."""

from __future__ import annotations

import errno
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bookie.disk.disk import Disk
from bookie.disk.overlay import OverlayDisk
from bookie.disk.read_only import ReadOnlyDisk
from bookie.disk.real_disk import RealDisk
from bookie.disk.rocksdb import RocksKeyValues
from bookie.errors import StartError

NAMES = ["one", "two", "three", "below/four", "below/five", "new/six"]


def contents(disk: Disk, root: Path) -> dict[str, bytes | None]:
    """All files below a directory; None for a directory."""
    found: dict[str, bytes | None] = {}
    pending = [root]
    while pending:
        directory = pending.pop()
        for name in disk.list_directory(directory):
            path = directory / name
            try:
                found[str(path.relative_to(root))] = disk.read_file(path)
            except (IsADirectoryError, FileNotFoundError):  # the overlay has no file of that name
                found[str(path.relative_to(root))] = None
                pending.append(path)
    return found


def all_bytes(root: Path) -> dict[Path, tuple[bytes, int]]:
    return {
        path: (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns)
        for path in root.rglob("*")
    }


def change(disk: Disk, root: Path, rng: random.Random) -> None:
    """One random change; the same numbers give the same change."""
    path, other = root / rng.choice(NAMES), root / rng.choice(NAMES)
    kind, data, offset = rng.randrange(9), rng.randbytes(rng.randrange(40)), rng.randrange(60)
    match kind:
        case 0:
            disk.open(path, create=True, write=True).close()
        case 1 | 2 | 3:
            file = disk.open(path, write=True)
            if kind == 1:
                file.pwrite(data, offset)
            elif kind == 2:
                file.pwritev([data, b"and", data], offset)
            else:
                file.truncate(offset)
            file.sync()
            file.close()
        case 4:
            disk.rename(path, other)
        case 5:
            disk.link(path, other)
        case 6:
            disk.unlink(path)
        case 7:
            disk.replace_file(path, data)
        case _:
            if rng.random() < 0.2:
                disk.remove_tree(root / "below")
            disk.make_directory(path.parent)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_it_behaves_as_the_real_disk_and_changes_no_file(tmp_path: Path, seed: int) -> None:
    base, copy = tmp_path / "base", tmp_path / "copy"
    (base / "below").mkdir(parents=True)
    for name in NAMES[:4]:
        (base / name).write_bytes(name.encode() * 5)
    shutil.copytree(base, copy)
    before = all_bytes(base)
    overlay, real = OverlayDisk(base, lambda: None), RealDisk()
    for step in range(60):
        outcomes: list[type[OSError] | None] = []
        for disk, root in ((overlay, base), (real, copy)):
            try:
                change(disk, root, random.Random(seed * 1000 + step))
                outcomes.append(None)
            except OSError as exc:
                outcomes.append(type(exc))
        assert outcomes[0] == outcomes[1]
        assert contents(overlay, base) == contents(real, copy)
    assert all_bytes(base) == before


def replaced(path: Path) -> None:
    path.unlink()
    path.write_bytes(b"stored")


@pytest.mark.parametrize(
    "happens",
    [
        Path.unlink,
        replaced,
        lambda path: path.write_bytes(b"other"),
        lambda path: path.write_bytes(b"stored and more"),
    ],
)
def test_a_stored_file_that_another_process_changed_is_an_error(
    tmp_path: Path, happens: Callable[[Path], object]
) -> None:
    (tmp_path / "log").write_bytes(b"stored")
    changed: list[bool] = []
    disk = OverlayDisk(tmp_path, lambda: changed.append(True))
    assert disk.read_file(tmp_path / "log") == b"stored"
    assert not changed
    happens(tmp_path / "log")
    with pytest.raises(OSError, match="another process") as caught:
        disk.open(tmp_path / "log")
    assert caught.value.errno == errno.ESTALE
    assert changed
    (tmp_path / "later").write_bytes(b"")
    assert disk.list_directory(tmp_path) == ["log"], "the list stays"
    with pytest.raises(FileNotFoundError):
        disk.open(tmp_path / "later")


@pytest.mark.parametrize(
    "disk_of", [lambda root: OverlayDisk(root, lambda: None), lambda root: ReadOnlyDisk()]
)
def test_opening_a_database_read_only_changes_no_file(
    tmp_path: Path, disk_of: Callable[[Path], Disk]
) -> None:
    path = tmp_path / "index"
    database = RealDisk().open_key_values(path)
    database.write([(b"old", b"table")])
    database.sync()
    database.close()
    database = RealDisk().open_key_values(path)  # the next start moves the log into a table
    database.write([(b"new", b"log")])
    database.sync()
    database.close()
    assert list(path.glob("*.sst"))
    before = all_bytes(tmp_path)
    database = disk_of(tmp_path).open_key_values(path)
    assert all_bytes(tmp_path) == before
    shutil.rmtree(path)  # another process deletes tables that it has compacted
    assert (database.get(b"old"), database.get(b"new")) == (b"table", b"log")
    database.close()
    assert not path.exists()


def test_opening_a_missing_database_read_only_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="cannot be opened"):
        RocksKeyValues(tmp_path / "index", read_only=True)
    assert not (tmp_path / "index").exists()
