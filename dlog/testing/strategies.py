"""Hypothesis strategies for programs that use logs.

Inside: payloads, batches of them, names of logs, positions. Not inside: strategies for the tests of this
project (``tests.strategies``). It needs Hypothesis, which no other module of the package imports.
"""

from __future__ import annotations

import string

from hypothesis import strategies as st

from namespace.dlsn import DLSN

PAYLOADS = st.binary(max_size=2000)
"""Payloads of records: the empty one included, most of them short."""

BATCHES = st.lists(PAYLOADS, min_size=1, max_size=20)
"""Payloads for ``append_many``."""

_PARTS = st.text(string.ascii_letters + string.digits + "-_", min_size=1, max_size=20)

LOG_NAMES = st.lists(_PARTS, min_size=1, max_size=3).map("/".join)
"""Names that a log may have, also names of several parts."""

DLSNS = st.builds(DLSN, st.integers(1, 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
"""Positions of records: any segment, entry and slot."""

NEAR_DLSNS = st.builds(DLSN, st.integers(1, 3), st.integers(0, 5), st.integers(0, 5))
"""Positions near the beginning of a log, so that some are equal or follow each other."""
