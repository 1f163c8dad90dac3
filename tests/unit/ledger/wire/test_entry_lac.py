"""Which LAC of an entry's header counts."""

from __future__ import annotations

import pytest

from ledger.wire.entry_lac import credible_lac

MOST = 2**63 - 1


@pytest.mark.parametrize(("entry_id", "lac"), [(0, -1), (1, 0), (5, -1), (5, 4), (MOST, MOST - 1)])
def test_a_lac_below_its_entry_counts(entry_id: int, lac: int) -> None:
    assert credible_lac(entry_id, lac) == lac


@pytest.mark.parametrize(
    ("entry_id", "lac"), [(5, 5), (5, 6), (5, MOST), (5, -2), (5, -(2**63)), (-1, -1), (-1, 0), (MOST, MOST)]
)
def test_a_lac_that_no_writer_names_counts_as_none(entry_id: int, lac: int) -> None:
    assert credible_lac(entry_id, lac) == -1
