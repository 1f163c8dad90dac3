"""Logs whose nodes contradict each other or their ledgers: what a check finds, what a repair mends."""

# covers: dlog/operations/repairs.py
# covers: dlog/repair/findings.py
# covers: dlog/repair/log_reading.py
# covers: dlog/repair/log_state.py
# covers: dlog/repair/mending.py

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest
import trio
import trio.testing

import dlog
from dlog import FindingKind
from namespace.log_metadata import INITIAL_MAX_TXID
from namespace.segments.segment import LogSegment, decode_segment, encode_segment, segment_name
from tests.fakes.dict_bookies import DictCluster, open_cluster
from tests.fakes.dict_namespace import Opened, open_on, read_all, write_segments
from tests.fakes.log_paths import paths_of

PARENT = paths_of("/ns", "log").segments_path
HANDED_OVER = b"\xff\xff\xff\xfefile:///other"  # docs/promotion.md
MAX_TXID = paths_of("/ns", "log").max_txid_path


@pytest.fixture
async def cluster() -> AsyncIterator[DictCluster]:
    async with open_cluster() as opened:
        yield opened


def path_of(number: int, *, in_progress: bool = False) -> str:
    return f"{PARENT}/{segment_name(number, in_progress=in_progress)}"


async def stored(opened: Opened, path: str) -> LogSegment:
    return decode_segment((await opened.store.get(path)).value)


async def replace(opened: Opened, number: int, **values: Any) -> None:
    """Change values of a completed segment's node."""
    segment = attrs.evolve(await stored(opened, path_of(number)), **values)
    await opened.store.put(path_of(number), encode_segment(segment))


async def leave_in_progress(opened: Opened, number: int, payload: bytes | None, *, first_txid: int) -> int:
    """A segment as a killed writer leaves it, with one record or none; return its ledger."""
    handle = await opened.client.create()
    if payload is not None:
        from dlog.format.envelope import seal_envelope
        from dlog.format.record import encode_records

        await handle.append(seal_envelope(encode_records([payload], [first_txid], 1)))
    handle.abandon()
    segment = LogSegment(segment_seqno=number, ledger_id=handle.ledger_id, first_txid=first_txid)
    await opened.store.create(path_of(number, in_progress=True), encode_segment(segment))
    await opened.store.put(PARENT, b"%d" % number)
    return handle.ledger_id


async def kinds(opened: Opened) -> list[tuple[FindingKind, str]]:
    found = await opened.namespace.repair.check("log")
    return [(each.kind, each.node) for each in found.findings]


async def repaired(opened: Opened) -> list[FindingKind]:
    """Repair the log until it is consistent; return what was repaired."""
    result = await opened.namespace.repair.apply("log")
    assert result.left.findings == ()
    assert result.left.is_consistent
    assert (await opened.namespace.repair.check("log")).findings == ()
    return [each.kind for each in result.done]


async def test_a_sound_log_has_no_findings(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await opened.namespace.create_log("log")
        assert await kinds(opened) == []
        await write_segments(opened.namespace, "log", 3)
        await opened.namespace.truncate_log("log", dlog.DLSN(2, 0, 0))
        async with opened.namespace.open_writer("log") as writer:
            await writer.append(b"open", txid=9)
            found = await opened.namespace.repair.check("log")
            assert (found.segments, found.writer, found.findings) == (4, "test", ())
            with pytest.raises(dlog.LogLockedError):
                await opened.namespace.repair.apply("log")
        assert await repaired(opened) == []
        with pytest.raises(dlog.LogNotFoundError):
            await opened.namespace.repair.check("nothing")


@pytest.mark.parametrize("garbage", [b"1", b"", b"many"])
async def test_a_greatest_number_that_is_too_small_or_garbage_is_mended(
    cluster: DictCluster, garbage: bytes
) -> None:
    async with open_on(cluster) as opened:
        payloads = await write_segments(opened.namespace, "log", 3)
        await opened.store.put(PARENT, garbage)
        with pytest.raises(dlog.DLogError):
            await write_segments(opened.namespace, "log", 1, first=3)
        assert await kinds(opened) == [(FindingKind.MAX_SEQNO_WRONG, "ledgers")]
        assert await repaired(opened) == [FindingKind.MAX_SEQNO_WRONG]
        payloads += await write_segments(opened.namespace, "log", 1, first=3)
        assert await read_all(opened.namespace, "log") == payloads


async def test_a_greatest_number_that_is_too_great_stays(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await write_segments(opened.namespace, "log", 2)
        await opened.store.put(PARENT, b"7")
        result = await opened.namespace.repair.apply("log")
        (left,) = result.left.findings
        assert (left.kind, left.repair, result.done) == (FindingKind.MAX_SEQNO_WRONG, "", ())
        assert "segments 3 to 7 may be lost" in left.advice
        assert (await opened.store.get(PARENT)).value == b"7"


async def test_a_greatest_number_without_a_segment_cannot_be_mended(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await opened.namespace.create_log("log")
        await opened.store.put(PARENT, b"?")
        (left,) = (await opened.namespace.repair.apply("log")).left.findings
        assert (left.kind, left.repair) == (FindingKind.MAX_SEQNO_WRONG, "")


@pytest.mark.parametrize("garbage", [INITIAL_MAX_TXID, b"", b"x"])
async def test_a_greatest_txid_that_is_too_small_or_garbage_is_mended(
    cluster: DictCluster, garbage: bytes
) -> None:
    async with open_on(cluster) as opened:
        await write_segments(opened.namespace, "log", 2, first=5)
        await opened.store.put(MAX_TXID, garbage)
        assert await kinds(opened) == [(FindingKind.MAX_TXID_WRONG, "maxtxid")]
        assert await repaired(opened) == [FindingKind.MAX_TXID_WRONG]
        assert (await opened.store.get(MAX_TXID)).value == b"6"


async def test_a_greatest_txid_that_is_too_great_is_told_and_stays(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await write_segments(opened.namespace, "log", 2)
        for value, is_error in [(b"100", False), (b"%d" % (2**63 - 1), True)]:
            await opened.store.put(MAX_TXID, value)
            result = await opened.namespace.repair.apply("log")
            (left,) = result.left.findings
            assert (left.kind, left.is_error) == (FindingKind.MAX_TXID_WRONG, is_error)
            assert result.left.is_consistent is not is_error
            assert (await opened.store.get(MAX_TXID)).value == value


async def test_a_gap_is_told(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await write_segments(opened.namespace, "log", 4)
        for number in (2, 3):
            await opened.store.delete(path_of(number))
        (found,) = (await opened.namespace.repair.check("log")).findings
        assert (found.kind, found.node, found.repair) == (
            FindingKind.GAP,
            segment_name(4, in_progress=False),
            "",
        )
        assert "segments 2 to 3 missing" in found.evidence
        assert (await opened.namespace.repair.apply("log")).done == ()


async def test_a_completed_segment_that_is_also_in_progress_loses_the_second_node(
    cluster: DictCluster,
) -> None:
    async with open_on(cluster) as opened:
        payloads = await write_segments(opened.namespace, "log", 2)
        done = await stored(opened, path_of(2))
        twin = LogSegment(segment_seqno=2, ledger_id=done.ledger_id, first_txid=done.first_txid)
        await opened.store.create(path_of(2, in_progress=True), encode_segment(twin))
        assert await kinds(opened) == [(FindingKind.COMPLETED_TWICE, twin.name)]
        assert await repaired(opened) == [FindingKind.COMPLETED_TWICE]
        payloads += await write_segments(opened.namespace, "log", 1, first=2)
        assert await read_all(opened.namespace, "log") == payloads


async def test_a_segment_in_progress_with_a_number_that_is_taken_gets_the_next(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        payloads = await write_segments(opened.namespace, "log", 3)
        await leave_in_progress(opened, 2, b"late", first_txid=9)
        found = await kinds(opened)
        assert (FindingKind.NUMBER_TWICE, segment_name(2, in_progress=True)) in found
        assert FindingKind.NUMBER_TWICE in await repaired(opened)
        assert await read_all(opened.namespace, "log") == [*payloads, b"late"]
        assert [each.segment_seqno for each in await opened.namespace.segments("log")] == [1, 2, 3, 4]
        payloads += [b"late", *await write_segments(opened.namespace, "log", 1, first=10)]
        assert await read_all(opened.namespace, "log") == payloads


async def test_a_number_behind_lost_segments_is_not_given_out(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await write_segments(opened.namespace, "log", 2)
        await leave_in_progress(opened, 2, b"late", first_txid=9)
        await opened.store.put(PARENT, b"7")
        result = await opened.namespace.repair.apply("log")
        assert result.done == ()
        assert {each.kind for each in result.left.findings} == {
            FindingKind.NUMBER_TWICE,
            FindingKind.MAX_SEQNO_WRONG,
        }


async def test_the_greatest_txid_never_becomes_smaller(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await write_segments(opened.namespace, "log", 1)
        await leave_in_progress(opened, 2, b"x", first_txid=5)
        await opened.store.put(MAX_TXID, b"100")
        await opened.namespace.repair.apply("log")
        assert (await opened.store.get(MAX_TXID)).value == b"100"


async def test_two_ledgers_of_one_number_stay_if_their_order_is_not_known(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await write_segments(opened.namespace, "log", 3)
        await leave_in_progress(opened, 2, b"early", first_txid=0)
        await opened.store.put(PARENT, b"3")
        result = await opened.namespace.repair.apply("log")
        assert result.done == ()
        (left,) = result.left.findings
        assert (left.kind, left.repair) == (FindingKind.NUMBER_TWICE, "")
        assert await opened.store.exists(path_of(2, in_progress=True)) is not None


async def test_segments_in_progress_of_dead_writers_are_completed_in_order(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        payloads = await write_segments(opened.namespace, "log", 1)
        for number in (2, 3, 4):
            await leave_in_progress(opened, number, b"left %d" % number, first_txid=number)
        empty = await leave_in_progress(opened, 5, None, first_txid=9)
        check = await opened.namespace.repair.check("log")
        assert [each.kind for each in check.findings] == [FindingKind.UNFINISHED] * 4
        assert not check.is_consistent  # more than an ordinary recovery completes
        assert await repaired(opened) == [FindingKind.UNFINISHED] * 4
        assert empty not in await opened.client.ledger_ids()
        segments = await opened.namespace.segments("log")
        assert [each.start_sequence_id for each in segments] == [0, 1, 2, 3]
        payloads += [
            b"left 2",
            b"left 3",
            b"left 4",
            *await write_segments(opened.namespace, "log", 1, first=9),
        ]
        assert await read_all(opened.namespace, "log") == payloads


async def test_one_segment_in_progress_without_a_writer_is_only_noted(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await write_segments(opened.namespace, "log", 1)
        await leave_in_progress(opened, 2, b"x", first_txid=5)
        check = await opened.namespace.repair.check("log")
        assert ([each.kind for each in check.findings], check.is_consistent) == (
            [FindingKind.UNFINISHED],
            True,
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "values",
    [
        {"record_count": 1},
        {"last_entry_id": 0, "last_slot_id": 0},
        {"last_entry_id": 0, "record_count": 1, "last_txid": 5},
        {"last_txid": 1_000},
        {"last_slot_id": 0},
    ],
)
async def test_a_last_record_before_that_of_the_ledger_is_mended(
    cluster: DictCluster, values: dict[str, int]
) -> None:
    async with open_on(cluster) as opened:
        async with opened.namespace.open_writer("log", create=True) as writer:
            await writer.append(b"0", txid=5)
            await writer.append_many([b"1", b"2"], txids=[6, 7])
        before = await stored(opened, path_of(1))
        assert (before.record_count, before.last_txid) == (3, 7)
        await replace(opened, 1, **values)
        assert (FindingKind.LAST_RECORD_WRONG, before.name) in await kinds(opened)
        assert FindingKind.LAST_RECORD_WRONG in await repaired(opened)
        assert await stored(opened, path_of(1)) == before
        assert (await opened.namespace.repair.verify("log")).is_sound


async def test_a_last_record_behind_that_of_the_ledger_stays(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await write_segments(opened.namespace, "log", 1)
        for values in ({"record_count": 5}, {"last_entry_id": 50}):
            before = await stored(opened, path_of(1))
            await replace(opened, 1, **values)
            result = await opened.namespace.repair.apply("log")
            (left,) = result.left.findings
            assert (left.kind, left.repair, result.done) == (FindingKind.LAST_RECORD_WRONG, "", ())
            await opened.store.put(path_of(1), encode_segment(before))


async def test_a_recovered_segment_may_name_a_control_record(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await opened.namespace.create_log("log")
        config = dlog.WriterConfig(purge=False)
        async with opened.namespace.open_writer("log", config=config) as writer:
            await writer.append(b"x", txid=1)
            await writer.flush()
            (segment,) = await opened.namespace.segments("log")
            copy = await opened.client.open(segment.ledger_id)  # fences the writer
            async with copy:
                assert copy.last_confirmed >= 1  # the entry behind that of the record is a control record
    async with open_on(cluster) as opened:
        await opened.namespace.repair.recover("log")
        assert await kinds(opened) == []


async def test_a_completed_segment_without_its_ledger_is_told(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await write_segments(opened.namespace, "log", 3)
        for number in (1, 2):
            await opened.client.delete((await stored(opened, path_of(number))).ledger_id)
        await opened.namespace.truncate_log("log", dlog.DLSN(2, 0, 0))
        (found,) = (await opened.namespace.repair.check("log")).findings
        # Segment 1 is truncated: a purge that was interrupted looks like this.
        assert (found.kind, found.node) == (FindingKind.LEDGER_MISSING, segment_name(2, in_progress=False))
        assert (await opened.namespace.repair.check("log", read_ledgers=False)).findings == ()


async def test_a_completed_segment_with_an_open_ledger_gets_its_end(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await write_segments(opened.namespace, "log", 1)
        await leave_in_progress(opened, 2, b"x", first_txid=7)
        running = await stored(opened, path_of(2, in_progress=True))
        done = running.completed(
            last_txid=7,
            record_count=0,
            last_entry_id=-1,
            last_slot_id=-1,
            completed_ms=1,
            start_sequence_id=1,
        )
        await opened.store.delete(path_of(2, in_progress=True))
        await opened.store.create(path_of(2), encode_segment(done))
        await opened.store.put(MAX_TXID, b"7")
        assert await kinds(opened) == [(FindingKind.LEDGER_OPEN, done.name)]
        assert await repaired(opened) == [FindingKind.LEDGER_OPEN, FindingKind.LAST_RECORD_WRONG]
        assert await read_all(opened.namespace, "log") == [b"0", b"x"]


async def test_nodes_that_do_not_parse_and_wrong_names_are_told(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await write_segments(opened.namespace, "log", 3)
        await opened.store.put(path_of(1), b"garbage")
        await replace(opened, 3, segment_seqno=4)
        found = dict(await kinds(opened))
        assert found[FindingKind.SEGMENT_UNREADABLE] == segment_name(1, in_progress=False)
        assert found[FindingKind.NAME_WRONG] == segment_name(3, in_progress=False)
        assert (await opened.namespace.repair.apply("log")).done == ()


async def test_a_missing_node_and_another_layout_are_told(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await write_segments(opened.namespace, "log", 1)
        await opened.store.put(paths_of("/ns", "log").version_path, b"\0\0\0\7")
        assert await kinds(opened) == [(FindingKind.LAYOUT_WRONG, "version")]
        await opened.store.delete(MAX_TXID)
        ((kind, node),) = await kinds(opened)
        assert (kind, node) == (FindingKind.NODE_MISSING, "maxtxid")


async def test_a_log_of_another_layout_is_only_looked_at(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await write_segments(opened.namespace, "log", 1)
        await opened.store.put(MAX_TXID, b"?")
        await opened.store.put(paths_of("/ns", "log").version_path, b"\0\0\0\7")
        check = await opened.namespace.repair.check("log")
        found = [(each.kind, each.repair) for each in check.findings]
        assert found == [(FindingKind.LAYOUT_WRONG, ""), (FindingKind.MAX_TXID_WRONG, "")]
        assert (await opened.namespace.repair.apply("log")).done == ()
        assert (await opened.store.get(MAX_TXID)).value == b"?"


async def test_a_promotion_that_begins_during_a_repair_stops_it(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await write_segments(opened.namespace, "log", 1)
        await opened.store.put(MAX_TXID, b"?")

        async def hand_over(kind: str, _path: str) -> None:
            if kind == "commit":
                opened.store.before = quiet
                await opened.store.put(paths_of("/ns", "log").version_path, HANDED_OVER)

        quiet = opened.store.before
        opened.store.before = hand_over
        with pytest.raises(dlog.LogFencedError, match="during the repair"):
            await opened.namespace.repair.apply("log")
        assert (await opened.store.get(MAX_TXID)).value == b"?"


@pytest.mark.parametrize("moment", [f"{PARENT}/inprogress", "/ledgers/"], ids=["nodes", "ledgers"])
async def test_a_segment_that_is_completed_during_a_check_is_no_finding(
    cluster: DictCluster, moment: str
) -> None:
    async with open_on(cluster) as opened, open_on(cluster) as other:
        await write_segments(opened.namespace, "log", 1)
        async with opened.namespace.open_writer("log") as writer:
            await writer.append(b"1", txid=9)
            done: list[str] = []

            async def roll(kind: str, path: str) -> None:
                if path.startswith(moment) and kind == "get" and not done:
                    done.append(path)
                    await writer.aclose()

            other.store.after = roll
            check = await other.namespace.repair.check("log", read_ledgers=moment == "/ledgers/")
            assert check.findings == ()
            assert done


async def test_a_repair_that_is_overtaken_changes_nothing(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await write_segments(opened.namespace, "log", 2)
        await opened.store.put(MAX_TXID, b"0")

        async def overtake(kind: str, _path: str) -> None:
            if kind == "commit":
                opened.store.before = quiet
                await opened.store.put(PARENT, b"2")

        quiet = opened.store.before
        opened.store.before = overtake
        with pytest.raises(dlog.LogFencedError, match="during the repair"):
            await opened.namespace.repair.apply("log")
        assert (await opened.store.get(MAX_TXID)).value == b"0"


async def damage_all(opened: Opened) -> None:
    await write_segments(opened.namespace, "log", 3)
    await replace(opened, 1, record_count=0, last_entry_id=-1, last_slot_id=-1)
    twin = await stored(opened, path_of(2))
    await opened.store.create(
        path_of(2, in_progress=True),
        encode_segment(LogSegment(segment_seqno=2, ledger_id=twin.ledger_id, first_txid=1)),
    )
    await leave_in_progress(opened, 3, b"late", first_txid=9)
    await leave_in_progress(opened, 4, b"before", first_txid=8)
    await opened.store.put(PARENT, b"1")
    await opened.store.put(MAX_TXID, b"")


@pytest.mark.slow
async def test_a_repair_that_is_cut_anywhere_is_finished_by_the_next(
    autojump_clock: trio.testing.MockClock,
) -> None:
    for cut in range(30):
        async with open_cluster() as cluster:
            async with open_on(cluster) as opened:
                await damage_all(opened)
                opened.store.writes_left = cut
                try:
                    await opened.namespace.repair.apply("log")
                except dlog.LogUnavailableError:
                    pass
                is_finished = not opened.store.is_cut
            async with open_on(cluster) as after:
                await repaired(after)
                records = await read_all(after.namespace, "log")
                assert records == [b"0", b"1", b"2", b"before", b"late"]
        if is_finished:
            return
    raise AssertionError("the repair never ended")
