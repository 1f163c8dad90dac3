"""What is shown about a ledger whose writer was killed, whoever wrote it and whoever recovers it.

Inside: looking at what each bookie holds, giving a ledger its open metadata back, so that another recovery
decides over the same entries, comparing two ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import trio
from clients import PASSWORD, RemoteClient
from driver import Driver, DriverEndedError
from originals import Cluster

from ledger.client import LedgerClient
from ledger.paths import Layout, ledger_path
from namespace.store import MetadataStore

FLOOD_COUNT = 100_000  # more than a writer gets done before it is killed
FLOOD_IN_FLIGHT = 64
ACKED_BEFORE_KILL = 400


@attrs.frozen
class End:
    """How a ledger ended: its last entry, its length, and what stands in it."""

    last_entry_id: int
    length_bytes: int
    payloads: tuple[bytes, ...]


async def end_by_us(client: LedgerClient, ledger_id: int) -> End:
    """Open with recovery by our client; how it ended."""
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
    """Give a ledger the metadata back that it had before a recovery."""

    async def put(store: MetadataStore) -> None:
        await store.put(_path(cluster, ledger_id), metadata)

    await trio.to_thread.run_sync(cluster.originals.with_store, put)


async def stored_metadata(cluster: Cluster, ledger_id: int) -> bytes:
    """The bytes of a ledger's metadata."""

    async def get(store: MetadataStore) -> bytes:
        return (await store.get(_path(cluster, ledger_id))).value

    return await trio.to_thread.run_sync(cluster.originals.with_store, get)


async def flood_until_killed(writer: Driver, handle: str, *, prefix: str) -> int:
    """Have a writer add entries as fast as it can, kill it in the middle; the last entry it was told of."""
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
        raise AssertionError("the writer was done before it was killed")
    while not writer.events.empty():
        acked = max(acked, writer.events.get()["entry_id"])
    return acked


async def holders(java: RemoteClient, bookies: Sequence[str], ledger_id: int, last: int) -> list[int]:
    """For each entry up to ``last``, how many of the bookies hold it."""
    counts = [0] * (last + 1)
    for bookie in bookies:
        listed = await java.ask("list_entries", bookie=bookie, ledger_id=ledger_id, last=last)
        for entry_id in listed["ids"]:
            counts[entry_id] += 1
    return counts


def allowed_ends(counts: Sequence[int], ack_quorum: int) -> range:
    """The last entries that a recovery may decide for, given how many hold each entry.

    What an ack quorum holds must be kept; what nobody holds cannot be; in between either is right.
    """
    sure = next((e for e, count in enumerate(counts) if count < ack_quorum), len(counts)) - 1
    possible = next((e for e, count in enumerate(counts) if count == 0), len(counts)) - 1
    return range(sure, possible + 1)


async def _next_event(writer: Driver) -> dict[str, int]:
    return await trio.to_thread.run_sync(writer.events.get, True, 30.0, abandon_on_cancel=True)


def _path(cluster: Cluster, ledger_id: int) -> str:
    return ledger_path(cluster.root, Layout.HIERARCHICAL, ledger_id)
