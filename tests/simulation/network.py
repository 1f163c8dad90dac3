"""The network: streams between named nodes, on which bytes arrive late, in pieces, or not at all.

Inside: dialling, delivery in virtual time, links blocked in one direction, paused and dead nodes, connections
that break with bytes in flight. Not inside: the times of these faults (``faults``).
Always: as with TCP, the bytes of one direction of a connection arrive in order and without gaps until the
connection ends. There is no order between connections. A connection may be half-open: one end may learn of
its end seconds before the other.

Source: FoundationDB's sim2 (clogging), TigerBeetle's packet simulator; docs/known-bugs.md 83.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable

import trio
from crc32c import crc32c

from ledger.transport.dial import Address
from tests.simulation.clockwork import Timeline
from tests.simulation.trace import Trace

IN_FLIGHT_BYTES_MAX = 256 * 1024
LATENCY_MIN_S, LATENCY_MAX_S = 0.001, 0.008
SLOW_CHANCE = 0.03  # that a message is very late, while delays are on
SPLIT_CHANCE = 0.04  # that a message arrives in two pieces
STORM_CHANCE = 0.04  # that a message breaks its connection, in a storm
JITTER_CHANCE = 0.15
YIELD_CHANCE = 0.2  # that a send lets other tasks run first

Accept = Callable[[trio.abc.Stream], None]
_EPSILON_S = 1e-9
_LATENCY_RANGE_S = LATENCY_MAX_S - LATENCY_MIN_S


class Node:
    """One process on the network. The next process of the machine is another node of the same name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.accept: Accept | None = None  # None: it does not listen
        self.is_up = True
        self.is_paused = False
        self.running = trio.Event()
        self.running.set()
        self.held: list[Callable[[], None]] = []  # calls delayed until the end of the pause

    def pause(self) -> None:
        """Hold all messages from and to the node."""
        self.is_paused = True
        self.running = trio.Event()

    def resume(self) -> None:
        """End the pause and make the delayed calls."""
        self.is_paused = False
        self.running.set()
        held, self.held = self.held, []
        for call in held:
            call()


class Direction:
    """One direction of a connection: the bytes in flight and the received bytes."""

    __slots__ = (
        "due",
        "in_flight",
        "inbox",
        "is_cut",
        "is_eof",
        "link",
        "number",
        "queue",
        "reader",
        "reset",
        "senders",
        "source",
        "target",
    )

    def __init__(self, number: int, source: Node, target: Node) -> None:
        self.number = number
        self.source, self.target = source, target
        self.link = source.name, target.name
        # Due time, place on the link, bytes; b"" is the end of the stream.
        self.queue: deque[tuple[float, int, bytes]] = deque()
        self.due = 0.0
        self.in_flight = 0
        self.inbox: deque[bytes] = deque()
        self.is_eof = False
        self.is_cut = False  # bytes were lost, so later bytes must not arrive
        self.reset = False  # the receiving end knows that the connection is broken
        self.reader: trio.lowlevel.Task | None = None
        self.senders: trio.lowlevel.ParkingLot | None = None  # made when the first sender has to wait

    def wake(self) -> None:
        reader, self.reader = self.reader, None
        if reader is not None:
            reader._runner.reschedule(reader)

    def stop_reading(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self.reader = None
        return trio.lowlevel.Abort.SUCCEEDED

    async def wait_capacity(self) -> None:
        """Return when a sender should check the bytes in flight again."""
        if self.senders is None:
            self.senders = trio.lowlevel.ParkingLot()
        await self.senders.park()

    def wake_senders(self) -> None:
        if self.senders is not None:
            self.senders.unpark_all()


class SimStream(trio.abc.Stream):
    """One end of a connection."""

    def __init__(self, network: Network, outgoing: Direction, incoming: Direction) -> None:
        self._network = network
        self._out, self._in = outgoing, incoming
        self._is_closed = False

    @property
    def peer(self) -> str:
        """The name of the other side's node."""
        return self._in.source.name

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        # Some sends let other tasks run first; the others return at once, as with a socket that has space.
        if self._network.yields():
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            if self._is_closed:
                raise trio.ClosedResourceError("this end is closed")
            if self._in.reset:
                raise trio.BrokenResourceError("connection reset")
            if self._out.in_flight < IN_FLIGHT_BYTES_MAX:
                break
            await self._out.wait_capacity()
        if len(data):
            self._network.post(self._out, bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        incoming = self._in
        if self._is_closed or incoming.inbox or incoming.reset or incoming.is_eof:
            await trio.lowlevel.checkpoint()  # otherwise the wait below is the checkpoint
        while True:
            if self._is_closed:
                raise trio.ClosedResourceError("this end is closed")
            if incoming.inbox:
                data = b"".join(incoming.inbox)
                incoming.inbox.clear()
                if max_bytes is not None and len(data) > max_bytes:
                    incoming.inbox.append(data[max_bytes:])
                    data = data[:max_bytes]
                return data
            if incoming.reset:
                raise trio.BrokenResourceError("connection reset")
            if incoming.is_eof:
                return b""
            incoming.reader = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(incoming.stop_reading)

    async def aclose(self) -> None:
        self.close_now()
        # Most callers are cancelled already. Raising Cancelled once more would cost as much as the
        # connection.
        await trio.lowlevel.cancel_shielded_checkpoint()

    def close_now(self) -> None:
        """Close this end; the other end receives the end of the stream later."""
        if not self._is_closed:
            self._is_closed = True
            self._in.wake()
            self._out.wake_senders()
            self._network.post(self._out, b"")


class Connection:
    """A connection: two directions and two ends."""

    def __init__(self, network: Network, number: int, dialler: Node, listener: Node) -> None:
        self.number = number
        self.there = Direction(2 * number, dialler, listener)
        self.back = Direction(2 * number + 1, listener, dialler)
        self.near = SimStream(network, self.there, self.back)
        self.far = SimStream(network, self.back, self.there)

    @property
    def is_over(self) -> bool:
        return (self.near._is_closed or self.back.reset) and (self.far._is_closed or self.there.reset)


class Network:
    """All nodes and connections."""

    def __init__(self, timeline: Timeline, rng: random.Random, trace: Trace, counts: Counter[str]) -> None:
        self._timeline, self._rng, self._trace, self._counts = timeline, rng, trace, counts
        self.nodes: dict[str, Node] = {}
        self.connections: dict[int, Connection] = {}
        self.has_delays = False
        self.reorders = True  # between connections; never within one
        self._link_due: dict[tuple[str, str], float] = {}
        self.slow_until: dict[tuple[str, str], tuple[float, float]] = {}  # link -> end time, greatest delay
        self.flaky: dict[str, tuple[float, float]] = {}  # node -> end time, chance of each message to break
        self.is_stormy = False  # connections break often
        self.is_jittery = False  # many messages are slightly late
        self._blocked: Counter[tuple[str, str]] = Counter()
        self._unblocked = trio.lowlevel.ParkingLot()
        self._next_number = 0
        self._posted: dict[tuple[str, str], int] = {}
        self._delivered: dict[tuple[str, str], int] = {}

    # --- nodes and links ---

    def join(self, name: str) -> Node:
        """Add a new process of this name."""
        node = self.nodes[name] = Node(name)
        return node

    def block(self, source: str, target: str) -> None:
        """Hold all messages from one node to the other."""
        self._blocked[source, target] += 1

    def unblock(self, source: str, target: str) -> None:
        """Undo one ``block``; after the last, deliver the held messages."""
        self._blocked[source, target] -= 1
        if not self._blocked[source, target]:
            del self._blocked[source, target]
            self.pump_all()

    def is_blocked(self, source: str, target: str) -> bool:
        return (source, target) in self._blocked

    def pump_all(self) -> None:
        """Deliver all messages that are due and not held."""
        for connection in list(self.connections.values()):
            self._pump(connection.there)
            self._pump(connection.back)
        self._unblocked.unpark_all()

    def heal(self) -> None:
        """End all blocks and delays of links."""
        self._blocked.clear()
        self.slow_until.clear()
        self.flaky.clear()
        self.has_delays = False
        self.pump_all()

    # --- connections ---

    async def dial(self, source: Node, address: Address) -> trio.abc.Stream:
        """Connect to a node, waiting while the link is blocked.

        Raises:
            OSError: No process listens there, or the dialling process is dead.
        """
        name = str(address)
        await self._timeline.sleep(self._latency((source.name, name)))
        while self.is_blocked(source.name, name) or self.is_blocked(name, source.name) or source.is_paused:
            await self._unblocked.park()
        target = self.nodes.get(name)
        if target is None or not target.is_up or target.accept is None:
            raise ConnectionRefusedError(f"{name} refuses connections")
        if not source.is_up:
            raise OSError("the dialling process is dead")
        while target.is_paused:
            await self._unblocked.park()
        if not target.is_up or target.accept is None:
            raise ConnectionRefusedError(f"{name} refuses connections")
        connection = Connection(self, self._next_number, source, target)
        self.connections[connection.number] = connection
        self._next_number += 1
        target.accept(connection.far)
        return connection.near

    def cut_off(self, node: Node, *, silently: bool) -> None:
        """End the connections of a process that has died.

        Args:
            silently: The whole machine is down and sends no reset: its peers learn of it after seconds.
        """
        node.is_up = False
        node.accept = None
        for connection in list(self.connections.values()):
            if connection.there.source is node or connection.there.target is node:
                mine = connection.back if connection.there.source is node else connection.there
                theirs = connection.there if mine is connection.back else connection.back
                mine.queue.clear()
                self._reset(mine)
                # Bytes that it had sent may still arrive. A reset follows, at once or after a long time.
                delay_s = self._rng.uniform(2, 15) if silently else self._rng.uniform(0.0005, 0.003)
                self._timeline.at(max(theirs.due, self._timeline.now()) + delay_s, self._reset, theirs)

    def break_connection(self, connection: Connection) -> None:
        """Lose the bytes in flight except for a random first part; each end learns of it at its own time."""
        for direction in (connection.there, connection.back):
            if direction.is_cut:
                continue
            direction.is_cut = True
            survivors = self._rng.randint(0, len(direction.queue))
            lost = list(direction.queue)[survivors:]
            direction.queue = deque(list(direction.queue)[:survivors])
            direction.in_flight -= sum(len(data) for _, _, data in lost)
            if lost and len(lost[0][2]) > 1 and self._rng.random() < 0.5:
                due, place, data = lost[0]
                part = data[: self._rng.randrange(1, len(data))]  # the first part of a frame
                direction.queue.append((due, place, part))
                direction.in_flight += len(part)
            if lost:
                self._counts["message lost"] += len(lost)
            delay_s = self._rng.choice([0.0, 0.0, 0.002, 0.05, 3.0])
            self._timeline.at(max(direction.due, self._timeline.now()) + delay_s, self._reset, direction)

    def open_connections(self) -> list[Connection]:
        """Connections of which at least one end does not know that they are over, oldest first."""
        return [connection for connection in self.connections.values() if not connection.is_over]

    def yields(self) -> bool:
        """Decide by chance whether a send lets other tasks run first."""
        return self._rng.random() < YIELD_CHANCE

    def post(self, direction: Direction, data: bytes) -> None:
        """Send these bytes, or the end of the stream if there are none. Called by the stream."""
        if not direction.source.is_up or direction.is_cut:
            return
        rng, timeline, link = self._rng, self._timeline, direction.link
        pieces: tuple[bytes, ...] = (data,)
        if len(data) > 40 and rng.random() < SPLIT_CHANCE:
            at = rng.randrange(1, len(data))
            pieces = data[:at], data[at:]
        for piece in pieces:
            direction.due = max(direction.due, timeline.time_s + self._latency(link))
            if not self.reorders:
                direction.due = self._link_due[link] = max(direction.due, self._link_due.get(link, 0.0))
            self._posted[link] = place = self._posted.get(link, 0) + 1
            direction.queue.append((direction.due, place, piece))
            direction.in_flight += len(piece)
            timeline.at(direction.due, self._pump, direction)
        if data and (self.flaky or self.is_stormy) and self._is_flaky(*link):
            connection = self.connections.get(direction.number // 2)
            if connection is not None:
                self._counts["broken connection"] += 1
                self.break_connection(connection)

    def _is_flaky(self, source: str, target: str) -> bool:
        if self.is_stormy and self._rng.random() < STORM_CHANCE:
            return True
        for name in (source, target):
            until, chance = self.flaky.get(name, (0.0, 0.0))
            if until > self._timeline.now() and self._rng.random() < chance:
                return True
        return False

    def _latency(self, link: tuple[str, str]) -> float:
        rng = self._rng
        latency_s = LATENCY_MIN_S + _LATENCY_RANGE_S * rng.random()  # saves a call compared with ``uniform``
        if self.has_delays and rng.random() < SLOW_CHANCE:
            self._counts["delay"] += 1
            latency_s += rng.choice([0.02, 0.1, 0.5, 1.5])
        if self.is_jittery and rng.random() < JITTER_CHANCE:
            latency_s += rng.uniform(0.01, 0.15)
        slow = self.slow_until.get(link) if self.slow_until else None
        if slow is not None and slow[0] > self._timeline.now():
            self._counts["delay"] += 1
            latency_s += rng.uniform(0, slow[1])
        return latency_s

    def _pump(self, direction: Direction) -> None:
        queue = direction.queue
        if not queue:
            return
        source, target, link = direction.source, direction.target, direction.link
        if source.is_paused or target.is_paused or link in self._blocked:
            return
        limit = self._timeline.time_s + _EPSILON_S
        latest = self._delivered.get(link, 0)
        while queue and queue[0][0] <= limit:
            _, place, data = queue.popleft()
            direction.in_flight -= len(data)
            if direction.reset or not target.is_up:
                continue
            if place < latest:
                self._counts["reorder"] += 1
            else:
                self._delivered[link] = latest = place
            self._trace.mark(b"net", direction.number, crc32c(data))
            if data:
                direction.inbox.append(data)
            else:
                direction.is_eof = True
            direction.wake()
        direction.wake_senders()

    def _reset(self, direction: Direction) -> None:
        """Tell the receiving end of this direction that the connection is broken."""
        connection = self.connections.get(direction.number // 2)
        if direction.reset or connection is None:
            return
        direction.reset = True
        direction.inbox.clear()
        direction.wake()
        (connection.back if direction is connection.there else connection.there).wake_senders()
        if connection.is_over:
            del self.connections[connection.number]
