"""Lists of segments: their order, and the detection of another log of the same name."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import LogMetadataError, LogNotFoundError
from ledger.metadata_store.memory import MemoryStore, MemoryTree
from ledger.metadata_store.store import Node
from namespace.log_metadata import LogMetadata
from namespace.log_nodes import LogNodes
from namespace.logs import create_log, delete_log_nodes, open_log
from namespace.segment_nodes import complete_segment, delete_segment, list_segments, start_segment
from namespace.segments.segment import LogSegment
from namespace.segments.segment_list import check_same_log, sort_segments

NS = "/ns"


def segment(seqno: int, *, ledger_id: int = 0, first_txid: int = 0) -> LogSegment:
    return LogSegment(segment_seqno=seqno, ledger_id=ledger_id or 100 + seqno, first_txid=first_txid)


def done(started: LogSegment) -> LogSegment:
    return started.completed(
        last_txid=5,
        record_count=3,
        last_entry_id=2,
        last_slot_id=0,
        completed_ms=1_500_000_000_000,
        start_sequence_id=0,
    )


class Writer:
    """Changes a log as writers do; its store counts the reads."""

    def __init__(self) -> None:
        self.store = CountingStore(MemoryTree())
        self.ledger_ids = itertools.count(1)
        self.generation = 0

    async def create(self) -> None:
        await create_log(LogNodes(self.store, NS, "log"))
        self.metadata: LogMetadata = await open_log(LogNodes(self.store, NS, "log"))
        self.completed: list[LogSegment] = []
        self.open: LogSegment | None = None
        self.generation += 1

    async def start(self) -> None:
        if self.open is None:
            seqno = self.completed[-1].segment_seqno + 1 if self.completed else 1
            self.open = segment(seqno, ledger_id=next(self.ledger_ids), first_txid=self.metadata.max_txid)
            self.metadata = await start_segment(self.metadata, self.open)

    async def complete(self) -> None:
        await self.start()
        assert self.open is not None
        self.completed.append(done(self.open))
        self.metadata = await complete_segment(self.metadata, self.open, self.completed[-1])
        self.open = None

    async def roll(self) -> None:
        await self.complete()
        await self.start()

    async def die_before_the_first_entry(self) -> None:
        """The next writer deletes the empty segment and uses its number again."""
        await self.start()
        assert self.open is not None
        await delete_segment(LogNodes(self.store, NS, "log"), self.open)
        self.open = None
        await self.start()

    async def purge(self) -> None:
        if len(self.completed) > 1:
            await delete_segment(LogNodes(self.store, NS, "log"), self.completed.pop(0))

    async def create_again(self) -> None:
        for each in [*self.completed, *([self.open] if self.open else [])]:
            await delete_segment(LogNodes(self.store, NS, "log"), each)
        await delete_log_nodes(LogNodes(self.store, NS, "log"))
        await self.create()

    async def listed(self, known: Sequence[LogSegment] = ()) -> tuple[LogSegment, ...]:
        return (await list_segments(LogNodes(self.store, NS, "log"), known=known)).segments


class CountingStore(MemoryStore):
    reads = 0

    async def get(self, path: str, *, watch: trio.Event | None = None) -> Node:
        self.reads += 1
        return await super().get(path, watch=watch)


async def new_log() -> Writer:
    writer = Writer()
    await writer.store.create(NS)
    await writer.create()
    return writer


async def test_a_log_created_again_with_as_many_segments_is_detected() -> None:
    writer = await new_log()
    for _ in range(2):
        await writer.complete()
    known = await writer.listed()
    await writer.create_again()
    for _ in range(3):
        await writer.complete()
    with pytest.raises(
        LogMetadataError, match=r"logrecs_0{17}2 had ledger 2 and has 4 now; open a new reader"
    ):
        await writer.listed(known)
    await writer.store.aclose()


@pytest.mark.parametrize("completed", [0, 1])
async def test_a_log_created_again_with_fewer_segments_is_detected(completed: int) -> None:
    writer = await new_log()
    for _ in range(2):
        await writer.roll()
    known = await writer.listed()
    await writer.create_again()
    for _ in range(completed):
        await writer.roll()
    with pytest.raises((LogMetadataError, LogNotFoundError), match="deleted"):
        await writer.listed(known)
    await writer.store.aclose()


async def test_listing_again_reads_only_new_segments() -> None:
    writer = await new_log()
    for _ in range(3):
        await writer.roll()
    known = await writer.listed()
    writer.store.reads = 0
    assert await writer.listed(known) == known
    assert writer.store.reads == 1, "only the segment in progress is read"
    await writer.roll()
    writer.store.reads = 0
    known = await writer.listed(known)
    assert writer.store.reads == 2, "the segment completed since and the one in progress are read"
    await writer.complete()
    known, writer.store.reads = await writer.listed(known), 0
    assert await writer.listed(known) == known
    assert writer.store.reads == 1, (
        "without a segment in progress, one is read to check that the log is the same"
    )
    await writer.store.aclose()


STEPS = ("roll", "complete", "die_before_the_first_entry", "purge", "create_again", "list")


@given(steps=st.lists(st.sampled_from(STEPS), max_size=20))
def test_known_segments_change_no_list_and_detect_another_log(steps: list[str]) -> None:
    async def main() -> None:
        writer = await new_log()
        known: tuple[LogSegment, ...] = ()
        generation = writer.generation
        for step in [*steps, "list"]:
            if step != "list":
                await getattr(writer, step)()
                continue
            complete = await writer.listed()
            newest = max((each.segment_seqno for each in known if not each.in_progress), default=0)
            try:
                assert await writer.listed(known) == complete
                # Another log is not detected if all of its segments are newer than all known ones.
                assert generation == writer.generation or all(s.segment_seqno > newest for s in complete)
                assert generation == writer.generation or newest == 0 or complete
            except (LogMetadataError, LogNotFoundError):
                assert generation != writer.generation
            known, generation = complete, writer.generation
        await writer.store.aclose()

    trio.run(main)


def test_a_segment_of_the_oldest_format_is_known_by_its_name() -> None:
    old = attrs.evolve(done(segment(0, ledger_id=1)), version=1, stored_name="logrecs_1_5")
    check_same_log("log", [old], [old], [old])
    other = attrs.evolve(old, ledger_id=2)
    with pytest.raises(LogMetadataError, match="logrecs_1_5 had ledger 1 and has 2"):
        check_same_log("log", [old], [other], [other])


def test_segments_without_a_number_are_sorted_by_their_txids() -> None:
    old = [attrs.evolve(done(segment(0, first_txid=txid)), version=1) for txid in (5, 1, 3)]
    assert [found.first_txid for found in sort_segments(old)] == [1, 3, 5]
    both = [done(segment(2)), segment(2), segment(1)]
    assert [(found.segment_seqno, found.in_progress) for found in sort_segments(both)] == [
        (1, True),
        (2, True),
        (2, False),
    ]
