"""The log of tests of archives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import dlog
import dlog.blocking
from spark_integration import client
from tests.unit.spark_integration.pipelines.archived_logs import ArchivedLog


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[ArchivedLog]:
    """An empty log with many entries in each segment, and no archive yet."""
    config = dlog.NamespaceConfig(writer=dlog.WriterConfig(entry_bytes_target=64))
    with dlog.blocking.open_namespace((tmp_path / "log").as_uri(), config=config) as namespace:
        yield ArchivedLog(namespace, tmp_path / "archive")
    while client._opened:
        client._opened.popitem()[1].close()
