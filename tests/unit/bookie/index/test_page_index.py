"""The page index on real files: bytes, bounds, damage, deletion, kinds. The contract suite tests the rest."""

# covers: bookie/index/index_factory.py

from __future__ import annotations

import errno
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookie.disk.descriptors import Descriptors
from bookie.disk.disk import File
from bookie.disk.real_disk import RealDisk, RealFile
from bookie.errors import FormatError, IndexKindError, StartError
from bookie.index.entry_index import EntryRange, LedgerMove
from bookie.index.index_factory import IndexConfig, IndexKind, open_index
from bookie.index.page_cache import PageIndexConfig
from bookie.index.page_file import PageFileHeader, decode_page_file_header, page_file_path
from bookie.index.page_index import PAGED_ENTRY_ID_STOP, PageIndex
from bookie.ledger_record import LedgerData
from tests.effort import examples

CONFIG = PageIndexConfig(page_bytes=512, pages_max=8, open_files_max=3)
DATA = LedgerData(b"key", False, None, 3, 4)


def open_pages(directory: Path, config: PageIndexConfig = CONFIG) -> PageIndex:
    index = open_index(RealDisk(), directory, IndexConfig(kind=IndexKind.PAGES, pages=config))
    assert isinstance(index, PageIndex)
    return index


def filled(directory: Path) -> PageIndex:
    index = open_pages(directory)
    index.put([EntryRange(7, range(200), range(1000, 1200))], [(7, DATA)])
    index.mark_complete()
    index.sync()
    return index


def test_a_file_has_apaches_layout(tmp_path: Path) -> None:
    index = open_pages(tmp_path)
    packet = bytes(range(20))
    index.put([EntryRange(258, [0, 1, 70], [11, 12, 13])], [(258, attrs.evolve(DATA, explicit_lac=packet))])
    index.put([], [(3, attrs.evolve(DATA, fenced=True))])
    index.sync()
    data = page_file_path(tmp_path, 258).read_bytes()
    assert decode_page_file_header(data[:1024]) == PageFileHeader(b"key", False, packet)
    assert struct.unpack_from(">2q", data, 1024) == (11, 12)
    assert struct.unpack_from(">q", data, 1024 + 8 * 70) == (13,)
    assert sum(data[1024:]) == 11 + 12 + 13
    # A fenced ledger without entries: Apache's bookie writes a header and no page.
    assert decode_page_file_header(page_file_path(tmp_path, 3).read_bytes()).fenced
    index.put([], [(258, attrs.evolve(DATA, fenced=True))])
    index.sync()
    assert decode_page_file_header(page_file_path(tmp_path, 258).read_bytes()[:1024]).fenced
    index.close()


@settings(deadline=None, max_examples=examples(25))
@given(
    page_bytes=st.integers(1, 40).map(lambda sectors: 512 * sectors),
    near=st.sets(st.integers(-90, 90), min_size=1),
    moved=st.sets(st.integers(-90, 90)),
)
def test_entries_around_the_greatest_paged_id_are_found_and_moved_for_each_page_size(
    page_bytes: int, near: set[int], moved: set[int]
) -> None:
    with TemporaryDirectory() as directory:
        index = open_pages(Path(directory), attrs.evolve(CONFIG, page_bytes=page_bytes))
        ids = [PAGED_ENTRY_ID_STOP + number for number in sorted(near)]
        expected = dict(zip(ids, range(1, 1000), strict=False))
        index.put([EntryRange(1, ids, list(expected.values()))])
        wanted = [PAGED_ENTRY_ID_STOP + number for number in sorted(moved)]
        old = [expected.get(entry_id, 7777) for entry_id in wanted]
        found = [entry_id for entry_id in wanted if entry_id in expected]
        new = list(range(2000, 2000 + len(wanted)))
        if wanted:
            assert index.relocate([LedgerMove(1, wanted, old, new)]) == [found]
        expected.update({e: at for e, at in zip(wanted, new, strict=True) if e in expected})
        for _ in range(2):
            span = range(PAGED_ENTRY_ID_STOP - 95, PAGED_ENTRY_ID_STOP + 95)
            assert {e: at for e in span for at in index.locate(1, e)} == expected
            assert index.entry_ids(1) == ids
            assert index.last_entry_id(1) == ids[-1]
            index.sync()
        index.close()


def test_memory_and_open_files_are_bounded(tmp_path: Path) -> None:
    index = open_pages(tmp_path)
    for ledger_id in range(40):
        index.put([EntryRange(ledger_id, range(0, 700, 7), range(1, 101))], [(ledger_id, DATA)])
        assert len(index._cache) <= CONFIG.pages_max
        assert len(index._files) <= CONFIG.open_files_max
    for ledger_id in range(40):
        assert index.entry_ids(ledger_id) == list(range(0, 700, 7))
        assert len(index._cache) <= CONFIG.pages_max
    index.sync()
    assert [list(index.locate(n, 693)) for n in range(40)] == [[100]] * 40
    index.close()


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[1024 + 8 * 70 + 7] ^= 1
    path.write_bytes(data)


def zero_a_block(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(1024 + 512)
        file.write(bytes(512))


def truncate(path: Path) -> None:
    os.truncate(path, 1024 + 512 + 100)


def cut_off_whole_pages(path: Path) -> None:
    os.truncate(path, 1024 + 512)


@pytest.mark.slow
@pytest.mark.parametrize("damage", [flip_a_bit, zero_a_block, truncate, cut_off_whole_pages, Path.unlink])
def test_a_damaged_page_is_an_error_not_an_absence(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    filled(tmp_path).close()
    damage(page_file_path(tmp_path, 7))
    index = open_pages(tmp_path)
    for entry_id in (64, 70, 127):
        with pytest.raises((FormatError, FileNotFoundError)):
            index.locate(7, entry_id)
    with pytest.raises((FormatError, FileNotFoundError)):
        index.put([EntryRange(7, [70], [1])])
    assert index.locate(8, 70) == ()
    index.close()


@pytest.mark.slow
@pytest.mark.parametrize("damage", [flip_a_bit, zero_a_block, truncate, cut_off_whole_pages])
def test_a_put_into_a_damaged_page_leaves_its_bytes_and_its_checksum(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    filled(tmp_path).close()
    path = page_file_path(tmp_path, 7)
    damage(path)
    before = path.read_bytes()
    index = open_pages(tmp_path)
    with pytest.raises(FormatError):
        index.put([EntryRange(7, [70], [1])])
    index.put([EntryRange(8, [0], [1])], [(8, DATA)])
    index.sync()
    index.close()
    assert path.read_bytes() == before
    index = open_pages(tmp_path)
    for entry_id in (64, 70, 127):
        with pytest.raises(FormatError):
            index.locate(7, entry_id)
    assert index.locate(7, 63) == (1063,)
    assert index.locate(8, 0) == (1,)
    index.close()


def test_damage_behind_the_last_entry_of_a_cached_page_is_not_sealed_by_its_next_write(
    tmp_path: Path,
) -> None:
    """The zeros at the end of a page are not written, so a write does not replace damage there."""
    filled(tmp_path).close()
    index = open_pages(tmp_path)
    assert index.locate(7, 199) == (1199,)  # the page of entries 192 to 255 is in memory now
    with page_file_path(tmp_path, 7).open("r+b") as file:
        file.seek(1024 + 8 * 250)
        file.write(b"\1" * 8)
    index.put([EntryRange(7, [200], [1200])])
    index.sync()
    index.close()
    index = open_pages(tmp_path)
    for entry_id in (199, 200, 250):
        with pytest.raises(FormatError):
            index.locate(7, entry_id)
    index.close()


def test_a_damaged_header_has_no_effect_and_is_written_again(tmp_path: Path) -> None:
    filled(tmp_path).close()
    path = page_file_path(tmp_path, 7)
    with path.open("r+b") as file:
        file.write(bytes(1024))
    index = open_pages(tmp_path)
    assert list(index.locate(7, 70)) == [1070]
    assert dict(index.ledgers()) == {7: DATA}
    index.put([], [(7, DATA)])
    index.sync()
    assert decode_page_file_header(path.read_bytes()[:1024]).master_key == b"key"
    index.close()


def test_deletion_unlinks_the_file_and_a_ledger_created_again_is_empty(tmp_path: Path) -> None:
    index = filled(tmp_path)
    index.delete_ledger(7)
    index.sync()
    assert not page_file_path(tmp_path, 7).exists()
    index.put([EntryRange(7, [3], [33])], [(7, DATA)])
    index.delete_ledger(7)
    index.put([EntryRange(7, [5], [55])], [(7, DATA)])
    index.sync()
    assert index.entry_ids(7) == [5]
    index.close()
    index = open_pages(tmp_path)
    assert index.entry_ids(7) == [5]
    assert sum(page_file_path(tmp_path, 7).read_bytes()[1024:]) == 55
    index.close()


def test_the_file_of_an_interrupted_deletion_is_unlinked_at_the_next_start(tmp_path: Path) -> None:
    index = filled(tmp_path)
    with mock.patch.object(RealDisk, "unlink", side_effect=OSError("killed here")):
        index.delete_ledger(7)
        with pytest.raises(OSError, match="killed here"):
            index.sync()
    index.close()
    assert page_file_path(tmp_path, 7).exists()
    index = open_pages(tmp_path)
    assert not page_file_path(tmp_path, 7).exists()
    assert index.entry_ids(7) == []
    index.close()


def test_a_page_read_before_a_write_does_not_enter_the_cache_after_it(tmp_path: Path) -> None:
    index = filled(tmp_path)
    index.close()
    index = open_pages(tmp_path, attrs.evolve(CONFIG, pages_max=4))
    reading, written = threading.Event(), threading.Event()
    load, caller = index._load, threading.current_thread()

    def slow(ledger_id: int, number: int) -> bytearray | None:
        data = load(ledger_id, number)
        if threading.current_thread() is not caller:
            index._stripes[7].release()  # as if the reader were preempted right after it released the lock
            reading.set()
            written.wait(10)
            index._stripes[7].acquire()
        return data

    found: list[list[int]] = []
    with mock.patch.object(index, "_load", slow):
        reader = threading.Thread(target=lambda: found.append(list(index.locate(7, 0))))
        reader.start()
        assert reading.wait(10)
        assert index.relocate([LedgerMove(7, [0], [1000], [5000])]) == [[0]]
        index.sync()
        for number in range(1, 4):  # evicts the page
            index.locate(7, 64 * number)
            index.locate(7, 64 * number)
        index._cache.drop_ledger(7)
        written.set()
        reader.join(10)
    assert found == [[1000]]  # the read began before the move
    assert list(index.locate(7, 0)) == [5000]
    index.close()


def test_the_other_kind_and_another_page_size_are_refused(tmp_path: Path) -> None:
    filled(tmp_path).close()
    with pytest.raises(
        IndexKindError, match=r"the kind 'pages'.*SortedLedgerStorage.*convert-index --to chunks"
    ):
        open_index(RealDisk(), tmp_path, IndexConfig())
    with pytest.raises(StartError, match="pageSize=512"):
        open_pages(tmp_path, attrs.evolve(CONFIG, page_bytes=1024))
    chunks = open_index(RealDisk(), tmp_path / "other", IndexConfig())
    chunks.mark_complete()
    chunks.close()
    with pytest.raises(IndexKindError, match="DbLedgerStorage"):
        open_pages(tmp_path / "other")
    index = open_pages(tmp_path)  # nothing was changed
    assert list(index.locate(7, 199)) == [1199]
    index.close()


def test_a_file_with_unsynced_writes_is_synced_before_it_is_closed(tmp_path: Path) -> None:
    index = open_pages(tmp_path)
    unsynced: set[File] = set()
    write, sync, close = RealFile.pwritev, RealFile.sync, RealFile.close

    def pwritev(self: RealFile, buffers: list[bytes], offset: int) -> None:
        unsynced.add(self)
        write(self, buffers, offset)

    def synced(self: RealFile) -> None:
        unsynced.discard(self)
        sync(self)

    closed_dirty = []

    def closed(self: RealFile) -> None:
        if self in unsynced:
            closed_dirty.append(self)
        close(self)

    with (
        mock.patch.object(RealFile, "pwritev", pwritev),
        mock.patch.object(RealFile, "sync", synced),
        mock.patch.object(RealFile, "close", closed),
    ):
        for ledger_id in range(20):
            index.put([EntryRange(ledger_id, [0, 100, 200], [1, 2, 3])])
        assert len(index._files) == CONFIG.open_files_max
        index.sync()
    assert closed_dirty == []
    assert not unsynced
    index.close()


@pytest.mark.parametrize("entry_ids", [[0], [0, 1], [3, 20], [1024], [5, 3000]])
def test_what_a_small_ledger_writes_grows_with_its_entries_and_its_file_has_whole_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry_ids: list[int]
) -> None:
    """Apache's bookie reads whole pages, so the rest of the last one is a hole."""
    written_bytes = 0
    write, writev = RealFile.pwrite, RealFile.pwritev

    def pwrite(self: RealFile, data: bytes, offset: int) -> None:
        nonlocal written_bytes
        written_bytes += len(data)
        write(self, data, offset)

    def pwritev(self: RealFile, buffers: list[bytes], offset: int) -> None:
        nonlocal written_bytes
        written_bytes += sum(map(len, buffers))
        writev(self, buffers, offset)

    index = open_pages(tmp_path, PageIndexConfig())
    pages = sorted({entry_id // 1024 for entry_id in entry_ids})
    monkeypatch.setattr(RealFile, "pwrite", pwrite)
    monkeypatch.setattr(RealFile, "pwritev", pwritev)
    index.put([EntryRange(7, entry_ids, [100 + entry_id for entry_id in entry_ids])], [(7, DATA)])
    index.sync()
    last_slots = [max(e for e in entry_ids if e // 1024 == page) % 1024 + 1 for page in pages]
    assert written_bytes == 1024 + 8 * sum(last_slots)
    assert page_file_path(tmp_path, 7).stat().st_size == 1024 + 8192 * (pages[-1] + 1)
    index.put([EntryRange(7, [entry_ids[-1] + 1], [9])], [(7, DATA)])
    index.sync()
    assert written_bytes <= 1024 + 16 * (sum(last_slots) + 1), "the same holds for the second flush"
    index.close()
    index = open_pages(tmp_path, PageIndexConfig())
    assert index.entry_ids(7) == [*entry_ids, entry_ids[-1] + 1]
    assert list(index.locate(7, entry_ids[0])) == [100 + entry_ids[0]]
    index.close()


def test_slots_of_a_flush_that_a_kill_has_undone_do_not_remain_behind_fewer_new_ones(tmp_path: Path) -> None:
    index = filled(tmp_path)  # the last page has the entries from 192 to 199
    index.put([EntryRange(7, range(200, 320), range(2000, 2120))])
    index._write_back()
    index.close()
    index = open_pages(tmp_path)
    assert index.entry_ids(7) == list(range(256)), "a page that was durable keeps what was added to it"
    index.put([EntryRange(7, [256], [77])])
    index.sync()
    index.close()
    index = open_pages(tmp_path)
    assert index.entry_ids(7) == list(range(257))
    assert list(index.locate(7, 256)) == [77]
    index.close()


def test_a_thread_that_waits_for_a_descriptor_holds_no_lock_that_the_loop_takes(tmp_path: Path) -> None:
    class ShortDisk(RealDisk):
        misses = 0

        def open(
            self, path: Path, *, create: bool = False, write: bool = False, direct: bool = False
        ) -> File:
            def missing(path: Path) -> File:
                if self.misses > 0 and path.suffix == ".idx":
                    self.misses -= 1
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                return super(ShortDisk, self).open(path, create=create, write=write, direct=direct)

            return self.descriptors.call(missing, path)

    waits = 0

    def pause(seconds: float) -> None:
        nonlocal waits
        waits += 1
        assert isinstance(index, PageIndex)
        assert not any(lock.locked() for lock in (*index._stripes, index._cache_lock))

    disk = ShortDisk()
    disk.descriptors = Descriptors(pause=pause)
    config = IndexConfig(kind=IndexKind.PAGES, pages=PageIndexConfig(pages_max=4, open_files_max=1))
    index = open_index(disk, tmp_path, config)
    assert isinstance(index, PageIndex)
    for round_number in range(2):
        for ledger_id in range(8):
            disk.misses = 3
            index.put([EntryRange(ledger_id, [round_number], [1000 * ledger_id + 7 + round_number])])
        disk.misses = 3
        index.sync()
    for ledger_id in range(8):
        disk.misses = 3
        assert list(index.locate(ledger_id, 0, 2)) == [1000 * ledger_id + 7, 1000 * ledger_id + 8]
    assert waits > 30
    index.close()
