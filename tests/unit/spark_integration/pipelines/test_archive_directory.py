"""The directory of an archive: a part of the manifest is created once, and only dead attempts are swept."""

# covers: spark_integration/pipelines/archives/manifest.py

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from spark_integration.errors import ArchiveDamagedError
from spark_integration.pipelines.archives.directory import ArchiveDirectory
from spark_integration.pipelines.archives.manifest import ArchivedSegment, Manifest


def segment(number: int, file: str | None = None) -> ArchivedSegment:
    return ArchivedSegment(
        segment=number, ledger_id=number, completed_ms=None, content=None, file=file, size_bytes=0
    )


def test_a_part_is_never_created_over_another_one(tmp_path: Path) -> None:
    directory = ArchiveDirectory(tmp_path / "a" / "b")
    new = Manifest.empty("id", "orders", "file:///x")
    first, other = new.next_part([segment(3)]), new.next_part([segment(3), segment(4)])
    assert directory.manifest() is None
    assert directory.add_part(1, first.encoded())
    assert not directory.add_part(1, other.encoded())
    found = directory.manifest()
    assert found == new.extended(first)
    assert [each.name for each in (directory.path / "manifest").iterdir()] == ["00000001.json"]
    assert directory.add_part(2, found.next_part([segment(4)]).encoded())
    assert [each.segment for each in (directory.manifest() or new).segments] == [3, 4]


def test_segments_of_a_manifest_follow_each_other(tmp_path: Path) -> None:
    directory = ArchiveDirectory(tmp_path)
    new = Manifest.empty("id", "orders", "file:///x")
    part = new.next_part([segment(3)])
    directory.add_part(1, part.encoded())
    directory.add_part(2, new.extended(part).next_part([segment(5)]).encoded())
    with pytest.raises(ArchiveDamagedError, match="segment 5 follows segment 3"):
        directory.manifest()


def test_a_part_follows_only_the_part_that_it_was_made_for(tmp_path: Path) -> None:
    directory = ArchiveDirectory(tmp_path)
    new = Manifest.empty("id", "orders", "file:///x")
    other = new.extended(new.next_part([attrs.evolve(segment(3), ledger_id=99)]))
    directory.add_part(1, new.next_part([segment(3)]).encoded())
    directory.add_part(2, other.next_part([segment(4)]).encoded())
    with pytest.raises(ArchiveDamagedError, match="parent"):
        directory.manifest()


def test_files_of_an_attempt_that_may_still_add_its_part_are_not_swept(tmp_path: Path) -> None:
    directory = ArchiveDirectory(tmp_path)
    manifest = Manifest.empty("id", "orders", "file:///x")
    names = {}
    for label, number in {"named": 1, "dead": 1, "alive": 2, "empty": 1}.items():
        attempt = directory.new_attempt(number)
        names[label] = f"{attempt}/segment.parquet"
        if label != "empty":
            (tmp_path / names[label]).write_bytes(b"")
    part = manifest.next_part([segment(1, names["named"])])
    directory.add_part(1, part.encoded())
    (tmp_path / "manifest" / "new-00000001-0a0b0c0d").write_bytes(b"{")  # half of a part
    (tmp_path / "manifest" / "new-00000002-0a0b0c0d").write_bytes(b"{")
    found = directory.manifest()
    assert found is not None
    assert sorted(directory.sweep(found)) == sorted([names["dead"], "manifest/new-00000001-0a0b0c0d"])
    left = {each.relative_to(tmp_path).as_posix() for each in (tmp_path / "data").glob("*/*")}
    assert left == {names["named"], names["alive"]}
    assert directory.sweep(found) == []


def test_a_manifest_without_a_part_is_damage() -> None:
    with pytest.raises(ArchiveDamagedError, match="no part"):
        Manifest.of({})
