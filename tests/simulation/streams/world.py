"""A world with logs: writers, readers and operators of ``dlog`` over the cluster of every world.

Inside: ``StreamWorld``: its clients, the lives of its logs, the changes of their nodes, the last look at
them. Not inside: the cluster (``tests.simulation.world``), the clients (``writers``, ``readers``,
``operators``), the rules (``rules``, ``dlog.testing.history``).
Always: a life of a log begins and ends with its root node, so a log created again is another one.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import TypeVar

import attrs
import trio

from dlog.errors import CorruptLogError, DLogError, LogMetadataError, LogNotFoundError, RecordOutcome
from dlog.namespace_handle import Namespace
from dlog.read.positioning import EARLIEST
from dlog.testing.history import History, LogHistory
from ledger.catalog.paths import ledger_id_of
from ledger.client import open_ledger_client
from ledger.context import ClientSeams
from ledger.metadata_store.store import Node as StoredNode
from namespace.dlsn import DLSN
from namespace.segments.segment import LogSegment, TruncationStatus, decode_segment, is_segment_name
from tests.fakes.log_paths import paths_of
from tests.simulation.bookies import ROOT
from tests.simulation.clients import ClientProcess, client_config
from tests.simulation.shape import Shape
from tests.simulation.streams.large import small_parts
from tests.simulation.streams.operators import OperatorProcess
from tests.simulation.streams.process import SOURCE, STREAMS, StreamProcess, namespace_of, watch_ledgers
from tests.simulation.streams.promotion import PromoterProcess, Sides, repeatable_ids, settle
from tests.simulation.streams.readers import LogReaderProcess
from tests.simulation.streams.rules import (
    RULES_OF_NODES,
    Requests,
    View,
    a_cursor_moves_forward_to_a_commit,
    a_record_has_its_key_and_headers,
    a_segment_moves_only_to_a_complete_copy,
    a_truncation_marks_every_segment_before_it,
    only_truncated_ledgers_are_deleted,
)
from tests.simulation.streams.shape import StreamShape
from tests.simulation.streams.sharing import (
    records_of_a_producer_are_stored_once_and_in_order,
    repeatable_producers,
)
from tests.simulation.streams.writers import LogWriterProcess, Plan
from tests.simulation.world import World

RETRY_S = 90.0
T = TypeVar("T")


class StreamWorld(World):
    """The cluster, its logs and their history."""

    draw_shape: Callable[..., Shape] = StreamShape.draw
    shape: StreamShape

    def _make_clients(self) -> dict[str, ClientProcess]:
        self.logs_history = History()
        self.requests: dict[LogHistory, Requests] = {}
        self.ruins: dict[str, LogHistory] = {}  # logs whose deletion has begun and has not ended: not judged
        self.past_ruins: dict[str, list[LogHistory]] = {log: [] for log in self.logs}  # and the present ones
        self.plans: dict[str, Plan] = {log: Plan() for log in self.logs}
        self.completed: dict[tuple[int, str], LogSegment] = {}  # by life and node, as last seen
        self.is_recovered = False  # every log was, after the writers have ended
        self.stream_config = self.shape.namespace_config()
        self.sides = Sides(self)
        clients: dict[str, ClientProcess] = {}
        kinds: list[tuple[str, int, type[StreamProcess]]] = [
            ("w", self.shape.writers, LogWriterProcess),
            ("r", self.shape.readers, LogReaderProcess),
            ("o", self.shape.operators, PromoterProcess if self.shape.promotes else OperatorProcess),
        ]
        for log in self.logs:
            for letter, count, kind in kinds:
                for number in range(count):
                    name = f"{log}-{letter}{number}"
                    clients[name] = kind(self, name, random.Random(f"{name} {self.shape.seed}"), log)
        return clients

    @property
    def confirmed(self) -> int:
        return sum(
            each.outcome is RecordOutcome.DURABLE
            for lives in self.logs_history.logs.values()
            for life in lives
            for each in life.submissions
        )

    async def run(self) -> None:
        seed = self.shape.seed
        with (
            repeatable_ids(seed),
            small_parts() if self.shape.is_large else nullcontext(),
            repeatable_producers(seed) if self.shape.shares else nullcontext(),
        ):
            await super().run()

    async def _set_up(self, nursery: trio.Nursery) -> None:
        await super()._set_up(nursery)
        store = self.new_session(self.network.join("operator"))
        for path in (STREAMS, SOURCE) if self.shape.promotes else (STREAMS,):
            await store.create(path, b"", parents=True)
        store.abandon()

    def contend(self, name: str) -> None:
        client = self.clients.get(name)
        if isinstance(client, LogWriterProcess):
            for other in self.clients.values():
                if isinstance(other, LogWriterProcess) and other is not client and other.log == client.log:
                    other.kick()

    # --- the lives of logs ---

    def life(self, log: str) -> LogHistory:
        """The present life of a log."""
        return self.ruins.get(log) or self.logs_history.log(log)

    def life_number(self, log: str) -> int:
        """Which life it is, from 1."""
        self.logs_history.log(log)
        return len(self.logs_history.logs[log])

    def requests_of(self, life: LogHistory) -> Requests:
        return self.requests.setdefault(life, Requests())

    def check_history(self) -> None:
        """End the world if a rule of the history is violated."""
        for problem in self.logs_history.problems:
            self.violate(problem.rule.name.lower(), str(problem))

    # --- changes of nodes ---

    def _node_changed(self, path: str, before: StoredNode | None, after: StoredNode | None) -> None:
        super()._node_changed(path, before, after)
        ledger_id = ledger_id_of(ROOT, path)
        if ledger_id is not None and after is None:
            self.deleted.add(ledger_id)
            self._ledger_deleted(ledger_id)
        for log in self.logs:
            root = paths_of(STREAMS, log).root_path
            if self.shape.promotes:
                self.sides.node_changed(log, path, before, after)
            elif path == root and after is None:
                self.trace.note("store", f"{log} is deleted")
                self.counts["log deleted"] += 1
                self.logs_history.log(log)
                self.logs_history.deleted(log)
                self.ruins.pop(log, None)
            elif path.startswith(f"{paths_of(STREAMS, log).segments_path}/"):
                self._segment_changed(log, path, before, after)
            elif path.startswith(f"{paths_of(STREAMS, log).subscribers_path}/"):
                self._cursor_changed(log, path, before, after)

    def _segment_changed(
        self, log: str, path: str, before: StoredNode | None, after: StoredNode | None
    ) -> None:
        if not is_segment_name(path.rpartition("/")[2]):
            return
        old = None if before is None else decode_segment(before.value)
        new = None if after is None else decode_segment(after.value)
        if new is None and old is not None:
            # Completing a segment renames its node.
            new = self.segments_now(log).get(old.ledger_id)
        if after is not None:
            self.trace.note("store", f"{log}: {new}"[:200])
        if new is not None and not new.in_progress:
            place = self.life_number(log), path
            seen, self.completed[place] = self.completed.get(place, new), new
            if seen.ledger_id != new.ledger_id:
                ledgers = (self.metadata_of(each.ledger_id) for each in (seen, new))
                complaint = a_segment_moves_only_to_a_complete_copy(new, *ledgers)
                if complaint is not None:
                    self.violate(a_segment_moves_only_to_a_complete_copy.__name__, f"{log}: {complaint}")
        view = self._view(log)
        for rule in RULES_OF_NODES:
            complaint = rule(old, new, view)
            if complaint is not None:
                self.violate(rule.__name__, f"{log}: {complaint}")
        if (
            view.requests.deletes
            and old is not None
            and new is None
            and old.truncation is not TruncationStatus.TRUNCATED
            and view.has_records(old)
        ):
            self._begin_ruin(log)

    def _begin_ruin(self, log: str) -> None:
        """A deletion has begun. If it is interrupted now, it may leave any part of the log."""
        if log not in self.ruins:
            self.trace.note("world", f"{log} is a ruin")
            self.counts["deletion that has begun"] += 1
            before = self.requests_of(self.logs_history.log(log))
            self.logs_history.deleted(log)
            ruin = self.ruins[log] = LogHistory(log, [])
            self.past_ruins[log].append(ruin)
            # A commit that was requested before may reach the store only now.
            self.requests[ruin] = Requests(deletes=True, commits=before.commits, placed=before.placed)

    def _ledger_deleted(self, ledger_id: int) -> None:
        for log in self.logs:
            segment = self.segments_now(log).get(ledger_id)
            if self.shape.promotes:
                self.sides.ledger_deleted(log, ledger_id)
            elif segment is not None:
                complaint = only_truncated_ledgers_are_deleted(segment, self._view(log))
                if complaint is not None:
                    self.violate(only_truncated_ledgers_are_deleted.__name__, f"{log}: {complaint}")

    def _cursor_changed(
        self, log: str, path: str, before: StoredNode | None, after: StoredNode | None
    ) -> None:
        old, new = (None if each is None else DLSN.from_text(each.value.decode()) for each in (before, after))
        name = path.rpartition("/")[2]
        self.trace.note("store", f"{log}: cursor {name} at {new}")
        complaint = a_cursor_moves_forward_to_a_commit(name, old, new, self._view(log))
        if complaint is not None:
            self.violate(a_cursor_moves_forward_to_a_commit.__name__, f"{log}: {complaint}")

    def segments_now(self, log: str) -> Mapping[int, LogSegment]:
        """The segments in the store, by ledger id."""
        return {segment.ledger_id: segment for segment in self._segments_now(log)}

    def _segments_now(self, log: str) -> Iterator[LogSegment]:
        parent = paths_of(STREAMS, log).segments_path
        node = self.tree._nodes.get(parent)
        for name in sorted(() if node is None else node.children):
            found = self.tree.value_now(f"{parent}/{name}")
            if found is not None and is_segment_name(name):
                yield decode_segment(found.value, name)

    def cursors_now(self, log: str) -> Mapping[str, DLSN]:
        """The cursors in the store."""
        parent = paths_of(STREAMS, log).subscribers_path
        node = self.tree._nodes.get(parent)
        found = {name: self.tree.value_now(f"{parent}/{name}") for name in (node.children if node else ())}
        return {
            name: DLSN.from_text(each.value.decode())
            for name, each in sorted(found.items())
            if each is not None
        }

    def _view(self, log: str) -> View:
        return _LogNow(self, log, self.requests_of(self.life(log)))

    def truncated(self, log: str, life: LogHistory, before: DLSN, completed: tuple[LogSegment, ...]) -> None:
        """Judge a truncation that returned."""
        if life is self.life(log):
            complaint = a_truncation_marks_every_segment_before_it(before, completed, self.segments_now(log))
            if complaint is not None:
                self.violate(a_truncation_marks_every_segment_before_it.__name__, f"{log}: {complaint}")

    # --- the end ---

    async def _end_faults(self, nursery: trio.Nursery) -> None:
        await super()._end_faults(nursery)
        # Readers must get everything, so the records of writers that were killed are recovered first.
        async with self._open_judge() as namespace:
            for log in self.logs:
                if await self._until_done(partial(namespace.log_exists, log)):
                    if self.shape.promotes:
                        rng = random.Random(f"promotion of {log} {self.shape.seed}")
                        await self._until_done(partial(settle, namespace, log, rng))
                    await self._until_done(partial(self._recover, namespace, log))
        self.is_recovered = True
        self.trace.note("world", "every log is recovered")

    async def _recover(self, namespace: Namespace, log: str) -> None:
        try:
            async with namespace.open_writer(log, lock_timeout_s=30):
                pass
        except LogNotFoundError:
            pass  # an operator has just deleted it

    async def _judge(self, unfinished: tuple[str, ...]) -> None:
        if unfinished:
            self.violate("every_operation_has_ended", ", ".join(unfinished))
            return
        self.trace.note("world", "every log is read")
        async with self._open_judge() as namespace:
            for log in self.logs:
                lives = self.logs_history.logs.get(log, [])
                if await self._until_done(partial(namespace.log_exists, log)):
                    await self._until_done(partial(self._judge_log, namespace, log))
                for life in lives:
                    if life.is_deleted:
                        life.judge(None)
        self.check_history()

    async def _judge_log(self, namespace: Namespace, log: str) -> None:
        first_left = (await namespace.describe_log(log)).first_dlsn
        async with namespace.open_reader(log, start=EARLIEST, follow=False) as reader:
            records = [record async for record in reader]
        verification = await namespace.repair.verify(log)
        if verification.problem is not None:
            self.violate("a_log_is_sound_at_the_end", f"{log}: {verification.problem}")
        for record in records:
            if (complaint := a_record_has_its_key_and_headers(record)) is not None:
                self.violate(a_record_has_its_key_and_headers.__name__, f"{log}: {complaint}")
        if self.shape.shares:
            rule = records_of_a_producer_are_stored_once_and_in_order
            if (complaint := rule(records)) is not None:
                self.violate(rule.__name__, f"{log}: {complaint}")
        self.life(log).judge(records, first_left)  # the judgement of a ruin counts for nothing

    @asynccontextmanager
    async def _open_judge(self) -> AsyncIterator[Namespace]:
        """A namespace in a process that no fault strikes."""
        node = self.network.join("judge")
        store = self.new_session(node)
        async with open_ledger_client(
            store,
            lambda address: self.network.dial(node, address),
            client_config(2),
            root=ROOT,
            seams=ClientSeams(rng=random.Random(f"judge {self.shape.seed}"), wall_ms=self.wall_ms),
        ) as client:
            watch_ledgers(self, "judge", client)
            yield namespace_of(self, store, client, client_id="judge", wall_ms=self.wall_ms)
        store.abandon()

    async def _until_done(self, step: Callable[[], Awaitable[T]]) -> T:
        """Repeat a step of the judge while logs are out of reach. Faults have stopped."""
        deadline = self.now() + RETRY_S
        while True:
            try:
                return await step()
            except (LogMetadataError, CorruptLogError) as exc:
                self.violate("a_log_is_sound_at_the_end", f"{type(exc).__name__}: {exc}")
                await trio.sleep_forever()
            except DLogError as exc:
                self.trace.note("judge", f"{type(exc).__name__}: {exc}"[:300])
                if self.now() > deadline:
                    self.violate("every_log_can_be_read_after_the_faults", f"{type(exc).__name__}: {exc}")
                    await trio.sleep_forever()
            await trio.sleep(2)


@attrs.frozen
class _LogNow:
    """A log as the rules see it when a node changes."""

    world: StreamWorld
    log: str
    requests: Requests

    @property
    def cursors(self) -> Mapping[str, DLSN]:
        return self.world.cursors_now(self.log)

    def ledger_exists(self, ledger_id: int) -> bool:
        return self.world.metadata_of(ledger_id) is not None

    def has_records(self, segment: LogSegment) -> bool:
        first = segment.first_dlsn
        return any(first <= each < first.next_segment() for each in self.world.life(self.log).dlsns)
