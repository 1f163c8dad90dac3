"""Hints of the LAC: when a writer sends one, and to which bookies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from ledger.codes import Code
from ledger.digest import DigestType, EntryCodec
from ledger.errors import BookieUnavailableError
from ledger.runtime.tasks.next_turn import call_next_turn
from ledger.runtime.tasks.timers import Timers
from ledger.wire.messages import BookieInfoReply, BookieInfoRequest, Reply, WriteLacRequest
from ledger.write.lac_hints import ASK_AGAIN_S, DELAYS, LacHints

CODEC = EntryCodec(DigestType.CRC32C, b"")
DELAY_S = 0.001


@attrs.define(eq=False)
class Network:
    """A transport that notes hints and questions, and a writer's position."""

    timers: Timers = attrs.field(factory=Timers)
    lac: int = -1
    last_pushed: int = -1
    is_connected: bool = True
    hints: list[tuple[str, int]] = attrs.field(factory=list)
    asked: list[tuple[str, Callable[[Any], None]]] = attrs.field(factory=list)

    def post_hint(self, bookie: str, request: WriteLacRequest) -> bool:
        assert request.hint
        assert request.master_key == CODEC.master_key
        if self.is_connected:
            self.hints.append((bookie, CODEC.unpack_lac(request.body, 7)))
        return self.is_connected

    def send(self, bookie: str, request: BookieInfoRequest, on_reply: Callable[[Any], None]) -> None:
        assert request.features
        self.asked.append((bookie, on_reply))

    def answer(self, reply: Reply | Exception) -> None:
        asked, self.asked = self.asked, []
        for _, on_reply in asked:
            on_reply(reply)


OURS = BookieInfoReply(Code.OK, takes_lac_hints=True)
APACHE = BookieInfoReply(Code.OK)


@pytest.fixture
async def network() -> AsyncIterator[Network]:
    network = Network()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(network.timers.run)
        yield network
        nursery.cancel_scope.cancel()


def hints_of(network: Network, *bookies: str, known: dict[str, bool] | None = None) -> LacHints:
    context: Any = SimpleNamespace(transport=network, takes_hints={} if known is None else known)
    return LacHints(7, CODEC, context, network, lambda: bookies, DELAY_S)


async def confirm(network: Network, hints: LacHints, lac: int, *, pushed: int | None = None) -> None:
    network.lac, network.last_pushed = lac, lac if pushed is None else pushed
    hints.on_confirmed(lac, None)
    await trio.sleep(2 * DELAY_S)


async def test_a_writer_without_entries_in_flight_hints_its_lac_once(
    network: Network, autojump_clock: MockClock
) -> None:
    hints = hints_of(network, "b1", "b2", known={"b1": True, "b2": True})
    await confirm(network, hints, 3)
    assert network.hints == [("b1", 3), ("b2", 3)]
    await confirm(network, hints, 3)
    await trio.sleep(60)
    assert len(network.hints) == 2
    await confirm(network, hints, 4)
    assert network.hints[2:] == [("b1", 4), ("b2", 4)]


async def test_a_writer_with_entries_in_flight_hints_nothing(
    network: Network, autojump_clock: MockClock
) -> None:
    """Its next entry carries the LAC, and an entry that is not confirmed must never be hinted."""
    hints = hints_of(network, "b1", known={"b1": True})
    await confirm(network, hints, 3, pushed=4)
    assert network.hints == []
    await confirm(network, hints, 4)
    assert network.hints == [("b1", 4)]


async def test_a_writer_that_has_ended_hints_nothing(network: Network, autojump_clock: MockClock) -> None:
    hints = hints_of(network, "b1", known={"b1": True})
    network.lac = network.last_pushed = 3
    hints.on_confirmed(3, None)
    hints.on_confirmed(3, RuntimeError("fenced"))
    await trio.sleep(1)
    assert network.hints == []
    assert repr(network.timers) == "<Timers, 0 running>"


async def test_a_bookie_gets_hints_only_after_it_said_that_it_takes_them(
    network: Network, autojump_clock: MockClock
) -> None:
    hints = hints_of(network, "b1")
    await confirm(network, hints, 0)
    await confirm(network, hints, 1)
    assert [bookie for bookie, _ in network.asked] == ["b1"]
    assert network.hints == []
    network.answer(OURS)
    await trio.sleep(2 * DELAY_S)
    assert network.hints == [("b1", 1)]


async def test_apaches_bookies_get_no_hint_and_one_question_from_a_client(
    network: Network, autojump_clock: MockClock
) -> None:
    known: dict[str, bool] = {}
    hints = hints_of(network, "b1", known=known)
    await confirm(network, hints, 0)
    network.answer(APACHE)
    for lac in range(1, 9):
        await confirm(network, hints, lac)
        await confirm(network, hints_of(network, "b1", known=known), lac)
    assert (network.hints, network.asked) == ([], [])


async def test_a_bookie_that_gives_no_answer_is_asked_again_after_a_pause(
    network: Network, autojump_clock: MockClock
) -> None:
    hints = hints_of(network, "b1")
    await confirm(network, hints, 0)
    network.answer(BookieUnavailableError("b1", "is down"))
    await confirm(network, hints, 1)
    assert network.asked == []
    await trio.sleep(ASK_AGAIN_S)
    await confirm(network, hints, 2)
    assert [bookie for bookie, _ in network.asked] == ["b1"]


async def test_after_a_loss_the_bookie_is_asked_again(network: Network, autojump_clock: MockClock) -> None:
    """Another bookie may serve at its address by now."""
    hints = hints_of(network, "b1", known={"b1": True})
    network.is_connected = False
    await confirm(network, hints, 0)
    network.is_connected = True
    await confirm(network, hints, 1)
    assert network.hints == []
    network.answer(OURS)
    await trio.sleep(2 * DELAY_S)
    assert network.hints == [("b1", 1)]


async def test_an_answer_after_the_end_of_the_writer_leads_to_no_hint(
    network: Network, autojump_clock: MockClock
) -> None:
    hints = hints_of(network, "b1")
    await confirm(network, hints, 0)
    hints.on_confirmed(0, RuntimeError("fenced"))
    network.answer(OURS)
    await trio.sleep(1)
    assert network.hints == []


async def test_a_writer_that_pauses_hints_as_soon_as_its_callers_had_their_turn(
    network: Network, autojump_clock: MockClock
) -> None:
    hints = hints_of(network, "b1", known={"b1": True})
    for lac in range(3):
        network.lac = network.last_pushed = lac
        hints.on_confirmed(lac, None)
        assert len(network.hints) == lac, "the callers have not run yet"
        for _ in range(4):  # no time passes, so no timer can be due
            await trio.lowlevel.checkpoint()
        assert network.hints == [("b1", each) for each in range(lac + 1)]
        await trio.sleep(DELAY_S)
    assert repr(network.timers) == "<Timers, 0 running>"


async def test_a_caller_that_appends_again_at_once_costs_no_hint_and_soon_no_look(
    network: Network, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[object] = []

    def noted(call: Callable[[], None]) -> None:
        looks.append(call)
        call_next_turn(call)

    monkeypatch.setattr("ledger.write.lac_hints.call_next_turn", noted)
    hints = hints_of(network, "b1", known={"b1": True})
    for lac in range(DELAYS):
        network.lac = network.last_pushed = lac
        hints.on_confirmed(lac, None)
        await trio.lowlevel.checkpoint()
        network.last_pushed = lac + 1  # the caller's next append
        await trio.testing.wait_all_tasks_blocked()
    assert (network.hints, len(looks)) == ([], 2)
    await confirm(network, hints, DELAYS)
    assert network.hints == [("b1", DELAYS)], "by the timer"


async def test_a_caller_that_appends_again_soon_after_a_hint_costs_no_more_of_them(
    network: Network, autojump_clock: MockClock
) -> None:
    """A caller in another thread appends again too late for the look, and before a hint is of use."""
    hints = hints_of(network, "b1", known={"b1": True})
    for lac in range(DELAYS):
        network.lac = network.last_pushed = lac
        hints.on_confirmed(lac, None)
        await trio.sleep(DELAY_S / 10)
    assert network.hints[0] == ("b1", 0)
    assert len(network.hints) <= 3, "the timer hints once in each delay"
    await trio.sleep(DELAY_S)
    assert network.hints[-1] == ("b1", DELAYS - 1)


async def test_a_caller_that_appends_less_often_than_that_gets_a_hint_for_each_append(
    network: Network, autojump_clock: MockClock
) -> None:
    hints = hints_of(network, "b1", known={"b1": True})
    for lac in range(DELAYS):
        await confirm(network, hints, lac)
    assert network.hints == [("b1", lac) for lac in range(DELAYS)]
