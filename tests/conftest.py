"""Shared by all tests: Hypothesis without deadlines, since a loaded machine is no failure; assertions of
helpers that tell what they compared, as those of tests do."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from ledger.runtime import log_lines
from tests.effort import examples
from tests.mounts import run_item

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


# Tests side by side start servers on ports that are free but not reserved: each process of pytest has its own
# range.
if (worker := os.environ.get("PYTEST_XDIST_WORKER", "")).startswith("gw"):
    first = 15_000 + 3_500 * (int(worker[2:]) % 5)
    os.environ["DLOG_PORTS"] = f"{first}-{first + 3_499}"


@pytest.fixture(autouse=True)
def own_log_lines() -> Iterator[None]:
    """A log line reaches ``caplog`` at once, although a loop of an earlier test may still be there."""
    earlier, log_lines._lines = log_lines._lines, log_lines._Lines()
    yield
    log_lines._lines = earlier


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests that start Spark share its session; other tests that start servers run file by file."""
    if item.get_closest_marker("interop"):
        return  # tests/interop groups them by release
    if item.get_closest_marker("spark"):
        item.add_marker(pytest.mark.xdist_group("spark"))
    elif item.get_closest_marker("cluster") or item.get_closest_marker("zookeeper"):
        item.add_marker(pytest.mark.xdist_group(item.path.stem))


def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """A test that mounts runs where it may."""
    return run_item(item)


def pytest_collection_finish() -> None:
    """Exempt modules and collected tests from garbage collection: they stay until the end."""
    gc.collect()
    gc.freeze()
