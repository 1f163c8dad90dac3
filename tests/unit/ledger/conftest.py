"""The cluster that tests of ledger clients share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.fakes.dict_bookies import DictCluster, open_cluster


@pytest.fixture
async def cluster() -> AsyncIterator[DictCluster]:
    """Three bookies, b1:1 to b3:1."""
    async with open_cluster() as cluster:
        yield cluster
