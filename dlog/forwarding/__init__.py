"""One log that many programs write: one owns it, the others forward to it (``open_writer(shared=True)``).

Inside: the writer of each program, the owner, what a repeated record gets. Not inside: the log's one writer
(``dlog.write``). Entry point: ``SharedLogWriter``.
"""

from dlog.forwarding.shared_writer import SharedLogWriter

__all__ = ["SharedLogWriter"]
