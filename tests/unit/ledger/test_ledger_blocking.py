"""``ledger.blocking``: the same calls without ``async``, over a directory."""

# covers: ledger/blocking.py
# covers: ledger/runtime/tasks/futures.py
# covers: ledger/runtime/tasks/thread_queue.py

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledger import blocking
from ledger.errors import ClientClosedError, LedgerClosedError, LedgerFencedError, NoSuchLedgerError


def create(client: blocking.LedgerClient, **options: Any) -> blocking.WriteHandle:
    return client.create(ensemble_size=1, write_quorum=1, ack_quorum=1, **options)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[blocking.LedgerClient]:
    with blocking.open_client(f"file://{tmp_path}") as client:
        yield client


@pytest.mark.slow
def test_a_script_writes_and_reads_a_ledger(client: blocking.LedgerClient) -> None:
    with create(client, password=b"secret", custom={"by": b"script"}) as writer:
        assert writer.append(b"first") == 0
        assert writer.append_many([b"second", b"third"]) == range(1, 3)
        assert (writer.lac, writer.length_bytes) == (2, 16)
    with client.open(writer.ledger_id, password=b"secret") as reader:
        assert reader.is_closed
        assert [entry.payload for entry in reader.read(0, reader.last_confirmed)] == [
            b"first",
            b"second",
            b"third",
        ]
        assert reader.read_payloads(1, 2) == [b"second", b"third"]
        assert [entry.payload for entry in reader.read_unconfirmed(0, 0)] == [b"first"]
    assert client.metadata(writer.ledger_id).custom == {"by": b"script"}
    assert client.ledger_ids() == [writer.ledger_id]
    client.delete(writer.ledger_id)
    with pytest.raises(NoSuchLedgerError):
        client.metadata(writer.ledger_id)


@pytest.mark.slow
def test_submitted_entries_get_their_ids_in_order(client: blocking.LedgerClient) -> None:
    with create(client) as writer:
        buffer = bytearray(b"0000")
        futures = []
        for number in range(500):
            buffer[:] = b"%04d" % number  # the caller's buffer may be filled again at once
            futures.append(writer.submit(buffer))
        assert [future.result(timeout=60) for future in futures] == list(range(500))
    with client.open(writer.ledger_id) as reader:
        assert reader.last_confirmed == 499
        assert reader.read(123, 123)[0].payload == b"0123"


@pytest.mark.slow
def test_a_submit_after_the_close_fails_in_its_future(client: blocking.LedgerClient) -> None:
    writer = create(client)
    writer.append(b"only")
    writer.close()
    with pytest.raises(LedgerClosedError):
        writer.submit(b"late").result(timeout=60)


@pytest.mark.slow
def test_a_fenced_writer_fails_the_futures_of_entries_not_confirmed(client: blocking.LedgerClient) -> None:
    writer = create(client)
    writer.append(b"kept")
    client.recover(writer.ledger_id)
    with pytest.raises((LedgerFencedError, LedgerClosedError)):
        writer.submit(b"too late").result(timeout=60)
    with client.open(writer.ledger_id) as reader:
        assert reader.read_payloads(0, reader.last_confirmed) == [b"kept"]


def test_an_exception_in_the_block_is_raised_though_the_client_was_closed_meanwhile(
    client: blocking.LedgerClient,
) -> None:
    def block() -> None:
        with create(client):
            client.close()
            raise KeyError("of the block")

    with pytest.raises(KeyError, match="of the block"):
        block()


def test_an_exception_in_the_block_abandons_the_ledger(client: blocking.LedgerClient) -> None:
    writer = create(client)

    def block() -> None:
        with writer:
            writer.append(b"kept")
            raise KeyError("of the block")

    with pytest.raises(KeyError):
        block()
    assert not client.metadata(writer.ledger_id).is_closed
    with client.open(writer.ledger_id) as reader:
        assert reader.read_payloads(0, reader.last_confirmed) == [b"kept"]


def test_a_closed_client_says_so(tmp_path: Path) -> None:
    client = blocking.open_client(f"file://{tmp_path}")
    client.close()
    client.close()
    with pytest.raises(ClientClosedError, match="open another"):
        client.ledger_ids()


def test_a_number_is_no_payload(client: blocking.LedgerClient) -> None:
    with create(client) as writer:
        for wrong in (5, "text", None):
            with pytest.raises(TypeError, match="a payload is bytes or another buffer"):
                writer.append(wrong)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="a payload is bytes or another buffer"):
                writer.append_many([b"x", wrong])  # type: ignore[list-item]
            with pytest.raises(TypeError, match="a payload is bytes or another buffer"):
                writer.submit(wrong)  # type: ignore[arg-type]
        assert writer.append(memoryview(b"abcd").cast("I")) == 0
    with client.open(writer.ledger_id) as reader:
        assert reader.read_payloads(0, 0) == [b"abcd"]
