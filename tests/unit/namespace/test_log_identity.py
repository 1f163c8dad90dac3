"""The identity of a log: which logs have the same one, and what the root node may hold."""

from __future__ import annotations

import pytest

from dlog.errors import LogMetadataError, LogNotFoundError
from ledger.metadata_store.memory import MemoryTree, open_memory_store
from namespace.log_identity import encode_log_id, ensure_log_id, log_id_in, new_log_id
from namespace.log_nodes import LogNodes
from namespace.logs import create_log, open_log
from tests.fakes.log_paths import paths_of

NS = "/ns"
ROOT = paths_of(NS, "log").root_path
LOG_ID = "6f1cbd0e6a0e4f6a9a4e2f7f6c4b7c55"


def test_the_root_node_of_a_log_has_these_bytes() -> None:
    assert encode_log_id(LOG_ID) == b'{"version": 1, "id": "6f1cbd0e6a0e4f6a9a4e2f7f6c4b7c55"}'
    assert log_id_in(encode_log_id(LOG_ID)) == LOG_ID
    assert new_log_id() != new_log_id()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"7",
        b"[" * 100_000,
        b"{}",
        b'{"version": 2, "id": "6f1cbd0e6a0e4f6a9a4e2f7f6c4b7c55"}',
        b'{"version": 1, "id": 7}',
        b'{"version": 1, "id": "../../etc"}',
        b'{"version": [], "id": "6f1cbd0e6a0e4f6a9a4e2f7f6c4b7c55"}',
    ],
)
async def test_other_data_are_no_identity_and_are_never_replaced(data: bytes) -> None:
    assert log_id_in(data) is None
    async with open_memory_store(MemoryTree()) as store:
        await store.create(NS)
        await create_log(LogNodes(store, NS, "log"))
        await store.put(ROOT, data)
        assert (await open_log(LogNodes(store, NS, "log"))).log_id is None
        if data:
            with pytest.raises(LogMetadataError, match="no identity of a log; nothing was changed"):
                await ensure_log_id(LogNodes(store, NS, "log"), None)
            assert (await store.get(ROOT)).value == data


async def test_a_log_gets_an_identity_once() -> None:
    async with open_memory_store(MemoryTree()) as store:
        await store.create(NS)
        with pytest.raises(LogNotFoundError):
            await ensure_log_id(LogNodes(store, NS, "log"), None)
        await create_log(LogNodes(store, NS, "log"))
        assert await ensure_log_id(LogNodes(store, NS, "log"), LOG_ID) == LOG_ID
        assert await ensure_log_id(LogNodes(store, NS, "log"), None) == LOG_ID
        assert (await open_log(LogNodes(store, NS, "log"))).log_id == LOG_ID
        await create_log(LogNodes(store, NS, "other"), log_id=LOG_ID[::-1])
        assert (await open_log(LogNodes(store, NS, "other"))).log_id == LOG_ID[::-1]


async def test_of_two_clients_that_give_an_identity_one_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_memory_store(MemoryTree()) as store:
        await store.create(NS)
        await create_log(LogNodes(store, NS, "log"))
        put = store.put

        async def overtaken(path: str, value: bytes, *, expected: int = -1) -> object:
            monkeypatch.setattr(store, "put", put)
            await ensure_log_id(LogNodes(store, NS, "log"), LOG_ID)
            return await put(path, value, expected=expected)

        monkeypatch.setattr(store, "put", overtaken)
        assert await ensure_log_id(LogNodes(store, NS, "log"), None) == LOG_ID
