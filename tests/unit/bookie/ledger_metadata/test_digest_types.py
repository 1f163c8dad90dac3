"""The digest type of a ledger, read from the metadata."""

# covers: bookie/ledger_metadata/cluster_nodes.py

from __future__ import annotations

import attrs
import pytest
import trio
from trio.testing import MockClock

from bookie.ledger_metadata.cluster_nodes import ClusterNodes
from bookie.ledger_metadata.digest_types import TIMEOUT_S, DigestTypes
from ledger.catalog.catalog import LedgerCatalog
from ledger.catalog.metadata_codec import encode_metadata
from ledger.catalog.paths import Layout, ledger_path
from ledger.digest import DigestType
from ledger.metadata import Ensemble, LedgerMetadata
from ledger.metadata_store.memory import MemoryTree, open_memory_store
from ledger.metadata_store.store import MetadataStore

METADATA = LedgerMetadata(
    ensemble_size=1, write_quorum=1, ack_quorum=1, password=b"", ensembles=(Ensemble(0, ("b:1",)),)
)


@pytest.mark.parametrize("digest_type", DigestType)
async def test_the_type_is_that_of_the_metadata(digest_type: DigestType) -> None:
    async with open_memory_store(MemoryTree()) as store:
        catalog = LedgerCatalog(store, "/ledgers", Layout.HIERARCHICAL)
        types = DigestTypes(ClusterNodes(lambda: store, "/ledgers", Layout.HIERARCHICAL))
        assert await types(7) is None
        await catalog.create(attrs.evolve(METADATA, digest_type=digest_type), 7)
        assert await types(7) is digest_type
        await store.put(ledger_path("/ledgers", Layout.HIERARCHICAL, 7), b"damaged")
        assert await types(7) is None


async def test_a_type_that_is_not_stored_is_unknown() -> None:
    """``LedgerMetadata`` then has Java's default, and the entries may have MACs."""
    async with open_memory_store(MemoryTree()) as store:
        catalog = LedgerCatalog(store, "/ledgers", Layout.HIERARCHICAL)
        old = encode_metadata(attrs.evolve(METADATA, password=None, format_version=1))
        await store.create(ledger_path("/ledgers", Layout.HIERARCHICAL, 7), old, parents=True)
        assert (await catalog.get(7)).metadata.digest_type is DigestType.CRC32
        assert await DigestTypes(ClusterNodes(lambda: store, "/ledgers", Layout.HIERARCHICAL))(7) is None


async def test_a_store_that_does_not_reply_makes_the_type_unknown(autojump_clock: MockClock) -> None:
    class SilentStore:
        async def get(self, *args: object, **kwargs: object) -> None:
            await trio.sleep_forever()

    def silent() -> MetadataStore:
        return SilentStore()  # type: ignore[return-value]

    types = DigestTypes(ClusterNodes(silent, "/ledgers", Layout.HIERARCHICAL))
    began_s = trio.current_time()
    assert await types(7) is None
    assert trio.current_time() - began_s == TIMEOUT_S
