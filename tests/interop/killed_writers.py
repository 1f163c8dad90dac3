"""Helpers for ledgers whose writer was killed, for either side's writer and recovery.

Inside: killing a writer while it writes, counting the copies of entries, comparing the ends of ledgers, and
restoring the metadata of an open ledger, so that another recovery decides over the same entries.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import trio

from ledger.catalog.paths import Layout, ledger_path
from ledger.client import LedgerClient
from ledger.metadata_store.store import MetadataStore
from tests.interop.clients import PASSWORD, RemoteClient
from tests.interop.driver import Driver, DriverEndedError
from tests.interop.originals import Cluster

FLOOD_COUNT = 100_000  # more than a writer adds before it is killed
FLOOD_IN_FLIGHT = 64
ACKED_BEFORE_KILL = 400


@attrs.frozen
class End:
    """The end of a closed ledger: last entry, length and payloads."""

    last_entry_id: int
    length_bytes: int
    payloads: tuple[bytes, ...]


async def end_by_us(client: LedgerClient, ledger_id: int) -> End:
    """Recover a ledger by our client; return its end."""
    reader = await client.open(ledger_id, password=PASSWORD)
    assert reader.is_closed
    assert reader.length_bytes is not None
    entries = [] if reader.last_confirmed < 0 else await reader.read(0, reader.last_confirmed)
    await reader.close()
    return End(reader.last_confirmed, reader.length_bytes, tuple(entry.payload for entry in entries))


async def end_by_java(client: RemoteClient, ledger_id: int) -> End:
    """Open with recovery by Apache's client; how it ended."""
    reader = await client.open(ledger_id)
    metadata = reader.opened["metadata"]
    assert metadata["state"] == "CLOSED"
    assert metadata["last_entry_id"] == reader.lac
    payloads = [] if reader.lac < 0 else await reader.read(0, reader.lac)
    return End(reader.lac, metadata["length"], tuple(payloads))


async def reopen(cluster: Cluster, ledger_id: int, metadata: bytes) -> None:
    """Restore the metadata that a ledger had before a recovery."""

    async def put(store: MetadataStore) -> None:
        await store.put(_path(cluster, ledger_id), metadata)

    await trio.to_thread.run_sync(cluster.originals.with_store, put)


async def stored_metadata(cluster: Cluster, ledger_id: int) -> bytes:
    """The stored bytes of a ledger's metadata."""

    async def get(store: MetadataStore) -> bytes:
        return (await store.get(_path(cluster, ledger_id))).value

    return await trio.to_thread.run_sync(cluster.originals.with_store, get)


async def flood_until_killed(writer: Driver, handle: str, *, prefix: str) -> int:
    """Make a writer add entries as fast as it can and kill it; return the last acknowledged entry."""
    flood = writer.begin("flood", handle=handle, prefix=prefix, count=FLOOD_COUNT, in_flight=FLOOD_IN_FLIGHT)
    acked = -1
    while acked < ACKED_BEFORE_KILL:
        acked = max(acked, (await _next_event(writer))["entry_id"])
    writer.process.kill()
    try:
        await writer.wait("flood", flood)
    except DriverEndedError:
        pass
    else:
        raise AssertionError("the writer had finished before it was killed")
    while not writer.events.empty():
        acked = max(acked, writer.events.get()["entry_id"])
    return acked


async def holders(java: RemoteClient, bookies: Sequence[str], ledger_id: int, last: int) -> list[int]:
    """For each entry up to ``last``, the number of bookies that hold it."""
    counts = [0] * (last + 1)
    for bookie in bookies:
        listed = await java.ask("list_entries", bookie=bookie, ledger_id=ledger_id, last=last)
        for entry_id in listed["ids"]:
            counts[entry_id] += 1
    return counts


def allowed_ends(counts: Sequence[int], ack_quorum: int) -> range:
    """The last entries that a recovery may choose, given the number of copies of each entry.

    An entry on an ack quorum must be kept. An entry without a copy cannot be kept. Other entries may be kept
    or cut off.
    """
    sure = next((e for e, count in enumerate(counts) if count < ack_quorum), len(counts)) - 1
    possible = next((e for e, count in enumerate(counts) if count == 0), len(counts)) - 1
    return range(sure, possible + 1)


async def _next_event(writer: Driver) -> dict[str, int]:
    return await trio.to_thread.run_sync(writer.events.get, True, 30.0, abandon_on_cancel=True)


def _path(cluster: Cluster, ledger_id: int) -> str:
    return ledger_path(cluster.root, Layout.HIERARCHICAL, ledger_id)
