"""A namespace in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import dlog
from dlog.testing import open_world


@pytest.fixture
async def namespace() -> AsyncIterator[dlog.Namespace]:
    with open_world() as world:
        async with dlog.open_namespace(world.uri) as opened:
            yield opened
