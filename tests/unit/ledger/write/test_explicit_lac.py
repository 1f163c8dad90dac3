"""Writing the LAC to bookies: to the write set, on an ack quorum, and only a confirmed LAC."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from ledger.codes import Code
from ledger.config import ClientConfig
from ledger.errors import LedgerWriteError
from ledger.transport.transport import TransportConfig
from ledger.wire.messages import WriteLacRequest
from tests.fakes.dict_bookies import DictCluster


def refuse_lac(request: object) -> Code | None:
    return Code.IO_ERROR if isinstance(request, WriteLacRequest) else None


def written_lacs(cluster: DictCluster) -> dict[str, int]:
    return {
        name: request.lac
        for name, bookie in cluster.bookies.items()
        for request in bookie.requests
        if isinstance(request, WriteLacRequest)
    }


async def test_it_needs_an_ack_quorum_and_names_the_bookies_that_refused(cluster: DictCluster) -> None:
    async with cluster.client() as client:
        writer = await client.create()
        await writer.append(b"0")
        cluster.bookies["b1:1"].refuse = refuse_lac
        await writer.write_explicit_lac()
        cluster.bookies["b2:1"].refuse = refuse_lac
        with pytest.raises(LedgerWriteError, match=r"explicit LAC 0 not stored: .*b\d:1: IO_ERROR"):
            await writer.write_explicit_lac()
        await writer.append(b"1")  # nothing is lost


async def test_it_goes_to_the_write_set_of_its_entry(cluster: DictCluster) -> None:
    async with cluster.client() as client:
        writer = await client.create(write_quorum=2, ack_quorum=2)
        await writer.append_many([b"0", b"1"])
        await writer.write_explicit_lac()
        bookies = writer.metadata.last_ensemble.bookies
        assert written_lacs(cluster) == {bookies[1]: 1, bookies[2]: 1}


async def test_a_pending_entry_is_not_written_as_the_lac(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    transport = TransportConfig(add_timeout_s=1e6)
    async with cluster.client(ClientConfig(transport=transport, unavailable_timeout_s=1e6)) as client:
        writer = await client.create()
        await writer.write_explicit_lac()  # there is none
        assert written_lacs(cluster) == {}
        await writer.append(b"0")
        for name in ("b1:1", "b2:1", "b3:1"):
            cluster.bookies[name].refuse = lambda request: (
                None if isinstance(request, WriteLacRequest) else Code.TOO_MANY_REQUESTS
            )
        writer.submit(b"1")
        await writer.write_explicit_lac()
        assert set(written_lacs(cluster).values()) == {0}
        writer.abandon()
