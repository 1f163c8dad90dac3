"""The log lines of our packages: how they get to the handlers of the program.

Inside: the loggers of our modules; while an event loop of ours serves other threads, the thread in which
handlers are called. Not inside: fields and formats (``events``), levels and handlers, which the program sets.
Always: a loop of ours, and a thread that it waits for, waits for no lock of ``logging`` and no handler. So a
handler may call DLog and wait, and be closed by ``dictConfig`` while it does; what a handler raises ends
nothing of ours; lines keep their order, time, thread and context; at a normal end none is lost.

A program that waits in a handler holds the handler's lock, and in ``dictConfig`` also that of ``logging``. A
line of the loop that it waits for would wait for this lock, and so for ever.

Source: our own; ``QueueHandler`` of Python does the same for handlers, but the program must set it up.
"""

from __future__ import annotations

import atexit
import contextvars
import logging
import os
import queue
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from ledger.runtime.events import event

LINES_MAX = 10_000  # that wait for their handlers; later ones are dropped and counted
_EXIT_S = 10.0  # at exit, without a line that gets through a handler


def get_logger(name: str) -> logging.Logger:
    """The logger for a module of ours: as ``logging.getLogger``, with the rule of this module."""
    return _OwnLogger(name)


@contextmanager
def lines_handed_over() -> Iterator[None]:
    """While this block runs, handlers are called in a thread that no loop of ours waits for.

    The loop that others wait for runs in the thread of this call.
    """
    lines, block = _lines, object()
    lines.blocks[block] = threading.get_ident()
    try:
        yield
    finally:
        lines.blocks.pop(block, None)
        lines.wake()


def warn_unclosed(text: str, source: object, warn: Callable[..., None] = warnings.warn) -> None:
    """Warn of an object that was dropped while it was open; ``__del__`` of the object calls it.

    Python may free an object in the thread of a loop, too. ``logging.captureWarnings``, or another function
    that shows warnings, may call a handler whose lock is held by a thread that waits for this loop; so the
    thread for lines warns then.
    """
    if _lines.is_in_loop() and getattr(warnings.showwarning, "__module__", None) != "warnings":
        _lines.hand_over(warn, text, ResourceWarning)
    else:
        warn(text, ResourceWarning, stacklevel=3, source=source)


def flush_lines(limit_s: float) -> bool:
    """Return True when the handlers had each line logged before, False after this time without progress.

    A caller that holds the lock of a handler waits for itself.
    """
    return _lines.flush(limit_s)


class _OwnLogger(logging.Logger):
    """Passes records to the program's logger of its name, which need not exist. No call takes a lock."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - of logging
        found = self._found()
        return not found.disabled and level > self.manager.disable and level >= found.getEffectiveLevel()

    def handle(self, record: logging.LogRecord) -> None:
        _lines.take(self.name, record)

    def _found(self) -> logging.Logger:
        """The program's logger of this name, or the nearest one above it."""
        name = self.name
        while name:
            if isinstance(found := self.manager.loggerDict.get(name), logging.Logger):
                return found
            name = name.rpartition(".")[0]
        return logging.root


class _Lines:
    """The lines on their way, and the thread that takes them, which exists only while it is needed."""

    def __init__(self) -> None:
        self.blocks: dict[object, int] = {}  # of ``lines_handed_over``, with the thread of each loop
        self._calls: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()  # of handlers, mostly
        self._serving = threading.Lock()  # held by the thread; no loop waits for it
        self._served = self._dropped = 0

    def take(self, name: str, record: logging.LogRecord) -> None:
        if not self.blocks and self._calls.empty() and not self._serving.locked():
            _contained(Exception, _call_handlers, name, record)
        else:
            self.hand_over(_call_handlers, name, record)

    def is_in_loop(self) -> bool:
        """True in the thread of a loop that other threads may wait for."""
        return bool(self.blocks) and threading.get_ident() in list(self.blocks.values())

    def hand_over(self, call: Callable[..., object], *arguments: object) -> None:
        """Have the thread make a call; what it raises is printed."""
        if self._calls.qsize() >= LINES_MAX:
            self._dropped += 1  # of two at the same time one may be counted
        else:
            context = contextvars.copy_context()
            self._calls.put(partial(context.run, _contained, BaseException, call, *arguments))
            with suppress(RuntimeError):  # no thread can be started; the next line, or the exit, tries again
                self._ensure_thread()

    def wake(self) -> None:
        """Let the thread see whether it is still needed."""
        if self._serving.locked():
            self._calls.put(_nothing)

    def flush(self, limit_s: float) -> bool:
        passed = threading.Lock()
        passed.acquire()
        self._calls.put(passed.release)
        try:
            self._ensure_thread()
        except RuntimeError:  # as at the end of a program
            with suppress(queue.Empty):
                while True:
                    self._calls.get_nowait()()
        served = -1
        while served != self._served:
            served = self._served
            if passed.acquire(timeout=limit_s):
                return True
        return False

    def _ensure_thread(self) -> None:
        if self._serving.acquire(blocking=False):
            try:
                threading.Thread(target=self._serve, name="dlog log lines", daemon=True).start()
            except RuntimeError:
                self._serving.release()
                raise

    def _serve(self) -> None:
        """In the thread: call the handlers until no block needs it and no line is left."""
        is_needed = True
        while is_needed:
            while self.blocks or not self._calls.empty():
                self._calls.get()()
                self._served += 1
                self._say_dropped()
            self._serving.release()
            # A line that came before the release found a thread that serves.
            is_needed = not self._calls.empty() and self._serving.acquire(blocking=False)

    def _say_dropped(self) -> None:
        dropped, self._dropped = self._dropped, 0
        if dropped:
            text = "at least %d log lines were dropped, because the handlers were too slow"
            name, extra = __name__, event("log.lines_dropped", lines=dropped)
            line = _log.makeRecord(name, logging.WARNING, __file__, 0, text, (dropped,), None, extra=extra)
            _contained(BaseException, _call_handlers, name, line)


def _call_handlers(name: str, record: logging.LogRecord) -> None:
    logging.getLogger(name).handle(record)


def _contained(kind: type[BaseException], call: Callable[..., object], *arguments: object) -> None:
    try:
        call(*arguments)
    except kind:
        if logging.raiseExceptions and sys.stderr is not None:  # as handlers of Python do with their errors
            print("--- Logging error ---", file=sys.stderr)
            traceback.print_exc()


def _nothing() -> None:
    """Only wakes the thread."""


def _start_again() -> None:
    """In a forked child, which has neither the thread nor the loops; its parent handles the lines."""
    global _lines
    _lines = _Lines()


_log = logging.Logger(__name__)
_lines = _Lines()
os.register_at_fork(after_in_child=_start_again)
# Before that of ``logging``, which closes the handlers, and after those of who imports this module.
atexit.register(flush_lines, _EXIT_S)
