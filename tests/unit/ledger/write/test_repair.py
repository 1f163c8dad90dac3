"""The repair machine, called by hand: its steps, its limits, and the table of its states."""

# covers: ledger/write/actions.py

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

import attrs
import pytest

from ledger.catalog.catalog import Versioned
from ledger.config import ClientConfig
from ledger.errors import (
    BookieUnavailableError,
    LedgerFencedError,
    LedgerWriteError,
    NoSuchLedgerError,
    ReadOnlyRefusal,
    TooManyRequestsRefusal,
)
from ledger.metadata import Ensemble, LedgerMetadata
from ledger.metadata_store.errors import ConnectionLostError
from ledger.write.actions import (
    Action,
    Adopt,
    BeginRepair,
    ChooseReplacements,
    Confirm,
    End,
    Probe,
    ReadMetadata,
    Suspect,
    Wait,
    Warn,
    WriteChange,
)
from ledger.write.connection_trust import ConnectionTrust
from ledger.write.deferred_sync import Durable
from ledger.write.ensemble_state import TRANSITIONS, EnsembleEvent, EnsembleState
from ledger.write.repair import EnsembleRepair
from ledger.write.writer import LedgerWriter, SendAdds

LEDGER = 7
METADATA = LedgerMetadata(
    ensemble_size=3, write_quorum=3, ack_quorum=2, ensembles=(Ensemble(0, ("a", "b", "c")),)
)
CONFIG = ClientConfig(unavailable_timeout_s=3.0, retry_backoff_min_s=0.1, retry_backoff_max_s=1.0)
DEAD = BookieUnavailableError("a", "dead")

A = TypeVar("A")


class Machines:
    """Both machines of one writer with bookies a, b and c, whose connections are all old and trusted."""

    def __init__(self, config: ClientConfig = CONFIG, *, durable: Durable | None = None) -> None:
        self.connections = dict.fromkeys("abcxyz", 1)
        self.current = Versioned(LEDGER, METADATA, 0)
        self.writer = LedgerWriter(
            "abc", write_quorum=3, ack_quorum=2, pack=lambda entry_id, lac, length, payload: b"%d" % entry_id
        )
        trust = ConnectionTrust(self.connections.get)
        trust.trust_since(dict.fromkeys("abc", 1))
        trust.take_lost(0)
        self.repair = EnsembleRepair(LEDGER, self.writer, trust, config, random.Random(1), durable=durable)

    def state(self) -> EnsembleState:
        return self.writer.state

    def write(self) -> None:
        self.writer.append(b"x")
        self.writer.take_outgoing()

    def fail(
        self, bookie: str, cause: Exception = DEAD, *, now_s: float = 0.0, lost: bool = True
    ) -> list[Action]:
        return self.repair.on_bookie_failed(bookie, cause, lost=lost, now_s=now_s)

    def begin(self) -> ChooseReplacements:
        return only(self.repair.on_repair_due(0.0), ChooseReplacements)

    def choose(
        self,
        step: ChooseReplacements,
        replacements: dict[int, str],
        *,
        suspects: tuple[str, ...] = (),
        now_s: float = 0.0,
    ) -> list[Action]:
        return self.repair.on_replacements_chosen(step, replacements, None, suspects, now_s)

    def store(self, step: WriteChange) -> Versioned:
        """The metadata store takes the change."""
        changed = step.change.apply(self.current.metadata)
        assert changed is not None
        self.current = Versioned(LEDGER, changed, self.current.version + 1)
        return self.current


def only(actions: list[Action], kind: type[A]) -> A:
    """The one action of this kind."""
    (found,) = (action for action in actions if isinstance(action, kind))
    return found


def error_of(actions: list[Action]) -> Exception:
    return only(actions, End).make_error()


def test_a_failing_bookie_is_replaced_and_the_new_one_gets_the_pending_entries() -> None:
    machines = Machines()
    repair, writer = machines.repair, machines.writer
    machines.write()
    warn = Warn(f"{DEAD} (last confirmed entry -1)")
    assert machines.fail("b") == [Suspect("b"), warn, BeginRepair()]
    assert machines.state() is EnsembleState.DEGRADED
    (choose,) = repair.on_repair_due(0.0)
    assert isinstance(choose, ChooseReplacements)
    assert choose == ChooseReplacements(("a", "b", "c"), frozenset({1}), ("b",), allow_quarantined=False)
    (write,) = machines.choose(choose, {1: "x"})
    assert isinstance(write, WriteChange)
    assert (write.change.first_entry_id, write.connections) == (0, {"x": 1})
    assert machines.state() is EnsembleState.CHANGING
    writer.adds_answered("a", [0])
    assert not writer.adds_answered("c", [0])  # an ack quorum, but the change is under way
    adopt, log, *rest = repair.on_ensemble_changed(write, machines.store(write), 0.0)
    assert adopt == Adopt(machines.current)
    assert log == Warn("from entry 0 on ('a', 'x', 'c') instead of ('a', 'b', 'c')")
    assert rest == [SendAdds("x", [b"0"], [0]), Confirm(range(1))]
    assert machines.state() is EnsembleState.HEALTHY


def test_bookies_that_fail_at_the_same_moment_are_replaced_together() -> None:
    machines = Machines()
    machines.fail("a")
    assert BeginRepair() not in machines.fail("b")
    assert machines.begin().failed == {0, 1}


def test_a_bookie_that_fails_during_a_change_is_replaced_after_it() -> None:
    machines = Machines()
    machines.fail("a")
    write = only(machines.choose(machines.begin(), {0: "x"}), WriteChange)
    assert BeginRepair() not in machines.fail("c")
    assert machines.state() is EnsembleState.CHANGING
    actions = machines.repair.on_ensemble_changed(write, machines.store(write), 0.0)
    assert only(actions, ChooseReplacements).failed == {2}
    assert machines.state() is EnsembleState.CHOOSING


def test_a_second_change_cannot_begin_before_the_first_is_settled() -> None:
    machines = Machines()
    machines.fail("a")
    machines.choose(machines.begin(), {0: "x"})
    with pytest.raises(AssertionError, match="BEGIN_CHANGE in state CHANGING"):
        machines.writer.begin_change()


def test_without_a_spare_bookie_the_failing_one_is_probed_and_revived() -> None:
    machines = Machines()
    machines.write()
    machines.fail("a")
    wait = only(machines.choose(machines.begin(), {}), Wait)
    assert 0.1 <= wait.pause_s <= 0.125
    (probe,) = machines.repair.on_waited(wait, 0.1)
    assert isinstance(probe, Probe)
    assert (probe.index, probe.bookie) == (0, "a")
    assert machines.state() is EnsembleState.PROBING
    assert machines.repair.on_probe_answered(probe, None, 0.2) == [SendAdds("a", [b"0"], [0])]
    assert machines.state() is EnsembleState.HEALTHY


def test_a_bookie_that_is_alive_gets_its_entries_before_the_others_have_answered() -> None:
    machines = Machines()
    machines.write()
    machines.fail("a")
    machines.fail("b")
    wait = only(machines.choose(machines.begin(), {}), Wait)
    first, second = machines.repair.on_waited(wait, 0.1)
    assert isinstance(first, Probe)
    assert isinstance(second, Probe)
    assert only(machines.repair.on_probe_answered(first, None, 0.2), SendAdds).bookie == "a"
    assert machines.state() is EnsembleState.PROBING
    again = only(machines.repair.on_probe_answered(second, DEAD, 5.0), ChooseReplacements)
    assert again.failed == {1}


def test_a_read_only_bookie_is_tried_again_without_a_probe() -> None:
    machines = Machines()
    machines.write()
    machines.fail("a", ReadOnlyRefusal("a", LEDGER, 0), lost=False)
    wait = only(machines.choose(machines.begin(), {}), Wait)
    assert machines.repair.on_waited(wait, 0.1) == [SendAdds("a", [b"0"], [0])]
    assert machines.state() is EnsembleState.HEALTHY


def test_a_failure_during_the_pause_is_looked_at_before_any_bookie_is_probed() -> None:
    machines = Machines()
    machines.fail("a")
    wait = only(machines.choose(machines.begin(), {}), Wait)
    machines.fail("b")
    assert only(machines.repair.on_waited(wait, 0.1), ChooseReplacements).failed == {0, 1}


def test_a_bookie_over_capacity_is_tried_again_before_it_is_replaced() -> None:
    machines = Machines()
    machines.fail("a", TooManyRequestsRefusal("a", LEDGER, 0), lost=False)
    (wait,) = machines.repair.on_repair_due(0.0)
    assert isinstance(wait, Wait)
    machines = Machines(attrs.evolve(CONFIG, overload_timeout_s=0.0))
    machines.fail("a", TooManyRequestsRefusal("a", LEDGER, 0), lost=False)
    assert machines.begin().failed == {0}


def test_suspects_do_not_replace_each_other_as_fast_as_they_fail() -> None:
    machines = Machines()
    machines.fail("a")
    write = only(
        machines.choose(machines.begin(), {0: "x"}, suspects=("x",)),
        WriteChange,
    )
    machines.fail("b")
    choose = only(machines.repair.on_ensemble_changed(write, machines.store(write), 0.1), ChooseReplacements)
    assert isinstance(machines.choose(choose, {1: "y"}, suspects=("y",), now_s=0.1)[0], Wait)


def test_the_limit_of_changes_ends_the_writer() -> None:
    machines = Machines(attrs.evolve(CONFIG, ensemble_changes_max=1))
    machines.fail("a")
    write = only(machines.choose(machines.begin(), {0: "x"}), WriteChange)
    machines.fail("b")
    choose = only(machines.repair.on_ensemble_changed(write, machines.store(write), 0.1), ChooseReplacements)
    error = error_of(machines.choose(choose, {1: "y"}))
    assert isinstance(error, LedgerWriteError)
    assert "changed 1 times, which is the limit" in str(error)
    assert error.__cause__ is DEAD


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (ConnectionLostError("x"), "the outcome of an ensemble change is unknown"),
        (NoSuchLedgerError(LEDGER), "an ensemble change cannot be made"),
    ],
)
def test_a_change_that_fails_ends_the_writer_and_nothing_is_confirmed_any_more(
    failure: Any, message: str
) -> None:
    machines = Machines()
    machines.write()
    machines.fail("a")
    machines.choose(machines.begin(), {0: "x"})
    assert message in str(error_of(machines.repair.on_change_failed(failure)))
    machines.writer.adds_answered("b", [0])
    assert not machines.writer.adds_answered("c", [0])
    assert machines.repair.on_change_failed(failure) == []  # the first reason is the only one


def test_metadata_that_another_client_took_over_end_the_writer() -> None:
    machines = Machines()
    machines.fail("a")
    write = only(machines.choose(machines.begin(), {0: "x"}), WriteChange)
    taken = Versioned(LEDGER, METADATA.in_recovery(), 5)
    assert isinstance(error_of(machines.repair.on_ensemble_changed(write, taken, 0.0)), LedgerFencedError)
    assert machines.state() is EnsembleState.OVER


def test_when_the_retry_timeout_is_over_the_error_names_every_cause() -> None:
    machines = Machines()
    machines.write()
    machines.fail("a")
    machines.fail("b", BookieUnavailableError("b", "unplugged"))
    wait = only(machines.choose(machines.begin(), {}), Wait)
    first, second = machines.repair.on_waited(wait, 0.1)
    assert isinstance(first, Probe)
    assert isinstance(second, Probe)
    assert machines.repair.on_probe_answered(first, DEAD, 3.0) == []
    choose = only(machines.repair.on_probe_answered(second, DEAD, 3.0), ChooseReplacements)
    assert choose.allow_quarantined
    error = error_of(machines.choose(choose, {}, now_s=3.0))
    assert "no ack quorum for entry 0 in 3 s" in str(error)


def test_progress_starts_the_retry_timeout_again() -> None:
    machines = Machines()
    repair, writer = machines.repair, machines.writer
    machines.write()
    machines.fail("a")
    machines.fail("b", lost=False)
    wait = only(machines.choose(machines.begin(), {}), Wait)  # blocked from now
    first, second = repair.on_waited(wait, 0.1)
    assert isinstance(first, Probe)
    assert isinstance(second, Probe)
    repair.on_probe_answered(second, None, 0.2)
    writer.adds_answered("b", [0])
    assert writer.adds_answered("c", [0])
    machines.write()
    machines.fail("b")
    choose = only(repair.on_probe_answered(first, DEAD, 3.0), ChooseReplacements)
    assert not choose.allow_quarantined
    assert isinstance(machines.choose(choose, {}, now_s=3.0)[0], Wait)  # entry 1 is blocked from now


def test_a_writer_without_progress_and_not_blocked_goes_on_trying() -> None:
    """The retry timeout counts from the first block, and may be over before the next failure blocks again."""
    machines = Machines()
    repair, writer = machines.repair, machines.writer
    machines.write()
    machines.fail("a")
    machines.fail("b")
    wait = only(machines.choose(machines.begin(), {}), Wait)  # blocked from now
    first, second = repair.on_waited(wait, 0.1)
    assert isinstance(first, Probe)
    assert isinstance(second, Probe)
    repair.on_probe_answered(first, None, 0.2)
    writer.adds_answered("a", [0])
    assert repair.on_replies_held() == [ReadMetadata(0.0)]
    assert repair.on_metadata_read(METADATA, 0, 1.0) == []  # counted, and not enough for the LAC
    assert not writer.blocked  # the third bookie is left
    choose = only(repair.on_probe_answered(second, DEAD, 10.0), ChooseReplacements)
    wait = only(machines.choose(choose, {}, now_s=10.0), Wait)
    assert 0 < wait.pause_s <= CONFIG.unavailable_timeout_s / 10


def test_replies_over_a_new_connection_count_after_a_look_at_the_metadata() -> None:
    machines = Machines()
    repair, writer = machines.repair, machines.writer
    machines.write()
    writer.adds_answered("b", [0])
    machines.connections["a"] = 2
    assert repair.check_connections(1, 1.0, "a") == []
    assert not writer.adds_answered("a", [0])
    assert repair.on_replies_held() == [ReadMetadata(0.0)]
    assert repair.on_replies_held() == []  # one read at a time
    assert repair.on_metadata_read_failed(ConnectionLostError("x"), 0.0) == [ReadMetadata(1.0)]
    assert repair.on_metadata_read(METADATA, 1, 1.0) == [Confirm(range(1))]
    assert repair.on_replies_held() == []


def test_a_connection_lost_during_the_look_at_the_metadata_is_looked_at_again() -> None:
    machines = Machines()
    repair, writer = machines.repair, machines.writer
    machines.write()
    machines.connections["a"] = 2
    repair.check_connections(1, 1.0, "a")
    writer.adds_answered("a", [0])
    repair.on_replies_held()
    machines.connections["a"] = 3
    assert repair.on_metadata_read(METADATA, 2, 1.0) == [SendAdds("a", [b"0"], [0])]
    writer.adds_answered("b", [0])
    assert writer.lac == -1
    writer.adds_answered("a", [0])
    assert repair.on_replies_held() == [ReadMetadata(0.0)]
    assert repair.on_metadata_read(METADATA, 2, 1.0) == [Confirm(range(1))]


def test_a_bookie_that_loses_its_connection_after_each_acknowledgement_counts_as_failing() -> None:
    machines = Machines()
    repair, writer = machines.repair, machines.writer
    machines.write()

    def acknowledge_and_break(losses: int, now_s: float) -> list[Action]:
        repair.check_connections(losses - 1, now_s, "a")
        writer.adds_answered("a", [0])
        machines.connections["a"] += 1
        return repair.check_connections(losses, now_s)

    assert acknowledge_and_break(1, 0.0) == [SendAdds("a", [b"0"], [0])]  # at once: a restart of a bookie
    after_s = CONFIG.retry_backoff_max_s
    assert acknowledge_and_break(2, after_s) == [SendAdds("a", [b"0"], [0])]  # seldom enough
    actions = acknowledge_and_break(3, after_s + 0.1)
    assert [type(action) for action in actions] == [Suspect, Warn, BeginRepair]
    wait = only(machines.choose(machines.begin(), {}), Wait)
    assert wait.failing == {0}


def refuse(machines: Machines) -> list[Action]:
    return machines.fail("a", lost=False)


def fail_to_sync(machines: Machines) -> list[Action]:
    return machines.repair.on_unsynced_lost(DEAD)


def lose_a_connection(machines: Machines) -> list[Action]:
    del machines.connections["a"]
    return machines.repair.check_connections(1, 1.0)


@pytest.mark.parametrize("fail", [refuse, fail_to_sync, lose_a_connection])
def test_with_deferred_sync_any_failure_ends_the_writer(fail: Callable[[Machines], list[Action]]) -> None:
    machines = Machines(durable=Durable())
    machines.write()
    assert "entries after -1 are not synced and may be lost" in str(error_of(fail(machines)))
    assert machines.fail("b") == []


def test_after_the_end_no_event_has_an_effect() -> None:
    machines = Machines()
    repair = machines.repair
    machines.write()
    machines.fail("a")
    choose = machines.begin()
    repair.stop()
    assert repair.on_repair_due(0.0) == []
    assert machines.choose(choose, {0: "x"}) == []
    assert repair.on_waited(Wait(1.0, frozenset({0})), 1.0) == []
    assert repair.on_metadata_seen(METADATA.in_recovery()) == []
    assert repair.on_metadata_read(METADATA, 3, 1.0) == []
    assert repair.on_metadata_read_failed(ConnectionLostError("x"), 0.0) == []
    assert repair.on_locations_changed(3, 1.0) == []
    assert repair.on_replies_held() == []
    assert only(machines.fail("b"), Suspect) == Suspect("b")  # other writers of the client avoid it
    machines.writer.adds_answered("b", [0])
    assert not machines.writer.adds_answered("c", [0])


def test_the_machines_take_every_transition_of_the_table_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Random events, each legal at its moment; an illegal transition raises."""
    taken: set[tuple[EnsembleState, EnsembleEvent]] = set()
    real = LedgerWriter.move

    def move(self: LedgerWriter, event: EnsembleEvent) -> None:
        taken.add((self.state, event))
        real(self, event)

    monkeypatch.setattr(LedgerWriter, "move", move)
    rng = random.Random(0)
    for _ in range(300):
        machines, now_s = Machines(attrs.evolve(CONFIG, unavailable_timeout_s=1e9)), 0.0
        repair, steps = machines.repair, list[Any]()
        for _ in range(rng.randint(1, 20)):
            now_s += rng.random()
            if steps and rng.random() < 0.6:
                steps += report(machines, steps.pop(rng.randrange(len(steps))), rng, now_s)
            elif rng.random() < 0.1:
                repair.stop()
            else:
                cause = rng.choice([DEAD, TooManyRequestsRefusal("a", LEDGER, 0)])
                steps += machines.fail(rng.choice(machines.writer.ensemble), cause, now_s=now_s)
            machines.writer.check()
    assert taken == TRANSITIONS.keys() - {(EnsembleState.DEGRADED, EnsembleEvent.BEGIN_CHANGE)}


def report(machines: Machines, step: Any, rng: random.Random, now_s: float) -> list[Action]:
    """Report some outcome of a step."""
    repair = machines.repair
    match step:
        case BeginRepair():
            return repair.on_repair_due(now_s)
        case ChooseReplacements():
            spare = [name for name in "abcxyz" if name not in machines.writer.ensemble]
            chosen = dict(zip(sorted(step.failed), spare, strict=False)) if rng.random() < 0.5 else {}
            return machines.choose(step, chosen, now_s=now_s)
        case WriteChange():
            return repair.on_ensemble_changed(step, machines.store(step), now_s)
        case Wait():
            return repair.on_waited(step, now_s)
        case Probe():
            return repair.on_probe_answered(step, rng.choice([None, DEAD]), now_s)
        case _:
            return []
