"""While a loop of ours runs, handlers are called in a thread that nothing of ours waits for."""

from __future__ import annotations

import ast
import logging
import queue
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from ledger.runtime import log_lines
from ledger.runtime.events import ATTRIBUTE, event, event_context
from ledger.runtime.log_lines import flush_lines, get_logger, lines_handed_over, warn_unclosed
from tests.source_tree import modules

LIMIT_S = 60
NAME = "ledger.runtime.test_log_lines"


class Kept(logging.Handler):
    """Keeps each line, with the thread in which the handler was called."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: queue.SimpleQueue[tuple[logging.LogRecord, threading.Thread]] = queue.SimpleQueue()

    def emit(self, record: logging.LogRecord) -> None:
        self.before(record)
        self.lines.put((record, threading.current_thread()))

    def before(self, record: logging.LogRecord) -> None:
        """What the handler does with the line."""

    def next(self) -> tuple[logging.LogRecord, threading.Thread]:
        return self.lines.get(timeout=LIMIT_S)

    def texts(self) -> list[str]:
        assert flush_lines(LIMIT_S)
        return [self.next()[0].getMessage() for _ in range(self.lines.qsize())]


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler, logger = Kept(), logging.getLogger(NAME)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def in_thread(name: str, call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call, name=name)
    thread.start()
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_without_a_loop_of_ours_a_line_is_handled_where_it_is_logged(kept: Kept) -> None:
    get_logger(NAME).info("one")
    assert kept.next()[1] is threading.current_thread()


def test_a_line_keeps_its_time_thread_place_and_context(kept: Kept) -> None:
    log = get_logger(NAME)

    def work() -> None:
        with event_context(service="billing"):
            log.info("%s of %d", "one", 2, extra=event("test.event", shard=7))

    with lines_handed_over():
        in_thread("worker", work)
        record, thread = kept.next()
    assert thread is not threading.current_thread()
    assert (record.threadName, record.getMessage()) == ("worker", "one of 2")
    assert (record.funcName, record.filename, record.name) == ("work", "test_log_lines.py", NAME)
    assert vars(record)[ATTRIBUTE]["context"] == {"service": "billing"}


def test_the_thread_goes_after_the_last_block_and_lines_keep_their_order(kept: Kept) -> None:
    log, may_continue = get_logger(NAME), threading.Event()
    kept.before = lambda record: may_continue.wait(LIMIT_S)  # type: ignore[assignment]
    with lines_handed_over():
        with lines_handed_over():
            log.info("0")
        log.info("1")
    log.info("2")  # the handler has not had the others yet
    may_continue.set()
    (first, serving), others = kept.next(), kept.texts()
    assert [first.getMessage(), *others] == ["0", "1", "2"]
    serving.join(LIMIT_S)
    assert not serving.is_alive()
    log.info("3")
    assert kept.next()[1] is threading.current_thread()


@pytest.mark.parametrize("block", [lines_handed_over, nullcontext])
def test_an_error_of_a_handler_is_shown_and_ends_nothing(
    kept: Kept, block: Callable[[], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(record: logging.LogRecord) -> None:
        if record.getMessage() == "one":
            raise ConnectionError("the log server is away")

    kept.before = fail  # type: ignore[method-assign]
    with block():
        get_logger(NAME).info("one")
        get_logger(NAME).info("two")
        assert kept.texts() == ["two"]
    assert "--- Logging error ---" in (shown := capsys.readouterr().err)
    assert "ConnectionError: the log server is away" in shown


def test_a_handler_that_ends_its_thread_ends_no_other_line(kept: Kept) -> None:
    def fail(record: logging.LogRecord) -> None:
        if record.getMessage() == "one":
            raise SystemExit(3)

    kept.before = fail  # type: ignore[method-assign]
    with lines_handed_over():
        get_logger(NAME).info("one")
        get_logger(NAME).info("two")
        assert kept.texts() == ["two"]


def test_lines_beyond_the_limit_are_dropped_and_counted(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "LINES_MAX", 3)
    may_continue, is_in = threading.Event(), threading.Event()

    def wait(record: logging.LogRecord) -> None:
        is_in.set()
        may_continue.wait(LIMIT_S)

    kept.before = wait  # type: ignore[method-assign]
    logger = logging.getLogger(log_lines.__name__)
    logger.addHandler(kept)
    try:
        with lines_handed_over():
            get_logger(NAME).info("first")
            assert is_in.wait(LIMIT_S)
            for number in range(8):
                get_logger(NAME).info("%d", number)
            may_continue.set()
            texts = kept.texts()
    finally:
        logger.removeHandler(kept)
    dropped = "at least 5 log lines were dropped, because the handlers were too slow"
    assert texts == ["first", dropped, "0", "1", "2"]


def test_levels_are_those_of_the_programs_logger() -> None:
    log = get_logger("ledger.runtime.test_log_lines.inner")
    outer, inner = logging.getLogger(NAME), logging.getLogger(f"{NAME}.inner")
    try:
        outer.setLevel(logging.ERROR)
        assert (log.isEnabledFor(logging.WARNING), log.isEnabledFor(logging.ERROR)) == (False, True)
        inner.setLevel(logging.DEBUG)
        assert log.isEnabledFor(logging.DEBUG)
        inner.disabled = True  # as dictConfig does by default
        assert not log.isEnabledFor(logging.ERROR)
        inner.disabled = False
        logging.disable(logging.ERROR)
        assert not log.isEnabledFor(logging.ERROR)
    finally:
        logging.disable(logging.NOTSET)
        inner.disabled = False
        outer.setLevel(logging.NOTSET)
        inner.setLevel(logging.NOTSET)


def test_who_logs_waits_for_no_lock_of_logging(kept: Kept) -> None:
    """``dictConfig`` holds the lock of the module while it closes handlers, and each of these its own."""
    with lines_handed_over():
        with logging._lock, kept.lock or nullcontext():  # type: ignore[attr-defined]
            logging.getLogger(NAME).manager._clear_cache()  # type: ignore[attr-defined]
            in_thread("loop", lambda: get_logger(NAME).info("one"))
            in_thread("new", lambda: get_logger(f"{NAME}.never_seen").info("two"))
        assert kept.texts() == ["one", "two"]


def test_a_forked_child_logs_for_itself_only() -> None:
    """It has neither the thread nor the loop, so it must call the handlers itself."""
    program = """
import logging, os, sys, threading
from ledger.runtime.log_lines import get_logger, lines_handed_over
logging.basicConfig(stream=sys.stdout, format="%(message)s", level="INFO", force=True)
with lines_handed_over():
    get_logger("ledger").info("parent")
    if not (child := os.fork()):
        get_logger("ledger").info("child, %d thread", threading.active_count())
        logging.shutdown()
        os._exit(0)
    os.waitpid(child, 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, sorted(done.stdout.split("\n"))) == (0, ["", "child, 1 thread", "parent"])


@pytest.mark.slow
def test_each_module_of_ours_has_such_a_logger() -> None:
    wrong = [
        f"{module.path}:{node.lineno}"
        for module in modules()
        for node in module.nodes
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func).endswith("getLogger")
        and ast.unparse(node.value.args[0]) != "kazoo_log.name"  # for its level
    ]
    assert wrong == [], "use ledger.runtime.log_lines.get_logger"


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Iterator[queue.SimpleQueue[tuple[str, threading.Thread]]]:
    """What a function of the program shows of warnings, and in which thread."""
    seen: queue.SimpleQueue[tuple[str, threading.Thread]] = queue.SimpleQueue()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(
            warnings,
            "showwarning",
            lambda message, *_, **__: seen.put((str(message), threading.current_thread())),
        )
        yield seen


def test_a_warning_of_what_was_dropped_is_shown_outside_of_the_loop_that_freed_it(
    shown: queue.SimpleQueue[tuple[str, threading.Thread]],
) -> None:
    warn_unclosed("before the loop", None)
    with lines_handed_over():
        warn_unclosed("by the loop", None)
        in_thread("worker", lambda: warn_unclosed("by another thread", None))
        assert flush_lines(LIMIT_S)
    threads = dict(shown.get(timeout=LIMIT_S) for _ in range(3))
    here = threading.current_thread()
    assert threads["before the loop"] is here
    assert threads["by the loop"].name == "dlog log lines"
    assert threads["by another thread"].name == "worker"


def test_a_warning_that_python_shows_itself_stays_where_it_is() -> None:
    with lines_handed_over(), pytest.warns(ResourceWarning, match="unclosed x"):
        warn_unclosed("unclosed x", None)
