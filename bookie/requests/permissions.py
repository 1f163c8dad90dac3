"""The rights of an authenticated peer on a ledger: decided once, then looked up for each request.

The decision needs the metadata store (``cluster.log_permissions``). A frame whose ledger is not decided yet
stops its connection: it and all frames behind it wait, in order, and nothing more is received.

Inside: the decisions about each identity and their lifetime, ``GuardedSession``. Not inside: making a
decision, proving an identity (``gate``).
Always: a request that names a ledger reaches the session only if a decision about its peer grants it; a
decision is used for at most its lifetime; without an identity nothing is granted.

Source: our own; docs/security.md, "Permissions at the bookie".
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from struct import Struct
from typing import TYPE_CHECKING, assert_never
from weakref import WeakValueDictionary

import attrs

from bookie.auth.authentication import PeerIdentity
from bookie.requests.deferred import DeferredRequest
from bookie.requests.replies import READ_HEADER, plain_reply
from bookie.requests.request_frames import decode_request
from bookie.requests.service import SLOW_FRAMES_MAX, BookieService, ClientSession
from ledger.codes import Code
from ledger.wire import v2
from ledger.wire.messages import (
    AddRequest,
    AuthRequest,
    BatchReadRequest,
    BookieInfoRequest,
    ForceLedgerRequest,
    IncomingRequest,
    ListEntriesRequest,
    ReadLacRequest,
    ReadRequest,
    Request,
    StartTlsRequest,
    WriteLacRequest,
)

if TYPE_CHECKING:
    from bookie.storage.storage import Storage

DECISIONS_MAX = 200_000  # about all identities together
LEDGERS_MIN = 64  # that each identity has at least, however many identities there are
DECIDED_AT_ONCE = 16  # ledgers of the frames that wait

_ADD = Struct(">I20xq")  # header, ledger id; between them the key
_READ = Struct(">Iq")
_IDS = Struct(">qq")


class Access(enum.IntEnum):
    """A right of a peer on a ledger; each includes those before it."""

    NONE = 0
    READ = 1
    WRITE = 2  # also fence


@attrs.frozen
class Decision:
    """The result of asking for the permissions of a peer."""

    access: Access
    is_lasting: bool = True  # False: ask again for the next chunk
    code: Code = Code.UNAUTHORIZED  # of the refusal, if the access does not suffice


NO_SUCH_LEDGER = Decision(Access.NONE, is_lasting=False)
OUT_OF_REACH = Decision(Access.NONE, is_lasting=False, code=Code.TOO_MANY_REQUESTS)  # the peer tries again

Decide = Callable[[str, Sequence[int]], Awaitable[Mapping[int, Decision]]]
"""The decisions about a peer, by its name, for some ledgers. It always returns, after a bounded time."""


@attrs.frozen(kw_only=True)
class PermissionsConfig:
    """Which policies this bookie obeys."""

    namespaces: tuple[str, ...]  # the paths of their nodes
    lifetime_s: float = attrs.field(default=60.0, validator=attrs.validators.ge(10))  # of a decision


class PeerPermissions:
    """The decisions about one identity. All of its connections share them.

    They are in two generations. After each period the recent ones become the older ones, and these go. A
    decision that is still used in its second period is made again in the background, so that no request waits
    for it.
    """

    def __init__(self, permissions: Permissions, name: str) -> None:
        self.name = name
        self.recent: dict[int, Access] = {}  # the session looks here first
        self._older: dict[int, Access] = {}
        self._permissions = permissions
        self._turn_at_s = permissions.now_s() + permissions.period_s

    def __repr__(self) -> str:
        return f"<PeerPermissions of {self.name!r}, {len(self.recent) + len(self._older)} ledgers>"

    def turn(self) -> None:
        """Drop what is too old. The session calls it for each chunk."""
        now_s, period_s = self._permissions.now_s(), self._permissions.period_s
        if now_s < self._turn_at_s:
            return
        self._older = self.recent if now_s < self._turn_at_s + period_s else {}
        self.recent = {}
        self._turn_at_s = now_s + period_s

    def find_older(self, ledger_id: int) -> Access | None:
        """A decision of the period before; it is made again in the background."""
        access = self._older.get(ledger_id)
        if access is not None:
            self._permissions.refresh(self, ledger_id)
        return access

    def keep(self, ledger_id: int, access: Access) -> None:
        """Use a decision that was just made."""
        if len(self.recent) >= self._permissions.recent_max:
            self._older, self.recent = self.recent, {}
        self.recent[ledger_id] = access

    def forget(self, ledger_id: int) -> None:
        """Decide about this ledger again."""
        self.recent.pop(ledger_id, None)
        self._older.pop(ledger_id, None)


class Permissions:
    """The decisions about all identities that are connected. On the loop."""

    def __init__(
        self,
        decide: Decide,
        *,
        lifetime_s: float,
        now_s: Callable[[], float],
        refresh: Callable[[PeerPermissions, int], None] = lambda peer, ledger_id: None,
    ) -> None:
        """
        Args:
            lifetime_s: A decision is used for at most so long.
            refresh: Makes a decision again, in the background.
        """
        self.decide, self.now_s, self.refresh = decide, now_s, refresh
        self.period_s = lifetime_s / 2
        self._peers: WeakValueDictionary[str, PeerPermissions] = WeakValueDictionary()

    def __repr__(self) -> str:
        return f"<Permissions of {len(self._peers)} identities>"

    @property
    def recent_max(self) -> int:
        """How many recent decisions each identity may have."""
        return max(LEDGERS_MIN, DECISIONS_MAX // 2 // max(1, len(self._peers)))

    def of(self, identity: PeerIdentity) -> PeerPermissions:
        """The decisions about an identity. They are dropped with its last connection."""
        peer = self._peers.get(identity.name)
        if peer is None:
            peer = self._peers[identity.name] = PeerPermissions(self, identity.name)
        return peer

    def forget(self, ledger_id: int) -> None:
        """The ledger is deleted: another one may get its id."""
        for peer in self._peers.values():
            peer.forget(ledger_id)


class GuardedService(BookieService):
    """A service whose sessions check permissions."""

    def __init__(self, storage: Storage, permissions: Permissions, *, sync_adds: bool = True) -> None:
        super().__init__(storage, sync_adds=sync_adds)
        self.permissions = permissions

    def open_session(
        self, send: Callable[[bytes], None], defer: Callable[[DeferredRequest], None]
    ) -> ClientSession:
        """See ``BookieService``."""
        return GuardedSession(self, send, defer, self.permissions)

    def ledger_deleted(self, ledger_id: int, *, fenced: bool) -> None:
        """See ``BookieService``."""
        super().ledger_deleted(ledger_id, fenced=fenced)
        self.permissions.forget(ledger_id)


class _Held(Exception):  # noqa: N818 - no error
    """The frame waits for a decision."""

    def __init__(self, span: tuple[int, int]) -> None:
        self.span = span


class GuardedSession(ClientSession):
    """A session that lets pass only requests that its peer has the right to."""

    def __init__(
        self,
        service: BookieService,
        send: Callable[[bytes], None],
        defer: Callable[[DeferredRequest], None],
        permissions: Permissions,
    ) -> None:
        super().__init__(service, send, defer)
        self._permissions = permissions
        self._peer: PeerPermissions | None = None
        self._decided: Mapping[int, Decision] = {}  # for the first frames that waited
        self._wanted: list[int] = []  # ledgers of the frames that wait

    def handle(self, data: bytes, spans: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
        """See ``ClientSession``. Frames that wait for a decision are among the returned ones.

        If so, ``wait_decision`` is set: the caller awaits it, then calls again.
        """
        self.wait_decision = None
        peer = self._peer
        if peer is None:
            if self.identity is None:
                return self._handle_unidentified(data, spans)
            peer = self._peer = self._permissions.of(self.identity)
        peer.turn()
        left = self._handle_checked(peer, data, spans)
        if not left:
            self._decided = {}
        return left

    def _handle_unidentified(
        self, data: bytes, spans: Sequence[tuple[int, int]]
    ) -> Sequence[tuple[int, int]]:
        """Before authentication; the gate lets START_TLS pass only."""
        try:
            for start, end in spans:
                self._handle_frame(data, start, end)
        finally:
            self._finish()
        return ()

    def _handle_checked(
        self, peer: PeerPermissions, data: bytes, spans: Sequence[tuple[int, int]]
    ) -> Sequence[tuple[int, int]]:
        # ``ClientSession.handle`` serves plain adds and plain reads without another call, so they are checked
        # before it sees them. All other frames pass ``_handle_frame``.
        refused: list[tuple[int, int]] = []
        stop = len(spans)
        for index, span in enumerate(spans):
            start, end = span
            size = end - start
            if size >= v2.ADD_REQUEST_BYTES_MIN:
                header, ledger_id = _ADD.unpack_from(data, start)
                if header != v2.ADD_HEADER:
                    continue
                needed = Access.WRITE
            elif size == 20:
                header, ledger_id = _READ.unpack_from(data, start)
                if header != READ_HEADER:
                    continue
                needed = Access.READ
            else:
                continue
            if peer.recent.get(ledger_id, Access.NONE) >= needed:
                continue
            decision = self._find(peer, ledger_id)
            if decision is None:
                self._wait_for(ledger_id)
                self._want_others(peer, data, spans[index + 1 :])
                stop = index
                break
            if decision.access < needed:
                self._refuse_plain(data, start, end, needed, decision.code)
                refused.append(span)
                if len(refused) == SLOW_FRAMES_MAX:
                    stop = index + 1
                    break
        passed = spans[:stop]
        if refused:
            self.slow_count += len(refused)
            out = set(refused)
            passed = [span for span in passed if span not in out]
        left = self._pass_on(data, passed)
        return [*left, *spans[stop:]] if stop < len(spans) else left

    def _refuse_plain(self, data: bytes, start: int, end: int, needed: Access, code: Code) -> None:
        if needed is Access.READ:
            self._immediate.append(plain_reply(data[start + 4 : end], code))
        else:
            self._immediate.append(v2.add_reply(code, *_IDS.unpack_from(data, start + v2.ADD_BODY_OFFSET)))

    def _pass_on(self, data: bytes, spans: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
        try:
            return super().handle(data, spans)
        except _Held as held:
            return spans[spans.index(held.span) :]

    def _handle_frame(self, data: bytes, start: int, end: int) -> None:
        incoming = decode_request(data, start, end)
        if isinstance(incoming, bytes):
            self._immediate.append(incoming)
            return
        request, peer = incoming.request, self._peer
        if peer is None:
            if isinstance(request, StartTlsRequest | AuthRequest):
                self._dispatch(incoming)
            else:
                self._refuse(incoming, Code.UNAUTHORIZED)
            return
        needed = _needed(request)
        if needed is not None:
            ledger_id, access = needed
            decision = self._find(peer, ledger_id)
            if decision is None:
                self._wait_for(ledger_id)
                raise _Held((start, end))
            if decision.access < access:
                self._refuse(incoming, decision.code)
                return
        self._dispatch(self._limited(incoming))

    def _limited(self, incoming: IncomingRequest) -> IncomingRequest:
        """The request; a long poll waits no longer than a decision may be used."""
        request = incoming.request
        if not isinstance(request, ReadRequest) or request.timeout_ms is None:
            return incoming
        longest_ms = int(self._permissions.period_s * 1000)
        if request.timeout_ms <= longest_ms:
            return incoming
        return attrs.evolve(incoming, request=attrs.evolve(request, timeout_ms=longest_ms))

    # Decisions

    def _find(self, peer: PeerPermissions, ledger_id: int) -> Decision | None:
        access = peer.recent.get(ledger_id)
        if access is None:
            decision = self._decided.get(ledger_id)
            if decision is not None:
                return decision
            access = peer.find_older(ledger_id)
        return None if access is None else _DECISIONS[access]

    def _wait_for(self, ledger_id: int) -> None:
        self._wanted = [ledger_id]
        self.wait_decision = self._decide

    def _want_others(self, peer: PeerPermissions, data: bytes, spans: Sequence[tuple[int, int]]) -> None:
        """Also decide about the plain adds behind the frame, so that they do not wait one after the other."""
        wanted = dict.fromkeys(self._wanted)
        for start, end in spans:
            if end - start >= v2.ADD_REQUEST_BYTES_MIN:
                header, ledger_id = _ADD.unpack_from(data, start)
                if header == v2.ADD_HEADER and ledger_id not in peer.recent:
                    wanted[ledger_id] = None
                    if len(wanted) == DECIDED_AT_ONCE:
                        break
        self._wanted = list(wanted)

    async def _decide(self) -> None:
        peer = self._peer
        assert peer is not None  # ``handle`` sets it before a frame can wait
        self._decided = await self._permissions.decide(peer.name, self._wanted)
        for ledger_id, decision in self._decided.items():
            if decision.is_lasting:
                peer.keep(ledger_id, decision.access)


_DECISIONS = {access: Decision(access) for access in Access}


def _needed(request: Request | None) -> tuple[int, Access] | None:
    """The ledger that a request names, and the access that it needs; None if it names none."""
    match request:
        case AddRequest() | WriteLacRequest() | ForceLedgerRequest():
            return request.ledger_id, Access.WRITE
        case ReadRequest() | BatchReadRequest():
            return request.ledger_id, Access.WRITE if request.fence else Access.READ
        case ReadLacRequest() | ListEntriesRequest():
            return request.ledger_id, Access.READ
        case BookieInfoRequest() | StartTlsRequest() | AuthRequest() | None:
            return None
        case _:
            assert_never(request)
