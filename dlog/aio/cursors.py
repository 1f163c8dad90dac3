"""The cursors of a log for asyncio."""

from __future__ import annotations

from dlog.aio.face import Face, forwarded
from dlog.read.cursors import LogCursors as TrioCursors
from ledger.runtime.tasks.face import Shown, attribute


class LogCursors(Face[TrioCursors]):
    """See ``dlog.LogCursors``."""

    log: Shown[str] = attribute("log", "The log's name.")

    list = forwarded(TrioCursors.list)
    get = forwarded(TrioCursors.get)
    set = forwarded(TrioCursors.set)
    delete = forwarded(TrioCursors.delete)
    lag = forwarded(TrioCursors.lag)
