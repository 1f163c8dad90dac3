"""Files for their owner only, and the bound of a wait for a lock."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from pathlib import Path

import pytest

from ledger.runtime.private_files import (
    create_private,
    describe_holders,
    lock_within,
    make_private_directories,
    open_private,
)


def test_missing_parents_are_made_for_the_owner_and_existing_ones_stay(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert make_private_directories(tmp_path / "a" / "b") == [tmp_path / "a", tmp_path / "a" / "b"]
    assert make_private_directories(tmp_path / "a" / "b") == []
    modes = [stat.S_IMODE(os.stat(path).st_mode) for path in (tmp_path, tmp_path / "a", tmp_path / "a" / "b")]
    assert modes == [0o755, 0o700, 0o700]
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        make_private_directories(tmp_path / "file")
    (tmp_path / "nowhere").symlink_to(tmp_path / "absent")
    with pytest.raises(NotADirectoryError):
        make_private_directories(tmp_path / "nowhere")


def test_a_file_open_to_others_is_closed_to_them_and_keeps_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("bytes")
    path.chmod(0o666)
    os.close(open_private(path, create=True))
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("bytes", 0o600)
    path.chmod(0o644)
    create_private(path)
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("bytes", 0o600)


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PermissionError, match="no regular file"):
        open_private(tmp_path / "pipe", create=True)
    with pytest.raises(PermissionError, match="no regular file"):
        create_private(tmp_path / "pipe")


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("theirs")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError, match=r"it belongs to user \d+; run as that user"):
        open_private(tmp_path / "file", create=True)


def test_a_wait_for_a_lock_ends_with_the_name_of_its_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "opening"
    now_s, naps = 0.0, 0

    def nap(pause_s: float) -> None:
        nonlocal now_s, naps
        now_s, naps = now_s + pause_s, naps + 1
        assert naps < 10_000, "the wait has no bound"

    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    monkeypatch.setattr(time, "sleep", nap)
    with path.open("w") as stranger:
        fcntl.flock(stranger, fcntl.LOCK_SH)
        descriptor = open_private(path, create=False)
        with pytest.raises(TimeoutError, match=rf"process {os.getpid()} \(.+\) has held the lock for 10 s"):
            lock_within(descriptor, 10, path)
    lock_within(descriptor, 0, path)
    assert describe_holders(descriptor).startswith(f"process {os.getpid()} (")
    os.close(descriptor)
