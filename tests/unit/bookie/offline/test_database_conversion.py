"""Directories between our indexes and the databases of Apache's DbLedgerStorage: nothing lost, or refused."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from bookie.disk.disk import Disk
from bookie.disk.real_disk import RealDisk
from bookie.entrylog.format import entry_log_name
from bookie.errors import IndexKindError, IndexMissingError, LogDamagedError, StartError
from bookie.index.apache_databases import ApacheDatabases, encode_ledger
from bookie.index.apache_refusal import shows_databases, stops_page_files
from bookie.index.entry_index import EntryRange
from bookie.index.index_factory import IndexConfig, open_existing_index
from bookie.ledger_record import UNKNOWN_KEY, LedgerData
from bookie.offline.index_places import READY, REBUILDING
from bookie.offline.index_rebuild import rebuild_indexes
from bookie.storage.config import StorageConfig
from bookie.storage.dirty_marks import read_loss_mark, remove_loss_mark, write_loss_mark
from bookie.storage.opening import open_storage
from tests.effort import IS_SAMPLE
from tests.fakes.bookie_work import CONFIG, body_of
from tests.fakes.simulated_disk import PowerCutError, SimulatedDisk
from tests.unit.bookie.offline.test_change_of_hands import cut_marks
from tests.unit.bookie.offline.test_index_rebuild import CHUNKS, KEY, KINDS, PAGES, check, config_for, fill

pytestmark = pytest.mark.slow


def to_databases(disk: Disk, config: StorageConfig) -> None:
    rebuild_indexes(disk, config, to_databases=True, fences_unreadable=False)


def from_databases(disk: Disk, config: StorageConfig) -> None:
    rebuild_indexes(disk, config, fences_unreadable=False)


def index_directories(config: StorageConfig) -> list[Path]:
    return [path / "current" for path in config.index_directories or config.ledger_directories]


def apache_starts(disk: Disk, config: StorageConfig) -> bool:
    """True if Apache's DbLedgerStorage starts on these directories."""
    return all(shows_databases(disk, path) for path in index_directories(config))


def content(disk: Disk, config: StorageConfig) -> list[object]:
    """What Apache's bookie finds in its databases."""
    found: list[object] = []
    for path in index_directories(config):
        databases = ApacheDatabases(disk, path)
        found += list(databases.ledgers())
        for ledger_id in databases.ledgers_with_entries():
            found += [(one.entry_ids, one.locations) for one in databases.ranges(ledger_id)]
        databases.close()
    return found


async def filled_databases(directory: Path, count: int = 2) -> StorageConfig:
    config = config_for(directory, CHUNKS, count)
    await fill(RealDisk(), config)
    to_databases(RealDisk(), config)
    return config


def change(
    config: StorageConfig, database: str, *operations: tuple[bytes, bytes | None], number: int = 0
) -> None:
    """Change Apache's database, as its own bookie could: make it again with other records."""
    path = index_directories(config)[number] / database
    old = RealDisk().open_apache_database(path)
    now: dict[bytes, bytes | None] = {**dict(old.scan(b"", b"\xff" * 20)), **dict(operations)}
    old.close()
    shutil.rmtree(path)
    new = RealDisk().open_apache_database(path, create=True)
    new.write([(key, value) for key, value in now.items() if value is not None])
    new.sync()
    new.close()


def steps_of(disk: SimulatedDisk) -> list[int]:
    """Steps at which to cut the power; all of the exchange, which comes last."""
    exchange = next(at for at, what in enumerate(disk.trace, 1) if "cannot read" in what)
    return [
        *range(1, exchange, 29 if IS_SAMPLE else 5),
        *range(exchange, disk.steps + 1, 5 if IS_SAMPLE else 1),
    ]


def number(value: int) -> bytes:
    return value.to_bytes(8, "big", signed=True)


@KINDS
async def test_nothing_changes_on_the_way_to_apaches_databases_and_back(
    tmp_path: Path, index: IndexConfig
) -> None:
    disk, config = RealDisk(), config_for(tmp_path, index)
    await fill(disk, config)
    before = await check(disk, config, fenced=False)
    to_databases(disk, config)
    assert apache_starts(disk, config)
    assert all(stops_page_files(disk, path) for path in index_directories(config))
    for kind in (PAGES, CHUNKS):
        with pytest.raises(IndexMissingError, match=r"databases of Apache's DbLedgerStorage.*convert-index"):
            await check(disk, attrs.evolve(config, index=kind), fenced=False)
    assert apache_starts(disk, config), "the refused start has changed nothing"
    with pytest.raises(StartError, match="has the databases of Apache's DbLedgerStorage already"):
        to_databases(disk, config)
    stored = dict(
        pair for path in index_directories(config) for pair in ApacheDatabases(disk, path).ledgers()
    )
    assert stored == {one: attrs.evolve(data, lac=-1, last_entry_id=-1) for one, data in before.items()}
    other = attrs.evolve(config, index=CHUNKS if index is PAGES else PAGES)
    from_databases(disk, other)
    after = await check(disk, other, fenced=False)
    # A LAC without an entry is not in Apache's data.
    assert {one: attrs.evolve(data, lac=0) for one, data in after.items()} == {
        one: attrs.evolve(data, lac=0) for one, data in before.items()
    }
    assert not apache_starts(disk, config)
    names = {path.name for path in (tmp_path / "index-0/current").iterdir()}
    assert not names & {REBUILDING, READY}


async def test_a_ledger_without_data_in_apaches_databases_is_kept_and_fenced(tmp_path: Path) -> None:
    config = await filled_databases(tmp_path)
    change(config, "ledgers", (number(2), None))
    (first, _) = rebuild_indexes(RealDisk(), config, fences_unreadable=False)
    assert first.stats.fenced == 1
    async with open_storage(RealDisk(), config, wall_ms=lambda: 1000) as storage:
        record, other = storage.ledger(2), storage.ledger(0)
        assert record is not None
        assert other is not None
        assert (record.fenced, record.master_key) == (True, UNKNOWN_KEY)
        assert (other.fenced, other.master_key) == (False, KEY)
        assert await storage.entry_ids(2) == list(range(40))


async def test_fence_limbo_and_explicit_lac_are_kept_in_both_directions(tmp_path: Path) -> None:
    config = await filled_databases(tmp_path)
    packet = number(2) + number(38) + b"crcc"
    record = encode_ledger(2, LedgerData(KEY, True, packet, -1, -1, limbo=True))
    change(config, "ledgers", record)
    from_databases(RealDisk(), config)
    async with open_storage(RealDisk(), config, wall_ms=lambda: 1000) as storage:
        ledger = storage.ledger(2)
        assert ledger is not None
        assert ledger.stored() == LedgerData(KEY, True, packet, 38, 39, limbo=True)
    to_databases(RealDisk(), config)
    databases = ApacheDatabases(RealDisk(), tmp_path / "index-0/current")
    assert encode_ledger(2, dict(databases.ledgers())[2]) == record
    databases.close()


async def test_entries_of_ledgers_that_apaches_bookie_deleted_stay_away(tmp_path: Path) -> None:
    config = await filled_databases(tmp_path)
    gone = [number(2) + number(entry_id) for entry_id in range(40)]
    change(config, "ledgers", (number(2), None))
    change(config, "locations", *[(key, None) for key in gone])
    (first, _) = rebuild_indexes(RealDisk(), config, fences_unreadable=False)
    assert (first.stats.fenced, first.stats.skipped_entries) == (0, 40)
    async with open_storage(RealDisk(), config, wall_ms=lambda: 1000) as storage:
        assert storage.ledger(2) is None


async def test_an_unfinished_check_of_apaches_bookie_puts_all_ledgers_in_doubt(tmp_path: Path) -> None:
    config = await filled_databases(tmp_path)
    change(config, "ledgers", (number(-0xEEFD), number(1)))
    from_databases(RealDisk(), config)
    reason = read_loss_mark(RealDisk(), [tmp_path / "ledgers-1/current"])
    assert reason == "Apache's bookie has not finished its check for missing entries"


async def test_the_copy_that_the_old_index_names_is_taken_over_in_both_directions(tmp_path: Path) -> None:
    """A later log has an older copy: compaction may copy an entry behind one that was added again."""
    disk, config = RealDisk(), config_for(tmp_path, CHUNKS, 1)
    await fill(disk, config)
    directory = tmp_path / "ledgers-0/current"
    shutil.copy(directory / "0.log", directory / entry_log_name(0x77))
    index = open_existing_index(disk, tmp_path / "index-0/current")
    assert index is not None
    before = [list(one.locations) for one in index.ranges(0)]
    index.close()
    to_databases(disk, config)
    databases = ApacheDatabases(disk, tmp_path / "index-0/current")
    assert [list(one.locations) for one in databases.ranges(0)] == before
    databases.close()
    from_databases(disk, config)
    index = open_existing_index(disk, tmp_path / "index-0/current")
    assert index is not None
    assert [list(one.locations) for one in index.ranges(0)] == before
    index.close()


def snapshot(directory: Path) -> dict[str, bytes]:
    """All files of the bookie but what a conversion leaves under names of its own, and the lock files."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.glob("*/current/**/*")
        if path.is_file() and "index." not in str(path) and "/index/" not in str(path) and path.name != "LOCK"
    }


def drop_log(config: StorageConfig) -> None:
    (config.ledger_directories[0] / "current/0.log").unlink()


def misplace(config: StorageConfig) -> None:
    change(config, "locations", (number(0) + number(3), number(1028)))


def break_value(config: StorageConfig) -> None:
    change(config, "locations", (number(0) + number(3), b"short"))


def break_ledger(config: StorageConfig) -> None:
    change(config, "ledgers", (number(0), b"\x08\x01"))


def break_manifest(config: StorageConfig) -> None:
    (manifest,) = (index_directories(config)[0] / "ledgers").glob("MANIFEST*")
    manifest.write_bytes(b"x" * 100)


def drop_database(config: StorageConfig) -> None:
    shutil.rmtree(index_directories(config)[1] / "locations")


def unknown_entry(config: StorageConfig) -> None:
    change(config, "locations", (number(0) + number(999), number(1028)))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (drop_log, r"the old index has entry 0:\d+ at 0\.log, offset \d+, and no entry log contains it"),
        (
            misplace,
            r"1 of \d+ indexed entries are not in the entry logs: entry 0:3, at offset 1028 of 0\.log: entry",
        ),
        (
            unknown_entry,
            r"the old index has entry 0:999 at 0\.log, offset 1028, and no entry log contains it",
        ),
        (break_value, r"the old index cannot be read: locations: key .* with a value of 5 bytes"),
        (
            break_ledger,
            r"databases .* cannot be read: ledgers: ledger 0: .*rebuild-index.*fences every ledger",
        ),
        (break_manifest, r"databases .* cannot be read: .*rebuild-index.*fences every ledger"),
        (drop_database, r"databases .* cannot be read: .*Bring back `ledgers` and `locations`"),
    ],
)
async def test_databases_that_do_not_agree_with_the_logs_are_refused_and_nothing_changes(
    tmp_path: Path, damage: Callable[[StorageConfig], None], message: str
) -> None:
    config = await filled_databases(tmp_path)
    damage(config)
    before = snapshot(tmp_path)
    with pytest.raises(StartError, match=f"(?s){message}"):
        from_databases(RealDisk(), config)
    assert snapshot(tmp_path) == before
    with pytest.raises(IndexMissingError):
        await check(RealDisk(), config, fenced=False)
    (first, _) = rebuild_indexes(RealDisk(), config, accept_damage=True)
    assert not first.kept_ledger_data or first.stats.damage or damage is drop_database
    assert read_loss_mark(RealDisk(), [tmp_path / "ledgers-0/current"]) is not None
    if damage in (misplace, unknown_entry, break_value):
        async with open_storage(RealDisk(), config, wall_ms=lambda: 1000) as storage:
            record = storage.ledger(0)
            assert record is not None
            assert (record.limbo, record.fenced, record.master_key) == (True, True, KEY)
            assert await storage.entry_ids(0) == list(range(40))


async def test_an_index_that_names_what_no_log_has_does_not_become_apaches(tmp_path: Path) -> None:
    disk, config = RealDisk(), config_for(tmp_path, CHUNKS)
    await fill(disk, config)
    index = open_existing_index(disk, tmp_path / "index-1/current")
    assert index is not None
    index.put([EntryRange(1, [777], [5])])
    index.sync()
    index.close()
    before = snapshot(tmp_path)
    with pytest.raises(StartError, match=r"the old index has entry 1:777 at 0\.log, offset 5"):
        to_databases(disk, config)
    assert snapshot(tmp_path) == before
    rebuilt = rebuild_indexes(disk, config, accept_damage=True)
    assert [bool(one.stats.damage) for one in rebuilt] == [False, True]


async def test_damage_and_doubt_are_not_handed_to_apaches_bookie(tmp_path: Path) -> None:
    disk, config = RealDisk(), config_for(tmp_path, CHUNKS)
    await fill(disk, config)
    paths = [path / "current" for path in config.ledger_directories]
    write_loss_mark(disk, paths, "a test")
    with pytest.raises(
        StartError, match=r"acknowledged entries may be missing \(a test\).*Start this bookie once"
    ):
        to_databases(disk, config)
    remove_loss_mark(disk, paths)
    disk.replace_file(paths[1] / "DIRTY", b"adds are acknowledged before they are synced\n")
    with pytest.raises(StartError, match="acknowledged adds before they were synced"):
        to_databases(disk, config)
    disk.unlink(paths[1] / "DIRTY")
    log = tmp_path / "ledgers-1/current/0.log"
    data = bytearray(log.read_bytes())
    log.write_bytes(bytes(data[:1024]) + b"\x7f\xff\xff\xff" + bytes(data[1028:]))
    with pytest.raises(LogDamagedError):
        rebuild_indexes(disk, config, to_databases=True, accept_damage=True)
    log.write_bytes(data)
    await check(disk, config, fenced=False)


async def test_a_ledger_in_a_directory_where_apaches_bookie_does_not_look_is_refused(tmp_path: Path) -> None:
    disk, config = RealDisk(), config_for(tmp_path, CHUNKS, 1)
    await fill(disk, config)
    wider = attrs.evolve(config_for(tmp_path, CHUNKS, 2))
    async with open_storage(disk, wider, wall_ms=lambda: 1000):
        pass
    with pytest.raises(
        StartError, match=r"index-0.*has ledger 1, and .* looks for it in .*index-1.*--to pages"
    ):
        to_databases(disk, wider)
    await check(disk, wider, fenced=False)


async def test_without_keys_and_fences_no_databases_are_made(tmp_path: Path) -> None:
    disk, config = RealDisk(), config_for(tmp_path, CHUNKS)
    await fill(disk, config)
    shutil.rmtree(tmp_path / "index-0/current/index")
    with pytest.raises(StartError, match=r"keys and fences of ledgers cannot be read.*rebuild-index"):
        to_databases(disk, config)
    assert not apache_starts(disk, config)


async def test_databases_built_by_a_refused_conversion_are_never_taken(tmp_path: Path) -> None:
    """The first directory is built, the second is refused; then the bookie writes more, and tries again."""
    disk, config = RealDisk(), config_for(tmp_path, CHUNKS)
    await fill(disk, config)
    log, aside = tmp_path / "ledgers-1/current/0.log", tmp_path / "aside"
    log.rename(aside)
    with pytest.raises(StartError):
        to_databases(disk, config)
    aside.rename(log)
    assert (tmp_path / "index-0/current" / REBUILDING).exists()
    async with open_storage(disk, config, wall_ms=lambda: 1000) as storage:
        batch = storage.new_batch()
        storage.stage_entry(batch, storage.create_ledger(batch, 8, KEY), 0, -1, body_of(8, 0))
        storage.submit(batch, lambda error: None)
        await storage.flush()
    to_databases(disk, config)
    databases = ApacheDatabases(disk, tmp_path / "index-0/current")
    assert 8 in dict(databases.ledgers())
    databases.close()


@KINDS
async def test_a_power_cut_at_any_step_never_shows_half_of_the_databases(index: IndexConfig) -> None:
    config = attrs.evolve(CONFIG, index=index, ledger_directories=(Path("/l0"), Path("/l1")))
    filled = SimulatedDisk()
    await fill(filled, config)
    whole = filled.after_power_cut(random.Random(0))
    copy = whole.after_power_cut
    to_databases(reference := copy(random.Random(0)), config)
    expected = content(reference, config)
    outcomes = set()
    for cut_at in steps_of(reference):
        rng = random.Random(cut_at)
        disk = copy(rng)
        disk.cut_at = cut_at
        with pytest.raises(PowerCutError):
            to_databases(disk, config)
        disk = disk.after_power_cut(rng)
        if apache_starts(disk, config):
            outcomes.add("new")
            assert content(disk, config) == expected, cut_at
        try:
            await check(disk, config, fenced=False)
        except (IndexMissingError, IndexKindError):
            if not apache_starts(disk, config):
                outcomes.add("none")
                with pytest.raises(StartError, match="interrupted"):
                    from_databases(disk, config)
        else:
            outcomes.add("old")
            assert not apache_starts(disk, config), f"both start after a cut at {cut_at}"
            continue
        disk = disk.after_power_cut(rng)
        with contextlib.suppress(StartError):  # an exchange that has ended is refused
            to_databases(disk, config)
        assert apache_starts(disk, config), cut_at
        assert content(disk, config) == expected, cut_at
    assert outcomes == {"old", "none", "new"}


@KINDS
async def test_a_power_cut_at_any_step_of_taking_databases_over_loses_no_ledger(index: IndexConfig) -> None:
    config = attrs.evolve(CONFIG, index=index, ledger_directories=(Path("/l0"), Path("/l1")))
    filled = SimulatedDisk()
    await fill(filled, config)
    to_databases(filled, config)
    cut_marks(filled, config)
    copy = filled.after_power_cut(random.Random(0)).after_power_cut
    from_databases(reference := copy(random.Random(0)), config)
    for cut_at in steps_of(reference):
        rng = random.Random(cut_at)
        disk = copy(rng)
        disk.cut_at = cut_at
        with pytest.raises(PowerCutError):
            from_databases(disk, config)
        disk = disk.after_power_cut(rng)
        with contextlib.suppress(StartError):  # a start before the end would find ledgers missing, or fenced
            await check(disk, config, fenced=False)
        disk = disk.after_power_cut(rng)
        from_databases(disk, config)
        assert not apache_starts(disk, config)
        await check(disk, config, fenced=False)
    await check(reference, config, fenced=False)
