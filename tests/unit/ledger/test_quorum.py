from __future__ import annotations

import itertools

import pytest
from hypothesis import given

from ledger.quorum import check_quorums, covers, denials_needed, write_set, write_sets
from tests.strategies import IDS, quorum_sizes

SIZES = [(e, w, a) for e in range(1, 7) for w in range(1, e + 1) for a in range(1, w + 1)]


@pytest.mark.parametrize(
    ("size", "write_quorum", "ack_quorum", "needed"),
    [(3, 3, 2, 2), (3, 2, 2, 2), (3, 3, 3, 1), (3, 2, 1, 3), (4, 3, 2, 3), (5, 3, 2, 4), (5, 5, 3, 3)],
)
def test_coverage_needs_as_many_replies_as_documented(
    size: int, write_quorum: int, ack_quorum: int, needed: int
) -> None:
    for count in range(size + 1):
        for known in itertools.combinations(range(size), count):
            assert covers(known, size, write_quorum, ack_quorum) == (count >= needed)


@pytest.mark.parametrize(("size", "write_quorum", "ack_quorum"), SIZES)
def test_coverage_means_a_reply_from_every_possible_ack_quorum(
    size: int, write_quorum: int, ack_quorum: int
) -> None:
    ack_quorums = [
        set(quorum)
        for entry_id in range(size)
        for quorum in itertools.combinations([(entry_id + i) % size for i in range(write_quorum)], ack_quorum)
    ]
    for count in range(size + 1):
        for known in itertools.combinations(range(size), count):
            all_replied = all(quorum & set(known) for quorum in ack_quorums)
            assert covers(known, size, write_quorum, ack_quorum) == all_replied


@pytest.mark.parametrize(("size", "write_quorum", "ack_quorum"), SIZES)
def test_enough_denials_rule_out_every_ack_quorum(size: int, write_quorum: int, ack_quorum: int) -> None:
    needed = denials_needed(write_quorum, ack_quorum)
    assert write_quorum - needed < ack_quorum
    assert write_quorum - (needed - 1) >= ack_quorum


@given(IDS, quorum_sizes(9))
def test_a_write_set_is_consecutive_indices_in_a_circle(entry_id: int, sizes: tuple[int, int, int]) -> None:
    size, quorum, _ = sizes
    indices = write_set(entry_id, size, quorum)
    assert indices[0] == entry_id % size
    assert all((a + 1) % size == b for a, b in itertools.pairwise(indices))
    assert len(set(indices)) == quorum
    assert write_sets(size, quorum)[entry_id % size] == indices


def test_entry_ids_are_not_cut_to_32_bits() -> None:
    assert write_set(4294967301, 3, 2) == (0, 1)


@pytest.mark.parametrize("sizes", [(3, 4, 2), (3, 2, 3), (3, 3, 0), (0, 0, 0)])
def test_contradictory_sizes_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="must be ensemble_size >= write_quorum >= ack_quorum >= 1"):
        check_quorums(*sizes)
