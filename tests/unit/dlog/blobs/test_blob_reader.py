"""A reader of a blob: one content, whole or not at all; damage is an error, never other bytes."""

# covers: dlog/blobs/reader.py

from __future__ import annotations

from contextlib import suppress

import pytest

import dlog
from dlog.blobs import BlobGoneError, CorruptBlobError
from namespace.blob_nodes import BlobNodes
from tests.fakes.dict_bookies import DictCluster
from tests.fakes.dict_namespace import open_on
from tests.unit.dlog.blobs.conftest import ENTRY

pytestmark = pytest.mark.usefixtures("small_pieces")
CONTENT = bytes(range(100))
OTHER = bytes(range(100, 200))


def forget(cluster: DictCluster, ledger_id: int) -> None:
    for bookie in cluster.bookies.values():
        bookie.ledgers.pop(ledger_id, None)


@pytest.mark.parametrize("forgotten", [False, True], ids=["entries are there", "entries are collected"])
@pytest.mark.parametrize("change", ["replace", "delete"])
async def test_a_blob_that_changes_under_a_reader_gives_the_old_content_or_an_error(
    cluster: DictCluster, change: str, forgotten: bool
) -> None:
    async with open_on(cluster) as opened:
        blobs = opened.namespace.blobs
        put = await blobs.put("a", CONTENT)
        async with blobs.open_reader("a") as reader:
            read = await reader.read(ENTRY)
            if change == "replace":
                await blobs.put("a", OTHER, replace=True)
            else:
                await blobs.delete("a")
            if forgotten:
                for piece in put.pieces:
                    forget(cluster, piece.ledger_id)
            error = None
            try:
                while part := await reader.read(ENTRY):
                    read += part
            except BlobGoneError as exc:
                error = exc
            assert "replaced or deleted while it was read" in str(error)
            assert CONTENT.startswith(read)
            assert len(read) < len(CONTENT)


async def test_a_lost_ledger_is_named_as_damage_of_the_blob(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        blobs = opened.namespace.blobs
        put = await blobs.put("a", CONTENT)
        forget(cluster, put.pieces[1].ledger_id)
        with pytest.raises(CorruptBlobError, match="lost"):
            await blobs.get("a")
        await opened.client.delete(put.pieces[0].ledger_id)
        with pytest.raises(CorruptBlobError, match="Put the blob again"):
            await blobs.get("a", end=1)


@pytest.mark.parametrize(
    ("old", "new", "evidence"),
    [
        (b'"sha256": "', b'"sha256": "%064d" , "was": "' % 0, "SHA-256"),
        (b'"id": "', b'"id": "%032d", "was": "' % 0, "was not made for it"),
        (b'"entry_bytes": 8', b'"entry_bytes": 7', "is not closed at entry 3"),
        (b'"entry_bytes": 8', b'"entry_bytes": 9', "has 8 bytes"),
    ],
)
async def test_a_node_that_does_not_fit_its_content_is_an_error(
    cluster: DictCluster, old: bytes, new: bytes, evidence: str
) -> None:
    async with open_on(cluster) as opened:
        await opened.namespace.blobs.put("a", CONTENT)
        path = BlobNodes(opened.store, "/ns").blob_path("a")
        node = await opened.store.get(path)
        await opened.store.put(path, node.value.replace(old, new))
        with pytest.raises(CorruptBlobError, match=evidence):
            await opened.namespace.blobs.get("a")


async def test_the_last_bytes_of_a_content_with_another_digest_are_not_returned(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await opened.namespace.blobs.put("a", CONTENT)
        path = BlobNodes(opened.store, "/ns").blob_path("a")
        node = await opened.store.get(path)
        await opened.store.put(path, node.value.replace(b'"sha256": "', b'"sha256": "%064d", "was": "' % 0))
        read = b""
        async with opened.namespace.blobs.open_reader("a") as reader:
            with suppress(CorruptBlobError):
                while part := await reader.read_part():
                    read += part
        assert CONTENT.startswith(read)
        assert len(read) < len(CONTENT)


async def test_a_node_of_a_later_release_is_an_error_that_names_it(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await opened.namespace.blobs.put("a", CONTENT)
        path = BlobNodes(opened.store, "/ns").blob_path("a")
        await opened.store.put(path, b'{"version": 2}')
        for call in (opened.namespace.blobs.get("a"), opened.namespace.blobs.put("a", b"", replace=True)):
            with pytest.raises(dlog.LogMetadataError, match="version is 2"):
                await call
