"""The recovery machine, called by hand. A list is the network."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from ledger.digest import DigestType, Entry, EntryCodec
from ledger.errors import (
    BookieTimeoutError,
    CorruptEntryError,
    IoErrorRefusal,
    LedgerRecoveryError,
    NoEntryRefusal,
    UnauthorizedRefusal,
    UnknownLedgerStateRefusal,
    WrongPasswordError,
)
from ledger.metadata import Ensemble, LedgerMetadata, LedgerState
from ledger.recovery import (
    Action,
    AddEntry,
    AwaitOthers,
    CloseLedger,
    GiveUp,
    ReadEntry,
    ReadLac,
    ReadLength,
    Recovery,
)
from ledger.wire.messages import LAST_ENTRY, AddRequest, ReadRequest

B1, B2, B3, B4 = "b1:1", "b2:1", "b3:1", "b4:1"
LEDGER = 1
CODEC = EntryCodec(DigestType.DUMMY, b"")


def recovery(
    *ensembles: Ensemble,
    sizes: tuple[int, int, int] = (3, 3, 2),
    spare: Sequence[str] = (),
    read_ahead: int = 16,
) -> Recovery:
    metadata = LedgerMetadata(
        ensemble_size=sizes[0],
        write_quorum=sizes[1],
        ack_quorum=sizes[2],
        ensembles=ensembles or (Ensemble(0, (B1, B2, B3)),),
        state=LedgerState.IN_RECOVERY,
    )

    def choose(ensemble: Sequence[str], failed: Collection[int]) -> Mapping[int, str]:
        return dict(zip(failed, [bookie for bookie in spare if bookie not in ensemble], strict=False))

    pack = functools.partial(CODEC.pack, LEDGER)
    return Recovery(LEDGER, metadata, pack=pack, choose=choose, read_ahead=read_ahead)


def entry(entry_id: int, lac: int, payload: bytes = b"12345", length_bytes: int | None = None) -> Entry:
    length = (entry_id + 1) * 5 if length_bytes is None else length_bytes
    return Entry(LEDGER, entry_id, lac, length, payload)


def no(bookie: str, entry_id: int | None = None) -> Exception:
    return NoEntryRefusal(bookie, LEDGER, entry_id)


def reads(actions: list[Action]) -> set[tuple[str, int]]:
    return {(action.bookie, action.entry_id) for action in actions if isinstance(action, ReadEntry)}


def test_scenario_7_4_a_bookie_that_denies_an_entry_was_fenced_by_that_very_question() -> None:
    one = recovery()
    assert {action.bookie for action in one.start() if isinstance(action, ReadLac)} == {B1, B2, B3}
    assert one.lac_answered(B1, no(B1)) == []
    # The fence is lost on its way to b3. Entry 0 is on b2 already, and under way to b3.
    asked = one.lac_answered(B2, no(B2))
    assert {(B1, 0), (B2, 0), (B3, 0)} <= reads(asked)
    assert one.entry_answered(B1, 0, no(B1, 0)) == []
    # b3's denial ends the ledger in front of entry 0; the docstring of ReadEntry, and the shell, fence it.
    assert one.entry_answered(B3, 0, no(B3, 0)) == [AwaitOthers(0)]
    (close,) = one.waited_for_others(0)
    assert close == CloseLedger(-1, 0, ())
    assert one.entry_answered(B2, 0, entry(0, -1)) == []


async def test_scenario_7_4_over_the_wire_every_recovery_read_fences(cluster: Any) -> None:
    async with cluster.client() as client:
        writer = await client.create()
        await writer.append_many([b"x"] * 3)
        writer.abandon()
        for bookie in cluster.bookies.values():
            bookie.requests.clear()
        await client.open(writer.ledger_id)
        asked = [
            request
            for bookie in cluster.bookies.values()
            for request in bookie.requests
            if isinstance(request, ReadRequest)
        ]
        assert {request.entry_id for request in asked} >= {LAST_ENTRY, 2, 3}
        assert all(request.fence and request.master_key for request in asked)
        # A bookie that is over capacity, or read-only, still serves a recovery.
        for bookie in cluster.bookies.values():
            wanted = [
                one
                for one in bookie.requests
                if isinstance(one, AddRequest) or (isinstance(one, ReadRequest) and one.entry_id >= 0)
            ]
            assert [one for one in wanted if isinstance(one, AddRequest)]
            assert bookie.urgent == wanted


def test_a_bookie_that_has_the_entry_proves_those_wrong_that_deny_it() -> None:
    """apache/bookkeeper#2612: b1 acknowledged entry 0 with b2, then lost its disk and kept its name."""
    one = recovery()
    one.lac_answered(B1, no(B1))
    one.lac_answered(B3, no(B3))
    assert one.entry_answered(B1, 0, no(B1)) == []
    assert one.entry_answered(B3, 0, no(B3)) == [AwaitOthers(0)]
    adds = one.entry_answered(B2, 0, entry(0, -1))
    assert {add.bookie for add in adds if isinstance(add, AddEntry)} == {B1, B2, B3}
    assert one.waited_for_others(0) == []


def test_nobody_is_waited_for_when_all_have_answered() -> None:
    one = recovery()
    one.lac_answered(B1, no(B1))
    one.lac_answered(B2, no(B2))
    one.entry_answered(B1, 0, no(B1))
    one.entry_answered(B2, 0, BookieTimeoutError(B2, "silent"))
    assert one.entry_answered(B3, 0, no(B3)) == [CloseLedger(-1, 0, ())]


async def test_over_the_wire_a_wiped_bookie_does_not_cut_off_what_another_one_has(
    cluster: Any, autojump_clock: Any
) -> None:
    async with cluster.client() as client:
        writer = await client.create()
        cluster.bookies["b3:1"].is_silent = True
        await writer.append(b"on b1 and b2")
        writer.abandon()
        await cluster.stop("b3:1")
        await cluster.stop("b1:1")
        cluster.bookies["b3:1"].is_silent = False
        cluster.wipe("b1:1")
        cluster.bookies["b3:1"].ledgers.clear()  # the entry never came there
        await cluster.start("b1:1")
        await cluster.start("b3:1")
        cluster.bookies["b2:1"].delay_s = 0.2  # the one that has it is the last to answer
        async with cluster.client() as other, await other.open(writer.ledger_id) as reader:
            assert [one.payload for one in await reader.read(0, 0)] == [b"on b1 and b2"]


def test_one_positive_answer_makes_the_entry_part_of_the_ledger_on_an_ack_quorum() -> None:
    one = recovery()
    one.lac_answered(B1, no(B1))
    one.lac_answered(B2, entry(0, -1))
    adds = one.entry_answered(B2, 0, entry(0, -1))
    assert [(a.bookie, a.entry_id) for a in adds if isinstance(a, AddEntry)] == [(B1, 0), (B2, 0), (B3, 0)]
    again = CODEC.unpack(next(a.body for a in adds if isinstance(a, AddEntry)), LEDGER, 0)
    assert (again.payload, again.length_bytes) == (b"12345", 5)
    assert one.entry_answered(B1, 1, no(B1)) == []
    one.entry_answered(B3, 1, no(B3))
    assert one.waited_for_others(1) == []  # the end is known, entry 0 is not yet safe
    assert one.add_answered(B1, 0, None) == []
    assert one.add_answered(B1, 0, None) == []  # one bookie twice is no quorum
    assert one.add_answered(B3, 0, None) == [CloseLedger(0, 5, ())]


@pytest.mark.parametrize(
    "answer",
    [
        BookieTimeoutError(B3, "silent"),
        IoErrorRefusal(B3, LEDGER, 0),
        UnknownLedgerStateRefusal(B3, LEDGER, 0),
        CorruptEntryError(LEDGER, 0, "digest"),
    ],
)
def test_errors_limbo_and_bad_digests_are_never_a_denial(answer: Exception) -> None:
    one = recovery()
    one.lac_answered(B1, no(B1))
    one.lac_answered(B2, no(B2))
    assert one.entry_answered(B1, 0, no(B1)) == []
    assert one.entry_answered(B2, 0, answer) == []
    (gave_up,) = one.entry_answered(B3, 0, answer)
    assert isinstance(gave_up, GiveUp)
    assert isinstance(gave_up.error, LedgerRecoveryError)
    assert "whether entry 0 exists cannot be told" in str(gave_up.error)


@pytest.mark.parametrize(
    "answer", [BookieTimeoutError(B1, "silent"), CorruptEntryError(LEDGER, None, "digest")]
)
def test_without_coverage_nothing_is_read(answer: Exception) -> None:
    one = recovery()
    assert one.lac_answered(B1, answer) == []
    assert one.lac_answered(B2, no(B2)) == []
    (gave_up,) = one.lac_answered(B3, answer)
    assert isinstance(gave_up, GiveUp)


def test_a_wrong_key_ends_it_wherever_it_is_told() -> None:
    """In the LAC query, in a recovery read, in a recovery add: no further answer is waited for."""
    refusal = UnauthorizedRefusal(B1, LEDGER)

    def reading() -> Recovery:
        one = recovery()
        one.lac_answered(B1, no(B1))
        one.lac_answered(B2, no(B2))
        return one

    def adding() -> Recovery:
        one = reading()
        assert one.entry_answered(B2, 0, entry(0, -1)) != []
        return one

    for one, tell in (
        (recovery(), lambda one: one.lac_answered(B1, refusal)),
        (reading(), lambda one: one.entry_answered(B1, 0, refusal)),
        (adding(), lambda one: one.add_answered(B1, 0, refusal)),
    ):
        (gave_up,) = tell(one)
        assert isinstance(gave_up, GiveUp)
        assert isinstance(gave_up.error, WrongPasswordError)
        assert one.entry_answered(B3, 0, entry(0, -1)) == []
        assert one.add_answered(B2, 0, None) == []


def test_an_empty_last_segment_closes_in_front_of_it_and_reads_nothing_of_earlier_ones() -> None:
    one = recovery(Ensemble(0, (B1, B2, B3)), Ensemble(1000, (B1, B2, B4)), Ensemble(2000, (B2, B3, B4)))
    one.start()
    one.lac_answered(B2, no(B2))
    actions = one.lac_answered(B3, no(B3))
    assert min(entry_id for _, entry_id in reads(actions)) == 2000
    one.entry_answered(B2, 2000, no(B2))
    one.entry_answered(B3, 2000, no(B3))
    (measure,) = one.waited_for_others(2000)
    assert measure == ReadLength(1999)
    assert one.length_answered(9995) == [CloseLedger(1999, 9995, ())]


def test_the_length_is_that_of_the_entry_at_the_lac_not_of_the_one_that_told_it() -> None:
    one = recovery()
    one.lac_answered(B1, entry(7, 5))  # its length includes entries 6 and 7, which nobody will have
    one.lac_answered(B2, no(B2))
    one.entry_answered(B2, 6, no(B2))
    one.entry_answered(B3, 6, no(B3))
    assert one.waited_for_others(6) == [ReadLength(5)]
    assert one.length_answered(30) == [CloseLedger(5, 30, ())]


def test_a_length_that_nobody_can_tell_now_is_not_guessed() -> None:
    def measuring() -> Recovery:
        one = recovery()
        one.lac_answered(B1, entry(7, 5))
        one.lac_answered(B2, no(B2))
        one.entry_answered(B1, 6, no(B1, 6))
        one.entry_answered(B3, 6, no(B3, 6))
        assert one.waited_for_others(6) == [ReadLength(5)]
        return one

    (gave_up,) = measuring().length_answered(None, BookieTimeoutError(B2, "silent"))
    assert isinstance(gave_up, GiveUp)
    assert "silent" in str(gave_up.error)
    # All have answered and none can show it: nobody ever will, and the ledger must close all the same.
    assert measuring().length_answered(None) == [CloseLedger(5, 40, ())]


def test_entries_are_taken_in_order_and_those_behind_the_end_are_dropped() -> None:
    one = recovery()
    one.lac_answered(B1, no(B1))
    one.lac_answered(B2, no(B2))
    assert one.entry_answered(B1, 1, entry(1, -1)) == []  # read, but entry 0 decides first
    one.entry_answered(B1, 0, no(B1))
    one.entry_answered(B2, 0, no(B2))
    assert one.waited_for_others(0) == [CloseLedger(-1, 0, ())]


def test_entries_written_again_tell_nobody_that_they_are_confirmed_before_the_close() -> None:
    """A replacement is in memory only: the next recovery must not begin behind a LAC that relies on it."""
    one = recovery(sizes=(3, 3, 3), spare=[B4])
    one.lac_answered(B1, entry(1, 0))
    one.entry_answered(B1, 1, entry(1, 0))
    one.add_answered(B2, 1, None)
    one.add_answered(B3, 1, None)
    one.add_answered(B1, 1, BookieTimeoutError(B1, "silent"))
    one.add_answered(B4, 1, None)  # entry 1 is on an ack quorum now, but not of the ensemble in the metadata
    adds = one.entry_answered(B2, 2, entry(2, 0))
    lacs = {CODEC.unpack(add.body, LEDGER, add.entry_id).lac for add in adds if isinstance(add, AddEntry)}
    assert lacs == {0}


def test_a_failed_add_is_replaced_in_memory_and_written_with_the_close() -> None:
    one = recovery(spare=[B4])
    one.lac_answered(B1, entry(0, -1))
    one.lac_answered(B2, no(B2))
    one.entry_answered(B1, 0, entry(0, -1))
    actions = one.add_answered(B3, 0, BookieTimeoutError(B3, "silent"))
    assert [(a.bookie, a.entry_id) for a in actions if isinstance(a, AddEntry)] == [(B4, 0)]
    one.add_answered(B3, 0, None)  # no longer of the ensemble
    one.add_answered(B1, 0, None)
    one.entry_answered(B2, 1, no(B2))
    one.entry_answered(B3, 1, no(B3))
    one.waited_for_others(1)
    (close,) = one.add_answered(B4, 0, None)
    assert close == CloseLedger(0, 5, ((0, (B1, B2, B4)),))
    open_again = LedgerMetadata(
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        ensembles=(Ensemble(0, (B1, B2, B3)),),
        state=LedgerState.IN_RECOVERY,
    )
    assert isinstance(close, CloseLedger)
    closed = close.apply(open_again)
    assert closed is not None
    assert (closed.last_entry_id, closed.ensembles) == (0, (Ensemble(0, (B1, B2, B4)),))
    assert close.apply(closed) is None  # somebody was faster: that is the truth


def test_without_a_spare_an_ack_quorum_will_do_and_less_will_not() -> None:
    one = recovery()
    one.lac_answered(B1, entry(0, -1))
    one.lac_answered(B2, no(B2))
    one.entry_answered(B1, 0, entry(0, -1))
    assert one.add_answered(B3, 0, BookieTimeoutError(B3, "silent")) == []
    (gave_up,) = one.add_answered(B2, 0, BookieTimeoutError(B2, "silent"))
    assert isinstance(gave_up, GiveUp)
    assert "cannot be written to an ack quorum" in str(gave_up.error)


def test_reading_ahead_is_bounded_by_what_is_written_again() -> None:
    one = recovery(read_ahead=3)
    one.lac_answered(B1, no(B1))
    asked = reads(one.lac_answered(B2, no(B2)))
    for entry_id in range(20):
        for bookie, asked_id in sorted(asked):
            assert asked_id < entry_id + 3 + 1
            assert bookie in (B1, B2, B3)
        if (B1, entry_id) not in asked:
            break
        asked |= reads(one.entry_answered(B1, entry_id, entry(entry_id, -1)))
    assert max(entry_id for _, entry_id in asked) == 2  # nothing was stored again yet
    one.add_answered(B1, 0, None)
    assert max(entry_id for _, entry_id in reads(one.add_answered(B2, 0, None))) == 3
