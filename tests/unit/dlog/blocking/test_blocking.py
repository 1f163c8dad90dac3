"""The blocking API from scripts, threads and asyncio: interrupts, shared readers, closing at exit."""

# covers: dlog/blocking/namespace.py
# covers: dlog/blocking/reader.py
# covers: dlog/blocking/writer.py

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

import dlog
from dlog import blocking
from ledger.runtime.tasks.loop_thread import LoopThread

pytestmark = pytest.mark.slow


def uri_of(path: Path) -> str:
    return f"file://{path}"


def test_a_script_writes_and_reads(tmp_path: Path) -> None:
    with blocking.open_namespace(uri_of(tmp_path)) as namespace:
        namespace.create_log("log")
        with namespace.open_writer("log") as writer:
            first = writer.append(b"0")
            many = writer.append_many(b"%d" % n for n in range(1, 4))
            futures = [writer.submit(b"%d" % n) for n in range(4, 3000)]
            writer.flush()
            dlsns = [first, *many, *(future.result() for future in futures)]
            assert writer.last_txid > 0
        with namespace.open_reader("log", follow=False) as reader:
            records = list(reader)
        assert [int(record.payload) for record in records] == list(range(3000))
        assert [record.dlsn for record in records] == dlsns
        with namespace.open_reader("log", start=records[5].dlsn) as reader:
            assert next(reader) == records[5]
            assert reader.position == records[6].dlsn
            assert (reader.read_batch(2) or [])[0] == records[6]
            while reader.read_batch(1000, wait_s=0.05):
                pass
            assert reader.position == records[-1].dlsn.next_slot()
        assert namespace.list_logs() == ["log"]
        assert namespace.log_exists("log")
        assert namespace.last_dlsn("log") == records[-1].dlsn
        assert namespace.describe_log("log").record_count == 3000
        assert len(namespace.segments("log")) == 1
        assert uri_of(tmp_path) in repr(namespace)
        namespace.delete_log("log")


def test_the_blocking_api_raises_the_same_errors(tmp_path: Path) -> None:
    with blocking.open_namespace(uri_of(tmp_path)) as namespace:
        with pytest.raises(dlog.LogNotFoundError):
            namespace.open_writer("missing")
        with pytest.raises(dlog.LogNotFoundError):
            namespace.open_reader("missing")
        with namespace.open_writer("log", create=True) as writer:
            with pytest.raises(dlog.LogLockedError):
                namespace.open_writer("log", lock_timeout_s=0)
            writer.append(b"a", txid=9)
            future = writer.submit(b"b", txid=8)
            with pytest.raises(dlog.TxidOutOfOrderError):
                future.result()
            with pytest.raises(TypeError):
                writer.append_many(["text"])  # type: ignore[list-item]
            with pytest.raises(TypeError, match="not str"):
                writer.submit("text")  # type: ignore[arg-type]
        with pytest.raises(dlog.WriterClosedError):
            writer.append(b"late")
    with pytest.raises(dlog.InvalidUriError):
        blocking.open_namespace("nonsense")
    with pytest.raises(dlog.NamespaceClosedError):
        namespace.list_logs()


def test_a_payload_is_copied_at_the_call(tmp_path: Path) -> None:
    with blocking.open_namespace(uri_of(tmp_path)) as namespace:
        with namespace.open_writer("log", create=True) as writer:
            buffer = bytearray(8)

            def filled(first: int) -> Iterator[bytearray]:
                for number in range(first, first + 100):
                    buffer[:] = b"%08d" % number
                    yield buffer

            futures = [writer.submit(each) for each in filled(0)]
            futures += [writer.submit(memoryview(each)) for each in filled(100)]
            dlsns = [future.result() for future in futures] + writer.append_many(filled(200))
        with namespace.open_reader("log", follow=False) as reader:
            records = list(reader)
        assert [record.payload for record in records] == [b"%08d" % number for number in range(300)]
        assert [record.dlsn for record in records] == dlsns


def test_several_threads_share_a_writer_and_each_keeps_its_order(tmp_path: Path) -> None:
    with blocking.open_namespace(uri_of(tmp_path)) as namespace:
        with namespace.open_writer("log", create=True) as writer:

            def work(name: int) -> None:
                for number in range(200):
                    writer.submit(b"%d-%d" % (name, number))
                    if number % 50 == 0:
                        writer.append(b"%d-%d" % (name, number))

            threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        with namespace.open_reader("log", follow=False) as reader:
            payloads = [record.payload for record in reader]
    for name in range(4):
        mine = [int(p.split(b"-")[1]) for p in payloads if p.startswith(b"%d-" % name)]
        assert mine == sorted(mine)
        assert len(mine) == 204


def test_asyncio_awaits_a_submission(tmp_path: Path) -> None:
    with (
        blocking.open_namespace(uri_of(tmp_path)) as namespace,
        namespace.open_writer("log", create=True) as writer,
    ):

        async def main() -> list[dlog.DLSN]:
            waits = [asyncio.wrap_future(writer.submit(b"%d" % n)) for n in range(10)]
            return [await wait for wait in waits]

        dlsns = asyncio.run(main())
        assert dlsns == sorted(dlsns)
        assert len(set(dlsns)) == 10


def test_ctrl_c_ends_only_the_waiting_call(tmp_path: Path) -> None:
    with blocking.open_namespace(uri_of(tmp_path)) as namespace:
        namespace.create_log("log")
        with namespace.open_reader("log") as reader:
            main = threading.main_thread().ident
            assert main is not None
            timer = threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT))
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                next(reader)
            timer.join()
            with namespace.open_writer("log") as writer:
                writer.append(b"after")
            assert next(reader).payload == b"after"


@pytest.fixture
def just_too_late(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
    """Open a block in which Ctrl-C comes after a call ended in the loop, before the caller returns."""
    run = LoopThread.run

    def interrupted(*args: Any, **kwargs: Any) -> None:
        run(*args, **kwargs)
        raise KeyboardInterrupt

    @contextmanager
    def lasting() -> Iterator[None]:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):  # noqa: PT012
            patch.setattr(LoopThread, "run", interrupted)
            yield

    return lasting


def test_a_late_ctrl_c_loses_no_record(
    tmp_path: Path, just_too_late: Callable[[], AbstractContextManager[None]]
) -> None:
    with blocking.open_namespace(uri_of(tmp_path)) as namespace:
        with namespace.open_writer("log", create=True) as writer:
            writer.append_many([b"%d" % number for number in range(10)])
        with namespace.open_reader("log", follow=False) as reader:
            start = reader.position
            with just_too_late():
                next(reader)
            assert reader.position == start
            assert (reader.read_batch(3) or [])[0].dlsn == start
            assert next(reader).payload == b"3"
        with namespace.open_reader("log", follow=False) as reader:
            with just_too_late():
                reader.read_batch(4)
            assert [record.payload for record in reader] == [b"%d" % number for number in range(10)]


def test_a_late_ctrl_c_leaves_no_log_locked(
    tmp_path: Path, just_too_late: Callable[[], AbstractContextManager[None]]
) -> None:
    with blocking.open_namespace(uri_of(tmp_path)) as namespace:
        with just_too_late():
            namespace.open_writer("log", create=True)
        with namespace.open_writer("log", lock_timeout_s=30) as writer:
            writer.append(b"mine")


def test_threads_share_a_reader_and_each_record_goes_to_one_of_them(tmp_path: Path) -> None:
    with (
        blocking.open_namespace(uri_of(tmp_path)) as namespace,
        namespace.open_writer("log", create=True) as writer,
        namespace.open_reader("log") as reader,
    ):
        got: list[list[int]] = [[] for _ in range(4)]

        def iterate(mine: list[int]) -> None:
            for record in reader:
                if record.payload == b"end":
                    return
                mine.append(int(record.payload))

        def batches(mine: list[int]) -> None:
            while True:
                for record in reader.read_batch(1) or ():
                    if record.payload == b"end":
                        return
                    mine.append(int(record.payload))

        works = (iterate, batches, iterate, batches)
        threads = [
            threading.Thread(target=work, args=(mine,), daemon=True)
            for work, mine in zip(works, got, strict=True)
        ]
        for thread in threads:
            thread.start()
        for number in range(100):
            writer.append(b"%d" % number)
        writer.append_many([b"%d" % number for number in range(100, 2000)])
        writer.append_many([b"end"] * len(threads))
        for thread in threads:
            thread.join(timeout=60)
            assert not thread.is_alive(), "the thread waits although a record is fetched"
        assert sorted(number for mine in got for number in mine) == list(range(2000))
        assert all(mine == sorted(mine) for mine in got)
        assert reader.position is not None
        assert reader.read_batch(1, wait_s=0) == []


class TakenByAnotherThread:
    """An iterator that reports a record once; then another thread has taken it."""

    def __init__(self) -> None:
        self._left = [1]

    def __iter__(self) -> TakenByAnotherThread:
        return self

    def __next__(self) -> dlog.Record:
        raise StopIteration

    def __length_hint__(self) -> int:
        return self._left.pop() if self._left else 0


def test_a_record_taken_by_another_thread_does_not_end_an_iteration(tmp_path: Path) -> None:
    with (
        blocking.open_namespace(uri_of(tmp_path)) as namespace,
        namespace.open_writer("log", create=True) as writer,
        namespace.open_reader("log") as reader,
    ):
        writer.append(b"next")
        reader._ahead = TakenByAnotherThread()
        assert next(reader).payload == b"next"


def test_a_wait_with_a_timeout_does_not_wait_for_another_thread(tmp_path: Path) -> None:
    with (
        blocking.open_namespace(uri_of(tmp_path)) as namespace,
        namespace.open_writer("log", create=True) as writer,
        namespace.open_reader("log") as reader,
    ):
        got: list[dlog.Record] = []
        thread = threading.Thread(target=lambda: got.append(next(reader)), daemon=True)
        thread.start()
        assert reader.read_batch(1, wait_s=0.05) == []
        writer.append(b"its")
        thread.join(timeout=60)
        assert [record.payload for record in got] == [b"its"]
        with pytest.raises(ValueError, match="at least 1"):
            reader.read_batch(0)


def test_the_position_is_known_while_another_thread_waits(tmp_path: Path) -> None:
    with (
        blocking.open_namespace(uri_of(tmp_path)) as namespace,
        namespace.open_writer("log", create=True) as writer,
    ):
        writer.append(b"first", txid=5)
        writer.flush()
        with namespace.open_reader("log", start=100) as reader:
            got: list[dlog.Record] = []
            thread = threading.Thread(target=lambda: got.append(next(reader)), daemon=True)
            thread.start()
            dropped = writer.append(b"below its transaction id", txid=50)
            for _ in range(3000):
                if reader.position == dropped.next_slot():
                    break
                thread.join(timeout=0.01)
            assert reader.position == dropped.next_slot()
            wanted = writer.append(b"wanted", txid=100)
            thread.join(timeout=60)
            assert [record.dlsn for record in got] == [wanted]
        assert reader.position == wanted.next_slot()
    assert reader.position == wanted.next_slot()


def test_once_the_namespace_is_closed_every_submission_is_refused(tmp_path: Path) -> None:
    with blocking.open_namespace(uri_of(tmp_path)) as namespace:
        writer = namespace.open_writer("log", create=True)
    for _ in range(3):
        with pytest.raises(dlog.NamespaceClosedError):
            writer.submit(b"late")


def test_flush_waits_for_records_of_its_thread_while_another_thread_submits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        blocking.open_namespace(uri_of(tmp_path)) as namespace,
        namespace.open_writer("log", create=True) as writer,
    ):
        was_done: list[bool] = []

        def work() -> None:
            future = writer.submit(b"theirs")
            writer.flush()
            was_done.append(future.done())

        thread = threading.Thread(target=work, daemon=True)
        main = threading.current_thread()
        call_soon = LoopThread.call_soon

        def preempted(loop: LoopThread, *args: Any) -> None:
            if threading.current_thread() is main and not thread.ident:
                thread.start()
                thread.join(timeout=0.1)  # let it run until it waits
            call_soon(loop, *args)

        monkeypatch.setattr(LoopThread, "call_soon", preempted)
        writer.submit(b"mine").result()
        thread.join(timeout=60)
        assert was_done == [True]


def test_the_error_of_a_with_block_is_raised_and_submitted_records_are_written(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="mine"):  # noqa: PT012, SIM117
        with (
            blocking.open_namespace(uri_of(tmp_path)) as namespace,
            namespace.open_writer("log", create=True) as w,
        ):
            w.submit(b"submitted")
            raise KeyError("mine")
    with (
        blocking.open_namespace(uri_of(tmp_path)) as namespace,
        namespace.open_reader("log", follow=False) as reader,
    ):
        assert [record.payload for record in reader] == [b"submitted"]


def test_a_namespace_left_open_is_closed_when_the_program_ends(tmp_path: Path) -> None:
    script = (
        "import sys, dlog.blocking\n"
        "namespace = dlog.blocking.open_namespace(sys.argv[1])\n"
        "writer = namespace.open_writer('log', create=True)\n"
        "future = writer.submit(b'forgotten')\n"
    )
    subprocess.run([sys.executable, "-c", script, uri_of(tmp_path)], check=True, timeout=60)
    with blocking.open_namespace(uri_of(tmp_path)) as namespace:
        assert namespace.segments("log")[0].is_completed
        with namespace.open_reader("log", follow=False) as reader:
            assert [record.payload for record in reader] == [b"forgotten"]
