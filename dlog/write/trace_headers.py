"""What an append and its span tell each other: the headers that carry the span to readers, the position.

Inside: which records get the headers. Not inside: the headers (``ledger.runtime.statistics.tracing``).
Always: nothing of a trace makes a record fail, or makes one that fits into an entry take several.

Source: our own; docs/observability.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dlog.encryption import OVERHEAD_BYTES_MAX
from dlog.format.attributes import decode_attributes, encode_attributes
from dlog.format.record import PAYLOAD_BYTES_MAX, RECORD_BYTES_MAX
from dlog.write.batcher import encoded_bytes
from ledger.runtime.statistics import Recorder
from ledger.runtime.statistics.tracing import MESSAGE_ID, Span
from namespace.dlsn import DLSN

_SEALED_BYTES = 2 * OVERHEAD_BYTES_MAX  # of a payload and of its attributes


class TraceHeaders:
    """Gives the records of one writer the headers that carry a span."""

    def __init__(self, recorder: Recorder, payload_bytes_max: int, *, takes_any: bool) -> None:
        """``takes_any``: the writer takes headers."""
        self._recorder, self._takes_any = recorder, takes_any
        # Of a payload and its attributes together, encrypted too.
        self._bytes_max = min(payload_bytes_max, PAYLOAD_BYTES_MAX - _SEALED_BYTES)

    @property
    def is_carried(self) -> bool:
        """True if records carry the span that is current, where there is one."""
        return self._takes_any and self._recorder.makes_spans

    def of_one(self, payload_bytes: int, attributes: bytes | None) -> bytes | None:
        """The attributes of a record with the headers of the current span too, if there is room for them."""
        carried = self._recorder.trace_headers() if self._takes_any else {}
        return self._with(carried, payload_bytes, attributes) if carried else attributes

    def of_all(
        self, records: Sequence[bytes], attributes: list[bytes | None] | None, *, atomic: bool
    ) -> list[bytes | None] | None:
        """The same for the records of one call."""
        carried = self._recorder.trace_headers() if self._takes_any else {}
        if not carried:
            return attributes
        if attributes is None:
            plain = encode_attributes(None, carried) or b""
            limit = self._bytes_max - len(plain)
            found = [plain if len(each) <= limit else None for each in records]
        else:
            pairs = zip(records, attributes, strict=True)
            found = [self._with(carried, len(record), each) for record, each in pairs]
        size_bytes = encoded_bytes(records, found) + _SEALED_BYTES * len(records)
        return attributes if atomic and size_bytes > RECORD_BYTES_MAX else found

    def _with(
        self, carried: Mapping[str, bytes], payload_bytes: int, attributes: bytes | None
    ) -> bytes | None:
        key, given = None, dict[str, bytes]()
        if attributes is not None:
            key, headers, _ = decode_attributes(attributes)
            given = dict(headers)
        if not given.keys().isdisjoint(carried):
            return attributes  # the program carries a trace itself
        try:
            found = encode_attributes(key, {**given, **carried})
        except ValueError:  # the limits of headers
            return attributes
        return attributes if found is None or payload_bytes + len(found) > self._bytes_max else found


def marked(span: Span | None, dlsn: DLSN) -> DLSN:
    """The position, which the span of the append names, too."""
    if span is not None:
        span.set_attribute(MESSAGE_ID, str(dlsn))
    return dlsn
