"""The passwords of a log's ledgers, random unless Java must read them, and the mark of their log."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

import dlog
from dlog.context import EMBEDDED_NAMESPACE_PATH
from ledger.codes import Code
from ledger.deploy.deployment import open_deployment
from ledger.deploy.directory import SOCKET
from ledger.deploy.embedded import BOOKIE_ID
from ledger.digest import DigestType, EntryCodec, master_key
from ledger.errors import WrongPasswordError
from ledger.metadata import LedgerMetadata
from ledger.policy import LogMark
from ledger.transport.dial import Address
from ledger.transport.transport import open_transport
from ledger.wire.messages import AddRequest, ReadRequest, WriteLacRequest

pytestmark = pytest.mark.slow

EMPTY = b""


def uri_of(path: Path) -> str:
    return f"file://{path}"


async def written(path: Path, payloads: list[bytes], config: dlog.NamespaceConfig | None = None) -> None:
    async with (
        dlog.open_namespace(uri_of(path), config=config) as namespace,
        namespace.open_writer("orders", create=True) as writer,
    ):
        await writer.append_many(payloads)


async def read(path: Path, config: dlog.NamespaceConfig | None = None) -> list[bytes]:
    async with (
        dlog.open_namespace(uri_of(path), config=config) as namespace,
        namespace.open_reader("orders", follow=False) as reader,
    ):
        return [record.payload async for record in reader]


async def ledgers_of(path: Path) -> dict[int, LedgerMetadata]:
    async with open_deployment(uri_of(path)) as deployment:
        client = deployment.client
        return {each: await client.metadata(each) for each in await client.ledger_ids()}


async def test_each_ledger_of_a_directory_has_a_random_password_of_its_own(tmp_path: Path) -> None:
    for payload in (b"first", b"second"):
        await written(tmp_path, [payload])
    passwords = [metadata.password for metadata in (await ledgers_of(tmp_path)).values()]
    assert len(passwords) == len(set(passwords)) == 2
    assert all(password is not None and len(password) >= 16 for password in passwords)
    assert await read(tmp_path) == [b"first", b"second"]


async def test_each_ledger_names_its_namespace_and_log(tmp_path: Path) -> None:
    await written(tmp_path, [b"first"])
    (metadata,) = (await ledgers_of(tmp_path)).values()
    assert LogMark.of(metadata.custom) == LogMark(EMBEDDED_NAMESPACE_PATH, "orders")


async def test_a_stranger_with_the_empty_password_neither_adds_nor_fences(tmp_path: Path) -> None:
    """Remove the random password, and the stranger's entry follows the writer's."""

    async def dial(_: Address) -> trio.abc.Stream:
        return await trio.open_unix_socket(tmp_path / SOCKET)

    async def resolve(_: str) -> Address:
        return Address("", 0)

    async with (
        dlog.open_namespace(uri_of(tmp_path)) as namespace,
        namespace.open_writer("orders", create=True) as writer,
    ):
        await writer.append(b"ours")
        (segment,) = await namespace.segments("orders")
        ledger_id = segment.ledger_id
        key = master_key(EMPTY)
        codec = EntryCodec(DigestType.CRC32C, EMPTY)
        forged = codec.pack(ledger_id, 1, 0, 6, b"forged")
        async with open_transport(dial, resolve) as transport:
            for request in (
                AddRequest(ledger_id, 1, key, forged),
                AddRequest(ledger_id, 1, key, forged, recovery=True),
                ReadRequest(ledger_id, 0, fence=True, master_key=key),
                WriteLacRequest(ledger_id, 7, key, forged),
            ):
                assert (await transport.call(BOOKIE_ID, request)).code is Code.UNAUTHORIZED, request
        await writer.append(b"ours again")
    assert await read(tmp_path) == [b"ours", b"ours again"]


async def test_a_directory_of_an_older_release_is_read_and_continued(tmp_path: Path) -> None:
    """Its ledgers have the empty password. What follows has random ones."""
    await written(tmp_path, [b"old"], dlog.NamespaceConfig(password=EMPTY))
    await written(tmp_path, [b"new"])
    passwords = [metadata.password for metadata in (await ledgers_of(tmp_path)).values()]
    assert passwords[0] == EMPTY
    assert passwords[1]
    assert await read(tmp_path) == [b"old", b"new"]
    assert await read(tmp_path, dlog.NamespaceConfig(password=b"configured later")) == [b"old", b"new"]


async def interrupted(namespace: dlog.Namespace, path: Path) -> None:
    """A writer whose ledger an administrator recovers, as `dlog ledger read --recover` does."""
    async with namespace.open_writer("orders", create=True) as writer:
        await writer.append(b"first")
        (segment,) = await namespace.segments("orders")
        async with open_deployment(uri_of(path)) as deployment:
            with pytest.raises(WrongPasswordError):
                await deployment.client.open(segment.ledger_id)
            await deployment.client.recover(segment.ledger_id)
        raise RuntimeError("the program ends")


async def test_a_recovery_and_a_deletion_use_the_stored_password(tmp_path: Path) -> None:
    async with dlog.open_namespace(uri_of(tmp_path)) as namespace:
        with pytest.raises(RuntimeError, match="the program ends"):
            await interrupted(namespace, tmp_path)
        async with namespace.open_writer("orders") as writer:
            await writer.append(b"second")
    assert await read(tmp_path) == [b"first", b"second"]
    async with dlog.open_namespace(uri_of(tmp_path)) as namespace:
        await namespace.delete_log("orders")
    assert await ledgers_of(tmp_path) == {}


@pytest.mark.parametrize(
    ("scheme", "shared", "password", "expected"),
    [
        ("file", None, None, None),
        ("distributedlog", None, None, EMPTY),  # Java opens every ledger with one configured password
        ("distributedlog", False, None, None),
        ("file", True, None, EMPTY),
        ("distributedlog", None, b"chosen", b"chosen"),
        ("file", None, b"chosen", b"chosen"),
        ("file", None, EMPTY, EMPTY),
    ],
)
def test_only_namespaces_of_java_keep_the_empty_password(
    scheme: str, shared: bool | None, password: bytes | None, expected: bytes | None
) -> None:
    config = dlog.NamespaceConfig(shared_with_java=shared, password=password).for_scheme(scheme)
    assert config.password == expected
    assert "chosen" not in repr(config)
