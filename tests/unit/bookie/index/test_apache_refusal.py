"""The marks that stop Apache's bookie: which are there, and that Apache's databases are kept."""

from __future__ import annotations

import random
from pathlib import Path

from bookie.disk.real_disk import RealDisk
from bookie.index.apache_refusal import refuse_apache, stops_page_files
from tests.fakes.simulated_disk import SimulatedDisk


def test_the_mark_against_page_files_goes_when_the_index_has_them(tmp_path: Path) -> None:
    disk = RealDisk()
    refuse_apache(disk, tmp_path, has_page_files=False)
    (mark,) = tmp_path.glob("*/*/*.idx")  # where Apache's bookie looks for index files
    assert stops_page_files(disk, tmp_path)
    assert not all(character in "0123456789abcdef" for character in mark.stem)
    refuse_apache(disk, tmp_path, has_page_files=True)
    assert not stops_page_files(disk, tmp_path)
    for name in ("ledgers", "locations"):
        assert b"DbLedgerStorage cannot read" in (tmp_path / name / "CURRENT").read_bytes()


def test_a_database_of_apaches_is_kept_under_another_name(tmp_path: Path) -> None:
    (tmp_path / "ledgers").mkdir()
    (tmp_path / "ledgers/CURRENT").write_bytes(b"MANIFEST-000004\n")
    for _ in range(2):
        refuse_apache(RealDisk(), tmp_path, has_page_files=False)
    assert (tmp_path / "ledgers/CURRENT.apache").read_bytes() == b"MANIFEST-000004\n"
    assert not (tmp_path / "locations/CURRENT.apache").exists()


def test_the_marks_survive_a_power_cut() -> None:
    disk, directory = SimulatedDisk(), Path("/index")
    disk.make_directory(directory)
    refuse_apache(disk, directory, has_page_files=False)
    after = disk.after_power_cut(random.Random(0))
    assert stops_page_files(after, directory)
    assert b"DbLedgerStorage" in after.read_file(directory / "ledgers/CURRENT")
