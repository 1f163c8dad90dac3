"""A whole cluster in one process and one thread, from one seed.

Inside: ``World``, which puts the parts together and runs them: clients work while faults happen; faults stop;
all operations must end; every ledger is recovered, read and compared.
Not inside: playing one world (``playing``), its size (``shape``), its parts (``network``, ``disk``,
``metadata``, ``bookies``, ``clients``), faults, checkers.
Always: all randomness comes from generators seeded by ``Shape.seed``. Each part has a generator of its own,
so that removing one fault changes little else.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from dlog.testing.platter import Platter
from ledger.catalog.metadata_codec import decode_metadata
from ledger.catalog.paths import ledger_id_of
from ledger.errors import LedgerError
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.metadata_store.store import Node as StoredNode
from ledger.read.handle import ReadHandle
from ledger.write.handle import WriteHandle
from tests.simulation.bookies import ROOT, BookieMachine
from tests.simulation.checkers import (
    EVEN_IF_EXCUSED,
    EVENT_CHECKERS,
    FINAL_CHECKERS,
    OPERATION_S_MAX,
    replica_names,
)
from tests.simulation.clients import (
    ClientProcess,
    Operation,
    ReaderProcess,
    WriterProcess,
    log_path,
)
from tests.simulation.clockwork import Timeline
from tests.simulation.faults import Fault, draw_plan
from tests.simulation.final import look_at_everything
from tests.simulation.history import (
    Confirmed,
    EndSeen,
    Event,
    History,
    LacSeen,
    MetadataWritten,
    Submitted,
    ledger_of,
)
from tests.simulation.injector import Injector
from tests.simulation.local_files import LocalFiles
from tests.simulation.metadata import STORE, HistoricTree, SimStore, StoreTroubles
from tests.simulation.network import Network, Node
from tests.simulation.shape import Shape
from tests.simulation.trace import Trace

BOOKIE_START_S_MAX = 60.0  # after faults have stopped
WALL_MS = 1_700_000_000_000


class World:
    """The cluster, its faults and its history. Made and run by ``playing.play``."""

    draw_shape: Callable[..., Shape] = Shape.draw

    def __init__(
        self,
        shape: Shape,
        plan: tuple[Fault, ...] | None,
        kinds: frozenset[str],
        *,
        keep: bool,
        prepare: Callable[[World], None] | None,
    ) -> None:
        seed = shape.seed
        self.shape = shape
        self.timeline = Timeline(seed)
        self.now = self.timeline.now
        self.counts: Counter[str] = Counter()
        self.trace = Trace(self.now, keep=keep)
        self.network = Network(self.timeline, random.Random(f"network {seed}"), self.trace, self.counts)
        self.network.has_delays = shape.has_delays
        self.network.reorders = shape.reorders
        self.network.is_stormy = shape.storm == "takeover"
        self.network.is_jittery = shape.storm == "ensemble"
        self.tree = HistoricTree(self.timeline, self.wall_ms)
        self.tree.on_change = self._node_changed
        self.store_troubles = StoreTroubles()
        self._store_rng = random.Random(f"store {seed}")
        self.sessions: list[SimStore] = []
        self.history = History()
        self.operations: dict[int, Operation] = {}
        self.is_ending = False
        self.faults_ended_at: float | None = None
        self.damaged: set[str] = set()
        self.filled: set[str] = set()  # bookies whose disk was full and freed in small steps
        self.deleted: set[int] = set()
        self.excused: set[int] = set()
        self.violation: str | None = None
        self._bookie_news = trio.Event()
        self.files = LocalFiles(self) if shape.reads_files else None
        self.bookies: dict[str, BookieMachine] = {}
        for number in range(shape.bookies):
            self._add_bookie(number)
        self.logs = [f"log{number}" for number in range(shape.logs)]
        self.clients = self._make_clients()
        if plan is None:
            plan = self._draw_plan(kinds)
        self.plan = plan
        self.injector = self._make_injector()
        self._metadata: dict[int, LedgerMetadata] = {}
        self._writers: dict[int, str] = {}  # by ledger
        self._scope = trio.CancelScope()
        self.timeline.on_failure = self._scope.cancel
        if prepare is not None:
            prepare(self)

    def _make_clients(self) -> dict[str, ClientProcess]:
        shape, seed = self.shape, self.shape.seed
        clients: dict[str, ClientProcess] = {}
        for log in self.logs:
            for number in range(shape.writers):
                name = f"{log}-w{number}"
                clients[name] = WriterProcess(self, name, random.Random(f"{name} {seed}"), log)
            for number in range(shape.readers):
                name = f"{log}-r{number}"
                clients[name] = ReaderProcess(self, name, random.Random(f"{name} {seed}"), log)
        return clients

    def _draw_plan(self, kinds: frozenset[str]) -> tuple[Fault, ...]:
        shape = self.shape
        return draw_plan(
            random.Random(f"plan {shape.seed}"),
            horizon_s=shape.horizon_s,
            bookies=list(self.bookies),
            clients=list(self.clients),
            kinds=kinds,
            is_light=bool(shape.storm),
        )

    def _make_injector(self) -> Injector:
        return Injector(self)

    def _add_bookie(self, number: int) -> BookieMachine:
        name = f"b{number}:3181"
        platter = Platter(
            name, self.timeline, random.Random(f"{name} {self.shape.seed}"), self.trace, self.counts
        )
        platter.losses, platter.tears = self.shape.losses, self.shape.tears
        machine = BookieMachine(self, name, platter)
        self.bookies[name] = machine
        self.network.join(name)
        return machine

    def wall_ms(self) -> int:
        """The true wall clock. A machine's own clock may be off."""
        return WALL_MS + int(self.now() * 1000)

    # --- the run ---

    async def run(self) -> None:
        """Run the world from the first start to the last comparison."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                await self._set_up(nursery)
                self.injector.schedule(self.plan)
                async with trio.open_nursery() as working:
                    for client in self.clients.values():
                        working.start_soon(client.live)
                    await trio.sleep(max(0.0, self.shape.horizon_s - self.now()))
                    await self._end_faults(nursery)
                    working.cancel_scope.deadline = self.now() + OPERATION_S_MAX + 10
                await self._judge(await self._wait_start())
                nursery.cancel_scope.cancel()

    async def _end_faults(self, nursery: trio.Nursery) -> None:
        self.trace.note("world", "faults stop")
        self.faults_ended_at = self.now()
        self.injector.stop()
        for number in range(len(self.damaged)):  # ensembles need as many bookies as before
            spare = self._add_bookie(self.shape.bookies + number)
            nursery.start_soon(spare.live)
            spare.start()
        await trio.sleep(2)
        self.is_ending = True
        for client in self.clients.values():
            client.wake.set()

    async def _wait_start(self) -> tuple[str, ...]:
        """Wait for the bookies; return the operations that did not end, and the starts."""
        unfinished = tuple(
            f"{operation.client}: {operation.what}, begun at {operation.began_at:.3f}"
            for operation in self.operations.values()
        )
        with trio.move_on_after(BOOKIE_START_S_MAX):
            await self._wait_bookies()
        return unfinished + tuple(
            f"the start of {machine.name}"
            for machine in self.bookies.values()
            if not (machine.is_serving or machine.is_given_up)
        )

    async def _judge(self, unfinished: tuple[str, ...]) -> None:
        self.trace.note("world", "everything is read and compared")
        state = await look_at_everything(self, unfinished)
        for check in FINAL_CHECKERS:
            complaint = check(state, self.history)
            if complaint is not None:
                self.violate(check.__name__, complaint)
                break

    async def _set_up(self, nursery: trio.Nursery) -> None:
        node = self.network.join("operator")
        store = self.new_session(node)
        for log in self.logs:
            await store.create(log_path(log), b"[]", parents=True)
        for machine in self.bookies.values():
            nursery.start_soon(machine.live)
            machine.start()
        await self._wait_bookies()
        store.abandon()

    async def _wait_bookies(self) -> None:
        """Return once every bookie that was not given up serves."""
        while not all(machine.is_serving or machine.is_given_up for machine in self.bookies.values()):
            self._bookie_news = trio.Event()
            await self._bookie_news.wait()

    def bookie_changed(self) -> None:
        """A bookie calls this when it begins to serve and when it is given up."""
        self._bookie_news.set()

    @property
    def confirmed(self) -> int:
        """The number of entries that were acknowledged."""
        return len(self.history.confirmed)

    # --- called by the parts ---

    def process_named(self, name: str) -> ClientProcess | None:
        """The client that a fault strikes."""
        return self.clients.get(name)

    async def run_beside(self, machine: BookieMachine, node: Node) -> None:
        """What runs in the process of a bookie from its announcement to its end, besides the bookie."""

    def new_session(self, node: Node, kind: type[SimStore] = SimStore) -> SimStore:
        """Return a session with the metadata store for the process of this node."""
        store = kind(
            self.tree,
            node,
            self.network,
            self.timeline,
            self._store_rng,
            self.store_troubles,
            self.counts,
            self.trace,
        )
        self.sessions = [session for session in self.sessions if session._process.is_up]
        self.sessions.append(store)
        return store

    @asynccontextmanager
    async def session_of(self, machine: BookieMachine, node: Node) -> AsyncIterator[SimStore]:
        """A new session for a bookie whose last one has expired."""
        machine.store = store = self.new_session(node)
        try:
            yield store
        finally:
            store.abandon()

    def suspend_sessions(self, name: str, seconds: float) -> None:
        for session in self.sessions:
            if session._process.name == name and session._process.is_up:
                session.suspend(seconds)

    def expire_sessions(self, name: str) -> None:
        for session in self.sessions:
            if session._process.name == name and session._process.is_up:
                session.expire()

    def contend(self, name: str) -> None:
        """Make the rivals of a writer take its log over: the writer is paused."""
        client = self.clients.get(name)
        if isinstance(client, WriterProcess):
            for other in self.clients.values():
                if isinstance(other, WriterProcess) and other is not client and other.log == client.log:
                    other.kick()

    def remove_node(self, path: str) -> None:
        """Delete a node, as an operator does by hand."""
        self.tree.remove(path)

    def damage(self, machine: BookieMachine) -> None:
        """Record that this machine has lost synced data."""
        machine.is_damaged = True
        self.damaged.add(machine.name)

    def excuse(self, machine: BookieMachine) -> None:
        """Excuse losses that the machine cannot detect, in the ledgers of its ``unwitnessed``."""
        self.excused |= machine.unwitnessed
        machine.forget_promises(machine.unwitnessed)

    def ledger_ids(self) -> set[int]:
        """Ids of all ledgers that exist."""
        return set(self._metadata)

    def deletes(self, ledger_id: int) -> None:
        """A client calls this before it deletes a ledger."""
        self.deleted.add(ledger_id)

    # --- events ---

    def observe(self, event: Event) -> None:
        """Check an event, then add it to the history."""
        for check in EVENT_CHECKERS.get(type(event), ()):
            complaint = check(event, self.history)
            if complaint is not None:
                if check not in EVEN_IF_EXCUSED and ledger_of(event) in self.excused:
                    self.counts["loss that was excused"] += 1
                    continue
                self.violate(check.__name__, complaint)
                return
        self.history.note(event)

    def violate(self, checker: str, complaint: str) -> None:
        """Record a violated property and end the world."""
        if self.violation is None:
            self.violation = f"{checker}: {complaint}"
            self.trace.note("VIOLATION", self.violation)
            self._scope.cancel()

    def metadata_of(self, ledger_id: int) -> LedgerMetadata | None:
        """A ledger's metadata in the store now."""
        return self._metadata.get(ledger_id)

    def submit(self, client: str, handle: WriteHandle, payload: bytes) -> None:
        """Submit an entry and record it."""
        entry_id = handle.submit(payload)
        if self.trace.keep:
            self.trace.detail(client, f"submits {handle.ledger_id}:{entry_id}")
        self.observe(Submitted(self.now(), client, (handle.ledger_id, entry_id), payload))

    def takes_over(self, client: str, ledger_id: int) -> None:
        """A writer calls this before it recovers a ledger, which may belong to another writer."""
        metadata = self.metadata_of(ledger_id)
        if (
            metadata is not None
            and metadata.state is LedgerState.OPEN
            and self._writers.get(ledger_id) != client
        ):
            self.counts["second writer"] += 1

    def watch_writer(self, client: str, handle: WriteHandle) -> None:
        """Record every entry that this writer confirms."""
        ledger_id, known = handle.ledger_id, -1
        self._writers[ledger_id] = client

        def confirmed(lac: int, error: BaseException | None) -> None:
            nonlocal known
            handle._writer.check()
            for entry_id in range(known + 1, lac + 1):
                self._confirmed(client, ledger_id, entry_id)
            known = max(known, lac)

        handle.on_confirmed(confirmed)

    def _confirmed(self, client: str, ledger_id: int, entry_id: int) -> None:
        metadata = self.metadata_of(ledger_id)
        if metadata is None:
            return  # deleted by a writer that truncates the log
        place = (ledger_id, entry_id)
        self.trace.note(client, f"confirmed {ledger_id}:{entry_id}")
        holders = self._holders(metadata, ledger_id, entry_id)
        self.observe(Confirmed(self.now(), client, place, metadata, holders, frozenset(self.damaged)))

    def _holders(self, metadata: LedgerMetadata, ledger_id: int, entry_id: int) -> frozenset[str]:
        submitted = self.history.submitted.get((ledger_id, entry_id))
        if submitted is None:
            return frozenset()
        return frozenset(
            name
            for name in replica_names(metadata, entry_id)
            if self.bookies[name].platter.holds_durably(submitted.payload)
        )

    def saw_lac(self, client: str, reader: ReadHandle) -> None:
        """Record the LAC of a reader's handle."""
        metadata = self.metadata_of(reader.ledger_id)
        lac = reader.last_confirmed
        if metadata is None or reader.ledger_id in self.deleted or lac < 0:
            return
        if lac <= self.history.seen_lac.get(reader.ledger_id, -1):
            return
        place = (reader.ledger_id, lac)
        holders = self._holders(metadata, *place)
        self.observe(LacSeen(self.now(), client, place, metadata, holders, frozenset(self.damaged)))

    def saw_end(self, client: str, reader: ReadHandle) -> None:
        """Record the end of a closed ledger, from a reader's handle."""
        self._saw_end(client, reader.ledger_id, reader.metadata)

    def saw_closed(self, client: str, handle: WriteHandle) -> None:
        """Record the end of a ledger that its writer closed."""
        self._saw_end(client, handle.ledger_id, handle.metadata)

    def _saw_end(self, client: str, ledger_id: int, metadata: LedgerMetadata) -> None:
        self.trace.note(client, f"sees ledger {ledger_id} closed at {metadata.last_entry_id}")
        self.observe(EndSeen(self.now(), client, ledger_id, metadata.last_entry_id, metadata.length_bytes))

    def _node_changed(self, path: str, before: StoredNode | None, after: StoredNode | None) -> None:
        ledger_id = ledger_id_of(ROOT, path)
        if ledger_id is None:
            return
        if after is None:
            self._metadata.pop(ledger_id, None)
            return
        if before is not None and before.value == after.value:
            return
        try:
            metadata = decode_metadata(after.value)
        except LedgerError:
            return  # a node that reserves an id has no metadata yet
        old = self._metadata.get(ledger_id)
        self._metadata[ledger_id] = metadata
        last = metadata.last_ensemble
        self.trace.note(
            STORE,
            f"ledger {ledger_id}: {metadata.state.name} from {last.first_entry_id} on "
            + ",".join(last.bookies)
            + (f", end {metadata.last_entry_id}" if metadata.is_closed else ""),
        )
        lac = self.history.confirmed_lac.get(ledger_id, -1)
        holders = {}
        if old is not None and (old.ensembles != metadata.ensembles or metadata.is_closed):
            for entry_id in range(last.first_entry_id, lac + 1):
                holders[entry_id] = self._holders(metadata, ledger_id, entry_id)
        self.observe(MetadataWritten(self.now(), ledger_id, old, metadata, holders, frozenset(self.damaged)))
