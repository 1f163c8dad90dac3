"""A captured log that Java and this library wrote in turn: it is read as Java's reader read it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import dlog
from dlog.context import NamespaceContext
from dlog.namespace_handle import Namespace
from ledger.errors import NoSuchLedgerError
from ledger.metadata_store.memory import MemoryTree, open_memory_store
from ledger.runtime.statistics import Recorder
from tests.places import GOLDEN_FILES

GOLDEN = json.loads((GOLDEN_FILES / "distributedlog" / "shared-log.json").read_text("utf-8"))
RECORDS = [
    dlog.Record(dlog.DLSN(*place), txid, bytes.fromhex(payload), sequence_id)
    for place, txid, sequence_id, payload in GOLDEN["java_reader"]
]


class CapturedLedger:
    """As ``ledger.handle.ReadHandle`` of a closed ledger."""

    is_closed = True

    def __init__(self, ledger_id: int, entries: list[bytes]) -> None:
        self.ledger_id, self._entries = ledger_id, entries

    async def __aenter__(self) -> CapturedLedger:
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass

    @property
    def last_confirmed(self) -> int:
        return len(self._entries) - 1

    async def read_last_confirmed(self) -> int:
        return self.last_confirmed

    async def read_payloads(self, first: int, last: int, *, size_bytes_max: int | None = None) -> list[bytes]:
        return self._entries[first : last + 1]

    def take_recent(self, first: int, last: int) -> list[bytes]:
        return []


class CapturedLedgers:
    """As ``ledger.client.LedgerClient`` for reading."""

    recorder = Recorder()

    async def open(self, ledger_id: int, *, password: bytes, recover: bool) -> CapturedLedger:
        assert not recover
        entries = GOLDEN["ledgers"].get(str(ledger_id))
        if entries is None:
            raise NoSuchLedgerError(ledger_id)
        return CapturedLedger(ledger_id, [bytes.fromhex(each) for each in entries])


@asynccontextmanager
async def kept_namespace() -> AsyncIterator[Namespace]:
    async with open_memory_store(MemoryTree()) as store:
        await store.create("/ns")
        for path, value in GOLDEN["znodes"].items():
            await store.create(f"/ns{path}", bytes.fromhex(value))
        client: Any = CapturedLedgers()
        config = dlog.NamespaceConfig().for_scheme("distributedlog")
        yield Namespace(NamespaceContext("test:kept", store, client, "/ns", config, client_id="test"))


async def read(namespace: Namespace, start: dlog.DLSN | int | dlog.Start) -> list[dlog.Record]:
    async with namespace.open_reader("shared", start=start) as reader:
        records = [record async for record in reader]
        assert reader.is_sealed
        return records


async def test_it_is_read_to_its_end_of_stream_as_by_java() -> None:
    async with kept_namespace() as namespace:
        assert await read(namespace, dlog.EARLIEST) == RECORDS
        for index, record in enumerate(RECORDS):
            assert await read(namespace, record.dlsn) == RECORDS[index:]
            assert await read(namespace, record.txid) == RECORDS[index:]


async def test_exactly_the_records_that_both_truncated_are_gone() -> None:
    async with kept_namespace() as namespace:
        for gone in (dlog.DLSN(1, 0, 0), dlog.DLSN(1, 1, 1), dlog.DLSN(2, 0, 2)):
            with pytest.raises(dlog.LogTruncatedError):
                await read(namespace, gone)
        described = await namespace.describe_log("shared")
        assert described.first_dlsn == dlog.DLSN(2, 1, 0)
        assert described.last_dlsn == RECORDS[-1].dlsn
        assert described.record_count == RECORDS[-1].sequence_id + 1
        assert described.is_sealed
        assert [each.record_count for each in described.segments] == [4, 4, 2, 2, 1]


async def test_no_writer_opens_it_again() -> None:
    async with kept_namespace() as namespace:
        with pytest.raises(dlog.EndOfStreamError):
            async with namespace.open_writer("shared"):
                pass
