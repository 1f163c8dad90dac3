"""Record sets as other clients write them; DLog's writer writes none."""

from __future__ import annotations

from collections.abc import Sequence

from dlog.format.compression import Compression, compress
from dlog.format.record import PAYLOAD_BYTES_MAX, RECORD_BYTES_MAX
from dlog.format.record_set import (
    LENGTH,
    SET_HEADER,
    SET_HEADER_BYTES,
    SET_VERSION,
    SETS_BYTES_MAX,
    SETS_RECORDS_MAX,
)


def encode_record_set(payloads: Sequence[bytes], codec: Compression = Compression.NONE) -> bytes:
    """The payload of one record that holds these sub-records.

    Raises:
        ValueError: There is no sub-record, one exceeds its limit, the set exceeds the limit of a record, or
            more records or bytes than a reader expands.
    """
    if not payloads:
        raise ValueError("a record set holds at least one record")
    parts: list[bytes] = []
    for payload in payloads:
        if len(payload) > RECORD_BYTES_MAX:
            raise ValueError(f"sub-record of {len(payload)} bytes, at most {RECORD_BYTES_MAX}")
        parts += (LENGTH.pack(len(payload)), payload)
    body = b"".join(parts)
    if len(payloads) > SETS_RECORDS_MAX or len(body) > SETS_BYTES_MAX:
        raise ValueError(
            f"record set of {len(payloads)} records and {len(body)} bytes, at most {SETS_RECORDS_MAX} and"
            f" {SETS_BYTES_MAX}"
        )
    stored = compress(codec, body)
    if SET_HEADER_BYTES + len(stored) > PAYLOAD_BYTES_MAX:
        raise ValueError(f"record set of {SET_HEADER_BYTES + len(stored)} bytes, at most {PAYLOAD_BYTES_MAX}")
    return SET_HEADER.pack(SET_VERSION | codec.value, len(payloads), len(body), len(stored)) + stored
