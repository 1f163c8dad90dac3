"""Names of half-done compactions."""

from __future__ import annotations

import pytest

from bookie.compaction_files import compacted_name, compacting_name, ids_in_name, leftovers


def test_names_are_hex_on_both_sides() -> None:
    # Apache writes hex and recovers with decimals, and never finishes above 9 (apache/bookkeeper#4804).
    assert compacting_name(31) == "1f.log.compacting"
    assert compacted_name(31, 18) == "1f.log.12.compacted"


def test_a_listing_tells_what_to_delete_and_what_to_finish() -> None:
    names = [
        "1f.log.compacting", "20.log.12.compacted", "20.log.a.compacted", "3.log.2.compacted", "20.log",
        "lastId", "index", "x.log.compacting", "1.log.compacted", "LOCK", "7.log.7g.compacted", "c.log",
    ]  # fmt: skip
    found = leftovers(names)
    assert found.abandoned == ("1f.log.compacting",)
    assert found.pending == {0x20: (0xA, 0x12), 3: (2,)}


def test_a_new_log_that_was_copied_twice_named_is_finished_from_its_second_name() -> None:
    found = leftovers(["b.log.compacting", "b.log.a.compacted"])
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
def test_every_id_in_a_name_is_one_that_was_used(name: str, ids: tuple[int, ...]) -> None:
    assert ids_in_name(name) == ids
