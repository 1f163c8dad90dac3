"""The cursors of a log without ``async``."""

from __future__ import annotations

from dlog.read.cursors import LogCursors as AsyncLogCursors
from ledger.runtime.tasks.loop_thread import LoopThread
from namespace.cursor_nodes import Cursor
from namespace.dlsn import DLSN


class LogCursors:
    """See ``dlog.LogCursors``."""

    def __init__(self, loop: LoopThread, cursors: AsyncLogCursors) -> None:
        self.log = cursors.log
        self._loop, self._cursors = loop, cursors

    def __repr__(self) -> str:
        return f"<blocking {repr(self._cursors)[1:]}"

    def list(self) -> list[Cursor]:
        """See ``dlog.LogCursors.list``."""
        return self._loop.run(self._cursors.list)

    def get(self, name: str) -> Cursor | None:
        """See ``dlog.LogCursors.get``."""
        return self._loop.run(self._cursors.get, name)

    def set(self, name: str, position: DLSN) -> Cursor:
        """See ``dlog.LogCursors.set``."""
        return self._loop.run(self._cursors.set, name, position)

    def delete(self, name: str) -> bool:
        """See ``dlog.LogCursors.delete``."""
        return self._loop.run(self._cursors.delete, name)

    def lag(self, cursor: Cursor) -> int:
        """See ``dlog.LogCursors.lag``."""
        return self._loop.run(self._cursors.lag, cursor)
