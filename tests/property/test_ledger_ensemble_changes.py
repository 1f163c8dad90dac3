"""Every small interleaving of failing bookies, replies, and outcomes of changes at the metadata store.

The writer is the real one: the handle with both machines. Bookies are sets of entries. The metadata store is
a register; it holds each request until the schedule lets the request through, in any order and with any
outcome. After each step the test checks the ledger from outside, as a recovery would see it in the register:

- each confirmed entry is on an ack quorum of the bookies that the register names for it;
- only one ensemble change is under way;
- once no bookie is failing and no request is under way, the bookies that the register names hold all entries
  from the beginning of their segment on.

apache/bookkeeper#4097: two overlapping changes leave bookies in the metadata that never got their entries.
apache/bookkeeper#1591: an entry is confirmed while a change is under way that the metadata do not have yet.

This is stateless model checking: each schedule is played from the beginning, and choices are tried in order,
depth first.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ledger.catalog.catalog import Versioned
from ledger.codes import Code
from ledger.config import ClientConfig
from ledger.digest import DigestType, EntryCodec
from ledger.errors import BookieUnavailableError
from ledger.metadata import Ensemble, LedgerMetadata, LedgerState
from ledger.metadata_store.errors import BadVersionError, ConnectionLostError
from ledger.runtime.statistics import Recorder
from ledger.wire.messages import WriteLacReply
from ledger.write.actions import Action, BeginRepair
from ledger.write.ensemble_change import EnsembleChange
from ledger.write.ensemble_state import TRANSITIONS, EnsembleEvent, EnsembleState
from ledger.write.handle import WriteHandle
from ledger.write.repair import EnsembleRepair
from ledger.write.writer import LedgerWriter, SendAdds
from tests.effort import examples

LEDGER = 7
SCHEDULES = examples(200)  # of each kind of quorum; raise it for a longer search
CONFIG = ClientConfig(unavailable_timeout_s=1e9, retry_backoff_min_s=1.0, retry_backoff_max_s=1.0)


class Register:
    """The ledger's metadata, and requests that are held before they reach it. The writer's catalog."""

    def __init__(self, metadata: LedgerMetadata) -> None:
        self.metadata, self.version = metadata, 0
        self.waiting: list[Callable[[str], None]] = []
        self.most_writes = self.writes = 0

    async def get(self, ledger_id: int, *, watch: trio.Event | None = None) -> Versioned:
        if watch is not None:
            await trio.sleep_forever()  # no watch fires here: the tests are about the last line of defence
        return await self._held("read", lambda: None)

    get_newest = get

    async def put(
        self, ledger_id: int, metadata: LedgerMetadata, *, expected: int, lock: str | None = None
    ) -> Versioned:
        assert lock is None, "a writer holds no lock of re-replication"

        def write() -> None:
            if expected != self.version:
                raise BadVersionError("another client wrote")
            self.metadata, self.version = metadata, self.version + 1

        self.writes += 1
        self.most_writes = max(self.most_writes, self.writes)
        try:
            return await self._held("write", write)
        finally:
            self.writes -= 1

    async def _held(self, kind: str, do: Callable[[], None]) -> Versioned:
        replied = trio.Event()
        result: list[Versioned | Exception] = []

        def arrive(fate: str) -> None:
            try:
                if fate != "lost":
                    do()
                    result.append(Versioned(LEDGER, self.metadata, self.version))
                if fate != "ok":
                    result[:] = [ConnectionLostError(fate)]
            except BadVersionError as exc:
                result.append(exc)
            replied.set()

        self.waiting.append(arrive)
        await replied.wait()
        (outcome,) = result
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


class World:
    """One writer with three bookies and as many spare ones, and the events that may happen next."""

    checks_overlap = True

    def __init__(self, nursery: trio.Nursery, clock: MockClock, write_quorum: int, ack_quorum: int) -> None:
        self.clock = clock
        self.names = ["a", "b", "c", "x", "y", "z"]
        self.held: dict[str, set[int]] = {name: set() for name in self.names}
        self.unanswered: dict[str, list[int]] = {name: [] for name in self.names}
        self.dead: set[str] = set()
        self.failures_left, self.entries_left, self.faults_left = 3, 2, 1
        self.register = Register(
            LedgerMetadata(
                ensemble_size=3,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                ensembles=(Ensemble(0, ("a", "b", "c")),),
            )
        )
        transport = SimpleNamespace(
            losses=0,
            connection_to=lambda bookie, add_version: 1,
            post_adds=self.post_adds,
            forget=lambda ledger_id, sink: None,
            call=self.call,
        )
        membership: Any = SimpleNamespace(
            suspects=(),
            report_failure=lambda bookie: None,
            report_errors=lambda *arguments: None,
            wait_change=trio.sleep_forever,
        )
        placer = SimpleNamespace(ack_rule=lambda write_quorum: None, choose_replacements=self.choose)
        cluster: Any = SimpleNamespace(
            config=CONFIG,
            transport=transport,
            catalog=self.register,
            membership=membership,
            placer=placer,
            rng=random.Random(0),
            recorder=Recorder(),
            why_read_only=None,
        )
        self.handle = WriteHandle(
            Versioned(LEDGER, self.register.metadata, 0),
            EntryCodec(DigestType.DUMMY, b""),
            cluster,
            nursery,
            connections=dict.fromkeys("abc", 1),
        )
        self.choose_spare = iter("xyz")

    # The parts that the writer calls.

    def post_adds(
        self, bookie: str, ledger_id: int, frames: list[bytes], entry_ids: Sequence[int], sink: Any
    ) -> None:
        self.sink = sink
        self.unanswered[bookie] += entry_ids

    async def call(self, bookie: str, request: object, *, timeout_s: float | None = None) -> object:
        await trio.lowlevel.checkpoint()
        if bookie in self.dead:
            raise BookieUnavailableError(bookie, "dead")
        return WriteLacReply(Code.OK, LEDGER)

    async def choose(
        self,
        ensemble: Sequence[str],
        failed: Collection[int],
        write_quorum: int,
        ack_quorum: int,
        *,
        tried: Sequence[str],
        allow_quarantined: bool,
    ) -> tuple[dict[int, str], None]:
        await trio.lowlevel.checkpoint()
        spare = [name for name in self.names if name not in ensemble and name not in self.dead]
        return dict(zip(sorted(failed), spare, strict=False)), None

    # Events.

    def choices(self) -> Iterator[tuple[str, Callable[[], None]]]:
        ensemble = self.handle._writer.ensemble
        for number, arrive in enumerate(self.register.waiting):
            yield f"store replies {number}", partial(self.release, arrive, "ok")
        for name in self.names:
            if self.unanswered[name] and name not in self.dead:
                yield f"{name} acknowledges", partial(self.acknowledge, name)
        if self.failures_left:
            for name in ensemble:
                if name not in self.dead:
                    yield f"{name} dies", partial(self.die, name)
        if self.entries_left:
            yield "write", self.write
        if self.faults_left:
            for number, arrive in enumerate(self.register.waiting):
                for fate in ("lost", "applied and lost"):
                    yield f"store {number} {fate}", partial(self.release, arrive, fate)
                yield f"another client writes before {number}", self.conflict

    def release(self, arrive: Callable[[str], None], fate: str) -> None:
        self.faults_left -= fate != "ok"
        self.register.waiting.remove(arrive)
        arrive(fate)

    def conflict(self) -> None:
        self.faults_left -= 1
        self.register.version += 1

    def acknowledge(self, name: str) -> None:
        entry_ids, self.unanswered[name] = self.unanswered[name], []
        self.held[name].update(entry_ids)
        self.sink.on_add_replies(name, Code.OK, entry_ids)

    def die(self, name: str) -> None:
        self.failures_left -= 1
        self.dead.add(name)
        self.unanswered[name] = []
        self.sink.on_bookie_lost(name, BookieUnavailableError(name, "dead"))

    def write(self) -> None:
        self.entries_left -= 1
        self.handle.submit(b"")
        self.handle.send_now()

    # Checks.

    def check(self) -> None:
        writer = self.handle._writer
        writer.check()
        assert self.register.most_writes <= 1 or not self.checks_overlap, "two ensemble changes at once"
        metadata = self.register.metadata
        for entry_id in range(writer.lac + 1):
            named = metadata.ensemble_for(entry_id).bookies
            write_set = [named[(entry_id + i) % 3] for i in range(metadata.write_quorum)]
            holders = [name for name in write_set if entry_id in self.held[name]]
            assert len(holders) >= metadata.ack_quorum, (
                f"entry {entry_id} was confirmed, the metadata names {named}, it is on {holders} only"
            )

    async def settle(self) -> None:
        """Let all requests through until no event is left, without further failures."""
        self.failures_left = self.faults_left = self.entries_left = 0
        for _ in range(60):
            choice = next(self.choices(), None)
            if choice is not None:
                choice[1]()
            elif self.handle._writer.failures:
                self.clock.jump(5)
            else:
                break
            await wait_all_tasks_blocked()
            self.check()
        writer, metadata = self.handle._writer, self.register.metadata
        assert metadata.state is LedgerState.OPEN
        named = metadata.last_ensemble.bookies
        assert named == writer.ensemble, (
            f"the metadata names {named}, the writer goes on with {writer.ensemble}"
        )
        assert not self.dead & set(named), f"the metadata names {named}, of which {self.dead} are dead"
        assert writer.lac == writer.last_pushed
        for entry_id in range(metadata.last_ensemble.first_entry_id, writer.last_pushed + 1):
            for i in range(metadata.write_quorum):
                name = writer.ensemble[(entry_id + i) % 3]
                assert entry_id in self.held[name], f"{name} is named for entry {entry_id} and has not got it"
        assert writer.state is EnsembleState.HEALTHY, f"the repair has stopped in state {writer.state.name}"


async def play(clock: MockClock, choices: list[int], quorums: tuple[int, int], depth: int) -> list[int]:
    """Play one schedule: the given choices, then always the first one; return their number at each step."""
    breadths: list[int] = []
    events: list[str] = []
    failure: AssertionError | None = None
    async with trio.open_nursery() as nursery:
        world = World(nursery, clock, *quorums)
        world.write()
        try:
            for step in range(depth):
                possible = list(world.choices())
                if not possible:
                    break
                breadths.append(len(possible))
                name, do = possible[choices[step] if step < len(choices) else 0]
                events.append(name)
                do()
                await wait_all_tasks_blocked()
                world.check()
            await world.settle()
        except AssertionError as exc:
            failure = AssertionError(
                f"{exc}; after: {', '.join(events)}"
            )  # raised below, outside the nursery
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return breadths


async def explore(clock: MockClock, quorums: tuple[int, int], depth: int, schedules_max: int) -> int:
    """Play every schedule of ``depth`` steps, but at most ``schedules_max`` of them, spread over all."""
    rng = random.Random(1)
    todo: list[list[int]] = [[]]
    played = 0
    while todo and played < schedules_max:
        # Depth first while few are left, at random otherwise, so that no part is left out as a whole.
        prefix = todo.pop(rng.randrange(len(todo)) if len(todo) > 50 else -1)
        breadths = await play(clock, prefix, quorums, depth)
        played += 1
        for step in range(len(prefix), len(breadths)):
            todo += [[*prefix, *[0] * (step - len(prefix)), choice] for choice in range(1, breadths[step])]
    return played


def play_all(quorums: tuple[int, int], depth: int, schedules_max: int) -> int:
    clock = MockClock()

    async def main() -> int:
        return await explore(clock, quorums, depth, schedules_max)

    return trio.run(main, clock=clock)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="ledger")


@pytest.mark.parametrize(
    ("quorums", "depth"),
    [pytest.param((3, 2), 4, marks=pytest.mark.slow), ((3, 3), 3), ((2, 2), 3), ((2, 1), 3)],
)
def test_in_every_short_schedule_one_change_at_a_time_loses_nothing(
    quorums: tuple[int, int], depth: int
) -> None:
    played = play_all(quorums, depth, 10**6)
    assert played > 100


@pytest.mark.parametrize("quorums", [(3, 2), (3, 3), (2, 2), (2, 1)])
def test_in_long_schedules_too(quorums: tuple[int, int]) -> None:
    """A sample: several failures while several requests are under way."""
    assert play_all(quorums, 12, SCHEDULES) == SCHEDULES


# The state that each event leads to. BOOKIE_FAILED has several; the table has them all.
TARGETS = {event: target for (_, event), target in TRANSITIONS.items()}


def unguarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No event is illegal. Nothing is confirmed from the first begin to the first end of a change."""

    def move(self: LedgerWriter, event: EnsembleEvent) -> None:
        if self.state is not EnsembleState.CHANGING or event is EnsembleEvent.SETTLE_CHANGE:
            self.state = TRANSITIONS.get((self.state, event), TARGETS[event])

    monkeypatch.setattr(LedgerWriter, "move", move)


def two_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each failing bookie begins a repair of its own, also while another one is under way."""
    unguarded(monkeypatch)
    real, wait = EnsembleRepair.on_bookie_failed, EnsembleRepair._wait

    def on_bookie_failed(self: EnsembleRepair, *arguments: Any, **keywords: Any) -> list[Action]:
        actions = real(self, *arguments, **keywords)
        return [*actions[:2], BeginRepair()] if actions else []

    def wait_if_any(self: EnsembleRepair, now_s: float) -> list[Action]:
        return wait(self, now_s) if self._writer.failures else []  # the other repair may have ended them

    monkeypatch.setattr(EnsembleRepair, "on_bookie_failed", on_bookie_failed)
    monkeypatch.setattr(EnsembleRepair, "_wait", wait_if_any)


def confirmed_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acknowledgements count while the change is under way."""
    unguarded(monkeypatch)
    monkeypatch.setattr(LedgerWriter, "begin_change", lambda self: None)


def nothing_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new bookies get only later entries."""
    real = LedgerWriter.finish_change

    def finish_change(self: LedgerWriter, ensemble: Sequence[str]) -> list[SendAdds]:
        real(self, ensemble)
        return []

    monkeypatch.setattr(LedgerWriter, "finish_change", finish_change)


def too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new segment takes the last confirmed entry with it."""
    real = EnsembleChange.apply

    def apply(self: EnsembleChange, metadata: LedgerMetadata) -> LedgerMetadata | None:
        return real(attrs.evolve(self, first_entry_id=max(0, self.first_entry_id - 1)), metadata)

    monkeypatch.setattr(EnsembleChange, "apply", apply)


def assume_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer takes a change for stored if the reply was lost."""

    async def put(
        self: Register, ledger_id: int, metadata: LedgerMetadata, *, expected: int, lock: str | None = None
    ) -> Versioned:
        try:
            return await real(self, ledger_id, metadata, expected=expected, lock=lock)
        except ConnectionLostError:
            return Versioned(ledger_id, metadata, expected + 1)

    real = Register.put
    monkeypatch.setattr(Register, "put", put)


@pytest.mark.slow
@pytest.mark.parametrize(
    "take_out", [two_at_once, confirmed_early, nothing_sent_again, too_early, assume_stored]
)
def test_the_schedules_find_the_loss_when_a_rule_is_taken_out(
    monkeypatch: pytest.MonkeyPatch, take_out: Callable[[pytest.MonkeyPatch], None]
) -> None:
    take_out(monkeypatch)
    monkeypatch.setattr(World, "checks_overlap", False)  # the loss shall be found, not its cause
    with pytest.raises(AssertionError, match=r"the metadata names|has not got it"):
        play_all((3, 2), 8, 20_000)
