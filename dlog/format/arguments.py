"""Values that callers give, checked before anything is taken: transaction ids and positions.

Not inside: payloads (``ledger.payloads``).
Always: a value of a wrong type is an error of its own call, and reaches neither a record nor the metadata.
"""

from __future__ import annotations

import operator
from typing import SupportsIndex, cast

from namespace.dlsn import DLSN


def as_txid(txid: object) -> int:
    """The transaction id as an int, also if it is an integer of another library.

    Raises:
        TypeError: It is no integer.
    """
    try:
        return int(operator.index(cast(SupportsIndex, txid)))
    except TypeError:
        raise TypeError(f"a transaction id is an int, not {txid!r}") from None


def as_dlsn(position: object) -> DLSN:
    """The position.

    Raises:
        TypeError: It is no DLSN, or one of other values than integers.
    """
    if isinstance(position, DLSN):
        parts = (position.segment_seqno, position.entry_id, position.slot_id)
        if all(isinstance(part, int) for part in parts):
            return position
    raise TypeError(f"a position in a log is a DLSN, not {position!r}")
