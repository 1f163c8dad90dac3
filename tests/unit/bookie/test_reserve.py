"""Space kept back for a full disk: made piece by piece, and not for ever where it cannot be made."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from bookie.disk import DiskUsage, RealDisk
from bookie.reserve import Reserve


class RoomyDisk(RealDisk):
    is_read_only = False

    def usage(self, directory: Path) -> DiskUsage:
        return DiskUsage(1 << 40, 1 << 40)

    def unlink(self, path: Path) -> None:
        if self.is_read_only:
            raise OSError(errno.EROFS, "injected")
        super().unlink(path)


def test_it_is_made_in_pieces_and_given_back_whole(tmp_path: Path) -> None:
    reserve = Reserve(RoomyDisk(), tmp_path, (2 << 20) + 5, name="reserve")
    held = [reserve.held_bytes()]
    while reserve.fill():
        held.append(reserve.held_bytes())
    assert held == [0, 1 << 20, 2 << 20, (2 << 20) + 5]
    assert reserve.release()
    assert (reserve.held_bytes(), list(tmp_path.iterdir())) == (0, [])
    assert reserve.release(), "there is none to give back"


def test_an_empty_one_that_a_crash_left_is_made_anew_where_it_can_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = RoomyDisk()
    reserve = Reserve(disk, tmp_path, 1 << 20, name="reserve")
    (tmp_path / "reserve").touch()
    disk.is_read_only = True
    assert not reserve.fill(), "whoever fills it must not go on for ever"
    assert "cannot be given back" in caplog.text
    disk.is_read_only = False
    assert [reserve.fill() for _ in range(3)] == [True, True, False]
    assert reserve.held_bytes() == 1 << 20
