"""Space of truncated records comes back: which segments go, and what a crash between two steps leaves."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.lowlevel

import dlog
from dlog import DLSN
from dlog.write import space
from ledger.client import LedgerClient
from ledger.deploy.embedded import open_embedded_stack
from ledger.metadata_store.errors import ConnectionLostError
from ledger.runtime.tasks.timers import Timers
from namespace import cursor_nodes, retention_node
from namespace.segment_nodes import set_truncation
from namespace.segments.retention import decode_retention
from namespace.segments.segment import LogSegment, TruncationStatus
from namespace.segments.truncation import purgeable
from tests.effort import sampled
from tests.unit.namespace.segments.test_truncation import segment

pytestmark = pytest.mark.slow

KEEPS = dlog.NamespaceConfig(writer=dlog.WriterConfig(purge=False))
IMPATIENT = dlog.NamespaceConfig(writer=dlog.WriterConfig(purge=False, retry_timeout_s=0))
PURGES = dlog.NamespaceConfig()


async def write(namespace: dlog.Namespace, count: int) -> list[DLSN]:
    """Records 0, 1, ... of the log, each in a completed segment of its own."""
    dlsns = []
    for number in range(count):
        async with namespace.open_writer("log", create=True) as log:
            dlsns.append(await log.append(b"%d" % number, txid=number))
    return dlsns


async def read(namespace: dlog.Namespace) -> list[bytes]:
    async with namespace.open_reader("log", follow=False) as reader:
        return [record.payload async for record in reader]


def numbers(segments: Sequence[dlog.SegmentDescription]) -> list[int]:
    return [each.segment_seqno for each in segments]


def test_truncated_segments_may_go_from_the_oldest_on_except_the_newest_completed() -> None:
    gone = [segment(number).truncated() for number in range(1, 6)]
    assert purgeable([]) == []
    assert purgeable(gone) == gone[:-1]
    assert purgeable([*gone, segment(6, in_progress=True)]) == gone[:-1]
    assert purgeable([*gone[:2], segment(3), *gone[3:]]) == gone[:2]
    assert purgeable([gone[0], segment(2).partially_truncated(DLSN(2, 1, 0)), gone[2]]) == gone[:1]
    assert purgeable([segment(1, in_progress=True), *gone[1:]]) == []
    unknown = attrs.evolve(segment(1), truncation=TruncationStatus.UNKNOWN)
    assert purgeable([unknown, *gone[1:]]) == []


async def test_a_log_is_truncated_and_purged_beside_its_writer(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}"
    async with dlog.open_namespace(uri, config=KEEPS) as namespace:
        dlsns = await write(namespace, 5)
        async with namespace.open_writer("log") as log:
            dlsns.append(await log.append(b"5", txid=5))
            async with dlog.open_namespace(uri, config=KEEPS) as other:
                assert await other.truncate_log("log", dlsns[3]) == dlsns[3]
                planned = await other.purge_log("log", dry_run=True)
                assert numbers(planned) == [1, 2, 3]
                assert numbers(await other.segments("log")) == [1, 2, 3, 4, 5, 6]
                assert await other.purge_log("log") == planned
                assert await other.purge_log("log") == []
                assert numbers(await other.segments("log")) == [4, 5, 6]
            dlsns.append(await log.append(b"6", txid=6))
        assert await read(namespace) == [b"3", b"4", b"5", b"6"]
        for position in dlsns[:3]:
            with pytest.raises(dlog.LogTruncatedError):
                async with namespace.open_reader("log", start=position):
                    pass
        async with namespace.open_writer("log") as log:
            dlsns.append(await log.append(b"7", txid=7))
        assert dlsns == sorted(set(dlsns))
        assert (await namespace.describe_log("log")).record_count == 5


async def test_all_may_be_truncated_and_the_log_goes_on(tmp_path: Path) -> None:
    async with dlog.open_namespace(f"file://{tmp_path}", config=KEEPS) as namespace:
        dlsns = await write(namespace, 3)
        assert await namespace.truncate_log("log", dlsns[-1].next_slot()) == DLSN(4, 0, 0)
        assert numbers(await namespace.purge_log("log")) == [1, 2]
        assert await read(namespace) == []
        async with namespace.open_writer("log") as log:
            assert (await log.append(b"next")).segment_seqno == 4
        assert await read(namespace) == [b"next"]
        assert numbers(await namespace.purge_log("log")) == [3]


async def test_a_writer_purges_by_itself_also_what_an_earlier_one_left(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}"
    async with dlog.open_namespace(uri, config=KEEPS) as namespace:
        dlsns = await write(namespace, 4)
        async with namespace.open_writer("log") as log:
            await log.truncate(dlsns[1])
        assert numbers(await namespace.segments("log")) == [1, 2, 3, 4]
    async with dlog.open_namespace(uri, config=PURGES) as namespace:
        async with namespace.open_writer("log"):
            pass
        assert numbers(await namespace.segments("log")) == [2, 3, 4]
        async with namespace.open_writer("log") as log:
            await log.truncate(dlsns[3])
        assert numbers(await namespace.segments("log")) == [4]
        assert await read(namespace) == [b"3"]


async def test_a_reader_inside_a_purged_segment_learns_that_it_was_truncated(tmp_path: Path) -> None:
    config = attrs.evolve(KEEPS, reader=dlog.ReaderConfig(read_ahead_bytes_max=1, read_bytes_max=1))
    async with dlog.open_namespace(f"file://{tmp_path}", config=config) as namespace:
        await write(namespace, 10)
        async with namespace.open_reader("log") as reader:
            assert (await anext(reader)).payload == b"0"
            await namespace.truncate_log("log", DLSN(10, 0, 0))
            assert numbers(await namespace.purge_log("log")) == [*range(1, 10)]
            seen: list[bytes] = []

            async def read_on() -> None:
                async for record in reader:
                    seen.append(record.payload)

            with pytest.raises(dlog.LogTruncatedError) as caught:
                await read_on()
            assert seen == [b"%d" % number for number in range(1, 1 + len(seen))], "read ahead, in order"
            assert caught.value.first_left == DLSN(10, 0, 0)
        assert await read(namespace) == [b"9"]


class _Cut:
    """Breaks the connection at one step of truncating or purging, before or after the step is applied."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int, *, applied: bool) -> None:
        self._left, self._applied = at, applied
        for owner, name in (
            (space, "set_truncation"),
            (LedgerClient, "delete_unchanged"),
            (space, "delete_segment"),
        ):
            patch.setattr(owner, name, self._cutting(getattr(owner, name)))

    @property
    def is_over(self) -> bool:
        return self._left < 0

    def _cutting(self, step: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def cut(*args: Any) -> Any:
            self._left -= 1
            if self._left != -1:
                return await step(*args)
            if self._applied:
                await step(*args)
            raise ConnectionLostError("/", "cut by the test")

        return cut


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("at", sampled(range(8), 2))
async def test_a_crash_between_any_two_steps_loses_nothing_and_the_next_call_does_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, applied: bool
) -> None:
    async with dlog.open_namespace(f"file://{tmp_path}", config=IMPATIENT) as namespace:
        dlsns = await write(namespace, 6)
        ledgers = {each.segment_seqno: each.ledger_id for each in await namespace.segments("log")}
        with monkeypatch.context() as patch:
            cut = _Cut(patch, at, applied=applied)
            with pytest.raises(dlog.LogUnavailableError) if at < 7 else contextlib.nullcontext():
                await namespace.truncate_log("log", dlsns[3])
                await namespace.purge_log("log")
            assert cut.is_over is (at < 7), "one transaction of marks, three ledgers, three nodes"
        is_marked = at > 0 or applied
        expected = [b"%d" % number for number in range(3 if is_marked else 0, 6)]
        assert await read(namespace) == expected
        async with namespace.open_writer("log") as log:
            await log.append(b"6", txid=6)
        assert await read(namespace) == [*expected, b"6"]
        assert await namespace.truncate_log("log", dlsns[3]) == dlsns[3]
        await namespace.purge_log("log")
        assert await read(namespace) == [b"3", b"4", b"5", b"6"]
    async with open_embedded_stack(tmp_path) as stack:
        left = set(await stack.client.ledger_ids())
    assert left & set(ledgers.values()) == {ledgers[4], ledgers[5], ledgers[6]}, "no ledger leaks"


async def test_a_mark_never_moves_back_when_two_processes_truncate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"file://{tmp_path}"
    async with (
        dlog.open_namespace(uri, config=KEEPS) as slow,
        dlog.open_namespace(uri, config=KEEPS) as fast,
    ):
        async with slow.open_writer("log", create=True) as log:
            dlsns = await log.append_many([b"0", b"1", b"2"], txids=[0, 1, 2])
        async with slow.open_writer("log") as log:
            await log.append(b"3", txid=3)

        async def overtaken(*args: Any) -> Any:
            monkeypatch.setattr(space, "set_truncation", set_truncation)
            assert await fast.truncate_log("log", dlsns[2]) == dlsns[2]
            return await set_truncation(*args)

        monkeypatch.setattr(space, "set_truncation", overtaken)
        assert await slow.truncate_log("log", dlsns[1]) == dlsns[2]
        assert await read(slow) == [b"2", b"3"]


async def test_a_log_that_changes_at_every_attempt_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with dlog.open_namespace(f"file://{tmp_path}", config=KEEPS) as namespace:
        dlsns = await write(namespace, 3)

        async def fenced(*_: Any) -> Any:
            raise dlog.LogFencedError("log", "another client was faster")

        monkeypatch.setattr(space, "set_truncation", fenced)
        with pytest.raises(dlog.LogUnavailableError, match="20 times"):
            await namespace.truncate_log("log", dlsns[2])
        assert await read(namespace) == [b"0", b"1", b"2"]


async def test_a_purge_that_fails_is_logged_and_repeated_by_the_next_round(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    rounds = 0

    async def purge() -> tuple[LogSegment, ...]:
        nonlocal rounds
        rounds += 1
        if rounds == 1:
            raise dlog.LogUnavailableError("bookies are away")
        return ()

    async def is_due() -> bool:
        return due

    due, timers = True, Timers()
    purger = space.Purger("log", purge, is_due, timers)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timers.run)
        purger.begin(nursery.start_soon)
        await purger.wait_idle()
        assert rounds == 1
        assert "bookies are away" in caplog.text
        purger.request()
        await purger.wait_idle()
        assert rounds == 2
        await trio.sleep(1.5 * space.ROUND_S)
        assert rounds == 3
        due = False
        await trio.sleep(10 * space.ROUND_S)
        assert rounds == 3
        due = True
        purger.end()
        await trio.sleep(10 * space.ROUND_S)
        assert rounds == 3
        nursery.cancel_scope.cancel()


# Retention


class Clock:
    """The wall clock of a namespace, moved by hand."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


async def test_old_segments_go_when_the_log_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    async with dlog.open_namespace(f"file://{tmp_path}") as namespace:
        monkeypatch.setattr(namespace, "context", attrs.evolve(namespace.context, wall_ms=clock))
        for number in range(3):
            async with namespace.open_writer("log", create=True) as log:
                await log.append(b"%d" % number)
            clock.now_ms += 60_000
        await namespace.retention.set("log", dlog.Retention(age_s=100))
        async with namespace.open_writer("log") as log:
            await log.append(b"3")
        assert await read(namespace) == [b"2", b"3"]
        assert numbers(await namespace.segments("log")) == [3, 4]
        clock.now_ms += 1_000_000
        assert numbers(await namespace.retention.apply("log")) == [3]
        assert await read(namespace) == []
        await namespace.retention.set("log", None)
        async with namespace.open_writer("log") as log:
            await log.append(b"4")
        assert await read(namespace) == [b"4"]


async def test_an_idle_writer_gives_up_what_has_grown_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space, "ROUND_S", 0.01)
    clock = Clock()
    async with dlog.open_namespace(f"file://{tmp_path}") as namespace:
        monkeypatch.setattr(namespace, "context", attrs.evolve(namespace.context, wall_ms=clock))
        await write(namespace, 3)
        await namespace.retention.set("log", dlog.Retention(age_s=100))
        async with namespace.open_writer("log"):
            clock.now_ms += 1_000_000
            with trio.fail_after(60):
                while numbers(await namespace.segments("log")) != [3]:
                    await trio.lowlevel.checkpoint()


async def test_a_log_is_kept_below_a_size_by_its_newest_segments(tmp_path: Path) -> None:
    async with dlog.open_namespace(f"file://{tmp_path}", config=KEEPS) as namespace:
        for number in range(4):
            async with namespace.open_writer("log", create=True) as log:
                await log.append(b"x" * 1000, txid=number)
        await namespace.retention.set("log", dlog.Retention(size_bytes=2000))
        assert numbers(await namespace.retention.apply("log")) == [1, 2]
        assert await namespace.retention.apply("log") == []
        assert len(await read(namespace)) == 2


async def test_records_that_a_cursor_protects_stay_until_it_is_committed(tmp_path: Path) -> None:
    async with dlog.open_namespace(f"file://{tmp_path}", config=KEEPS) as namespace:
        await write(namespace, 4)
        await namespace.retention.set("log", dlog.Retention(keep_unread=True))
        assert await namespace.retention.apply("log") == []
        async with namespace.open_reader("log", cursor="slow") as slow:
            await anext(slow)
            await slow.commit()
            async with namespace.open_reader("log", cursor="fast") as fast:
                for _ in range(3):
                    await anext(fast)
                await fast.commit()
            # The slow cursor has consumed all of segment 1 and is still in it.
            assert await namespace.retention.apply("log") == []
            assert (await anext(slow)).payload == b"1"
            await slow.commit()
            assert numbers(await namespace.retention.apply("log")) == [1]
            assert (await anext(slow)).payload == b"2"
            await slow.commit()
        assert numbers(await namespace.retention.apply("log")) == [2]
        assert await read(namespace) == [b"2", b"3"]


async def test_a_cursor_created_while_retention_decides_is_protected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with dlog.open_namespace(f"file://{tmp_path}", config=KEEPS) as namespace:
        dlsns = await write(namespace, 4)
        await namespace.retention.set("log", dlog.Retention(age_s=0.001, keep_unread=True))
        found = cursor_nodes.list_cursors
        late = False

        async def list_before_another_is_created(*arguments: Any) -> Any:
            nonlocal late
            cursors = await found(*arguments)
            if not late:
                late = True
                await namespace.cursors("log").set("late", dlsns[1])
            return cursors

        monkeypatch.setattr(space, "list_cursors", list_before_another_is_created)
        assert numbers(await namespace.retention.apply("log")) == [1]
        async with namespace.open_reader("log", cursor="late", follow=False) as reader:
            assert [record.payload async for record in reader] == [b"1", b"2", b"3"]


async def test_a_rule_that_does_not_parse_gives_up_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with dlog.open_namespace(f"file://{tmp_path}", config=KEEPS) as namespace:
        await write(namespace, 2)
    async with dlog.open_namespace(f"file://{tmp_path}") as namespace:
        await namespace.retention.set("log", dlog.Retention(age_s=0.001))
        monkeypatch.setattr(retention_node, "decode_retention", lambda _: decode_retention(b"{"))
        async with namespace.open_writer("log") as log:
            await log.append(b"2", txid=2)
        assert "the retention is not JSON" in caplog.text
        assert await read(namespace) == [b"0", b"1", b"2"]
        with pytest.raises(dlog.LogMetadataError, match="dlog log retention"):
            await namespace.retention.apply("log")
