"""The spans of a ledger client: a recovery and a change of an ensemble."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio
from trio.testing import MockClock

from ledger.config import ClientConfig
from tests.fakes.dict_bookies import DictCluster
from tests.fakes.spans import attributes, exporter, finished


@pytest.fixture(autouse=True)
def spans() -> Iterator[None]:
    exporter().clear()
    yield
    exporter().clear()


async def test_a_recovery_and_a_change_of_an_ensemble_have_spans(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    await cluster.start("b4:1")
    async with cluster.client(ClientConfig(tracing=True)) as client:
        writer = await client.create()
        await writer.append(b"0")
        await cluster.stop(writer.metadata.last_ensemble.bookies[1])
        await writer.append(b"1")
        await trio.testing.wait_all_tasks_blocked()
        writer.abandon()
        async with await client.open(writer.ledger_id):
            pass
        assert client.statistics().histograms == {}
    assert set(finished()) == {"change ensemble", "recover ledger"}
    for spans in finished().values():
        assert [attributes(span) for span in spans] == [{"dlog.ledger": writer.ledger_id}]
