"""How much work random and exhaustive tests do: all of it by default, a sample in ``tests/check.py``.

The environment variable ``DLOG_TEST_EFFORT`` chooses: ``full``, which is the default, or ``sample``.
Always: the full run leaves nothing out. A test that has no useful sample is marked ``slow`` instead.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

EFFORT = os.environ.get("DLOG_TEST_EFFORT", "full")
IS_SAMPLE = EFFORT == "sample"
EXAMPLES = 100  # of a Hypothesis test that names no number
SAMPLE_SHARE = 0.1  # of the examples
SAMPLE_EXAMPLES_MIN = 5
T = TypeVar("T")

if EFFORT not in ("full", "sample"):
    raise ValueError(f"DLOG_TEST_EFFORT is {EFFORT!r}; it must be 'full' or 'sample'")


def examples(full: int = EXAMPLES) -> int:
    """The number of Hypothesis examples to try, of ``full`` in a full run."""
    return max(SAMPLE_EXAMPLES_MIN, int(full * SAMPLE_SHARE)) if IS_SAMPLE else full


def sampled(cases: Sequence[T], count: int = 6) -> Sequence[T]:
    """All cases in a full run; else about ``count`` of them, evenly spread, the first one included."""
    return cases[:: max(1, len(cases) // count)] if IS_SAMPLE else cases
