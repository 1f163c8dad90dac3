"""The contract of every index, compared with a dictionary: lookups, moves, deletions, crashes.

The crash tests use ``simulated_disk``. A power cut there loses any unsynced sectors of a file, and any suffix
of the map's unsynced batches.
"""

# covers: bookie/index/entry_index.py

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
from hypothesis import given, settings

from bookie.disk.disk import Disk
from bookie.disk.real_disk import RealDisk
from bookie.index.chunk_index import ChunkIndex
from bookie.index.entry_index import EntryIndex, EntryRange, LedgerMove
from bookie.index.page_cache import PageIndexConfig
from bookie.index.page_index import PAGED_ENTRY_ID_STOP, PageIndex
from bookie.ledger_record import LedgerData
from tests.effort import examples
from tests.fakes.simulated_disk import PowerCutError, SimulatedDisk
from tests.strategies import SEEDS

Place = tuple[int, int]
SMALL = PageIndexConfig(page_bytes=512, pages_max=4, open_files_max=2)


def open_chunks(disk: Disk, directory: Path) -> EntryIndex:
    return ChunkIndex(disk.open_key_values(directory / "index"))


def open_pages(disk: Disk, directory: Path) -> EntryIndex:
    return PageIndex(disk, directory, disk.open_key_values(directory / "index"), SMALL)


Open = Callable[[Disk, Path], EntryIndex]
KINDS: dict[str, Open] = {"chunks": open_chunks, "pages": open_pages}


@pytest.fixture(params=KINDS)
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EntryIndex]:
    opened = KINDS[request.param](RealDisk(), tmp_path)
    yield opened
    opened.close()


def data(number: int = 0, *, fenced: bool = False) -> LedgerData:
    return LedgerData(b"key", fenced, None, number, number)


def test_a_new_index_is_empty_and_not_complete(index: EntryIndex) -> None:
    assert not index.is_complete
    assert index.locate(1, 0, 5) == ()
    assert index.last_entry_id(1) == -1
    assert index.entry_ids(1) == []
    assert list(index.ledgers()) == []
    index.delete_ledger(1)
    index.sync()
    index.mark_complete()
    assert index.is_complete


def test_one_lookup_returns_consecutive_locations_up_to_a_gap(index: EntryIndex) -> None:
    index.put([EntryRange(1, [0, 1, 2, 4, 5], [10, 11, 12, 14, 15])])
    assert list(index.locate(1, 1, 9)) == [11, 12]
    assert list(index.locate(1, 0, 2)) == [10, 11]
    assert list(index.locate(1, 4)) == [14]
    assert list(index.locate(1, 3, 9)) == []


def test_a_later_put_replaces_locations_and_may_fill_gaps(index: EntryIndex) -> None:
    index.put([EntryRange(1, [0, 2, 4], [10, 12, 14])])
    index.put([EntryRange(1, [1, 2], [21, 22])])
    index.sync()
    assert [list(index.locate(1, e)) for e in range(6)] == [[10], [21], [22], [], [14], []]
    assert index.entry_ids(1) == [0, 1, 2, 4]


def test_an_entry_moves_only_from_its_indexed_location(index: EntryIndex) -> None:
    index.put([EntryRange(1, range(200), range(1000, 1200)), EntryRange(2, [7], [70])])
    moves = [
        LedgerMove(1, [3, 60, 61, 199, 200], [1003, 1060, 9999, 1199, 1], [1, 2, 3, 4, 5]),
        LedgerMove(1, [4], [1004], [6]),
        LedgerMove(2, [], [], []),
        LedgerMove(3, [0], [1], [2]),
        LedgerMove(2, [7], [70], [71]),
    ]
    assert index.relocate(moves) == [[3, 60, 199], [4], [], [], [7]]
    assert [list(index.locate(1, e)) for e in (3, 4, 60, 61, 199, 200)] == [[1], [6], [2], [1061], [4], []]
    assert list(index.locate(2, 7)) == [71]
    assert list(index.locate(3, 0)) == []


def test_consecutive_entries_move_together_or_one_by_one(index: EntryIndex) -> None:
    index.put([EntryRange(1, range(300), range(1000, 1300)), EntryRange(2, range(0, 300, 2), range(150))])
    whole = LedgerMove(1, range(10, 290), range(1010, 1290), range(5010, 5290))
    assert index.relocate([whole]) == [list(range(10, 290))]
    assert [index.locate(1, e)[0] for e in (9, 10, 289, 290)] == [1009, 5010, 5289, 1290]
    one_is_elsewhere = LedgerMove(1, [10, 11, 12], [5010, 7, 5012], [1, 2, 3])
    assert index.relocate([one_is_elsewhere]) == [[10, 12]]
    assert [index.locate(1, e)[0] for e in (10, 11, 12)] == [1, 5011, 3]
    some_are_missing = LedgerMove(2, [4, 5, 6], [2, 3, 3], [90, 91, 92])
    assert index.relocate([some_are_missing]) == [[4, 6]]
    assert [list(index.locate(2, e)) for e in (4, 5, 6)] == [[90], [], [92]]


def test_entries_with_ids_too_great_for_a_file_behave_like_others(index: EntryIndex) -> None:
    far = PAGED_ENTRY_ID_STOP
    index.put([EntryRange(1, [5, far - 1, far, far + 1, 2**63 - 1], [1, 2, 3, 4, 5])])
    index.sync()
    assert index.entry_ids(1) == [5, far - 1, far, far + 1, 2**63 - 1]
    assert list(index.locate(1, far, 9)) == [3, 4]
    assert index.last_entry_id(1) == 2**63 - 1
    assert index.relocate([LedgerMove(1, [far - 1, far], [2, 3], [12, 13])]) == [[far - 1, far]]
    assert list(index.locate(1, far)) == [13]
    index.delete_ledger(1)
    assert index.entry_ids(1) == []


def test_ids_above_the_greatest_possible_one_are_not_found(index: EntryIndex) -> None:
    index.put([EntryRange(1, [5, 2**63 - 2, 2**63 - 1], [1, 2, 3]), EntryRange(2, [0], [4])])
    for _ in range(2):
        assert list(index.locate(1, 2**63 - 2, 9)) == [2, 3]
        for beyond in (2**63, 2**63 + 1, 2**64):
            assert list(index.ranges(1, beyond)) == []
            assert list(index.locate(1, beyond, 9)) == []
            assert not index.following(1, beyond, 9).entry_ids
        assert [list(entry_range.entry_ids)[-1:] for entry_range in index.ranges(1, 2**63 - 1)] == [
            [2**63 - 1]
        ]
        index.sync()


@pytest.mark.parametrize("kind", KINDS)
def test_synced_writes_are_present_after_reopening(kind: str, tmp_path: Path) -> None:
    index = KINDS[kind](RealDisk(), tmp_path)
    index.put([EntryRange(n, range(300), range(1, 301)) for n in range(9)], [(n, data(n)) for n in range(9)])
    index.put([EntryRange(4, [299, 301], [7, 8])], [(4, data(301, fenced=True))])
    index.delete_ledger(5)
    index.mark_complete()
    index.sync()
    index.close()
    index = KINDS[kind](RealDisk(), tmp_path)
    assert index.is_complete
    expected = {n: data(n) for n in range(9) if n != 5} | {4: data(301, fenced=True)}
    assert dict(index.ledgers()) == expected
    assert index.entry_ids(3) == list(range(300))
    assert index.entry_ids(4) == [*range(300), 301]
    assert (list(index.locate(4, 299)), index.last_entry_id(4)) == ([7], 301)
    assert (index.entry_ids(5), index.last_entry_id(5)) == ([], -1)
    index.close()


# --- against a twin, with crashes ------------------------------------------------------------------


@attrs.define
class Twin:
    """The expected state of the index, and the allowed states after a crash."""

    now: dict[Place, int] = attrs.field(factory=dict)
    ledgers: dict[int, LedgerData] = attrs.field(factory=dict)
    may: dict[Place, set[int | None]] = attrs.field(factory=dict)  # locations since the last sync
    ledgers_may: dict[int, list[LedgerData | None]] = attrs.field(factory=dict)

    def set(self, place: Place, location: int | None) -> None:
        self.may.setdefault(place, {self.now.get(place)}).add(location)
        if location is None:
            self.now.pop(place, None)
        else:
            self.now[place] = location

    def set_ledger(self, ledger_id: int, known: LedgerData | None) -> None:
        self.ledgers_may.setdefault(ledger_id, [self.ledgers.get(ledger_id)]).append(known)
        if known is None:
            self.ledgers.pop(ledger_id, None)
        else:
            self.ledgers[ledger_id] = known

    def synced(self) -> None:
        self.may.clear()
        self.ledgers_may.clear()

    def crashed(self, index: EntryIndex) -> None:
        """Check that the index has a state since the last sync, and adopt that state."""
        for place in list(self.now.keys() | self.may.keys()):
            found = next(iter(index.locate(*place)), None)
            assert found in self.may.get(place, {self.now.get(place)}), place
            self.now.pop(place, None)
            if found is not None:
                self.now[place] = found
        known = dict(index.ledgers())
        for ledger_id in range(LEDGERS):
            allowed = self.ledgers_may.get(ledger_id, [self.ledgers.get(ledger_id)])
            assert known.get(ledger_id) in allowed
        self.ledgers = known


LEDGERS, IDS = 5, 330


def step(rng: random.Random, index: EntryIndex, twin: Twin, next_location: list[int]) -> None:
    """Apply one operation to both. The twin comes first, since power may be cut during the other."""
    ledger_id = rng.randrange(LEDGERS)
    first = rng.randrange(IDS)
    ids = sorted(
        {min(IDS - 1, first + rng.choice([i, i, rng.randrange(100)])) for i in range(rng.randrange(1, 90))}
    )
    match rng.choice("pppprrds"):
        case "p":
            locations = list(range(next_location[0], next_location[0] + len(ids)))
            next_location[0] += len(ids)
            for entry_id, location in zip(ids, locations, strict=True):
                twin.set((ledger_id, entry_id), location)
            known = data(locations[0], fenced=rng.random() < 0.3)
            twin.set_ledger(ledger_id, known)
            index.put([EntryRange(ledger_id, ids, locations)], [(ledger_id, known)])
        case "r":
            old = [twin.now.get((ledger_id, e), 1) + (rng.random() < 0.2) for e in ids]
            new = list(range(next_location[0], next_location[0] + len(ids)))
            next_location[0] += len(ids)
            moved = []
            for entry_id, before, after in zip(ids, old, new, strict=True):
                if twin.now.get((ledger_id, entry_id)) == before:
                    twin.set((ledger_id, entry_id), after)
                    moved.append(entry_id)
            assert index.relocate([LedgerMove(ledger_id, ids, old, new)]) == [moved]
        case "d":
            for entry_id in range(IDS):
                if (ledger_id, entry_id) in twin.now:
                    twin.set((ledger_id, entry_id), None)
            twin.set_ledger(ledger_id, None)
            index.delete_ledger(ledger_id)
        case _:
            index.sync()
            twin.synced()


def check(index: EntryIndex, twin: Twin) -> None:
    for ledger_id in range(LEDGERS):
        known = sorted(e for at, e in twin.now if at == ledger_id)
        assert index.entry_ids(ledger_id) == known
        assert index.last_entry_id(ledger_id) == (known[-1] if known else -1)
        for entry_id in range(0, IDS, 7):
            found = list(index.locate(ledger_id, entry_id, 1 + entry_id % 50))
            assert found == [twin.now.get((ledger_id, entry_id + i)) for i in range(len(found))]
            assert bool(found) == ((ledger_id, entry_id) in twin.now)
    assert dict(index.ledgers()) == twin.ledgers


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(40))
@given(seed=SEEDS)
def test_an_index_behaves_like_a_dictionary(kind: str, seed: int) -> None:
    rng, disk, twin, next_location = random.Random(seed), SimulatedDisk(), Twin(), [1000]
    index = KINDS[kind](disk, Path("/d"))
    for _ in range(30):
        step(rng, index, twin, next_location)
        if rng.random() < 0.2:
            check(index, twin)
    check(index, twin)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(60))
@given(seed=SEEDS)
def test_a_crash_loses_no_synced_write_and_adds_no_entry(kind: str, seed: int) -> None:
    rng, disk, twin, next_location = random.Random(seed), SimulatedDisk(), Twin(), [1000]
    index = KINDS[kind](disk, Path("/d"))
    for _ in range(4):
        disk.cut_at = disk.steps + rng.randrange(1, 200)
        try:
            for _ in range(rng.randrange(25)):
                step(rng, index, twin, next_location)
        except PowerCutError:
            disk = disk.after_power_cut(rng)
            index = reopened(kind, disk, rng, twin)
            twin.crashed(index)
            twin.synced()
        else:
            # Killed: unsynced writes are visible, and a later power cut may still lose them.
            disk.cut_at = None
            index = KINDS[kind](disk, Path("/d"))
            twin.crashed(index)
        check(index, twin)


def reopened(kind: str, disk: SimulatedDisk, rng: random.Random, twin: Twin) -> EntryIndex:
    """Open the index after a power cut; more power cuts may interrupt the opening."""
    while True:
        disk.cut_at = disk.steps + rng.randrange(1, 20)
        try:
            index = KINDS[kind](disk, Path("/d"))
        except PowerCutError:
            disk.cut_at = None
            survivor = disk.after_power_cut(rng)
            disk.__dict__.update(survivor.__dict__)
        else:
            disk.cut_at = None
            return index
