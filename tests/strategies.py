"""Hypothesis strategies that more than one test file needs: seeds, numbers, ids, quorums, payloads, damage.

Not inside: strategies of one file, which stay in that file; fakes (``tests.fakes``).
"""

from __future__ import annotations

from hypothesis import strategies as st

from ledger.digest import DigestType

SEEDS = st.integers(0, 2**32 - 1)
"""Of a ``random.Random`` that then decides everything else: one number replays the whole test."""

INT64 = st.integers(-(2**63), 2**63 - 1)
"""Every value of Java's ``long``."""

IDS = st.integers(0, 2**63 - 1)
"""Ids of ledgers and entries: every ``long`` that is not negative."""

LAST_IDS = st.integers(-1, 2**63 - 1)
"""An entry id, or -1 for no entry."""

NEAR_IDS = IDS | st.integers(0, 300)
"""As ``IDS``, with small ids more likely, so that some are equal or follow each other."""

PAYLOADS = st.binary(max_size=100)
"""Payloads of records and entries, the empty one included."""

MASTER_KEYS = st.binary(min_size=20, max_size=20)
"""Keys as a client derives them from a password."""

DIGEST_TYPES = st.sampled_from(DigestType)


@st.composite
def quorum_sizes(draw: st.DrawFn, ensemble_size_max: int = 4) -> tuple[int, int, int]:
    """Ensemble size, write quorum and ack quorum as a ledger may have them."""
    ensemble_size = draw(st.integers(1, ensemble_size_max))
    write_quorum = draw(st.integers(1, ensemble_size))
    return ensemble_size, write_quorum, draw(st.integers(1, write_quorum))


@st.composite
def damaged(
    draw: st.DrawFn, good: bytes, *, first: int = 0, changes_min: int = 0, changes_max: int = 4
) -> bytes:
    """The bytes with some of them replaced, removed or inserted; none before offset ``first``."""
    data = bytearray(good)
    for _ in range(draw(st.integers(changes_min, changes_max))):
        at = draw(st.integers(first, len(data)))
        data[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(data)
