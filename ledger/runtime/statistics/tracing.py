"""Spans of OpenTelemetry for the operations of a client.

Inside: the library, which is imported only when tracing is turned on; kinds and attributes of spans.
Not inside: which operations have a span (those that give ``Recorder.operation`` a ``span``).
Always: a span covers a call or a step, never a single record of a batch. Without a tracer provider of the
program the library makes spans that record nothing. The context of a span crosses to other programs in two
headers of W3C; what other programs wrote there is parsed by the library and fails nothing.

Source: OpenTelemetry, semantic conventions for messaging spans; W3C, Trace Context.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ledger.errors import TracingError

SYSTEM = "dlog"  # of the messaging attributes
MESSAGE_ID = "messaging.message.id"  # the position of a record
MESSAGE_COUNT = "messaging.batch.message_count"
TRACE_HEADERS = ("traceparent", "tracestate")  # of W3C's Trace Context
LINKS_MAX = 128  # of one span, as OpenTelemetry's default

Attribute = str | int


class Span(Protocol):
    """The calls of a span of the library that the product makes."""

    def set_attribute(self, key: str, value: Attribute) -> None:
        """Set an attribute; a later value replaces an earlier one."""

    def add_link(self, context: Any) -> None:
        """Link the span with the span of this context."""


class Tracing:
    """Makes spans by the tracer provider that the program has set. Made by ``open_tracing``."""

    def __init__(self, library: Any) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._library, self._tracer = library, library.get_tracer("dlog")
        self._propagator, self._no_context = TraceContextTextMapPropagator(), Context()
        kinds = library.SpanKind
        self._kinds = {"send": kinds.PRODUCER, "receive": kinds.CLIENT}
        self._internal = kinds.INTERNAL

    def start(self, span: str, attributes: Mapping[str, Attribute]) -> AbstractContextManager[Span]:
        """A span for the block, as child of the span that is current in this task.

        Args:
            span: The name of the operation. The name of the span has the log too, if there is one.
            attributes: ``operation_type`` (``send``, ``receive``) makes it a span of messaging; ``log`` is
                its destination; ``message_count`` is for a batch; others get the prefix ``dlog.``.
        """
        found = {_KEYS.get(key, f"dlog.{key}"): value for key, value in attributes.items()}
        kind = self._kinds.get(str(attributes.get("operation_type")), self._internal)
        if kind is not self._internal:
            found |= {"messaging.system": SYSTEM, "messaging.operation.name": span}
        log = attributes.get("log")
        manager: AbstractContextManager[Span] = self._tracer.start_as_current_span(
            span if log is None else f"{span} {log}", kind=kind, attributes=found
        )
        return manager

    def headers(self) -> dict[str, bytes]:
        """The headers that carry the current span to other programs; none without a span."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        return {name: value.encode() for name, value in carrier.items()}

    def link(self, span: Span, headers: Iterable[Mapping[str, bytes]]) -> None:
        """Link a span with the spans that these headers carry, each once, as far as there is room."""
        seen: set[bytes] = set()
        for each in headers:
            parent = each.get(TRACE_HEADERS[0])
            if parent is None or parent in seen:
                continue
            seen.add(parent)
            carrier = {name: each[name].decode("latin-1") for name in TRACE_HEADERS if name in each}
            found = self._library.get_current_span(self._propagator.extract(carrier, self._no_context))
            context = found.get_span_context()
            if context.is_valid:
                span.add_link(context)
            if len(seen) == LINKS_MAX:
                return


_KEYS = {
    "log": "messaging.destination.name",
    "operation_type": "messaging.operation.type",
    "message_count": MESSAGE_COUNT,
}


def open_tracing() -> Tracing:
    """Import the library.

    Raises:
        TracingError: It is not installed.
    """
    try:
        from opentelemetry import trace
    except ImportError as exc:
        raise TracingError(
            "tracing=True: OpenTelemetry is not installed; pip install '.[tracing]' in a checkout of DLog, or"
            " leave the setting out"
        ) from exc
    return Tracing(trace)
