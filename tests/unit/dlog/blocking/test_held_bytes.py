"""What ``submit`` counts against ``bytes_in_flight_max`` is what its records hold in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import dlog
from dlog import blocking
from ledger.runtime.tasks.loop_thread import LoopThread
from ledger.runtime.tasks.thread_queue import ITEM_BYTES

LIMIT_S = 60
RECORDS = 64  # that have room


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
