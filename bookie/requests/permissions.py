"""The rights of an authenticated peer on a ledger: decided once, then looked up for each request.

The decision needs the metadata store (``cluster.log_permissions``). A frame whose ledger is not decided yet
stops its connection: it and all frames after it wait, in order, and nothing more is received.

Inside: the decisions about each identity and their lifetime, ``SessionAccess``. Not inside: making a
decision, proving an identity (``gate``), handling requests (``session``).
Always: a request that names a ledger is handled only if a decision about its peer grants it; a decision is
used for at most its lifetime; without an identity nothing is granted.

Source: our own; docs/security.md, "Permissions at the bookie".
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from struct import Struct
from typing import assert_never
from weakref import WeakValueDictionary

import attrs

from ledger.auth.authentication import PeerIdentity
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

DECISIONS_MAX = 200_000  # about all identities together
LEDGERS_MIN = 64  # that each identity has at least, however many identities there are
DECIDED_AT_ONCE = 16  # ledgers of the frames that wait

_ADD = Struct(">I20xq")  # header, ledger id; between them the key


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
            lifetime_s: A decision is used for at most this long.
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


class SessionAccess:
    """The rights of the peer of one connection. ``ClientSession`` asks it before it handles a frame."""

    def __init__(self, permissions: Permissions) -> None:
        self._permissions = permissions
        self._peer: PeerPermissions | None = None
        self._decided: Mapping[int, Decision] = {}  # for the first frames that waited
        self._wanted: list[int] = []  # ledgers of the frames that wait

    def __repr__(self) -> str:
        return f"<SessionAccess of {self._peer!r}, {len(self._wanted)} wanted>"

    def begin(self, identity: PeerIdentity | None) -> None:
        """A chunk begins. Without an identity nothing is granted."""
        if self._peer is None and identity is not None:
            self._peer = self._permissions.of(identity)
        if self._peer is not None:
            self._peer.turn()

    def end(self) -> None:
        """All frames of the chunk are handled: the next ones ask again."""
        self._decided = {}

    def may_write(self, ledger_id: int) -> bool:
        """False also if that is not decided yet."""
        return self._has(ledger_id, Access.WRITE)

    def may_read(self, ledger_id: int) -> bool:
        """False also if that is not decided yet."""
        return self._has(ledger_id, Access.READ)

    def check(self, incoming: IncomingRequest) -> IncomingRequest | Code | None:
        """The request as its peer may make it, the code that refuses it, or None: it waits (``decide``)."""
        request = incoming.request
        if self._peer is None:  # the gate lets START_TLS and tokens pass only
            return incoming if isinstance(request, StartTlsRequest | AuthRequest) else Code.UNAUTHORIZED
        needed = _needed(request)
        if needed is not None:
            ledger_id, access = needed
            decision = self._find(self._peer, ledger_id)
            if decision is None:
                self._wanted = [ledger_id]
                return None
            if decision.access < access:
                return decision.code
        return self._limited(incoming)

    def want_others(self, data: bytes, spans: Sequence[tuple[int, int]]) -> None:
        """Also decide about the plain adds after a frame that waits, so that they wait once for all."""
        peer, wanted = self._peer, dict.fromkeys(self._wanted)
        for start, end in spans:
            if peer is not None and end - start >= v2.ADD_REQUEST_BYTES_MIN:
                header, ledger_id = _ADD.unpack_from(data, start)
                if header == v2.ADD_HEADER and ledger_id not in peer.recent:
                    wanted[ledger_id] = None
                    if len(wanted) == DECIDED_AT_ONCE:
                        break
        self._wanted = list(wanted)

    async def decide(self) -> None:
        """Decide about the ledgers of the frames that wait."""
        peer = self._peer
        assert peer is not None  # ``check`` lets no frame wait before ``begin`` has set it
        self._decided = await self._permissions.decide(peer.name, self._wanted)
        for ledger_id, decision in self._decided.items():
            if decision.is_lasting:
                peer.keep(ledger_id, decision.access)

    def _has(self, ledger_id: int, access: Access) -> bool:
        peer = self._peer
        if peer is None:
            return False
        found = peer.recent.get(ledger_id)
        if found is None:
            decision = self._find(peer, ledger_id)
            return decision is not None and decision.access >= access
        return found >= access

    def _find(self, peer: PeerPermissions, ledger_id: int) -> Decision | None:
        access = peer.recent.get(ledger_id)
        if access is None:
            decision = self._decided.get(ledger_id)
            if decision is not None:
                return decision
            access = peer.find_older(ledger_id)
        return None if access is None else _DECISIONS[access]

    def _limited(self, incoming: IncomingRequest) -> IncomingRequest:
        """The request; a long poll waits no longer than a decision may be used."""
        request = incoming.request
        if not isinstance(request, ReadRequest) or request.timeout_ms is None:
            return incoming
        longest_ms = int(self._permissions.period_s * 1000)
        if request.timeout_ms <= longest_ms:
            return incoming
        return attrs.evolve(incoming, request=attrs.evolve(request, timeout_ms=longest_ms))


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
