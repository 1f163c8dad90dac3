"""Arguments of wrong types: each is an error of its own call, takes no entry, and the ledger stays in use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from ledger.client import LedgerClient
from tests.fakes.dict_bookies import open_cluster

WRONG = ["text", 5, None, [b"x"]]


@pytest.fixture
async def client() -> AsyncIterator[LedgerClient]:
    async with open_cluster(3) as cluster, cluster.client(None) as opened:
        yield opened


async def payloads(client: LedgerClient, ledger_id: int) -> list[bytes]:
    async with await client.open(ledger_id) as reader:
        return [entry.payload for entry in await reader.read(0, reader.last_confirmed)]


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
async def test_a_payload_that_is_no_buffer_is_refused_and_no_entry_is_taken(
    client: LedgerClient, wrong: Any
) -> None:
    async with await client.create() as writer:
        for call in (lambda: writer.append(wrong), lambda: writer.append_many([b"before", wrong])):
            with pytest.raises(TypeError, match="a payload is bytes or another buffer"):
                await call()
        with pytest.raises(TypeError, match="a payload is bytes or another buffer"):
            writer.submit(wrong)
        assert await writer.append(b"first") == 0
    assert await payloads(client, writer.ledger_id) == [b"first"]


async def test_a_buffer_of_larger_elements_is_read_back(client: LedgerClient) -> None:
    buffer = bytearray(b"abcdefgh")
    async with await client.create() as writer:
        await writer.append_many([memoryview(buffer).cast("I"), buffer])
        await writer.append(memoryview(buffer).cast("Q"))
        assert writer.length_bytes == 24
    assert await payloads(client, writer.ledger_id) == [b"abcdefgh"] * 3


async def test_an_entry_holds_what_its_buffer_had_when_it_was_given(client: LedgerClient) -> None:
    buffer = bytearray(b"given")
    async with await client.create_adv() as writer:
        writer.submit(1, buffer)  # type: ignore[arg-type]
        buffer[:] = b"later"
        await writer.append(0, b"first")
        await writer.wait_confirmed(1)
    assert await payloads(client, writer.ledger_id) == [b"first", b"given"]


@pytest.mark.parametrize("wrong", [0.0, 1.5, "0", None], ids=repr)
async def test_an_entry_id_that_is_no_integer_is_refused(client: LedgerClient, wrong: Any) -> None:
    async with await client.create_adv() as writer:
        with pytest.raises(TypeError):
            await writer.append(wrong, b"x")
        with pytest.raises(TypeError):
            writer.submit(wrong, b"x")
        await writer.append(0, b"first")
    assert await payloads(client, writer.ledger_id) == [b"first"]
