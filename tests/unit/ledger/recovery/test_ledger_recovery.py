"""The recovery machine: each test passes it results and checks its actions."""

# covers: ledger/recovery/recovery.py

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence

import pytest
from trio.testing import MockClock

from ledger.digest import DigestType, Entry, EntryCodec
from ledger.errors import (
    AccessDeniedError,
    BookieSecurityError,
    BookieTimeoutError,
    ClientRefusedError,
    CorruptEntryError,
    IoErrorRefusal,
    LedgerRecoveryError,
    NoEntryRefusal,
    UnauthorizedRefusal,
    UnknownLedgerStateRefusal,
)
from ledger.metadata import Ensemble, LedgerMetadata, LedgerState
from ledger.recovery.recovery import (
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
from tests.fakes.dict_bookies import DictCluster

B1, B2, B3, B4 = "b1:1", "b2:1", "b3:1", "b4:1"
LEDGER = 1
CODEC = EntryCodec(DigestType.DUMMY, b"")


def recovery(
    *ensembles: Ensemble,
    sizes: tuple[int, int, int] = (3, 3, 2),
    spare: Sequence[str] = (),
    read_ahead: int = 16,
    bytes_max: int | None = None,
    entries_max: int | None = None,
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
    return Recovery(
        LEDGER,
        metadata,
        pack=pack,
        choose=choose,
        read_ahead=read_ahead,
        bytes_max=bytes_max,
        entries_max=entries_max,
    )


def entry(entry_id: int, lac: int, payload: bytes = b"12345", length_bytes: int | None = None) -> Entry:
    length = (entry_id + 1) * 5 if length_bytes is None else length_bytes
    return Entry(LEDGER, entry_id, lac, length, payload)


def denial(bookie: str, entry_id: int | None = None) -> Exception:
    return NoEntryRefusal(bookie, LEDGER, entry_id)


def reads(actions: list[Action]) -> set[tuple[str, int]]:
    return {(action.bookie, action.entry_id) for action in actions if isinstance(action, ReadEntry)}


def test_scenario_7_4_a_bookie_that_denies_an_entry_was_fenced_by_the_same_read() -> None:
    one = recovery()
    assert {action.bookie for action in one.start() if isinstance(action, ReadLac)} == {B1, B2, B3}
    assert one.on_lac_read(B1, denial(B1)) == []
    # The first fence never reaches b3. Entry 0 is on b2, and on its way to b3.
    requested = one.on_lac_read(B2, denial(B2))
    assert {(B1, 0), (B2, 0), (B3, 0)} <= reads(requested)
    assert one.on_entry_read(B1, 0, denial(B1, 0)) == []
    # The denial of b3 ends the ledger in front of entry 0, since a ReadEntry fences too.
    assert one.on_entry_read(B3, 0, denial(B3, 0)) == [AwaitOthers(0)]
    (close,) = one.on_waited(0)
    assert close == CloseLedger(-1, 0, ())
    assert one.on_entry_read(B2, 0, entry(0, -1)) == []


async def test_scenario_7_4_over_the_wire_every_recovery_read_fences(cluster: DictCluster) -> None:
    async with cluster.client() as client:
        writer = await client.create()
        await writer.append_many([b"x"] * 3)
        writer.abandon()
        for bookie in cluster.bookies.values():
            bookie.requests.clear()
        await client.open(writer.ledger_id)
        requested = [
            request
            for bookie in cluster.bookies.values()
            for request in bookie.requests
            if isinstance(request, ReadRequest)
        ]
        assert {request.entry_id for request in requested} >= {LAST_ENTRY, 2, 3}
        assert all(request.fence and request.master_key for request in requested)
        # High priority: a bookie that is over capacity or read-only still serves a recovery.
        for bookie in cluster.bookies.values():
            wanted = [
                one
                for one in bookie.requests
                if isinstance(one, AddRequest) or (isinstance(one, ReadRequest) and one.entry_id >= 0)
            ]
            assert [one for one in wanted if isinstance(one, AddRequest)]
            assert bookie.urgent_requests == wanted


def test_one_bookie_with_the_entry_outweighs_denials() -> None:
    """apache/bookkeeper#2612: b1 acknowledged entry 0 with b2, then lost its disk and kept its name."""
    one = recovery()
    one.on_lac_read(B1, denial(B1))
    one.on_lac_read(B3, denial(B3))
    assert one.on_entry_read(B1, 0, denial(B1)) == []
    assert one.on_entry_read(B3, 0, denial(B3)) == [AwaitOthers(0)]
    adds = one.on_entry_read(B2, 0, entry(0, -1))
    assert {add.bookie for add in adds if isinstance(add, AddEntry)} == {B1, B2, B3}
    assert one.on_waited(0) == []


def test_the_end_is_decided_at_once_when_all_bookies_replied() -> None:
    one = recovery()
    one.on_lac_read(B1, denial(B1))
    one.on_lac_read(B2, denial(B2))
    one.on_entry_read(B1, 0, denial(B1))
    one.on_entry_read(B2, 0, BookieTimeoutError(B2, "silent"))
    assert one.on_entry_read(B3, 0, denial(B3)) == [CloseLedger(-1, 0, ())]


async def test_over_the_wire_a_wiped_bookie_does_not_remove_an_entry_of_another(
    cluster: DictCluster, autojump_clock: MockClock
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
        cluster.bookies["b3:1"].ledgers.clear()  # b3 never received the entry
        await cluster.start("b1:1")
        await cluster.start("b3:1")
        cluster.bookies["b2:1"].delay_s = 0.2  # the bookie with the entry replies last
        async with cluster.client() as other, await other.open(writer.ledger_id) as reader:
            assert [one.payload for one in await reader.read(0, 0)] == [b"on b1 and b2"]


def test_an_entry_on_one_bookie_is_kept_and_written_to_an_ack_quorum() -> None:
    one = recovery()
    one.on_lac_read(B1, denial(B1))
    one.on_lac_read(B2, entry(0, -1))
    adds = one.on_entry_read(B2, 0, entry(0, -1))
    assert [(a.bookie, a.entry_id) for a in adds if isinstance(a, AddEntry)] == [(B1, 0), (B2, 0), (B3, 0)]
    again = CODEC.unpack(next(a.body for a in adds if isinstance(a, AddEntry)), LEDGER, 0)
    assert (again.payload, again.length_bytes) == (b"12345", 5)
    assert one.on_entry_read(B1, 1, denial(B1)) == []
    one.on_entry_read(B3, 1, denial(B3))
    assert one.on_waited(1) == []  # the end is known, but entry 0 is not on an ack quorum yet
    assert one.on_entry_added(B1, 0, None) == []
    assert one.on_entry_added(B1, 0, None) == []  # one bookie twice is no quorum
    assert one.on_entry_added(B3, 0, None) == [CloseLedger(0, 5, ())]


@pytest.mark.parametrize(
    "result",
    [
        BookieTimeoutError(B3, "silent"),
        IoErrorRefusal(B3, LEDGER, 0),
        UnknownLedgerStateRefusal(B3, LEDGER, 0),
        CorruptEntryError(LEDGER, 0, "digest"),
    ],
)
def test_errors_limbo_and_bad_digests_are_never_a_denial(result: Exception) -> None:
    one = recovery()
    one.on_lac_read(B1, denial(B1))
    one.on_lac_read(B2, denial(B2))
    assert one.on_entry_read(B1, 0, denial(B1)) == []
    assert one.on_entry_read(B2, 0, result) == []
    (gave_up,) = one.on_entry_read(B3, 0, result)
    assert isinstance(gave_up, GiveUp)
    assert isinstance(gave_up.error, LedgerRecoveryError)
    assert "whether entry 0 exists is unknown" in str(gave_up.error)


@pytest.mark.parametrize(
    "result", [BookieTimeoutError(B1, "silent"), CorruptEntryError(LEDGER, None, "digest")]
)
def test_without_coverage_nothing_is_read(result: Exception) -> None:
    one = recovery()
    assert one.on_lac_read(B1, result) == []
    assert one.on_lac_read(B2, denial(B2)) == []
    (gave_up,) = one.on_lac_read(B3, result)
    assert isinstance(gave_up, GiveUp)


def test_a_wrong_key_ends_the_recovery_in_each_step() -> None:
    """In the LAC query, a recovery read or a recovery add: the recovery waits for no other reply."""
    refusal = UnauthorizedRefusal(B1, LEDGER)

    def reading() -> Recovery:
        one = recovery()
        one.on_lac_read(B1, denial(B1))
        one.on_lac_read(B2, denial(B2))
        return one

    def adding() -> Recovery:
        one = reading()
        assert one.on_entry_read(B2, 0, entry(0, -1)) != []
        return one

    fencing, reader, adder = recovery(), reading(), adding()
    for one, actions in (
        (fencing, fencing.on_lac_read(B1, refusal)),
        (reader, reader.on_entry_read(B1, 0, refusal)),
        (adder, adder.on_entry_added(B1, 0, refusal)),
    ):
        (gave_up,) = actions
        assert isinstance(gave_up, GiveUp)
        assert isinstance(gave_up.error, AccessDeniedError)
        assert one.on_entry_read(B3, 0, entry(0, -1)) == []
        assert one.on_entry_added(B2, 0, None) == []


def test_an_empty_last_segment_closes_in_front_of_it_and_earlier_ones_are_not_read() -> None:
    one = recovery(Ensemble(0, (B1, B2, B3)), Ensemble(1000, (B1, B2, B4)), Ensemble(2000, (B2, B3, B4)))
    one.start()
    one.on_lac_read(B2, denial(B2))
    actions = one.on_lac_read(B3, denial(B3))
    assert min(entry_id for _, entry_id in reads(actions)) == 2000
    one.on_entry_read(B2, 2000, denial(B2))
    one.on_entry_read(B3, 2000, denial(B3))
    (measure,) = one.on_waited(2000)
    assert measure == ReadLength(1999)
    assert one.on_length_read(9995) == [CloseLedger(1999, 9995, ())]


def test_the_length_is_that_of_the_entry_at_the_lac_not_of_the_one_with_the_lac() -> None:
    one = recovery()
    one.on_lac_read(B1, entry(7, 5))  # its length includes entries 6 and 7, which will not be kept
    one.on_lac_read(B2, denial(B2))
    one.on_entry_read(B2, 6, denial(B2))
    one.on_entry_read(B3, 6, denial(B3))
    assert one.on_waited(6) == [ReadLength(5)]
    assert one.on_length_read(30) == [CloseLedger(5, 30, ())]


def test_an_unknown_length_is_not_guessed_while_a_replica_may_still_reply() -> None:
    def measuring() -> Recovery:
        one = recovery()
        one.on_lac_read(B1, entry(7, 5))
        one.on_lac_read(B2, denial(B2))
        one.on_entry_read(B1, 6, denial(B1, 6))
        one.on_entry_read(B3, 6, denial(B3, 6))
        assert one.on_waited(6) == [ReadLength(5)]
        return one

    (gave_up,) = measuring().on_length_read(None, BookieTimeoutError(B2, "silent"))
    assert isinstance(gave_up, GiveUp)
    assert "silent" in str(gave_up.error)
    # All replicas replied and none has the entry. No later recovery can do better, so the ledger is closed.
    assert measuring().on_length_read(None) == [CloseLedger(5, 40, ())]


def test_entries_are_decided_in_order_and_those_after_the_end_are_dropped() -> None:
    one = recovery()
    one.on_lac_read(B1, denial(B1))
    one.on_lac_read(B2, denial(B2))
    assert one.on_entry_read(B1, 1, entry(1, -1)) == []  # read, but entry 0 decides first
    one.on_entry_read(B1, 0, denial(B1))
    one.on_entry_read(B2, 0, denial(B2))
    assert one.on_waited(0) == [CloseLedger(-1, 0, ())]


def test_entries_written_again_carry_only_the_lac_that_was_found() -> None:
    """A replacement is not in the metadata yet: the next recovery must not begin after a LAC that relies on
    it."""
    one = recovery(sizes=(3, 3, 3), spare=[B4])
    one.on_lac_read(B1, entry(1, 0))
    one.on_entry_read(B1, 1, entry(1, 0))
    one.on_entry_added(B2, 1, None)
    one.on_entry_added(B3, 1, None)
    one.on_entry_added(B1, 1, BookieTimeoutError(B1, "silent"))
    one.on_entry_added(B4, 1, None)  # now on an ack quorum, but not of the ensemble in the metadata
    adds = one.on_entry_read(B2, 2, entry(2, 0))
    lacs = {CODEC.unpack(add.body, LEDGER, add.entry_id).lac for add in adds if isinstance(add, AddEntry)}
    assert lacs == {0}


def test_a_failed_add_is_replaced_in_memory_and_written_with_the_close() -> None:
    one = recovery(spare=[B4])
    one.on_lac_read(B1, entry(0, -1))
    one.on_lac_read(B2, denial(B2))
    one.on_entry_read(B1, 0, entry(0, -1))
    actions = one.on_entry_added(B3, 0, BookieTimeoutError(B3, "silent"))
    assert [(a.bookie, a.entry_id) for a in actions if isinstance(a, AddEntry)] == [(B4, 0)]
    one.on_entry_added(B3, 0, None)  # no longer in the ensemble
    one.on_entry_added(B1, 0, None)
    one.on_entry_read(B2, 1, denial(B2))
    one.on_entry_read(B3, 1, denial(B3))
    one.on_waited(1)
    (close,) = one.on_entry_added(B4, 0, None)
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
    assert close.apply(closed) is None  # closed already: that end is final


def test_a_bookie_that_failed_is_not_chosen_again_so_a_recovery_ends() -> None:
    # Bookies that hold an entry with other bytes refuse it each time.
    one = recovery(spare=[B4, B3])
    one.on_lac_read(B1, entry(0, -1))
    one.on_lac_read(B2, denial(B2))
    one.on_entry_read(B1, 0, entry(0, -1))
    (add, *_) = one.on_entry_added(B3, 0, IoErrorRefusal(B3, LEDGER, 0))
    assert isinstance(add, AddEntry)
    assert add.bookie == B4
    assert one.on_entry_added(B4, 0, IoErrorRefusal(B4, LEDGER, 0)) == []
    (gave_up,) = one.on_entry_added(B2, 0, IoErrorRefusal(B2, LEDGER, 0))
    assert isinstance(gave_up, GiveUp)


def test_without_a_replacement_an_ack_quorum_is_enough_and_fewer_bookies_are_not() -> None:
    one = recovery()
    one.on_lac_read(B1, entry(0, -1))
    one.on_lac_read(B2, denial(B2))
    one.on_entry_read(B1, 0, entry(0, -1))
    assert one.on_entry_added(B3, 0, BookieTimeoutError(B3, "silent")) == []
    (gave_up,) = one.on_entry_added(B2, 0, BookieTimeoutError(B2, "silent"))
    assert isinstance(gave_up, GiveUp)
    assert "cannot be written to an ack quorum" in str(gave_up.error)


def test_reading_ahead_is_bounded_by_the_entries_written_again() -> None:
    one = recovery(read_ahead=3)
    one.on_lac_read(B1, denial(B1))
    requested = reads(one.on_lac_read(B2, denial(B2)))
    for entry_id in range(20):
        for bookie, requested_id in sorted(requested):
            assert requested_id < entry_id + 3 + 1
            assert bookie in (B1, B2, B3)
        if (B1, entry_id) not in requested:
            break
        requested |= reads(one.on_entry_read(B1, entry_id, entry(entry_id, -1)))
    assert max(entry_id for _, entry_id in requested) == 2  # no entry was written again yet
    one.on_entry_added(B1, 0, None)
    assert max(entry_id for _, entry_id in reads(one.on_entry_added(B2, 0, None))) == 3


def test_no_entry_is_looked_for_whose_successor_has_no_id_and_the_ledger_is_closed_before_it() -> None:
    one = recovery(Ensemble(0, (B1,)), sizes=(1, 1, 1))
    one.start()
    end = 2**63 - 1
    actions = one.on_lac_read(B1, entry(end - 5, end - 6, length_bytes=2**63 - 1))
    found: list[int] = []
    while not any(isinstance(action, CloseLedger) for action in actions):
        reads_now = [action.entry_id for action in actions if isinstance(action, ReadEntry)]
        found += reads_now
        actions = [
            done for read in reads_now for done in one.on_entry_read(B1, read, entry(read, -1, b"", 7))
        ]
        adds = [action.entry_id for action in actions if isinstance(action, AddEntry)]
        actions += [done for entry_id in adds for done in one.on_entry_added(B1, entry_id, None)]
    assert found == list(range(end - 5, end))
    assert CloseLedger(end - 1, 7, ()) in actions


def refused(bookie: str) -> Exception:
    return BookieSecurityError(bookie, "the certificate is expired")


def test_bookies_that_refuse_this_client_end_the_search_for_the_lac_at_once_with_their_reasons() -> None:
    one = recovery()
    assert one.on_lac_read(B1, refused(B1)) == []
    assert one.on_lac_read(B2, denial(B2)) == []
    (end,) = one.on_lac_read(B3, refused(B3))
    assert isinstance(end, GiveUp)
    assert isinstance(end.error, ClientRefusedError)
    assert [str(reason) for reason in end.error.reasons] == [str(refused(B1)), str(refused(B3))]


def test_bookies_that_refuse_this_client_end_the_read_of_an_entry_with_their_reasons() -> None:
    one = recovery()
    one.on_lac_read(B1, denial(B1))
    one.on_lac_read(B2, denial(B2))
    one.on_entry_read(B1, 0, refused(B1))
    one.on_entry_read(B2, 0, denial(B2, 0))
    (end,) = one.on_entry_read(B3, 0, refused(B3))
    assert isinstance(end, GiveUp)
    assert isinstance(end.error, ClientRefusedError)
    assert [str(reason) for reason in end.error.reasons] == [str(refused(B1)), str(refused(B3))]


def test_bookies_that_refuse_this_client_end_the_adds_of_an_entry_with_their_reasons() -> None:
    one = recovery()
    one.on_lac_read(B1, denial(B1))
    one.on_lac_read(B2, denial(B2))
    one.on_entry_read(B1, 0, entry(0, -1))
    assert not any(isinstance(action, GiveUp) for action in one.on_entry_added(B1, 0, refused(B1)))
    actions = one.on_entry_added(B2, 0, refused(B2))
    assert isinstance(actions[-1], GiveUp)
    assert isinstance(actions[-1].error, ClientRefusedError)
    assert [str(reason) for reason in actions[-1].error.reasons] == [str(refused(B1)), str(refused(B2))]
