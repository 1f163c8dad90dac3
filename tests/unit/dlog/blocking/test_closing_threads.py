"""A writer that is closed while other threads submit: it ends, and each record has its outcome."""

# covers: dlog/blocking/sharded_writer.py

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import dlog
import dlog.blocking
import ledger.blocking
from ledger.errors import ClientClosedError, LedgerClosedError

THREADS = 3
SUBMITTED_BEFORE = 200  # of each thread, before the writer is closed

Submit = Callable[[bytes], Future[Any]]
OPENED: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Submit]]] = {
    "a log": (lambda ns: ns.open_writer("orders", create=True), lambda writer: writer.submit),
    "a shared log": (
        lambda ns: ns.open_writer("orders", create=True, shared=True),
        lambda writer: writer.submit,
    ),
    "a sharded log": (
        lambda ns: dlog.blocking.open_sharded_writer(ns, "orders"),
        lambda writer: lambda payload: writer.submit(payload, payload),
    ),
    "a ledger": (
        lambda client: client.create(ensemble_size=1, write_quorum=1, ack_quorum=1),
        lambda writer: writer.submit,
    ),
}
REFUSALS = (dlog.NamespaceClosedError, dlog.WriteError, LedgerClosedError, ClientClosedError)


def opened(path: Path, kind: str) -> Any:
    uri = path.as_uri()
    return ledger.blocking.open_client(uri) if kind == "a ledger" else dlog.blocking.open_namespace(uri)


def records_of(path: Path, kind: str, ledger_id: int) -> set[bytes]:
    with opened(path, kind) as again:
        if kind == "a ledger":
            with again.open(ledger_id) as entries:
                found: list[bytes] = []
                while len(found) <= entries.last_confirmed:  # a reply may end before
                    found += entries.read_payloads(len(found), entries.last_confirmed)
                return set(found)
        if kind == "a sharded log":
            with dlog.blocking.open_sharded_reader(again, "orders", follow=False) as records:
                return {record.payload for _, record in records}
        with again.open_reader("orders", follow=False) as reader:
            return {record.payload for record in reader}


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPENED)
@pytest.mark.parametrize("what", ["writer", "namespace"])
def test_closing_ends_while_other_threads_submit_and_refuses_them(
    tmp_path: Path, kind: str, what: str
) -> None:
    open_writer, submit_of = OPENED[kind]
    if kind == "a sharded log":
        with dlog.blocking.open_namespace(tmp_path.as_uri()) as first:
            dlog.blocking.create_sharded_log(first, "orders", 2)
    namespace = opened(tmp_path, kind)
    writer = open_writer(namespace)
    ledger_id = writer.ledger_id if kind == "a ledger" else -1
    submit, under_way = submit_of(writer), threading.Barrier(THREADS + 1)
    submitted: list[list[tuple[bytes, Future[Any]]]] = [[] for _ in range(THREADS)]
    refused: list[BaseException] = []

    def work(number: int) -> None:
        mine = submitted[number]
        try:
            while True:
                payload = b"%d %d" % (number, len(mine))
                mine.append((payload, submit(payload)))
                if len(mine) == SUBMITTED_BEFORE:
                    under_way.wait(60)
        except REFUSALS as exc:
            refused.append(exc)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    under_way.wait(60)
    closing = threading.Thread(target=(writer if what == "writer" else namespace).close)
    closing.start()
    closing.join(60)
    assert not closing.is_alive(), "it ends although they go on"
    if what == "writer":
        # A future may carry the refusal: the writer was closed after ``submit`` had taken the record.
        with pytest.raises(REFUSALS):
            submit(b"later").result(60)
        namespace.close()
    for thread in threads:
        thread.join(60)
    assert len(refused) == THREADS
    everything = [each for mine in submitted for each in mine]
    errors = {payload: future.exception(60) for payload, future in everything}
    durable = {payload for payload, error in errors.items() if error is None}
    if (kind, what) != ("a ledger", "namespace"):  # a client that is closed waits for no entries
        assert len(durable) >= THREADS * SUBMITTED_BEFORE / 2, "those before the end were written"
    found = records_of(tmp_path, kind, ledger_id)
    assert durable <= found <= set(errors)
    not_written = {
        payload
        for payload, error in errors.items()
        if isinstance(error, dlog.WriteError) and error.outcome is dlog.RecordOutcome.NOT_WRITTEN
    }
    assert not found & not_written


def test_a_submit_after_close_waits_for_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So threads that continue cannot run ahead of the loop and keep it from its end."""
    with dlog.blocking.open_namespace(tmp_path.as_uri()) as namespace:
        writer, asked = namespace.open_writer("orders", create=True), list[object]()
        run = writer._loop.run

        def counted(function: Any, *args: Any, **kwargs: Any) -> Any:
            asked.append(function)
            return run(function, *args, **kwargs)

        writer.submit(b"before")
        writer.close()
        monkeypatch.setattr(writer._loop, "run", counted)
        with pytest.raises(dlog.WriteError):
            writer.submit(b"after").result(60)
        assert len(asked) == 1
