"""Opening ledgers from a URI alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import trio

import dlog
import ledger
from ledger.deploy.deployment import check_cluster_exists, open_client, open_deployment
from ledger.errors import ClusterNotFoundError, DirectoryUnusableError
from ledger.metadata_store.errors import InvalidStoreAddressError
from ledger.metadata_store.memory import MemoryTree, open_memory_store
from tests.places import ROOT

ATTACHED = """
import sys, trio, dlog

async def main(uri):
    async with dlog.open_namespace(uri) as namespace:
        async with namespace.open_writer("orders") as log:
            await log.append(b"by the attached process")
        async with namespace.open_reader("orders", follow=False) as reader:
            print([record.payload.decode() async for record in reader])

trio.run(main, sys.argv[1])
print([name for name in sys.modules if name.partition(".")[0] in ("bookie", "rocksdict")])
"""


@pytest.mark.slow
async def test_a_directory_is_opened_created_and_opened_again(tmp_path: Path) -> None:
    uri = f"file://{tmp_path / 'ledgers'}"
    async with (
        open_client(uri) as client,
        await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1) as writer,
    ):
        await writer.append(b"first")
    async with open_client(uri) as client:
        reader = await client.open(writer.ledger_id)
        assert [entry.payload for entry in await reader.read(0, reader.last_confirmed)] == [b"first"]
        await reader.close()


@pytest.mark.slow
async def test_the_ledgers_of_a_namespace_are_those_of_its_directory(tmp_path: Path) -> None:
    async with (
        dlog.open_namespace(f"file://{tmp_path}") as namespace,
        namespace.open_writer("orders", create=True) as log,
    ):
        await log.append(b"record")
    async with open_deployment(f"file://{tmp_path}") as deployment:
        assert deployment.ledgers_root == "/ledgers"
        assert len(await deployment.client.ledger_ids()) == 1


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("distributedlog://zk1:2181/shop", "dlog.open_namespace"),
        ("etcd://host/ledgers", "'etcd' is not known"),
        ("zk+strange://zk1:2181/ledgers", "'strange' is none of"),
        ("/var/lib/ledgers", "no scheme"),
        ("file://elsewhere/dir", "another machine"),
    ],
)
async def test_a_uri_that_names_no_ledgers_is_refused_with_the_part(uri: str, reason: str) -> None:
    with pytest.raises(InvalidStoreAddressError, match=reason):
        async with open_client(uri):
            pass


async def test_a_directory_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(DirectoryUnusableError, match="create and write"):
        async with open_client(f"file://{tmp_path / 'file' / 'inner'}"):
            pass


async def test_a_root_without_a_layout_is_no_cluster_and_stays_empty() -> None:
    async with open_memory_store(MemoryTree()) as store:
        with pytest.raises(ClusterNotFoundError, match="metadataServiceUri"):
            await check_cluster_exists(store, "/ledgers", "zk://zk1/ledgers")
        assert await store.exists("/ledgers") is None


@pytest.mark.slow
async def test_a_process_that_attaches_to_a_host_does_not_import_the_bookie(tmp_path: Path) -> None:

    uri = f"file://{tmp_path}"
    async with dlog.open_namespace(uri) as namespace:
        async with namespace.open_writer("orders", create=True) as log:
            await log.append(b"by the host")
        attached = await trio.run_process(
            [sys.executable, "-c", ATTACHED, uri], capture_stdout=True, cwd=ROOT, stdin=subprocess.DEVNULL
        )
    assert attached.stdout.decode().splitlines() == ["['by the host', 'by the attached process']", "[]"]


def test_every_export_of_the_package_exists() -> None:
    assert [name for name in ledger.__all__ if getattr(ledger, name, None) is None] == []
    assert set(dir(ledger)) >= set(ledger.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ledger.nothing  # type: ignore[attr-defined]
