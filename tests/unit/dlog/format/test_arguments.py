"""Values that callers give: integers of any library are taken, everything else is refused by its name."""

from __future__ import annotations

import pytest

from dlog.format.arguments import as_dlsn, as_txid
from namespace.dlsn import DLSN


class Number:
    """An integer of another library."""

    def __index__(self) -> int:
        return 7


def test_integers_of_any_library_are_transaction_ids() -> None:
    taken = [as_txid(value) for value in (7, Number(), True)]
    assert taken == [7, 7, 1]
    assert [type(value) for value in taken] == [int, int, int]


@pytest.mark.parametrize("value", [1.0, "7", None, b"7", DLSN(1, 0, 0)])
def test_what_is_no_integer_is_no_transaction_id(value: object) -> None:
    with pytest.raises(TypeError, match="a transaction id is an int, not"):
        as_txid(value)


@pytest.mark.parametrize("value", [7, "1:0:0", (1, 0, 0), None, DLSN(1, 0.5, 0)])  # type: ignore[arg-type]
def test_what_is_no_position_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="a position in a log is a DLSN, not"):
        as_dlsn(value)
    assert as_dlsn(DLSN(1, 2, 3)) == DLSN(1, 2, 3)
