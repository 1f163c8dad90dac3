"""Peers whose permissions a test decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bookie.requests.deferred import DeferredRequest
from bookie.requests.permissions import (
    Access,
    Decision,
    PeerPermissions,
    Permissions,
)
from bookie.requests.session import BookieService
from ledger.auth.authentication import PeerIdentity
from ledger.wire import v2, v3
from ledger.wire.frame import FrameBuffer
from ledger.wire.messages import (
    Reply,
    Request,
)
from tests.fakes.service_by_hand import ENTRIES, HandDisk

ALICE, BOB = PeerIdentity("alice", "sasl"), PeerIdentity("bob", "sasl")
LIFETIME_S = 60.0


class Oracle:
    """Decides by a table; everything is granted that is not in it."""

    def __init__(self) -> None:
        self.table: dict[tuple[str, int], Decision] = {}
        self.asked: list[tuple[str, int]] = []
        self.now_s = 0.0
        self.refreshes: list[tuple[str, int]] = []
        self.permissions = Permissions(
            self.decide, lifetime_s=LIFETIME_S, now_s=lambda: self.now_s, refresh=self.refresh
        )

    def set(self, name: str, ledger_id: int, access: Access) -> None:
        self.table[name, ledger_id] = Decision(access)

    async def decide(self, principal: str, ledger_ids: Sequence[int]) -> Mapping[int, Decision]:
        self.asked += [(principal, ledger_id) for ledger_id in ledger_ids]
        return {one: self.table.get((principal, one), Decision(Access.WRITE)) for one in ledger_ids}

    def refresh(self, peer: PeerPermissions, ledger_id: int) -> None:
        self.refreshes.append((peer.name, ledger_id))


class Peer:
    """A connection that awaits decisions as ``Connection`` does, or stops at the first one."""

    def __init__(self, service: BookieService, identity: PeerIdentity | None) -> None:
        self.deferred: list[DeferredRequest] = []
        self._out = bytearray()
        self.session = service.open_session(self._out.extend, self.deferred.append)
        self.session.identity = identity
        self.waits = 0
        self.pauses = 0
        self._rest: tuple[bytes, Sequence[tuple[int, int]]] = b"", ()

    def begin(self, *requests: Request, version: int = 2) -> None:
        """Send all requests in one chunk; stop at the first that waits for a decision."""
        codec = v2 if version == 2 else v3
        self.begin_frames(*map(codec.encode_request, requests))

    def begin_frames(self, *frames: bytes) -> None:
        data, spans = FrameBuffer().feed(b"".join(frames))
        self._rest = data, self.session.handle(data, spans)

    @property
    def waiting(self) -> int:
        """How many frames wait."""
        return len(self._rest[1])

    async def go_on(self) -> None:
        """Await the decisions, and handle the frames that wait."""
        data, spans = self._rest
        while spans:
            if self.session.wait_decision is None:
                self.pauses += 1
            else:
                self.waits += 1
                await self.session.wait_decision()
            spans = self.session.handle(data, spans)
        self._rest = data, ()

    async def ask(self, *requests: Request, version: int = 2) -> list[Reply]:
        """The replies that come at once."""
        self.begin(*requests, version=version)
        await self.go_on()
        return self.replies()

    def replies(self) -> list[Reply]:
        data, spans = FrameBuffer().feed(bytes(self._out))
        self._out.clear()
        return [(v2 if data[start] <= 7 else v3).decode_reply(data, start, end).reply for start, end in spans]


def filled(disk: HandDisk) -> None:
    """Ledger 1 has an entry."""
    ledger = disk.create_ledger_by_hand(1)
    disk.entries[1, 0] = ENTRIES.pack(1, 0, -1, 5, b"hello")
    ledger.last_entry_id = 0
