"""Blobs of a namespace: putting, getting, ranges, replacing, deleting, listing; what is refused."""

# covers: dlog/aio/blobs.py
# covers: dlog/blobs/errors.py
# covers: dlog/blocking/blobs.py

from __future__ import annotations

import asyncio
import hashlib
import io
from contextlib import suppress
from pathlib import Path

import attrs
import pytest
import trio

import dlog
import dlog.aio
import dlog.blocking
from dlog.blobs import (
    Blob,
    BlobConflictError,
    BlobExistsError,
    BlobNotFoundError,
    BlobSweep,
    InvalidBlobNameError,
)
from dlog.blobs.calls import BlobCalls
from dlog.namespace_handle import Namespace
from ledger.metadata_store.memory import MemoryTree
from ledger.runtime.audit import FILE_VARIABLE
from namespace.access_control.entries import Denial
from namespace.policy import Policy, Right, Rule
from tests.fakes.dict_bookies import DictCluster
from tests.fakes.dict_namespace import CONFIG, Opened, open_on
from tests.unit.dlog.blobs.conftest import ENTRY, PIECE

CONTENT = bytes(range(200))


async def ledgers_of(opened: Opened) -> list[int]:
    return await opened.client.ledger_ids()


async def test_a_blob_comes_back_with_its_facts(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        blobs = opened.namespace.blobs
        put = await blobs.put("a/b c.png", CONTENT, content_type="image/png", labels={"owner": "ä"})
        assert await blobs.get("a/b c.png") == CONTENT
        assert await blobs.describe("a/b c.png") == put
        assert (put.size_bytes, put.content_type, put.labels) == (200, "image/png", {"owner": "ä"})
        assert put.sha256 == hashlib.sha256(CONTENT).hexdigest()


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(
    "size", [0, 1, ENTRY - 1, ENTRY, ENTRY + 1, PIECE, PIECE + 1, 2 * PIECE + ENTRY, 200]
)
async def test_every_range_of_a_blob_in_pieces_is_that_of_its_bytes(cluster: DictCluster, size: int) -> None:
    content = CONTENT[:size]
    async with open_on(cluster) as opened:
        blobs = opened.namespace.blobs
        put = await blobs.put("a", content)
        assert sum(piece.size_bytes for piece in put.pieces) == size
        for start in range(0, size + 3, 5):
            for end in range(start, size + 3, 7):
                assert await blobs.get("a", start=start, end=end) == content[start:end], (start, end)
        assert await blobs.get("a", start=3) == content[3:]


@pytest.mark.usefixtures("small_pieces")
async def test_pieces_grow_so_that_a_long_blob_has_few(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        put = await opened.namespace.blobs.put("a", CONTENT)
        assert [piece.size_bytes for piece in put.pieces] == [24, 24, 48, 48, 56]
        assert await ledgers_of(opened) == [piece.ledger_id for piece in put.pieces]


@pytest.mark.usefixtures("small_pieces")
async def test_a_range_reads_only_the_entries_that_it_needs(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        put = await opened.namespace.blobs.put("a", CONTENT)
        damaged = put.pieces[0].ledger_id
        for bookie in cluster.bookies.values():
            bookie.ledgers[damaged].entries.clear()
        assert await opened.namespace.blobs.get("a", start=PIECE) == CONTENT[PIECE:]


async def test_a_file_is_put_from_where_it_stands(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        file = io.BytesIO(CONTENT)
        file.seek(10)
        await opened.namespace.blobs.put("a", file)
        assert await opened.namespace.blobs.get("a") == CONTENT[10:]


@pytest.mark.usefixtures("small_pieces")
async def test_a_writer_takes_parts_of_any_length_and_a_reader_gives_them(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        blobs = opened.namespace.blobs
        async with blobs.open_writer("a") as writer:
            at = 0
            for length in [1, 0, 6, 1, 17, 40, 3, 132]:
                await writer.write(bytearray(CONTENT[at : at + length]))
                at += length
                assert writer.size_bytes == at
                assert writer.result is None
        assert writer.result is not None
        assert await blobs.get("a") == CONTENT
        async with blobs.open_reader("a", start=5, end=150) as reader:
            assert await reader.read(3) == CONTENT[5:8]
            assert reader.position == 8
            assert await reader.read(100) == CONTENT[8:108]
            assert b"".join([part async for part in reader]) == CONTENT[108:150]
            assert await reader.read(1) == b""
            assert reader.blob == writer.result


async def test_a_blob_is_not_replaced_unless_the_caller_says_so(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        blobs = opened.namespace.blobs
        first = await blobs.put("a", b"one")
        with pytest.raises(BlobExistsError, match="replace=True"):
            await blobs.put("a", b"two")
        second = await blobs.put("a", b"two", replace=True)
        with pytest.raises(BlobConflictError) as raised:
            await blobs.put("a", b"three", expect=first.blob_id)
        assert (raised.value.expected, raised.value.actual) == (first.blob_id, second.blob_id)
        await blobs.put("a", b"three", expect=second.blob_id)
        with pytest.raises(BlobConflictError, match="there is none"):
            await blobs.put("b", b"x", expect=first.blob_id)
        assert await blobs.get("a") == b"three"
        assert len(await ledgers_of(opened)) == 1


async def test_a_deleted_blob_is_gone_with_its_ledgers(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        blobs = opened.namespace.blobs
        put = await blobs.put("a", b"one")
        with pytest.raises(BlobConflictError):
            await blobs.delete("a", expect="0" * 32)
        await blobs.delete("a", expect=put.blob_id)
        assert await ledgers_of(opened) == []
        for call in (blobs.get, blobs.describe, blobs.delete):
            with pytest.raises(BlobNotFoundError):
                await call("a")
        await blobs.put("a", b"again")
        assert await blobs.get("a") == b"again"


async def test_a_listing_has_all_names_with_the_prefix_in_order(cluster: DictCluster) -> None:
    names = ["a", "a/1", "a/2", "b c", "%2F", "ü", *(f"many/{number:02}" for number in range(40))]
    async with open_on(cluster) as opened:
        blobs = opened.namespace.blobs
        assert await blobs.list() == []
        for name in names:
            await blobs.put(name, name.encode())
        assert [blob.name for blob in await blobs.list()] == sorted(names)
        assert [blob.name for blob in await blobs.list("a")] == ["a", "a/1", "a/2"]
        assert await opened.namespace.list_logs() == []


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", "..", "a/../b", "a\nb", "\ud800", "x" * 501])
async def test_a_name_that_no_blob_can_have_is_refused_before_anything(
    cluster: DictCluster, name: str
) -> None:
    async with open_on(cluster) as opened:
        for call in (opened.namespace.blobs.get, opened.namespace.blobs.describe):
            with pytest.raises(InvalidBlobNameError):
                await call(name)
        with pytest.raises(InvalidBlobNameError):
            await opened.namespace.blobs.put(name, b"")


async def test_wrong_arguments_are_refused_before_anything(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        blobs = opened.namespace.blobs
        with pytest.raises(TypeError, match="texts"):
            await blobs.put("a", b"", labels={"a": 1})  # type: ignore[dict-item]
        with pytest.raises(dlog.ConfigError, match="65536"):
            await blobs.put("a", b"", labels={"a": "x" * 65_536})
        for start, end in ((-1, None), (2, 1)):
            with pytest.raises(ValueError, match="no range"):
                await blobs.get("a", start=start, end=end)
        assert await blobs.list() == []


async def test_blobs_need_their_rights_and_a_right_on_a_log_is_none_on_a_blob(cluster: DictCluster) -> None:
    policy = Policy(
        (
            Rule("root", "*", frozenset({Right.ADMIN})),
            Rule("writer", ".blobs/shop/*", frozenset({Right.WRITE})),
            Rule("of-log", "shop/*", frozenset({Right.ADMIN})),
        )
    )

    async with open_on(cluster) as opened:

        def of(principal: str) -> BlobCalls:
            return BlobCalls(attrs.evolve(opened.namespace.context, principal=principal))

        root, writer, of_log = of("root"), of("writer"), of("of-log")
        await Namespace(root.context).policy.set(policy)
        await root.put("other/a", b"1")
        await writer.put("shop/a", b"2")
        assert await writer.get("shop/a") == b"2"
        assert [blob.name for blob in await writer.list()] == ["shop/a"]
        assert await of_log.list() == []
        for refused in (
            writer.get("other/a"),
            writer.put("other/b", b""),
            writer.put("shop/a", b"3", replace=True),
            writer.delete("shop/a"),
            writer.sweep(),
            of_log.get("shop/a"),
        ):
            with pytest.raises(dlog.AccessDeniedError):
                await refused
        assert await root.get("shop/a") == b"2"


async def test_a_denial_holds_for_blobs_as_for_logs(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await opened.namespace.blobs.put("a", b"1")
        await opened.namespace.access.enable()
        await opened.namespace.access.set(None, frozenset({Denial.DELETE}))
        with pytest.raises(dlog.AccessDeniedError, match="deny to delete"):
            await opened.namespace.blobs.delete("a")


async def test_an_encrypted_namespace_takes_no_blob(cluster: DictCluster) -> None:
    class Provider:
        def current(self) -> tuple[str, bytes]:
            raise AssertionError

        def key(self, key_id: str) -> bytes:
            raise AssertionError

    config = attrs.evolve(CONFIG, writer=attrs.evolve(CONFIG.writer, encryption=Provider()))
    async with open_on(cluster, config=config) as opened:
        with pytest.raises(dlog.ConfigError, match="not encrypted"):
            await opened.namespace.blobs.put("a", b"secret")
        assert await ledgers_of(opened) == []


def test_a_read_only_namespace_reads_blobs_and_changes_none(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/log"
    with dlog.blocking.open_namespace(uri) as namespace:
        namespace.blobs.put("a", CONTENT)
    with dlog.blocking.open_namespace(uri, read_only=True) as namespace:
        assert namespace.blobs.get("a", start=7) == CONTENT[7:]
        for change in (
            lambda: namespace.blobs.put("b", b""),
            lambda: namespace.blobs.delete("a"),
            lambda: namespace.blobs.sweep(),
        ):
            with pytest.raises(dlog.ReadOnlyError):
                change()


def test_the_blocking_calls_write_and_read_part_by_part(tmp_path: Path) -> None:
    with dlog.blocking.open_namespace(f"file://{tmp_path}/log") as namespace:
        with namespace.blobs.open_writer("a") as writer:
            writer.write(CONTENT)
            writer.write(memoryview(CONTENT))
        assert isinstance(writer.result, Blob)
        with namespace.blobs.open_reader("a", start=100) as reader:
            assert b"".join(reader) == (CONTENT * 2)[100:]
        with suppress(KeyError), namespace.blobs.open_writer("b") as writer:
            writer.write(CONTENT)
            raise KeyError
        assert [blob.name for blob in namespace.blobs.list()] == ["a"]
        assert namespace.blobs.sweep() == BlobSweep(uploads=0, ledgers=0, live=0)


async def _by_asyncio(uri: str) -> None:
    async with dlog.aio.open_namespace(uri) as namespace:
        async with namespace.blobs.open_writer("a") as writer:
            await writer.write(CONTENT)
        async with namespace.blobs.open_reader("a", end=50) as reader:
            assert b"".join([part async for part in reader]) == CONTENT[:50]
        with suppress(KeyError):
            async with namespace.blobs.open_writer("b") as writer:
                raise KeyError
        assert [blob.name for blob in await namespace.blobs.list()] == ["a"]
        await namespace.blobs.delete("a")


def test_the_calls_of_asyncio_write_and_read_part_by_part(tmp_path: Path) -> None:
    asyncio.run(_by_asyncio(f"file://{tmp_path}/log"))


async def test_a_deletion_is_in_the_audit_log(
    cluster: DictCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "audit"))
    async with open_on(cluster) as opened:
        await opened.namespace.blobs.put("a", b"")
        await opened.namespace.blobs.delete("a")
    assert '"delete blob", "target": "test:/ns a", "result": "done"' in (
        await trio.Path(tmp_path / "audit").read_text()
    )


async def test_a_federated_namespace_and_one_with_ledgers_elsewhere_have_blobs(cluster: DictCluster) -> None:
    for opening in (open_on(cluster, "/fed", federated=True), open_on(cluster, tree=MemoryTree())):
        async with opening as opened:
            await opened.namespace.blobs.put("a", CONTENT)
            await opened.namespace.blobs.put("a", b"new", replace=True)
            assert await opened.namespace.blobs.get("a") == b"new"
            await opened.namespace.blobs.delete("a")
            assert await ledgers_of(opened) == []
