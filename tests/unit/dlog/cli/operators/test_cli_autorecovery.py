"""`dlog autorecovery` and its companions, on bookies made of dictionaries."""

# covers: dlog/cli/operators/autorecovery.py
# covers: dlog/cli/operators/bookie/removal.py
# covers: ledger/decommission/bookie_recovery.py

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from dlog.cli.main import main
from dlog.cli.operators import autorecovery
from dlog.cli.operators.service import Service
from ledger.catalog.paths import cookie_path
from ledger.client import open_ledger_client
from ledger.deploy import Deployment
from ledger.metadata_store.memory import MemoryTree, open_memory_store
from ledger.replication.election import AuditorElection
from ledger.replication.marks import UnderReplicatedLedgers
from tests.fakes.dict_bookies import ENDS_WITHIN_S, DictBookie, DictCluster


@attrs.frozen
class CommandResult:
    code: int
    out: str
    err: str

    @property
    def document(self) -> object:
        return json.loads(self.out)


class CommandWorld:
    """A cluster that outlives the event loop of one command."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self.tree, self.bookies = MemoryTree(), dict[str, DictBookie]()
        self.running = ["b1:1", "b2:1", "b3:1", "b4:1"]
        self.auditor: str | None = None
        self._capfd = capfd

    @asynccontextmanager
    async def open_ledgers(self, service: Service) -> AsyncIterator[Deployment]:
        with trio.fail_after(ENDS_WITHIN_S):
            async with (
                open_memory_store(self.tree) as registrar,
                open_memory_store(self.tree) as store,
                trio.open_nursery() as nursery,
            ):
                cluster = DictCluster(self.tree, registrar, nursery)
                cluster.bookies = self.bookies
                for name in self.running:
                    await cluster.start(name)
                if self.auditor is not None:
                    await AuditorElection(registrar, "/ledgers", self.auditor).wait_elected()
                async with open_ledger_client(store, cluster.dial) as client:
                    yield Deployment(client, store, "/ledgers")
                nursery.cancel_scope.cancel()

    def run(self, work: Callable[[Deployment], object]) -> object:
        async def go() -> object:
            async with self.open_ledgers(Service(uri="zk://zk1/ledgers")) as deployment:
                return await work(deployment)  # type: ignore[misc]

        return trio.run(go)

    def dlog(self, *arguments: str) -> CommandResult:
        code = main((*arguments, "--service", "zk://zk1/ledgers"))
        captured = self._capfd.readouterr()
        return CommandResult(code, captured.out, captured.err)

    def closed_ledger(self) -> tuple[int, tuple[str, ...]]:
        """A ledger of four entries, and its bookies."""

        async def write(deployment: Deployment) -> tuple[int, tuple[str, ...]]:
            async with await deployment.client.create() as writer:
                await writer.append_many([b"a", b"b", b"c", b"d"])
                bookies = (await deployment.client.metadata(writer.ledger_id)).last_ensemble.bookies
            return writer.ledger_id, bookies

        found = self.run(write)
        assert isinstance(found, tuple)
        return found


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> CommandWorld:
    world = CommandWorld(capfd)
    monkeypatch.setattr(autorecovery, "open_ledgers", world.open_ledgers)
    return world


def test_the_switch_the_delay_and_the_auditor_are_shown_and_set(world: CommandWorld) -> None:
    assert world.dlog("autorecovery", "status", "--json").document == {
        "enabled": True,
        "auditor": None,
        "delay_s": 0,
        "underreplicated_ledgers": 0,
        "ledgers_checked_ms": None,
        "placement_checked_ms": None,
        "replicas_checked_ms": None,
    }
    assert "is disabled" in world.dlog("autorecovery", "disable").err
    assert "already disabled" in world.dlog("autorecovery", "disable").err
    assert "enabled                  no" in world.dlog("autorecovery", "status").out
    assert "is enabled" in world.dlog("autorecovery", "enable").err
    assert world.dlog("autorecovery", "delay", "120").out == "120\n"
    assert world.dlog("autorecovery", "delay", "--json").document == {"delay_s": 120}
    for command in (["auditor"], ["auditor", "--json"], ["whoisauditor"], ["audit"]):
        assert world.dlog("autorecovery", *command).code == 3
    world.auditor = "b1:3181"
    assert world.dlog("autorecovery", "auditor").out == "b1:3181\n"
    assert world.dlog("autorecovery", "audit").code == 0
    assert world.dlog("autorecovery", "delay").out == "120\n"


def test_checks_of_all_ledgers_are_made_due(world: CommandWorld) -> None:
    assert world.dlog("autorecovery", "check").code == 2  # none is named
    assert world.dlog("autorecovery", "forceauditchecks", "--reads").code == 3  # no auditor
    world.auditor = "b1:3181"
    done = world.dlog("autorecovery", "check", "--placement", "--replicas", "--json")
    assert (done.code, done.document) == (0, {"due": ["placement", "replicas"], "auditor": "b1:3181"})
    state = world.dlog("autorecovery", "status", "--json").document
    assert isinstance(state, dict)
    assert [state[f"{name}_checked_ms"] for name in ("ledgers", "placement", "replicas")] == [0, 0, 0]


def test_marked_ledgers_are_listed(world: CommandWorld) -> None:
    async def mark(deployment: Deployment) -> None:
        marks = UnderReplicatedLedgers(deployment.store, "/ledgers", wall_ms=lambda: 5)
        await marks.mark(7, ["b1:1"])
        await marks.mark(8, ["b2:1"])

    world.run(mark)
    expected = [{"ledger_id": 7, "missing_replicas": ["b1:1"], "ctime_ms": 5}]
    for command in (["ledger", "underreplicated"], ["ledger", "listunderreplicated"]):
        assert world.dlog(*command, "--bookie", "b1:1", "--json").document == expected
    shown = world.dlog("autorecovery", "underreplicated").out
    assert shown.split() == ["ledger", "missing", "replicas", "7", "b1:1", "8", "b2:1"]


def test_a_bookie_is_emptied_and_its_cookie_deleted(world: CommandWorld) -> None:
    ledger_id, bookies = world.closed_ledger()
    lost = bookies[0]

    async def add_cookie(deployment: Deployment) -> None:
        await deployment.store.create(cookie_path("/ledgers", lost), parents=True)

    async def state(deployment: Deployment) -> tuple[object, object]:
        metadata = await deployment.client.metadata(ledger_id)
        return metadata.last_ensemble.bookies, await deployment.store.exists(cookie_path("/ledgers", lost))

    world.run(add_cookie)
    world.running.remove(lost)
    done = world.dlog("bookie", "recover", lost, "--yes", "--delete-cookie", "--json")
    assert done.code == 0, done.err
    assert isinstance(done.document, dict)
    assert done.document["left"] == []
    assert done.document["entries_copied"] == 4
    found = world.run(state)
    assert isinstance(found, tuple)
    assert lost not in found[0]
    assert found[1] is None
    assert "0 of 0 ledgers" in world.dlog("bookie", "recover", lost, "--yes").err


def test_a_bookie_that_cannot_be_emptied_keeps_its_cookie(world: CommandWorld) -> None:
    ledger_id, bookies = world.closed_ledger()
    (spare,) = set(world.running) - set(bookies)
    world.running.remove(spare)
    world.running.remove(bookies[0])
    done = world.dlog("bookie", "recover", bookies[0], "--yes", "--delete-cookie", "--json")
    assert done.code == 1
    assert isinstance(done.document, dict)
    assert done.document["left"] == [ledger_id]
    assert f"ledger {ledger_id}" in done.err


def test_a_dry_run_lists_the_ledgers_and_changes_nothing(world: CommandWorld) -> None:
    ledger_id, bookies = world.closed_ledger()
    found = world.dlog("bookie", "recover", bookies[0], "--dry-run", "--json")
    assert found.document == [{"ledger_id": ledger_id, "is_open_end": False, "fragments": 1, "reason": None}]
    shown = world.dlog("bookie", "recover", bookies[0], "--dry-run", "--ledger", str(ledger_id)).out
    assert shown.splitlines()[1].split() == [str(ledger_id), "1", "no"]
    assert world.dlog("bookie", "recover", bookies[0], "--dry-run", "--ledger", "999").code == 3
    assert world.dlog("bookie", "recover", "b1:1", "--dry-run", "--delete-cookie").code == 2


@pytest.mark.slow
def test_a_bookie_leaves_the_cluster_only_when_it_is_stopped_and_empty(world: CommandWorld) -> None:
    ledger_id, bookies = world.closed_ledger()
    lost = bookies[0]
    refused = world.dlog("bookie", "decommission", lost, "--yes")
    assert (refused.code, "is registered" in refused.err) == (5, True)
    assert world.dlog("bookie", "recover", lost, "--yes", "--delete-cookie").code == 5
    world.running.remove(lost)
    assert world.dlog("bookie", "decommission", lost, "--yes").code == 6
    world.auditor = "b9:1"  # it elects nobody to work
    late = world.dlog("bookie", "decommission", lost, "--yes", "--timeout", "0.1", "--json")
    assert late.code == 1
    assert late.document == {"bookie": lost, "ledgers": 1, "ledgers_left": 1, "cookie_deleted": False}
    assert [one["ledger_id"] for one in world.dlog("ledger", "underreplicated", "--json").document] == [  # type: ignore[attr-defined]
        ledger_id
    ]
    assert world.dlog("bookie", "recover", lost, "--yes").code == 0
    done = world.dlog("bookie", "decommissionbookie", lost, "--yes")
    assert (done.code, "no ledger names" in done.err) == (0, True)


def test_wrong_arguments_do_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DLOG_DEBUG", raising=False)
    assert main(["autorecovery", "status", "--service", "file:///nowhere"]) == 2
    assert "name a cluster" in capfd.readouterr().err
    assert main(["autorecovery", "--service", "zk://zk1/ledgers", "disable"]) == 2
    assert "behind the command disable" in capfd.readouterr().err
    assert main(["bookie", "recover", "a/b", "--yes", "--service", "zk://zk1/ledgers"]) == 2
    assert "cannot be a bookie's id" in capfd.readouterr().err
    assert main(["autorecovery", "--id", "a/b", "--service", "zk://zk1/ledgers"]) == 2
