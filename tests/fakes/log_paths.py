"""The paths of a log's nodes, for tests that have no store at hand."""

from __future__ import annotations

from typing import Any

from namespace.log_nodes import LogNodes


def paths_of(namespace_path: str, log: str) -> LogNodes:
    """The nodes of a log, of which only the paths can be used."""
    store: Any = None
    return LogNodes(store, namespace_path, log)
