"""Whether an append repeats a record that the log has.

Inside: comparing it with the record, or with a checksum of the record.
Not inside: finding the record (``dlog.read.read_only_log``, ``dlog.forwarding.window``).
Always: a record that cannot be compared counts as the one that is repeated, as its transaction id says.

Source: our own; docs/guide.md, "Repeated appends"; docs/shared.md, "Once".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from zlib import crc32

from dlog.encryption import PayloadOpener, sealed_with
from dlog.errors import DecryptionError, EncryptionKeyError
from dlog.format.attributes import decode_attributes, encode_attributes
from dlog.format.record import Record
from ledger.runtime.statistics.tracing import TRACE_HEADERS

_TRACE_NAMES = tuple(name.encode() for name in TRACE_HEADERS)


def _without_trace(headers: Iterable[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """A repeat belongs to another span than the first call."""
    return [each for each in headers if each[0] not in TRACE_HEADERS]


def repeat_checksum(payload: bytes, attributes: bytes | None) -> int:
    """A checksum of the payload, the key and the headers of a record, without those of a trace.

    Args:
        attributes: The key and headers as ``encode_attributes`` returned them.
    """
    checksum = crc32(payload)
    if attributes is not None and any(name in attributes for name in _TRACE_NAMES):
        key, headers, _ = decode_attributes(attributes)
        attributes = encode_attributes(key, dict(_without_trace(headers)))
    return checksum if attributes is None else checksum | crc32(attributes) << 32


def repeat_checksums(
    payloads: Sequence[bytes], attributes: Sequence[bytes | None] | None, start: int, stop: int
) -> list[int]:
    """The checksums of some of the records, from ``start`` to before ``stop``."""
    if attributes is None:
        return list(map(crc32, payloads[start:stop]))
    return list(map(repeat_checksum, payloads[start:stop], attributes[start:stop]))


def is_repeat_of(
    record: Record, payload: bytes, opener: PayloadOpener | None, attributes: bytes | None = None
) -> bool:
    """False if the record, as it is stored, has another payload, key or headers.

    Args:
        attributes: The key and headers as ``encode_attributes`` returned them.
        opener: Decrypts the records of this log; None: the log's writer does not encrypt.
    """
    stored = record.payload
    if opener is not None:
        try:
            record = opener.open_record(record)
            stored = record.payload
        except (DecryptionError, EncryptionKeyError):
            # A record from before encryption, or one with a key that is gone.
            return True
    elif sealed_with(stored) is not None:
        return True  # this writer has no key
    given_key, given, _ = (None, (), None) if attributes is None else decode_attributes(attributes)
    if record.key != given_key or _without_trace(record.headers.items()) != _without_trace(given):
        return False
    return stored == payload
