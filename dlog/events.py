"""The library's own events, for programs that keep a structured log.

    handler = logging.StreamHandler()
    handler.setFormatter(dlog.events.JsonFormatter())
    logging.getLogger("dlog").addHandler(handler)

    with dlog.events.event_context(service="billing"):
        async with namespace.open_writer("orders") as log: ...  # all of its events have service=billing

Inside: names for applications. Not inside: the events (``ledger.runtime.events``).
"""

from ledger.runtime.events import ATTRIBUTE, JsonFormatter, event_context

__all__ = ["ATTRIBUTE", "JsonFormatter", "event_context"]
