"""A directory that a test fills and damages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.directory_by_hand import Directory, sealed


@pytest.fixture
async def directory(tmp_path: Path) -> AsyncIterator[Directory]:
    opened = Directory(tmp_path)
    opened.make = sealed()
    yield opened
    opened.close()
