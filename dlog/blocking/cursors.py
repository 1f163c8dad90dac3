"""The cursors of a log without ``async``."""

from __future__ import annotations

from dlog.read.cursors import LogCursors as TrioCursors
from ledger.runtime.tasks.blocking_face import Face, forwarded
from ledger.runtime.tasks.face import Shown, attribute


class LogCursors(Face[TrioCursors]):
    """See ``dlog.LogCursors``."""

    log: Shown[str] = attribute("log", "The log's name.")

    list = forwarded(TrioCursors.list)
    get = forwarded(TrioCursors.get)
    set = forwarded(TrioCursors.set)
    delete = forwarded(TrioCursors.delete)
    lag = forwarded(TrioCursors.lag)
