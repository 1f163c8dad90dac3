"""The LAC that an entry's header may name.

A writer confirms an entry before it names it in a later one, so an entry's LAC is below its own id, and -1
is the least. The header is a peer's word: neither a bookie nor a client takes another LAC from it.

Inside: that rule. Not inside: the header (``ledger.digest``), what a LAC does to a ledger.

Source: Apache BookKeeper, LedgerHandle.java (``addToLength`` and ``lastAddConfirmed`` when an add is sent).
"""

from __future__ import annotations


def credible_lac(entry_id: int, lac: int) -> int:
    """``lac``, or -1 if no entry with this id can name it."""
    return lac if -1 <= lac < entry_id else -1
