"""Payloads read ahead: in order, each once, within bounded memory, and in flight together."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ledger.errors import LedgerReadError
from ledger.read.payloads_ahead import RANGES_MAX, PayloadsAhead

SIZE = 1000
OVERHEAD = 10


class Ledger:
    """Entries, and replies that end where ``limit`` says; they come when the test lets them."""

    def __init__(self, sizes: list[int], *, is_open: bool = True) -> None:
        self.payloads = [at.to_bytes(2, "big") + bytes(size) for at, size in enumerate(sizes)]
        self.requests: list[tuple[int, int]] = []
        self.limit: Callable[[int], int] = lambda count: count
        self.fails_at: int | None = None
        self.gate = trio.Event()
        self.sent_bytes = 0
        if is_open:
            self.gate.set()

    async def read_some(self, first: int, last: int, size_bytes: int) -> list[bytes]:
        self.requests.append((first, last))
        await self.gate.wait()
        if self.fails_at is not None and first <= self.fails_at <= last:
            raise LedgerReadError(1, first, {})
        found: list[bytes] = []
        for payload in self.payloads[first : last + 1]:
            if found and sum(map(len, found)) + len(payload) > size_bytes:
                break
            found.append(payload)
        found = found[: max(1, self.limit(len(found)))]
        self.sent_bytes += sum(map(len, found))
        return found

    async def read(self, ahead: PayloadsAhead, first: int, last: int) -> list[bytes]:
        """As ``ReadHandle.read_payloads``."""
        payloads = await ahead.take(first, last) or await self.read_some(first, last, SIZE)
        following = first + len(payloads)
        if following <= last:
            ahead.plan(payloads, following, last, SIZE, ranges_max=RANGES_MAX)
        return payloads


def ahead_of(ledger: Ledger, nursery: trio.Nursery) -> PayloadsAhead:
    return PayloadsAhead(ledger.read_some, nursery, overhead_bytes=OVERHEAD)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
async def test_the_caller_gets_what_reads_without_a_read_ahead_give(nursery: trio.Nursery, seed: int) -> None:
    rng = random.Random(seed)
    ledger = Ledger([rng.choice((0, 10, 90, 900, 3000)) for _ in range(200)])
    if rng.random() < 0.7:
        ledger.limit = lambda count: rng.randint(1, count)
    ahead = ahead_of(ledger, nursery)
    first, got, jumps = 0, list[bytes](), 0
    while first < 200:
        last = min(199, first + rng.choice((0, 5, 199)))
        payloads = await ledger.read(ahead, first, last)
        assert payloads == ledger.payloads[first : first + len(payloads)]
        assert 0 < len(payloads) <= last - first + 1
        got = got[:first] + payloads
        first += len(payloads)
        if jumps < 5 and rng.random() < 0.05:
            first, jumps = rng.randrange(first), jumps + 1  # the caller goes back
    assert got == ledger.payloads
    ahead.drop()


async def test_the_second_range_is_requested_while_the_first_is_under_way(nursery: trio.Nursery) -> None:
    ledger = Ledger([88] * 100)
    ahead = ahead_of(ledger, nursery)
    await ledger.read(ahead, 0, 99)
    await wait_all_tasks_blocked()
    first = ledger.requests[1][0]
    ledger.gate = trio.Event()
    payloads = await ledger.read(ahead, first, 99)
    await wait_all_tasks_blocked()
    begun = sorted(ledger.requests[2:])
    assert len(begun) == RANGES_MAX, "both wait for their replies"
    assert [start for start, _ in begun] == [first + len(payloads), begun[0][1] + 1]
    ahead.drop()


async def test_entries_that_grow_do_not_fill_the_memory(nursery: trio.Nursery) -> None:
    ledger = Ledger([0] * 100 + [900] * 1000)
    ahead = ahead_of(ledger, nursery)
    first = taken = 0
    while first < 1000:
        payloads = await ledger.read(ahead, first, 1099)
        first += len(payloads)
        taken += sum(map(len, payloads))
        await wait_all_tasks_blocked()
        # Of a range: less than half a size, then one more reply of a size and a quarter.
        assert ledger.sent_bytes - taken <= RANGES_MAX * 2 * SIZE
    ahead.drop()


async def test_a_failed_range_is_left_to_the_caller(nursery: trio.Nursery) -> None:
    ledger = Ledger([88] * 100)
    ahead = ahead_of(ledger, nursery)
    first = len(await ledger.read(ahead, 0, 99))
    await wait_all_tasks_blocked()
    ledger.fails_at = first + 30
    while True:
        assert first <= ledger.fails_at, "the failed entry was not passed over"
        try:
            first += len(await ledger.read(ahead, first, 99))
        except LedgerReadError:
            break
    ledger.fails_at = None
    assert await ledger.read(ahead, first, 99) == ledger.payloads[first : first + 11]
    ahead.drop()


async def test_a_cancelled_take_has_taken_nothing(nursery: trio.Nursery) -> None:
    ledger = Ledger([88] * 100)
    ahead = ahead_of(ledger, nursery)
    first = len(await ledger.read(ahead, 0, 99))
    ledger.gate = trio.Event()
    with trio.CancelScope() as scope:
        scope.cancel()
        await ahead.take(first, 99)
    ledger.gate.set()
    await wait_all_tasks_blocked()
    count = len(ledger.requests)
    payloads = await ahead.take(first, 99)
    assert payloads == ledger.payloads[first : first + len(payloads)]
    assert payloads
    assert len(ledger.requests) == count
    assert "nothing" in repr(ahead)


async def test_nothing_is_read_behind_the_last_entry_and_a_closed_handle_reads_no_more(
    nursery: trio.Nursery,
) -> None:
    ledger = Ledger([88] * 100, is_open=False)
    ledger.gate.set()
    ahead = ahead_of(ledger, nursery)
    first = 0
    while first <= 27:
        first += len(await ledger.read(ahead, first, 27))
        await wait_all_tasks_blocked()
    assert max(last for _, last in ledger.requests) == 27
    await ledger.read(ahead, 0, 27)
    await wait_all_tasks_blocked()
    assert await ahead.take(0, 27) == [], "another place than that of the range"
    assert "nothing" in repr(ahead)
    count = len(ledger.requests)
    ahead.drop()
    await wait_all_tasks_blocked()
    assert len(ledger.requests) == count
