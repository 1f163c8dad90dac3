"""What an append and its span tell each other: the headers that carry the span to readers, the position.

Inside: which records get the headers. Not inside: the headers (``ledger.runtime.statistics.tracing``).
Always: nothing of a trace makes a record fail, or makes one that fits into an entry take several.

Source: our own; docs/observability.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dlog.encryption import OVERHEAD_BYTES_MAX
from dlog.format.attributes import encode_attributes
from dlog.format.record import PAYLOAD_BYTES_MAX, RECORD_BYTES_MAX
from dlog.write.batcher import encoded_bytes
from ledger.runtime.statistics import Recorder
from ledger.runtime.statistics.tracing import MESSAGE_ID, Span
from namespace.dlsn import DLSN

Buffer = bytes | bytearray | memoryview
_SEALED_BYTES = 2 * OVERHEAD_BYTES_MAX  # of a payload and of its attributes


class TraceHeaders:
    """Gives the records of one writer the headers that carry a span."""

    def __init__(self, recorder: Recorder, payload_bytes_max: int, *, takes_any: bool) -> None:
        """``takes_any``: the writer takes headers."""
        self._recorder, self._takes_any = recorder, takes_any
        # Of a payload and its attributes together, encrypted too.
        self._bytes_max = min(payload_bytes_max, PAYLOAD_BYTES_MAX - _SEALED_BYTES)

    def of_one(
        self,
        span: Span | None,
        payload_bytes: int,
        attributes: bytes | None,
        key: Buffer | None,
        headers: Mapping[str, Buffer] | None,
    ) -> bytes | None:
        """The attributes of a record with the headers of the span too, if there is room for them.

        Args:
            attributes: Of ``key`` and ``headers``.
        """
        if span is None or not self._takes_any:
            return attributes
        carried, given = self._recorder.trace_headers(), headers or {}
        if not carried or not given.keys().isdisjoint(carried):
            return attributes  # the program carries a trace itself
        try:
            found = encode_attributes(key, {**given, **carried})
        except ValueError:  # the limits of headers
            return attributes
        return attributes if found is None or payload_bytes + len(found) > self._bytes_max else found

    def of_all(
        self,
        span: Span | None,
        records: Sequence[bytes],
        attributes: list[bytes | None] | None,
        *,
        atomic: bool,
    ) -> list[bytes | None] | None:
        """The same for the records of one call, if none of them has attributes of its own."""
        if span is None or not self._takes_any or attributes is not None:
            return attributes
        carried = encode_attributes(None, self._recorder.trace_headers())
        if carried is None:
            return None
        limit = self._bytes_max - len(carried)
        found = [carried if len(each) <= limit else None for each in records]
        size_bytes = encoded_bytes(records, found) + _SEALED_BYTES * len(records)
        return None if atomic and size_bytes > RECORD_BYTES_MAX else found


def marked(span: Span | None, dlsn: DLSN) -> DLSN:
    """The position, which the span of the append names, too."""
    if span is not None:
        span.set_attribute(MESSAGE_ID, str(dlsn))
    return dlsn
