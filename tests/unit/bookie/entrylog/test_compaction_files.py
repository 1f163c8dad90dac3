"""File names of unfinished compactions."""

from __future__ import annotations

import pytest

from bookie.entrylog.compaction_files import (
    compacted_name,
    compacting_name,
    ids_in_name,
    unfinished_compactions,
)


def test_names_are_hex_on_both_sides() -> None:
    # Apache writes hex and recovers with decimals: ids above 9 are never finished (apache/bookkeeper#4804).
    assert compacting_name(31) == "1f.log.compacting"
    assert compacted_name(31, 18) == "1f.log.12.compacted"


def test_a_listing_gives_the_files_to_delete_and_the_compactions_to_finish() -> None:
    names = [
        "1f.log.compacting", "20.log.12.compacted", "20.log.a.compacted", "3.log.2.compacted", "20.log",
        "lastId", "index", "x.log.compacting", "1.log.compacted", "LOCK", "7.log.7g.compacted", "c.log",
    ]  # fmt: skip
    found = unfinished_compactions(names)
    assert found.abandoned == ("1f.log.compacting",)
    assert found.pending == {0x20: (0xA, 0x12), 3: (2,)}


def test_a_new_log_with_two_names_is_finished_from_the_second() -> None:
    found = unfinished_compactions(["b.log.compacting", "b.log.a.compacted"])
    assert found.abandoned == ("b.log.compacting",)
    assert found.pending == {11: (10,)}


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("a.log", (10,)),
        ("b.log.compacting", (11,)),
        ("c.log.1f.compacted", (12, 31)),
        ("lastId", ()),
        ("A.log", ()),
    ],
)
def test_every_id_in_a_name_counts_as_used(name: str, ids: tuple[int, ...]) -> None:
    assert ids_in_name(name) == ids
