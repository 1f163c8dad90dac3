"""Damaged pages of the page index are found and replaced; a power cut in between never seals damage."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from bookie.disk.disk import Disk
from bookie.disk.real_disk import RealDisk
from bookie.errors import FormatError
from bookie.index.entry_index import EntryIndex, EntryRange
from bookie.index.index_factory import IndexConfig, IndexKind, open_index
from bookie.index.page_cache import PageIndexConfig
from bookie.index.page_file import page_file_path
from bookie.ledger_record import LedgerData
from tests.fakes.simulated_disk import PowerCutError, SimulatedDisk

CONFIG = IndexConfig(kind=IndexKind.PAGES, pages=PageIndexConfig(page_bytes=512, pages_max=8))
DATA = LedgerData(b"key", False, None, 3, 4)
PAGE = range(64, 128)  # the entries of the second page
SOUND = {entry_id: 1000 + entry_id for entry_id in PAGE}


def filled(disk: Disk, directory: Path, config: IndexConfig = CONFIG) -> EntryIndex:
    index = open_index(disk, directory, config)
    index.put([EntryRange(7, range(200), range(1000, 1200))], [(7, DATA)])
    index.mark_complete()
    index.sync()
    return index


def flip_a_slot(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(1024 + 8 * 70 + 7)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def zero_the_page(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(1024 + 512)
        file.write(bytes(512))


def test_a_damaged_page_is_named_with_what_its_bytes_still_say(tmp_path: Path) -> None:
    index = filled(RealDisk(), tmp_path)
    assert index.damaged_ranges(7) == []
    index.close()
    flip_a_slot(page_file_path(tmp_path, 7))
    index = open_index(RealDisk(), tmp_path, CONFIG)
    (damaged,) = index.damaged_ranges(7)
    assert damaged.entry_ids == PAGE
    assert dict(damaged.remains) == SOUND | {70: 1070 ^ 1}
    index.close()


def cut_behind_the_first_page(path: Path) -> None:
    os.truncate(path, 1024 + 512)


@pytest.mark.parametrize("damage", [flip_a_slot, zero_the_page, cut_behind_the_first_page, Path.unlink])
def test_pages_are_replaced_and_stay_so(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    filled(RealDisk(), tmp_path).close()
    damage(page_file_path(tmp_path, 7))
    index = open_index(RealDisk(), tmp_path, CONFIG)
    for one in index.damaged_ranges(7):
        assert index.replace(one, {at: 5000 + at for at in one.entry_ids if at % 3})
        assert not index.replace(one, {})  # it can be read now
    assert index.damaged_ranges(7) == []
    index.close()
    index = open_index(RealDisk(), tmp_path, CONFIG)
    assert list(index.locate(7, 70)) == [5070]
    assert list(index.locate(7, 72)) == []
    index.put([EntryRange(7, [72], [6000])])
    index.sync()
    assert list(index.locate(7, 72)) == [6000]
    assert dict(index.ledgers()) == {7: DATA}
    index.close()


def test_a_sound_page_is_not_replaced(tmp_path: Path) -> None:
    index = filled(RealDisk(), tmp_path)
    index.close()
    flip_a_slot(page_file_path(tmp_path, 7))
    index = open_index(RealDisk(), tmp_path, CONFIG)
    (damaged,) = index.damaged_ranges(7)
    flip_a_slot(page_file_path(tmp_path, 7))
    assert not index.replace(damaged, {})
    assert list(index.locate(7, 70)) == [1070]
    index.close()


@pytest.mark.parametrize("seed", range(8))
def test_a_power_cut_leaves_the_page_damaged_or_new(seed: int) -> None:
    """With a mark the next start would take the damaged bytes for a page that was being overwritten."""
    directory, config = Path("l"), attrs.evolve(CONFIG, pages=PageIndexConfig(page_bytes=1024, pages_max=8))
    first = {entry_id: 1000 + entry_id for entry_id in range(128)}
    for steps in itertools.count(1):
        disk = SimulatedDisk()
        disk.make_directory(directory)
        filled(disk, directory, config).close()
        file = disk.open(page_file_path(directory, 7), write=True)
        file.pwrite(bytes(512), 1024 + 512)
        file.sync()
        file.close()
        index = open_index(disk, directory, config)
        (damaged,) = index.damaged_ranges(7)
        disk.cut_at = disk.steps + steps
        try:
            index.replace(damaged, first)
        except PowerCutError:
            index = open_index(disk.after_power_cut(random.Random(seed)), directory, config)
        else:
            break
        try:
            assert list(index.locate(7, 70)) == [1070]
        except FormatError:
            (again,) = index.damaged_ranges(7)
            assert index.replace(again, first)
        assert list(index.locate(7, 0, 128)) == list(first.values())
        index.close()
    assert steps > 3
