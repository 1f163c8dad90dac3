"""An unexpected error in the background ends one round; the loop continues after its usual pause."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from bookie.auth.reloading import Secrets
from bookie.cluster.autorecovery import keep_running
from bookie.cluster.registration import Registration
from bookie.disk_watch import DiskWatch
from bookie.embedded.garbage import EmbeddedGarbage
from bookie.errors import DirectoryError
from bookie.gc.collector import GarbageCollector, GcConfig
from bookie.http.admin import RecoveryState
from bookie.http.messages import AdminReply, AdminRequest, Method
from bookie.http.router import Router, get
from bookie.http.routes.recovery import _run_logged
from bookie.identity.incarnation import Incarnation
from bookie.ledger_metadata.cluster_nodes import ClusterNodes
from bookie.ledger_metadata.log_permissions import LogPermissions
from bookie.requests.permissions import Access, Decision, PeerPermissions
from bookie.requests.session import BookieService
from bookie.server.server import Server
from ledger.catalog.paths import Layout
from ledger.errors import LedgerError
from ledger.metadata_store.store import SessionState
from ledger.runtime.tasks.failure_domain import contained_failures
from tests.fakes.service_by_hand import HandDisk

FAULTS = [KeyError("a fault"), MemoryError(), RecursionError(), ExceptionGroup("two", [ValueError("one")])]


class Failing:
    """Raises at the first calls, and counts all."""

    def __init__(self, fault: Exception, failures: int = 3) -> None:
        self.fault, self.failures, self.calls = fault, failures, 0
        self.times_s: list[float] = []

    def __call__(self, *args: object, **kwargs: object) -> None:
        self.calls += 1
        self.times_s.append(trio.current_time())
        if self.calls <= self.failures:
            raise self.fault

    async def wait(self, *args: object, **kwargs: object) -> None:
        await trio.lowlevel.checkpoint()
        self(*args, **kwargs)


async def check_rounds(run: Callable[[], Awaitable[object]], operation: str, failing: Failing) -> None:
    before = contained_failures[operation]
    with trio.move_on_after(1000):
        await run()
    assert contained_failures[operation] == before + failing.failures
    assert failing.calls > failing.failures, "the loop continues"
    assert min(b - a for a, b in zip(failing.times_s, failing.times_s[1:], strict=False)) >= 0.5, "it pauses"


@pytest.fixture(params=FAULTS, ids=lambda fault: type(fault).__name__)
def failing(request: pytest.FixtureRequest) -> Failing:
    return Failing(request.param)


async def test_a_round_of_the_garbage_collection(failing: Failing, autojump_clock: MockClock) -> None:
    class Store:
        collectors: Sequence[Any] = ()

        def ledger_ids(self) -> list[int]:
            return [7]

        async def delete_ledger(self, ledger_id: int) -> None:
            raise DirectoryError("nothing is dead here")

    async def live(ledger_ids: Sequence[int]) -> Collection[int]:
        await failing.wait()
        return ledger_ids

    collector = GarbageCollector(Store(), live, config=GcConfig(interval_s=10))
    await check_rounds(collector.run, "garbage collection", failing)


async def test_a_reading_of_secrets(
    failing: Failing, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr(Secrets, "load", failing.wait)
    await check_rounds(lambda: Secrets(None, None).keep(10), "reading secrets again", failing)


@pytest.mark.slow
async def test_a_refresh_of_permissions(
    failing: Failing, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async def decide(self: LogPermissions, name: str, ledger_ids: Sequence[int]) -> Mapping[int, Decision]:
        try:
            await failing.wait()
        finally:
            self._refresh(peer, 7)
        await trio.sleep(1)
        return {7: Decision(Access.READ)}

    class Peer:
        name = "alice"

        def keep(self, ledger_id: int, access: Access) -> None:
            pass

    peer: PeerPermissions = Peer()  # type: ignore[assignment]
    monkeypatch.setattr(LogPermissions, "decide", decide)
    permissions = LogPermissions(ClusterNodes(lambda: None, "/ledgers", Layout.FLAT), ())  # type: ignore[arg-type,return-value]
    permissions._refresh(peer, 7)
    await check_rounds(permissions.keep_fresh, "refresh of permissions", failing)


@pytest.mark.slow
async def test_a_sweep_of_connections(failing: Failing, autojump_clock: MockClock) -> None:
    server = Server(BookieService(HandDisk()))  # type: ignore[arg-type]
    server._connections[object()] = None  # type: ignore[index]
    await check_rounds(lambda: server.sweep(failing), "sweep of connections", failing)


async def test_a_watch_of_the_session(failing: Failing, autojump_clock: MockClock) -> None:
    class Store:
        state = SessionState.CONNECTED

        async def wait_state_change(self, state: SessionState) -> SessionState:
            await failing.wait()
            await trio.sleep_forever()

    registration = Registration(Store(), "/ledgers", "b", b"")  # type: ignore[arg-type]
    await check_rounds(lambda: registration.keep(lambda: None), "watch of the session", failing)  # type: ignore[arg-type,return-value]


async def test_a_check_of_the_disks(
    failing: Failing, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    watch = DiskWatch.__new__(DiskWatch)
    watch._changed = trio.Event()

    class Config:
        check_interval_s = 10.0

    class Rights:
        writable = True

    watch._config, watch._rights = Config(), Rights()  # type: ignore[assignment]
    watch._persists = watch._has_space = watch._is_by_hand = False
    watch._stored = None
    watch._backlog_bytes = lambda: None
    watch.__class__ = type("Watch", (DiskWatch,), {"check": failing.wait, "__repr__": object.__repr__})
    await check_rounds(watch.run, "watch of the disks", failing)


async def test_a_raise_of_the_incarnation(
    failing: Failing, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr(Incarnation, "raise_number", failing.wait)
    incarnation = Incarnation.__new__(Incarnation)
    changes = iter(range(10**6))
    await check_rounds(
        lambda: incarnation.keep_raising(lambda: None, lambda: next(changes), 10),  # type: ignore[arg-type,return-value]
        "raising the incarnation",
        failing,
    )


async def test_a_directory_that_fails_ends_the_watch_of_the_disks_by_name(autojump_clock: MockClock) -> None:
    async def check() -> None:
        raise DirectoryError("the disk is gone")

    watch = DiskWatch.__new__(DiskWatch)
    watch._changed, watch.check = trio.Event(), check  # type: ignore[method-assign]
    watch._config = type("Config", (), {"check_interval_s": 10.0})()
    watch._rights = type("Rights", (), {"writable": True})()
    with pytest.raises(DirectoryError):
        await watch.run()


async def test_auto_recovery_in_a_bookie(failing: Failing, autojump_clock: MockClock) -> None:
    await check_rounds(lambda: keep_running(failing.wait), "auto-recovery", failing)


async def test_a_failure_that_auto_recovery_expects_is_none_of_ours(autojump_clock: MockClock) -> None:
    before = contained_failures.total()
    with trio.move_on_after(100):
        await keep_running(Failing(LedgerError("no bookie is there")).wait)
    assert contained_failures.total() == before


async def test_garbage_collection_of_a_directory(failing: Failing) -> None:
    class Collector:
        def force(self, *, minor: bool) -> None:
            pass

        run_round = staticmethod(failing.wait)

    before = contained_failures["garbage collection"]
    bound: Any = None  # not asked before the end
    garbage = EmbeddedGarbage(Collector(), Path("/d"), bound)  # type: ignore[arg-type]
    assert await garbage._try_collect(), "rounds go on"
    assert contained_failures["garbage collection"] == before + 1


async def test_the_entry_logs_of_one_directory(failing: Failing, caplog: pytest.LogCaptureFixture) -> None:
    class Logs:
        directory = "/ledgers/7"
        remove_dead = staticmethod(failing.wait)
        finish_compactions = staticmethod(failing.wait)

    class Store:
        collectors: Sequence[Any] = (Logs(),)
        delete_ledger = staticmethod(failing.wait)

    operation = "garbage collection of entry logs"
    before = contained_failures[operation]
    collector = GarbageCollector(Store(), None, config=GcConfig())  # type: ignore[arg-type]
    await collector._finish_compactions()
    await collector._collect(Logs(), None, [], [])  # type: ignore[arg-type]
    assert contained_failures[operation] == before + 2
    assert caplog.messages[-1].startswith(f"{operation}, directory /ledgers/7: ended by ")


async def test_a_request_over_http(failing: Failing) -> None:
    async def handler(*_: object) -> AdminReply:
        await failing.wait()
        raise AssertionError

    class Bookie:
        bookie_id = "b"

    router = Router([get("/x", handler)], Bookie())  # type: ignore[arg-type]
    before = contained_failures["HTTP request"]
    reply = await router.answer(AdminRequest(Method.GET, "/x"))
    assert (reply.status, contained_failures["HTTP request"]) == (500, before + 1)


async def test_a_recovery_that_http_began(failing: Failing) -> None:
    state, before = RecoveryState(("b",)), contained_failures["recovery of a bookie"]
    await _run_logged(failing.wait, state)
    assert contained_failures["recovery of a bookie"] == before + 1
    assert (state.is_running, bool(state.error)) == (False, True)
    await _run_logged(Failing(LedgerError("no bookie is there")).wait, state)
    assert contained_failures["recovery of a bookie"] == before + 1
    assert state.error == "no bookie is there"
