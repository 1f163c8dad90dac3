"""The stored formats of ledger metadata.

All begin with a line in ASCII: ``BookieMetadataFormatVersion`` TAB version LF. The body follows:

version  body
      1  lines: write quorum, ensemble size, length, one per ensemble (first entry id and members, TAB in
         between); at the end ``<last entry>`` TAB ``CLOSED`` without LF, the last entry -102 for IN_RECOVERY
      2  LedgerMetadataFormat in protobuf's text format
      3  varint n, then LedgerMetadataFormat in n bytes; bytes after them are ignored

Inside: encoding and decoding all three. Not inside: the node (``catalog``), legal changes (``metadata``).
Always: metadata are written in the version in which they were read, byte for byte unless a writer omitted a
field that Java writes. Bytes that do not parse never count as "no such ledger".

Source: LedgerMetadataSerDe.java; docs/metadata.md 10.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import assert_never

from google.protobuf import text_format
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from ledger.digest import DigestType
from ledger.errors import LedgerMetadataError, MetadataFormatError
from ledger.metadata import NO_ENTRY, Ensemble, LedgerMetadata, LedgerState
from ledger.wire.data_formats_pb2 import LedgerMetadataFormat
from ledger.wire.protobuf import encode_varint, text_of

METADATA_BYTES_MAX = 4 * 1024 * 1024  # ZooKeeper stores at most 1 MB in a node if not configured otherwise
ENSEMBLE_SIZE_MAX = 10_000
WRITE_SET_MEMBERS_MAX = 100_000

MAGIC = b"BookieMetadataFormatVersion\t"
_VERSION_DIGITS_MAX = 9
_IN_RECOVERY_V1 = -102
_CLOSED_V1 = "CLOSED"
_ESCAPE = re.compile(rb"\\(?:([abfnrtv\\'\"xuU]|[0-3][0-7]{2}|[0-7]{1,2}(?![0-7]))|.?)", re.DOTALL)
_INTEGER = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_DIGEST_TYPES = {digest_type.metadata_number: digest_type for digest_type in DigestType}
_DIGEST_NAMES = {
    digest_type: LedgerMetadataFormat.DigestType.Name(digest_type.metadata_number)
    for digest_type in DigestType
}
_DIGEST_TYPE_FIELD = LedgerMetadataFormat.DIGESTTYPE_FIELD_NUMBER


def encode_metadata(metadata: LedgerMetadata) -> bytes:
    """The bytes to store, in ``metadata.format_version``.

    Raises:
        MetadataFormatError: The version has no field for a value that is set.
    """
    header = MAGIC + b"%d\n" % metadata.format_version
    match metadata.format_version:
        case 1:
            return header + _encode_v1(metadata)
        case 2:
            if metadata.creator_token:
                raise MetadataFormatError("version 2 of ledger metadata has no field for a creator token")
            return header + text_format.MessageToString(_to_message(metadata)).encode()
        case _:
            body = _to_message(metadata).SerializeToString()
            return header + encode_varint(len(body)) + body


def decode_metadata(data: bytes) -> LedgerMetadata:
    """Decode the metadata in a ledger's node.

    Raises:
        MetadataFormatError: It does not parse, lacks a required field, or contradicts itself. The ledger
            exists nevertheless.
    """
    version, body = _split_header(data)
    check_bounds(len(data))
    try:
        match version:
            case 1:
                metadata = _decode_v1(body)
            case 2:
                metadata = _from_message(_parse_text(body), version)
            case _:
                metadata = _from_message(_parse_binary(body), version)
    except (LedgerMetadataError, UnicodeDecodeError) as exc:
        raise MetadataFormatError(f"ledger metadata of version {version}: {exc}") from None
    check_bounds(len(data), metadata.ensemble_size, metadata.write_quorum)
    return metadata


def check_bounds(size_bytes: int, ensemble_size: int = 1, write_quorum: int = 1) -> None:
    """Raise ``MetadataFormatError`` for metadata that no cluster needs and that would cost too much time.

    Clients, auditors and bookies read the metadata of all ledgers, so one ledger must not hold them up.
    """
    if size_bytes > METADATA_BYTES_MAX:
        raise MetadataFormatError(f"ledger metadata of {size_bytes} bytes; at most {METADATA_BYTES_MAX}")
    if ensemble_size > ENSEMBLE_SIZE_MAX or ensemble_size * write_quorum > WRITE_SET_MEMBERS_MAX:
        raise MetadataFormatError(
            f"an ensemble of {ensemble_size} bookies with a write quorum of {write_quorum}; at most"
            f" {ENSEMBLE_SIZE_MAX}, and {WRITE_SET_MEMBERS_MAX} for their product"
        )


def _split_header(data: bytes) -> tuple[int, bytes]:
    if not data.startswith(MAGIC):
        raise MetadataFormatError(f"ledger metadata begins with {data[: len(MAGIC)]!r}, not {MAGIC!r}")
    line_end = data.find(b"\n", len(MAGIC), len(MAGIC) + _VERSION_DIGITS_MAX + 1)
    digits = data[len(MAGIC) : line_end]
    if line_end < 0 or not digits.isdigit():  # at most ``_VERSION_DIGITS_MAX``
        raise MetadataFormatError("ledger metadata without a version number in its first line")
    version = int(digits)
    if not 1 <= version <= 3:
        raise MetadataFormatError(f"ledger metadata of version {version}; this program knows 1 to 3")
    return version, data[line_end + 1 :]


def _to_message(metadata: LedgerMetadata) -> LedgerMetadataFormat:
    message = LedgerMetadataFormat(
        quorumSize=metadata.write_quorum,
        ensembleSize=metadata.ensemble_size,
        length=metadata.length_bytes,
        lastEntryId=metadata.last_entry_id,
        state=metadata.state.name,
        # Both fields or neither: Java 4.18 cannot read a password without a digest type.
        digestType=None if metadata.password is None else _DIGEST_NAMES[metadata.digest_type],
        password=metadata.password,
        ackQuorumSize=metadata.ack_quorum,
        ctime=metadata.ctime_ms,
        cToken=metadata.creator_token if metadata.format_version >= 3 else None,
    )
    for ensemble in metadata.ensembles:
        message.segment.add(ensembleMember=ensemble.bookies, firstEntryId=ensemble.first_entry_id)
    for key, value in metadata.custom.items():
        message.customMetadata.add(key=key, value=value)
    return message


def _from_message(message: LedgerMetadataFormat, version: int) -> LedgerMetadata:
    if not message.IsInitialized():
        raise MetadataFormatError(f"ledger metadata of version {version} without one of its required fields")
    state = LedgerState(message.state)
    closed = state is LedgerState.CLOSED
    if closed and not message.HasField("lastEntryId"):
        raise MetadataFormatError("metadata of a closed ledger without its last entry")
    return LedgerMetadata(
        ensemble_size=message.ensembleSize,
        write_quorum=message.quorumSize,
        ack_quorum=message.ackQuorumSize if message.HasField("ackQuorumSize") else message.quorumSize,
        ensembles=tuple(
            Ensemble(segment.firstEntryId, tuple(map(text_of, segment.ensembleMember)))
            for segment in message.segment
        ),
        state=state,
        # If the ledger is not closed, the stored values of these two have no meaning.
        last_entry_id=message.lastEntryId if closed else NO_ENTRY,
        length_bytes=message.length if closed else 0,
        digest_type=_digest_type_of(message),
        password=message.password if message.HasField("password") else None,
        ctime_ms=message.ctime if message.HasField("ctime") else None,
        custom={text_of(pair.key): pair.value for pair in message.customMetadata},
        creator_token=message.cToken,
        format_version=version,
    )


def _digest_type_of(message: LedgerMetadataFormat) -> DigestType:
    if message.HasField("digestType"):
        # Both are written or neither. As Java does, a type without a password counts as absent: a change of
        # the metadata would drop it.
        return _DIGEST_TYPES[message.digestType] if message.HasField("password") else DigestType.CRC32
    # Protobuf treats a number that the schema lacks as absent, and the default is CRC32. A recovery would
    # then write entries with the wrong digest.
    unknown = UnknownFieldSet(message)
    for index in range(len(unknown)):
        if unknown[index].field_number == _DIGEST_TYPE_FIELD:
            raise MetadataFormatError(f"digest type {unknown[index].data}, which this program does not know")
    return DigestType.CRC32


def _parse_binary(body: bytes) -> LedgerMetadataFormat:
    length, start = _decode_varint(body)
    if length > len(body) - start:
        raise MetadataFormatError(
            f"ledger metadata of {length} bytes, of which only {len(body) - start} are stored"
        )
    message = LedgerMetadataFormat()
    try:
        message.ParseFromString(body[start : start + length])
    except DecodeError as exc:
        raise MetadataFormatError(f"ledger metadata that protobuf cannot parse: {exc}") from None
    return message


def _parse_text(body: bytes) -> LedgerMetadataFormat:
    for escape in _ESCAPE.finditer(body):
        # Python's protobuf would keep the backslash with a warning, and read another password than stored.
        if escape[1] is None:
            raise MetadataFormatError(f"ledger metadata in text with an invalid escape {escape[0]!r}")
    message = LedgerMetadataFormat()
    try:
        text_format.Parse(body.decode(), message, allow_unknown_field=True)
    except (text_format.ParseError, ValueError, RecursionError) as exc:
        raise MetadataFormatError(f"ledger metadata in text that protobuf cannot parse: {exc}") from None
    return message


def _encode_v1(metadata: LedgerMetadata) -> bytes:
    if metadata.ack_quorum != metadata.write_quorum:
        raise MetadataFormatError(
            "version 1 of ledger metadata has a single quorum for writing and acknowledging"
        )
    if metadata.password is not None or metadata.custom or metadata.ctime_ms is not None:
        raise MetadataFormatError(
            "version 1 of ledger metadata has no field for password, ctime or custom data"
        )
    if metadata.creator_token:
        raise MetadataFormatError("version 1 of ledger metadata has no field for a creator token")
    lines = [str(metadata.write_quorum), str(metadata.ensemble_size), str(metadata.length_bytes)]
    for ensemble in metadata.ensembles:
        for bookie in ensemble.bookies:
            if "\t" in bookie or "\n" in bookie:
                raise MetadataFormatError(
                    f"version 1 of ledger metadata cannot hold the bookie id {bookie!r}"
                )
        lines.append("\t".join((str(ensemble.first_entry_id), *ensemble.bookies)))
    match metadata.state:
        case LedgerState.OPEN:
            lines.append("")
        case LedgerState.IN_RECOVERY:
            lines.append(f"{_IN_RECOVERY_V1}\t{_CLOSED_V1}")
        case LedgerState.CLOSED:
            lines.append(f"{metadata.last_entry_id}\t{_CLOSED_V1}")
        case _:
            assert_never(metadata.state)
    return "\n".join(lines).encode()


def _decode_v1(body: bytes) -> LedgerMetadata:
    lines = iter(body.decode().split("\n"))
    write_quorum, ensemble_size, length_bytes = (_next_integer(lines) for _ in range(3))
    ensembles: list[Ensemble] = []
    state = LedgerState.OPEN
    last_entry_id = NO_ENTRY
    for line in lines:
        if not line:
            continue
        number, *members = line.split("\t")
        first_entry_id = _integer(number)
        if members == [_CLOSED_V1]:
            if first_entry_id == _IN_RECOVERY_V1:
                state = LedgerState.IN_RECOVERY
            else:
                state, last_entry_id = LedgerState.CLOSED, first_entry_id
            break
        ensembles.append(Ensemble(first_entry_id, tuple(members)))
    return LedgerMetadata(
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=write_quorum,
        ensembles=tuple(ensembles),
        state=state,
        last_entry_id=last_entry_id,
        length_bytes=length_bytes if state is LedgerState.CLOSED else 0,
        password=None,
        format_version=1,
    )


def _next_integer(lines: Iterable[str]) -> int:
    for line in lines:
        return _integer(line)
    raise MetadataFormatError("ledger metadata of version 1 ends before its ensembles")


def _integer(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise MetadataFormatError(f"ledger metadata of version 1 with {text[:40]!r} in the place of a number")
    return int(text)


def _decode_varint(data: bytes) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data[:5]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, index + 1
    raise MetadataFormatError("ledger metadata without the length of its body")
