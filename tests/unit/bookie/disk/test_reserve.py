"""The reserve for a full disk: created in pieces, and without an endless loop if it cannot be created."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from bookie.disk.disk import DiskUsage
from bookie.disk.real_disk import RealDisk
from bookie.disk.reserve import LOAN_BYTES, Reserve


class LargeDisk(RealDisk):
    is_read_only = False

    def usage(self, directory: Path) -> DiskUsage:
        return DiskUsage(1 << 40, 1 << 40)

    def unlink(self, path: Path) -> None:
        if self.is_read_only:
            raise OSError(errno.EROFS, "injected")
        super().unlink(path)


def test_the_reserve_is_created_in_pieces_and_deleted_at_once(tmp_path: Path) -> None:
    reserve = Reserve(LargeDisk(), tmp_path, (2 << 20) + 5, name="reserve")
    held = [reserve.held_bytes()]
    while reserve.fill():
        held.append(reserve.held_bytes())
    assert held == [0, 1 << 20, 2 << 20, (2 << 20) + 5]
    assert reserve.release()
    assert (reserve.held_bytes(), reserve.given_bytes()) == (0, (2 << 20) + 5)
    assert [(path.name, path.stat().st_size) for path in tmp_path.iterdir()] == [("reserve", 0)]
    assert reserve.release(is_given=False)
    assert (reserve.given_bytes(), list(tmp_path.iterdir())) == (0, [])
    assert reserve.release(), "releasing an absent reserve succeeds"


def test_an_empty_reserve_is_filled_again(tmp_path: Path) -> None:
    reserve = Reserve(LargeDisk(), tmp_path, 1 << 20, name="reserve")
    (tmp_path / "reserve").touch()
    assert [reserve.fill() for _ in range(2)] == [True, False]
    assert reserve.held_bytes() == 1 << 20


def test_a_reserve_that_cannot_be_deleted_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = LargeDisk()
    disk.is_read_only = True
    (tmp_path / "reserve").write_bytes(bytes(4096))
    assert not Reserve(disk, tmp_path, 0, name="reserve").fill(), "a loop over fill() must end"
    assert "cannot be deleted" in caplog.text


def test_a_loan_is_a_piece_that_does_not_count_as_free_and_is_filled_again(tmp_path: Path) -> None:
    reserve = Reserve(LargeDisk(), tmp_path, 3 * LOAN_BYTES, name="reserve")
    assert not reserve.lend(), "there is no file"
    assert reserve.given_bytes() == 0
    while reserve.fill():
        pass
    assert [reserve.lend() for _ in range(4)] == [True, True, True, False]
    assert (reserve.held_bytes(), reserve.given_bytes()) == (0, 3 * LOAN_BYTES)
    while reserve.fill():
        pass
    assert (reserve.held_bytes(), reserve.given_bytes()) == (3 * LOAN_BYTES, 0)


def test_a_reserve_that_is_not_wanted_yet_is_not_made(tmp_path: Path) -> None:
    free_bytes = LargeDisk().usage(tmp_path).free_bytes
    far = Reserve(LargeDisk(), tmp_path, 1 << 20, name="far", below_bytes=free_bytes)
    assert not far.fill()
    assert (far.given_bytes(), list(tmp_path.iterdir())) == (0, [])
    near = Reserve(LargeDisk(), tmp_path, 1 << 20, name="near", below_bytes=free_bytes + 1)
    assert near.fill()
