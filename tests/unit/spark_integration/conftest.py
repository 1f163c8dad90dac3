"""An empty namespace for the tests of the sink."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import dlog.blocking


@pytest.fixture
def namespace(tmp_path: Path) -> Iterator[dlog.blocking.Namespace]:
    with dlog.blocking.open_namespace((tmp_path / "log").as_uri()) as opened:
        yield opened
