"""Members of a group: batches as columns, gaps as batches, and cancelled calls that lose none."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

import dlog
from dlog.groups import GroupConfig, join_group
from dlog.testing import open_world

DEADLINE_S = 120


@pytest.fixture
async def namespace() -> AsyncIterator[dlog.Namespace]:
    """With the log ``a`` of three segments of three records; the second one's ledger is lost."""
    with open_world() as world:
        async with dlog.open_namespace(world.uri) as opened:
            await opened.create_log("a")
            for segment in range(3):
                async with opened.open_writer("a") as writer:
                    await writer.append_many([b"%d-%d" % (segment, at) for at in range(3)])
            await opened.context.client.delete((await opened.segments("a"))[1].ledger_id)
            yield opened


async def test_a_gap_is_a_batch_that_is_committed_as_the_others(namespace: dlog.Namespace) -> None:
    found: list[object] = []
    for _ in range(3):  # each member takes and commits one batch
        with trio.fail_after(DEADLINE_S):
            async with join_group(namespace, "g", ["a"], gaps=True) as member:
                batch = await anext(member)
                assert len(batch.records) == 0 or batch.gap is None
                found.append(batch.gap.cause if batch.gap else list(batch.records.payloads()))
                await member.commit(batch)
                cursor = await namespace.cursors("a").get("g")
                assert cursor is not None
                assert cursor.position == batch.position
    assert found == [
        [b"0-0", b"0-1", b"0-2"],
        dlog.GapCause.LEDGER_MISSING,
        [b"2-0", b"2-1", b"2-2"],
    ]


async def test_a_cancelled_call_loses_no_batch(namespace: dlog.Namespace) -> None:
    """The next call returns the batch of a cancelled one: a commit behind it would skip its records."""
    found: list[bytes] = []
    calls = 0
    with trio.fail_after(DEADLINE_S):
        async with join_group(namespace, "g", ["a"], gaps=True, config=GroupConfig(records_max=1)) as member:
            while len(found) < 6:
                calls += 1
                with trio.CancelScope() as scope:
                    async with trio.open_nursery() as nursery:

                        async def take() -> None:
                            batch = await anext(member)
                            found.extend(record.payload for record in batch.records)
                            await member.commit(batch)

                        nursery.start_soon(take)
                        if calls % 7 < 6:
                            for _ in range(calls % 7):
                                await trio.lowlevel.checkpoint()
                        else:
                            await trio.testing.wait_all_tasks_blocked()
                            await trio.sleep(0.01)
                        scope.cancel()
                assert calls < 1_000
    assert found == [b"%d-%d" % (segment, at) for segment in (0, 2) for at in range(3)]


async def test_the_batch_of_a_log_that_was_given_up_is_not_delivered(namespace: dlog.Namespace) -> None:
    with trio.fail_after(DEADLINE_S):
        async with join_group(namespace, "g", ["a"], gaps=True) as member:
            await member._fetch()
            [(claim, _)] = member._fetched
            claim.reading.cancel()
            assert member._take() is None, "the next holder gets it"
            assert claim.is_settled
