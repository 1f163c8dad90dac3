"""The connections of a bookie, with requests and replies recorded.

Inside: ``WatchedSession``, the real session of one connection, which reports requests and replies to the
world; ``Promises``, the replies that a machine has given since it exists. Not inside: the machine
(``bookies``), judging the replies (``checkers``).
Always: a reply counts only while the process that sends it is alive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import TYPE_CHECKING

import attrs
from crc32c import crc32c

from bookie.requests.deferred import DeferredRequest
from bookie.requests.session import BookieService, ClientSession
from ledger.codes import Code
from ledger.wire import v2, v3
from ledger.wire.messages import AddReply, AddRequest, ReadReply, ReadRequest
from tests.simulation.history import Accepted, Denied, Place, RepliedToRecovery

if TYPE_CHECKING:
    from tests.simulation.bookies import BookieMachine

_ADD = Struct(">20sqqq")
_READ = Struct(">qq")
_ADD_OPCODE, _READ_OPCODE, _BATCH_READ_OPCODE = 1, 2, 7
_WATCHED_OPCODES = (_ADD_OPCODE, _READ_OPCODE, _BATCH_READ_OPCODE)
_REPLY = Struct(">IIIqq")


@attrs.define(eq=False)
class Promises:
    """The replies that bind a machine, from all of its processes."""

    fences: set[int] = attrs.field(factory=set)  # ledgers with a reply to a fencing read
    denials: set[Place] = attrs.field(factory=set)  # entries denied to a recovery
    acknowledged: set[Place] = attrs.field(factory=set)
    sent: dict[Place, set[int]] = attrs.field(factory=dict)  # checksums of the bodies sent to it for an entry

    @property
    def ledger_ids(self) -> set[int]:
        """The ledgers of all promises."""
        return self.fences | {place[0] for place in self.denials | self.acknowledged}


class WatchedSession(ClientSession):
    """The session of one connection, which reports requests and replies to the world."""

    def __init__(
        self, service: WatchedService, send: Callable[[bytes], None], defer: Callable[[DeferredRequest], None]
    ) -> None:
        self._machine = service.machine
        self._world = service.machine.world
        self._recovery_reads: set[Place] = set()
        self._adds: dict[Place, tuple[bool, int, bool, bool]] = {}  # recovery, LAC, after fence, after denial
        self._pass_on = send
        super().__init__(service, self._watch_replies, defer)

    def handle(self, data: bytes, spans: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
        for start, end in spans:
            if data[start] < v3.FIRST_BYTE_MIN:
                self._watch_v2(data, start, end)
            else:
                self._watch_v3(data, start, end)
        if not self._machine.refusal_chance:
            rest = super().handle(data, spans)
            while rest:
                rest = super().handle(data, rest)
            return ()
        for span in spans:
            self._machine.draw_refusal()
            super().handle(data, [span])
        return ()

    def _watch_v2(self, data: bytes, start: int, end: int) -> None:
        opcode, flags = data[start + 1], data[start + 3]
        if opcode == _ADD_OPCODE and end - start >= v2.ADD_REQUEST_BYTES_MIN:
            _, ledger_id, entry_id, lac = _ADD.unpack_from(data, start + 4)
            checksum = crc32c(memoryview(data)[start + v2.ADD_BODY_OFFSET : end])
            self._watch_add((ledger_id, entry_id), lac, checksum, recovery=bool(flags & v2.FLAG_RECOVERY_ADD))
        elif opcode == _READ_OPCODE and flags & (v2.FLAG_FENCE | v2.FLAG_HIGH_PRIORITY):
            self._watch_read(_READ.unpack_from(data, start + 4))

    def _watch_v3(self, data: bytes, start: int, end: int) -> None:
        incoming = v3.decode_request(data, start, end)
        match incoming.request:
            case AddRequest() as add:
                lac = int.from_bytes(add.body[16:24], "big", signed=True)
                place = (add.ledger_id, add.entry_id)
                self._watch_add(place, lac, crc32c(add.body), recovery=add.recovery)
            case ReadRequest() as read if read.fence or incoming.high_priority:
                self._watch_read((read.ledger_id, read.entry_id))
            case _:
                pass

    def _watch_add(self, place: Place, lac: int, checksum: int, *, recovery: bool) -> None:
        promises = self._machine.promises
        promises.sent.setdefault(place, set()).add(checksum)
        self._adds[place] = (recovery, lac, place[0] in promises.fences, place in promises.denials)
        if self._world.trace.keep:
            what = f"<- add {place[0]}:{place[1]}{' (recovery)' if recovery else ''} lac {lac}"
            self._world.trace.detail(self._machine.name, what)

    def _watch_read(self, place: Place) -> None:
        self._recovery_reads.add(place)
        if self._world.trace.keep:
            self._world.trace.detail(self._machine.name, f"<- fencing read {place[0]}:{place[1]}")

    def _watch_replies(self, frames: bytes) -> None:
        if self._machine.session_is_alive(self):
            at = 0
            while at < len(frames):
                length = int.from_bytes(frames[at : at + 4], "big")
                if frames[at + 4] < v3.FIRST_BYTE_MIN:
                    if frames[at + 5] in _WATCHED_OPCODES:
                        _, _, number, ledger_id, entry_id = _REPLY.unpack_from(frames, at)
                        self._replied(frames[at + 5] == _ADD_OPCODE, number, (ledger_id, entry_id))
                else:
                    reply = v3.decode_reply(frames, at + 4, at + 4 + length).reply
                    if isinstance(reply, AddReply | ReadReply):
                        number = {Code.OK: 0, Code.NO_LEDGER: 1, Code.NO_ENTRY: 2}.get(reply.code, 100)
                        self._replied(isinstance(reply, AddReply), number, (reply.ledger_id, reply.entry_id))
                at += 4 + length
        self._pass_on(frames)

    def _replied(self, is_add: bool, code: int, place: Place) -> None:
        world, machine = self._world, self._machine
        if is_add:
            add = self._adds.pop(place, None)
            if world.trace.keep:
                world.trace.detail(machine.name, f"-> add {place[0]}:{place[1]}: {code or 'OK'}")
            if add is not None and code == 0:
                recovery, lac, after_fence, after_denial = add
                machine.promises.acknowledged.add(place)
                world.observe(
                    Accepted(
                        world.now(),
                        machine.name,
                        place,
                        recovery,
                        lac,
                        after_fence,
                        after_denial,
                        world.metadata_of(place[0]) if recovery else None,
                    )
                )
        elif place in self._recovery_reads:
            if world.trace.keep:
                world.trace.detail(machine.name, f"-> fencing read {place[0]}:{place[1]}: {code or 'OK'}")
            if code in (0, 1, 2):
                ledger = self._storage.ledger(place[0])
                if ledger is not None:
                    world.observe(RepliedToRecovery(world.now(), machine.name, place, ledger.fenced))
                machine.promises.fences.add(place[0])
                if code and place[1] >= 0:
                    machine.promises.denials.add(place)
        if not is_add and code in (1, 2) and place[1] >= 0 and place[0] not in world.deleted:
            had = place in machine.promises.acknowledged and not self._is_behind_the_end(place)
            world.observe(Denied(world.now(), machine.name, place, had))

    def _is_behind_the_end(self, place: Place) -> bool:
        """Whether a damaged bookie may deny an entry: repair copies the entries of a closed ledger only."""
        metadata = self._world.metadata_of(place[0])
        return (
            self._machine.is_damaged
            and metadata is not None
            and metadata.is_closed
            and place[1] > metadata.last_entry_id
        )


@attrs.define(eq=False)
class WatchedService(BookieService):
    """The bookie's service with watched sessions."""

    machine: BookieMachine = attrs.field(kw_only=True)

    def open_session(
        self, send: Callable[[bytes], None], defer: Callable[[DeferredRequest], None]
    ) -> ClientSession:
        return WatchedSession(self, send, defer)
