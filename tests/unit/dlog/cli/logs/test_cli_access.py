"""`dlog access`, called with the arguments of a shell. A cluster stands in as a namespace on memory."""

# covers: dlog/cli/logs/access.py
# covers: dlog/operations/access.py

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import dlog
from dlog.cli.main import main
from dlog.context import NamespaceContext
from dlog.namespace_handle import Namespace
from ledger.metadata_store.memory import MemoryTree, open_memory_store
from namespace.binding import new_binding
from namespace.bindings import bind
from tests.fakes.dict_namespace import CONFIG

Run = pytest.CaptureFixture[str]


@pytest.fixture
def tree(monkeypatch: pytest.MonkeyPatch) -> MemoryTree:
    tree = MemoryTree()
    is_enabled: list[str] = []

    @asynccontextmanager
    async def open_namespace(_uri: str, *, read_only: bool = False) -> AsyncIterator[Namespace]:
        client: Any = None
        async with open_memory_store(tree) as store:
            if await store.exists("/ns") is None:
                await bind(store, "/ns", new_binding("zk:2181", "/ledgers"))
            path = "/ns/.acls" if is_enabled else None
            namespace = Namespace(
                NamespaceContext(
                    "test:/ns",
                    store,
                    client,
                    "/ns",
                    CONFIG,
                    client_id="test",
                    read_only=read_only,
                    access_control_path=path,
                )
            )
            yield namespace
            is_enabled.extend(
                [] if namespace.context.access.root is None else [namespace.context.access.root]
            )

    monkeypatch.setattr(dlog, "open_namespace", open_namespace)
    return tree


def test_entries_are_enabled_set_shown_and_deleted(tree: MemoryTree, capfd: Run) -> None:
    assert main(["access", "show"]) == 2
    assert "dlog access enable" in capfd.readouterr().err
    assert main(["access", "enable"]) == 0
    assert main(["access", "set", "orders", "--deny", "write", "--deny", "delete"]) == 0
    assert main(["access", "set", "--default", "--deny", "truncate"]) == 0
    capfd.readouterr()
    assert main(["access", "show", "--json", "--read-only"]) == 0
    assert json.loads(capfd.readouterr().out) == {
        "default": ["truncate"],
        "logs": {"orders": ["write", "delete"]},
        "corrupt": [],
    }
    assert main(["access", "show"]) == 0
    assert "write delete" in capfd.readouterr().out
    assert main(["access", "delete", "orders"]) == 0
    assert main(["access", "delete", "--default"]) == 0
    capfd.readouterr()
    assert main(["access", "show", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == {"default": [], "logs": {}, "corrupt": []}


def test_a_log_or_the_default_must_be_named(tree: MemoryTree) -> None:
    for command in ("set", "delete"):
        assert main(["access", command]) == 2
        assert main(["access", command, "orders", "--default"]) == 2
    assert main(["access", "set", "orders", "--deny", "read"]) == 2


@pytest.mark.slow
def test_a_directory_has_no_entries(tmp_path: Path, capfd: Run) -> None:
    uri = (tmp_path / "namespace").as_uri()
    assert main(["access", "enable", "--uri", uri]) == 2
    assert "use `dlog policy`" in capfd.readouterr().err
