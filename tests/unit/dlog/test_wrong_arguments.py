"""Arguments of wrong types: each is an error of its own call, and the log stays as it was and in use."""

from __future__ import annotations

import array
import datetime
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import dlog
from dlog import DLSN
from dlog.bulk import BatchPlan
from dlog.groups import join_group
from dlog.shards import create_sharded_log

Wrong = Callable[[Any, dlog.LogWriter], Awaitable[object]]
HALF = DLSN(1, 0.5, 0)  # type: ignore[arg-type]

NO_PLAN = BatchPlan(series=None, number=0, record_log="log", logs={})

WRONG: dict[str, Wrong] = {
    "append": lambda _, log: log.append(b"x", txid=1.9e18),  # type: ignore[arg-type]
    "append_many": lambda _, log: log.append_many([b"x", b"y"], txids=[2**61, 2.0**61]),  # type: ignore[list-item]
    "append_once": lambda _, log: log.append_once(b"x", txid=2.0**62),  # type: ignore[arg-type]
    "outcome": lambda _, log: log.outcome("7"),  # type: ignore[arg-type]
    "append_after": lambda _, log: log.append_after(b"x", (1, 0, 0)),  # type: ignore[arg-type]
    "truncate": lambda _, log: log.truncate(HALF),
    "truncate_log": lambda namespace, _: namespace.truncate_log("log", HALF),
    "cursors.set": lambda namespace, _: namespace.cursors("log").set("c", "1:0:0"),
    "cursor name": lambda namespace, _: namespace.cursors("log").set(7, DLSN(1, 0, 0)),
    "set_retention": lambda namespace, _: namespace.retention.set("log", 7),
    "property": lambda namespace, _: namespace.properties.change("log", {"owner": 7}),
    "property of bytes": lambda namespace, _: namespace.properties.change("log", {"owner": b"shop"}),
    "set_access_control": lambda namespace, _: namespace.access.set("log", {"write"}),
    "batch": lambda namespace, _: namespace.batches.begin(["log"], series="s", number=1.5),
    "plan of a batch": lambda namespace, _: namespace.batches.attach("held", []),
    "plan that is abandoned": lambda namespace, _: namespace.batches.abandon("held", []),
    "segment of a batch": lambda namespace, _: namespace.batches.attach(NO_PLAN, [None]),
    "logs of a batch": lambda namespace, _: namespace.batches.begin("log"),
    "create_log": lambda namespace, _: namespace.create_log(7),
    "rename_log": lambda namespace, _: namespace.rename_log("log", 7),
    "shards": lambda namespace, _: create_sharded_log(namespace, "sharded", 2.0),  # type: ignore[arg-type]
}


@pytest.fixture
async def namespace(tmp_path: Path) -> AsyncIterator[dlog.Namespace]:
    async with dlog.open_namespace(f"file://{tmp_path}") as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
async def test_a_wrong_argument_is_an_error_and_the_log_stays_in_use(
    namespace: dlog.Namespace, call: Wrong
) -> None:
    async with namespace.open_writer("log", create=True) as log:
        with pytest.raises(TypeError, match=r"not |texts"):
            await call(namespace, log)
        await log.append(b"first")
        with pytest.raises(TypeError, match=r"not |texts"):
            await call(namespace, log)
        await log.append(b"second")
    async with namespace.open_writer("log") as log:
        await log.append(b"third")
    async with namespace.open_reader("log", follow=False) as reader:
        assert [record.payload async for record in reader] == [b"first", b"second", b"third"]
    assert await namespace.list_logs() == ["log"]
    assert await namespace.retention.get("log") is None
    assert dict((await namespace.properties.get("log")).values) == {}
    assert await namespace.cursors("log").list() == []
    assert (await namespace.repair.check("log")).is_consistent


async def test_a_buffer_of_larger_elements_is_a_payload(namespace: dlog.Namespace) -> None:
    buffer: Any = memoryview(b"abcdefgh").cast("I")
    async with namespace.open_writer("log", create=True) as log:
        await log.append(buffer)
        await log.append_many([buffer, array.array("B", b"x")])  # type: ignore[list-item]
    async with namespace.open_reader("log", follow=False) as reader:
        assert [record.payload async for record in reader] == [b"abcdefgh", b"abcdefgh", b"x"]


@pytest.mark.slow
@pytest.mark.parametrize("place", ["latest", 3.5, True, (1, 0, 0), datetime.date(2026, 1, 1), HALF])
@pytest.mark.parametrize("end", [False, True], ids=["start", "end"])
async def test_a_reader_does_not_begin_or_end_where_no_place_is(
    namespace: dlog.Namespace, place: Any, end: bool
) -> None:
    await namespace.create_log("log")
    with pytest.raises(TypeError, match="in a log is"):
        namespace.open_reader("log", **{"end" if end else "start": place})


async def test_a_detached_segment_takes_integers_as_transaction_ids(namespace: dlog.Namespace) -> None:
    await namespace.create_log("log")
    plan = await namespace.batches.begin(["log"])
    assert plan is not None
    async with namespace.batches.open_segment(plan, "log") as segment:
        with pytest.raises(TypeError, match="a transaction id is an int"):
            await segment.append_many([b"x"], txids=[2.0**61])  # type: ignore[list-item]
        await segment.append_many([b"y"], txids=[2**61])
    assert segment.result is not None
    await namespace.batches.attach(plan, [segment.result])
    async with namespace.open_reader("log", follow=False) as reader:
        assert [(record.txid, record.payload) async for record in reader] == [(2**61, b"y")]


async def test_a_group_is_given_several_logs(namespace: dlog.Namespace) -> None:
    await namespace.create_log("log")
    with pytest.raises(TypeError, match="several names"):
        async with join_group(namespace, "billing", "log"):
            pass


@pytest.mark.slow
async def test_a_reader_commits_positions_only(namespace: dlog.Namespace) -> None:
    async with namespace.open_writer("log", create=True) as log:
        last = await log.append(b"x")
    async with namespace.open_reader("log", cursor="c", follow=False) as reader:
        assert [record.dlsn async for record in reader] == [last]
        for wrong in (7, "1:0:0", HALF):
            with pytest.raises(TypeError, match="a position in a log is a DLSN"):
                await reader.commit(wrong)  # type: ignore[arg-type]
        cursor = await reader.commit(last)
    assert cursor is not None
    assert cursor.position == last.next_slot()


@pytest.mark.parametrize(
    "wrong", [{"size_bytes": 1.5}, {"size_bytes": True}, {"age_s": "7d"}, {"size_bytes": 5, "keep_unread": 1}]
)
def test_a_retention_that_could_not_be_read_again_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(dlog.ConfigError, match="wrong type"):
        dlog.Retention(**wrong)
    with pytest.raises(dlog.ConfigError, match="is a datetime"):
        dlog.Retention.of(age=7)  # type: ignore[arg-type]
