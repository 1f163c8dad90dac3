"""A metadata store that lost something is refused or healed from its second copy, and never shows less."""

# covers: ledger/metadata_store/sqlite_store/copy_format.py
# covers: ledger/metadata_store/sqlite_store/database.py
# covers: ledger/metadata_store/sqlite_store/repair.py
# covers: ledger/metadata_store/sqlite_store/second_copy.py
# covers: ledger/metadata_store/sqlite_store/tree.py

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.metadata_store.errors import StoreLostError, StoreReplacedError
from ledger.metadata_store.sqlite_store.copy_format import (
    encode_change,
    encode_snapshot,
    read_changes,
    state_at,
)
from ledger.metadata_store.sqlite_store.repair import find_loss, repair_store
from ledger.metadata_store.sqlite_store.tree import SqliteTree
from tests.fuzz.metadata_sweep import (
    FILES,
    NAME,
    Damage,
    Killed,
    check,
    check_reader,
    copied,
    make_killed,
    nodes_of,
    opened,
)

SAMPLE = 30  # places of each file; every place: ``make soak``


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    return make_killed(tmp_path_factory.mktemp("metadata"))


@pytest.fixture
def killed(left: Killed) -> tuple[Path, dict[str, bytes]]:
    """The files that a killed process left, with changes in the database and in the WAL, and the nodes."""
    return left.directory, left.nodes


def some_of(damages: list[Damage]) -> list[Damage]:
    return [
        *(flips := [one for one in damages if one.kind == "flip"])[3 :: len(flips) // SAMPLE],
        *[one for one in damages if one.kind != "flip"][::4],
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_damage_at_each_place_is_refused_or_shows_everything(name: str, left: Killed, tmp_path: Path) -> None:
    outcomes = {check(left, damage, tmp_path / "here") for damage in some_of(left.damages(name))}
    assert outcomes == ({"healed"} if name == "metadata.copy" else {"healed", "refused"})


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
async def test_a_reader_is_refused_or_sees_everything(name: str, left: Killed, tmp_path: Path) -> None:
    for damage in some_of(left.damages(name))[::6]:
        await check_reader(left, damage, tmp_path / "here")


def test_an_older_copy_of_the_database_is_told(killed: tuple[Path, dict[str, bytes]], tmp_path: Path) -> None:
    source, nodes = killed
    here = copied(source, tmp_path / "here")
    opened(here)
    older = (here / NAME).read_bytes()
    tree = SqliteTree(here / NAME)
    tree.put("/n1", b"1", -1)
    tree.put("/n1", b"2", -1)
    tree.close()
    (here / NAME).write_bytes(older)
    with pytest.raises(StoreLostError, match=r"its last changes are lost.*dlog repair"):
        opened(here)
    assert "last changes are lost" in (find_loss(here / NAME) or "")
    repair_store(here / NAME)
    assert opened(here) == {**nodes, "/n1": b"2"}
    assert find_loss(here / NAME) is None


def test_a_node_that_differs_from_its_copy_is_told(
    killed: tuple[Path, dict[str, bytes]], tmp_path: Path
) -> None:
    source, nodes = killed
    here = copied(source, tmp_path / "here")
    for change in ("UPDATE node SET value = x'00' WHERE path = '/n1'", "DELETE FROM node WHERE path = '/n1'"):
        database = sqlite3.connect(here / NAME)
        database.execute(change)
        database.commit()
        database.close()
        with pytest.raises(StoreLostError, match="node '/n1' is damaged"):
            opened(here)
        repair_store(here / NAME)
        assert opened(here) == nodes


def test_a_change_that_was_copied_and_not_committed_is_taken(
    killed: tuple[Path, dict[str, bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The power is cut between the two writes."""
    source, nodes = killed
    here, cut = copied(source, tmp_path / "here"), tmp_path / "cut"
    tree = SqliteTree(here / NAME)

    def cut_power() -> None:
        shutil.rmtree(cut, ignore_errors=True)
        copied(here, cut)  # the last time is right before the commit

    monkeypatch.setattr(tree, "_check_place", cut_power)
    tree.put("/n2", b"late", -1)
    assert read_changes((cut / "metadata.copy").read_bytes())[-1].rows["/n2"] is not None
    for _ in range(2):
        assert opened(cut) == {**nodes, "/n2": b"late"}
    tree.close()


def test_a_change_is_not_committed_once_another_file_has_the_name(
    killed: tuple[Path, dict[str, bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is replaced within the transaction, after the look at its beginning."""
    source, nodes = killed
    here = copied(source, tmp_path / "here")
    tree = SqliteTree(here / NAME)
    tree.sync()  # the session of the killed process is removed in a transaction of its own

    def replace(*_change: object) -> None:
        (here / NAME).rename(here / "moved")
        shutil.copy(source / NAME, here / NAME)

    monkeypatch.setattr(tree._copy, "append", replace)
    with pytest.raises(StoreReplacedError, match="another file replaced it"):
        tree.put("/n2", b"late", -1)
    assert nodes_of(tree) == nodes
    with pytest.raises(StoreReplacedError):
        tree.close()


def test_a_copy_that_a_power_cut_left_behind_is_written_again(
    killed: tuple[Path, dict[str, bytes]], tmp_path: Path
) -> None:
    source, nodes = killed
    here = copied(source, tmp_path / "here")
    copy = here / "metadata.copy"
    end = read_changes(copy.read_bytes())[-4].end
    os.truncate(copy, end)
    assert opened(here) == nodes
    assert opened(here) == nodes
    copy.unlink()
    assert opened(here) == nodes
    assert {path: row[0] for path, row in state_at(read_changes(copy.read_bytes()), 10**9).items()} == nodes


def test_a_store_of_a_release_without_copies_opens_and_gets_one(
    killed: tuple[Path, dict[str, bytes]], tmp_path: Path
) -> None:
    source, nodes = killed
    here = copied(source, tmp_path / "here")
    database = sqlite3.connect(here / NAME)
    database.execute("DROP TABLE copied")
    database.commit()
    database.close()
    (here / "metadata.copy").unlink()
    assert opened(here) == nodes
    assert (here / "metadata.copy").exists()


def test_two_processes_append_to_one_copy(tmp_path: Path) -> None:
    one, two = SqliteTree(tmp_path / NAME), SqliteTree(tmp_path / NAME)
    for number in range(6):
        tree = (one, two)[number % 2]
        tree.create(f"/{number}", b"x", ephemeral=True, sequential=False, parents=False)
    changes = read_changes((tmp_path / "metadata.copy").read_bytes())
    assert set(state_at(changes, 10**9)) == {"/", *(f"/{number}" for number in range(6))}
    one.close()
    two.close()
    assert set(opened(tmp_path)) == {"/"}


@given(st.binary(max_size=200), st.integers(0, 400))
def test_any_bytes_are_read_without_an_error(data: bytes, cut: int) -> None:
    assert read_changes(data) == []
    sound = encode_snapshot(7, b"d" * 16, {"/": (b"", 0, 0, 0, 0, 0, 0, 0)})
    record, _ = encode_change(8, b"d" * 16, {"/a": (b"v", 0, 0, 0, 0, 0, 8, 8), "/b": None})
    whole = sound + record
    assert len(read_changes(whole + data)) == 2
    assert len(read_changes(whole[:cut])) <= 2
