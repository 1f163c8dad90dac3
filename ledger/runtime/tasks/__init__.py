"""Tasks, threads and processes, and their errors.

Inside: tasks in the background, a loop in a thread of its own, services that a block opens, timers, the rule
for forked children. Not inside: the work that they run.
Entry points: ``LoopThread`` and ``for_each``.
"""

from ledger.runtime.tasks.loop_thread import LoopThread
from ledger.runtime.tasks.task_errors import for_each, only_error

__all__ = ["LoopThread", "for_each", "only_error"]
