"""Logs that are promoted while they are written and read.

Inside: the two namespaces of a process, the operator that promotes, resumes, undoes and purges, the rules of
both sides. Not inside: writers and readers, which are those of every world; records
(``dlog.testing.history``).
Always: a rule uses the nodes of both sides, no decision of the library. Both sides are in one metadata store
and on the same bookies, so a ledger id belongs to one side.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING
from unittest.mock import patch

import attrs
import trio

from dlog.namespace_handle import Namespace
from dlog.promotion import nodes as promotion_nodes
from dlog.promotion import promoter
from dlog.promotion.record import SourcePhase, SourceRecord, decode_source
from ledger.metadata_store.store import Node as StoredNode
from namespace.log_metadata import LAYOUT_VERSION
from namespace.segments.segment import LogSegment, TruncationStatus, decode_segment, is_segment_name
from tests.fakes.log_paths import paths_of
from tests.simulation.streams.process import SOURCE, STREAMS, TARGET_URI, StreamProcess

if TYPE_CHECKING:
    from tests.simulation.streams.world import StreamWorld


class PromoterProcess(StreamProcess):
    """Promotes the log, goes on with it, gives it up, deletes what is left at the source."""

    async def work(self, namespace: Namespace) -> None:
        rng, world, log = self.rng, self.world, self.log
        await self.pause(rng.uniform(0.2, 2.5))
        if world.is_ending:
            return
        status = await self.do("ask for the promotion", partial(namespace.promotion.status, log))
        if status is None:
            await self._do_for_a_while("promote", partial(namespace.promotion.promote, log, TARGET_URI))
        elif status.phase == SourcePhase.DONE.value:
            if not status.is_purged and rng.random() < 0.4:
                await self._do_for_a_while("purge promoted log", partial(namespace.promotion.purge, log))
        elif status.phase == SourcePhase.UNDOING.value or rng.random() < 0.5:
            await self._do_for_a_while("undo promotion", partial(namespace.promotion.undo, log))
        else:
            await self._do_for_a_while("resume promotion", partial(namespace.promotion.promote, log))

    async def _do_for_a_while(self, what: str, call: Callable[[], Awaitable[object]]) -> None:
        """Often the operator interrupts what it began; another call goes on with it, or undoes it."""
        patience_s = self.rng.choice([0.02, 0.08, 0.3]) if self.rng.random() < 0.6 else math.inf
        ended = False

        async def run() -> None:
            nonlocal ended
            with trio.move_on_after(patience_s):
                await call()
                ended = True

        await self.do(what, run)
        self.world.counts[what if ended else f"{what}, interrupted"] += 1


async def settle(namespace: Namespace, log: str, rng: random.Random) -> None:
    """Resume or undo an interrupted promotion. Faults have stopped."""
    status = await namespace.promotion.status(log)
    if status is None or status.phase == SourcePhase.DONE.value:
        return
    if status.phase == SourcePhase.UNDOING.value or (
        status.phase == SourcePhase.COPYING.value and rng.random() < 0.5
    ):
        await namespace.promotion.undo(log)
    else:
        await namespace.promotion.promote(log)


# --- rules ---


def at_most_one_side_takes_records(here: bytes | None, there: bytes | None) -> str | None:
    """Judges the version nodes, which every writer reads before it writes: of the source, of the target."""
    if here == there == LAYOUT_VERSION:
        return "a writer may open it at the source and at the target"
    return None


def an_original_is_kept_until_the_target_takes_records(
    segment: LogSegment, record: SourceRecord | None, there: bytes | None, *, has_records: bool
) -> str | None:
    """Judges the deletion of a segment of the source, or of its ledger."""
    if segment.truncation is TruncationStatus.TRUNCATED or not has_records:
        return None
    if record is not None and record.phase is SourcePhase.DONE and there == LAYOUT_VERSION:
        return None
    return f"segment {segment.segment_seqno} of the source is deleted, and the target is not open"


def a_copy_is_kept_once_it_takes_records(
    segment: LogSegment, there: bytes | None, *, has_records: bool
) -> str | None:
    """Judges the deletion of a segment of the target, or of its ledger."""
    if segment.truncation is TruncationStatus.TRUNCATED or not has_records or there != LAYOUT_VERSION:
        return None
    return f"segment {segment.segment_seqno} is deleted at the target, which takes records"


# --- observing nodes ---


@attrs.frozen
class Sides:
    """The nodes of both sides in the store now."""

    world: StreamWorld

    def _value(self, path: str) -> StoredNode | None:
        return self.world.tree.value_now(path)

    def version(self, namespace_path: str, log: str) -> bytes | None:
        node = self._value(paths_of(namespace_path, log).version_path)
        return None if node is None else node.value

    def record(self, log: str) -> SourceRecord | None:
        path = promotion_nodes.moved_to_path(paths_of(SOURCE, log))
        node = self._value(path)
        return None if node is None else decode_source(node.value, node.stat.version, path)

    def segments(self, namespace_path: str, log: str) -> Iterator[LogSegment]:
        parent = paths_of(namespace_path, log).segments_path
        node = self.world.tree._nodes.get(parent)
        for name in sorted(() if node is None else node.children):
            found = self._value(f"{parent}/{name}")
            if found is not None and is_segment_name(name):
                yield decode_segment(found.value, name)

    def node_changed(self, log: str, path: str, before: StoredNode | None, after: StoredNode | None) -> None:
        """Judge a change of any node of a log."""
        world = self.world
        for side in (SOURCE, STREAMS):
            if path == paths_of(side, log).version_path:
                complaint = at_most_one_side_takes_records(
                    self.version(SOURCE, log), self.version(STREAMS, log)
                )
                if complaint is not None:
                    world.violate(at_most_one_side_takes_records.__name__, f"{log}: {complaint}")
            elif before is not None and after is None and self._is_segment(side, log, path):
                segment = decode_segment(before.value)
                if all(each.ledger_id != segment.ledger_id for each in self.segments(side, log)):
                    self._deleted(side, log, segment)
        if path == promotion_nodes.moved_to_path(paths_of(SOURCE, log)) and after is not None:
            record = decode_source(after.value, 0, path)
            world.trace.note("store", f"{log}: {record}"[:200])
            if record.phase is SourcePhase.DONE and not record.is_purged:
                world.counts["log promoted"] += 1

    @staticmethod
    def _is_segment(side: str, log: str, path: str) -> bool:
        parent, _, name = path.rpartition("/")
        return parent == paths_of(side, log).segments_path and is_segment_name(name)

    def ledger_deleted(self, log: str, ledger_id: int) -> None:
        """Judge the deletion of a ledger that a segment names."""
        for side in (SOURCE, STREAMS):
            for segment in self.segments(side, log):
                if segment.ledger_id == ledger_id:
                    self._deleted(side, log, segment)

    def _deleted(self, side: str, log: str, segment: LogSegment) -> None:
        first, there = segment.first_dlsn, self.version(STREAMS, log)
        has_records = any(first <= each < first.next_segment() for each in self.world.life(log).dlsns)
        if side == SOURCE:
            rule: Callable[..., str | None] = an_original_is_kept_until_the_target_takes_records
            complaint = rule(segment, self.record(log), there, has_records=has_records)
        else:
            rule = a_copy_is_kept_once_it_takes_records
            complaint = rule(segment, there, has_records=has_records)
        if complaint is not None:
            self.world.violate(rule.__name__, f"{log}: {complaint}")


@contextmanager
def repeatable_ids(seed: int) -> Iterator[None]:
    """A block in which promotions get their ids from the seed."""
    rng = random.Random(f"promotions {seed}")

    class Ids:
        @staticmethod
        def uuid4() -> Ids:
            return Ids()

        @property
        def hex(self) -> str:
            return f"{rng.getrandbits(128):032x}"

    with patch.object(promoter, "uuid", Ids):
        yield
