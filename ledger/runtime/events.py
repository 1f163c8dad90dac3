"""The library's own events: log lines of ``logging`` that also carry fields and a context.

Inside: the fields of an event, the context of the program, a formatter that writes JSON.
Not inside: handlers and levels; the program configures ``logging`` as it likes.
Always: a line has its text without this module too; a value cannot add a line, because JSON escapes it.

Each line of ``dlog``, ``ledger`` and ``namespace`` has a name, such as ``segment.roll_failed``, and fields,
such as the log and the number of the segment. A program adds fields of its own to all events of a block. The
tasks that are started there carry them too, also those of a writer that is opened there.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

FORMAT_VARIABLE = "DLOG_LOG_FORMAT"  # for programs: "json", or "text", the default
ATTRIBUTE = "dlog"  # of a LogRecord: the event's name, its fields and the context
_NOTHING: Mapping[str, object] = {}
_context: ContextVar[Mapping[str, object]] = ContextVar("dlog_event_context", default=_NOTHING)


@contextmanager
def event_context(**fields: object) -> Iterator[None]:
    """Add fields to every event of the block, and of the tasks that are started in it."""
    token = _context.set({**_context.get(), **fields})
    try:
        yield
    finally:
        _context.reset(token)


def event(name: str, **fields: object) -> dict[str, object]:
    """The argument ``extra`` of a call of ``logging``: the event's name and fields, and the context."""
    return {ATTRIBUTE: {"event": name, "fields": fields, "context": _context.get()}}


class JsonFormatter(logging.Formatter):
    """Formats each line as one JSON object::

        {"time": "2026-11-22T14:03:05.123Z", "level": "WARNING", "logger": "dlog.write.writer_shell",
         "message": "log orders: segment 7 not rolled: ...", "event": "segment.roll_failed",
         "fields": {"log": "orders", "segment": 7}, "context": {"service": "billing"}}

    ``event``, ``fields`` and ``context`` are there if the line is an event; ``error`` is the traceback if the
    line has one. Lines of other libraries are formatted too.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line, without a line break."""
        moment = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
        }
        known = getattr(record, ATTRIBUTE, None)
        if isinstance(known, dict):
            line |= {key: value for key, value in known.items() if value}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def start_logging(level: int, text_format: str) -> None:
    """Send log lines of this program to its standard error, in the format that the environment asks for.

    It does nothing if the program has set up logging already.

    Raises:
        ValueError: The variable ``DLOG_LOG_FORMAT`` is neither ``text`` nor ``json``.
    """
    asked = os.environ.get(FORMAT_VARIABLE, "text")
    if asked not in ("text", "json"):
        raise ValueError(f"{FORMAT_VARIABLE}={asked!r}: it is `text` or `json`")
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if asked == "json" else logging.Formatter(text_format))
    logging.basicConfig(level=level, handlers=[handler])
