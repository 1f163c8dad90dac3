"""`python -m tests.bench operate --peers apache`: Apache restores replicas of our bookies."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.bench.operate.recoverers import find_missing, open_apache
from tests.bench.operate.repair import measure_repair, options_for
from tests.interop.conftest import VERSIONS
from tests.interop.jars import class_path

pytestmark = pytest.mark.interop
TIMEOUT_S = 180.0


async def test_a_repair_by_apache_is_measured_on_the_same_bookies_and_ends_with_all_replicas(
    tmp_path: Path,
) -> None:
    jars = Path(class_path(VERSIONS[0]).partition(":")[2]).parent
    assert find_missing(jars) is None
    options = options_for(
        1, size=16_384, ledgers=3, bookies=4, session_timeout_ms=1000, steady_s=0.2, limit_s=TIMEOUT_S
    )
    with trio.fail_after(TIMEOUT_S):
        row = await measure_repair("apache", open_apache(jars), tmp_path, options, with_load=True)
    assert row["replicas"] == 3 * 3 * options.entries
    assert row["bytes"] == options.lost_bytes
    keys = ("noticed_s", "repair_s", "cpu_s", "before_per_s", "during_per_s", "after_per_s", "share_kept")
    found = {key: row[key] for key in keys}
    assert all(isinstance(value, float) and value > 0 for value in found.values()), found
