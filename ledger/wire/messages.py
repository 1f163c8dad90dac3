"""A frozen class for each request and each reply, the same for both protocol versions.

Inside: values. Not inside: bytes (``v2``, ``v3``), transport, order.
The fields of the frame (version, transaction id, priority) are in ``IncomingRequest`` and ``IncomingReply``.
The codec of a protocol version refuses a message that the version does not have.

Source: BookieProtocol.java (v2), BookkeeperProtocol.proto (v3); docs/protocol.md 2, 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ledger.codes import Code, Operation

LAST_ENTRY = -1  # as the entry id of a read: the last entry of this bookie


@attrs.frozen
class AddRequest:
    """Store one entry.

    The ids are those in the body. Version 3 repeats them outside it. A bookie uses the ids of the body and
    refuses a request whose two pairs of ids differ.
    """

    ledger_id: int
    entry_id: int
    master_key: bytes = attrs.field(repr=False)  # 20 bytes
    body: bytes  # header, digest and payload, exactly as stored
    recovery: bool = False  # allowed on a fenced ledger
    deferred_sync: bool = False  # reply before fsync; v3 only


@attrs.frozen
class ReadRequest:
    """Read one entry or the last one; optionally fence, or wait for the LAC to grow (v3)."""

    ledger_id: int
    entry_id: int  # LAST_ENTRY: the last entry of this bookie
    fence: bool = False
    master_key: bytes | None = attrs.field(default=None, repr=False)  # with fence
    previous_lac: int | None = None  # v3, without fence: reply once the LAC is greater
    timeout_ms: int | None = None  # v3, with previous_lac: reply at the latest after this time
    piggyback_entry: bool = False  # v3, with previous_lac: include entry previous_lac + 1
    wants_lac: bool = False  # v3, with previous_lac; ours: include a LAC packet that says more than the entry
    replies_max: int = 1  # v3, with previous_lac; ours: a reply for each growth of the LAC, up to this many


@attrs.frozen
class BatchReadRequest:
    """Read consecutive entries; v2 only."""

    ledger_id: int
    entry_id: int  # the first
    request_id: int  # repeated in the reply
    count_max: int  # <= 0: no limit
    size_bytes_max: int
    fence: bool = False
    master_key: bytes | None = attrs.field(default=None, repr=False)
    locate: bool = False  # ours: a ``LocatedReply`` will do. A bookie that cannot give one sends the entries


@attrs.frozen
class WriteLacRequest:
    """Store an explicit LAC; v3 only."""

    ledger_id: int
    lac: int  # informational: the bookie uses the body
    master_key: bytes = attrs.field(repr=False)
    body: bytes  # LAC packet
    hint: bool = False  # ours: keep it in memory only, and do not reply


@attrs.frozen
class ReadLacRequest:
    """Read the explicit LAC and the last entry; v3 only."""

    ledger_id: int


@attrs.frozen
class ForceLedgerRequest:
    """Reply when all entries added before are on disk; v3 only."""

    ledger_id: int


@attrs.frozen
class BookieInfoRequest:
    """Read the disk space; v3 only."""

    total_disk_capacity: bool = True
    free_disk_space: bool = True
    features: bool = False  # ours: say what this bookie can do besides Apache's


@attrs.frozen
class ListEntriesRequest:
    """Read which entries of a ledger the bookie holds; v3 only."""

    ledger_id: int


@attrs.frozen
class StartTlsRequest:
    """Start TLS after the reply; v3 only."""


@attrs.frozen
class AuthRequest:
    """One step of an authentication exchange."""

    plugin: str
    payload: bytes = attrs.field(repr=False)  # may be a password or a token


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
    """The outcome of an add; OK if the entry is stored."""

    code: Code
    ledger_id: int
    entry_id: int


@attrs.frozen
class ReadReply:
    """An entry, or the reason why there is none; for a long poll, the LAC."""

    code: Code
    ledger_id: int
    entry_id: int  # as requested; for a piggy-backed long poll that of the included entry, or -1
    body: bytes | None = None
    max_lac: int | None = None  # v3; covered by no digest
    lac_update_ms: int | None = None  # v3 long poll; epoch milliseconds
    lac_body: bytes | None = None  # v3 long poll with wants_lac; LAC packet
    more_follow: bool = False  # v3 long poll with replies_max: this is not the last reply


@attrs.frozen
class BatchReadReply:
    """Consecutive entries; fewer than requested is normal."""

    code: Code
    ledger_id: int
    entry_id: int
    request_id: int
    bodies: Sequence[bytes] = ()  # consecutive, from entry_id on; ``PackedEntries`` if received


@attrs.frozen
class LocatedReply:
    """Ours: where consecutive entries lie in an entry log that the client can open, too."""

    code: Code  # always OK
    ledger_id: int
    entry_id: int  # the first
    request_id: int
    log_id: int
    device: int  # of the log's file, as ``stat`` names it
    inode: int
    offset: int  # of the size in front of the first entry
    starts: tuple[int, ...]  # from there to the size in front of each entry; ascending, the first is 0


@attrs.frozen
class WriteLacReply:
    """The outcome of a WRITE_LAC; OK if the explicit LAC is stored."""

    code: Code
    ledger_id: int


@attrs.frozen
class ReadLacReply:
    """The explicit LAC and the last entry, which carries a LAC too."""

    code: Code
    ledger_id: int
    lac_body: bytes | None = None  # the LAC packet of the last WRITE_LAC
    last_entry_body: bytes | None = None


@attrs.frozen
class ForceLedgerReply:
    """The outcome of a FORCE_LEDGER; OK if all entries added before are on disk."""

    code: Code
    ledger_id: int


@attrs.frozen
class BookieInfoReply:
    """Disk space; None for a number that was not requested."""

    code: Code
    total_disk_bytes: int | None = None
    free_disk_bytes: int | None = None
    takes_lac_hints: bool = False  # ours


@attrs.frozen
class ListEntriesReply:
    """The entries that the bookie holds."""

    code: Code
    ledger_id: int
    availability: bytes | None = None  # see ledger.catalog.availability


@attrs.frozen
class StartTlsReply:
    """If OK, all bytes after this reply are TLS."""

    code: Code


@attrs.frozen
class AuthReply:
    """The bookie's step of an authentication exchange."""

    code: Code  # v2 cannot carry it: always OK there
    plugin: str = ""
    payload: bytes = attrs.field(default=b"", repr=False)


@attrs.frozen
class RefusedReply:
    """A reply without the body of its operation: not authenticated, or unknown operation (v3)."""

    code: Code
    operation: Operation | None  # None: an unknown operation number


Reply = (
    AddReply
    | ReadReply
    | BatchReadReply
    | LocatedReply
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
    """A request with the fields of its frame, which the reply must repeat."""

    version: int  # 0, 1, 2 (v2 codec) or 3
    operation: Operation
    request: Request | None  # None: a v3 frame without the body of its operation
    transaction_id: int = 0  # v3
    high_priority: bool = False


@attrs.frozen
class IncomingReply:
    """A reply with the fields of its frame, which identify the request."""

    version: int
    operation: Operation
    reply: Reply
    transaction_id: int = 0  # v3
