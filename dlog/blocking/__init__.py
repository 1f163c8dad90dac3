"""Namespaces, writers and readers without ``async``: for scripts, notebooks, Spark workers, asyncio.

Inside: objects that pass each call to the asynchronous implementation, in a trio loop in a thread of its own;
the promise of each call is that of the asynchronous call of the same name.
Not inside: the loop (``ledger.tasks.loop_thread``), any behaviour of their own.
Always: calls may come from any thread; a KeyboardInterrupt cancels the waiting call, as a cancellation does:
a reader loses no record, an interrupted ``append`` may have written its record; one thread's order stays.
"""

from dlog.blocking.cursors import LogCursors
from dlog.blocking.namespace import Namespace, open_namespace
from dlog.blocking.reader import LogReader
from dlog.blocking.writer import LogWriter

__all__ = ["LogCursors", "LogReader", "LogWriter", "Namespace", "open_namespace"]
