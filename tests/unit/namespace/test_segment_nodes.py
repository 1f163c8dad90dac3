from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest
import trio

from dlog.errors import (
    EndOfStreamError,
    LogFencedError,
    LogMetadataError,
    LogNotFoundError,
    SegmentGapError,
    TxidOutOfOrderError,
)
from ledger.metadata_store.errors import ConnectionLostError
from ledger.metadata_store.memory import MemoryStore, MemoryTree, open_memory_store
from ledger.metadata_store.store import Children, MetadataStore, Node, Operation
from namespace.dlsn import DLSN
from namespace.log_metadata import LogMetadata
from namespace.log_nodes import LogNodes
from namespace.logs import create_log, list_logs, open_log
from namespace.segment_nodes import (
    complete_segment,
    delete_segment,
    list_segments,
    record_allocation,
    set_truncation,
    start_segment,
)
from namespace.segments.segment import MAX_TXID, LogSegment, encode_segment
from tests.fakes.log_paths import paths_of

NS = "/ns"


async def new_log(store: MetadataStore, name: str = "log") -> LogMetadata:
    if await store.exists(NS) is None:
        await store.create(NS)
    await create_log(LogNodes(store, NS, name))
    return await open_log(LogNodes(store, NS, name))


def segment(seqno: int, *, ledger_id: int = 0, first_txid: int = 0) -> LogSegment:
    return LogSegment(segment_seqno=seqno, ledger_id=ledger_id or 100 + seqno, first_txid=first_txid)


def done(started: LogSegment, *, last_txid: int = 5) -> LogSegment:
    return started.completed(
        last_txid=last_txid,
        record_count=3,
        last_entry_id=2,
        last_slot_id=0,
        completed_ms=1_500_000_000_000,
        start_sequence_id=0,
    )


async def write_segment(
    store: MetadataStore, metadata: LogMetadata, seqno: int, *, last_txid: int = 5
) -> LogMetadata:
    started = segment(seqno, first_txid=metadata.max_txid)
    metadata = await start_segment(metadata, started)
    return await complete_segment(metadata, started, done(started, last_txid=last_txid))


async def snapshot(store: MetadataStore, path: str = NS) -> dict[str, bytes]:
    nodes = {path: (await store.get(path)).value}
    for name in (await store.children(path)).names:
        nodes |= await snapshot(store, f"{path}/{name}")
    return nodes


class Contended(MemoryStore):
    """Calls ``rival`` just before the first commit."""

    def __init__(self, tree: MemoryTree, rival: object) -> None:
        super().__init__(tree)
        self.rival = rival

    async def commit(self, operations: Sequence[Operation]) -> None:
        rival, self.rival = self.rival, None
        if rival is not None:
            await rival()  # type: ignore[operator]
        await super().commit(operations)


async def test_a_segment_lives_from_allocation_to_deletion() -> None:
    async with open_memory_store(MemoryTree()) as store:
        metadata = await new_log(store)
        metadata = await record_allocation(metadata, 101)
        assert (await open_log(LogNodes(store, NS, "log"))).allocated_ledger_id == 101
        started = segment(1, first_txid=3)
        metadata = await start_segment(metadata, started)
        assert metadata == await open_log(LogNodes(store, NS, "log"))
        assert (metadata.allocated_ledger_id, metadata.max_segment_seqno, metadata.max_txid) == (None, 1, 0)
        assert (await list_segments(LogNodes(store, NS, "log"))).segments == (started,)
        completed = done(started, last_txid=9)
        metadata = await complete_segment(metadata, started, completed)
        assert metadata == await open_log(LogNodes(store, NS, "log"))
        assert (metadata.max_segment_seqno, metadata.max_txid) == (1, 9)
        assert (await list_segments(LogNodes(store, NS, "log"))).segments == (completed,)
        await delete_segment(LogNodes(store, NS, "log"), completed)
        await delete_segment(LogNodes(store, NS, "log"), completed)
        assert (await list_segments(LogNodes(store, NS, "log"))).segments == ()


async def test_the_greatest_txid_never_shrinks_and_sealing_sets_it_to_the_maximum() -> None:
    async with open_memory_store(MemoryTree()) as store:
        metadata = await write_segment(store, await new_log(store), 1, last_txid=9)
        started = segment(2, first_txid=9)
        metadata = await start_segment(metadata, started)
        metadata = await complete_segment(metadata, started, done(started, last_txid=4))
        assert metadata.max_txid == 9
        sealing = segment(3, first_txid=MAX_TXID)
        with pytest.raises(ValueError, match="invalid transaction id"):
            await start_segment(metadata, sealing)
        metadata = await start_segment(metadata, sealing, sealing=True)
        metadata = await complete_segment(metadata, sealing, done(sealing, last_txid=MAX_TXID))
        assert metadata.sealed
        with pytest.raises(EndOfStreamError):
            await start_segment(metadata, segment(4, first_txid=10))


async def test_a_first_txid_below_the_greatest_is_refused_and_an_equal_one_accepted() -> None:
    async with open_memory_store(MemoryTree()) as store:
        metadata = await write_segment(store, await new_log(store), 1, last_txid=9)
        before = await snapshot(store)
        with pytest.raises(TxidOutOfOrderError, match="txid 2 after txid 9") as caught:
            await start_segment(metadata, segment(2, first_txid=2))
        assert (caught.value.txid, caught.value.last_txid) == (2, 9)
        with pytest.raises(ValueError, match="-1"):
            await start_segment(metadata, segment(2, first_txid=-1))
        assert await snapshot(store) == before
        await start_segment(metadata, segment(2, first_txid=9))


async def test_an_overtaken_writer_changes_nothing() -> None:
    async with open_memory_store(MemoryTree()) as store:
        opened = await new_log(store)
        mine = segment(1)
        stale = await start_segment(opened, mine)
        fresh = await open_log(LogNodes(store, NS, "log"))
        fresh = await complete_segment(fresh, mine, done(mine))
        await start_segment(fresh, segment(2, first_txid=7))
        before = await snapshot(store)
        for call in (
            record_allocation(opened, 55),
            start_segment(stale, segment(2, first_txid=7)),
            start_segment(stale, segment(3, first_txid=7)),
            complete_segment(stale, mine, done(mine)),
            set_truncation(stale, [done(mine).truncated()]),
        ):
            with pytest.raises(LogFencedError, match="was taken over from this writer"):
                await call
        assert await snapshot(store) == before


async def test_a_segment_completed_by_recovery_cannot_be_completed_again_by_its_old_writer() -> None:
    async with open_memory_store(MemoryTree()) as store:
        mine = segment(1)
        stale = await start_segment(await new_log(store), mine)
        await complete_segment(await open_log(LogNodes(store, NS, "log")), mine, done(mine))
        with pytest.raises(LogFencedError):
            await complete_segment(stale, mine, done(mine, last_txid=99))
        assert (await list_segments(LogNodes(store, NS, "log"))).segments == (done(mine),)


async def test_a_writer_whose_segment_was_recovered_cannot_start_the_next() -> None:
    async with open_memory_store(MemoryTree()) as store:  # a recovery does not change the allocation
        mine = segment(1)
        stale = await start_segment(await new_log(store), mine)
        await complete_segment(await open_log(LogNodes(store, NS, "log")), mine, done(mine))
        before = await snapshot(store)
        with pytest.raises(LogFencedError):
            await start_segment(stale, segment(2, first_txid=7))
        assert await snapshot(store) == before


async def test_a_lost_connection_raises_the_error_of_the_store() -> None:
    async with open_memory_store(MemoryTree()) as store:
        metadata = await new_log(store)
        store.suspend()
        for call in (
            start_segment(metadata, segment(1)),
            open_log(LogNodes(store, NS, "log")),
            list_segments(LogNodes(store, NS, "log")),
            list_logs(store, NS),
        ):
            with pytest.raises(ConnectionLostError):
                await call


async def test_completing_a_segment_checks_the_stored_number() -> None:
    async with open_memory_store(MemoryTree()) as store:
        metadata = await new_log(store)
        first, second, third = segment(1), segment(2), segment(3)
        metadata = await start_segment(metadata, first)
        metadata = await start_segment(metadata, second)
        later = await start_segment(metadata, third)
        with pytest.raises(LogMetadataError, match=r"segment 1 not completed: .* is 3"):
            await complete_segment(later, first, done(first))
        assert len((await list_segments(LogNodes(store, NS, "log"))).segments) == 3


async def test_the_deletion_of_an_empty_segment_keeps_the_next_one_of_its_number() -> None:
    async with open_memory_store(MemoryTree()) as store:
        empty = segment(1, ledger_id=10)
        await start_segment(await new_log(store), empty)
        await delete_segment(LogNodes(store, NS, "log"), empty)
        again = segment(1, ledger_id=11)
        await start_segment(await open_log(LogNodes(store, NS, "log")), again)
        with pytest.raises(LogFencedError, match="another ledger"):
            await delete_segment(LogNodes(store, NS, "log"), empty)
        assert (await list_segments(LogNodes(store, NS, "log"))).segments == (again,)


async def test_a_deletion_overtaken_after_its_read_keeps_the_new_segment() -> None:
    tree = MemoryTree()
    async with open_memory_store(tree) as other:
        empty, again = segment(1, ledger_id=10), segment(1, ledger_id=11)
        await start_segment(await new_log(other), empty)

        async def replace() -> None:
            await delete_segment(LogNodes(other, NS, "log"), empty)
            await start_segment(await open_log(LogNodes(other, NS, "log")), again)

        store = Contended(tree, replace)
        with pytest.raises(LogFencedError, match="another ledger"):
            await delete_segment(LogNodes(store, NS, "log"), empty)
        assert (await list_segments(LogNodes(other, NS, "log"))).segments == (again,)
        await store.aclose()


async def test_truncation_marks_are_set_all_or_none() -> None:
    async with open_memory_store(MemoryTree()) as store:
        metadata = await write_segment(store, await new_log(store), 1)
        metadata = await write_segment(store, metadata, 2)
        metadata = await write_segment(store, metadata, 3)
        first, second, third = (await list_segments(LogNodes(store, NS, "log"))).segments
        marked = [first.truncated(), second.partially_truncated(DLSN(2, 1, 0))]
        await set_truncation(metadata, marked)
        assert (await list_segments(LogNodes(store, NS, "log"))).segments == (*marked, third)
        await delete_segment(LogNodes(store, NS, "log"), marked[0])
        before = await snapshot(store)
        with pytest.raises(LogFencedError):
            await set_truncation(metadata, [third.truncated(), marked[0]])
        assert await snapshot(store) == before
        await set_truncation(metadata, [])


async def test_a_gap_in_the_list_is_an_error_unless_gaps_are_allowed() -> None:
    async with open_memory_store(MemoryTree()) as store:
        metadata = await new_log(store)
        for seqno in (1, 2, 3):
            metadata = await write_segment(store, metadata, seqno)
        await store.delete(paths_of(NS, "log").segment_path("logrecs_000000000000000002"))
        with pytest.raises(SegmentGapError, match=r"\(number 3\) follows logrecs_0+1 \(1\)"):
            await list_segments(LogNodes(store, NS, "log"))
        listed = await list_segments(LogNodes(store, NS, "log"), gaps_ok=True)
        assert [found.segment_seqno for found in listed.segments] == [1, 3]


async def test_purging_from_the_front_leaves_no_gap() -> None:
    async with open_memory_store(MemoryTree()) as store:
        metadata = await new_log(store)
        for seqno in (1, 2, 3):
            metadata = await write_segment(store, metadata, seqno)
        await delete_segment(
            LogNodes(store, NS, "log"), (await list_segments(LogNodes(store, NS, "log"))).segments[0]
        )
        assert [
            found.segment_seqno for found in (await list_segments(LogNodes(store, NS, "log"))).segments
        ] == [2, 3]


async def test_the_watch_of_a_list_fires_on_each_change() -> None:
    async with open_memory_store(MemoryTree()) as store:
        metadata = await new_log(store)
        started = segment(1)

        async def start() -> None:
            nonlocal metadata
            metadata = await start_segment(metadata, started)

        async def complete() -> None:
            nonlocal metadata
            metadata = await complete_segment(metadata, started, done(started))

        versions = []
        for change in (
            start,
            complete,
            lambda: set_truncation(metadata, [done(started).truncated()]),
            lambda: delete_segment(LogNodes(store, NS, "log"), done(started).truncated()),
        ):
            watch = trio.Event()
            versions.append((await list_segments(LogNodes(store, NS, "log"), watch=watch)).child_version)
            await change()
            assert watch.is_set()
        assert versions == sorted(set(versions))


class CompletesWhileListing(MemoryStore):
    """Completes the segment in progress after the names are listed and before the nodes are read."""

    act: object = None

    async def children(self, path: str, *, watch: trio.Event | None = None) -> Children:
        children = await super().children(path, watch=watch)
        act, self.act = self.act, None
        if act is not None:
            await act()  # type: ignore[operator]
        return children


async def test_a_segment_completed_during_the_listing_is_no_gap() -> None:
    tree = MemoryTree()
    async with open_memory_store(tree) as other:
        metadata = await write_segment(other, await new_log(other), 1)
        second, third = segment(2, first_txid=6), segment(3, first_txid=6)
        metadata = await start_segment(metadata, second)
        metadata = await start_segment(metadata, third)
        store = CompletesWhileListing(tree)
        store.act = lambda: complete_segment(metadata, second, done(second))
        listed = await list_segments(LogNodes(store, NS, "log"))
        assert [(found.segment_seqno, found.in_progress) for found in listed.segments] == [
            (1, False),
            (2, False),
            (3, True),
        ]
        await store.aclose()


class Counting(MemoryStore):
    reads = 0

    async def get(self, path: str, *, watch: trio.Event | None = None) -> Node:
        self.reads += 1
        return await super().get(path, watch=watch)


async def test_of_known_segments_only_those_in_progress_are_read_again() -> None:
    store = Counting(MemoryTree())
    metadata = await new_log(store)
    for seqno in (1, 2, 3):
        metadata = await write_segment(store, metadata, seqno)
    await start_segment(metadata, segment(4, first_txid=5))
    first = await list_segments(LogNodes(store, NS, "log"))
    store.reads = 0
    assert await list_segments(LogNodes(store, NS, "log"), known=first.segments) == first
    assert store.reads == 1
    await store.aclose()


async def test_a_damaged_segment_is_named() -> None:
    async with open_memory_store(MemoryTree()) as store:
        await new_log(store)
        path = paths_of(NS, "log").segment_path("logrecs_000000000000000001")
        await store.create(path, b"rubbish")
        with pytest.raises(LogMetadataError, match="logrecs_000000000000000001"):
            await list_segments(LogNodes(store, NS, "log"))
        assert (await store.get(path)).value == b"rubbish"


async def test_other_children_of_the_segments_parent_are_ignored() -> None:
    async with open_memory_store(MemoryTree()) as store:
        await new_log(store)
        await store.create(f"{paths_of(NS, 'log').segments_path}/odd")
        assert (await list_segments(LogNodes(store, NS, "log"))).segments == ()


async def test_segments_with_legacy_names_are_listed_and_completed_under_them() -> None:
    async with open_memory_store(MemoryTree()) as store:
        metadata = await new_log(store)
        started = segment(1, first_txid=100)
        await store.create(paths_of(NS, "log").segment_path("inprogress_64"), encode_segment(started))
        metadata = attrs.evolve(metadata, max_segment_seqno=1)
        (found,) = (await list_segments(LogNodes(store, NS, "log"))).segments
        assert found.name == "inprogress_64"
        await complete_segment(metadata, found, done(found, last_txid=109))
        (found,) = (await list_segments(LogNodes(store, NS, "log"))).segments
        assert found.name == "logrecs_000000000000000001"


async def test_listing_a_missing_log_raises() -> None:
    async with open_memory_store(MemoryTree()) as store:
        with pytest.raises(LogNotFoundError):
            await list_segments(LogNodes(store, NS, "log"))
