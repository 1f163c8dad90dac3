"""Calls of a signal handler, and of the callback of a future: each returns or is refused, and nothing hangs.

A signal handler runs between two steps of the thread that it interrupts. Here a trace function does the same
at each line of the code that hands a call to the loop, one line after the other.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import ledger.blocking
from dlog import blocking
from dlog.errors import DLogError
from dlog.format.record import Record

pytestmark = pytest.mark.slow

LIMIT_S = 120  # of a call that hangs
ONE_STEP = "_replace"  # of a reader: it makes no call and has no loop, so Python runs no handler in it
HANDING_OVER = (  # modules whose lines are interrupted
    "tasks/thread_calls.py",
    "tasks/thread_queue.py",
    "tasks/loop_thread.py",
    "blocking/writer.py",
    "blocking/reader.py",
    "blocking/sharded_reader.py",
    "blocking/sharded_writer.py",
    "ledger/blocking.py",
)


def interrupted(call: Callable[[], object], line: int, handler: Callable[[], object]) -> bool:
    """Make the call in a thread of its own, and the other one before its line of this number.

    Returns:
        Whether there are that many lines. It raises what the handler raises.
    """
    seen = 0
    errors: list[Exception] = []

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        if not frame.f_code.co_filename.endswith(HANDING_OVER) or frame.f_code.co_name == ONE_STEP:
            return None

        def at_line(frame: FrameType, event: str, arg: object) -> Any:
            nonlocal seen
            seen += event == "line"
            if seen == line and event == "line":
                sys.settrace(None)
                try:
                    handler()
                except Exception as exc:
                    errors.append(exc)
            return at_line

        return at_line

    def run() -> None:
        sys.settrace(trace)
        try:
            call()
        except DLogError:
            pass  # the handler has closed it
        finally:
            sys.settrace(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    assert not thread.is_alive(), f"it hangs at line {line}"
    for error in errors:
        raise error
    return seen >= line


@pytest.mark.parametrize("handled", ["append", "submit"])
@pytest.mark.parametrize("interrupting", ["append", "submit"])
def test_a_handler_may_append_and_submit_at_each_line_of_an_append_and_a_submit(
    tmp_path: Path, handled: str, interrupting: str
) -> None:
    namespace = blocking.open_namespace(tmp_path.as_uri())
    writer = namespace.open_writer("log", create=True)
    lines = 0
    for line in itertools.count(1):
        handler = partial(getattr(writer, interrupting), b"handler")
        if not interrupted(partial(getattr(writer, handled), b"call"), line, handler):
            break
        lines = line
    assert lines > 10
    writer.flush()
    with namespace.open_reader("log", follow=False) as reader:
        payloads = [record.payload for record in reader]
    assert sorted(payloads) == [b"call"] * (lines + 1) + [b"handler"] * lines
    namespace.close()  # not after a failure, since a loop that hangs cannot be closed


@pytest.mark.parametrize("handled", ["append", "submit"])
@pytest.mark.parametrize("interrupting", ["append", "submit"])
def test_a_handler_may_use_the_same_sharded_writer_at_each_line(
    tmp_path: Path, handled: str, interrupting: str
) -> None:
    namespace = blocking.open_namespace(tmp_path.as_uri())
    blocking.create_sharded_log(namespace, "log", 1)
    writer = blocking.open_sharded_writer(namespace, "log")
    lines = 0
    for line in itertools.count(1):
        handler = partial(getattr(writer, interrupting), b"key", b"handler")
        if not interrupted(partial(getattr(writer, handled), b"key", b"call"), line, handler):
            break
        lines = line
    assert lines > 10
    writer.flush()
    with blocking.open_sharded_reader(namespace, "log", follow=False) as reader:
        payloads = [record.payload for _, record in reader]
    assert sorted(payloads) == [b"call"] * (lines + 1) + [b"handler"] * lines
    namespace.close()


@pytest.mark.parametrize("handled", ["append", "submit"])
@pytest.mark.parametrize("interrupting", ["append", "submit"])
def test_a_handler_may_append_and_submit_at_each_line_of_a_call_of_a_ledger(
    tmp_path: Path, handled: str, interrupting: str
) -> None:
    client = ledger.blocking.open_client(tmp_path.as_uri())
    handle = client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
    lines = 0
    for line in itertools.count(1):
        handler = partial(getattr(handle, interrupting), b"handler")
        if not interrupted(partial(getattr(handle, handled), b"call"), line, handler):
            break
        lines = line
    assert lines > 5
    ledger_id = handle.ledger_id
    handle.close()
    with client.open(ledger_id) as reader:
        payloads = reader.read_payloads(0, reader.last_confirmed)
    assert sorted(payloads) == [b"call"] * (lines + 1) + [b"handler"] * lines
    client.close()


READS: dict[str, Callable[[blocking.LogReader], list[Record]]] = {
    "next": lambda reader: [next(reader)],
    "records": lambda reader: reader.read_records(2, wait_s=LIMIT_S) or [],
    "batch": lambda reader: list(reader.read_batch(3, wait_s=LIMIT_S) or ()),
    "position": lambda reader: [][: reader.position is not None],
}


@pytest.mark.parametrize("handled", READS)
@pytest.mark.parametrize("interrupting", READS)
def test_a_handler_may_read_at_each_line_of_a_read_of_the_same_reader(
    tmp_path: Path, handled: str, interrupting: str
) -> None:
    namespace = blocking.open_namespace(tmp_path.as_uri())
    payloads = [b"%d" % number for number in range(10)]
    with namespace.open_writer("log", create=True) as writer:
        writer.append_many(payloads)
    for line in itertools.count(1):
        with namespace.open_reader("log", follow=False) as reader:
            found: list[Record] = []
            there = interrupted(
                lambda: found.extend(READS[handled](reader)),  # noqa: B023 - called before the next line
                line,
                lambda: found.extend(READS[interrupting](reader)),  # noqa: B023
            )
            rest = [record.payload for record in reader]
        assert sorted(record.payload for record in found) + rest == payloads
        if not there:
            break
    assert line > 1
    namespace.close()


ShardedRead = Callable[[blocking.ShardedReader], list[tuple[int, Record]]]
SHARDED_READS: dict[str, ShardedRead] = {
    "next": lambda reader: [next(reader)],
    "batch": lambda reader: [(0, each) for each in (reader.read_batch(3) or (0, ()))[1]],
    "returned": lambda reader: [][: len(reader.returned)],
}


@pytest.mark.parametrize("handled", SHARDED_READS)
@pytest.mark.parametrize("interrupting", SHARDED_READS)
def test_a_handler_may_read_at_each_line_of_a_read_of_the_same_sharded_reader(
    tmp_path: Path, handled: str, interrupting: str
) -> None:
    namespace = blocking.open_namespace(tmp_path.as_uri())
    payloads = [b"%d" % number for number in range(10)]
    blocking.create_sharded_log(namespace, "log", 1)
    with blocking.open_sharded_writer(namespace, "log") as writer:
        writer.append_many([(b"key", payload) for payload in payloads])
    for line in itertools.count(1):
        with blocking.open_sharded_reader(namespace, "log", follow=False) as reader:
            found: list[tuple[int, Record]] = []
            there = interrupted(
                lambda: found.extend(SHARDED_READS[handled](reader)),  # noqa: B023 - as above
                line,
                lambda: found.extend(SHARDED_READS[interrupting](reader)),  # noqa: B023
            )
            rest = [record.payload for _, record in reader]
        assert sorted(record.payload for _, record in found) + rest == payloads
        if not there:
            break
    assert line > 1
    namespace.close()


@pytest.mark.parametrize("handled", ["append", "submit"])
def test_a_handler_may_close_the_namespace_at_each_line(tmp_path: Path, handled: str) -> None:
    for line in itertools.count(1):
        namespace = blocking.open_namespace((tmp_path / str(line)).as_uri())
        writer = namespace.open_writer("log", create=True)
        there = interrupted(partial(getattr(writer, handled), b"call"), line, namespace.close)
        namespace.close()
        if not there:
            assert line > 10
            return


def test_a_callback_that_exits_ends_neither_the_loop_nor_the_writer(tmp_path: Path) -> None:
    with (
        blocking.open_namespace(tmp_path.as_uri()) as namespace,
        namespace.open_writer("log", create=True) as writer,
    ):
        future = writer.submit(b"one")
        future.add_done_callback(lambda _: sys.exit(3))
        assert future.result(LIMIT_S) < writer.append(b"two")
        assert namespace.list_logs() == ["log"]


def test_closing_in_a_callback_is_refused_before_anything_is_closed(tmp_path: Path) -> None:
    refused: list[RuntimeError] = []
    done, may_settle = threading.Event(), threading.Event()

    def close(_: object) -> None:
        for each in (namespace, writer):
            try:
                each.close()
            except RuntimeError as exc:
                refused.append(exc)
        done.set()

    with (
        blocking.open_namespace(tmp_path.as_uri()) as namespace,
        namespace.open_writer("log", create=True) as writer,
    ):
        namespace._loop.call_soon(may_settle.wait, LIMIT_S)  # so that the callback is there before
        future = writer.submit(b"one")
        future.add_done_callback(close)
        may_settle.set()
        assert done.wait(LIMIT_S)
        assert len(refused) == 2
        assert future.result(LIMIT_S) < writer.append(b"two")
