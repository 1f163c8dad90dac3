"""Objects without ``async`` that are dropped without ``close``: warned of, closed, and nothing is lost."""

# covers: ledger/runtime/tasks/blocking_face.py
# covers: ledger/runtime/tasks/loop_thread.py

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import dlog.blocking
import ledger.blocking
from tests.places import ROOT

Namespace = dlog.blocking.Namespace


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"file://{tmp_path}/log"


@pytest.fixture
def namespace(uri: str) -> Iterator[Namespace]:
    with dlog.blocking.open_namespace(uri) as namespace:
        namespace.create_log("orders")
        dlog.blocking.create_sharded_log(namespace, "events", 2)
        yield namespace


OPENED: dict[str, Callable[[Namespace], Any]] = {
    "reader": lambda ns: ns.open_reader("orders"),
    "writer": lambda ns: ns.open_writer("orders"),
    "sharded reader": lambda ns: dlog.blocking.open_sharded_reader(ns, "events"),
    "sharded writer": lambda ns: dlog.blocking.open_sharded_writer(ns, "events"),
    "write-ahead log": lambda ns: dlog.blocking.open_wal(ns, apply=len),
}


@contextmanager
def warned() -> Iterator[list[warnings.WarningMessage]]:
    """The warnings in this block. They refer to the objects that were dropped."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        yield told


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPENED)
def test_what_is_dropped_is_freed_warned_of_and_closed(namespace: Namespace, kind: str) -> None:
    opened = OPENED[kind](namespace)
    text, freed, held = repr(opened), weakref.ref(opened), opened._held
    with warned() as told:
        del opened  # no cycle refers to it, so it goes at once
    assert [(each.category, str(each.message)) for each in told] == [(ResourceWarning, f"unclosed {text}")]
    told.clear()
    assert freed() is None
    held._ended.result(60)
    OPENED[kind](namespace).close()  # at once: a lock that is still held would be waited for, and refused


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPENED)
def test_what_is_closed_is_not_warned_of(namespace: Namespace, kind: str) -> None:
    with warned() as told:
        opened = OPENED[kind](namespace)
        opened.close()
        del opened
        with OPENED[kind](namespace):
            pass
        gc.collect()
    assert told == []


def test_the_warning_names_the_line_that_opened_it(namespace: Namespace) -> None:
    reader = namespace.open_reader("orders")
    here = id(reader)
    with warned() as told:
        del reader
    assert id(told[0].source) == here, "tracemalloc shows where that was made"


def test_records_of_a_dropped_writer_get_their_outcomes(namespace: Namespace) -> None:
    writer = namespace.open_writer("orders")
    futures = [writer.submit(b"%d" % number) for number in range(1000)]
    with warned() as told:
        del writer
        dlsns = [each.result(60) for each in futures]
    assert len(told) == 1
    with namespace.open_reader("orders", follow=False) as reader:
        assert [(each.dlsn, each.payload) for each in reader] == [
            (dlsn, b"%d" % number) for number, dlsn in enumerate(dlsns)
        ]


@pytest.mark.slow
def test_a_dropped_namespace_ends_its_loop_and_frees_the_directory(uri: str) -> None:
    namespace = dlog.blocking.open_namespace(uri)
    writer = namespace.open_writer("orders", create=True)
    future = writer.submit(b"kept")
    thread = namespace._loop._thread
    with warned() as told:
        del namespace, writer
        told.clear()  # the writer's, which refers to the namespace
        future.result(60)
        gc.collect()
        thread.join(60)
    assert not thread.is_alive()
    assert len(told) == 1
    with dlog.blocking.open_namespace(uri) as again, again.open_reader("orders", follow=False) as reader:
        assert [each.payload for each in reader] == [b"kept"]


@pytest.mark.slow
def test_a_dropped_client_of_ledgers_ends_its_loop(uri: str) -> None:
    dlog.blocking.open_namespace(uri).close()
    client = ledger.blocking.open_client(uri)
    handle = client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
    future = handle.submit(b"kept")
    thread, ledger_id = client._loop._thread, handle.ledger_id
    with warned() as told:
        del client
        assert future.result(60) == 0, "its handle is used, so it is open"
        del handle
        gc.collect()
        thread.join(60)
    assert not thread.is_alive()
    assert len(told) == 1
    with ledger.blocking.open_client(uri) as again:
        again.recover(ledger_id)
        with again.open(ledger_id) as reader:
            assert list(reader.read_payloads(0, 0)) == [b"kept"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "use",
    [
        lambda ns: ns.open_writer("orders"),
        lambda ns: ns.cursors("orders"),
        lambda ns: ns.properties,
    ],
    ids=["opened", "called", "part"],
)
def test_what_is_used_keeps_its_namespace_open(uri: str, use: Callable[[Namespace], object]) -> None:
    with dlog.blocking.open_namespace(uri) as namespace:
        namespace.create_log("orders")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        opened = dlog.blocking.open_namespace(uri)
        alive, used = weakref.ref(opened), use(opened)
        del opened
        gc.collect()
        assert alive() is not None
        del used
        gc.collect()
        assert alive() is None


def test_a_writer_dropped_in_the_thread_of_its_loop_is_closed(namespace: Namespace) -> None:
    held = [namespace.open_writer("orders")]
    of_loop, ended = held[0]._held, threading.Event()

    def drop(_: object) -> None:
        held.clear()
        ended.set()

    with warned() as told:
        held[0].submit(b"1").add_done_callback(drop)
        assert ended.wait(60)
        assert of_loop is not None
        of_loop._ended.result(60)
    assert len(told) == 1


def test_a_forked_child_neither_warns_nor_closes(namespace: Namespace) -> None:
    writer = namespace.open_writer("orders")
    pid = os.fork()
    if pid == 0:
        with warned() as told:
            del writer
            gc.collect()
        os._exit(len(told))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    writer.append(b"1")
    writer.close()


PROGRAM = """
import sys
import dlog.blocking
def opened():
    namespace = dlog.blocking.open_namespace(sys.argv[1])
    return namespace.open_writer("orders", create=True)
writer = opened()
for number in range(1000):
    writer.submit(b"%d" % number)
"""


@pytest.mark.slow
def test_a_writer_whose_namespace_was_dropped_is_closed_when_python_ends(uri: str) -> None:
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", PROGRAM, uri]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    with (
        dlog.blocking.open_namespace(uri) as namespace,
        namespace.open_reader("orders", follow=False) as reader,
    ):
        assert [each.payload for each in reader] == [b"%d" % number for number in range(1000)]


def test_a_close_that_was_interrupted_is_not_warned_of(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with warned() as told:
        namespace = dlog.blocking.open_namespace(uri)
        log = namespace.open_writer("orders", create=True)

        def interrupted(self: Any) -> None:
            dlog.blocking.LogReader.close(self)
            raise KeyboardInterrupt

        monkeypatch.setattr(dlog.blocking.LogWriter, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            namespace.close()
        monkeypatch.undo()
        del namespace, log
        gc.collect()
    assert told == []
