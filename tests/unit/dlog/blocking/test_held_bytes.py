"""What ``submit`` counts against ``bytes_in_flight_max`` is what its records hold in memory."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import dlog
import ledger.blocking
from dlog import blocking
from dlog.blocking import shards
from dlog.blocking.writer import HEADER_HELD_BYTES
from ledger.config import ClientConfig
from ledger.runtime.tasks.loop_thread import LoopThread
from ledger.runtime.tasks.thread_queue import ITEM_BYTES

LIMIT_S = 60
RECORDS = 64  # that have room
MANY = 4000  # whose memory is measured


def fill(loop: LoopThread, submit: Callable[[], Future[Any]]) -> int:
    """Submit more records than have room while the loop stands still; how many it took at once."""
    may_continue, is_full = threading.Event(), threading.Event()
    futures: list[Future[Any]] = []
    run = loop.run

    def waits(*args: Any) -> Any:
        is_full.set()
        return run(*args)

    loop.call_soon(may_continue.wait, LIMIT_S)
    loop.run = waits  # type: ignore[method-assign, assignment]
    thread = threading.Thread(target=lambda: futures.extend(submit() for _ in range(10 * RECORDS)))
    try:
        thread.start()
        assert is_full.wait(LIMIT_S)
        taken = len(futures)
        may_continue.set()
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    finally:
        may_continue.set()
    assert len({future.result(LIMIT_S) for future in futures}) == 10 * RECORDS
    return taken


@pytest.mark.slow
@pytest.mark.parametrize("payload", [b"", b"x" * ITEM_BYTES], ids=["empty", "1 KiB"])
def test_submitted_records_hold_what_the_limit_allows_with_their_futures(
    tmp_path: Path, payload: bytes
) -> None:
    config = dlog.NamespaceConfig(writer=dlog.WriterConfig(bytes_in_flight_max=RECORDS * ITEM_BYTES))
    with ExitStack() as stack:
        namespace = stack.enter_context(blocking.open_namespace(tmp_path.as_uri(), config=config))
        writer = stack.enter_context(namespace.open_writer("log", create=True))
        writer.append(b"first")
        assert fill(namespace._loop, lambda: writer.submit(payload)) == RECORDS + 1
        writer.flush()
        assert writer._queue.held_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "key", "headers"),
    [
        (0, b"k" * 3000, {}),
        (0, None, {"trace": b"v" * 3000}),
        (0, None, {f"h{index}": b"" for index in range(24)}),
        (1000, b"k" * 700, {"trace": b"v" * 700}),
    ],
    ids=["key", "header", "small headers", "all"],
)
def test_the_key_and_the_headers_of_a_submitted_record_count(
    tmp_path: Path, size: int, key: bytes | None, headers: dict[str, bytes]
) -> None:
    counted = size + len(key or b"")
    counted += sum(len(name) + len(value) + HEADER_HELD_BYTES for name, value in headers.items())
    assert counted > 2 * ITEM_BYTES, "more than the least"
    config = dlog.NamespaceConfig(writer=dlog.WriterConfig(bytes_in_flight_max=RECORDS * counted))
    with ExitStack() as stack:
        namespace = stack.enter_context(blocking.open_namespace(tmp_path.as_uri(), config=config))
        writer = stack.enter_context(namespace.open_writer("log", create=True))
        writer.append(b"first")
        submit = partial(writer.submit, b"x" * size, key=key, headers=headers)
        assert fill(namespace._loop, submit) == RECORDS + 1
        writer.flush()
        assert writer._queue.held_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize("payload", [b"", b"x" * ITEM_BYTES], ids=["empty", "1 KiB"])
def test_submitted_entries_of_a_ledger_hold_what_the_limit_allows(tmp_path: Path, payload: bytes) -> None:
    config = ClientConfig(bytes_in_flight_max=RECORDS * ITEM_BYTES)
    with ExitStack() as stack:
        client = stack.enter_context(ledger.blocking.open_client(tmp_path.as_uri(), config=config))
        writer = stack.enter_context(client.create(ensemble_size=1, write_quorum=1, ack_quorum=1))
        writer.append(b"first")
        assert fill(client._loop, lambda: writer.submit(payload)) == RECORDS + 1
        writer.wait_confirmed(10 * RECORDS)
        assert writer._queue.held_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shared", "sharded"])
def test_a_record_counts_more_where_it_takes_more(tmp_path: Path, kind: str) -> None:
    config = dlog.NamespaceConfig(writer=dlog.WriterConfig(bytes_in_flight_max=RECORDS * 2 * ITEM_BYTES))
    with ExitStack() as stack:
        namespace = stack.enter_context(blocking.open_namespace(tmp_path.as_uri(), config=config))
        if kind == "shared":
            writer = stack.enter_context(namespace.open_writer("log", create=True, shared=True))
            submit: Callable[[], Future[Any]] = partial(writer.submit, b"")
        else:
            shards.create_sharded_log(namespace, "log", 2)
            submit = partial(
                stack.enter_context(shards.open_sharded_writer(namespace, "log")).submit, b"", b""
            )
        submit().result(LIMIT_S)
        assert fill(namespace._loop, submit) == RECORDS + 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "shared", "sharded"])
def test_short_records_of_each_writer_take_about_twice_of_what_is_counted(tmp_path: Path, kind: str) -> None:
    config = dlog.NamespaceConfig(writer=dlog.WriterConfig(bytes_in_flight_max=MANY * 4 * ITEM_BYTES))
    with ExitStack() as stack:
        namespace = stack.enter_context(blocking.open_namespace(tmp_path.as_uri(), config=config))
        if kind == "sharded":
            shards.create_sharded_log(namespace, "log", 2)
            sharded = stack.enter_context(shards.open_sharded_writer(namespace, "log"))
            submit: Callable[[], Future[Any]] = partial(sharded.submit, b"", b"")
            queues = [each._queue for each in sharded._writers]
        else:
            writer = stack.enter_context(namespace.open_writer("log", create=True, shared=kind == "shared"))
            submit, queues = partial(writer.submit, b""), [writer._queue]
        submit().result(LIMIT_S)
        may_continue = threading.Event()
        namespace._loop.call_soon(may_continue.wait, LIMIT_S)
        tracemalloc.start()
        try:
            futures = [submit() for _ in range(MANY)]
            counted = sum(each.held_bytes for each in queues)
            may_continue.set()
            for future in futures:
                future.result(LIMIT_S)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            may_continue.set()
            tracemalloc.stop()
        assert peak < 2.5 * counted
