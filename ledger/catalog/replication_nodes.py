r"""The bytes of the nodes below ``underreplication``, as Apache's auditor and workers write them.

```
node                              data
LAYOUT                            type: "BASIC"\nversion: 1\n
ledgers/.../urL<id>               replica: "<bookie>"\n for each lost replica, then ctime: <ms>\n
locks/urL<id>                     bookieId: "<host name of the worker>"\n
auditorelection/V_<number>        bookieId: "<id of the candidate>"\n
lostBookieRecoveryDelay           seconds in decimal
checkallledgersctime              binary: field 1, epoch milliseconds
placementpolicycheckctime         the same
replicascheckctime                the same
```

Inside: encoding and decoding. Not inside: paths (``catalog.paths``), reading and writing nodes.
Always: text that does not parse is an error; unknown fields are skipped, as newer Java does.

Source: DataFormats.proto, ZkLedgerUnderreplicationManager.java; docs/metadata.md 12, 13.
"""

from __future__ import annotations

from typing import TypeVar

import attrs
from google.protobuf import text_format
from google.protobuf.message import DecodeError, Message

from ledger.errors import MetadataFormatError
from ledger.wire import data_formats_pb2 as pb
from ledger.wire.protobuf import text_of

REREPLICATION_LAYOUT = b'type: "BASIC"\nversion: 1\n'

T = TypeVar("T", bound=Message)


@attrs.frozen
class Mark:
    """The data of an under-replication mark."""

    replicas: tuple[str, ...]  # bookies that lost the ledger; empty: the worker looks at the whole ledger
    ctime_ms: int | None = None  # when it was marked, epoch milliseconds; None if it is not stored

    def with_replicas(self, bookies: tuple[str, ...], now_ms: int | None) -> Mark | None:
        """The mark with more bookies; None if it names them all already, so that its version stays."""
        new = tuple(bookie for bookie in dict.fromkeys(bookies) if bookie not in self.replicas)
        return Mark(self.replicas + new, now_ms) if new else None


def encode_mark(mark: Mark) -> bytes:
    """The text of a mark."""
    message = pb.UnderreplicatedLedgerFormat(replica=mark.replicas)
    if mark.ctime_ms is not None:
        message.ctime = mark.ctime_ms
    return _text(message)


def decode_mark(data: bytes) -> Mark:
    """Parse a mark.

    Raises:
        MetadataFormatError: It does not parse.
    """
    message = _parsed(data, pb.UnderreplicatedLedgerFormat())
    replicas = tuple(_text_in(replica, data) for replica in message.replica)
    return Mark(replicas, message.ctime if message.HasField("ctime") else None)


def encode_lock(host_name: str) -> bytes:
    """The text of a lock."""
    return _text(pb.LockDataFormat(bookieId=host_name))


def encode_vote(candidate: str) -> bytes:
    """The text of a vote in the election of the auditor."""
    return _text(pb.AuditorVoteFormat(bookieId=candidate))


def decode_vote(data: bytes) -> str:
    """The candidate of a vote.

    Raises:
        MetadataFormatError: It does not parse, or names no candidate.
    """
    message = _parsed(data, pb.AuditorVoteFormat())
    if not message.bookieId:
        raise MetadataFormatError(f"an auditor's vote without a bookie id: {data[:120]!r}")
    return _text_in(message.bookieId, data)


def check_layout(data: bytes) -> None:
    """Check the LAYOUT node of the under-replication tree.

    Raises:
        MetadataFormatError: The tree has another layout. This program must not write into it.
    """
    message = _parsed(data, pb.LedgerRereplicationLayoutFormat())
    if (message.type, message.version) != ("BASIC", 1):
        raise MetadataFormatError(
            f"the under-replication tree has the layout {message.type!r} {message.version}; this program"
            " knows 'BASIC' 1"
        )


def encode_delay(seconds: int) -> bytes:
    """The data of ``lostBookieRecoveryDelay``."""
    return b"%d" % seconds


def decode_delay(data: bytes) -> int:
    """The delay in seconds.

    Raises:
        MetadataFormatError: It is no number, or less than 0.
    """
    if not data.isdigit() or len(data) > 10:
        raise MetadataFormatError(
            f"lostBookieRecoveryDelay is {data[:40]!r}; expected a number of seconds."
            " `dlog autorecovery delay SECONDS` writes one"
        )
    return int(data)


def encode_check_time(epoch_ms: int) -> bytes:
    """The data of ``checkallledgersctime``, ``placementpolicycheckctime`` and ``replicascheckctime``."""
    # Three messages with the same field, so the bytes are the same.
    return pb.CheckAllLedgersFormat(checkAllLedgersCTime=epoch_ms).SerializeToString()


def decode_check_time(data: bytes) -> int | None:
    """The time of the last complete check, epoch milliseconds; None if it is not stored.

    Raises:
        MetadataFormatError: It does not parse.
    """
    try:
        message = pb.CheckAllLedgersFormat.FromString(data)
    except DecodeError as exc:
        raise MetadataFormatError(f"the time of a check does not parse: {data[:40]!r}") from exc
    return message.checkAllLedgersCTime if message.HasField("checkAllLedgersCTime") else None


def _text_in(value: str, data: bytes) -> str:
    try:
        return text_of(value)
    except UnicodeDecodeError as exc:
        raise MetadataFormatError(f"a node with a text that is not UTF-8: {data[:120]!r}") from exc


def _text(message: Message) -> bytes:
    return text_format.MessageToString(message).encode()


def _parsed(data: bytes, message: T) -> T:
    try:
        text_format.Parse(data.decode(), message, allow_unknown_field=True)
    except (text_format.ParseError, ValueError, RecursionError) as exc:
        name = message.DESCRIPTOR.name
        raise MetadataFormatError(f"a node with a {name} that does not parse: {data[:120]!r}") from exc
    return message
