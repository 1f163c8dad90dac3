"""A namespace beside another client that changes its logs."""

from __future__ import annotations

from typing import Any

import pytest

import dlog
from dlog.context import NamespaceContext
from dlog.namespace_handle import Namespace
from ledger.catalog.catalog import StoredLedger
from ledger.metadata import Ensemble, LedgerMetadata
from ledger.metadata_store.memory import MemoryStore, MemoryTree, open_memory_store
from namespace.log_nodes import LogNodes
from namespace.logs import create_log, open_log
from namespace.segment_nodes import delete_segment, list_segments, start_segment
from namespace.segments.segment import LogSegment

NS = "/ns"


class ReplacesTheSegment:
    """Stands in for ``ledger.client.LedgerClient``; another writer uses the segment's number again."""

    def __init__(self, store: MemoryStore, empty: LogSegment, again: LogSegment) -> None:
        self._store, self._empty, self._again = store, empty, again

    async def stored(self, ledger_id: int) -> StoredLedger:
        metadata = LedgerMetadata(
            ensemble_size=1, write_quorum=1, ack_quorum=1, ensembles=(Ensemble(0, ("b:1",)),)
        )
        return StoredLedger(ledger_id, metadata, 0, 0)

    async def delete_unchanged(self, seen: StoredLedger) -> bool:
        assert seen.ledger_id == self._empty.ledger_id
        await delete_segment(LogNodes(self._store, NS, "log"), self._empty)
        await start_segment(await open_log(LogNodes(self._store, NS, "log")), self._again)
        return True


async def test_deleting_a_log_keeps_a_segment_that_another_writer_started_meanwhile() -> None:
    empty, again = (LogSegment(segment_seqno=1, ledger_id=each, first_txid=0) for each in (10, 11))
    async with open_memory_store(MemoryTree()) as store:
        await store.create(NS)
        await create_log(LogNodes(store, NS, "log"))
        await start_segment(await open_log(LogNodes(store, NS, "log")), empty)
        client: Any = ReplacesTheSegment(store, empty, again)
        config = dlog.NamespaceConfig().for_scheme("distributedlog")
        namespace = Namespace(NamespaceContext("test:replaced", store, client, NS, config, client_id="test"))
        with pytest.raises(dlog.LogMetadataError, match=r"not deleted: segment .* has another ledger now"):
            await namespace.delete_log("log")
        assert (await list_segments(LogNodes(store, NS, "log"))).segments == (again,)
