"""Shared by all tests: Hypothesis without deadlines, since a loaded machine is no failure; assertions of
helpers that tell what they compared, as those of tests do."""

from __future__ import annotations

import gc
import os
import signal

import pytest
from hypothesis import HealthCheck, settings

from tests.effort import examples

settings.register_profile(
    "dlog", deadline=None, max_examples=examples(), suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("dlog")

# A shell starts a job in the background with SIGINT ignored. Tests and the programs they start inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests write passwords, tokens and keys, which the product refuses if others may read them.
os.umask(0o077)

# Helpers shared by tests compare as tests do, so their assertions tell what they compared.
pytest.register_assert_rewrite("tests.fakes", "tests.crash", "tests.interop", "tests.spark")


def pytest_collection_finish() -> None:
    """Exempt modules and collected tests from garbage collection: they stay until the end."""
    gc.collect()
    gc.freeze()
