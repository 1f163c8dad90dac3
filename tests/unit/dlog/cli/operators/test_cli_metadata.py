"""`dlog metadata`: files, questions and exit codes."""

# covers: dlog/cli/operators/metadata.py

from __future__ import annotations

import json
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from bookie.cluster.cluster_root import create_cluster
from dlog.cli.main import main
from dlog.cli.operators import metadata
from ledger.catalog.paths import Layout, available_path, ledger_path
from ledger.metadata_store.memory import MemoryStore, MemoryTree, open_memory_store

URI = "zk://zk1/ledgers"
SERVICE = ("--service", URI)


@pytest.fixture
def trees(monkeypatch: pytest.MonkeyPatch) -> list[MemoryTree]:
    """The last one is the metadata store that the commands open; it has a cluster with a ledger."""
    trees = [MemoryTree()]

    @asynccontextmanager
    async def open_store(service_uri: str) -> AsyncIterator[MemoryStore]:
        assert service_uri == URI
        async with open_memory_store(trees[-1]) as store:
            yield store

    async def prepare() -> None:
        async with open_memory_store(trees[0]) as store:
            await create_cluster(store, "/ledgers", Layout.HIERARCHICAL, "an id")
            await store.create(ledger_path("/ledgers", Layout.HIERARCHICAL, 7), b"secret", parents=True)

    monkeypatch.setattr(metadata, "open_store", open_store)
    trio.run(prepare)
    return trees


def command(*words: str) -> int:
    return main(["metadata", *words])


def test_a_backup_is_restored_compared_and_released(
    trees: list[MemoryTree], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    assert command("backup", first, *SERVICE) == 0
    assert stat.S_IMODE(Path(first).stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["first"]
    assert command("backup", first, *SERVICE) == 2
    assert command("restore", first, *SERVICE, "--yes") == 4
    assert command("release", *SERVICE, "--yes") == 3
    trees.append(MemoryTree())
    assert command("backup", second, *SERVICE) == 3
    capfd.readouterr()
    assert command("restore", first, *SERVICE, "--yes", "--json") == 0
    assert json.loads(capfd.readouterr().out).keys() == {"nodes", "id_series"}
    assert command("backup", second, *SERVICE) == 0
    assert command("diff", first, second) == 0
    assert command("release", *SERVICE, "--yes") == 0

    async def change() -> None:
        async with open_memory_store(trees[-1]) as store:
            await store.put(ledger_path("/ledgers", Layout.HIERARCHICAL, 7), b"other")

    trio.run(change)
    third = str(tmp_path / "third")
    assert command("backup", third, *SERVICE) == 0
    capfd.readouterr()
    assert command("diff", first, third) == 1
    assert capfd.readouterr().out == "~ /ledgers/00/0000/L0007\n"


def test_the_cluster_is_by_default_that_of_the_namespace(
    trees: list[MemoryTree],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def ledgers_uri(uri: str) -> str:
        assert uri == "distributedlog://zk1/logs"
        return URI

    assert len(trees) == 1
    monkeypatch.delenv("DLOG_SERVICE", raising=False)
    monkeypatch.setenv("DLOG_URI", f"file://{tmp_path}/ns")
    assert command("backup", str(tmp_path / "first")) == 2
    assert "name it, zk://HOST:PORT/ledgers" in capfd.readouterr().err
    monkeypatch.setattr(metadata, "ledgers_uri", ledgers_uri)
    monkeypatch.setenv("DLOG_URI", "distributedlog://zk1/logs")
    assert command("backup", str(tmp_path / "first")) == 0
    assert command("release", "--yes") == 3  # it was not restored


def test_an_incomplete_file_another_root_and_running_bookies_are_refused(
    trees: list[MemoryTree], tmp_path: Path
) -> None:
    file = tmp_path / "file"
    assert command("backup", str(file), *SERVICE) == 0
    trees.append(MemoryTree())
    (tmp_path / "cut").write_bytes(file.read_bytes()[:-10])
    assert command("restore", str(tmp_path / "cut"), *SERVICE, "--yes") == 7
    assert command("restore", str(file), "--service", "zk://zk1/other", "--yes") == 2

    async def register() -> None:
        async with open_memory_store(trees[-1]) as store:
            await store.create(available_path("/ledgers", "b1:1"), parents=True)

    trio.run(register)
    assert command("restore", str(file), *SERVICE, "--yes") == 5
