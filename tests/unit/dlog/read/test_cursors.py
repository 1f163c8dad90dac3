"""Cursors: a reader continues where the last one committed, and never commits over another's position."""

# covers: dlog/operations/retention.py
# covers: dlog/read/entries.py

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import dlog
import dlog.blocking
from dlog import DLSN
from namespace.policy import Policy, Right, Rule


@pytest.fixture
async def namespace(tmp_path: Path) -> AsyncIterator[dlog.Namespace]:
    async with dlog.open_namespace(f"file://{tmp_path}") as opened:
        yield opened


async def write(namespace: dlog.Namespace, *batches: int) -> list[DLSN]:
    """Records 0, 1, ... in one completed segment for each batch."""
    dlsns: list[DLSN] = []
    for count in batches:
        async with namespace.open_writer("log", create=True) as log:
            first = len(dlsns)
            dlsns += await log.append_many([b"%d" % number for number in range(first, first + count)])
    return dlsns


async def take(reader: dlog.LogReader, count: int) -> list[bytes]:
    return [(await anext(reader)).payload for _ in range(count)]


@pytest.mark.slow
async def test_a_reader_continues_behind_the_last_commit(namespace: dlog.Namespace) -> None:
    dlsns = await write(namespace, 3, 3)
    async with namespace.open_reader("log", cursor="billing") as reader:
        assert await take(reader, 2) == [b"0", b"1"]
        cursor = await reader.commit()
        assert cursor == reader.cursor == dlog.Cursor("log", "billing", dlsns[1].next_slot(), 0)
        assert await take(reader, 2) == [b"2", b"3"]
    async with namespace.open_reader("log", cursor="billing", start=dlog.LATEST) as reader:
        assert await take(reader, 3) == [b"2", b"3", b"4"]
        await reader.commit(dlsns[3])
    async with namespace.open_reader("log", cursor="billing", follow=False) as reader:
        assert [record.payload async for record in reader] == [b"4", b"5"]
        await reader.commit()
    async with namespace.open_reader("log", cursor="billing", follow=False) as reader:
        assert [record.payload async for record in reader] == []
    async with namespace.open_reader("log", cursor="another", follow=False) as reader:
        assert reader.cursor is None
        assert len([record async for record in reader]) == 6


@pytest.mark.slow
async def test_a_commit_only_moves_forward_and_only_over_returned_records(namespace: dlog.Namespace) -> None:
    dlsns = await write(namespace, 4)
    async with namespace.open_reader("log", cursor="billing") as reader:
        await take(reader, 3)
        committed = await reader.commit(dlsns[1])
        assert await reader.commit(dlsns[0]) == committed
        with pytest.raises(ValueError, match="was not returned yet"):
            await reader.commit(dlsns[3])
        with pytest.raises(ValueError, match="not come to"):
            await reader.commit_to(dlsns[3].next_slot())
        assert await namespace.cursors("log").get("billing") == committed
        moved = await reader.commit_to(dlsns[2])
        assert moved is not None
        assert moved.position == dlsns[2]
    async with namespace.open_reader("log") as reader:
        with pytest.raises(ValueError, match="no cursor"):
            await reader.commit()


@pytest.mark.slow
async def test_nothing_is_committed_for_a_log_without_records(namespace: dlog.Namespace) -> None:
    await namespace.create_log("log")
    async with namespace.open_reader("log", cursor="billing") as reader:
        assert await reader.commit() is None
    assert await namespace.cursors("log").list() == []


@pytest.mark.slow
async def test_of_two_readers_with_one_cursor_the_slower_one_gets_a_conflict(
    namespace: dlog.Namespace,
) -> None:
    await write(namespace, 4)
    async with (
        namespace.open_reader("log", cursor="billing") as one,
        namespace.open_reader("log", cursor="billing") as two,
    ):
        await take(one, 1)
        await take(two, 2)
        await two.commit()
        for _ in range(2):
            with pytest.raises(dlog.CursorConflictError, match="another reader has moved it"):
                await one.commit()
        await take(two, 1)
        moved = await two.commit()
        await namespace.cursors("log").set("billing", DLSN(1, 0, 0))
        await take(two, 1)
        with pytest.raises(dlog.CursorConflictError):
            await two.commit()
    assert moved is not None
    found = await namespace.cursors("log").get("billing")
    assert found is not None
    assert (found.position, found.version) == (DLSN(1, 0, 0), moved.version + 1)


@pytest.mark.slow
async def test_counts_and_lags_agree_with_reading(namespace: dlog.Namespace) -> None:
    dlsns = await write(namespace, 1, 4, 2)
    async with namespace.open_writer("log") as log:
        dlsns += await log.append_many([b"7", b"8", b"9"])
        await log.flush()
        assert await namespace.count_records("log") == 10
        cursors = namespace.cursors("log")
        for index, dlsn in enumerate(dlsns):
            assert await namespace.count_records("log", start=dlsn) == 10 - index
            behind = await cursors.set("billing", dlsn.next_slot())
            assert await cursors.lag(behind) == 9 - index
        assert await namespace.count_records("log", start=dlsns[-1].next_segment()) == 0


@pytest.mark.slow
async def test_counts_between_two_positions_agree_with_reading(namespace: dlog.Namespace) -> None:
    dlsns = await write(namespace, 1, 4, 2)
    async with namespace.open_writer("log") as log:
        dlsns += await log.append_many([b"7", b"8", b"9"])
        await log.flush()
        for first, start in enumerate(dlsns):
            for last, end in enumerate(dlsns):
                counted = await namespace.count_records("log", start=start, end=end)
                assert counted == max(0, last - first), (start, end)
        assert await namespace.count_records("log", end=dlsns[-1].next_segment()) == 10
        assert await namespace.count_records("log", end=DLSN(0, 0, 0)) == 0


@pytest.mark.slow
async def test_cursors_are_listed_set_and_deleted(namespace: dlog.Namespace) -> None:
    dlsns = await write(namespace, 2)
    cursors = namespace.cursors("log")
    assert repr(cursors) == "<LogCursors of 'log'>"
    b, a = await cursors.set("b", dlsns[0]), await cursors.set("a", dlsns[1])
    assert await cursors.list() == [a, b]
    assert await cursors.get("c") is None
    assert await cursors.delete("a")
    assert not await cursors.delete("a")
    assert await cursors.list() == [b]
    with pytest.raises(dlog.InvalidCursorNameError):
        await cursors.set("a/b", dlsns[0])
    with pytest.raises(dlog.InvalidCursorNameError):
        namespace.open_reader("log", cursor="a/b")
    with pytest.raises(dlog.LogNotFoundError):
        await namespace.cursors("other").list()


@pytest.mark.slow
async def test_a_cursor_is_not_set_to_a_truncated_position(namespace: dlog.Namespace) -> None:
    dlsns = await write(namespace, 1, 1, 1)
    await namespace.truncate_log("log", dlsns[2])
    with pytest.raises(dlog.LogTruncatedError):
        await namespace.cursors("log").set("billing", dlsns[1])
    assert await namespace.cursors("log").list() == []


@pytest.mark.slow
async def test_a_principal_moves_only_cursors_that_its_rule_names(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}"
    async with dlog.open_namespace(uri) as namespace:
        await write(namespace, 2)
        rules = (
            Rule(namespace.principal, "*", frozenset({Right.WRITE})),
            Rule(namespace.principal, "log", frozenset({Right.COMMIT}), "bill*"),
            Rule("x", "*", frozenset({Right.ADMIN})),
        )
        await namespace.policy.set(Policy(rules))
        cursors = namespace.cursors("log")
        async with namespace.open_reader("log", cursor="billing") as reader:
            await take(reader, 1)
            committed = await reader.commit()
        async with namespace.open_reader("log", cursor="audit") as reader:
            await take(reader, 1)
            with pytest.raises(dlog.AccessDeniedError, match="no right to commit cursor 'audit'"):
                await reader.commit()
        with pytest.raises(dlog.AccessDeniedError):
            await cursors.set("audit", DLSN(1, 0, 0))
        with pytest.raises(dlog.AccessDeniedError):
            await cursors.delete("audit")
        assert await cursors.list() == [committed]
        assert await cursors.set("bills", DLSN(1, 0, 0))
        assert await cursors.delete("bills")
        with pytest.raises(dlog.AccessDeniedError):
            await namespace.retention.set("log", dlog.Retention(age_s=1))
        with pytest.raises(dlog.AccessDeniedError):
            await namespace.retention.apply("log")


@pytest.mark.slow
def test_the_blocking_reader_commits_what_it_returned_not_what_it_fetched(tmp_path: Path) -> None:
    with dlog.blocking.open_namespace(f"file://{tmp_path}") as namespace:
        with namespace.open_writer("log", create=True) as log:
            dlsns = log.append_many([b"0", b"1", b"2", b"3"])
        with namespace.open_reader("log", cursor="billing") as reader:
            assert [next(reader).payload for _ in range(2)] == [b"0", b"1"]
            cursor = reader.commit()
            assert cursor is not None
            assert cursor == reader.cursor
            assert cursor.position in (dlsns[1].next_slot(), dlsns[2])
            with pytest.raises(ValueError, match="was not returned yet"):
                reader.commit(dlsns[3])
        cursors = namespace.cursors("log")
        assert repr(cursors) == "<blocking LogCursors of 'log'>"
        assert cursors.list() == [cursor] == [cursors.get("billing")]
        assert cursors.lag(cursor) == namespace.count_records("log", start=dlsns[2]) == 2
        assert cursors.set("billing", dlsns[0]).position == dlsns[0]
        assert cursors.delete("billing")
        rule = dlog.Retention(size_bytes=1)
        namespace.retention.set("log", rule)
        assert namespace.retention.get("log") == rule
        assert namespace.retention.apply("log") == []
