"""A frozen class for each request and each reply, the same for both protocol versions.

Inside: values only. Not inside: bytes (``v2``, ``v3``), transport, order.
What belongs to one frame rather than to the question (version, transaction id, priority) is in
``Incoming``; what a protocol version cannot say is refused by its codec.

Source: BookieProtocol.java (v2), BookkeeperProtocol.proto (v3); reference sections 2 and 3.
"""

from __future__ import annotations

import attrs

from ledger.wire.codes import Code, Operation

LAST_ENTRY = -1  # as the entry id of a read: the last entry this bookie holds


@attrs.frozen
class AddRequest:
    """Store one entry.

    The ids are those inside the body. Version 3 repeats them beside it, and a peer may lie there: a bookie
    takes the body's and refuses a request whose two pairs differ.
    """

    ledger_id: int
    entry_id: int
    master_key: bytes  # 20 bytes
    body: bytes  # header, digest and payload, exactly as stored
    recovery: bool = False  # allowed on a fenced ledger
    deferred_sync: bool = False  # answer before fsync; v3 only


@attrs.frozen
class ReadRequest:
    """Read one entry, or the last one; perhaps fence; perhaps wait for the LAC to grow (v3)."""

    ledger_id: int
    entry_id: int  # LAST_ENTRY: the last one this bookie holds
    fence: bool = False
    master_key: bytes | None = None  # with fence
    previous_lac: int | None = None  # v3, without fence: answer once the LAC is beyond it
    timeout_ms: int | None = None  # v3, with previous_lac: at the latest after this long
    piggyback_entry: bool = False  # v3, with previous_lac: send entry previous_lac + 1 along


@attrs.frozen
class BatchReadRequest:
    """Read consecutive entries; v2 only."""

    ledger_id: int
    entry_id: int  # the first
    request_id: int  # echoed
    count_max: int  # <= 0: no limit
    size_bytes_max: int
    fence: bool = False
    master_key: bytes | None = None


@attrs.frozen
class WriteLacRequest:
    """Store an explicit LAC; v3 only."""

    ledger_id: int
    lac: int  # informational: the bookie uses the body
    master_key: bytes
    body: bytes  # LAC packet


@attrs.frozen
class ReadLacRequest:
    """Ask for the explicit LAC and the last entry; v3 only."""

    ledger_id: int


@attrs.frozen
class ForceLedgerRequest:
    """Answer when all that was added before is on disk; v3 only."""

    ledger_id: int


@attrs.frozen
class BookieInfoRequest:
    """Ask for disk space; v3 only."""

    total_disk_capacity: bool = True
    free_disk_space: bool = True


@attrs.frozen
class ListEntriesRequest:
    """Ask which entries of a ledger the bookie holds; v3 only."""

    ledger_id: int


@attrs.frozen
class StartTlsRequest:
    """Everything after the answer is TLS; v3 only."""


@attrs.frozen
class AuthRequest:
    """One step of an authentication exchange."""

    plugin: str
    payload: bytes


Request = (
    AddRequest
    | ReadRequest
    | BatchReadRequest
    | WriteLacRequest
    | ReadLacRequest
    | ForceLedgerRequest
    | BookieInfoRequest
    | ListEntriesRequest
    | StartTlsRequest
    | AuthRequest
)


@attrs.frozen
class AddReply:
    """The entry is stored, or why not."""

    code: Code
    ledger_id: int
    entry_id: int


@attrs.frozen
class ReadReply:
    """An entry, or why there is none; to a long poll, how far the ledger has grown."""

    code: Code
    ledger_id: int
    entry_id: int  # the id asked for; for a piggy-backed long poll the one sent along, or -1
    body: bytes | None = None
    max_lac: int | None = None  # v3; covered by no digest
    lac_update_ms: int | None = None  # v3 long poll; epoch milliseconds


@attrs.frozen
class BatchReadReply:
    """Consecutive entries; fewer than asked for is normal."""

    code: Code
    ledger_id: int
    entry_id: int
    request_id: int
    bodies: tuple[bytes, ...] = ()  # consecutive, from entry_id on


@attrs.frozen
class WriteLacReply:
    """The explicit LAC is stored, or why not."""

    code: Code
    ledger_id: int


@attrs.frozen
class ReadLacReply:
    """The two things from which a reader learns how far a ledger has grown."""

    code: Code
    ledger_id: int
    lac_body: bytes | None = None  # the LAC packet of the last WRITE_LAC
    last_entry_body: bytes | None = None


@attrs.frozen
class ForceLedgerReply:
    """All that was added before is on disk, or why not."""

    code: Code
    ledger_id: int


@attrs.frozen
class BookieInfoReply:
    """Disk space, as far as it was asked for."""

    code: Code
    total_disk_bytes: int | None = None
    free_disk_bytes: int | None = None


@attrs.frozen
class ListEntriesReply:
    """Which entries the bookie holds."""

    code: Code
    ledger_id: int
    availability: bytes | None = None  # see ledger.availability


@attrs.frozen
class StartTlsReply:
    """If OK, all bytes after this one are TLS."""

    code: Code


@attrs.frozen
class AuthReply:
    """The other side's step of an authentication exchange."""

    code: Code  # v2 cannot carry it: always OK there
    plugin: str = ""
    payload: bytes = b""


@attrs.frozen
class RefusedReply:
    """An answer without a body of its own kind: not authenticated, unknown operation (v3)."""

    code: Code
    operation: Operation | None  # None: an operation number this program does not know


Reply = (
    AddReply
    | ReadReply
    | BatchReadReply
    | WriteLacReply
    | ReadLacReply
    | ForceLedgerReply
    | BookieInfoReply
    | ListEntriesReply
    | StartTlsReply
    | AuthReply
    | RefusedReply
)


@attrs.frozen
class IncomingRequest:
    """A request with the marks of the frame it came in, which its answer must echo."""

    version: int  # 0, 1, 2 (v2 codec) or 3
    operation: Operation
    request: Request | None  # None: v3 frame without the body its operation needs
    transaction_id: int = 0  # v3
    high_priority: bool = False


@attrs.frozen
class IncomingReply:
    """A reply with the marks that tell which request it answers."""

    version: int
    operation: Operation
    reply: Reply
    transaction_id: int = 0  # v3
