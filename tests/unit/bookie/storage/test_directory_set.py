"""Which ledger directories belong together."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.disk.real_disk import RealDisk
from bookie.errors import FormatError, StartError
from bookie.storage.directory_set import (
    DirectorySet,
    FoundDirectory,
    Stamp,
    decode_stamp,
    encode_stamp,
    positions,
)

A, B, C = Path("/a"), Path("/b"), Path("/c")


def found(path: Path, stamp: tuple[int, int] | None = None, *, is_used: bool = True) -> FoundDirectory:
    return FoundDirectory(path, None if stamp is None else Stamp(*stamp), is_used)


def test_new_directories_are_numbered_as_configured() -> None:
    assert positions([found(A, is_used=False), found(B, is_used=False)]) == [0, 1]


def test_directories_are_added_behind_those_there_were_and_their_order_does_not_matter() -> None:
    old = [found(A, (0, 2)), found(B, (1, 2))]
    assert positions([*old, found(C, is_used=False)]) == [0, 1, 2]
    assert positions([found(C, is_used=False), *reversed(old)]) == [2, 1, 0]


def test_a_single_directory_of_the_past_is_the_first() -> None:
    assert positions([found(B, is_used=False), found(A)]) == [1, 0]


@pytest.mark.parametrize(
    "present",
    [
        [found(A, (0, 2))],
        [found(A, (0, 2)), found(B, is_used=False)],
        [found(A, (0, 2)), found(B, (2, 3))],
    ],
)
def test_a_directory_that_is_missing_or_wiped_stops_the_start(present: list[FoundDirectory]) -> None:
    with pytest.raises(StartError, match="left out of the configuration, not mounted, or wiped"):
        positions(present)


def test_an_empty_directory_may_take_the_place_of_a_lost_one_if_that_is_wished() -> None:
    assert positions([found(A, is_used=False), found(B, (1, 2))], accepts_losses=True) == [0, 1]
    with pytest.raises(StartError, match="left out"):  # which is not to leave one out
        positions([found(B, (1, 2))], accepts_losses=True)


def test_a_copy_stops_the_start() -> None:
    with pytest.raises(StartError, match="/a and /b are both stamped"):
        positions([found(A, (0, 2)), found(B, (0, 2)), found(C, (1, 2))])


def test_a_directory_of_another_bookie_stops_the_start() -> None:
    with pytest.raises(StartError, match="/c: has entries"):
        positions([found(A, (0, 2)), found(B, (1, 2)), found(C)])


def test_a_damaged_stamp_is_made_up_for_by_the_others() -> None:
    assert positions([found(A), found(B, (0, 2))]) == [1, 0]


def test_an_interrupted_start_goes_on() -> None:
    """Power may go between any two stamps: first each new directory gets its position, then all the count."""
    written = [(0, Stamp(1, 0)), (1, Stamp(2, 0)), (2, Stamp(0, 0)), (2, Stamp(0, 3)), (0, Stamp(1, 3))]
    stamps: list[Stamp | None] = [None, None, None]
    for at, stamp in written:
        stamps[at] = stamp
        state = [FoundDirectory(path, one, True) for path, one in zip((A, B, C), stamps, strict=True)]
        assert sorted(positions(state)) == [0, 1, 2]


@given(st.integers(0, 10**6 - 1), st.integers(0, 10**6 - 1))
def test_a_stamp_reads_back(position: int, count: int) -> None:
    assert decode_stamp(encode_stamp(Stamp(position, count))) == Stamp(position, count)


@given(st.integers(0, 8 * len(encode_stamp(Stamp(1, 2))) - 1))
def test_one_flipped_bit_in_a_stamp_is_noticed(bit: int) -> None:
    data = bytearray(encode_stamp(Stamp(1, 2)))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FormatError):
        decode_stamp(bytes(data))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_stamp_or_a_format_error(data: bytes) -> None:
    try:
        assert encode_stamp(decode_stamp(data)) == data
    except FormatError:
        pass


def make(directory: Path, *names: str) -> list[Path]:
    paths = [directory / name for name in names]
    for path in paths:
        path.mkdir(exist_ok=True)
    return paths


def use(paths: list[Path]) -> None:
    one = DirectorySet(RealDisk(), paths)
    one.check()
    one.stamp()
    for path in paths:
        (path / "lastMark").write_bytes(bytes(16))


def test_stamps_are_kept_on_disk_and_a_single_directory_has_none(tmp_path: Path) -> None:
    paths = make(tmp_path, "a", "b", "c")
    use(paths[:1])
    assert not (paths[0] / "POSITION").exists()
    use(paths[:2])
    assert (paths[0] / "POSITION").read_bytes().startswith(b"position 0 of 2, ")
    use([paths[2], paths[1], paths[0]])
    assert [decode_stamp((path / "POSITION").read_bytes()) for path in paths] == [
        Stamp(0, 3),
        Stamp(1, 3),
        Stamp(2, 3),
    ]
    for order in permutations(paths):
        use(list(order))
    with pytest.raises(StartError):
        DirectorySet(RealDisk(), paths[:2]).check()
    with pytest.raises(StartError):
        DirectorySet(RealDisk(), paths[1:2]).check()
    (paths[1] / "POSITION").write_bytes(b"position 7 of 9, 00000000\n")
    use(paths)
    assert decode_stamp((paths[1] / "POSITION").read_bytes()) == Stamp(1, 3)
