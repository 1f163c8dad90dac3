"""Members of a group: one reader for each log, no committed record twice, no commit of a zombie."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
import trio.testing

import dlog
from dlog.groups import ClaimLostError, GroupConfig, GroupMember, join_group
from tests.fakes.log_paths import paths_of

pytestmark = pytest.mark.slow
LOGS = ["a", "b", "c", "d"]
QUICK = GroupConfig(check_interval_s=0.05, records_max=3)
DEADLINE_S = 120


@pytest.fixture
async def namespace(tmp_path: Path) -> AsyncIterator[dlog.Namespace]:
    async with dlog.open_namespace(tmp_path.as_uri()) as opened:
        for log in LOGS:
            await opened.create_log(log)
        yield opened


async def fill(namespace: dlog.Namespace, count: int = 10) -> None:
    for log in LOGS:
        async with namespace.open_writer(log) as writer:
            await writer.append_many([b"%s%d" % (log.encode(), number) for number in range(count)])


async def until_holding(count: int, *members: GroupMember) -> None:
    with trio.fail_after(DEADLINE_S):
        for _ in range(100):
            if unlike := [member for member in members if len(member.logs) != count]:
                await unlike[0].wait_change()
            else:
                return
    raise AssertionError("they never come to rest")


async def consume(member: GroupMember, seen: list[bytes], count: int) -> None:
    """Take and commit batches until so many records were seen by all that share the list."""
    async for batch in member:
        seen += [record.payload for record in batch.records]
        await member.commit(batch)
        if len(seen) >= count:
            return


async def test_one_member_reads_all_logs_and_a_later_one_continues(namespace: dlog.Namespace) -> None:
    await fill(namespace)
    seen: list[bytes] = []
    with trio.fail_after(DEADLINE_S):
        async with join_group(namespace, "billing", LOGS, config=QUICK) as member:
            await consume(member, seen, 20)
            assert repr(member).startswith("<GroupMember")
        async with join_group(namespace, "billing", LOGS, config=QUICK) as member:
            await consume(member, seen, 40)
    assert sorted(seen) == sorted(b"%s%d" % (log.encode(), n) for log in LOGS for n in range(10))
    for log in LOGS:
        mine = [payload for payload in seen if payload[:1] == log.encode()]
        assert mine == [b"%s%d" % (log.encode(), n) for n in range(10)], "the order of a log is kept"


async def test_members_share_evenly_and_share_anew_when_one_leaves(namespace: dlog.Namespace) -> None:
    async with join_group(namespace, "g", LOGS, config=QUICK, member="one") as one:
        await until_holding(4, one)
        async with join_group(namespace, "g", LOGS, config=QUICK) as two:
            await until_holding(2, one, two)
            assert set(one.logs) | set(two.logs) == set(LOGS)
            async with join_group(namespace, "other", LOGS, config=QUICK) as other:
                await until_holding(4, other)
                await until_holding(2, one, two)
        await until_holding(4, one)
        assert one.name.startswith("one:")


async def test_while_members_come_and_go_no_committed_record_is_read_again(
    namespace: dlog.Namespace,
) -> None:
    await fill(namespace, 60)
    committed: Counter[bytes] = Counter()

    async def live(batches: int) -> None:
        async with join_group(namespace, "g", LOGS, config=QUICK) as member:
            async for batch in member:
                try:
                    await member.commit(batch)
                except ClaimLostError:
                    continue
                committed.update(record.payload for record in batch.records)
                batches -= 1
                if batches == 0 or len(committed) == 240:
                    return

    with trio.fail_after(DEADLINE_S):
        while len(committed) < 240:
            with trio.move_on_after(5):
                async with trio.open_nursery() as nursery:
                    for batches in (3, 9, 30):
                        nursery.start_soon(live, batches)
    assert set(committed.values()) == {1}
    assert len(committed) == 240


async def test_a_log_goes_to_another_member_after_its_last_batch_is_committed(
    namespace: dlog.Namespace,
) -> None:
    await fill(namespace)
    async with join_group(namespace, "g", ["a"], config=QUICK) as one:
        with trio.fail_after(DEADLINE_S):
            batch = await anext(one)
            assert [record.payload for record in batch.records] == [b"a0", b"a1", b"a2"]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one._hand_over, one._claims["a"])
                await trio.testing.wait_all_tasks_blocked()
                assert one.logs == ("a",), "it waits for the commit"
                await one.commit(batch)
            after = await anext(one)
            assert after.records[0].payload == b"a3"


async def test_a_member_that_lost_its_claim_commits_nothing(
    namespace: dlog.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not know yet that it lost the claim, and the next holder has committed nothing."""
    await fill(namespace)

    async def notice_nothing(member: GroupMember, claim: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(GroupMember, "_end_if_lost", notice_nothing)
    with trio.fail_after(DEADLINE_S):
        async with join_group(namespace, "g", ["a"], config=QUICK) as zombie:
            batch = await anext(zombie)
            lock = paths_of("/dlog", "a").subscriber_read_lock_path("g")
            async with join_group(namespace, "g", ["a"], config=QUICK) as holder:
                for name in (await namespace.context.store.children(lock)).names:
                    await namespace.context.store.delete(f"{lock}/{name}")
                await until_holding(1, holder)
                cursor = await namespace.cursors("a").get("g")
                with pytest.raises(ClaimLostError, match="the log's next holder gets its records"):
                    await zombie.commit(batch)
                assert await namespace.cursors("a").get("g") == cursor, "nothing was committed"
                again = await anext(holder)
                assert again.records == batch.records
                await holder.commit(again)


async def test_a_lost_lock_ends_the_claim_and_the_batch_comes_again(namespace: dlog.Namespace) -> None:
    await fill(namespace)
    with trio.fail_after(DEADLINE_S):
        async with join_group(namespace, "g", ["a"], config=QUICK) as member:
            first = await anext(member)
            lock = paths_of("/dlog", "a").subscriber_read_lock_path("g")
            for name in (await namespace.context.store.children(lock)).names:
                await namespace.context.store.delete(f"{lock}/{name}")
            again = await anext(member)
            while again._claim is first._claim:
                again = await anext(member)
            assert [record.payload for record in again.records] == [b"a0", b"a1", b"a2"]
            with pytest.raises(ClaimLostError):
                await member.commit(first)
            await member.commit(again)


async def test_a_member_whose_node_is_gone_makes_it_again(namespace: dlog.Namespace) -> None:
    async with join_group(namespace, "g", LOGS, config=QUICK) as member:
        await until_holding(4, member)
        path = f"{paths_of('/dlog', 'a').subscriber_path('g')}/members"
        with trio.fail_after(DEADLINE_S):
            await namespace.context.store.delete(f"{path}/{member.name}")
            gone = trio.Event()
            while (await namespace.context.store.children(path, watch=gone)).names != (member.name,):
                await gone.wait()
                gone = trio.Event()


async def test_a_group_begins_where_it_is_told_to(namespace: dlog.Namespace) -> None:
    await fill(namespace)
    with trio.fail_after(DEADLINE_S):
        async with join_group(namespace, "late", ["a"], start=dlog.LATEST, config=QUICK) as member:
            await until_holding(1, member)
            async with namespace.open_writer("a") as writer:
                await writer.append(b"new")
            batch = await anext(member)
            assert [record.payload for record in batch.records] == [b"new"]


async def test_the_error_of_a_log_is_raised_by_the_member(namespace: dlog.Namespace) -> None:
    await fill(namespace)
    with trio.fail_after(DEADLINE_S):
        async with join_group(namespace, "g", LOGS, config=QUICK) as member:
            await until_holding(4, member)
            member._fail(dlog.LogNotFoundError("a"))
            for _ in range(len(LOGS) * 10):
                if member._failure is None:
                    await anext(member)
            with pytest.raises(dlog.LogNotFoundError):
                await anext(member)
    await namespace.cursors("a").delete("g")


async def test_a_group_that_cannot_be_is_refused(namespace: dlog.Namespace) -> None:
    with pytest.raises(ValueError, match="name one log or more, each once"):
        async with join_group(namespace, "g", []):
            pass
    with pytest.raises(ValueError, match="each once"):
        async with join_group(namespace, "g", ["a", "a"]):
            pass
    with pytest.raises(dlog.LogNotFoundError):
        async with join_group(namespace, "g", ["a", "none"]):
            pass
    with pytest.raises(dlog.InvalidCursorNameError):
        async with join_group(namespace, "x/y", ["a"]):
            pass
    with pytest.raises(ValueError, match=r"EARLIEST or dlog\.LATEST"):
        async with join_group(namespace, "g", ["a"], start=dlog.Start.__call__):  # type: ignore[arg-type]
            pass
