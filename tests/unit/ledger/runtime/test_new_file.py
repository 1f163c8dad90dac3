"""A file appears under its name when it is complete, and not before."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.runtime.new_file import new_file


def test_a_file_appears_at_the_end_of_its_block(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with new_file(path, replaces=False) as under_way:
        under_way.write_text("content")
        assert not path.exists()
    assert path.read_text() == "content"
    assert list(tmp_path.iterdir()) == [path]


def write_half(path: Path) -> None:
    with new_file(path, replaces=True) as under_way:
        under_way.write_text("content")
        (under_way / "below").write_text("it is no directory")


def test_a_file_that_fails_is_gone_and_the_old_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(NotADirectoryError):
        write_half(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_not_replaced_unasked(tmp_path: Path) -> None:
    path = tmp_path / "file"
    writing = new_file(path, replaces=False)
    writing.__enter__().write_text("content")
    path.write_text("of another program")
    with pytest.raises(FileExistsError, match="exists"):
        writing.__exit__(None, None, None)
    assert path.read_text() == "of another program"
    assert list(tmp_path.iterdir()) == [path]
    with new_file(path, replaces=True) as under_way:
        under_way.write_text("content")
    assert path.read_text() == "content"
