"""Records that no caller waits for gather for a moment; a record that a caller waits for never does."""

# covers: dlog/write/pending.py

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from dlog.config import WriterConfig
from dlog.errors import WriterClosedError
from dlog.format.compression import Compression
from dlog.write.pending import Pending
from dlog.write.writer_shell import WriterShell
from ledger.runtime.tasks.timers import Timers
from namespace.segments.segment import LogSegment

LINGER_MS = 10.0


class Ledger:
    """Stands in for ``ledger.handle.WriteHandle``; the test acknowledges."""

    bytes_in_flight = 0
    metadata = SimpleNamespace(custom={})

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.sent = 0  # entries that were told to leave
        self.hinted: list[int] = []
        self._lac = -1
        self._callback: Callable[[int, BaseException | None], None] = lambda lac, error: None

    def submit(self, payload: bytes, *, hold: bool = False) -> int:
        self.entries.append(payload)
        return len(self.entries) - 1

    def send_soon(self) -> None:
        pass

    def send_now(self) -> None:
        self.sent = len(self.entries)

    def hint_now(self) -> None:
        self.hinted.append(self._lac)

    def on_confirmed(self, callback: Callable[[int, BaseException | None], None]) -> None:
        self._callback = callback

    def confirm(self) -> None:
        """All entries are durable."""
        self._lac = len(self.entries) - 1
        self._callback(self._lac, None)


class Sending:
    """A writer with a segment in use. None of its tasks runs."""

    def __init__(self, **config: Any) -> None:
        unused: Any = None
        self.shell = WriterShell("log", unused, unused, WriterConfig(**config), last_txid=-1, timers=Timers())
        self.machine = self.shell.machine
        self.ledger = Ledger()
        handle: Any = self.ledger
        segment = LogSegment(segment_seqno=1, ledger_id=7, first_txid=1)
        self.machine.begin(handle, segment, Compression.NONE)

    def submit(self) -> Pending:
        pending = Pending(*self.machine.batcher.add(b"record", 1))
        self.machine.pump()
        return pending

    @property
    def entry_count(self) -> int:
        return len(self.ledger.entries)


@pytest.fixture
async def sending(nursery: trio.Nursery) -> Sending:
    """One record was sent, and acknowledged, at this moment."""
    sending = Sending(linger_ms=LINGER_MS)
    nursery.start_soon(sending.shell.timers.send_held)
    sending.submit()
    sending.ledger.confirm()
    return sending


async def test_a_record_after_a_pause_is_sent_at_once(autojump_clock: MockClock, sending: Sending) -> None:
    assert (sending.entry_count, sending.ledger.sent) == (1, 1)
    await trio.sleep(LINGER_MS / 1000)
    sending.submit()
    assert (sending.entry_count, sending.ledger.sent) == (2, 2)


async def test_records_submitted_soon_after_an_entry_share_the_next_one(
    autojump_clock: MockClock, sending: Sending
) -> None:
    records = [sending.submit() for _ in range(3)]
    await trio.sleep(0.9 * LINGER_MS / 1000)
    assert sending.entry_count == 1
    await trio.sleep(0.2 * LINGER_MS / 1000)
    assert sending.entry_count == 2
    sending.ledger.confirm()
    assert [(each.dlsn.entry_id, each.dlsn.slot_id) for each in records] == [(1, 0), (1, 1), (1, 2)]


async def test_a_record_that_comes_when_the_time_is_over_takes_the_held_ones_with_it(
    autojump_clock: MockClock,
) -> None:
    sending = Sending(linger_ms=LINGER_MS)  # no task sends what is held
    sending.submit()
    sending.ledger.confirm()
    sending.submit()
    await trio.sleep(LINGER_MS / 1000)
    assert sending.entry_count == 1
    sending.submit()
    assert sending.entry_count == 2
    assert not sending.machine.batcher


async def test_awaiting_a_held_record_sends_it_without_a_delay(
    autojump_clock: MockClock, sending: Sending, nursery: trio.Nursery
) -> None:
    began_s = trio.current_time()
    record = sending.submit()
    assert sending.entry_count == 1

    async def wait() -> None:
        await record

    nursery.start_soon(wait)
    while sending.entry_count == 1:
        await trio.lowlevel.checkpoint()
    assert trio.current_time() == began_s
    assert sending.ledger.sent == 2


async def test_a_record_whose_outcome_is_called_back_is_not_held(
    autojump_clock: MockClock, sending: Sending
) -> None:
    sending.submit().on_settled(lambda: None)
    assert sending.entry_count == 2


async def test_closing_sends_what_is_held(autojump_clock: MockClock, sending: Sending) -> None:
    sending.submit()
    sending.machine.close(WriterClosedError("log"))
    assert sending.entry_count == 2
    sending.ledger.confirm()
    sending.submit()
    assert sending.entry_count == 3


async def test_a_full_entry_is_not_held(autojump_clock: MockClock, sending: Sending) -> None:
    sending.submit()
    sending.machine.batcher.cut()
    sending.machine.pump()
    assert sending.entry_count == 2


async def test_records_gather_behind_an_entry_in_flight_as_long_as_it_takes(
    autojump_clock: MockClock, sending: Sending
) -> None:
    await trio.sleep(1)
    sending.submit()
    held = [sending.submit(), sending.submit()]
    await trio.sleep(1)
    assert sending.entry_count == 2
    sending.ledger.confirm()
    assert sending.entry_count == 3, "the time is over when the acknowledgement comes"
    sending.ledger.confirm()
    assert {each.dlsn.entry_id for each in held} == {2}


async def test_without_lingering_each_record_is_sent_when_nothing_is_in_flight(
    autojump_clock: MockClock,
) -> None:
    sending = Sending(linger_ms=0.0)
    for count in range(1, 4):
        sending.submit()
        assert sending.entry_count == count
        sending.ledger.confirm()


async def test_readers_get_a_hint_at_once_if_no_caller_waited(
    autojump_clock: MockClock, sending: Sending, nursery: trio.Nursery
) -> None:
    assert sending.ledger.hinted == [0]
    await trio.sleep(1)

    async def wait(record: Pending) -> None:
        await record

    nursery.start_soon(partial(wait, sending.submit()))
    await wait_all_tasks_blocked()
    sending.ledger.confirm()
    assert sending.ledger.hinted == [0], "its caller may append again; the ledger's own hint waits for that"
